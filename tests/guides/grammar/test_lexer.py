"""Terminals against Python's patterns, also where a lazy quantifier ends them; the lexing transducer against longest match."""

import random
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outlines_phi import GrammarError, UnsupportedError
from outlines_phi.guides import read_grammar
from outlines_phi.guides.grammar.lexer import NOTHING, START, Lexer
from tests.guides.grammar.definition import LongestMatch
from tests.guides.grammar.fixtures import LETTERS as NAME
from tests.guides.grammar.fixtures import LEXERS, SYMBOLS, literals
from tests.inner import ByteAutomaton, Terminal, automaton_of, compile_regex, literal
from tests.inner import lexer as lexing
from tests.refusals import refused


def texts(alphabet: Sequence[str], longest: int) -> list[str]:
    return ["".join(word) for length in range(longest + 1) for word in product(alphabet, repeat=length)]


def assert_agrees(lexer: Lexer, reference: LongestMatch, length: int) -> None:
    """Compare all words, with and without the end of the text; also in the small-step form."""
    pending: dict[str, tuple[int, tuple[int, ...]] | None] = {}
    for text in texts(reference.alphabet, length):
        ours, theirs, end = lexer.lex(text.encode()), reference.cut(text), reference.whole(text)
        assert (ours is None) == (theirs is None), text
        pending[text] = ours
        if text:
            before = pending[text[:-1]]
            step = before and lexer.lex(text[-1].encode(), before[0])
            assert ours == (step and (step[0], before[1] + step[1])), text  # type: ignore[index]
        if ours is None or theirs is None:
            continue
        state, emitted = ours
        assert emitted == theirs[0] and (state == START) == (text == ""), text
        assert (lexer.label[state] if lexer.label[state] != NOTHING else None) == reference.label(theirs[1])
        assert set(np.flatnonzero(lexer.reaches[state])) == reference.begun(theirs[1]) or not text
        # Behind what was emitted, the state is that of the pending bytes alone.
        assert not theirs[1] or lexer.lex(theirs[1].encode()) == (state, ())
        ending = lexer.flush(state)
        assert end == (None if ending is None else emitted + ending) and lexer.can_end[state] == (end is not None), text


@pytest.mark.in_turn
@pytest.mark.parametrize("name", LEXERS)
def test_every_short_word(name: str) -> None:
    terminals, alphabet, held = LEXERS[name]
    lexer = Lexer.of(terminals)
    assert_agrees(lexer, LongestMatch(terminals, alphabet, every=True), 6 if len(alphabet) < 4 else 5)
    assert bool(lexer.held.any()) == held, "the fixtures are what they are said to be"
    if not held and name != "LAZY":  # grammar-theory.md, section 8.3: the definition that never goes back agrees
        assert_agrees(lexer, LongestMatch(terminals, alphabet, every=True, strict=True), 6)
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
def test_wrong_constructions_are_found(mutant: Callable[[Lexer], Lexer], name: str) -> None:
    terminals, alphabet, _ = LEXERS[name]
    with pytest.raises(AssertionError):
        assert_agrees(mutant(Lexer.of(terminals)), LongestMatch(terminals, alphabet, every=True), 4)


atoms = st.sampled_from(["a", "b", "c", "[ab]", "[bc]", "ab", "bc", "ca"])
pieces = st.builds(lambda atom, repeat: f"(?:{atom}){repeat}", atoms, st.sampled_from(["", "", "+", "?", "*"]))
patterns = st.lists(st.lists(pieces, min_size=1, max_size=3).map("".join), min_size=1, max_size=2).map("|".join)
lexers = st.lists(st.tuples(patterns, st.booleans()), min_size=1, max_size=4).map(
    lambda given: tuple(
        Terminal(f"T{n}", pattern, priority=-n, shortest=shortest) for n, (pattern, shortest) in enumerate(given)
    )
)


def committed(terminals: tuple[Terminal, ...], reference: LongestMatch) -> set[tuple[int, int]]:
    """Return the conflicts of a lexer without bound: terminals behind whose lexemes longer ones of higher priority may begin."""
    found = set()
    for text, letter in product(texts("abc", 4), "abc"):
        label, longer = reference.label(text), reference.begun(text + letter)
        if label is not None and reference.label(text + letter) is None and longer:
            higher = all(terminals[u].priority > terminals[label].priority for u in longer)
            found |= {(label, t) for t in longer if higher}
    return found


