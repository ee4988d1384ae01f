"""Outlines output types, read by Outlines' own front end."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, groupby, repeat
from typing import Any, TypeAlias, final, get_args

from jsonschema.exceptions import SchemaError
from outlines.grammars import json as ANY_JSON
from outlines.types.dsl import (
    CFG,
    Alternatives,
    Choice,
    JsonSchema,
    KleenePlus,
    KleeneStar,
    Optional,
    Regex,
    Sequence,
    String,
    Term,
    python_types_to_terms,
    to_regex,
)

from ...automata.automaton import ByteAutomaton, joint_classes
from ...automata.byte_machine import ByteMachine, Joined
from ...automata.stops import Scope
from ...errors import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError
from ...format_limits import current_limits
from ...guides.fsm import FSMGuide
from ...guides.grammar.cfg_guide import LexedMachine
from ...guides.grammar.grammar import Grammar
from ...guides.grammar.notation.reader import read_grammar
from ...guides.guidance.guidance_grammar import GuidanceGrammar, read
from ...guides.guidance.notation import HEADER
from ...guides.guide import Guide
from ...guides.json_schema.formula import Path, pointer_to
from ...guides.json_schema.json_guide import JSONGuide, warn_of_keywords
from ...guides.json_schema.kinds import Kinds
from ...guides.json_schema.machine.machine import Machine
from ...guides.json_schema.reading.schema import Schema, Template
from ...guides.machine_guide import MachineGuide
from ...guides.thinking import ThoughtFormat
from ...numerics.cache import kept
from ...numerics.checks import check, check_counts, is_count, is_text
from ...regex.patterns import LARGER, compile_regex, free_text
from ...regex.spelling import spelled, utf8
from ...regex.syntax_tree import ECMA
from ...vocabulary.special_tokens import references
from ...vocabulary.vocabulary import Vocabulary
from ..mistakes import no_format, too_deep
from .pydantic_schemas import PythonSchema, SchemaText, UncheckedSchema, term_of

Part: TypeAlias = str | tuple[Any, ...]
"""A regular expression, or what is none, in the form of the wire: ``("json", schema, whitespace_pattern, plain)``, the texts of a
schema, where the integers of a Python type (``plain``) have no fraction; ``("special", token)``, ``("grammar", text)`` in Lark's
dialect; ``("text", without, end)``, a :class:`FreeText`; ``("then", *parts)``, ``("or", *parts)``,
``("times", part, least, most)``; and in other notations ``("gbnf", text)``, ``("ecma", pattern)``, a regular expression of
ECMA-262, and ``("string", schema, without)``, the strings of a schema, unquoted, without some inside. A ``whitespace_pattern`` of
``None`` is what writers of JSON put, ``most`` of ``None`` no bound.
"""


@final
@dataclass
class Special(Term):
    """A special token of the tokenizer, as a part of an output type: ``Special("</think>") + Regex("[0-9]+")``.

    It is that token, and never its name in other tokens; its name in other tokens is never it. Texts of draws show of it what the
    tokenizer's decoder does without special tokens, mostly nothing; ``token_ids`` have it.

    Parameters
    ----------
    token
        The name, or the id.
    """

    token: str | int

    def __post_init__(self) -> None:
        if not is_text(self.token) and not is_count(self.token):
            raise UnsupportedError(
                f"Give the name of a special token, or its id. Special({self.token!r:.80}) was given."
            )

    def _display_node(self) -> str:
        return f"Special({self.token!r})"

    @property
    def written(self) -> str:
        """The token as grammars write it."""
        return self.token if isinstance(self.token, str) else f"<[{self.token}]>"


@final
@dataclass
class FreeText(Term):
    """Any text, in which some strings do not stand, or which the first of some strings ends: a part of an output type.

    ``FreeText(end=["</think>"]) + JsonSchema(schema)`` is free text up to and with ``</think>``, in whatever tokens, and JSON
    behind it. Special tokens are no text.

    Parameters
    ----------
    without
        Strings that the text does not hold.
    end
        Strings of which the first ends the text, as its last characters; none: the text ends anywhere.
    """

    without: tuple[str, ...] = ()
    end: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("without", "end"):
            texts = getattr(self, name)
            if isinstance(texts, str) or not all(isinstance(text, str) and text for text in texts):
                raise UnsupportedError(
                    f"Give a sequence of strings of at least one character each. FreeText({name}={texts!r:.80}) was given."
                )
            setattr(self, name, tuple(texts))

    def _display_node(self) -> str:
        return f"FreeText(without={self.without!r}, end={self.end!r})"


class TypedTerm(Term, ABC):
    """A term that stands for another one, its ``term``, and makes the values of its texts itself."""

    term: Term

    @abstractmethod
    def read(self, written: str) -> Any:
        """Return the value of a text, in which special tokens are as in :attr:`WrittenText.spelled`."""


@final
@dataclass
class Written(Term):
    """A part of an output type in a notation that Outlines has no term for, as the wire has it: see :data:`Part`."""

    part: tuple[Any, ...]

    def _display_node(self) -> str:
        return f"Written{self.part!r}"

    def checked(self) -> Written:
        """Return the part itself, once it was read; errors as of its notation."""
        _template(self.part, {})
        return self


def is_marker(given: object) -> bool:
    """Return True for a special token, or a string that text may hold."""
    return isinstance(given, Special) or is_text(given)


@final
@dataclass(frozen=True)
class Thinking(Term):
    """An output type: a thought, free text of at most ``max_tokens`` tokens up to a marker, and then an answer.

    ``Thinking(Order, max_tokens=500)``. Texts and values of draws are the answer's; :attr:`Draw.thought` is the thought.

    Parameters
    ----------
    answer
        The output type of the answer.
    end
        The marker at the end of a thought: a special token, by name or as :class:`Special`, or a string in any tokens.
    max_tokens
        The most tokens of a thought, markers aside. One that comes to them goes on with the marker alone, whatever its probability,
        which is in the weight; ``draw.thought.forced`` says so.
    begin
        The marker that a thought begins with where the prompt has not begun it, as the chat templates of some models do. Left out,
        the special token whose name is that of ``end`` without the slash, where the tokenizer has it; an empty string for none.
    scope
        ``"answer"``: the thought ``x`` is the model's own, ``p(x)`` but for what may not stand there, and the answer ``z`` is drawn
        given it, as ``phi=`` says: exactly, ``p(z | x, z valid)``, or by another policy. ``"joint"``: thought and answer are one
        text, drawn from ``p(x, z | z valid)`` as ``phi=`` says: thoughts that lead to valid answers are preferred.

    Raises
    ------
    UnsupportedError
        A value that means nothing; says what does.
    """

    answer: Any
    end: str | Special = "</think>"
    max_tokens: int = 1024
    begin: str | Special | None = None
    scope: Scope = "answer"

    def __post_init__(self) -> None:
        marks = "a special token or a string of at least one character, such as '</think>'"
        check("Thinking", is_marker(self.end), marks, end=self.end)
        check("Thinking", self.begin in ("", None) or is_marker(self.begin), f"{marks}, or None", begin=self.begin)
        check("Thinking", self.scope in get_args(Scope), "'answer' or 'joint'", scope=self.scope)
        check_counts("Thinking", " of tokens", least=0, max_tokens=self.max_tokens)
        if self.answer is None or isinstance(self.answer, Thinking):
            raise UnsupportedError(
                f"Give the output type of the answer, as in Thinking(Order). Thinking({self.answer!r:.80}) was given."
            )

    def _display_node(self) -> str:
        return repr(self)

    @property
    def form(self) -> ThoughtFormat:
        """The format of the thoughts."""
        end, begin = (
            ("special", marker.written) if isinstance(marker, Special) else marker for marker in (self.end, self.begin)
        )
        return ThoughtFormat(end or "", self.max_tokens, begin, self.scope)


@final
@dataclass(frozen=True)
class JSONText:
    """Texts of JSON values, special tokens and grammars, and what they stand in: ``part`` is the whole."""

    part: Part

    @cached_property
    def _read(self) -> tuple[Template, str | None]:
        """The texts, and the blanks between the tokens of JSON: ``None`` for those that writers of JSON put."""
        schemas: dict[Part, Schema] = {}
        template = _template(self.part, schemas)
        blanks, *others = {leaf[2] for leaf in schemas} or {None}
        if others:
            given = sorted(map(str, (blanks, *others)))
            raise UnsupportedError(
                f"Give the JSON schemas of one output type the same whitespace_pattern. These have {given}."
            )
        return template, blanks

    @property
    def template(self) -> Template:
        """The texts, the schemas read; errors as :meth:`Schema.read`."""
        return self._read[0]

    @cached_property
    def machine(self) -> ByteMachine[Any]:
        """The machine that reads the texts."""
        template, blanks = self._read
        if template.schemas and not self._grammars:
            return Machine(template, blanks=blanks)
        machines = [
            piece if isinstance(piece, ByteMachine) else Machine(template.of_piece(place), blanks=blanks)
            for place, piece in enumerate(template.pieces)
        ]
        return Joined(machines, template.first, template.follow)

    @property
    def _grammars(self) -> list[LexedMachine]:
        pieces: tuple[Any, ...] = self.template.pieces
        return [piece for piece in pieces if isinstance(piece, LexedMachine)]

    def guide(self, vocabulary: Vocabulary) -> Guide:
        """Return the guide of the texts over a vocabulary; warns of the keywords that it does not ask."""
        template, blanks = self._read
        special = [token for written in _special(self.part) for token in references(written)]
        special += [token for machine in self._grammars for token in machine.grammar.special]
        vocabulary = vocabulary.with_special(special)
        if template.schemas and not self._grammars:
            return JSONGuide.of_template(template, vocabulary, blanks=blanks)
        warn_of_keywords(template.left_out)
        if self._grammars:
            return MachineGuide(self.machine, vocabulary)
        classes = [piece.byte_class for piece in template.pieces if isinstance(piece, ByteAutomaton)]
        what = "The number of states of the output type, in tens,"
        automaton = ByteAutomaton.of_machine(
            self.machine,
            joint_classes(classes)[0],
            lambda states: current_limits().check("states", states // LARGER, what),
        )
        return FSMGuide.from_automaton(automaton, vocabulary)

    @property
    def text(self) -> str:
        """All that decides the texts, for fingerprints."""
        return repr(self.part)


def _document(schema: str) -> Any:
    """Return the document of a schema: the one beside its text, else that read."""
    current_limits().check(
        "source", len(schema.encode("utf-8", "surrogatepass")), "The number of bytes of the JSON schema"
    )
    if isinstance(schema, SchemaText):
        return schema.document
    try:
        # An integer of more digits than Python reads is a decimal.
        return json.loads(
            schema, parse_float=Decimal, parse_int=lambda text: int(text) if len(text) < 1000 else Decimal(text)
        )
    except json.JSONDecodeError as error:
        raise not_json(error) from error


def not_json(error: json.JSONDecodeError) -> GrammarError:
    """Return the error for the text of a schema that is not JSON."""
    return GrammarError(f"The JSON schema is not JSON: {error.msg}.", error.doc, error.pos)


def part_of(term: Term) -> Part:
    """Return a term in the form of the wire."""
    if not is_composed(term):
        return to_pattern(term)
    match term:
        case TypedTerm():
            return part_of(term.term)
        case JsonSchema():
            return "json", term.schema, term.whitespace_pattern, isinstance(term, PythonSchema)
        case Special():
            return "special", term.written
        case FreeText():
            return "text", term.without, term.end
        case CFG():
            return "grammar", term.definition
        case Written():
            return term.part
        case Choice():
            return part_of(Alternatives([term_of(item) for item in term.items]))
        case Sequence():
            return "then", *_joined(map(part_of, _in_turn(term)))
        case Alternatives():
            return "or", *map(part_of, term.terms)
    return "times", part_of(term.term), *counts_of(term)


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts of a sequence, regular expressions that stand side by side as one."""
    for is_pattern, run in groupby(parts, lambda part: isinstance(part, str)):
        if is_pattern:
            yield "".join(map(str, run))
        else:
            yield from run


