"""Structural tags: documents in xgrammar's form, of text between which tags stand, as output types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple, NoReturn, TypeAlias, final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import extend
from outlines.types.dsl import (
    Alternatives,
    KleenePlus,
    KleeneStar,
    Optional,
    QuantifyBetween,
    QuantifyMaximum,
    QuantifyMinimum,
    Term,
)
from outlines.types.dsl import Sequence as InTurn

from ...errors import GrammarError, UnsupportedError
from ...guides.json_schema.formula import Path, pointer_to
from ..mistakes import too_deep
from .argument_styles import STYLES, arguments, checked, json_value
from .output_types import FreeText, Special, Written
from .readers import Captured, TokenNames, one_of

_LEFT_OUT: Mapping[str, Any] = {
    **dict.fromkeys(("excludes", "exclude_tokens"), ()),
    **dict.fromkeys(("max_chars", "max_tokens", "max_whitespace_cnt")),
    **dict.fromkeys(("at_least_one", "stop_after_first", "any_order"), False),
    "loop": True,
    "style": "json",
}
"""The values of fields where they are left out; others may not be."""


_IS_LIST = Draft202012Validator.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, (list, tuple)))
_Validator = extend(Draft202012Validator, type_checker=_IS_LIST)


class _Kind(NamedTuple):
    """A kind of formats: the JSON schema of its fields, and its texts."""

    schema: Mapping[str, Any]
    term: Callable[[_Format], Term]


def _kind(term: Callable[[_Format], Term], **known: Any) -> _Kind:
    fields = {"type": True, **known}
    needed = [name for name in known if name not in _LEFT_OUT]
    return _Kind({"properties": fields, "required": needed, "additionalProperties": False}, term)


_TEXT = {"type": "string"}
_TRUTH = {"type": "boolean"}
_MOST = {"type": ["integer", "null"], "minimum": 0}
_NAME = {"type": "string", "minLength": 1}
_TOKEN = {"type": ["string", "integer"], "minLength": 1, "minimum": 0}
_STRINGS, _TOKENS = {"type": "array", "items": _NAME}, {"type": "array", "items": _TOKEN}
_SCHEMA = {"type": ["boolean", "object", "string"]}
_FORMATS = {"type": "array", "minItems": 1}
_TAGS = {**_FORMATS, "items": {"type": "object", "properties": {"type": {"const": "tag"}}, "required": ["type"]}}
_NAME_RULES, _TOKEN_RULES = (
    {**_FORMATS, "items": {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [one]}}
    for one in (_NAME, _TOKEN)
)
_BEGIN = {
    "type": ["string", "object"],
    "properties": {"type": {"const": "token"}, "token": _TOKEN},
    "required": ["type", "token"],
    "additionalProperties": False,
}
_END = {**_BEGIN, "type": ["string", "object", "array"], "items": _TEXT, "minItems": 1}
_FIRST = {"at_least_one": _TRUTH, "stop_after_first": _TRUTH}

KINDS: Mapping[str, _Kind] = {
    "const_string": _kind(lambda form: InTurn(form.names.terms(form["value"])), value=_TEXT),
    "json_schema": _kind(
        lambda form: form.json_schema(),
        json_schema=_SCHEMA,
        style={"enum": ["json", *STYLES]},
        any_order=_TRUTH,
        max_whitespace_cnt=_MOST,
        excludes=_STRINGS,
    ),
    "qwen_xml_parameter": _kind(
        lambda form: replace(form, fields={**form.fields, "style": "qwen_xml"}).json_schema(), json_schema=_SCHEMA
    ),
    "any_text": _kind(lambda form: form.any_text(), excludes=_STRINGS, max_tokens=_MOST, max_chars=_MOST),
    "token": _kind(lambda form: Special(form["token"]), token=_TOKEN),
    "exclude_token": _kind(lambda form: form.exclude_token(), exclude_tokens=_TOKENS),
    "any_tokens": _kind(lambda form: form.text_of_tokens(), exclude_tokens=_TOKENS, max_tokens=_MOST),
    "grammar": _kind(lambda form: checked(form.path, "gbnf", form["grammar"]), grammar=_TEXT),
    "regex": _kind(lambda form: checked(form.path, "ecma", f"(?s:{form['pattern']})"), pattern=_TEXT),
    "sequence": _kind(lambda form: InTurn(form.terms("elements")), elements=_FORMATS),
    "or": _kind(lambda form: one_of(form.terms("elements")), elements=_FORMATS),
    "tag": _kind(lambda form: form.tag(form.bounds("end")), begin=_BEGIN, content=True, end=_END),
    "triggered_tags": _kind(
        lambda form: form.triggered_tags(), triggers=_STRINGS, tags=_TAGS, excludes=_STRINGS, **_FIRST
    ),
    "token_triggered_tags": _kind(
        lambda form: form.token_triggered_tags(), trigger_tokens=_TOKENS, tags=_TAGS, exclude_tokens=_TOKENS, **_FIRST
    ),
    "tags_with_separator": _kind(lambda form: form.tags_with_separator(), tags=_TAGS, separator=_TEXT, **_FIRST),
    "optional": _kind(lambda form: Optional(form.inner("content").term), content=True),
    "plus": _kind(lambda form: KleenePlus(form.inner("content").term), content=True),
    "star": _kind(lambda form: KleeneStar(form.inner("content").term), content=True),
    "repeat": _kind(
        lambda form: form.repeat(),
        min={**_MOST, "type": "integer"},
        max={"type": "integer", "minimum": -1},
        content=True,
    ),
    "dispatch": _kind(
        lambda form: form.dispatched("rules", form.rules()), rules=_NAME_RULES, loop=_TRUTH, excludes=_STRINGS
    ),
    "token_dispatch": _kind(
        lambda form: form.among_text(form.text_of_tokens(), [InTurn([Special(v), then]) for v, then in form.rules()]),
        rules=_TOKEN_RULES,
        loop=_TRUTH,
        exclude_tokens=_TOKENS,
    ),
}
"""The kinds of formats, by their names."""

Bound: TypeAlias = str | Special
"""A string or a token at the side of a tag."""


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
    given = document.model_dump(mode="json") if hasattr(document, "model_dump") else document
    try:
        match json.loads(given) if isinstance(given, str) else given:
            case {"type": "structural_tag", "format": found, **others} if not others:
                return answers(found, {}, TokenNames())
            case {"structures": [*structures], "triggers": triggers, **others} if not others.keys() - {"type"}:
                tags = [_of_structure(one, place) for place, one in enumerate(structures)]
                form = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
                return _Format(form, (), {}, TokenNames()).read.term
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


def answers(form: Any, schemas: Mapping[str, Any], names: TokenNames) -> Term:
    """Return the term of a format, which captures text and calls: pairs of the name of a tool and its arguments as JSON.

    The names of tools stand for their ``schemas``, and those of special tokens for these.
    """
    return _Format(form, ("format",), schemas, names).read.term


@final
@dataclass(frozen=True)
class _Format:
    """A format and its path in the document; and the ends of the tag around it, which no free text of it holds."""

    fields: Any
    path: Path
    schemas: Mapping[str, Any]
    names: TokenNames
    ends: tuple[str, ...] = ()

    @property
    def read(self) -> _Format:
        """The format, every field with its value; :class:`GrammarError` for what is none."""
        kind = self.fields.get("type") if isinstance(self.fields, Mapping) else None
        if not isinstance(kind, str) or kind not in KINDS:
            raise GrammarError(
                f"Give a format as {{'type': ..., ...}} at {pointer_to(self.path)}, of one of the types {', '.join(KINDS)}: "
                f"{self.fields!r:.80} was given."
            )
        if (error := best_match(_Validator(KINDS[kind].schema).iter_errors(self.fields))) is not None:
            raise self.wrong(*error.absolute_path, why=error.message)
        if self.fields.get("max_tokens") is not None:
            raise self.refused(
                "max_tokens",
                "Give max_chars, or the max_new_tokens of the call",
                "tokens are counted, and a format says what texts are, however tokens write them",
            )
        return replace(self, fields={**_LEFT_OUT, **self.fields})

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def term(self) -> Term:
        """The texts of the format."""
        return KINDS[self["type"]].term(self)

    def wrong(self, *steps: str | int, why: str) -> GrammarError:
        """Return the error of a field."""
        return GrammarError(f"Correct what stands at {pointer_to((*self.path, *steps))}: {why:.300}.")

    def refused(self, name: str, remedy: str, why: str) -> UnsupportedError:
        """Return the error of a field that cannot be honoured."""
        return UnsupportedError(f"{remedy}. At {pointer_to((*self.path, name))} {why}.")

    def inner(self, *steps: str | int, **others: Any) -> _Format:
        """Return a format in this one."""
        return replace(self, fields=reduce(getitem, steps, self.fields), path=(*self.path, *steps), **others).read

    def listed(self, name: str) -> list[_Format]:
        """Return the formats in a field."""
        return [self.inner(name, place) for place in range(len(self[name]))]

    def terms(self, name: str) -> list[Term]:
        """Return the terms of the formats in a field."""
        return [one.term for one in self.listed(name)]

    def rules(self) -> list[tuple[Any, Term]]:
        """Return the beginning of each rule, with the term of its format."""
        return [(rule[0], self.inner("rules", n, 1).term) for n, rule in enumerate(self["rules"])]

    def exclude_token(self) -> NoReturn:
        raise UnsupportedError(
            f"Give a regular expression, or any_text, in the place of {pointer_to(self.path)}. A format says what texts are, "
            "however tokens write them, and exclude_token asks for one token of any text."
        )

    def json_schema(self) -> Term:
        schema, most, path = self["json_schema"], self["max_whitespace_cnt"], (*self.path, "json_schema")
        if isinstance(schema, str) and schema in self.schemas:
            found = replace(self, fields={**self.fields, "json_schema": self.schemas[schema]}).json_schema()
            return Captured([found], lambda text, found: (schema, json.dumps(found[0]) if found else text))
        if isinstance(schema, str):
            raise self.wrong("json_schema", why="no JSON schema is a string")
        if self["any_order"]:
            raise self.refused("any_order", "Give false, or leave it out", "members in any order are asked for")
        blanks = r"[ \n\r\t]*" if most is None else rf"[ \n\r\t]{{0,{most}}}"
        in_json = None if self.schemas else blanks  # in calls, those that writers of JSON put
        if self["style"] != "json":
            return arguments(schema, STYLES[self["style"]], path, (blanks, in_json), self["excludes"], self.names)
        if self["excludes"]:
            raise self.refused(
                "excludes", "Give a pattern to the strings of the schema", "strings in all of them are excluded"
            )
        return json_value(schema, path, in_json)

    def any_text(self) -> Term:
        without, most = self.without(), self["max_chars"]
        return FreeText(without) if most is None else Written(("string", json.dumps({"maxLength": most}), without))

    def without(self) -> tuple[str, ...]:
        """Return the strings that no text holds; special tokens never stand in one."""
        return (*filter(self.names.is_text, self["excludes"]), *self.ends)

    def repeat(self) -> Term:
        least, most = self["min"], self["max"]
        if -1 < most < least:
            raise self.wrong("max", why="min is above it")
        content = self.inner("content").term
        return QuantifyMinimum(content, least) if most == -1 else QuantifyBetween(content, least, most)

    def bounds(self, name: str) -> list[Bound]:
        """Return the beginning or the ends of a tag: any of several strings, or a token."""
        found = self[name]
        return [Special(found["token"])] if isinstance(found, Mapping) else [found] if isinstance(found, str) else found

    def tag(self, ends: list[Bound]) -> Term:
        """Return the texts of a tag, with some of its ends alone."""
        return InTurn([*self.side(self.bounds("begin")[0]), *self.behind(ends)])

    def side(self, bound: Bound) -> list[Term]:
        return self.names.terms(bound) if isinstance(bound, str) else [bound]

    def behind(self, ends: list[Bound]) -> list[Term]:
        """Return the terms behind the beginning of a tag: free text in it is over where one of the ends first is."""
        strings = tuple(one for one in ends if isinstance(one, str) and one and self.names.is_text(one))
        content, overlapping = self.inner("content", ends=strings), strings == (*ends,) and _overlap(strings)
        match content.fields:
            case {"type": "any_text", "max_chars": None, "excludes": excludes} if overlapping:
                return [FreeText(tuple(text for text in excludes if not any(end in text for end in strings)), strings)]
        return [content.term, one_of([InTurn(self.side(end)) for end in ends])]

    def triggered_tags(self) -> Term:
        triggers, whole = self["triggers"], list[Term]()
        after = dict[str, list[Term]]((trigger, []) for trigger in triggers)
        for tag in self.listed("tags"):
            begin, rest = tag["begin"], tag.behind(tag.bounds("end"))
            known = [trigger for trigger in after if isinstance(begin, str) and begin.startswith(trigger)]
            if len(known) != 1:
                raise tag.wrong(
                    "begin", why=f"it begins with exactly one of the triggers {', '.join(map(repr, triggers))}"
                )
            after[known[0]].append(InTurn([*self.names.terms(begin[len(known[0]) :]), *rest]))
            whole.append(InTurn([*self.names.terms(begin), *rest]))
        if not all(after.values()):
            raise self.wrong("triggers", why="each begins a tag")
        if all(map(self.names.is_text, triggers)):
            return self.dispatched("triggers", [(trigger, one_of(ways)) for trigger, ways in after.items()], whole)
        return self.among_text(FreeText(self.without()), whole)

    def token_triggered_tags(self) -> Term:
        triggers = self["trigger_tokens"]
        for tag in self.listed("tags"):
            if not isinstance(tag["begin"], Mapping) or tag["begin"]["token"] not in triggers:
                raise tag.wrong("begin", why=f"it is one of the trigger tokens {', '.join(map(repr, triggers))}")
        return self.among_text(self.text_of_tokens(), self.terms("tags"))

    def text_of_tokens(self) -> Term:
        """Return text, which holds no special token, and the mention of those that it is said to exclude."""
        never = [QuantifyMaximum(Special(token), 0) for token in self["exclude_tokens"]]  # refused with the vocabulary
        return InTurn([FreeText(without=self.ends), *never])

    def dispatched(self, name: str, rules: Sequence[tuple[str, Term]], tags: Sequence[Term] = ()) -> Term:
        """Return text in which each trigger is followed by its term: the first trigger to end counts, as in Aho and Corasick's."""
        without = self.without()
        contents: dict[str, list[Term]] = {}
        for trigger, content in rules:
            contents.setdefault(trigger, []).append(content)
        for trigger in contents:
            inside = next((one for one in (*contents, *without) if one != trigger and one in trigger), None)
            if inside is not None or trigger in without:
                raise self.refused(
                    name,
                    "Give triggers that hold no other one, no excluded string, and no end of the tag around them",
                    f"the text is over before {trigger!r} is written, at {inside or trigger!r}",
                )
        ways = [
            InTurn([FreeText((*without, *(one for one in contents if one != trigger)), (trigger,)), one_of(content)])
            for trigger, content in contents.items()
        ]
        return self._looped(ways, FreeText((*without, *contents)), tags)

    def among_text(self, text: Term, tags: Sequence[Term]) -> Term:
        """Return text in which tags stand that special tokens begin."""
        return self._looped([InTurn([text, one_of(tags)])], text, tags)

    def _looped(self, ways: list[Term], text: Term, tags: Sequence[Term]) -> Term:
        """Return any number of ``ways`` or one at most, and text; one of ``tags`` first where one is asked for."""
        loop = self["loop"] and not self["stop_after_first"]
        found = InTurn([KleeneStar(one_of(ways)), text]) if loop else one_of([*ways, text])
        if not self["at_least_one"]:
            return found
        return InTurn([one_of(tags), found]) if loop else one_of(tags)

    def tags_with_separator(self) -> Term:
        """Return tags one behind the other: nothing follows one that ends the whole text."""
        tags, separator = self.listed("tags"), self.names.terms(self["separator"])
        is_last = self.names.ends_text
        ends = [[end for end in tag.bounds("end") if isinstance(end, Special) or not is_last(end)] for tag in tags]
        every = last = one_of([tag.term for tag in tags])
        if not self["stop_after_first"]:
            every = InTurn([last, KleeneStar(InTurn([*separator, last]))])
            if ends != [tag.bounds("end") for tag in tags]:
                going_on = [tag.tag(left) for tag, left in zip(tags, ends, strict=True) if left]
                every = InTurn([KleeneStar(InTurn([Alternatives(going_on), *separator])), last]) if going_on else last
        return every if self["at_least_one"] else Optional(every)


def _overlap(ends: Sequence[str]) -> bool:
    """Return True if an occurrence of one string may begin inside of another one's: the first to end is not the first to begin."""
    return any(
        first[at:].startswith(second[: len(first) - at])
        for first in ends
        for second in ends
        for at in range(1, len(first))
    )
