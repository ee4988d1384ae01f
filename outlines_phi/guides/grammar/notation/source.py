"""The text of a grammar in Lark's dialect: where its names are, errors that point at them, and the files that it imports."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from lark.exceptions import LarkError, UnexpectedInput
from lark.load_grammar import _parse_grammar, stdlib_loader

from ....errors import GrammarError

_TOKEN = re.compile(
    r"""(?://|\#)[^\n]*
      | (?P<literal>"(?:\\.|[^"\\\n])*"i? | /(?!/)(?:\\.|[^/\\])*/[imslux]*)
      | (?P<special><[^<>\s\U00010000-\U0010ffff]+>)
      | (?P<name>[A-Za-z_][A-Za-z_0-9]*)""",
    re.DOTALL | re.VERBOSE,
)
"""Comments, strings, regular expressions and special tokens have no names in them."""

_PRIVATE = 0xF0000  # The first character of plane 15: special tokens are strings of such characters for Lark
PRIVATE = re.compile("[\U000f0000-\U000fffff]")


def with_literals(text: str) -> str:
    """Return a grammar as Lark reads it: each special token as a string of as many characters, which no other string has."""

    def literal(found: re.Match[str]) -> str:
        inner = (found["special"] or "")[1:-1]
        return f'"{"".join(chr(_PRIVATE + ord(letter)) for letter in inner)}"' if inner else found[0]

    return _TOKEN.sub(literal, text)


def special_token(raw: str) -> str:
    """Return the special token that a string of :func:`with_literals` stands for; none for another string."""
    inner = raw[1:-1]
    is_special = len(PRIVATE.findall(inner)) == len(inner) > 0
    return f"<{''.join(chr(ord(letter) - _PRIVATE) for letter in inner)}>" if is_special else ""


_UNEXPECTED = "this is not expected here, in Lark's dialect of grammars"

_GBNF = re.compile(r"^[ \t]*[\w-]+[ \t]*(::=)", re.MULTILINE)

_IS_GBNF = (
    "rules with `::=` are GBNF, the dialect of llama.cpp, and this is read as Lark's. Give what "
    '`outlines_phi.guides.read_grammar(text, dialect="gbnf")` returns, or a file .gbnf; in Lark\'s dialect it is `:`'
)

_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def check_writable(text: str) -> None:
    """Raise :class:`GrammarError` for the first zero character or lone surrogate of a grammar."""
    if found := _UNWRITABLE.search(text):
        zero = found[0] == "\0"
        what = r"a zero character is written `\x00`" if zero else "a lone surrogate has no UTF-8; remove it"
        raise GrammarError(what, _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text), found.start())


def meant(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return the question whether the name was meant that is closest to ``name``; ``otherwise`` where none is close."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {close[0]!r}? " if close else otherwise


_DEFINED = re.compile(r"\s*(?:\{[^}\n]*\}\s*)?(?:\.\s*[+-]?\d+\s*)?:")
"""The text between a name and its definition: parameters of a template, a priority, a colon."""

_HELPER = re.compile(r"__(.+)_(?:plus|star|repeat_a\d+_b\d+(?:_opt)?)_\d+")
"""Lark's name of the rule that it writes for a repeat inside another rule."""


