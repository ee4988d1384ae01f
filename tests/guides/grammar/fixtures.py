"""The fixtures of the grammar engine: small lexers and grammars with what is to be found in each."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from outlines_phi import Vocabulary
from outlines_phi.guides.grammar.grammar import Grammar, Production, Terminal

ID, PLUS = Terminal("ID", "a+"), Terminal("PLUS", r"\+", literal=True)
LP, RP = Terminal("LP", r"\(", literal=True), Terminal("RP", r"\)", literal=True)
IF, NAME = Terminal("IF", "if", literal=True), Terminal("NAME", "[if]+")
NUM, WS = Terminal("NUM", "1+"), Terminal("WS", "_+", ignored=True)

EOS = "<eos>"

Letter = TypeVar("Letter")


def literals(*texts: str) -> tuple[Terminal, ...]:
    return tuple(Terminal(text.upper(), re.escape(text), literal=True) for text in texts)


LETTERS = Terminal("NAME", "[A-Za-z_][A-Za-z0-9_]*")
LEXERS: dict[str, tuple[tuple[Terminal, ...], str, bool]] = {
    "CALC": ((ID, PLUS, WS), "a+_", False),
    "DYCK": ((LP, RP, WS), "()_", False),
    "KW": ((IF, NAME, WS), "if_", False),
    "DEAD": ((NUM, LP, RP), "1()", False),
    "FULL": ((Terminal("T", "[ab]+"),), "ab", False),
    "REENT": ((Terminal("T", "(ab)*a"),), "ab", False),
    "RANGE": ((Terminal("NUM", r"1+(\.1+)?"), Terminal("R", r"\.\.")), "1.", True),
    "INDEX": ((Terminal("FLOAT", r"1+\.1+"), Terminal("INT", "1+"), Terminal("DOT", r"\.")), "1.", True),
    "LETTERS": ((Terminal("N", "1+(e1+)?"), *literals("el"), Terminal("NAME", "[el][el1]*")), "1el", True),
    "NESTED": ((Terminal("A", "a(bcd)?"), Terminal("B", "b(cb)?"), Terminal("C", "c")), "abcd", True),
    "PHRASE": ((Terminal("BY", "a_+b"), Terminal("NAME", "[abc]+"), WS), "abc_", True),
    "DOTS": (literals(".", "..."), ".a", True),
    "LAZY": ((Terminal("C", "<[<>a]*>", shortest=True), Terminal("GT", ">"), Terminal("A", "a+")), "<>a", False),
}
"""Lexers, the letters of which their texts are, and whether they hold terminals back."""

SPACE = Terminal("WS", r"[ \n]+", ignored=True)
SYMBOLS = (Terminal("NAME", r"\w+"), *literals("→", "∀", "let", "in", "="), SPACE)
C_LIKE = (
    *literals("if", "int", "->", "-", "--", ".", "...", "/", "*"), Terminal("NAME", "[a-z]+"), SPACE,
    Terminal("NUM", r"\d+(\.\d+)?(e-?\d+)?"), Terminal("COMMENT", r"/\*([^*]|\*+[^*/])*\*+/", ignored=True),
)  # fmt: skip


def grammar(terminals: tuple[Terminal, ...], rules: str) -> Grammar:
    """The grammar of lines ``head: symbols | symbols``; the first head is the start."""
    lines = [line.split(":") for line in rules.strip().splitlines()]
    heads = list(dict.fromkeys(head.strip() for head, _ in lines))
    number = {name: n for n, name in enumerate([*(terminal.name for terminal in terminals), *heads])}
    productions = tuple(
        Production(number[head.strip()], tuple(number[name] for name in body.split()))
        for head, bodies in lines
        for body in bodies.split("|")
    )
    return Grammar(terminals, tuple(heads), productions, number[heads[0]])


def vocabulary(*tokens: str) -> Vocabulary:
    """The vocabulary of these tokens, the end of sequence last."""
    return Vocabulary.from_tokens([*tokens, EOS], len(tokens))


def words(alphabet: Sequence[Letter], longest: int) -> Iterator[tuple[Letter, ...]]:
    """All words of at most ``longest`` letters, shorter ones first."""
    for length in range(longest + 1):
        yield from product(alphabet, repeat=length)


@dataclass(frozen=True)
class Fixture:
    """A grammar, a vocabulary, and what the checks are to find.

    Attributes
    ----------
    has_separator, has_single_bytes, restarts
        Assumptions S4, S5 and S6.
    refused
        Words that a wrong construction allows, or whose end it allows.
    missed
        Words of at most three tokens that masks of single producible terminals forbid though they begin a member.
    empty
        No member can be written with the vocabulary.
    """

    id: str
    grammar: Grammar
    tokens: tuple[str, ...]
    members: tuple[str, ...]
    others: tuple[str, ...]
    has_separator: bool = False
    has_single_bytes: bool = True
    restarts: bool = True
    refused: tuple[tuple[str, ...], ...] = ()
    missed: int = 0
    empty: bool = False

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary(*self.tokens)


_CALC = grammar((ID, PLUS, WS), "sum: ID | sum PLUS ID")
_DEAD = "value: NUM | LP NUM NUM RP"

FIXTURES = (
    Fixture(
        "CALC",
        _CALC,
        ("a", "+", "_", "aa", "a+", "+a"),
        ("a", "aaa", "a+a", "_a_+_aa_", "a+a+a"),
        ("", "_", "+", "a+", "a_a", "a++a"),
        has_separator=True,
    ),
    Fixture(
        "DYCK",
        grammar((LP, RP, WS), "balanced: | LP balanced RP balanced"),
        ("(", ")", "_", "((", "))", ")(", "()"),
        ("", "_", "()", "(())", "()()", "(_)_()"),
        ("(", ")", "())", ")(", "(()"),
        has_separator=True,
    ),
    Fixture(
        "KW",
        grammar((IF, NAME, WS), "line: IF NAME | NAME"),
        ("i", "f", "_", "if", "iff", "if_"),
        ("i", "iff", "if_i", "_if_iff_", "if_ii"),
        ("", "if", "if_", "if_if", "i_f"),
        has_separator=True,
    ),
    Fixture(
        "DEAD",
        grammar((NUM, LP, RP), _DEAD),
        ("1", "(", ")", "(1"),
        ("1", "11", "111"),
        ("", "(", "(11)", "(1)"),
        restarts=True,
        refused=(("(",), ("(1",), ("(", "1")),
    ),
    Fixture(
        "DEAD+",
        grammar((NUM, LP, RP, WS), _DEAD),
        ("1", "(", ")", "(1", "_"),
        ("1", "(1_1)", "_(_11_1_)_"),
        ("", "(", "(11)", "1_1"),
        has_separator=True,
    ),
    Fixture(
        "FULL",
        grammar((Terminal("T", "[ab]+"),), "text: T"),
        ("a", "b", "ab"),
        ("a", "b", "abba"),
        ("",),
        restarts=False,
        missed=39,
    ),
    Fixture(
        "REENT",
        grammar((Terminal("T", "(ab)*a"),), "texts: | texts T"),
        ("a", "b", "ab"),
        ("", "a", "aba", "aa", "aaba"),
        ("ab", "b", "abb", "aab"),
        refused=(("ab", EOS), ("a", "b", EOS), ("b",)),
    ),
    Fixture(
        "NOPRUNE",
        grammar((ID, PLUS, WS), "text: ID | ID PLUS sink\nsink: ID sink"),
        ("a", "+", "_"),
        ("a", "_aa_"),
        ("a+", "a+a", ""),
        has_separator=True,
        refused=(("a", "+"), ("a", "_", "+")),
    ),
    Fixture(
        "NOSING",
        _CALC,
        ("a+", "+", "_"),
        (),
        ("", "_", "a+", "a+a+"),
        has_separator=True,
        has_single_bytes=False,
        refused=(("a+",), ("_",)),
        empty=True,
    ),
)

BY_ID = {fixture.id: fixture for fixture in FIXTURES}
