"""Tools as an output type: text and calls, in the format that a model was trained on.

A family of models is a file of ``tool_families``: what marks its chat templates, a tag for each call (``$name``, ``$parameters``),
and the documents of a whole answer (``$calls``; ``$single`` for one at most), in xgrammar's JSON form of structural tags.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple, final

from outlines.types.dsl import Alternatives, Term

from ...errors import UnsupportedError
from ...fidelity.probabilities import Probabilities, Probability
from ...numerics.checks import check
from .output_types import TypedTerm, parts_of, to_term
from .pydantic_schemas import PythonSchema
from .readers import NAME_MARK, TokenNames, beginnings, read_by, reader
from .structural_tags import answers

CHOICES = ("auto", "required", "none")
"""The choices that are no name of a tool."""

NAMES = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""The names of tools: they stand in texts as they are."""


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
    calls: Sequence[Any]
    auto: Any
    required: Any
    none: Any

    def answer(self, choice: str, schemas: Mapping[str, Any], *, single: bool) -> Any:
        """Return the format of an answer: ``choice`` is ``"auto"``, ``"required"`` or ``"none"``, ``schemas`` are by tool.

        ``single`` is for one call at most, with nothing behind it.
        """
        calls = [
            json.dumps(call).replace("$name", json.dumps(name)[1:-1]).replace('"$parameters"', json.dumps(schema))
            for name, schema in schemas.items()
            for call in self.calls
        ]
        form = json.dumps(getattr(self, choice)).replace('"$single"', json.dumps(single))
        return json.loads(form.replace('"$calls"', ", ".join(calls)))


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


@final
@dataclass(frozen=True)
class ToolCall:
    """A call of a tool, as a model wrote it.

    Attributes
    ----------
    name
        The tool's.
    arguments
        An instance of a pydantic model, the keyword arguments of a function, what ``json.loads`` gives for a JSON schema.
    json
        The arguments as JSON.
    tool
        What was given to :class:`Tools`.
    """

    name: str
    arguments: Any
    json: str = field(repr=False, compare=False)
    tool: Any = field(repr=False, compare=False)

    def run(self) -> Any:
        """Call the function with the arguments; an :class:`UnsupportedError` where the tool is none."""
        if not callable(self.tool) or isinstance(self.tool, type):
            raise UnsupportedError(f"Give the function to Tools, or use .arguments. {self.name} was given as a schema.")
        return self.tool(**self.arguments)