def to_pattern(term: Term) -> str:
    """Return the regular expression of a term; a line break ends a comment at the end of a verbose pattern in it."""
    written = to_regex(term)
    for part in parts_of(term):
        if isinstance(part, Regex) and _VERBOSE.search(part.pattern):
            written = written.replace(f"({part.pattern})", f"({part.pattern}\n)")
    return written


def in_blocks(term: Term) -> str:
    """Return :func:`to_pattern` of a term, each part of a sequence that is no literal text as a named group."""
    parts = list(_in_turn(term))
    if len(parts) == 1:
        return to_pattern(term)
    taken = "".join(part.pattern for part in parts_of(term) if isinstance(part, Regex))
    prefix = next(name for name in accumulate(repeat("_")) if f"<{name}" not in taken)
    written = [
        to_pattern(part) if isinstance(part, String) else f"(?P<{prefix}{i}>{to_pattern(part)})"
        for i, part in enumerate(parts)
    ]
    return "".join(written)


def _in_turn(term: Term) -> Iterator[Term]:
    """Yield the parts of a sequence, and of those that are its parts."""
    if not isinstance(term, Sequence):
        yield term
        return
    for part in term.terms:
        yield from _in_turn(part)


_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


def parts_of(term: Term) -> Iterator[Term]:
    """Yield a term and the terms in it, those of the items of a choice among them."""
    yield term
    inner = (getattr(term, name, None) for name in ("term", "answer"))
    try:
        len(items := getattr(term, "items", ()))  # an iterator gives its items once, and they are read more often
        items = [*map(term_of, items)]
    except TypeError as error:
        raise UnsupportedError(
            f"Give a list of texts, numbers and types to choose from. {term!r:.80} was given: {_reason(error)}"
        ) from error
    for part in (*inner, *getattr(term, "terms", ()), *items):
        if isinstance(part, Term):
            yield from parts_of(part)


