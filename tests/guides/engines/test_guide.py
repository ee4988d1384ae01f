"""What engines of other packages allow: every guide law, the languages of our own guides, budgets, banned phrases."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from outlines_phi.errors import EmptyLanguageError, GrammarError, UnsupportedError
from outlines_phi.guides.engines import engine as engine_module
from outlines_phi.guides.engines import prefixes
from outlines_phi.guides.engines.engine import Engine, Kind, Matcher, Source
from outlines_phi.guides.engines.guide import ENGINES, EngineGuide
from outlines_phi.guides.grammar.guide import CFGGuide
from outlines_phi.guides.grammar.notation.reader import read_grammar
from outlines_phi.guides.guide import DEAD, DONE, Guide
from outlines_phi.guides.laws import assert_guide, assert_spells
from outlines_phi.guides.phrases.ban_language import banned
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.guides.regex import compile_regex
from outlines_phi.guides.table import Table
from outlines_phi.vocabulary.vocabulary import Vocabulary

LETTERS = Vocabulary.from_tokens(["<eos>", *"abcxyz019.-", "ab", "bc", "abc", "ca", "01", "1.", ".0", "ab"], 0)
PARTIAL = Vocabulary(
    (b"a", b"\xc3", b"\xa9", "é".encode(), b"a\xc3", b"\xa9a", b"", b"", b"", b"b"),
    (7, 6),
    np.array([True] * 8 + [False, True]),
)
COARSE = Vocabulary.from_tokens(["<eos>", "aa", "aaa", "b", "ab", "cd"], 0)
JSON = Vocabulary.from_tokens(["<eos>", *'{}[]":, 01ab', '":', '"}', "[]", "[["], 0)
BRACKETS = Vocabulary.from_tokens(["<eos>", *"()x", "((", "))", "()", "(x", "x)"], 0)

PATTERNS = [
    (LETTERS, "abc"),
    (LETTERS, "(ab|bc|ca){1,3}"),
    (LETTERS, "a|ab|abc"),
    (LETTERS, "a(bc)*"),
    (LETTERS, r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"),
    (PARTIAL, "é+a|b"),
    (COARSE, "a{5}|(aa)*b"),
    (COARSE, "aaab|cdcd"),
]
GRAMMARS = {
    "llguidance": 'start: "(" start ")" | start start | "x"\n',
    "xgrammar": 'root ::= "(" root ")" | "x" root | "x" | "(" root ")" root\n',
}
LARK = 'start: "(" start ")" | start start | "x"\n'
TREE = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["a"],
    "additionalProperties": False,
}

engines = pytest.mark.parametrize("name", ENGINES)


@cache
def engine(name: str, vocabulary: Vocabulary) -> Engine:
    pytest.importorskip(name)
    return ENGINES[name](vocabulary)


def guide(name: str, vocabulary: Vocabulary, kind: Kind, text: str) -> EngineGuide:
    return EngineGuide(engine(name, vocabulary), Source(kind, text), vocabulary)


def members(guide: Guide, length: int) -> set[tuple[int, ...]]:
    """All members of at most ``length`` tokens, and the end."""
    found, level = set(), [((), guide.start)]
    for _ in range(length + 1):
        after = [(*tokens, v) for tokens, _ in level for v in range(len(guide.vocabulary))]
        states = [guide.advance(state, v) for _, state in level for v in range(len(guide.vocabulary))]
        found |= {tokens for tokens, state in zip(after, states, strict=True) if state == DONE}
        level = [(tokens, state) for tokens, state in zip(after, states, strict=True) if state not in (DEAD, DONE)]
    return found


def within(guide: Guide, budget: int) -> set[tuple[int, ...]]:
    """All members that a table allows within a budget."""
    table, found, level = Table(guide), set(), [((), guide.start)]
    for remaining in range(budget, 0, -1):
        assert all(len(table.moves(state, remaining).tokens) for _, state in level), "a budget was broken"
        after = [
            ((*tokens, v), target)
            for tokens, state in level
            for v, target in zip(*(x.tolist() for x in table.moves(state, remaining)), strict=True)
        ]
        found |= {tokens for tokens, state in after if state == DONE}
        level = [(tokens, state) for tokens, state in after if state != DONE]
    assert not level, "a text is not finished within its budget"
    return found


@engines
@pytest.mark.parametrize(("vocabulary", "pattern"), PATTERNS, ids=[pattern for _, pattern in PATTERNS])
def test_a_regex_is_what_it_is_for_our_own_guide(name: str, vocabulary: Vocabulary, pattern: str) -> None:
    """In any spelling: llguidance would allow the canonical one alone where a text is forced."""
    found = guide(name, vocabulary, Kind.REGEX, pattern)
    assert_guide(found, limit=120)
    automaton = compile_regex(pattern)
    for tokens in members(found, 3):
        assert automaton.accepts(vocabulary.decode(tokens))
    finite = "*" not in pattern and "+" not in pattern
    if finite:
        assert_spells(found, automaton, limit=60)


@engines
def test_a_grammar_is_what_it_is_for_our_own_guide(name: str) -> None:
    ours = CFGGuide.of(read_grammar(LARK), BRACKETS)
    found = guide(name, BRACKETS, Kind.GRAMMAR, GRAMMARS[name])
    assert_guide(found, limit=150)
    expected = members(ours, 4)
    assert members(found, 4) == expected and len(expected) > 40
    assert any(tokens != (3, 0) for tokens in expected)


@engines
def test_a_recursive_schema(name: str) -> None:
    found = guide(name, JSON, Kind.JSON_SCHEMA, json.dumps(TREE))
    assert_guide(found, limit=40)
    state, text = found.start, b""
    for token in found.vocabulary.tokens.index(b"{"), 5, 11, 13, 15, 2, 0:
        before, state = state, found.advance(state, token)
        text += found.vocabulary.tokens[token]
        assert state != DEAD, (text, found.describe(before))
    assert json.loads(text) == {"a": []} and state == DONE


@engines
@pytest.mark.parametrize("budget", range(2, 6))
def test_budgets_are_kept(name: str, budget: int) -> None:
    """Of a finite language, whose members all fit at last, and of brackets, which can be opened at any time."""
    brackets = guide(name, BRACKETS, Kind.GRAMMAR, GRAMMARS[name])
    found = within(brackets, budget)
    assert found <= members(brackets, budget - 1) and found
    words = guide(name, LETTERS, Kind.REGEX, "(ab|bc|ca){1,2}")
    fitting = {tokens for tokens in members(words, 4) if len(tokens) <= budget}
    assert within(words, budget) == fitting


@engines
def test_banned_phrases(name: str) -> None:
    words = guide(name, LETTERS, Kind.REGEX, "[abc]{1,4}")
    rest = banned(words, BannedPhrases(["bc", "aa"]))
    assert_guide(rest, limit=100)
    wanted = {t for t in members(words, 4) if not re.search(b"bc|aa", LETTERS.decode(t))}
    assert members(rest, 4) == wanted and len(wanted) < len(members(words, 4))


@engines
def test_phrases_that_go_on_from_the_prompt(name: str) -> None:
    rest = banned(guide(name, LETTERS, Kind.REGEX, "c?ab"), BannedPhrases(["xc"]))
    after = rest.start_after(b"zx")
    assert rest.advance(after, LETTERS.tokens.index(b"c")) == DEAD
    assert rest.advance(rest.start_after(b"z"), LETTERS.tokens.index(b"c")) != DEAD
    assert rest.start_after(b"zx") == after != rest.start
    assert rest.pending(after) == 1 and rest.pending(rest.start) == 0
    assert rest.pending_of(np.array([DEAD, after, rest.start])).tolist() == [0, 1, 0]
    assert rest.phrases_at(after, np.array([1, 3])).tolist() == [-1, 0]


@engines
def test_a_way_that_phrases_close_is_not_begun(name: str) -> None:
    """Nothing that an engine says tells that ``bxx`` cannot be gone on with but into the phrase."""
    rest = banned(guide(name, LETTERS, Kind.REGEX, "abc|bxxya"), BannedPhrases(["y"]))
    assert_guide(rest)
    assert rest.advance(rest.start, LETTERS.tokens.index(b"b")) == DEAD
    with pytest.raises(EmptyLanguageError, match="'y' alone leaves no text of it"):
        banned(guide(name, LETTERS, Kind.REGEX, "bxxya"), BannedPhrases(["y"]))


@engines
def test_many_next_tokens_are_looked_at_where_the_budget_is_near(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = guide(name, BRACKETS, Kind.GRAMMAR, GRAMMARS[name])
    monkeypatch.setattr(prefixes, "MANY", 3)
    monkeypatch.setattr(prefixes, "RESERVE", 2)
    lazy = guide(name, BRACKETS, Kind.GRAMMAR, GRAMMARS[name])
    assert lazy.slack(lazy.start) == 2 + 2 * lazy.min_tokens(lazy.start) == 6
    for budget in range(2, 6):
        assert within(lazy, budget) == within(exact, budget)
    state = lazy.advance(lazy.start, BRACKETS.tokens.index(b"(("))
    assert (
        lazy.live_classes(state, lazy.slack(state)).sum() == exact.live_classes(exact.advance(exact.start, 4), 99).sum()
    )


class Asked:
    """Counts what a guide asks its engine."""

    def __init__(self, guide: EngineGuide, monkeypatch: pytest.MonkeyPatch) -> None:
        self.masks, self.ends = 0, 0
        matcher = type(guide.reader._matcher)
        allowed, ends_after = matcher.allowed, matcher.ends_after

        def mask(matcher: Matcher) -> NDArray[np.bool_]:
            self.masks += 1
            return allowed(matcher)

        def ends(matcher: Matcher, tokens: Sequence[int], more: Sequence[int]) -> list[bool]:
            self.ends += len(tokens)
            return ends_after(matcher, tokens, more)

        monkeypatch.setattr(matcher, "allowed", mask)
        monkeypatch.setattr(matcher, "ends_after", ends)

    def during(self, question: Callable[[], object]) -> tuple[int, int]:
        self.masks = self.ends = 0
        question()
        return self.masks, self.ends


STRING = r'"([^"\\\x00-\x1f]|\\["\\n])*"'


@engines
def test_a_row_is_looked_at_once_where_free_text_goes_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then a mask for each token that ends in a character or an escape; after it one end a row, but for the last tokens."""
    monkeypatch.setattr(prefixes, "MANY", 40)
    pieces = [a + b for a in "abcdefgh" for b in "abcdefgh"]
    vocabulary = Vocabulary.from_tokens(
        ["<eos>", *pieces, *'abcdefgh"\\n', "\\n", 'a"', "é", *(bytes([b]) for b in (0xC3, 0xA9))], 0
    )
    string = guide(name, vocabulary, Kind.REGEX, STRING)
    asked = Asked(string, monkeypatch)
    state = string.advance(string.start, vocabulary.tokens.index(b'"'))
    for budget, (masks, least, most) in {
        30: (2, 75, 100),
        29: (0, 0, 1),
        8: (0, 0, 1),
        7: (2, 2, 20),
        6: (2, 75, 100),
    }.items():
        state = string.advance(state, vocabulary.tokens.index(b"ab"))
        string.row(state)
        asked_masks, asked_ends = asked.during(lambda: string.live_classes(state, budget))  # noqa: B023
        assert asked_masks <= masks and least <= asked_ends <= most
    distances = string.distances_after(state)
    at = string.partition_of(state).class_of
    for token, way in {b"ab": 2, b'"': 1, b'a"': 1, b"\\": 3, b"\xc3": 3, "é".encode(): 2}.items():
        assert distances[at[vocabulary.tokens.index(token)]] == way, token
    assert (distances[at[at >= 2]] <= 3).all()


