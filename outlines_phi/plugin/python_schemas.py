"""The JSON schemas of Python types: what pydantic reads of each, and nothing else."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from enum import EnumMeta
from functools import partial
from types import FunctionType
from typing import Any, get_args

from outlines.types import utils as kind
from outlines.types.dsl import Choice, JsonSchema, Term, python_types_to_terms
from pydantic import BaseModel, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


class _Written(GenerateJsonSchema):
    """The schema of what is written for a type.

    Keys that a type does not declare are not written, unless it keeps them (``extra="allow"``): pydantic would drop them. A term of
    Outlines, as the type of a field, matches whole texts; ``pattern`` would find it within one.
    """

    def generate_inner(self, schema: core_schema.CoreSchema) -> JsonSchemaValue:
        found = super().generate_inner(schema)
        if schema["type"] == "function-plain" and found.get("type") == "string" and "pattern" in found:
            return {**found, "pattern": f"^(?:{found['pattern']})$"}
        return found

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"additionalProperties": False, **schema} if "properties" in schema else schema


def schemas_within(output_type: Any) -> dict[str, str]:
    """Return the JSON schema of each Python type in an output type, by the one that Outlines has for it: texts of both."""
    found: dict[str, str] = {}
    for part in _mentioned(output_type):
        term = python_types_to_terms(part)
        if isinstance(term, JsonSchema):
            found[term.schema] = json.dumps(_schema(part))
    return found


def signature(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the model of a function's arguments."""
    try:
        read = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only a type checker sees
        read = inspect.signature(function)
    fields: dict[str, Any] = {
        key: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
        for key, parameter in read.parameters.items()
    }
    return create_model(getattr(function, "__name__", "Arguments"), **fields)


def functions_of(enum: EnumMeta) -> list[FunctionType]:
    """Return the functions that are members' values.

    Such a function is no member to Python; Outlines tells it from a method by where it was defined.
    """
    inside = f"{enum.__qualname__}."
    return [
        value
        for key, value in vars(enum).items()
        if isinstance(value, FunctionType) and not key.startswith("_") and not value.__qualname__.startswith(inside)
    ]


def _schema(part: Any) -> JsonSchemaValue:
    written = part if isinstance(part, type) else signature(part)
    return TypeAdapter(written).json_schema(schema_generator=_Written)


def _mentioned(output_type: Any) -> Iterator[Any]:
    """Yield the pydantic models, dataclasses, typed dicts and functions that an output type is made of."""
    if any(is_one(output_type) for is_one in (kind.is_dataclass, kind.is_typed_dict, kind.is_pydantic_model)):
        yield output_type
        return
    parts: Iterable[Any] = get_args(output_type)
    match output_type:
        case EnumMeta():
            members: list[Any] = list(output_type)
            parts = [*(one.value for one in members), *functions_of(output_type)]
        case Choice():
            parts = output_type.items
        case Term():
            parts = (*getattr(output_type, "terms", ()), *filter(None, [getattr(output_type, "term", None)]))
        case _ if not parts and kind.is_callable(output_type):
            yield output_type
    for part in parts:
        if isinstance(part, (type, Term, FunctionType, partial)) or get_args(part):
            yield from _mentioned(part)
