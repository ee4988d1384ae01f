"""The formats in which families of models write calls of tools: data, structural-tag documents, and texts read by them.

A family is a file of ``tool_families``: what marks its chat templates, a tag for each call (``$name``, ``$parameters``), and the
documents of a whole answer (``$calls``), in xgrammar's JSON form of structural tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias, final

from ...errors import UnsupportedError
from ...vocabulary.special_tokens import spelling
from ...vocabulary.vocabulary import Vocabulary
from .argument_styles import QUOTES, Format, Quoted, Tagged, const, one_of, optional, sequence

LOOPS = ("triggered_tags", "tags_with_separator")
"""The formats in which several tags may stand."""


class WrittenCall(NamedTuple):
    """A call as it is written: the name of the tool, and its arguments as JSON."""

    name: str
    arguments: str


Piece: TypeAlias = str | WrittenCall  # Text of an answer, or a call in it


@final
@dataclass(frozen=True)
class Family:
    """The format of calls that some models are trained on.

    Attributes
    ----------
    models
        Whose format it is, in words.
    markers, without
        Strings that the chat templates of these models all hold, and such that none of them does.
    calls
        The tags of a call.
    auto, required, none
        The formats of an answer that may call, of one that begins with a call, and of one without.
    """

    models: str
    markers: Sequence[str]
    without: Sequence[str]
    calls: Sequence[Format]
    auto: Format
    required: Format
    none: Format

    def answer(self, choice: str, schemas: Mapping[str, Any], *, single: bool) -> Format:
        """Return the format of an answer: ``choice`` is ``"auto"``, ``"required"`` or ``"none"``, ``schemas`` are by tool.

        ``single`` is for one call at most, with nothing behind it.
        """
        values = [{"$name": name, "$parameters": schema} for name, schema in schemas.items()]
        calls = [_filled(call, each, single=False) for each in values for call in self.calls]
        form = {"auto": self.auto, "required": self.required, "none": self.none}[choice]
        return _filled(form, {"$calls": calls}, single=single)


@cache
def families() -> dict[str, Family]:
    """Return all families by name."""
    folder = files(__package__) / "tool_families"
    found = sorted(path.name for path in folder.iterdir() if path.name.endswith(".json"))
    return {name[:-5]: Family(**json.loads((folder / name).read_text("utf-8"))) for name in found}


def family_of(template: str | None) -> str:
    """Return the family of a chat template, given by its text: the one whose markers it holds."""
    fitting = [
        name
        for name, family in families().items()
        if template
        and all(map(template.__contains__, family.markers))
        and not any(map(template.__contains__, family.without))
    ]
    if len(fitting) == 1:
        return fitting[0]
    found = f"like those of {' and '.join(fitting)}" if fitting else "like that of no family" if template else "missing"
    raise UnsupportedError(
        f"Give Tools(..., family=...), one of {', '.join(families())}. The chat template of this model is {found}."
    )


def _filled(form: Any, values: Mapping[str, Any], *, single: bool) -> Any:
    """Return a format with values in the place of what stands for them; lists are spliced into lists."""
    match form:
        case str() if form in values:
            return values[form]
        case str():
            return form.replace("$name", values.get("$name", "$name"))
        case list():
            filled = [(part, _filled(part, values, single=single)) for part in form]
            return [one for part, new in filled for one in (new if isinstance(part, str) and part in values else [new])]
        case dict():
            inner = {key: _filled(part, values, single=single) for key, part in form.items()}
            return inner | {"stop_after_first": True} if single and form.get("type") in LOOPS else inner
    return form


def written_out(form: Any) -> Any:
    """Return a format with the arguments of the styles that structural tags have not written out, as formats of their own."""
    match form:
        case {"type": "json_schema", "json_schema": schema, **others}:
            style = others.get("style", "json")
            return Quoted(QUOTES[style], schema).form if style in QUOTES else form
        case dict():
            return {key: written_out(part) for key, part in form.items()}
        case list():
            return list(map(written_out, form))
    return form


@final
@dataclass(frozen=True)
class TokenNames:
    """The special tokens of a tokenizer in the strings of formats: there a name stands for the token."""

    special: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()  # Those of them that end the text

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenNames:
        """Return those of a vocabulary: tokens that write nothing."""
        special = {name: v for name, v in vocabulary.special.items() if not vocabulary.tokens[v]}
        return cls(frozenset(special), frozenset(name for name, v in special.items() if v in vocabulary.eos_ids))

    @cached_property
    def _named(self) -> re.Pattern[str]:
        names = sorted(self.special, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})" if names else "(?!)()")

    def split(self, text: str) -> list[str]:
        """Return the parts of a text: of each two, the second is the name of a special token."""
        return self._named.split(text)

    def spelled(self, text: str) -> str:
        """Return a text with special tokens as :attr:`WrittenText.spelled` has them; those that end a text write nothing."""
        parts = self.split(text)
        parts[1::2] = [
            "" if name in self.ends else spelling(name).decode(errors="surrogateescape") for name in parts[1::2]
        ]
        return "".join(parts)

    def first(self, text: str) -> str:
        """Return the first character of a text, or the special token that it begins with."""
        before, *token = self.split(text)[:2]
        return before[:1] or "".join(token)

    def without(self, text: str) -> str:
        """Return a text without the special tokens."""
        return "".join(self.split(text)[::2])

    def apart(self, text: str) -> list[Format]:
        """Return the formats of a string: its parts, and the tokens between them."""
        forms = [{"type": "token", "token": part} if i % 2 else const(part) for i, part in enumerate(self.split(text))]
        return [
            form for form in forms if form not in (const(""), *({"type": "token", "token": end} for end in self.ends))
        ]

    def closes(self, end: str) -> bool:
        """Return True if a string ends the whole text."""
        return any(name in self.ends for name in self.split(end)[1::2])

    def lowered(self, form: Format) -> Format:
        """Return a format in which special tokens are formats of their own; the format itself where it names none."""
        return self._lowered(form) if len(self.split(json.dumps(form, ensure_ascii=False))) > 1 else form

    def _lowered(self, form: Format) -> Format:
        match form:
            case {"type": "const_string", "value": text}:
                return sequence(*self.apart(text))
            case {"type": "any_text"}:
                return form | {"excludes": [text for text in form.get("excludes", ()) if len(self.split(text)) == 1]}
            case {"type": "sequence" | "or", "elements": elements}:
                return form | {"elements": list(map(self._lowered, elements))}
            case {"type": "optional" | "star", "content": content}:
                return form | {"content": self._lowered(content)}
            case {"type": "tag"}:
                return one_of([self._tag(form, end) for end in _ends(form)])
            case {"type": "tags_with_separator"}:
                return self._separated(form)
            case {"type": "triggered_tags"}:
                return self._triggered(form)
        return form

    def _tag(self, tag: Format, end: str) -> Format:
        content, begin = self._lowered(tag["content"]), self.apart(tag["begin"])
        if len(self.split(end)) == 1:  # text is ended by a text
            return sequence(*begin, {"type": "tag", "begin": "", "content": content, "end": end})
        return sequence(*begin, content, *self.apart(end))

    def _separated(self, form: Format) -> Format:
        tags = [(end, self._tag(tag, end)) for tag in form["tags"] for end in _ends(tag)]
        last = one_of([tag for _, tag in tags])
        going_on = [tag for end, tag in tags if not self.closes(end)]
        whole = last
        if going_on and not form.get("stop_after_first"):
            before = sequence(one_of(going_on), *self.apart(form["separator"]))
            whole = sequence({"type": "star", "content": before}, last)
        return whole if form.get("at_least_one") else optional(whole)

    def _triggered(self, form: Format) -> Format:
        if all(len(self.split(trigger)) == 1 for trigger in form["triggers"]):
            tags = [
                tag | {"content": sequence(self._lowered(tag["content"]), *self.apart(tag["end"])), "end": ""}
                for tag in form["tags"]
            ]
            return form | {"tags": tags}
        text = self._lowered({"type": "any_text", "excludes": form.get("excludes", [])})
        call = one_of(list(map(self._lowered, form["tags"])))
        if form.get("stop_after_first"):
            return call if form.get("at_least_one") else sequence(text, optional(call))
        more: list[Format] = [text, {"type": "star", "content": sequence(call, text)}]
        return sequence(call, *more) if form.get("at_least_one") else sequence(*more)


def _ends(tag: Format) -> list[str]:
    return [tag["end"]] if isinstance(tag["end"], str) else tag["end"]


@final
@dataclass(frozen=True)
class AnswerReader:
    """Reads answers by their format, in which the name of a tool stands for its schema."""

    form: Format
    schemas: Mapping[str, Any]
    names: TokenNames = field(default_factory=TokenNames)

    def __call__(self, written: str) -> list[Piece]:
        """Return the pieces of an answer in turn; a ``ValueError`` where it is none."""
        pieces, end = self._read(self.form, written, 0, ())
        if end < len(written):
            raise ValueError(f"nothing of the format stands at character {end}: {written[end:]!r:.80}")
        return [piece for piece in pieces if piece]

    def _read(self, form: Format, text: str, at: int, until: Sequence[str]) -> tuple[list[Piece], int]:
        match form:
            case {"type": "const_string", "value": value}:
                return [], self._behind(value, text, at)
            case {"type": "regex", "pattern": pattern}:
                if (found := re.compile(pattern).match(text, at)) is None:
                    raise ValueError(f"{pattern} does not match at character {at}")
                return [], found.end()
            case {"type": "any_text"}:
                end = min((place for end in until if (place := text.find(end, at)) >= 0 and end), default=len(text))
                return [text[at:end]], end
            case {"type": "json_schema", "json_schema": str(name), **others}:
                arguments, end = self._arguments(name, others.get("style", "json"), text, at)
                return [WrittenCall(name, arguments)], end
            case {"type": "optional", "content": content}:
                try:
                    return self._read(content, text, at, until)
                except ValueError:
                    return [], at
            case {"type": "tag", "begin": begin, "content": content}:
                ends = [self.names.spelled(end) for end in _ends(form)]
                pieces, at = self._read(content, text, self._behind(begin, text, at), ends)
                for mark in ends:  # blanks may stand behind arguments
                    if (place := text.find(mark, at)) >= 0 and not text[at:place].strip():
                        return pieces, place + len(mark)
                raise ValueError(f"none of {ends} stands at character {at}")
            case {"type": "sequence", "elements": elements}:
                pieces = []
                for element in elements:
                    more, at = self._read(element, text, at, until)
                    pieces += more
                return pieces, at
        return self._in_turn(form, text, at)

    def _arguments(self, name: str, style: str, text: str, at: int) -> tuple[str, int]:
        if style == "json":
            end = json.JSONDecoder().raw_decode(text, at)[1]
            return text[at:end], end
        if style in QUOTES:
            return Quoted(self.names.spelled(QUOTES[style]), self.schemas[name]).read(text, at)
        return Tagged(style, self.schemas[name]).read(text, at)

    def _behind(self, value: str, text: str, at: int) -> int:
        value = self.names.spelled(value)
        if not text.startswith(value, at):
            raise ValueError(f"{value!r} does not stand at character {at}")
        return at + len(value)

    def _in_turn(self, form: Format, text: str, at: int) -> tuple[list[Piece], int]:
        """Read tags, between separators or between text up to triggers."""
        pieces: list[Piece] = []
        while True:
            if triggers := form.get("triggers"):
                between, at = self._read({"type": "any_text"}, text, at, list(map(self.names.spelled, triggers)))
                pieces += between
            elif pieces and not text.startswith(separator := self.names.spelled(form["separator"]), at):
                return pieces, at
            elif pieces:
                at += len(separator)
            begun = [tag for tag in form["tags"] if text.startswith(self.names.spelled(tag["begin"]), at)]
            if not begun:
                return pieces, at
            tag = max(begun, key=lambda tag: len(tag["begin"]))
            more, at = self._read(tag, text, at, ())
            pieces += more


def beginnings(form: Format, names: TokenNames) -> Iterator[tuple[str, Format]]:
    """Yield the name of each tool that an answer may begin with a call of, and the format up to what follows the name.

    The names in the format end with :data:`NAME_END`. Where arguments follow at once, any character does that is in no name.
    """
    match form:
        case {"type": "tag", "begin": begin, "content": content}:
            before, end, after = begin.partition(NAME_END)
            following = names.first(after)
            if not end:
                yield from ((name, sequence(const(before), behind)) for name, behind in beginnings(content, names))
            else:
                yield _tool_of(content), sequence(const(before + following), *([] if following else [NO_NAME]))
        case {"tags": tags}:
            for tag in tags:
                yield from beginnings(tag, names)
        case {"type": "sequence", "elements": elements}:
            for i, element in enumerate(elements):
                if found := list(beginnings(element, names)):
                    yield from ((name, sequence(*elements[:i], behind)) for name, behind in found)
                    return


NAME_END = "\0"
NO_NAME: Format = {"type": "regex", "pattern": "[^A-Za-z0-9_.-]"}


def _tool_of(form: Format) -> str:
    """Return the name of the tool whose arguments stand in a format."""
    if form["type"] == "json_schema":
        return str(form["json_schema"])
    return next(_tool_of(part) for part in form["elements"] if part["type"] in ("json_schema", "sequence"))


def pattern_of(form: Format, names: TokenNames) -> str:
    """Return the regular expression of a beginning, as texts show it: without special tokens."""
    match form:
        case {"type": "const_string", "value": value}:
            return re.escape(names.without(value))
        case {"type": "regex", "pattern": pattern}:
            return str(pattern)
    return "".join(pattern_of(element, names) for element in form["elements"])