@engines
def test_texts_that_begin_alike_are_looked_for_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a text may end, and each of many tokens begins something that has to be finished."""
    monkeypatch.setattr(prefixes, "MANY", 40)
    pieces = [a + b for a in "abcdefgh" for b in "abcdefgh"]
    vocabulary = Vocabulary.from_tokens(["<eos>", *pieces, *"abcdefgh=0;", "a=", "a=0"], 0)
    statements = guide(name, vocabulary, Kind.REGEX, "([a-h]+=0;)*")
    asked = Asked(statements, monkeypatch)
    statements.row(statements.start)
    masks, _ = asked.during(lambda: statements.live_classes(statements.start, 6))
    assert 0 < masks < 2 * len(pieces)  # one search, not one for each of them
    for piece in (*pieces, "a=", "a=0"):
        child = statements.advance(statements.start, vocabulary.tokens.index(piece.encode()))
        way = statements._way(child)
        assert way is not None and len(way) <= 4 and len(way) + 1 == statements.min_tokens(child)
        assert re.fullmatch(b"([a-h]+=0;)*", piece.encode() + vocabulary.decode(way))
    distances = statements.distances_after(statements.start)
    assert distances.tolist() == [
        statements.min_tokens(int(state)) for state in statements.row(statements.start).targets
    ]


@engines
@pytest.mark.parametrize("pattern", ["[abc]*0", "(ab|c)*(0|ca)", "([ab]c?){0,5}01"])
def test_what_is_known_of_a_prefix_alike_is_exact_within_the_margin(
    name: str, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", *"abc01", "ab", "ca"], 0)
    exact = guide(name, vocabulary, Kind.REGEX, pattern)
    monkeypatch.setattr(prefixes, "MANY", 3)
    monkeypatch.setattr(prefixes, "RESERVE", 3)
    monkeypatch.setattr(prefixes, "MARGIN", 1)
    for budget in range(4, 7):
        fitting = {tokens for tokens in members(exact, budget - 1) if len(tokens) <= budget}
        assert within(guide(name, vocabulary, Kind.REGEX, pattern), budget) == fitting and len(fitting) > 3


@engines
def test_prefixes_that_are_less_alike_than_they_look(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``aab``, and after no other ``b``, seven characters more are needed: what follows ``aa`` and the way are no other."""
    monkeypatch.setattr(prefixes, "MANY", 3)
    monkeypatch.setattr(prefixes, "RESERVE", 5)
    vocabulary = Vocabulary.from_tokens(["<eos>", *"abc0"], 0)
    hidden = guide(name, vocabulary, Kind.REGEX, "(b|ab)*(a?c|aa+(c|b0{7}c))")
    table = Table(hidden)
    state = hidden.advance(hidden.advance(hidden.start, 1), 1)
    assert len(table.moves(state, 99).tokens) == 3 and hidden._alike(state) == hidden.start
    fits = 2 + prefixes.MARGIN
    for remaining in range(3, fits + 1):
        assert table.moves(state, remaining).tokens.tolist() == [1, 3]
    after = table.moves(state, fits + 1).target(2)  # taken to be what it is after the start
    with pytest.raises(UnsupportedError, match=rf"needs 9 tokens more .* max_new_tokens leaves {fits}: its last token"):
        table.moves(after, fits)
    assert table.moves(after, 9).tokens.tolist() == [4]