def test_random_lexers() -> None:
    """A terminal with a higher priority may be committed to; then only soundness is asked for. Some lexers are refused."""
    seen = {"made": 0, "held": 0, "refused": 0}

    @settings(derandomize=True, deadline=None, max_examples=60, database=None)
    @given(lexers)
    def check(terminals: tuple[Terminal, ...]) -> None:
        try:
            lexer = Lexer.of(terminals)
        except GrammarError as error:
            seen["refused"] += "bounded number" in str(error)
            return
        seen["held" if lexer.held.any() else "made"] += 1
        reference = LongestMatch(terminals, "abc", depth=5, every=True)
        for text in texts("abc", 4):
            ours = lexer.lex(text.encode())
            ended = ours and lexer.flush(ours[0])
            assert ours is None or ended is None or reference.whole(text) == ours[1] + ended
        if not (commits := committed(terminals, reference)):
            assert_agrees(lexer, reference, 4)
        assert all(terminals[short].priority < terminals[longer].priority for short, longer in commits)

    check()
    assert seen["made"] > 10 and seen["held"] > 3 and seen["refused"] > 0, seen


@settings(derandomize=True, deadline=None, max_examples=20)
@given(lexers)
def test_what_is_committed_is_not_gone_back_behind(terminals: tuple[Terminal, ...]) -> None:
    try:
        lexer = Lexer.of(tuple(replace(terminal, committed=True) for terminal in terminals))
    except GrammarError as error:
        assert "no bounded number" not in str(error) and "hold more" not in str(error)
        assume(False)
    assert not lexer.held.any()
    assert_agrees(lexer, LongestMatch(lexer.terminals, "abc", depth=5, every=True, strict=True), 4)


NUMBER = Terminal("NUMBER", r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
COMMENT, STRING = Terminal("COMMENT", r"/\*([^*]|\*+[^*/])*\*+/"), Terminal("STRING", r"'([^']|'')*'")
IF, WS = literals("if")[0], Terminal("WS", "_+", ignored=True)
NUMBERS = (NUMBER, *literals("else"), NAME, *literals("+", ".", "..."))
OTHERS = (*literals("/", "*"), NAME)
JSON = (NUMBER, Terminal("STRING", '"[^"]*"'), *literals("true", "false", "null", ",", ":", "{", "}", "[", "]"))
SPACED = (replace(COMMENT, ignored=True), Terminal("WS", r"\s+", ignored=True), NUMBER, *literals("+", "-", "*", "/"))


def named(terminals: tuple[Terminal, ...], text: str) -> str | None:
    lexer = Lexer.of(terminals)
    run = lexer.lex(text.encode())
    end = run and lexer.flush(run[0])
    return None if run is None or end is None else " ".join(terminals[t].name for t in run[1] + end)


@pytest.mark.parametrize(
    ("terminals", "text", "names"),
    [
        (JSON, "1.,", None),
        (JSON, "1e]", None),
        ((STRING, NAME), "'it''s'x", "STRING NAME"),
        ((STRING, NAME), "'it''s", None),
        (NUMBERS, "1else", "NUMBER ELSE"),
        (NUMBERS, "1elsewhere", "NUMBER NAME"),
        (NUMBERS, "1e", "NUMBER NAME"),
        (NUMBERS, "1e+", "NUMBER NAME +"),
        (NUMBERS, "1e+5", "NUMBER"),
        (NUMBERS, "1..x", "NUMBER . . NAME"),
        (NUMBERS, "1....5", "NUMBER ... . NUMBER"),
        (SYMBOLS, "x→y", "NAME → NAME"),
        (SYMBOLS, "∀é=ℕ", "∀ NAME = NAME"),
        ((IF, NAME), "if", "IF"),
        ((IF, replace(NAME, priority=1)), "if", "NAME"),
        ((replace(IF, literal=False, priority=1), NAME), "ififf", "NAME"),
        ((WS, replace(WS, name="BLANK", pattern="_|__")), "__", "WS"),  # it does not matter which
        ((replace(COMMENT, ignored=True), *OTHERS), "a/b/*c/***/*d", "NAME / NAME COMMENT * NAME"),
        ((replace(COMMENT, priority=1), *OTHERS), "a/b/*c/***/*d", "NAME / NAME COMMENT * NAME"),
        ((replace(COMMENT, priority=1), *OTHERS), "a/*b", None),  # what begins like a comment is one
        (SPACED, "1/**/+2", "NUMBER COMMENT + NUMBER"),
    ],
)
def test_lexemes_of_a_text(terminals: tuple[Terminal, ...], text: str, names: str | None) -> None:
    assert named(terminals, text) == names


def test_comments_hold_nothing_back_and_every_piece_of_one_is_pending() -> None:
    """SynCode issue 227: ``/**`` was lexed as a division."""
    lexer = Lexer.of((replace(COMMENT, priority=1), *OTHERS))
    assert_agrees(lexer, LongestMatch(lexer.terminals, "/*a", every=True, commits=[("/", "COMMENT")]), 6)
    assert not any(Lexer.of(terminals).held.any() for terminals in (lexer.terminals, JSON, (STRING, NAME)))
    lexer = Lexer.of(SPACED)
    state, emitted = lexer.lex(b"1/**") or (0, ())
    assert emitted == (2,) and np.flatnonzero(lexer.reaches[state]).tolist() == [0]


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
        ((COMMENT, *OTHERS), r"how '/\*' is read.*`COMMENT\.1: \.\.\.`"),
        (
            (Terminal("A", "a"), Terminal("AB", "a+b")),
            "how 'aa' is read: 'a' is a complete A; what follows may be part of a longer AB",
        ),
    ],
)
def test_refusals(terminals: tuple[Terminal, ...], message: str) -> None:
    refused(message, Lexer.of, terminals, error=GrammarError)


