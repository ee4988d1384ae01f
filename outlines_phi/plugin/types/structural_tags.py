"""Structural tags: documents in xgrammar's form, of text between which tags stand, as output types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

from outlines.types.dsl import (
    Alternatives,
    KleenePlus,
    KleeneStar,
    Optional,
    QuantifyBetween,
    QuantifyMaximum,
    QuantifyMinimum,
    String,
    Term,
)
from outlines.types.dsl import Sequence as InTurn

from ...errors import GrammarError, OutlinesPhiError, UnsupportedError
from ...guides.json_schema.values import Path, pointer_to
from ..mistakes import too_deep
from .output_types import FreeText, Special, Written
from .parameter_tags import STYLES, json_value, parameters

FIELDS = {
    "const_string": ("value",),
    "json_schema": ("json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"),
    "qwen_xml_parameter": ("json_schema",),
    "any_text": ("excludes", "max_tokens", "max_chars"),
    "token": ("token",),
    "exclude_token": ("exclude_tokens",),
    "any_tokens": ("exclude_tokens", "max_tokens"),
    "grammar": ("grammar",),
    "regex": ("pattern",),
    "sequence": ("elements",),
    "or": ("elements",),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "tags", "at_least_one", "stop_after_first", "excludes"),
    "token_triggered_tags": ("trigger_tokens", "tags", "exclude_tokens", "at_least_one", "stop_after_first"),
    "tags_with_separator": ("tags", "separator", "at_least_one", "stop_after_first"),
    "optional": ("content",),
    "plus": ("content",),
    "star": ("content",),
    "repeat": ("min", "max", "content"),
    "dispatch": ("rules", "loop", "excludes"),
    "token_dispatch": ("rules", "loop", "exclude_tokens"),
}
"""The kinds of formats, and the fields of each beside its ``type``."""


def structural_tag(document: Any) -> Term:
    """Read a structural tag, as xgrammar writes it: tags, text around them, schemas, regular expressions and grammars inside.

    The term is an output type like any other, and a part of others. Text in which a tag may begin holds no trigger but those that
    tags begin with; text that a tag ends holds none of the tag's ends, so it is the text up to the first one.

    Parameters
    ----------
    document
        A dict, its text in JSON, or what has a ``model_dump()`` of it, such as ``xgrammar.StructuralTag``:
        ``{"type": "structural_tag", "format": {...}}``, or the older ``{"structures": [...], "triggers": [...]}``.

    Returns
    -------
    Term
        The output type.

    Raises
    ------
    GrammarError
        The document is not JSON, or no structural tag; with the JSON pointer of what is not.
    UnsupportedError
        It asks for what cannot be honoured; with its JSON pointer.
    """
    given = document.model_dump() if hasattr(document, "model_dump") else document
    try:
        match json.loads(given) if isinstance(given, str) else given:
            case {"type": "structural_tag", "format": found, **others} if not others:
                return _Format.at(found, ("format",)).term
            case {"structures": [*structures], "triggers": triggers, **others} if not others.keys() - {"type"}:
                tags = [_of_structure(one, place) for place, one in enumerate(structures)]
                return _Format.at({"type": "triggered_tags", "triggers": triggers, "tags": tags}, ()).term
    except json.JSONDecodeError as error:
        raise GrammarError(f"The structural tag is not JSON: {error.msg}.", error.doc, error.pos) from error
    except RecursionError:
        raise too_deep("structural tag") from None
    raise GrammarError(
        'Give {"type": "structural_tag", "format": {...}}, or {"structures": [...], "triggers": [...]}: '
        f"{given!r:.80} is no structural tag."
    )


def _of_structure(given: Any, place: int) -> dict[str, Any]:
    """Return the tag of the older form."""
    match given:
        case {"begin": begin, "schema": schema, "end": end, **others} if not others:
            content = {"type": "json_schema", "json_schema": json.loads(schema) if isinstance(schema, str) else schema}
            return {"type": "tag", "begin": begin, "content": content, "end": end}
    raise GrammarError(
        f'Give {{"begin": ..., "schema": ..., "end": ...}} at #/structures/{place}. It has {given!r:.80}.'
    )


@final
@dataclass(frozen=True)
class _Format:
    """A format and its path in the document; and the ends of the tag around it, which no free text of it holds."""

    fields: Mapping[str, Any]
    path: Path
    ends: tuple[str, ...]

    @classmethod
    def at(cls, given: Any, path: Path, ends: tuple[str, ...] = ()) -> _Format:
        """Return the format at a path; :class:`GrammarError` for what is none."""
        kind = given.get("type") if isinstance(given, Mapping) else None
        if not isinstance(kind, str) or kind not in FIELDS:
            raise GrammarError(
                f"Give a format as {{'type': ..., ...}} at {pointer_to(path)}, of one of the types {', '.join(FIELDS)}: "
                f"{given!r:.80} was given."
            )
        for name in given:
            if name not in ("type", *FIELDS[kind]):
                raise GrammarError(
                    f"Leave out what stands at {pointer_to((*path, name))}: {kind} has {', '.join(FIELDS[kind])}."
                )
        return cls(given, path, ends)

    @property
    def kind(self) -> str:
        return str(self.fields["type"])

    def wrong(self, name: str, expected: str) -> NoReturn:
        """Refuse the value of a field."""
        given = repr(self.fields[name]) if name in self.fields else "nothing"
        raise GrammarError(
            f"Give {expected} at {pointer_to((*self.path, name))}, a field of {self.kind}. It has {given:.80}."
        )

    def refuse(self, name: str, remedy: str, why: str) -> NoReturn:
        raise UnsupportedError(f"{remedy}. At {pointer_to((*self.path, name))} {why}.")

    def get(self, name: str, fits: Callable[[Any], bool], expected: str, default: Any = None) -> Any:
        """Return the value of a field, which ``fits``; ``default`` where there is none."""
        value = self.fields.get(name, default)
        return value if fits(value) else self.wrong(name, expected)

    def text(self, name: str) -> str:
        return str(self.get(name, lambda value: isinstance(value, str), "a string"))

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.get(name, lambda value: isinstance(value, bool), "true or false", default))

    def count(self, name: str, least: int = 0) -> int | None:
        found: int | None = self.get(
            name, lambda value: value is None or (type(value) is int and value >= least), f"an integer from {least} on"
        )
        return found

    def listed(self, name: str, fits: Callable[[Any], bool], expected: str) -> tuple[Any, ...]:
        """Return the items of a list, each of which ``fits``."""
        found = self.get(name, lambda value: isinstance(value, (list, tuple)) and all(map(fits, value)), expected, ())
        return tuple(found)

    def texts(self, name: str) -> tuple[str, ...]:
        return self.listed(name, _is_name, "a list of strings of at least one character each")

    def tokens(self, name: str) -> tuple[str | int, ...]:
        return self.listed(name, _is_token, "a list of names or ids of tokens")

    def rules(self, fits: Callable[[Any], bool], expected: str) -> list[tuple[Any, Term]]:
        """Return the rules, one at least, of what ``fits``, each with the term of its format."""
        pairs = self.listed(
            "rules", lambda rule: isinstance(rule, (list, tuple)) and len(rule) == 2 and fits(rule[0]), expected
        )
        if not pairs:
            self.wrong("rules", expected)
        return [
            (rule[0], _Format.at(rule[1], (*self.path, "rules", n, 1), self.ends).term) for n, rule in enumerate(pairs)
        ]

    def inner(self) -> Term:
        """Return the term of the content."""
        return _Format.at(self.fields.get("content"), (*self.path, "content"), self.ends).term

    def formats(self, name: str, kind: str = "") -> list[_Format]:
        """Return the formats that are listed in a field, one at least, of one kind or of any."""
        value = self.listed(name, lambda one: True, "a list of formats")
        if not value:
            self.wrong(name, "one format at least")
        found = [_Format.at(one, (*self.path, name, place), self.ends) for place, one in enumerate(value)]
        if kind and any(one.kind != kind for one in found):
            self.wrong(name, f"formats of type {kind}")
        return found

    @property
    def term(self) -> Term:
        """The texts of the format."""
        match self.kind:
            case "const_string":
                return String(self.text("value"))
            case "json_schema" | "qwen_xml_parameter":
                return self._json_schema()
            case "any_text":
                return self._any_text()
            case "token":
                return Special(self.get("token", _is_token, "the name or the id of a token"))
            case "any_tokens":
                self._refuse_max_tokens()
                return InTurn(self._text_of_tokens())
            case "grammar":
                return self._written("gbnf", self.text("grammar"))
            case "regex":
                return self._written("ecma", f"(?s:{self.text('pattern')})")
            case "sequence":
                return InTurn([one.term for one in self.formats("elements")])
            case "or":
                return _one_of([one.term for one in self.formats("elements")])
            case "tag":
                return self.tag(self._bound("begin"))
            case "triggered_tags":
                return self._triggered_tags()
            case "token_triggered_tags":
                return self._token_triggered_tags()
            case "tags_with_separator":
                return self._tags_with_separator()
            case "optional":
                return Optional(self.inner())
            case "plus":
                return KleenePlus(self.inner())
            case "star":
                return KleeneStar(self.inner())
            case "repeat":
                return self._repeated()
            case "dispatch":
                rules = self.rules(_is_name, "pairs of a string of at least one character and a format")
                return self._dispatched("rules", rules, loop=self.flag("loop", True))
            case "token_dispatch":
                rules = self.rules(_is_token, "pairs of a name or an id of a token and a format")
                ways: list[Term] = [InTurn([Special(token), content]) for token, content in rules]
                return self._among_text(self._text_of_tokens(), ways, loop=self.flag("loop", True))
        raise UnsupportedError(
            f"Give a regular expression, or any_text, in the place of {pointer_to(self.path)}. A format says what texts are, "
            "however tokens write them, and exclude_token asks for one token of any text."
        )

    def _written(self, notation: str, text: str) -> Term:
        try:
            return Written((notation, text)).checked()
        except OutlinesPhiError as error:
            raise type(error)(f"Correct what stands at {pointer_to(self.path)}. {error}") from error

    def _json_schema(self) -> Term:
        schema = self.get("json_schema", lambda value: isinstance(value, (bool, Mapping)), "a JSON schema")
        plain, known = "json" if self.kind == "json_schema" else "qwen_xml", ("json", *STYLES)
        style = self.get("style", lambda value: value in known, f"one of {', '.join(known)}", plain)
        if self.flag("any_order"):
            self.refuse("any_order", "Give false, or leave it out", "members in any order are asked for")
        most, excludes = self.count("max_whitespace_cnt"), self.texts("excludes")
        blanks = r"[ \n\r\t]*" if most is None else rf"[ \n\r\t]{{0,{most}}}"
        path = (*self.path, "json_schema")
        if style != "json":
            return parameters(schema, path, STYLES[style], blanks, excludes)
        if excludes:
            self.refuse(
                "excludes", "Give a pattern to the strings of the schema", "strings in all of them are excluded"
            )
        return json_value(schema, path, blanks)

    def _any_text(self) -> Term:
        self._refuse_max_tokens()
        without, most = (*self.texts("excludes"), *self.ends), self.count("max_chars")
        return FreeText(without) if most is None else Written(("string", json.dumps({"maxLength": most}), without))

    def _refuse_max_tokens(self) -> None:
        if self.count("max_tokens") is not None:
            self.refuse(
                "max_tokens",
                "Give max_chars, or the max_new_tokens of the call",
                "tokens are counted, and a format says what texts are, however tokens write them",
            )

    def _bound(self, name: str) -> list[Term]:
        """Return the beginning or the ends of a tag: any of several strings, or a token."""
        value = self.fields.get(name)
        match value:
            case {"type": "token", "token": token, **others} if _is_token(token) and not others:
                return [Special(token)]
            case str():
                return [String(value)]
            case [str(), *_] if name == "end" and all(isinstance(one, str) for one in value):
                return [String(one) for one in value]
        self.wrong(name, "a string or a token" + (" or a list of strings" if name == "end" else ""))

    def tag(self, begin: Sequence[Term]) -> Term:
        """Return the texts of a tag that begins with ``begin``, the rest of what it is known by."""
        ends = self._bound("end")
        strings = tuple(one.value for one in ends if isinstance(one, String) and one.value)
        content = _Format.at(self.fields.get("content"), (*self.path, "content"), strings)
        if content.kind == "any_text" and _overlap(strings) and len(strings) == len(ends):
            content._refuse_max_tokens()
            if content.count("max_chars") is None:
                kept = [text for text in content.texts("excludes") if not any(end in text for end in strings)]
                return InTurn([*begin, FreeText(tuple(kept), strings)])
        return InTurn([*begin, content.term, _one_of(ends)])

    def _triggered_tags(self) -> Term:
        triggers, tags = self.texts("triggers"), self.formats("tags", "tag")
        whole, after = list[Term](), dict[str, list[Term]]((trigger, []) for trigger in triggers)
        for tag in tags:
            begin = tag.text("begin")
            known = [trigger for trigger in after if begin.startswith(trigger)]
            if len(known) != 1:
                tag.wrong(
                    "begin", f"a string that begins with exactly one of the triggers {', '.join(map(repr, triggers))}"
                )
            after[known[0]].append(tag.tag([String(begin[len(known[0]) :])]))
            whole.append(tag.tag([String(begin)]))
        if not all(after.values()):
            self.wrong("triggers", "strings of which each begins a tag")
        rules = [(trigger, _one_of(ways)) for trigger, ways in after.items()]
        return self._first(whole, self._dispatched("triggers", rules, loop=not self.flag("stop_after_first")))

    def _token_triggered_tags(self) -> Term:
        triggers, tags = self.tokens("trigger_tokens"), self.formats("tags", "tag")
        for tag in tags:
            begin = tag.fields.get("begin")
            if not isinstance(begin, Mapping) or begin.get("token") not in triggers:
                tag.wrong("begin", f"a token that is one of the triggers {', '.join(map(repr, triggers))}")
        whole = [tag.term for tag in tags]
        loop = not self.flag("stop_after_first")
        return self._first(whole, self._among_text(self._text_of_tokens(), whole, loop=loop))

    def _first(self, tags: list[Term], among_text: Term) -> Term:
        """Return tags among text, of which the first one is asked for or not."""
        if not self.flag("at_least_one"):
            return among_text
        return _one_of(tags) if self.flag("stop_after_first") else InTurn([_one_of(tags), among_text])

    def _text_of_tokens(self) -> list[Term]:
        """Return text, which holds no special token, and the mention of those that it is said to exclude."""
        return [FreeText(without=self.ends), *map(_never, self.tokens("exclude_tokens"))]

    def _dispatched(self, name: str, rules: Sequence[tuple[str, Term]], *, loop: bool) -> Term:
        """Return text in which each trigger is followed by its term: the first trigger to end counts, as in Aho and Corasick's."""
        without = (*self.texts("excludes"), *self.ends)
        contents: dict[str, list[Term]] = {}
        for trigger, content in rules:
            contents.setdefault(trigger, []).append(content)
        for trigger in contents:
            inside = next((one for one in (*contents, *without) if one != trigger and one in trigger), None)
            if inside is not None or trigger in without:
                self.refuse(
                    name,
                    "Give triggers that hold no other one, no excluded string, and no end of the tag around them",
                    f"the text is over before {trigger!r} is written, at {inside or trigger!r}",
                )
        ways = [
            InTurn([FreeText((*without, *(one for one in contents if one != trigger)), (trigger,)), _one_of(content)])
            for trigger, content in contents.items()
        ]
        plain = FreeText((*without, *contents))
        return InTurn([KleeneStar(_one_of(ways)), plain]) if loop else _one_of([plain, *ways])

    def _among_text(self, text: list[Term], tags: list[Term], *, loop: bool) -> Term:
        """Return text in which tags stand that special tokens begin."""
        call = InTurn([*text, _one_of(tags)])
        return InTurn([KleeneStar(call), *text]) if loop else _one_of([InTurn(text), call])

    def _tags_with_separator(self) -> Term:
        tags, separator = _one_of([tag.term for tag in self.formats("tags", "tag")]), self.text("separator")
        if self.flag("stop_after_first"):
            every = tags
        elif separator:
            every = InTurn([tags, KleeneStar(InTurn([String(separator), tags]))])
        else:
            every = KleenePlus(tags)
        return every if self.flag("at_least_one") else Optional(every)

    def _repeated(self) -> Term:
        least, most = self.count("min"), self.count("max", -1)
        if least is None or most is None or -1 < most < least:
            self.wrong("min" if least is None else "max", "an integer, min at most max, and -1 for no bound")
        if most == -1:
            return QuantifyMinimum(self.inner(), least)
        return QuantifyBetween(self.inner(), least, most)


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and text != ""


def _is_token(token: Any) -> bool:
    return _is_name(token) or (type(token) is int and token >= 0)


def _never(token: str | int) -> Term:
    """Mention a token that stands nowhere: one that is no special token is refused with the vocabulary."""
    return QuantifyMaximum(Special(token), 0)


def _one_of(terms: Sequence[Term]) -> Term:
    return terms[0] if len(terms) == 1 else Alternatives(list(terms))


def _overlap(ends: Iterable[str]) -> bool:
    """Return True if an occurrence of one string may begin inside of another one's: the first to end is not the first to begin."""
    ends = tuple(ends)
    return any(
        first[at:].startswith(second[: len(first) - at])
        for first in ends
        for second in ends
        for at in range(1, len(first))
    )
