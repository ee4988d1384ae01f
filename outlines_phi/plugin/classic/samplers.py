"""The samplers of the classic API: ``multinomial``, ``greedy`` and ``beam_search``, and ``particles``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

from ...errors import UnsupportedError
from ...phi.estimator import Phi
from ...sampling.resolve import SamplerOptions
from ...sampling.smc import PIMH, SMC
from ...settings import SamplingSettings

__all__: list[str] = ["beam_search", "greedy", "multinomial", "particles"]

UNTRUNCATED = {"min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
"""The other truncations of Hugging Face's loop, at what changes nothing."""


class ClassicSampler(ABC):
    """How the classic API chooses texts.

    Attributes
    ----------
    samples
        Texts per prompt.
    """

    samples: int

    @abstractmethod
    def under(self, phi: Phi) -> dict[str, Any]:
        """Return the keywords of a call under ``phi``."""

    @abstractmethod
    def hosted(self) -> dict[str, Any]:
        """Return the keywords of Hugging Face's ``generate``: all that choose tokens, so that none is inherited."""


@final
@dataclass(frozen=True)
class multinomial(ClassicSampler):  # noqa: N801 - named as in Outlines 0.x
    """Sampling, the default.

    Parameters
    ----------
    samples
        Texts per prompt, independent.
    top_k, top_p
        Truncation; none by default, whatever the model's ``generation_config`` says.
    temperature
        1.0 by default, whatever the model's ``generation_config`` says.

    Raises
    ------
    UnsupportedError
        A value out of range.
    """

    samples: int = 1
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None

    def __init__(
        self,
        samples: int = 1,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float | None = None,
    ) -> None:
        check_count("samples", samples)
        if temperature == 0:
            raise UnsupportedError("temperature=0 was given to multinomial(); the most probable output is greedy().")
        SamplingSettings(top_k=top_k, top_p=top_p, temperature=1.0 if temperature is None else temperature)
        values = {"samples": samples, "top_k": top_k, "top_p": top_p, "temperature": temperature}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def under(self, phi: Phi) -> dict[str, Any]:
        law = {"temperature": self._temperature, "top_k": self.top_k, "top_p": self.top_p}
        return {**law, "num_return_sequences": self.samples}

    def hosted(self) -> dict[str, Any]:
        truncation = {**UNTRUNCATED, "top_k": self.top_k or 0, "top_p": 1.0 if self.top_p is None else self.top_p}
        law = {"do_sample": True, "num_beams": 1, "temperature": self._temperature, **truncation}
        return {**law, "num_return_sequences": self.samples}

    @property
    def _temperature(self) -> float:
        return 1.0 if self.temperature is None else self.temperature


@final
@dataclass(frozen=True)
class greedy(ClassicSampler):  # noqa: N801
    """The most probable output under ``phi``; the most probable token at every step with ``phi=None``."""

    @property
    def samples(self) -> int:  # type: ignore[override]
        """Always 1."""
        return 1

    def under(self, phi: Phi) -> dict[str, Any]:
        return {"temperature": 1.0, "do_sample": False}

    def hosted(self) -> dict[str, Any]:
        return {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}


@final
@dataclass(frozen=True)
class beam_search(ClassicSampler):  # noqa: N801
    """Hugging Face's beam search, with ``phi=None`` only; one text per beam."""

    beams: int = 1

    def __post_init__(self) -> None:
        check_count("beams", self.beams)

    @property
    def samples(self) -> int:  # type: ignore[override]
        """One per beam."""
        return self.beams

    def under(self, phi: Phi) -> dict[str, Any]:
        """Refuse.

        Raises
        ------
        UnsupportedError
            Always.
        """
        raise UnsupportedError(
            f"beam_search(beams={self.beams}) was given with phi={phi.name!r}; a beam search has no sampling law to correct. "
            "greedy() gives the most probable output with a certificate, multinomial() draws; or use phi=None for Hugging "
            "Face's own beams."
        )

    def hosted(self) -> dict[str, Any]:
        return {"do_sample": False, "num_beams": self.beams, "num_return_sequences": self.beams}


@final
@dataclass(frozen=True)
class particles(ClassicSampler):  # noqa: N801
    """Draws from populations of particles; ``SMC(...)`` and ``PIMH(...)`` may be given by themselves for one text per prompt.

    Parameters
    ----------
    sampler
        ``SMC(particles=50, ...)`` or ``PIMH(smc=SMC(...))``.
    samples
        Texts per prompt, each from a population of its own.
    temperature
        As for :class:`multinomial`.

    Raises
    ------
    UnsupportedError
        Something else, or a value out of range.
    """

    sampler: SamplerOptions
    samples: int = 1
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, SMC | PIMH):
            raise UnsupportedError(
                f"particles({self.sampler!r:.80}) was given; expected SMC(particles=50, ...) or PIMH(smc=SMC(...))."
            )
        check_count("samples", self.samples)
        SamplingSettings(temperature=self.temperature)

    def under(self, phi: Phi) -> dict[str, Any]:
        return {"temperature": self.temperature, "num_return_sequences": self.samples, "sampler": self.sampler}

    def hosted(self) -> dict[str, Any]:
        """Refuse.

        Raises
        ------
        UnsupportedError
            Always.
        """
        raise UnsupportedError(
            f"{self.sampler!r:.80} was given with phi=None or for free text. Particles need an output type, and an estimator that "
            "proposes: leave phi out, or give phi='local' or another proposal. multinomial() samples without them."
        )


def check_count(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedError(f"{name}={value!r} was given; expected a whole number of at least 1.")
