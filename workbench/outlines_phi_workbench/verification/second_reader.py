"""Lark's dialect of grammars read a second time, for the oracle: a recursive-descent reader that shares no code with the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import NamedTuple, NoReturn, TypeAlias, final


class SharedReading(Exception):
    """The notation that this reader does not read, so that the oracle has to share the engine's reading; the message says which."""


class SymbolName(NamedTuple):
    """A rule or a terminal, by its name."""

    name: str


class LiteralText(NamedTuple):
    """A string, after its escapes, and its flags: nothing, or ``i``."""

    value: str
    flags: str = ""


class WrittenPattern(NamedTuple):
    """A regular expression as Python reads it, and its flags; ranges of characters are classes."""

    value: str
    flags: str = ""


class TemplateUse(NamedTuple):
    """A template with its arguments."""

    name: str
    arguments: tuple[Part, ...]


class Alternatives(NamedTuple):
    """Alternatives, each a sequence of parts."""

    alternatives: tuple[tuple[Part, ...], ...]


class Repeats(NamedTuple):
    """A part that stands ``least`` to ``most`` times; ``None`` for any number."""

    part: Part
    least: int
    most: int | None


Part: TypeAlias = SymbolName | LiteralText | WrittenPattern | TemplateUse | Alternatives | Repeats


class LarkDefinition(NamedTuple):
    """The definition of a name; ``parameters`` are those of a template, and ``priority`` is 0 for all rules."""

    body: Alternatives
    parameters: tuple[str, ...] = ()
    priority: int = 0


class LarkDefinitions(NamedTuple):
    """A text that was read: what is defined, in the order of the text, and what is ignored."""

    named: dict[str, LarkDefinition]
    ignored: tuple[Alternatives, ...]


def read_definitions(text: str) -> LarkDefinitions:
    """Parse the definitions of a text; raise :class:`SharedReading` on notation that is not read here."""
    return _Descent(text).read()


def substituted(part: Part, values: Mapping[str, Part]) -> Part:
    """Return a part with other parts in the place of names."""
    match part:
        case SymbolName(name):
            return values.get(name, part)
        case TemplateUse(name, arguments):
            renamed = values.get(name)
            if renamed is not None and not isinstance(renamed, SymbolName):
                _refuse(f"the parameter {name!r} is used as a template")
            return TemplateUse(
                name if renamed is None else renamed.name, tuple(substituted(each, values) for each in arguments)
            )
        case Alternatives(alternatives):
            return Alternatives(tuple(tuple(substituted(each, values) for each in parts) for parts in alternatives))
        case Repeats(inner, least, most):
            return Repeats(substituted(inner, values), least, most)
    return part


def is_terminal(name: str) -> bool:
    """Return True if a name is that of a terminal; the name of a grammar that it is imported from may stand before it."""
    return next(letter for letter in reversed(name) if letter.isalpha()).isupper()


_TOKEN = re.compile(
    r"""(?P<blank>[ \t\f\r]+|\\[ ]*\n|(?://|\#)[^\n]*)
      | (?P<line>\n)
      | (?P<string>"(?:\\.|[^"\\\n])*"i?)
      | (?P<regexp>/(?!/)(?:\\.|[^/\\])*/[imslux]*)
      | (?P<name>_?(?:[a-z][_a-z0-9]*|[A-Z][_A-Z0-9]*))
      | (?P<number>[+-]?[0-9]+)
      | (?P<directive>%[a-z]+)
      | (?P<mark>->|\.\.|[][(){}|:,.~*+?!])""",
    re.VERBOSE | re.DOTALL,
)


class _Lexeme(NamedTuple):
    kind: str  # the group of the pattern above
    text: str


_END = _Lexeme("line", "")