COUNTS: dict[type[Term], tuple[int, int | None]] = {KleeneStar: (0, None), KleenePlus: (1, None), Optional: (0, 1)}


def counts_of(term: Term) -> tuple[int, int | None]:
    """Return the least and the most repetitions that a term is of another one; ``None`` for no bound."""
    if (exact := getattr(term, "count", None)) is not None:
        return exact, exact
    return COUNTS.get(type(term), (getattr(term, "min_count", 0), getattr(term, "max_count", None)))


def _special(part: Part) -> Iterator[str]:
    """Yield the special tokens in a part, as they are written."""
    if isinstance(part, tuple) and part[0] == "special":
        yield part[1]
    elif isinstance(part, tuple) and part[0] not in ("text", "string"):
        for one in part[1:]:
            yield from _special(one)


def _template(part: Part, schemas: dict[Part, Schema]) -> Template:
    """Return the template of a part; each of the ``schemas`` in it is read once, under a label of its own."""
    match part:
        case str():
            return Template.of_bytes(compile_regex(part))
        case "json", document, _, plain:
            if part not in schemas:
                schemas[part] = Schema.read(_document(document), label=str(len(schemas) or ""), plain=plain)
            return Template.of_value(schemas[part])
        case "special", written:
            return Template.of_bytes(ByteAutomaton.of_special(written))
        case "text", without, end:
            return Template.of_bytes(free_text(without, end))
        case "ecma", pattern:
            return Template.of_bytes(compile_regex(pattern, ECMA))
        case "string", document, without:
            return Template.of_bytes(_strings(document, without))
        case ("grammar" | "gbnf") as notation, text:
            machine: Any = LexedMachine.of(read_grammar(text, dialect="lark" if notation == "grammar" else notation))
            return Template.of_bytes(machine)
        case "times", one, least, most:
            return _template(one, schemas).repeated(least, most)
    inner = [_template(one, schemas) for one in part[1:]]
    return {"then": Template.sequence, "or": Template.one_of}[part[0]](inner)


