"""The lexing transducer against lexing by strings."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outlines_phi.errors import GrammarError
from outlines_phi.guides.grammar.grammar import Terminal
from outlines_phi.guides.grammar.lexing import lexer as lexing
from outlines_phi.guides.grammar.lexing.lexer import NOTHING, START, Lexer
from tests.guides.grammar.lexers import StringLexer, words

fixed = settings(derandomize=True, deadline=None)


def literals(*texts: str) -> tuple[Terminal, ...]:
    return tuple(Terminal(text.upper(), re.escape(text), literal=True) for text in texts)


WS = Terminal("WS", "_+", ignored=True)
CALC = (Terminal("ID", "a+"), Terminal("PLUS", r"\+"), WS)
DYCK = (Terminal("LP", r"\("), Terminal("RP", r"\)"), WS)
KW = (Terminal("IF", "if", literal=True), Terminal("NAME", "[if]+"), WS)
DEAD = (Terminal("NUM", "1+"), Terminal("LP", r"\("), Terminal("RP", r"\)"))
FULL = (Terminal("T", "[ab]+"),)
REENT = (Terminal("T", "(ab)*a"),)
LAZY = (Terminal("C", "<[<>a]*>", shortest=True), Terminal("GT", ">"), Terminal("A", "a+"))
STRICT = {
    "CALC": (CALC, "a+_"),
    "DYCK": (DYCK, "()_"),
    "KW": (KW, "if_"),
    "DEAD": (DEAD, "1()"),
    "FULL": (FULL, "ab"),
    "REENT": (REENT, "ab"),
}
"""The fixtures of grammar-theory.md, section 8.3: nothing is held back, and the definition that never goes back agrees."""

RANGE = (Terminal("NUM", r"1+(\.1+)?"), Terminal("R", r"\.\."))
INDEX = (Terminal("FLOAT", r"1+\.1+"), Terminal("INT", "1+"), Terminal("DOT", r"\."))
LETTERS = (Terminal("N", "1+(e1+)?"), *literals("el"), Terminal("NAME", "[el][el1]*"))
NESTED = (Terminal("A", "a(bcd)?"), Terminal("B", "b(cb)?"), Terminal("C", "c"))
PHRASE = (Terminal("BY", "a_+b"), Terminal("NAME", "[abc]+"), WS)
DOTS = literals(".", "...")
GOING_BACK = {
    "RANGE": (RANGE, "1."),
    "INDEX": (INDEX, "1."),
    "LETTERS": (LETTERS, "1el"),
    "NESTED": (NESTED, "abcd"),
    "PHRASE": (PHRASE, "abc_"),
    "DOTS": (DOTS, ".a"),
}
"""Lexers that hold terminals back."""

ALL = {**STRICT, **GOING_BACK, "LAZY": (LAZY, "<>a")}
LENGTH = 6


def assert_agrees(lexer: Lexer, reference: StringLexer, alphabet: str, length: int) -> None:
    """Compare all words, with and without the end of the text; also in the small-step form."""
    pending: dict[str, tuple[int, tuple[int, ...]] | None] = {}
    for text in words(alphabet, length):
        ours = lexer.lex(text.encode())
        theirs = reference.lex(text)
        assert (ours is None) == (theirs is None), text
        pending[text] = ours
        if text:
            before = pending[text[:-1]]
            step = before and lexer.lex(text[-1].encode(), before[0])
            assert ours == (step and (step[0], before[1] + step[1])), text  # type: ignore[index]
        if ours is None or theirs is None:
            continue
        state, emitted = ours
        assert emitted == theirs[0], text
        assert (state == START) == (text == "")
        assert (lexer.label[state] if lexer.label[state] != NOTHING else None) == reference.label(theirs[1])
        # Behind what was emitted, the state is that of the pending bytes alone.
        assert not theirs[1] or lexer.lex(theirs[1].encode()) == (state, ())
        ending, end = lexer.flush(state), reference.end(text)
        assert end == (None if ending is None else emitted + ending), text
        assert lexer.can_end[state] == (end is not None)


@pytest.mark.parametrize("name", ALL)
def test_every_short_word(name: str) -> None:
    terminals, alphabet = ALL[name]
    lexer = Lexer.of(terminals)
    assert_agrees(lexer, StringLexer(terminals, alphabet, LENGTH + 3), alphabet, LENGTH if len(alphabet) < 4 else 5)
    assert bool(lexer.held.any()) == (name in GOING_BACK), "the fixtures are what they are said to be"


@pytest.mark.parametrize("name", STRICT)
def test_fixtures_are_lexed_as_the_definition_says_that_never_goes_back(name: str) -> None:
    terminals, alphabet = STRICT[name]
    lexer = Lexer.of(terminals)
    assert_agrees(lexer, StringLexer(terminals, alphabet, LENGTH + 3, strict=True), alphabet, LENGTH)
    assert {len(word) for word in lexer.words} <= {0, 1}, "a byte emits one terminal at most"


def merged_start(lexer: Lexer) -> Lexer:
    """The state that acts like START on bytes is START."""
    again = (lexer.targets == lexer.targets[START]).all(axis=1) & (lexer.emits == lexer.emits[START]).all(axis=1)
    return replace(lexer, ends=np.where(again, lexer.ends[START], lexer.ends))


def without_boundary(lexer: Lexer) -> Lexer:
    """The byte that ends a lexeme is not read again."""
    return replace(lexer, targets=np.where(lexer.emits != 0, START, lexer.targets).astype(np.int32))


def without_flush(lexer: Lexer) -> Lexer:
    """The end of the text emits nothing."""
    return replace(lexer, ends=np.where(lexer.ends != NOTHING, 0, NOTHING).astype(np.int32))


@pytest.mark.parametrize(
    ("mutant", "name"),
    [(merged_start, "REENT"), (without_boundary, "CALC"), (without_flush, "CALC"), (without_flush, "RANGE")],
)
def test_wrong_constructions_are_found(mutant: object, name: str) -> None:
    terminals, alphabet = ALL[name]
    lexer = mutant(Lexer.of(terminals))  # type: ignore[operator]
    with pytest.raises(AssertionError):
        assert_agrees(lexer, StringLexer(terminals, alphabet, LENGTH + 3), alphabet, 4)


atoms = st.sampled_from(["a", "b", "c", "[ab]", "[bc]", "ab", "bc", "ca"])
pieces = st.builds(lambda atom, repeat: f"(?:{atom}){repeat}", atoms, st.sampled_from(["", "", "+", "?", "*"]))
patterns = st.lists(st.lists(pieces, min_size=1, max_size=3).map("".join), min_size=1, max_size=2).map("|".join)
lexers = st.lists(st.tuples(patterns, st.booleans()), min_size=1, max_size=4).map(
    lambda given: tuple(
        Terminal(f"T{n}", pattern, priority=-n, shortest=shortest) for n, (pattern, shortest) in enumerate(given)
    )
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(lexers)
def test_random_lexers(terminals: tuple[Terminal, ...]) -> None:
    try:
        lexer = Lexer.of(terminals)
    except GrammarError:
        assume(False)
    # A terminal with a higher priority may be committed to; then only soundness is asked for.
    reference = StringLexer(terminals, "abc", 9)
    for text in words("abc", 4):
        ours = lexer.lex(text.encode())
        ended = ours and lexer.flush(ours[0])
        if ended is not None:
            assert ours is not None and reference.end(text) == ours[1] + ended
    if not (commits := committed(terminals, reference)):
        assert_agrees(lexer, reference, "abc", 4)
    else:
        assert all(terminals[short].priority < terminals[longer].priority for short, longer in commits)


def committed(terminals: tuple[Terminal, ...], reference: StringLexer) -> set[tuple[int, int]]:
    """Return the conflicts of a lexer without bound: terminals behind whose lexemes longer ones of higher priority may begin."""
    found = set()
    for text in words("abc", 4):
        label = reference.label(text)
        for letter in "abc":
            longer = reference.begun.get(text + letter, set())
            if label is not None and reference.label(text + letter) is None and longer:
                found |= {
                    (label, t) for t in longer if all(terminals[u].priority > terminals[label].priority for u in longer)
                }
    return found


@settings(derandomize=True, deadline=None, max_examples=30)
@given(lexers)
def test_what_is_committed_is_not_gone_back_behind(terminals: tuple[Terminal, ...]) -> None:
    always = tuple(replace(terminal, committed=True) for terminal in terminals)
    try:
        lexer = Lexer.of(always)
    except GrammarError as error:
        assert "no bounded number" not in str(error) and "hold more" not in str(error)
        assume(False)
    assert not lexer.held.any()
    reference = StringLexer(always, "abc", 9, strict=True)
    assume(reference.label("") is None)  # the empty text, which is no lexeme of what is committed
    assert_agrees(lexer, reference, "abc", 4)  # 4 letters, and 5 to come


def test_random_lexers_are_not_all_refused() -> None:
    seen = {"made": 0, "held": 0, "refused": 0}

    @settings(derandomize=True, deadline=None, max_examples=150, database=None)
    @given(lexers)
    def count(terminals: tuple[Terminal, ...]) -> None:
        try:
            seen["made" if not Lexer.of(terminals).held.any() else "held"] += 1
        except GrammarError as error:
            seen["refused"] += "bounded number" in str(error)

    count()
    assert seen["made"] > 20 and seen["held"] > 5 and seen["refused"] > 0, seen


def texts_of_states(lexer: Lexer, alphabet: str) -> dict[int, str]:
    """A shortest text that leads to each state."""
    found = {START: ""}
    for state, text in (queue := [(START, "")]):
        for letter in alphabet:
            step = lexer.lex(letter.encode(), state)
            if step is not None and step[0] not in found:
                found[step[0]] = text + letter
                queue.append((step[0], text + letter))
    assert set(found) == set(range(1, len(lexer))), "every state is reached"
    return found


@pytest.mark.parametrize("name", ALL)
def test_what_the_pending_lexeme_may_be(name: str) -> None:
    terminals, alphabet = ALL[name]
    lexer = Lexer.of(terminals)
    texts = texts_of_states(lexer, alphabet)
    further = 5 if len(alphabet) < 4 else 4
    reference = StringLexer(terminals, alphabet, further + max(map(len, texts.values())))
    for state, text in texts.items():
        (emitted, pending), heads, reach = reference.lex(text) or ((), ""), set(), set()
        for more in words(alphabet, further):
            if (end := reference.end(text + more)) is not None and len(end) > len(emitted):
                assert end[: len(emitted)] == emitted
                heads.add(end[len(emitted)])
            if (label := reference.label(pending + more)) is not None:
                reach.add(label)
        assert set(np.flatnonzero(lexer.reaches[state])) == reach
        if not lexer.held[state]:
            assert heads == reach, "what is emitted first is what the pending lexeme may be"


NUMBER = Terminal("NUMBER", r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
NAME = Terminal("NAME", "[A-Za-z_][A-Za-z0-9_]*")
COMMENT = Terminal("COMMENT", r"/\*([^*]|\*+[^*/])*\*+/")
STRING = Terminal("STRING", r"'([^']|'')*'")


def named(terminals: tuple[Terminal, ...], text: str) -> list[str] | None:
    lexer = Lexer.of(terminals)
    run = lexer.lex(text.encode())
    end = run and lexer.flush(run[0])
    return None if run is None or end is None else [terminals[t].name for t in run[1] + end]


def test_json_numbers_and_doubled_quotes_hold_nothing_back() -> None:
    lexer = Lexer.of(
        (NUMBER, Terminal("STRING", '"[^"]*"'), *literals("true", "false", "null", ",", ":", "{", "}", "[", "]"))
    )
    assert (
        not lexer.held.any()
        and not Lexer.of((STRING, NAME)).held.any()
        and lexer.lex(b"1.,") is None
        and lexer.lex(b"1e]") is None
    )


NUMBERS = (NUMBER, *literals("else"), NAME, *literals("+", ".", "..."))
SYMBOLS = (Terminal("NAME", r"\w+"), *literals("→", "∀", "≤"))


@pytest.mark.parametrize(
    ("terminals", "text", "names"),
    [
        ((STRING, NAME), "'it''s'x", ["STRING", "NAME"]),
        ((STRING, NAME), "'it''s", None),
        (NUMBERS, "1else", ["NUMBER", "ELSE"]),
        (NUMBERS, "1elsewhere", ["NUMBER", "NAME"]),
        (NUMBERS, "1e", ["NUMBER", "NAME"]),
        (NUMBERS, "1e+", ["NUMBER", "NAME", "+"]),
        (NUMBERS, "1e+5", ["NUMBER"]),
        (NUMBERS, "1..x", ["NUMBER", ".", ".", "NAME"]),
        (NUMBERS, "1....5", ["NUMBER", "...", ".", "NUMBER"]),
        (SYMBOLS, "x→y", ["NAME", "→", "NAME"]),
        (SYMBOLS, "∀é≤ℕ", ["∀", "NAME", "≤", "NAME"]),
    ],
)
def test_lexemes_of_a_text(terminals: tuple[Terminal, ...], text: str, names: list[str] | None) -> None:
    assert named(terminals, text) == names


def test_comments() -> None:
    others = (*literals("/", "*"), NAME)
    with pytest.raises(GrammarError, match=r"how '/\*' is read.*`COMMENT\.1: \.\.\.`"):
        Lexer.of((COMMENT, *others))
    for comment in (replace(COMMENT, ignored=True), replace(COMMENT, priority=1)):
        terminals = (comment, *others)
        assert named(terminals, "a/b/*c/***/*d") == ["NAME", "/", "NAME", "COMMENT", "*", "NAME"]
        # What begins like a comment is one.
        assert named(terminals, "a/*b") is None
        lexer, alphabet = Lexer.of(terminals), "/*a"
        assert_agrees(lexer, StringLexer(terminals, alphabet, 10, commits=[("/", "COMMENT")]), alphabet, 6)
        assert not lexer.held.any()


def test_every_piece_of_a_comment_is_pending() -> None:
    """SynCode issue 227: ``/**`` was lexed as a division."""
    terminals = (
        replace(COMMENT, ignored=True),
        Terminal("WS", r"\s+", ignored=True),
        NUMBER,
        *literals("+", "-", "*", "/"),
    )
    lexer = Lexer.of(terminals)
    state, emitted = lexer.lex(b"1/**") or (0, ())
    assert emitted == (2,) and np.flatnonzero(lexer.reaches[state]).tolist() == [0]
    assert named(terminals, "1/**/+2") == ["NUMBER", "COMMENT", "+", "NUMBER"]


