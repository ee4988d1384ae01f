"""The samplers of the classic API: ``multinomial``, ``greedy`` and ``beam_search``, and ``particles``."""

from __future__ import annotations

from typing import Any

from ...numerics.checks import check_counts
from ...sampling.ancestral import SMC
from ...settings import SamplingSettings
from ..choices import meant

__all__: list[str] = ["beam_search", "greedy", "multinomial", "particles"]


class ClassicSampler(dict[str, Any]):
    """The keywords of calls by which the classic API chooses texts."""


def multinomial(
    samples: int = 1, *, top_k: int | None = None, top_p: float | None = None, temperature: float | None = None
) -> ClassicSampler:
    """Sample independent texts, at temperature 1 and without truncation by default, whatever ``generation_config`` says."""
    check_counts("multinomial", samples=samples)
    given = {"temperature": 1.0 if temperature is None else temperature, "top_k": top_k, "top_p": top_p}
    SamplingSettings(**given)  # type: ignore[arg-type]  # raises what is wrong with them
    return ClassicSampler({k: v for k, v in given.items() if v is not None}, num_return_sequences=samples)


def greedy() -> ClassicSampler:
    """Choose the most probable output under ``phi``; the most probable token at every step with ``phi=None``."""
    return ClassicSampler(temperature=1.0, do_sample=False, num_beams=1, num_return_sequences=1)


def beam_search(beams: int = 1) -> ClassicSampler:
    """Search with Hugging Face's beams, with ``phi=None`` only; one text per beam."""
    check_counts("beam_search", beams=beams)
    return ClassicSampler(do_sample=False, num_beams=beams, num_return_sequences=beams)


def particles(sampler: SMC, samples: int = 1, temperature: float = 1.0) -> ClassicSampler:
    """Draw texts, each from a population of its own; ``SMC(...)`` by itself stands for one of them."""
    check_counts("particles", samples=samples)
    SamplingSettings(temperature=temperature)
    return ClassicSampler(temperature=temperature, num_return_sequences=samples, sampler=meant("sampler", sampler))
