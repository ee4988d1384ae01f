"""Regular expressions as automata: over bytes for whole texts, over code points where strings are searched.

Lazy quantifiers at the end of a lexeme are languages: ``A R*? S`` is ``A`` and then the texts of ``R*S`` up to their first end.
That is what Python's order of attempts gives where the conditions of :func:`with_first_ends` hold; they are told from automata.
"""

from dataclasses import replace

import numpy as np

from ..automata.automaton import DEAD, ByteAutomaton
from ..errors import EmptyLanguageError, GrammarError, UnsupportedError
from ..format_limits import current_limits
from ..numerics.cache import kept
from .builder import automaton_of, depends_on_context
from .code_automaton import EVERYTHING, CodeAutomaton
from .pattern_reader import marks, read
from .spelling import FAR, Composed, spelled, utf8
from .syntax_tree import (
    ANYTHING,
    ECMA,
    EMPTY,
    RUST,
    Ahead,
    Beginning,
    Behind,
    Chars,
    Choice,
    Dialect,
    End,
    First,
    Node,
    Repeat,
    Sequence,
    parts_of,
)

LARGER = 10
"""Factor of the limit on states for the automaton of a whole text."""

LARGE, LARGE_IN_GROUPS = 50_000, 500_000
"""States, at most about, up to which an automaton over bytes is made as a whole unless it is asked for; and with positions."""


@kept
def compile_in_parts(pattern: str) -> ByteAutomaton | Composed:
    """Compile as :func:`compile_regex`, without an automaton over bytes where that has many states."""
    code = _whole(pattern, RUST)
    graph = utf8(code.bounds, code.classes)
    # Within a character a state is told by where the classes lead that it may be of.
    ways = np.array([len(np.unique(column)) for column in code.targets.T])
    within = ((graph.depths[graph.classes : graph.root] < FAR) * ways).max(axis=1, initial=0)
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

    In Python's dialect a lazy quantifier ends the text where it first matches.

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


_ANY = Chars(EVERYTHING)
_MORE = Sequence((_ANY, ANYTHING))


def with_first_ends(tree: Node, name: str, *, at_end: bool = True) -> Node:
    """Return a tree where what a lazy quantifier begins ends where it first matches; ``at_end``: no more must follow.

    Raises :class:`UnsupportedError` where that may differ from what Python gives: more must follow, or a later attempt may end
    earlier, by the ends of what is repeated, of what stands behind it, or of what stands before it.
    """
    if not any(isinstance(part, Repeat) and part.lazy for part in parts_of(tree)):
        return tree
    match tree:
        case Choice(branches):
            return Choice(tuple(with_first_ends(branch, name, at_end=at_end) for branch in branches))
        case Repeat(part, least, most, lazy) if not lazy or least == most:
            return replace(tree, part=with_first_ends(part, name, at_end=at_end and least <= 1))
        case Sequence() | Repeat():
            parts = _flat(tree)
        case _:
            return tree  # look-around, whose end does not matter
    for place, part in enumerate(parts):
        if isinstance(part, Repeat) and part.lazy and part.least != part.most:
            if not at_end:
                raise _refused(name, "with more behind it and its group")
            before = Sequence(tuple(with_first_ends(one, name, at_end=False) for one in parts[:place]))
            _check(before, part, Sequence(tuple(parts[place + 1 :])), name)
            return Sequence((before, First(Sequence(tuple(parts[place:])))))
    last = len(parts) - 1
    return Sequence(tuple(with_first_ends(one, name, at_end=at_end and n == last) for n, one in enumerate(parts)))


def _flat(tree: Node) -> list[Node]:
    """Return the parts of a sequence, with those of the groups in it."""
    return [part for one in tree.parts for part in _flat(one)] if isinstance(tree, Sequence) else [tree]


def _check(before: Node, lazy: Repeat, behind: Node, name: str) -> None:
    """Refuse a later attempt of Python's that may end earlier: one of three languages has a member then."""
    if any(isinstance(part, (Ahead, End)) for part in parts_of(Sequence((lazy.part, behind)))):
        raise _refused(name, "and looks ahead behind it")
    before = _without_look_ahead(before)
    once, some = lazy.part, Repeat(lazy.part, 0, None)
    more = Repeat(once, 0, None if lazy.most is None else lazy.most - lazy.least)
    ending = First(Sequence((lazy, behind)))
    longer = Behind(Sequence((Beginning(), before)), False)
    for wrong in (
        (before, some, Ahead(Sequence((once, _MORE)), False), once),  # one repetition begins another
        (before, some, Ahead(Sequence((more, behind, _MORE)), False), behind),  # a later repetition ends earlier
        (before, Ahead(Sequence((_MORE, longer, ending, _MORE)), False), ending),  # a longer text before ends earlier
    ):
        if automaton_of(Sequence(wrong), name).accepting.any():
            raise _refused(name, "of which what it repeats, or what stands around it, may end in several places")


def _without_look_ahead(tree: Node) -> Node:
    match tree:
        case Ahead() | End():
            return EMPTY
        case Sequence(parts):
            return Sequence(tuple(map(_without_look_ahead, parts)))
        case Choice(branches):
            return Choice(tuple(map(_without_look_ahead, branches)))
        case Repeat(part):
            return replace(tree, part=_without_look_ahead(part))
    return tree


def _refused(name: str, how: str) -> UnsupportedError:
    return UnsupportedError(
        f"Use a greedy quantifier and exclude what ends it, as in `[^;]*;` for `.*?;`. {name} has a lazy quantifier {how}, so its "
        "lexemes cannot be told from where they first end."
    )