def test_too_many_states_to_wait_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexing, "LIMIT", 1)
    refused("in more than 1 ways", Lexer.of, LEXERS["NESTED"][0], error=GrammarError)


def test_many_keywords_multiply_nothing_and_states_are_described() -> None:
    keywords = literals(*map("".join, product("abcdef", ("lp", "om", "ne"), ("x", "yes", "zero", "in"))))
    operators = literals(*map("".join, product("<>=!&|+-", ("", "=", ">"))), "(", ")", "{", "}", ";")
    terminals = (*keywords, *operators, NAME, NUMBER, STRING, replace(COMMENT, ignored=True), *literals("/", "*", "."))
    assert len(terminals) > 100
    assert len(Lexer.of(terminals)) < sum(len(keyword.pattern) for keyword in keywords) + 200
    assert named(terminals, "alpx/alpxy/1.alpx") == "ALPX / NAME / NUMBER . ALPX"
    lexer = Lexer.of(LEXERS["INDEX"][0])
    assert [lexer.describe((lexer.lex(text) or (0,))[0]) for text in (b"", b"1", b"1.", b"1.1", b".")] == [
        "at the start",
        "INT of FLOAT | INT",
        "incomplete of FLOAT, else INT DOT of DOT",
        "FLOAT of FLOAT",
        "DOT of DOT",
    ]


def compiled(pattern: str) -> ByteAutomaton:
    return automaton_of(Terminal("T", pattern, dialect="python"))