@dataclass(frozen=True)
class Source:
    """A grammar as it was written: its ``text``, the offsets of every name where it is ``defined`` and elsewhere, ``used``, and
    that of the first of each string and regular expression, ``literals``.
    """

    text: str
    defined: dict[str, list[int]]
    used: dict[str, list[int]]
    literals: dict[str, int]

    @classmethod
    def of(cls, text: str) -> Source:
        """Return ``text`` with the places of its names."""
        check_writable(text)
        if private := PRIVATE.search(text):
            raise GrammarError(
                r"a private character of plane 15 is written by its code, as `\U000F0041`", text, private.start()
            )
        defined: dict[str, list[int]] = {}
        used: dict[str, list[int]] = {}
        literals: dict[str, int] = {}
        for found in _TOKEN.finditer(text):
            if written := found["literal"]:
                literals.setdefault(written, found.start())
            if name := found["name"]:
                places = defined if _DEFINED.match(text, found.end()) else used
                places.setdefault(name, []).append(found.start())
        return cls(text, defined, used, literals)

    def terminals_inside(self) -> dict[str, tuple[int, list[str]]]:
        """Return, for each terminal that is defined, how many characters follow its name, and the terminals named there."""
        places = sorted((place, name) for name, found in self.defined.items() for place in found)
        ends = [*(place for place, _ in places), len(self.text)][1:]
        named = sorted((place, name) for name, found in self.used.items() if name.isupper() for place in found)
        inside: dict[str, tuple[int, list[str]]] = {}
        at = 0
        for (start, name), end in zip(places, ends, strict=True):
            first = bisect_left(named, (start, ""), at)
            at = bisect_left(named, (end, ""), first)
            if name.isupper():
                size, used = inside.get(name, (0, []))
                inside[name] = size + end - start - len(name), used + [other for _, other in named[first:at]]
        return inside

    def line_of_rule(self, name: str) -> int:
        """Return the line that defines a rule, or the one that a repeat or a template of it comes from; 0 if it is imported."""
        helper = _HELPER.fullmatch(name)
        places = self.defined.get(re.split("[{…]", helper[1] if helper else name)[0])
        return self.text.count("\n", 0, places[0]) + 1 if places else 0

    def place(self, name: str) -> int | None:
        """Return the offset of the definition of ``name``, or else of its first use."""
        places = self.defined.get(name) or self.used.get(name)
        return places[0] if places else None

    def error(self, message: str, name: str, *, written: str | None = None) -> GrammarError:
        """Return an error that points at ``name``, or at what was ``written`` instead of a name."""
        places = (self.place(name), self.literals.get(written or ""), self._import_of(name))
        return self._error(message, next((place for place in places if place is not None), None))

    def missing_start(self, start: str, rules: Sequence[str], definition: Any) -> GrammarError:
        """Return the error of a start rule that is not there, or of which Lark has a ``definition`` of another kind."""
        if definition is not None:
            what, instead = ("is a terminal", start) if definition.is_term else ("has parameters", f"{start}{{...}}")
            return self.error(
                f"the start rule {start!r} {what}. Give a rule without, such as `start: {instead}`", start
            )
        written = [name for name in rules if name in self.defined] or list(rules)
        if not written:
            return self._error(f"the grammar has no rule. Define one, as in `{start}: ...`", 0)
        hint = meant(start, written, f"the rules are {_listed(written)}. ")
        return self.error(
            f"there is no rule {start!r} to start with; {hint}Define it, or name another with `start=`", written[0]
        )

    def unexpected(self, error: UnexpectedInput) -> GrammarError:
        """Return the error of a text that Lark's own grammar does not match."""
        if found := _GBNF.search(self.text):
            return self._error(_IS_GBNF, found.start(1))
        return self._error(_UNEXPECTED, self._offset(error.line, error.column))

    def refused(self, error: BaseException) -> GrammarError:
        """Return the error of what Lark refused, at the place that its message gives or names."""
        if isinstance(error, OSError):
            missing = re.sub(r"\.lark$", "", str(error.filename or error))
            return self._error(
                f"the grammar {missing!r} cannot be imported. Lark's library has `common`, `python`, `unicode` and `lark`; "
                "`%import .name` looks beside the program",
                self.position_of_import(missing),
            )
        if found := _GBNF.search(self.text):
            return self._error(_IS_GBNF, found.start(1))
        message = str(error).strip()
        if found := _PLACE.search(message):
            first = _sentence(message[: found.start()].strip(" ,"))
            words = _UNEXPECTED if first in ("", "unexpected input") else first
            return self._error(words, self._offset(int(found[1]), int(found[2])))
        for refusals, places in ((_OF_DEFINITIONS, self.defined), (_OF_USES, self.used)):
            for said, words in refusals.items():
                if found := re.search(said, message):
                    return self._named(found["name"], places, words)
        for said, (piece, words) in _OF_PIECES.items():
            if re.search(said, message) and (found := re.search(piece, self.text, re.DOTALL)):
                return self._error(words, found.start())
        return self._error(_sentence(message) or "Lark refuses the grammar", self._quoted(message))

    def _named(self, name: str, places: dict[str, list[int]], words: str) -> GrammarError:
        """Return the error of what Lark said of ``name``: at its last definition, or its first use."""
        kind = "terminal" if name.isupper() else "rule"
        at = places.get(name, [])[-1:] if places is self.defined else places.get(name, [])[:1]
        module, _, own = name.rpartition("__")
        if module and not at:
            said = f"{kind} {own!r} of the imported grammar {module.split('__')[-1]!r} {words}"
            return self._error(said, self._import_of(name))
        imported = re.search(rf"^%import[^\n]*\b{re.escape(name)}\b", self.text, re.MULTILINE)
        if "not defined" in words and imported:
            words = "is imported from a grammar that does not define it; see what that grammar calls it"
            at = [imported.start()]
        return self._error(f"{kind} {name!r} {words}", at[0] if at else self.place(name))

    def _error(self, message: str, position: int | None) -> GrammarError:
        return GrammarError(message, self.text, 0 if position is None else position)

    def _offset(self, line: int, column: int) -> int:
        """Return the offset of a place; one that is behind the end is the end."""
        if line < 1:
            return len(self.text.rstrip())
        lines = self.text.split("\n")
        before = sum(len(each) + 1 for each in lines[: line - 1])
        return min(before + max(column, 1) - 1, len(self.text))

    def position_of_import(self, path: str) -> int | None:
        """Return the offset of the import of a grammar, by the last part of its name."""
        last = re.split(r"[\\/]", path)[-1]
        found = re.search(rf"%import\s+(?:[\w.]*\.)?{re.escape(last)}\b", self.text)
        return found.start() if found else None

    def _import_of(self, name: str) -> int | None:
        """Return the import that leads to a name that imported grammars alone have: it begins with theirs."""
        places = map(self.position_of_import, reversed(name.split("__")[:-1]))
        return next((place for place in places if place is not None), None)

    def _quoted(self, message: str) -> int | None:
        """Return the offset of the first name or literal of a message."""
        for written in re.findall(r'"(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\])+/[imslux]*|[A-Za-z_]\w*', message):
            if written in self._names:
                return self.place(written)
            if written in self.literals:
                return self.literals[written]
        return None

    @cached_property
    def _names(self) -> Collection[str]:
        return self.defined.keys() | self.used.keys()


