"""The terms of Python types: Outlines' own, with the JSON schemas that pydantic's core schemas say."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from enum import EnumMeta
from functools import partial
from types import FunctionType, GenericAlias, SimpleNamespace
from typing import Any, NewType, cast, get_args, get_origin, get_type_hints

from outlines.types import utils as kind
from outlines.types.dsl import Alternatives, JsonSchema, Regex, Term, python_types_to_terms
from pydantic import BaseModel, TypeAdapter, create_model

from ...errors import UnsupportedError
from ...guides.json_schema.values import pointer_to
from .pydantic_parts import REFUSED
from .pydantic_schemas import PydanticSchema


class UncheckedSchema(JsonSchema):
    """A JSON schema that is read by this package alone, which says by its JSON pointer what it cannot read."""

    def __init__(self, schema: str, whitespace_pattern: str | None = None) -> None:
        self.schema, self.whitespace_pattern = schema, whitespace_pattern


class PythonSchema(UncheckedSchema):
    """The JSON schema of a Python type."""


def term_of(output_type: Any) -> Term:
    """Return what Outlines reads an output type as; pydantic models, dataclasses, typed dicts and functions in it are read here."""
    return python_types_to_terms(_with_schemas(output_type))


def _with_schemas(output_type: Any) -> Any:
    """Return an output type with the terms of the types in it that are written as JSON."""
    if any(is_one(output_type) for is_one in (kind.is_dataclass, kind.is_typed_dict, kind.is_pydantic_model)):
        return PythonSchema(_schema(output_type))
    parts = get_args(output_type)
    if kind.is_union(output_type):
        nothing = [Regex("None")] if type(None) in parts else []
        return Alternatives([*(term_of(part) for part in parts if part is not type(None)), *nothing])
    if get_origin(output_type) in (list, tuple, dict):
        inner = tuple(part if part in ((), ...) else _with_schemas(part) for part in parts)
        return GenericAlias(cast(type, get_origin(output_type)), inner)
    if isinstance(output_type, EnumMeta):
        members: list[Any] = [*(one.value for one in cast(Any, output_type)), *functions_of(output_type)]
        if any(isinstance(_with_schemas(one), PythonSchema) for one in members):
            return Alternatives([term_of(one) for one in members])
    if (
        kind.is_callable(output_type)
        and get_origin(output_type) is None
        and not isinstance(output_type, (Term, NewType))
    ):
        return PythonSchema(_schema(signature(output_type)))
    return output_type


def _schema(written: type) -> str:
    document = TypeAdapter(written).json_schema(schema_generator=PydanticSchema)
    for pointer, (remedy, why) in _refused(document):
        raise UnsupportedError(f"{remedy}. At {pointer} of the JSON schema of {written.__name__}, {why}.")
    return json.dumps(document)


def _refused(document: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield where a schema has what no schema says, and what to say of it."""
    stack = [(document, "#")]
    while stack:
        part, pointer = stack.pop()
        if isinstance(part, dict) and isinstance(part.get(REFUSED), list):
            yield pointer, part[REFUSED]
        steps = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        stack += [(inner, pointer_to([step], pointer)) for step, inner in steps]


def signature(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the model of a function's arguments."""
    name = getattr(function, "__name__", "Arguments")
    parameters = inspect.signature(function).parameters
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UnsupportedError(
                f"Give each argument of {name} a name by which it can be given. {str(parameter)!r} has none, and is written "
                "as no member of an object."
            )
        if parameter.annotation is parameter.empty:
            raise UnsupportedError(f"Annotate each argument of {name} with its type. {key!r} has none.")
        annotation = _evaluated(function, name, key, parameter.annotation)
        fields[key] = (annotation, ... if parameter.default is parameter.empty else parameter.default)
    return create_model(name, **fields)


def _evaluated(function: Any, name: str, key: str, annotation: Any) -> Any:
    """Return an annotation that may be given as text, as by ``from __future__ import annotations``."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    code = function if hasattr(function, "__globals__") else vars(type(function)).get("__call__", function)
    enclosed = {} if not inspect.isfunction(code) else dict(inspect.getclosurevars(code).nonlocals)
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__={key: annotation}),
            getattr(code, "__globals__", {}),
            enclosed,
            include_extras=True,
        )[key]
    except (NameError, SyntaxError, TypeError) as error:
        raise UnsupportedError(
            f"Define the types that annotate the arguments of {name} at the top of their module. "
            f"{annotation!r} of {key!r} cannot be read: {error}."
        ) from error


def functions_of(enum: EnumMeta) -> list[FunctionType]:
    """Return the functions that are members' values; no members to Python, told from methods by where they were defined."""
    inside = f"{enum.__qualname__}."
    return [
        value
        for key, value in vars(enum).items()
        if isinstance(value, FunctionType) and not key.startswith("_") and not value.__qualname__.startswith(inside)
    ]