@pytest.mark.parametrize(
    ("pattern", "alphabet", "longest"),
    [
        (r"a", "ab\n", 3),
        (r".b", "ab\n", 3),
        (r"(?s:.)b", "ab\n", 3),
        (r"[^a]+", "ab\n", 4),
        (r"[a-c]{2,3}|d{2}", "abcd", 4),
        (r"(?:ab|a(b)(?P<n>c))*a{0,1}c", "abc", 6),
        (r"(?i:sel)e", "sSeElL", 4),
        (r"(?i:s(?-i:e))", "sSeE", 2),
        (r"(?i)s(?s:.)", "sSx\n", 2),
        (r"(?x: a  b # comment" + "\n c)", "abc #", 4),
        (r"(?m:a.)", "a\n", 3),
        (r"\d\s\w\D\S\W", "1 a", 6),
        (r"[\d\s]", "1 a\x1c\x1f\x0b", 1),
        (r"[^\W\d]\w*", "aé1_-", 3),
        (r"(?a:\w\d)", "aé1_٣", 2),
        (r"[]\-^[]+", "]-^[\\", 3),
        (r"\.\*\(\)\{\}\|\#\&\~", ".*(){}|#&~", 1),
        (r"[.*#&~^-]+", ".*#&~^-a", 2),
        (r"\x41\u00e9\N{BULLET}?", "Aé•", 3),
        (r"a{2}", "a", 4),
        (r"/\*(?:\*(?!/)|[^*])*\*/", "/*a", 6),
        (r'"(?!"")[^"]"', '"a', 4),
        (r"a\b-|(?=a)ab(?<!bb)", "ab-", 3),
        (r"a{2,}", "a", 4),
        (r"a{,2}b", "ab", 4),
        (r"a{,}b|a{", "ab{,}", 4),
        (r"(?ai:k)[\W]?", "kK\u212aé", 2),
        (r'"([^"\\\x00-\x1f]|\\["\\/n])*"', '"\\n\x1f', 5),
        (r"[\ud800-\udfffa]", "ab\ue000", 1),
        (r"[^\ud800-\udfff]", "ab\ue000", 1),
    ],
    ids=lambda row: repr(row),
)
def test_the_same_texts_as_python(pattern: str, alphabet: str, longest: int) -> None:
    automaton, oracle = compiled(pattern), re.compile(pattern)
    found = [automaton.accepts(text.encode()) for text in texts(alphabet, longest)]
    assert found == [oracle.fullmatch(text) is not None for text in texts(alphabet, longest)]
    assert any(found) or pattern.startswith(r"\.")  # no comparison of nothing with nothing


def test_every_character_of_a_named_class_is_as_in_python() -> None:
    """Of those that Python's version of Unicode has."""
    for pattern in (r"\d", r"\s", r"\w", r"\D", r"\S", r"\W", r"[^\w]", r"[\W\d]", r"(?i:k)", r"(?i:[r-t])", r"."):
        automaton, oracle = compiled(pattern), re.compile(pattern)
        for code in range(0x600):
            if unicodedata.category(chr(code)) == "Cn":
                continue
            assert automaton.accepts(chr(code).encode()) is (oracle.fullmatch(chr(code)) is not None), (pattern, code)


LAZY = [
    (r'".*?"', '"a\n'),
    (r'".+?"', '"a\n'),
    (r'".{2,}?"', '"a\n'),
    (r"[^;]*?;", "a;\n"),
    (r"/\*(.|\n)*?\*/", "/*\n"),
    (r"(?s:/\*.*?\*/)", "/*\n"),
    (r"'''(?s:.*?)'''", "'a"),
    (r"a(?s:.*?)abab", "ab"),
    (r"a(?s:.*?)abca", "abc"),
    (r'".*?"|\'.*?\'', "\"'a"),
    (r'".*?(?<!\\)(\\\\)*?"', '"\\a'),
    (r'"(.|\n)*?(?<!\\)(\\\\)*?"', '"\\\n'),
    (r'".*?(?<!\\)"', '"\\a'),
    (r'"(?:[^"\\]|\\.)*?"', '"\\a'),
    (r"a(?:[^b]|bb)*?ab", "abc"),
    (r".*?(?:ab|ba)", "abc"),
    (r"(?i:a.*?ab)", "aAb"),
    (r"ab??", "ab"),
    (r"a+?", "ab"),
    (r"ab{1,3}?", "ab"),
    (r"ba{1,3}?b", "ab"),
    (r"a?b(?:.|;)*?ca", "abc"),
    (r"(?i:a(?s:.)*?b)", "aAb"),
    (r".*?(END|FI)", "ENDFI"),
    (r"a+.*?(?:b|cc)", "abc"),
    (r"#+.*?#", "#a"),
    (r"(?:<.*?>)+", "<>a"),
    (r"(?:a.*?(?:b|c)|d)", "abcd"),
    (r"(?i:a.*?b)c", "aBbc"),
    (r'"""(?s:.*?)(?<!\\)(\\\\)*?"""', '"\\'),
    (r"-(?!\*)a?.*?-", "-*a"),
]