_PLACE = re.compile(r"(?:,?\s*at)?\s*line (\d+),? column (\d+).*", re.DOTALL)
_IMPORT = "define it, or import it with `%import`"

_OF_DEFINITIONS = {
    r"'(?P<name>[^']+)' defined more than once": "is defined twice; remove one, or use `%override` or `%extend`",
    r"[Oo]verride a nonexisting \w+ (?P<name>\w+)": "is not defined, so there is nothing to override; leave `%override` out",
    r"extend \w+ (?P<name>\w+) as it wasn't defined": "is extended before it is defined; move the definition up",
    r"extend \w+(?: with different parameters:)? (?P<name>\w+)": "is extended by what is of another kind than it is",
    r"reserved \(Error at (?P<name>\w+)\)": "has a name of Lark's own, with two underscores; choose another one",
    r"Recursion in terminal '(?P<name>\w+)'": "uses itself; only rules may, so name it in small letters",
    r"Terminals cannot be empty \((?P<name>\w+)\)": "is empty; make it optional where rules use it",
    r"Rules defined twice: \s*\*?\s*<(?P<name>\w+)": "has the same alternative twice when its optional parts are written out; "
    "leave one out",
    r"Rule (?P<name>\w+) is marked for expansion": "has an alias, and an underscore that says that it has no tree; remove one",
    r"in template (?P<name>\w+)": "has a parameter with the name of a rule, or two of one name; rename it",
}
"""Patterns of Lark's messages about a name, pointed at its definition, and the remedy of each."""

