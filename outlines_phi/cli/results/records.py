"""The lines of a file of draws."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from ...errors import ValueReadError
from ...sampling.draw import Draw
from ...sampling.draws import Draws
from ..inputs.prompts import Prompt

Record = dict[str, Any]


def draw_records(index: int, prompt: Prompt, draws: Draws, *, token_ids: bool) -> Iterator[Record]:
    """Yield one record per draw of a prompt.

    ``rejections`` are those of all draws of the prompt, and so is ``tokens_per_call``, under drafts. A trajectory that found no
    allowed token (``Draws.failures``) has no text and no ``log_w``: its weight is 0, and it counts in every mean of weights.
    """
    after = {
        "prompt_ess": draws.ess,
        "total_variation": None if draws.certificate is None else draws.certificate.total_variation,
        "confidence": None if draws.certificate is None else draws.certificate.confidence,
        "log_z": _finite(draws.log_z),
        "log_z_bounds": [_finite(bound) for bound in draws.log_z_bounds],
        **({"rejections": dict(draws.rejections)} if draws.rejections else {}),
        **({"tokens_per_call": draws.counts.tokens_per_call} if draws.counts.turns else {}),
    }
    known = zip(draws, draws.weights.tolist(), strict=True)
    for number, (draw, weight) in enumerate([*known, *[(None, 0.0)] * draws.failures]):
        yield {
            "record": "draw",
            "prompt_index": index,
            "prompt": prompt,
            "draw_index": number,
            "text": None if draw is None else draw.text,
            **({"value": None} if draw is None else _value(draw)),
            **({"token_ids": draw and list(draw.token_ids)} if token_ids else {}),
            "log_p": draw and _finite(draw.log_p),
            "log_w": draw and _finite(draw.log_w),
            "weight": weight,
            "guarantee": "weighted" if draw is None else draw.guarantee.name.lower(),
            "ess": 0.0 if draw is None else draw.ess,
            **after,
        }


def error_record(index: int, prompt: Prompt, error: Exception) -> Record:
    """Return the record of a prompt that has no draws, or not all that were asked for."""
    return {
        "record": "error",
        "prompt_index": index,
        "prompt": prompt,
        "error": type(error).__name__,
        # A prompt that fails is drawn by itself, where it is the first of one.
        "message": " ".join(str(error).removeprefix("Prompt 0: ").split()),
    }


def line(record: Record) -> bytes:
    """Return a record as a line of UTF-8, escaped where a prompt is no valid Unicode."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, allow_nan=False).encode() + b"\n"


def _value(draw: Draw) -> Record:
    """Return the value as JSON has it, or why the type refuses the text."""
    try:
        return {"value": to_jsonable_python(draw.value, inf_nan_mode="strings", fallback=str)}
    except ValueReadError as error:
        return {"value": None, "value_error": " ".join(str(error).split())}
    except (PydanticSerializationError, UnicodeEncodeError, ValueError) as error:
        return {"value": None, "value_error": f"The value has no form in JSON: {error}"}


def _finite(x: float) -> float | None:
    """Return a number as JSON has it: null for what is infinite."""
    return x if math.isfinite(x) else None