def _strings(document: str, without: tuple[str, ...]) -> ByteAutomaton:
    """Return the automaton of the strings of a schema, as they are, that hold none of some strings."""
    schema = Schema.read(_document(document), plain=True)
    found = spelled(Kinds(schema.definitions, schema.pointers).strings(schema.formula).code_automaton, utf8)
    return found & free_text(without) if without else found


@final
@dataclass(frozen=True)
class GuidanceText:
    """The text of a guidance grammar, in llguidance's dialect of Lark."""

    text: str

    @property
    def grammar(self) -> GuidanceGrammar:
        """The grammar; errors as of :class:`GuidanceGrammar`."""
        return read(self.text)

    def value(self, text: str) -> dict[str, str | list[str]]:
        """Return the captures of a member, by name."""
        return self.grammar.captures(text)


def is_guidance(text: str) -> bool:
    """Return True if the text of a grammar begins as one of llguidance's dialect."""
    check("CFG", isinstance(text, str), "the text of a grammar", definition=text)
    return text.lstrip().startswith(HEADER)


def from_guidance(grammar: Any) -> CFG:
    """Return a grammar of guidance as an output type: ``select``, ``gen``, ``json``, ``one_or_more``, functions of them.

    Its texts are those that guidance itself would let be written, and the value of a draw is the dictionary of its captures (the
    text, where nothing is captured). Only the text of the grammar is read, so guidance need not be installed where that is given.

    Parameters
    ----------
    grammar
        A grammar of guidance, or the text that its ``ll_grammar()`` returns, which begins with ``%llguidance``.

    Returns
    -------
    CFG
        The output type: Outlines' own for a grammar, whose text is that of llguidance's dialect.

    Raises
    ------
    GrammarError, UnsupportedError
        The grammar cannot be read, or has what cannot be honoured (docs/guidance.md says what); with line, column and caret where
        that is in one place.
    EmptyLanguageError
        It derives no text.
    """
    text = grammar
    if not isinstance(grammar, str):
        write = getattr(grammar, "ll_grammar", None)
        if not callable(write) or isinstance(grammar, type):
            raise UnsupportedError(
                f"{_instead(grammar)}. {type(grammar).__name__} {grammar!r:.60} has no ll_grammar()."
            )
        try:
            text = write()
        except OutlinesPhiError:
            raise
        except Exception as error:  # of guidance, whatever it raises
            raise UnsupportedError(f"Give a grammar that guidance can write. It refuses this one: {error}") from error
    if not isinstance(text, str) or not is_guidance(text):
        raise UnsupportedError(
            f"Give a grammar of guidance, or the text of one, which begins with {HEADER}; outlines.types.CFG(text) takes Lark's "
            f"own dialect. {text!r:.60} was given."
        )
    read(text)
    return CFG(text)


