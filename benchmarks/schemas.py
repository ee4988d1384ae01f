"""The output types that benchmarks compile, and their 131,072-token vocabulary: Mistral's Tekken, of the package mistral-common."""

import base64
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from outlines_core.json_schema import build_regex_from_schema
from pydantic import BaseModel, Field

from outlines_phi.vocabulary.vocabulary import Vocabulary


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


FILE = "tekken_240911.json"
EOS = 2  # </s>, in every version of Tekken


@cache
def tekken_vocabulary() -> Vocabulary:
    """Return the vocabulary of Tekken (``v3``, September 2024): 1,000 special ids, then byte-pair tokens by rank."""
    spec = find_spec("mistral_common")
    if spec is None or spec.origin is None:
        raise SystemExit("the benchmarks need the tokenizer files of mistral-common: pip install mistral-common")
    content = json.loads((Path(spec.origin).parent / "data" / FILE).read_text(encoding="utf-8"))
    size, special = content["config"]["default_vocab_size"], content["config"]["default_num_special_tokens"]
    tokens = [b""] * special + [base64.b64decode(entry["token_bytes"]) for entry in content["vocab"][: size - special]]
    return Vocabulary(tuple(tokens), (EOS,), np.ones(size, dtype=bool))
