"""Regular expressions as automata: over bytes for whole texts, over code points where strings are searched."""

from __future__ import annotations

import numpy as np

from ..automata.automaton import DEAD, ByteAutomaton
from ..errors import EmptyLanguageError, GrammarError, UnsupportedError
from ..format_limits import current_limits
from ..numerics.cache import kept
from .builder import automaton_of, depends_on_context
from .code_automaton import CodeAutomaton
from .composed import Composed
from .dialects import ECMA, RUST, Dialect
from .first_ends import with_first_ends
from .pattern_reader import marks, read
from .spelling import spelled, utf8
from .syntax_tree import Node

LARGER = 10
"""Factor of the limit on states for the automaton of a whole text."""

LARGE, LARGE_IN_GROUPS = 50_000, 500_000
"""States, at most about, up to which an automaton over bytes is made as a whole unless it is asked for; and with positions."""


@kept
def compile_in_parts(pattern: str) -> ByteAutomaton | Composed:
    """Compile as :func:`compile_regex`, without an automaton over bytes where that has many states."""
    code = _whole(pattern, RUST)
    graph, root = utf8(tuple(code.bounds.tolist()), tuple(code.classes.tolist()))
    # Within a character a state is told by where the classes lead that it may be of.
    ways = np.array([len(np.unique(column)) for column in code.targets.T])
    within = (graph.leads_to[graph.classes : root] * ways).max(axis=1, initial=0)
    most = LARGE if code.position is None else LARGE_IN_GROUPS
    return Composed(code, utf8) if len(code) + within.sum() > most else compile_regex(pattern)


@kept
def compile_regex(pattern: str, dialect: Dialect = RUST) -> ByteAutomaton:
    """Return the least byte automaton of the texts that ``pattern`` matches as a whole, by default in the dialect of Outlines.

    That is the syntax of Rust's crate ``regex``, with look-around besides. It is what Outlines can write with any vocabulary:
    ``a|ab`` matches ``ab`` too, where Outlines tries alternatives in their order. Its positions are those in the named groups, but
    for groups inside a repeat, alternatives or another named group. Where look-around rules out later that a text is in a group, it
    counts as in the group until then.

    Raises
    ------
    GrammarError
        The pattern cannot be read.
    UnsupportedError
        It has a feature that is not offered, or its automaton is too large.
    EmptyLanguageError
        It matches nothing.
    """
    return spelled(_whole(pattern, dialect), utf8)


@kept
def compile_lexeme(pattern: str, dialect: Dialect = RUST) -> ByteAutomaton:
    """Return :func:`compile_regex` of a pattern that matches parts of texts, as long as they can be; errors as there.

    In Python's dialect a lazy quantifier ends the text where it first matches (:mod:`~outlines_phi.regex.first_ends`).

    An :class:`UnsupportedError` too where it depends on the text around a part whether that matches.
    """
    plain = _read(pattern, dialect)
    tree = with_first_ends(plain, _named(pattern)) if dialect.ends_first else plain
    looks = [mark for mark in marks(pattern, dialect) if not mark.is_repeat]
    if looks and depends_on_context(tree, _named(pattern)):
        raise UnsupportedError(
            f"Leave out what looks beyond the lexeme. {_named(pattern)} looks there, at offset {looks[0].begin}: what may "
            "stand around a lexeme is for the rules to say. A lexeme is as long as it can be, so a word ends where a name "
            "would; of equally long lexemes a string in a rule comes before a name."
        )
    return compile_regex(pattern, dialect) if tree is plain else spelled(_built(tree, pattern), utf8)


def _read(pattern: str, dialect: Dialect) -> Node:
    """Return the tree of a pattern for texts in UTF-8, within the limits; errors as :func:`compile_regex`."""
    try:
        pattern.encode()
    except UnicodeEncodeError as error:
        readable = pattern.encode(errors="backslashreplace").decode()
        raise GrammarError("a lone surrogate cannot be written in UTF-8; remove it", readable, error.start) from None
    current_limits().check("source", len(pattern), "The length of the regular expression")
    return read(pattern, dialect)


@kept
def _whole(pattern: str, dialect: Dialect) -> CodeAutomaton:
    """Return the automaton of the texts that ``pattern`` matches as a whole; errors as :func:`compile_regex`."""
    return _built(_read(pattern, dialect), pattern)


def _built(tree: Node, pattern: str) -> CodeAutomaton:
    automaton = automaton_of(tree, _named(pattern), larger=LARGER)
    if not automaton.accepting.any():
        raise EmptyLanguageError(f"Write a pattern that matches some text. {_named(pattern)} matches nothing.")
    return automaton


@kept
def searched(pattern: str, dialect: Dialect = ECMA) -> CodeAutomaton:
    """Return the automaton of the strings in which ``pattern`` is found: anywhere, unless ``^`` or ``$`` says where.

    Errors as :func:`compile_regex`, but that it may be empty.
    """
    return automaton_of(read(pattern, dialect), _named(pattern), anywhere=True)


@kept
def free_text(without: tuple[str, ...] = (), end: tuple[str, ...] = ()) -> ByteAutomaton:
    """Return the automaton of the texts, in UTF-8, that hold none of some strings, and that the first of others ends.

    Without ``end`` a text ends anywhere.
    """
    texts = spelled(_holding(end) if end else searched("", RUST), utf8)
    if end:
        targets = np.where(texts.accepting[:, None], DEAD, texts.targets).astype(np.int32)
        texts = ByteAutomaton(targets, texts.byte_class, texts.start, texts.accepting).trim()
    return texts & spelled(~_holding(without), utf8) if without else texts


def _holding(strings: tuple[str, ...]) -> CodeAutomaton:
    """Return the automaton of the texts that hold one of some strings: Aho and Corasick's, least."""
    if not all(strings):
        raise UnsupportedError("Give strings of at least one character each: an empty one was given.")
    return searched("|".join(map(literal, strings)), RUST)


def literal(text: str, *, ignore_case: bool = False) -> str:
    """Return the pattern of one text, in the dialect of Outlines."""
    written = "".join(map(_character, text))
    return f"(?i:{written})" if ignore_case else written


def _character(character: str) -> str:
    if character in r"\.+*?()|[]{}^$#&-~":
        return "\\" + character
    named = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(character)
    return named or (character if character.isprintable() else f"\\x{{{ord(character):X}}}")


def _named(pattern: str, longest: int = 80) -> str:
    return "The pattern " + repr(pattern if len(pattern) <= longest else pattern[: longest - 3] + "...")
