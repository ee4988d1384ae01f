"""The samplers of the classic API: ``multinomial``, ``greedy`` and ``beam_search``, and ``particles``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias, final

from ...errors import UnsupportedError
from ...numerics.checks import check_counts
from ...phi.estimator import Phi
from ...sampling.smc import SMC
from ...settings import SamplingSettings

__all__: list[str] = ["beam_search", "greedy", "multinomial", "particles"]

UNTRUNCATED = {"min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
"""The other truncations of Hugging Face's loop, at what changes nothing."""


@final
@dataclass(frozen=True)
class multinomial:  # noqa: N801 - named as in Outlines 0.x
    """Sampling, the default; its defaults hold whatever the model's ``generation_config`` says."""

    samples: int = 1  # texts per prompt, independent
    _: KW_ONLY
    # Truncation; none by default.
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None  # 1.0 by default

    def __post_init__(self) -> None:
        check_counts(type(self).__name__, samples=self.samples)
        if self.temperature == 0:
            raise UnsupportedError(
                "Use greedy() for the most probable output: temperature=0 was given to multinomial()."
            )
        SamplingSettings(top_k=self.top_k, top_p=self.top_p, temperature=self._temperature)

    def under(self, phi: Phi) -> dict[str, Any]:
        """Return the keywords of a call under ``phi``; the other samplers refuse what cannot be corrected."""
        truncation = {"top_k": self.top_k, "top_p": self.top_p}
        return {"temperature": self._temperature, **truncation, "num_return_sequences": self.samples}

    def hosted(self) -> dict[str, Any]:
        """Return the keywords of Hugging Face's ``generate``: all that choose tokens, so that none is inherited."""
        truncation = {**UNTRUNCATED, "top_k": self.top_k or 0, "top_p": 1.0 if self.top_p is None else self.top_p}
        sampled = {"do_sample": True, "num_beams": 1, "temperature": self._temperature}
        return {**sampled, **truncation, "num_return_sequences": self.samples}

    @property
    def _temperature(self) -> float:
        return 1.0 if self.temperature is None else self.temperature


@final
@dataclass(frozen=True)
class greedy:  # noqa: N801
    """The most probable output under ``phi``; the most probable token at every step with ``phi=None``."""

    samples = 1

    def under(self, phi: Phi) -> dict[str, Any]:
        return {"temperature": 1.0, "do_sample": False}

    def hosted(self) -> dict[str, Any]:
        return {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}


@final
@dataclass(frozen=True)
class beam_search:  # noqa: N801
    """Hugging Face's beam search, with ``phi=None`` only; one text per beam."""

    beams: int = 1

    def __post_init__(self) -> None:
        check_counts("beam_search", beams=self.beams)

    @property
    def samples(self) -> int:
        """One per beam."""
        return self.beams

    def under(self, phi: Phi) -> dict[str, Any]:
        raise UnsupportedError(
            "Use greedy() for the most probable output, multinomial() to draw, or phi=None for Hugging Face's "
            f"own beams. beam_search(beams={self.beams}) was given with phi={phi.name!r}, which corrects no beams."
        )

    def hosted(self) -> dict[str, Any]:
        return {"do_sample": False, "num_beams": self.beams, "num_return_sequences": self.beams}


@final
@dataclass(frozen=True)
class particles:  # noqa: N801
    """Draws from populations of particles; ``SMC(...)`` may be given by itself for one text per prompt."""

    sampler: SMC  # ``SMC(particles=50, ...)``
    samples: int = 1  # texts per prompt, each from a population of its own
    temperature: float = 1.0  # as for :class:`multinomial`

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, SMC):
            raise UnsupportedError(f"particles({self.sampler!r:.80}) was given; expected SMC(particles=50, ...).")
        check_counts(type(self).__name__, samples=self.samples)
        SamplingSettings(temperature=self.temperature)

    def under(self, phi: Phi) -> dict[str, Any]:
        return {"temperature": self.temperature, "num_return_sequences": self.samples, "sampler": self.sampler}

    def hosted(self) -> dict[str, Any]:
        raise UnsupportedError(
            "Leave phi out, or give phi='local' or another proposal and an output type; multinomial() samples without them. "
            f"{self.sampler!r:.80} was given with phi=None or for free text, and particles need an estimator that proposes."
        )


ClassicSampler: TypeAlias = multinomial | greedy | beam_search | particles
"""How the classic API chooses texts, ``samples`` of them per prompt."""