_OF_USES = {
    r"(?:Terminal|Rule) '(?P<name>[^']+)' used but not defined": f"is not defined; {_IMPORT}",
    r"Terminal used but not defined: (?P<name>\w+)": f"is not defined; {_IMPORT}",
    r"Template '(?P<name>[^']+)' used but not defined": "is not defined; define it with its parameters, as `name{x}: ...`",
    r"template arguments used for (?P<name>\w+)": "has another number of parameters than it is given here",
    r"Terminals \{'(?P<name>\w+)'.* were marked to ignore": f"is ignored, but not defined; {_IMPORT}",
    r"NonTerminal\('(?P<name>\w+)'\) in \w+": "is used in a terminal; terminals are made of terminals, so name it in capitals",
}
"""The same, pointed at where the name is used."""

_OF_PIECES = {
    r"^$": (
        r'"(?:\\.|[^"\\\n])*"i?\s*\.\.\s*"',
        'a range is between two strings of one character each, as in `"a".."z"`',
    ),
    r"Bad Range": (r"~\s*\d+\s*\.\.\s*\d+", "a range of repeats is written `~least..most`"),
    r"\?rule modifier": (
        r"\?!?_\w+|!\?_\w+",
        "a rule with an underscore has no tree, so `?` has nothing to do; remove one",
    ),
    r"newlines in reg": (
        r"/[^/\n]*\n",
        "a regular expression over several lines needs the flag `x` behind its last slash",
    ),
    r"bad escaping": (
        r'"[^"\n]*\\"',
        r"a backslash before a quote escapes it; a backslash at the end of a string is `\\\\`",
    ),
    r"limit .*for integer string conversion": (
        r"\d{1000,}",
        "this number has too many digits; repeat a rule that repeats",
    ),
    r"newlines in str": (r'"[^"\n]*\n', r"a line break in a string is written `\n`"),
}
"""Patterns of Lark's messages about a piece without a name, the pattern of such a piece, and the remedy."""


def _sentence(message: str) -> str:
    first = message.split("\n\n", 1)[0].strip().rstrip(".:!")
    return first[:1].lower() + first[1:] if not first[:2].isupper() else first


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")


@final
class Imports:
    """Loader of imported grammars, as Lark asks for their text.

    ``%import name`` is Lark's own library, or a file in the folder of the grammar's own file, ``path``; ``%import .name`` is a file
    in the folder of the file that asks. Errors point into the file that they are of.
    """

    def __init__(self, source: Source, path: Path | None) -> None:
        self._folder = None if path is None else path.absolute().parent
        self._sources: list[tuple[Path | None, Source]] = [(None, source)]

    def __call__(self, folder: Any, name: str) -> tuple[Any, str]:
        """Return the identity of the file ``name``, relative to ``folder`` where one is given, and its text."""
        if not isinstance(folder, str):  # the library's, or not said
            try:
                return stdlib_loader(folder, name)
            except OSError:
                if folder is not None or self._folder is None:
                    raise
        path = Path(folder or self._folder or "", name)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            if self._folder is None:
                raise  # Lark goes on to look elsewhere
            raise self._missing(path, str(error.strerror)) from error
        except UnicodeDecodeError as error:
            raise self._missing(path, f"it is not UTF-8, {error.reason}") from error
        self._check(path, text)
        return str(path), with_literals(text)

    def _check(self, path: Path, text: str) -> None:
        """Raise :class:`GrammarError` where the text of a file is no grammar: Lark would not say in which file."""
        try:
            source = Source.of(text)
            self._sources.append((path, source))
            try:
                _parse_grammar(with_literals(text), str(path))
            except UnexpectedInput as error:
                raise source.unexpected(error) from None
            except LarkError as error:
                raise source.refused(error) from None
        except GrammarError as error:
            raise _inside(path, error) from None

    def _missing(self, path: Path, why: str) -> GrammarError:
        """Return the error of a file that cannot be read, at the import that asks for it."""
        said = (
            f"the grammar {path.stem!r} cannot be imported from {path}: {why}. Lark's library has `common`, `python`, `unicode` "
            "and `lark`"
        )
        for importing, source in self._sources:
            at = source.position_of_import(path.stem)
            if at is not None:
                error = GrammarError(said, source.text, at)
                return error if importing is None else _inside(importing, error)
        return GrammarError(said)


def _inside(path: Path, error: GrammarError) -> GrammarError:
    said = str(error) if error.position is None else str(error).split("\n")[0]
    return GrammarError(f"in the imported file {path}: {said}", error.source, error.position)
