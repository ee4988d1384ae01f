"""Keywords of ``generate`` under a correction: each is used or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from transformers import GenerationConfig

from ..errors import UnsupportedError
from ..phi.estimator import Phi
from ..phi.exact import ExactPhi
from ..phi.local import LocalPhi
from ..phi.onestep import OneStepPhi
from ..settings import SamplingSettings

ESTIMATORS = {phi.name: phi for phi in (ExactPhi, LocalPhi, OneStepPhi)}
"""What ``phi="..."`` may name."""

USED = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "seed", "num_return_sequences", "do_sample", "num_beams")
"""The keywords that a call under a correction takes."""


def resolve_phi(phi: str | Phi | None) -> Phi | None:
    """Return the estimator that a call means by ``phi``.

    Raises
    ------
    UnsupportedError
        An unknown name or a wrong type; lists what there is.
    """
    if phi is None or isinstance(phi, Phi):
        return phi
    if phi not in ESTIMATORS:
        names = ", ".join(repr(name) for name in ESTIMATORS)
        raise UnsupportedError(f"phi={phi!r} was given; expected {names}, an estimator such as ExactPhi(...), or None.")
    return ESTIMATORS[phi]()


@final
@dataclass(frozen=True)
class CallOptions:
    """What a call under a correction asks for.

    Attributes
    ----------
    settings
        What defines ``p``.
    n
        Draws per prompt; ``None`` when the call did not say, and one text is meant.
    """

    settings: SamplingSettings
    n: int | None

    @classmethod
    def read(cls, keywords: dict[str, Any], defaults: GenerationConfig | None) -> CallOptions:
        """Read the keywords of a call, over the model's ``generation_config``.

        The configuration's temperature holds unless the call gives one. Its top-k, top-p and min-p do *not* apply: truncation
        changes the law that draws are faithful to and can empty the language, so the call has to ask for it.

        Raises
        ------
        UnsupportedError
            A keyword that is not used under a correction, or a value it cannot have.
        """
        unknown = sorted(set(keywords) - set(USED) - {"repetition_penalty"})
        if unknown:
            raise UnsupportedError(
                f"{', '.join(unknown)} cannot be used together with phi=; expected any of {', '.join(USED)}. "
                "With phi=None every keyword of the model's own generate works."
            )
        if keywords.get("do_sample") is False:
            raise UnsupportedError(
                "do_sample=False was given with phi=: the most probable member of the language is not offered yet. "
                "Leave do_sample unset to sample, or use phi=None for Hugging Face's step-by-step argmax."
            )
        if keywords.get("num_beams", 1) not in (None, 1):
            raise UnsupportedError("num_beams > 1 was given with phi=; beam search has no sampling law to correct. Leave it out.")
        _refuse_penalty(keywords, defaults)
        values = {name: keywords[name] for name in ("top_p", "min_p", "max_new_tokens", "seed", "temperature") if name in keywords}
        values["top_k"] = keywords.get("top_k") or None  # 0 means none in transformers
        if values.get("temperature") is None:
            values["temperature"] = getattr(defaults, "temperature", None) or 1.0
        return cls(SamplingSettings(**values), keywords.get("num_return_sequences"))


def _refuse_penalty(keywords: dict[str, Any], defaults: GenerationConfig | None) -> None:
    given = keywords.get("repetition_penalty")
    penalty = given if given is not None else getattr(defaults, "repetition_penalty", None)
    if penalty not in (None, 1.0):
        source = "the call" if given is not None else "the model's generation_config"
        raise UnsupportedError(
            f"repetition_penalty={penalty} in {source} is not offered under phi= yet. Give repetition_penalty=1.0 to draw from the law "
            "without it, or use phi=None."
        )