@pytest.mark.parametrize(
    ("terminals", "message"),
    [
        ((Terminal("A", "a*"), NAME), "the terminal A matches the empty text"),
        ((Terminal("A", "[a&&b]"), NAME), "the terminal A matches nothing"),
        ((Terminal("A", "(a"), NAME), "the terminal A cannot be read"),
        (
            (Terminal("A", "x(a|bb)"), Terminal("B", "xb+|xab")),
            "such as 'xbb' out of the pattern of all but one of A and B",
        ),
        (literals("a", "a"), "such as 'a' out"),
        (
            (Terminal("A", "a"), Terminal("AB", "a+b")),
            "how 'aa' is read: 'a' is a complete A; what follows may be part of a longer AB",
        ),
    ],
)
def test_refusals(terminals: tuple[Terminal, ...], message: str) -> None:
    with pytest.raises(GrammarError) as error:
        Lexer.of(terminals)
    assert message in str(error.value)


def test_ties() -> None:
    assert named((Terminal("IF", "if", literal=True), NAME), "if") == ["IF"]
    assert named((Terminal("IF", "if", literal=True), replace(NAME, priority=1)), "if") == ["NAME"]
    assert named((Terminal("IF", "if", priority=1), NAME), "if iff".replace(" ", "")) == ["NAME"]
    assert named((WS, replace(WS, name="BLANK", pattern="_|__")), "__") == ["WS"], "it does not matter which"
    lexer = Lexer.of((Terminal("IF", "if", literal=True), replace(NAME, priority=1)))
    assert lexer.reaches[START].tolist() == [False, True]