@pytest.mark.parametrize(("pattern", "alphabet"), LAZY, ids=[row[0] for row in LAZY])
def test_a_lazy_quantifier_ends_where_python_ends(pattern: str, alphabet: str) -> None:
    automaton, oracle = compiled(pattern), re.compile(pattern)
    accepts = cache(automaton.accepts)  # texts begin alike
    found = 0
    for text in texts(alphabet, {2: 11, 3: 8, 4: 6}.get(len(alphabet), 5)):
        end = max((end for end in range(len(text) + 1) if accepts(text[:end].encode())), default=None)
        match = oracle.match(text)
        assert end == (match and match.end()), text
        found += match is not None
    assert found


def random_pattern(rng: random.Random) -> str:
    """Return a pattern over ``abc`` with a lazy quantifier near its end."""
    before = "".join(rng.choice(["a", "b", "[ab]", ".", "a?b"]) for _ in range(rng.randint(0, 2)))
    repeated = rng.choice([".", "[^c]", r"(?:.|\n)", "(?s:.)", "[ab]", "(?:ab|c)", "(?:a|b.)", "(?:a|ab)"])
    after = rng.choice(["", "c", "ab", "aba", "abab", "(?:ab|ca)", "[ab]c", "(?:a|bc)"])
    return before + repeated + rng.choice(["*?", "+?", "{2,}?", "??", "{1,3}?"]) + after


def test_random_patterns() -> None:
    rng, samples, taken = random.Random(7), texts("abc", 5) + texts("ab\n", 4), 0
    for pattern in (random_pattern(rng) for _ in range(120)):
        try:
            automaton = compiled(pattern)
        except (GrammarError, UnsupportedError):
            continue
        taken += 1
        for text in samples:
            ends = [end for end in range(len(text) + 1) if automaton.accepts(text[:end].encode())]
            match = re.match(pattern, text)
            assert ends[-1:] == ([match.end()] if match else []), (pattern, text)
    assert taken > 70


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"a(?=b)", "looks beyond the lexeme.*at offset 1"),
        (r"(?!if)[a-z]+", "looks beyond"),
        (r'"(?!"").*"', "looks beyond"),
        (r"^yes$", "looks beyond"),
        (r"a$", "looks beyond"),
        (r"\b(cat|dog)\b", "a word ends where a name would"),
        (r"(a)\1", "a back-reference at offset 3"),
        (r"(a)?(?(1)b|c)", "a conditional group"),
        (r"a*", "matches the empty text"),
        (r"a*?", "matches the empty text"),
        (r"(", "cannot be read"),
        (r"[z-a]", "cannot be read"),
        (r"(?:" * 3000 + "a" + ")" * 3000, "nested too deeply"),
        ("\ud800", "surrogate"),
        (r"\ud800", "matches nothing"),
        (r"a.*?bc?", "may end in several places"),
        (r"(?:a|ab)*?c(?i:d)", "may end in several places"),
        (r"(.*?)a.*?bc?", "may end in several places"),
        (r"(?:a.*?b){2}", "more behind it"),
        (r"(?:a.*?b|c)d", "more behind it"),
        (r"a.*?b(?!c)", "looks ahead behind it"),
        *((pattern, "atomic group|possessive|cannot be read") for pattern in ("(?>a|b)c", "a++b", "a*+b")),
    ],
)
def test_what_is_refused(pattern: str, words: str) -> None:
    refused(words, compiled, pattern, error=(GrammarError, UnsupportedError))


def test_flags_in_the_middle_have_advice() -> None:
    refused("behind the closing slash", read_grammar, 'start: A\nA: "b" /(?i)a/', error=GrammarError)


@pytest.mark.parametrize("text", ["a.b", "\\", "[a]{2}", "é•\U0001f600", "\n\t\x01", "# & ~-", "(?i:x)"])
def test_a_literal_matches_itself_only(text: str) -> None:
    assert list(compile_regex(literal(text)).members()) == [text.encode()]


def test_a_literal_without_case() -> None:
    automaton = compile_regex(literal("Or.", ignore_case=True))
    assert {member.decode() for member in automaton.members()} == {"or.", "oR.", "Or.", "OR."}