def _instead(given: Any) -> str:
    if type(given).__module__.startswith("guidance.models"):
        return "Give the grammar, as in select(['yes', 'no'], name='answer'); outlines_phi.wrap(model) takes a model of guidance"
    if callable(given):
        return "Call the function, as in from_guidance(f()), and let it be stateless: @guidance(stateless=True)"
    return "Give a grammar of guidance, such as select(['yes', 'no'], name='answer')"


ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$comment", "$defs", "definitions", "$schema"})
"""Keywords that forbid nothing."""

READ = {
    "string": frozenset({"minLength", "maxLength"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "integer": frozenset(),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
"""The types, and the keywords beside each that outlines_core honours."""


@kept
def check_core(text: str) -> None:
    """Refuse the text of a schema of which outlines_core leaves something out, or which it misreads."""
    document = json.loads(text)
    _check_core(document, (), document, ())


def _check_core(schema: Any, path: Path, document: Any, within: tuple[str, ...]) -> None:
    stated = schema.items() if isinstance(schema, dict) else ()
    said = {keyword: value for keyword, value in stated if keyword not in ANNOTATIONS}
    match said:
        case {"$ref": str(reference), **others} if not others and reference not in within:
            start, _, name = reference.rpartition("/")
            section = start.removeprefix("#/")
            if section not in ("$defs", "definitions") or name not in document.get(section, {}):
                raise _unread((*path, "$ref"))
            _check_core(document[section][name], (section, name), document, (*within, reference))
        case {"anyOf": [_, *_] as parts, **others} if not others:
            for i, part in enumerate(parts):
                _check_core(part, (*path, "anyOf", i), document, within)
        case {"const": value, **others} if others.keys() <= {"type"} and _is_plain(value):
            pass
        case {"enum": [_, *_] as values, **others} if others.keys() <= {"type"} and all(map(_is_plain, values)):
            pass
        case {"type": str(kind), **others} if kind in READ:
            parts = {("properties", name): part for name, part in others.get("properties", {}).items()}
            for keyword in others:
                if keyword not in READ[kind]:
                    raise _unread((*path, keyword))
            for place, part in ({("items",): others.get("items")} if kind == "array" else parts).items():
                _check_core(part if _is_plain(place[-1]) else None, (*path, *place), document, within)
            if kind == "object" and not (
                parts and {("properties", name) for name in others.get("required", ())} <= parts.keys()
            ):
                raise _unread((*path, "required"))
            if others.get("additionalProperties", False) is not False:
                raise _unread((*path, "additionalProperties"))
        case _:
            raise _unread((*path, next(iter(said))) if said else path)


def _is_plain(value: Any) -> bool:
    """Return True if a value is written in one way, which holds nothing that a regular expression or JSON would escape."""
    if isinstance(value, str):
        return value.isascii() and value.isprintable() and not set(value) & set('"\\')
    return value is None or isinstance(value, (bool, int))


def _unread(path: Path) -> UnsupportedError:
    return UnsupportedError(
        "Leave the backend out, so that the JSON schema is read by this package, or give the schema by itself. outlines_core does "
        f"not honour what stands at {pointer_to(path)}."
    )


@dataclass(frozen=True)
class GrammarText:
    """The text of a context-free grammar, in Lark's dialect."""

    text: str


@final
@dataclass(frozen=True)
class ThinkingText:
    """Thoughts of a form, each before a text of a language."""

    answer: Language
    form: ThoughtFormat

    @property
    def text(self) -> str:
        """The name in messages and files."""
        return repr(self)


Language: TypeAlias = str | GrammarText | Grammar | GuidanceText | JSONText | ThinkingText
"""A regular expression, a context-free grammar as it is written or as it was read, one of guidance, JSON values and what they
stand in, or one of these after thoughts.
"""


def to_language(output_type: Any) -> Language:
    """Return the language of an output type; ``dict`` is JSON of any shape, a grammar in Outlines.

    A :class:`~outlines_phi.guides.grammar.grammar.Grammar` that was read is its own language.

    An :class:`UnsupportedError` for what is no output type, or one that this version cannot correct; says what to use. A
    :class:`GrammarError` for a JSON schema that cannot be read, an :class:`EmptyLanguageError` for a choice of nothing.
    """
    if isinstance(output_type, Grammar):
        return output_type
    if isinstance(output_type, Thinking):
        return ThinkingText(to_language(output_type.answer), output_type.form)
    term = to_term(output_type)
    if isinstance(term, CFG):
        return GuidanceText(term.definition) if is_guidance(term.definition) else GrammarText(term.definition)
    if not is_composed(term):
        return _to_regex(term, output_type)
    _check(term, output_type)
    return JSONText(part_of(term))


def to_core_language(output_type: Any) -> str | GrammarText:
    """Return the regular expression of an output type as outlines_core has it, or its grammar; errors as :func:`to_language`."""
    term = _term(output_type, python_types_to_terms)
    return GrammarText(term.definition) if isinstance(term, CFG) else _to_regex(term, output_type)


def _check(term: Term, output_type: Any) -> None:
    if any(isinstance(part, Thinking) for part in parts_of(term)):
        raise UnsupportedError(
            "Give Thinking(T) alone, where T has all that follows the thought, or FreeText(end=['</think>']) as the part, a text "
            "without a limit of tokens. A Thinking was given as a part of an output type."
        )
    grammars = [part.definition for part in parts_of(term) if isinstance(part, CFG)]
    if any(is_guidance(text) or text == ANY_JSON for text in grammars):
        raise UnsupportedError(
            "Write the other parts into the grammar, as rules or terminals, and give that alone: one of guidance was given as a "
            "part of an output type, or dict, which is JSON of any shape."
        )
    # Outlines compiles a choice of nothing to the empty text.
    if any(
        not getattr(part, "items", getattr(part, "terms", True))
        for part in parts_of(term)
        if not isinstance(part, Sequence)
    ):
        raise EmptyLanguageError(f"Give at least one alternative: {output_type!r} holds a choice of nothing.")


def _to_regex(term: Term, output_type: Any) -> str:
    _check(term, output_type)
    try:
        for part in parts_of(term):
            if isinstance(part, JsonSchema):  # as outlines_core reads it
                check_core(part.schema)
        return in_blocks(term)
    except OutlinesPhiError:
        raise
    except RecursionError:
        raise too_deep("output type") from None
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise UnsupportedError(
            f"{output_type!r} cannot be written as a regular expression: {_reason(error)}"
        ) from error


def left_to_outlines(output_type: Any, *, at_hand: bool) -> bool:
    """Return True if Outlines itself masks for an output type without a correction: for grammars, free text and JSON, whose texts
    differ from those of this package, and for regular languages while nothing is ``at_hand`` to mask them here.
    """
    if output_type is None:
        return True
    if isinstance(output_type, (Grammar, Thinking)):  # Outlines does not know them
        return False
    try:
        term = _term(output_type, python_types_to_terms)
        return not at_hand or isinstance(term, CFG) or (is_composed(term) and not holds_special(term))
    except OutlinesPhiError:  # Outlines refuses it
        return False


def is_composed(term: Term) -> bool:
    """Return True if Outlines writes no regular expression of a part of a term: a schema, a special token, free text, a grammar."""
    return any(isinstance(part, (JsonSchema, Special, FreeText, CFG, Written, TypedTerm)) for part in parts_of(term))


def holds_special(term: Term) -> bool:
    """Return True if a special token is a part of a term."""
    return any(isinstance(part, Special) for part in parts_of(term))


def to_term(output_type: Any) -> Term:
    """Return the term of Outlines for an output type, with the schemas of Python types as this package reads them."""
    return _term(output_type, term_of)


def _term(output_type: Any, read: Callable[[Any], Term]) -> Term:
    if isinstance(output_type, (str, bytes, dict, list, tuple, set, frozenset)) and not isinstance(output_type, Term):
        raise no_format(output_type)
    try:
        return read(output_type)
    except OutlinesPhiError:
        raise
    except SchemaError as error:
        raise GrammarError(f"The JSON schema is not valid: {error.message}") from error
    except json.JSONDecodeError as error:
        raise not_json(error) from error
    except RecursionError:
        raise too_deep("output type") from None
    except (TypeError, ValueError, RuntimeError, NameError) as error:
        raise no_format(output_type, _reason(error)) from error


def to_json(schema: Any, whitespace_pattern: str | None) -> JsonSchema:
    """Return the JSON schema of an object that stands for one, or of its text or dict."""
    term = _read_schema(schema) if isinstance(schema, (str, dict)) else copy(to_term(schema))
    if not isinstance(term, JsonSchema):
        raise UnsupportedError(
            f"{schema!r:.80} does not stand for a JSON schema; expected a pydantic model, a dataclass, a TypedDict, an Enum, a "
            "function, a genson SchemaBuilder, or the text or dict of a schema. generate.format takes other types."
        )
    if whitespace_pattern is not None:
        term.whitespace_pattern = whitespace_pattern
    return term


def _read_schema(schema: str | dict[str, Any]) -> JsonSchema:
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return UncheckedSchema(json.loads(text, parse_float=Decimal), text)
    except json.JSONDecodeError as error:
        raise not_json(error) from error
    except RecursionError:
        raise too_deep("JSON schema") from None
    except (TypeError, ValueError) as error:  # the second of an integer of thousands of digits
        raise GrammarError(
            f"Give a dict of what JSON has, and smaller numbers. The schema cannot be read: {error}."
        ) from error


def _reason(error: Exception) -> str:
    """Return the reason in an error of Outlines, without its request to report it: this package answers for its refusals."""
    return re.split(r"\s*(?:If it should be supported, p|P)lease open an issue", str(error))[0]


def patterns(output_type: Any) -> Iterator[str]:
    """Yield the regular expressions that an output type was written with, as they were given."""
    yield from (part.pattern for part in parts_of(to_term(output_type)) if isinstance(part, Regex))