def test_too_many_states_to_wait_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexing, "LIMIT", 1)
    with pytest.raises(GrammarError, match="in more than 1 ways"):
        Lexer.of(NESTED)


def test_many_keywords_multiply_nothing() -> None:
    keywords = literals(
        *(f"{a}{b}{c}" for a in "abcdef" for b in ("lp", "om", "ne") for c in ("x", "yes", "zero", "in"))
    )
    operators = literals(*(a + b for a in "<>=!&|+-" for b in ("", "=", ">")), "(", ")", "{", "}", ";")
    terminals = (*keywords, *operators, NAME, NUMBER, STRING, replace(COMMENT, ignored=True), *literals("/", "*", "."))
    assert len(terminals) > 100
    assert len(Lexer.of(terminals)) < sum(len(keyword.pattern) for keyword in keywords) + 200
    assert named(terminals, "alpx alpxy 1.alpx".replace(" ", "/")) == ["ALPX", "/", "NAME", "/", "NUMBER", ".", "ALPX"]


def test_description() -> None:
    lexer = Lexer.of(INDEX)
    described = [lexer.describe((lexer.lex(text) or (0,))[0]) for text in (b"", b"1", b"1.", b"1.1", b".")]
    assert described == [
        "at the start",
        "INT of FLOAT | INT",
        "incomplete of FLOAT, else INT DOT of DOT",
        "FLOAT of FLOAT",
        "DOT of DOT",
    ]