@engines
def test_a_text_that_does_not_fit_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MANY", 3)
    monkeypatch.setattr(prefixes, "RESERVE", 0)
    hasty = guide(name, LETTERS, Kind.REGEX, "a*|c[abc]{9}|[bxyz01]")
    table = Table(hasty)
    state = table.advance(hasty.start, LETTERS.tokens.index(b"c"), 4)
    with pytest.raises(UnsupportedError, match="max_new_tokens leaves 3"):
        table.moves(state, 3)
    assert len(table.moves(state, 10).tokens)


@engines
@pytest.mark.parametrize(
    ("kind", "texts", "message"),
    [
        (Kind.REGEX, ("(a", "(a"), "refuses the regular expression: "),
        (Kind.JSON_SCHEMA, ('{"type": "foo"}', '{"type": "foo"}'), "refuses the JSON schema: "),
        (Kind.GRAMMAR, ('start: "x', 'root ::= "x'), "refuses the grammar: "),
    ],
    ids=lambda value: value.value if isinstance(value, Kind) else "",
)
def test_what_an_engine_refuses(name: str, kind: Kind, texts: tuple[str, str], message: str) -> None:
    text = texts[name == "xgrammar"]
    with pytest.raises(GrammarError, match=f"{name} {message}.+") as caught:
        guide(name, LETTERS, kind, text)
    assert text in str(caught.value) and "cpp" not in str(caught.value)


