"""The oracle by itself: against Python's ``re``, and the definition that the runtime's tests write out by strings."""

import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import UnsupportedError
from outlines_phi.guides.grammar.grammar import Grammar, Terminal
from outlines_phi_workbench.verification.earley import Earley
from outlines_phi_workbench.verification.lexemes import Lexemes
from outlines_phi_workbench.verification.lexing import Lexing
from outlines_phi_workbench.verification.oracle import FAILED, GrammarOracle, Oracle
from tests.guides.grammar.definition import Definition
from tests.guides.grammar.fixtures import FIXTURES, LEXERS, grammar, words

LETTERS = 'abcsSelkK\u212a\u017f01.-"\\\u00e9x\n_'
LEAVES = ["a", "b", "\u00e9", ".", "[^a]", "[a-c]", r"\d", r"\w", r"[^\W\d]", r"\s", "(?i:sK)", "(?s:.)", ""]
PATTERNS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+?", "?", "{2,3}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=5,
)
ABC = (Terminal("a", "a"), Terminal("b", "b"), Terminal("c", "c"))
RULES = {
    "ambiguous": "s: s s | a | b",
    "nullable": "s: x y x c\nx: | a\ny: x x | b",
    "hidden left recursion": "s: x s a | b\nx: | c",
    "unit cycle": "s: x | a\nx: s | b s c",
    "palindromes": "s: | a s a | b s b | c",
    "empty word only": "s: x x\nx:",
    "not LR(1)": "s: x a c | y a b\nx: a | x a\ny: a | y a",
}


def any_words(terminals: tuple[Terminal, ...]) -> Grammar:
    bodies = "".join(f" | s {terminal.name}" for terminal in terminals if not terminal.ignored)
    return grammar(terminals, f"s:{bodies}")


GRAMMARS: dict[str, tuple[Grammar, tuple[str, ...]]] = {
    **{fixture.id: (fixture.grammar, tuple(sorted(set("".join(fixture.tokens))))) for fixture in FIXTURES},
    **{name: (grammar(ABC, rules), ("a", "b", "c")) for name, rules in RULES.items()},
    **{f"lexer {name}": (any_words(terminals), tuple(alphabet)) for name, (terminals, alphabet, _) in LEXERS.items()},
}
"""Grammars, and the letters of their texts; of lexers that of any words."""


def is_member(oracle: Oracle, text: bytes) -> bool:
    return oracle.ends(oracle.advance(oracle.start, text))


def begins(oracle: Oracle, text: bytes) -> bool:
    return oracle.continues(oracle.advance(oracle.start, text))


@settings(derandomize=True, deadline=None, max_examples=80)
@given(PATTERNS, st.sampled_from(["rust", "python"]), st.text(st.sampled_from(LETTERS), max_size=5))
def test_whole_matches_are_those_of_re(pattern: str, dialect: str, text: str) -> None:
    lexemes = Lexemes(pattern, dialect=dialect)
    for each in ("", *LETTERS, text):
        assert lexemes.accepts(each.encode()) == bool(re.fullmatch(pattern, each)), each


@pytest.mark.parametrize("pattern", ["ab(cd|ce)?f", "(ab)*a", "a{2,3}b", "[^a]\u00e9a", "(a|b)*abb"])
def test_what_begins_a_match(pattern: str) -> None:
    oracle = Oracle(Lexemes(pattern))
    matches = ("".join(word) for word in words("abcdef\u00e9", 5))
    begun = {match.encode()[:end] for match in matches if re.fullmatch(pattern, match) for end in range(11)}
    for word in words("abcdef\u00e9", 2):
        for end in range(5):
            assert begins(oracle, "".join(word).encode()[:end]) == ("".join(word).encode()[:end] in begun)