@final
@dataclass(frozen=True)
class Reply:
    """The answer of a model that has tools: ``parts`` are texts and calls, in the order in which they were written."""

    parts: tuple[str | ToolCall, ...]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls, in turn."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def text(self) -> str:
        """The text between the calls."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def message(self) -> dict[str, Any]:
        """The message of the assistant, as chat templates take it."""
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.json)}}
            for call in self.calls
        ]
        return {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}


class _Tool(NamedTuple):
    given: Any
    name: str
    description: str
    schema: dict[str, Any]
    read: Callable[[str], Any]


@final
@dataclass(eq=False)
class CallBeginnings(TypedTerm):
    """The beginnings of calls, of which the values are the names of the tools."""

    term: Term

    def read(self, written: str) -> str:
        """Return the name in a text."""
        return str(read_by(self.term, written)[-1])


@final
@dataclass(frozen=True, eq=False)
class Tools(TypedTerm):
    """Text and calls of tools, in the format of a family of models: an output type.

    The value of a draw is a :class:`Reply`; ``draw.calls`` are its calls. The prompt must tell the model of the tools:
    ``tokenizer.apply_chat_template(messages, tools=tools.schemas, tokenize=False, add_generation_prompt=True)``.

    Parameters
    ----------
    tools
        Functions with annotated arguments, pydantic models, dataclasses, typed dicts, or JSON in OpenAI's form:
        ``{"type": "function", "function": {"name": ..., "parameters": schema}}``.
    choice
        ``"auto"``: free text, in which calls may stand. ``"required"``: a call, then more text and calls where the family has them
        there. The name of a tool: one call of it, and nothing else. ``None`` or ``"none"``: text that begins no call.
    family
        The format of calls: a name of :func:`outlines_phi.plugin.types.tools.families`. Left out, it is that which
        the text of the model's chat template shows; where it shows none, this is asked for.
    parallel
        False for one call at most, with nothing behind it.

    Raises
    ------
    UnsupportedError
        Something is no tool, two have one name, or there is no such tool or family; says what to give.
    """

    tools: Sequence[Any]
    choice: Any = "auto"
    family: str | None = None
    parallel: bool = True
    names: TokenNames = field(default=TokenNames(), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.family is not None and self.family not in families():
            raise UnsupportedError(
                f"Give one of the families {', '.join(families())}. family={self.family!r} was given."
            )
        if not isinstance(self.tools, (list, tuple)) or not self.tools:
            raise UnsupportedError(f"Give a list of at least one tool. Tools({self.tools!r:.80}) was given.")
        check("Tools", isinstance(self.parallel, bool), "True or False", parallel=self.parallel)
        names = [tool.name for tool in self._tools]
        if len({*names}) < len(names):
            raise UnsupportedError(f"Give tools of different names. These have {', '.join(names)}.")
        if self._choice not in (*CHOICES, *names):
            raise UnsupportedError(
                f"Give choice='auto', 'required', None or the name of a tool, {', '.join(names)}. {self.choice!r:.80} was given."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # not what was made of them

    def _display_node(self) -> str:
        return f"Tools({', '.join(tool.name for tool in self._tools)}; {self._choice})"

    @cached_property
    def _tools(self) -> list[_Tool]:
        return list(map(_read_tool, self.tools))

    @property
    def _choice(self) -> str:
        match self.choice:
            case None:
                return "none"
            case {"type": "function", "function": {"name": str(name)}}:
                return name
        return str(self.choice)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as JSON in OpenAI's form, for chat templates."""
        return [
            {
                "type": "function",
                "function": {"name": one.name, "description": one.description, "parameters": one.schema},
            }
            for one in self._tools
        ]

    @property
    def document(self) -> dict[str, Any]:
        """The structural tag of the answers, in xgrammar's form, with special tokens as text."""
        return {"type": "structural_tag", "format": self._form({tool.name: tool.schema for tool in self._tools})}

    def _form(self, schemas: dict[str, Any]) -> Any:
        """Return the format of the answers, with what stands for the schema of each tool by its name, marked or not."""
        if self.family is None:
            raise UnsupportedError(
                f"Give Tools(..., family=...), one of {', '.join(families())}, or a model with a chat template to a Generator."
            )
        named = self._choice not in CHOICES
        choice = "required" if named else self._choice
        chosen = {
            name: schema for name, schema in schemas.items() if not named or name.strip(NAME_MARK) == self._choice
        }
        return families()[self.family].answer(choice, chosen, single=named or not self.parallel)

    def _term(self, mark: str = "") -> Term:
        """Return the answers as a term in which special tokens are what they are; the names in it are marked."""
        schemas = {tool.name: tool.schema for tool in self._tools}
        return answers(self._form({f"{mark}{name}{mark}": name for name in schemas}), schemas, self.names)

    @cached_property
    def term(self) -> Term:
        """The answers."""
        return self._term()

    def of_model(self, model: Any) -> Tools:
        """Return the tools in the format of a model: by the text of its chat template, and with its special tokens."""
        found = replace(self, family=self.family or family_of(model.chat_template))
        object.__setattr__(found, "names", model.token_names)
        return found

    def read(self, written: str) -> Reply:
        """Return the text and the calls of an answer, in which special tokens are spelled."""
        tools = {tool.name: tool for tool in self._tools}

        def part(found: str | tuple[str, str]) -> str | ToolCall:
            if isinstance(found, str):
                return found
            tool, written = tools[found[0]], found[1]
            return ToolCall(tool.name, tool.read(written), written, tool.given)

        return Reply(tuple(part(found) for found in read_by(self.term, written) if found))

    @cached_property
    def beginnings(self) -> CallBeginnings:
        """The texts of calls with which an answer may begin, up to the character or the token behind the name."""
        return CallBeginnings(Alternatives(beginnings(self._term(NAME_MARK))))

    def probabilities(self, found: Probabilities) -> Probabilities:
        """Return the probabilities of tools by those of their beginnings; beside them of no call, where that is a choice."""
        if self._choice != "auto":
            return found
        low, high = (min(1.0, math.exp(bound)) for bound in found.log_z_bounds)
        middle = (low + high) / 2
        calls = [
            replace(each, p=each.p * middle, lo=each.lo * low, hi=min(1.0, each.hi * high)) for each in found.entries
        ]
        none = Probability(value=None, p=1 - middle, lo=1 - high, hi=1 - low, texts=("(no call)",), spellings=0)
        return replace(found, entries=tuple(sorted((*calls, none), key=lambda entry: -entry.p)))


def _read_tool(given: Any) -> _Tool:
    """Return a tool as it was given; an :class:`UnsupportedError` for what is none."""
    match given:
        case {"type": "function", "function": {"name": str(name), **about}} | {"name": str(name), **about} if (
            about.keys() <= {"type", "description", "strict", "parameters"}
            and isinstance(about.get("parameters"), dict | None)
        ):
            schema: Any = about.get("parameters") or {"type": "object"}
            tool = _Tool(given, name, str(about.get("description", "")), schema, json.loads)
        case _:
            term = to_term(given) if callable(given) else None
            name = getattr(given, "__name__", "")
            if not isinstance(term, PythonSchema) or not name:
                raise UnsupportedError(
                    "Give functions, pydantic models, dataclasses, typed dicts, or dicts like {'type': 'function', 'function': "
                    f"{{'name': ..., 'parameters': schema}}}}. {given!r:.80} was given as a tool."
                )
            tool = _Tool(given, name, inspect.getdoc(given) or "", term.schema.document, reader(given))
    if NAMES.fullmatch(tool.name) is None or tool.name in CHOICES:
        raise UnsupportedError(
            f"Give the tool a name of 1 to 64 letters, digits and _.- that is no choice: {tool.name!r:.80} is none."
        )
    return tool


def of_model(output_type: Any, model: Any) -> Any:
    """Return an output type whose :class:`Tools`, its parts among them, are in the format of a model."""
    if isinstance(output_type, Tools):
        return output_type.of_model(model)
    if isinstance(output_type, list):
        return [of_model(part, model) for part in output_type]
    if not isinstance(output_type, Term) or not any(isinstance(part, Tools) for part in parts_of(output_type)):
        return output_type
    found = copy(output_type)
    vars(found).update({name: of_model(part, model) for name, part in vars(output_type).items()})
    return found