def _lexemes(text: str) -> list[_Lexeme]:
    """Return the lexemes of a text: one ``line`` for several, and none before ``|``."""
    found: list[_Lexeme] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            _refuse(f"it has {text[at : at + 20]!r}")
        at = match.end()
        lexeme = _Lexeme(match.lastgroup, match[0])
        if lexeme.kind == "blank" or (lexeme.kind == "line" and found and found[-1].kind == "line"):
            continue
        if lexeme == ("mark", "|") and found and found[-1].kind == "line":
            found.pop()
        found.append(lexeme)
    return [*found, _END]


def _refuse(what: str) -> NoReturn:
    raise SharedReading(what)


@final
class _Descent:
    """Reads one text; ``renamed`` says what the names in it are called outside."""

    def __init__(self, text: str, renamed: Callable[[str], str] = str) -> None:
        self._lexemes, self._place, self._renamed = _lexemes(text), 0, renamed
        self._named: dict[str, LarkDefinition] = {}
        self._ignored: list[Alternatives] = []
        self._imports: dict[tuple[str, ...], dict[str, str]] = {}  # by path, what each name is called here

    def read(self) -> LarkDefinitions:
        while self._place < len(self._lexemes):
            if not self._takes("line"):
                self._statement()
        for path, names in self._imports.items():
            self._add_imported(path, names)
        return LarkDefinitions(self._named, tuple(self._ignored))

    def _statement(self) -> None:
        lexeme = self._next()
        if lexeme.kind == "directive":
            match lexeme.text:
                case "%ignore":
                    self._ignored.append(self._choices())
                case "%import":
                    self._import()
                case "%declare":  # what is declared has no text: it is refused where it is used
                    while self._takes("name"):
                        pass
                case other:
                    _refuse(f"it has `{other}`")
        else:
            while lexeme.text in ("?", "!"):  # they speak of trees alone
                lexeme = self._next()
            self._definition(lexeme)
        self._expect("line")

    def _definition(self, lexeme: _Lexeme) -> None:
        if lexeme.kind != "name":
            _refuse(f"{lexeme.text!r} begins a definition")
        name, parameters, priority = self._renamed(lexeme.text), [], 0
        if self._takes("mark", "{"):
            parameters.append(self._expect("name"))
            while self._takes("mark", ","):
                parameters.append(self._expect("name"))
            self._expect("mark", "}")
        if self._takes("mark", "."):
            priority = int(self._expect("number"))
        self._expect("mark", ":")
        outside, self._renamed = self._renamed, lambda inner: inner if inner in parameters else outside(inner)
        body, self._renamed = self._choices(), outside
        if name in self._named:
            _refuse(f"{name!r} is defined twice")
        self._named[name] = LarkDefinition(body, tuple(parameters), priority if is_terminal(name) else 0)

    def _import(self) -> None:
        if self._takes("mark", "."):
            _refuse("it imports a grammar from a file beside it")
        path = [self._expect("name")]
        while self._takes("mark", "."):
            path.append(self._expect("name"))
        if self._takes("mark", "("):
            listed = [self._expect("name")]
            while self._takes("mark", ","):
                listed.append(self._expect("name"))
            self._expect("mark", ")")
            names = dict(zip(listed, listed, strict=True))
        else:
            name = path.pop()
            names = {name: self._expect("name") if self._takes("mark", "->") else name}
        self._imports.setdefault(tuple(path), {}).update(names)

    def _add_imported(self, path: tuple[str, ...], names: Mapping[str, str]) -> None:
        source = files("lark") / "grammars" / f"{'/'.join(path)}.lark"
        if not path or not source.is_file():
            _refuse(f"it imports {'.'.join(path)!r}, which is not of Lark's library")
        prefix = "__".join(path)

        def renamed(inner: str) -> str:
            hidden = inner.startswith("_")
            return self._renamed(names.get(inner, f"{'_' * hidden}{prefix}__{inner[hidden:]}"))

        imported = _Descent(source.read_text(encoding="utf-8"), renamed).read().named
        pending, needed = list(map(self._renamed, names.values())), set[str]()
        while pending:
            name = pending.pop()
            if name in imported and name not in needed:
                needed.add(name)
                pending += named_in(imported[name].body)
        if clash := self._named.keys() & needed:
            _refuse(f"{min(clash)!r} is imported, and defined besides")
        self._named |= {name: definition for name, definition in imported.items() if name in needed}

    def _choices(self) -> Alternatives:
        alternatives = [self._sequence()]
        while self._takes("mark", "|"):
            alternatives.append(self._sequence())
        return Alternatives(tuple(alternatives))

    def _sequence(self) -> tuple[Part, ...]:
        parts = []
        while (part := self._repeated()) is not None:
            parts.append(part)
        if self._takes("mark", "->"):
            self._expect("name")  # of a node of the tree
        return tuple(parts)

    def _repeated(self) -> Part | None:
        part = self._part()
        if part is None:
            return None
        for mark, least, most in (("?", 0, 1), ("*", 0, None), ("+", 1, None)):
            if self._takes("mark", mark):
                return Repeats(part, least, most)
        if self._takes("mark", "~"):
            least = int(self._expect("number"))
            return Repeats(part, least, int(self._expect("number")) if self._takes("mark", "..") else least)
        return part

    def _part(self) -> Part | None:
        for opening, closing in ("()", "[]"):
            if self._takes("mark", opening):
                inner = self._choices()
                self._expect("mark", closing)
                return Repeats(inner, 0, 1) if opening == "[" else inner
        return self._value()

    def _value(self) -> Part | None:
        lexeme = self._lexemes[self._place]
        if lexeme.kind not in ("name", "string", "regexp"):
            return None
        self._place += 1
        if lexeme.kind == "name":
            name = self._renamed(lexeme.text)
            if not self._takes("mark", "{"):
                return SymbolName(name)
            arguments = [self._argument()]
            while self._takes("mark", ","):
                arguments.append(self._argument())
            self._expect("mark", "}")
            return TemplateUse(name, tuple(arguments))
        if lexeme.kind == "string" and self._takes("mark", ".."):
            return WrittenPattern(f"[{lexeme.text[1:-1]}-{self._expect('string')[1:-1]}]")
        end = lexeme.text.rindex(lexeme.text[0])
        inside, flags = _unescaped(lexeme.text[1:end]), lexeme.text[end + 1 :]
        if lexeme.kind == "string":
            return LiteralText(inside.replace("\\\\", "\\"), flags)
        return WrittenPattern(inside, flags)

    def _argument(self) -> Part:
        part = self._value()
        return part if part is not None else _refuse("a template has an argument that is no name and no text")

    def _next(self) -> _Lexeme:
        self._place += 1
        return self._lexemes[self._place - 1]

    def _takes(self, kind: str, text: str | None = None) -> bool:
        found = self._lexemes[self._place]
        if found.kind == kind and text in (None, found.text):
            self._place += 1
            return True
        return False

    def _expect(self, kind: str, text: str | None = None) -> str:
        found = self._lexemes[self._place]
        if not self._takes(kind, text):
            _refuse(f"{found.text or 'the end'!r} stands where {text or f'a {kind}'!r} was expected")
        return found.text


def named_in(part: Part) -> list[str]:
    """Return the names in a part."""
    match part:
        case SymbolName(name):
            return [name]
        case TemplateUse(name, arguments):
            return [name, *(inner for each in arguments for inner in named_in(each))]
        case Alternatives(alternatives):
            return [name for parts in alternatives for each in parts for name in named_in(each)]
        case Repeats(inner, _, _):
            return named_in(inner)
    return []


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_CONTROLS = {"n": "\n", "f": "\f", "t": "\t", "r": "\r", '"': '"'}


def _unescaped(text: str) -> str:
    """Return a literal after its escapes; a backslash before what is no escape stays, and so do two of them."""

    def escape(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        return chr(int(code, 16)) if code else _CONTROLS.get(found[4], found[0])

    return _ESCAPE.sub(escape, text)