@engines
def test_nothing_that_the_vocabulary_can_write(name: str) -> None:
    with pytest.raises(EmptyLanguageError):
        guide(name, COARSE, Kind.REGEX, "cda|ba")


@engines
def test_a_package_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}")

    monkeypatch.setattr(engine_module.importlib, "import_module", missing)
    with pytest.raises(
        UnsupportedError, match=rf"the package {name} cannot be imported .* pip install 'outlines_phi\[{name}\]'"
    ):
        ENGINES[name](LETTERS)


@engines
def test_texts_are_read_in_any_order(name: str) -> None:
    """A matcher that goes to and fro says what a new one says."""
    source = Source(Kind.GRAMMAR, GRAMMARS[name])
    found = EngineGuide(engine(name, BRACKETS), source, BRACKETS)
    tokens = sorted(members(found, 3), key=lambda tokens: hash(tokens[::-1]))
    for member in itertools.islice(tokens, 60):
        fresh = engine(name, BRACKETS).matcher(source)
        for token in member[:-1]:
            fresh.read(token)
        assert (found.reader.allowed(member[:-1]) == fresh.allowed()).all()
        assert found.reader.ends_after((), np.array(member[:1]), member[1:-1]).all()


@engines
def test_numbers_beyond_32_bits(name: str) -> None:
    """Over 131,072 tokens, 17,000 prefixes of free text use them up."""
    few, many = (guide(name, LETTERS, Kind.REGEX, "[abc]{1,9}") for _ in range(2))
    many._numbering._next = 2**31 - 4
    assert members(many, 3) == members(few, 3)
    assert within(many, 3) == within(few, 3)
    states = Table(many).moves(many.start, 10).targets
    assert states.max() > 2**31 > states.min() > 0
    assert many.min_tokens_of(states).tolist() == [1] * len(states)
    assert many.describe(int(states.max())) == few.describe(int(Table(few).moves(few.start, 10).targets.max()))
