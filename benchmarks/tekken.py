"""The 131,072-token vocabulary of the benchmarks: Mistral's Tekken, from the files of the mistral-common package."""

from __future__ import annotations

import base64
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from outlines_phi.vocabulary.vocabulary import Vocabulary

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
    ranks = content["vocab"][: size - special]
    tokens = [b""] * special + [base64.b64decode(entry["token_bytes"]) for entry in ranks]
    return Vocabulary(tuple(tokens), (EOS,), np.ones(size, dtype=bool))
