"""The output types that benchmarks compile."""

from __future__ import annotations

import json
from typing import Literal

from outlines_core.json_schema import build_regex_from_schema
from pydantic import BaseModel, Field


class Order(BaseModel):
    order_id: int
    customer: str
    product: str
    quantity: int
    express: bool
    status: Literal["open", "paid", "shipped", "returned"]


class Item(BaseModel):
    name: str = Field(max_length=30)
    price: float
    tags: list[Literal["new", "used", "rare"]]


class Basket(BaseModel):
    owner: str = Field(max_length=30)
    city: str = Field(max_length=30)
    items: list[Item] = Field(max_length=3)
    paid: bool


SCHEMAS: dict[str, type[BaseModel] | str] = {
    "e-mail": r"[a-zA-Z0-9._%+-]{1,30}@[a-zA-Z0-9.-]{1,30}\.[a-z]{2,4}",
    "six fields": Order,
    "nested, bounded": Basket,
}


def pattern(schema: type[BaseModel] | str) -> str:
    """Return the regular expression of a schema or of itself."""
    return schema if isinstance(schema, str) else build_regex_from_schema(json.dumps(schema.model_json_schema()))