def test_only_utf_8_is_read() -> None:
    oracle = Oracle(Lexemes(".*"))
    begun = {chr(code).encode()[:end] for code in (*range(0x80, 0xD800), *range(0xE000, 0x110000)) for end in (1, 2)}
    for text in map(bytes, product(range(0x80, 0x100), repeat=2)):
        assert begins(oracle, text) == (text in begun) and begins(oracle, text[:1]) == (text[:1] in begun)


@pytest.mark.parametrize("pattern", [r"a\b", "(?=a)a", r"(a)\1", "[a&&b]", r"\p{L}", "(", "(?>a)"])
def test_what_is_not_read_alike_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedError):
        Lexemes(pattern)


@pytest.mark.parametrize("name", GRAMMARS)
def test_members_and_their_beginnings_are_those_of_the_definition(name: str) -> None:
    given_, letters = GRAMMARS[name]
    oracle, definition = Oracle(GrammarOracle(given_, map(str.encode, letters))), Definition(given_, letters)
    found = 0
    for text in map("".join, words(letters, 5 if len(letters) < 4 else 4)):
        assert is_member(oracle, text.encode()) == definition.is_member(text), text
        assert begins(oracle, text.encode()) == definition.is_prefix(text), text
        found += definition.is_member(text)
    assert found or name == "NOSING"


@pytest.mark.parametrize("rules", RULES.values(), ids=list(RULES))
def test_words_that_go_on_alike_have_one_name(rules: str) -> None:
    """The number of names is small, and what a name derives is what each of its words does."""
    earley = Earley(grammar(ABC, rules))
    names: dict[tuple[int, ...], set[tuple[bool, ...]]] = {}
    for word in (w for n in range(5) for w in product(range(3), repeat=n)):
        future = tuple(earley.derives((*word, *more)) for n in range(4) for more in product(range(3), repeat=n))
        names.setdefault(earley.canonical(word), set()).add(future)
    assert all(len(futures) == 1 for futures in names.values()) and len(names) < 100


def test_tokens_where_bytes_are_missing() -> None:
    """With pairs of letters alone: what is completed is what some word of letters completes."""
    for rules, letters in product(RULES.values(), (("a", "b"), ("a", "bc"), ("ab", "b", "c"), ("aa", "c", "b"))):
        oracle = Oracle(GrammarOracle(grammar(ABC, rules), [letter.encode() for letter in letters]))
        for text in map("".join, words(letters, 2)):
            longer = any(is_member(oracle, (text + "".join(more)).encode()) for more in words(letters, 5))
            assert begins(oracle, text.encode()) == longer, (letters, text)


def test_lexemes_without_bound_behind_a_complete_one() -> None:
    """A comment that may hold the beginnings of others: what follows ``/*`` has to be one, however long it is."""
    own = (Terminal("A", "a"), Terminal("SLASH", "/", literal=True), Terminal("STAR", r"\*", literal=True))
    comment = Terminal("COMMENT", r"/\*([^*]|\*+[^*/])*\*+/", ignored=True)
    lexing = Lexing((*own, comment))
    begun = lexing.lex(b"/*a" * 2000)
    assert begun is not None and begun.word == () and lexing.flush(begun.state) is None
    assert lexing.lex(b"/*a/*a*/") == lexing.lex(b"/**/")
    given_up = Lexing((*own, replace(comment, ignored=False)))
    begun = given_up.lex(b"/*a" * 500)
    assert begun is not None and given_up.flush(begun.state) == (1, 2, 0) * 500


def test_points_with_one_future_are_alike() -> None:
    oracle = Oracle(Lexemes("(a|b)*abb|c{5}"))
    points = {text: oracle.advance(oracle.start, text) for text in (b"", b"a", b"ba", b"aba", b"ab", b"c", b"cc", b"x")}
    assert points[b"x"] == FAILED
    assert oracle.alike(points[b"a"], points[b"aba"]) and oracle.alike(points[b"ba"], points[b"a"])
    assert not oracle.alike(points[b"a"], points[b"ab"]) and not oracle.alike(points[b"c"], points[b"cc"])
