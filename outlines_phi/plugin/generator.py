"""A generator with its correction built in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

from outlines.generator import SteerableGenerator

from ..errors import UnsupportedError
from ..phi.estimator import Phi
from ..sampling.draws import Draws
from .model import PhiTransformers
from .options import CallOptions, resolve_phi
from .processor import MaskLogitsProcessor


@final
class PhiGenerator(SteerableGenerator):
    """A model, a compiled output type and an estimator, ready to be called.

    Made by :func:`Generator`. Calls take the keywords of ``SamplingSettings`` (``temperature``, ``top_k``, ``top_p``,
    ``min_p``, ``repetition_penalty``, ``max_new_tokens``, ``seed``) and ``num_return_sequences``; ``phi=`` in a call
    replaces the generator's own.
    """

    def __init__(self, model: PhiTransformers, output_type: Any, phi: Phi | None) -> None:
        self.model: PhiTransformers = model
        self.phi = phi
        self.logits_processor = MaskLogitsProcessor(model.table(output_type))

    def __call__(self, prompt: Any, **keywords: Any) -> Any:
        """Return one text; a list of them where ``num_return_sequences`` is more than 1."""
        return super().__call__(prompt, **{"phi": self.phi, **keywords})

    def batch(self, prompts: list[Any], **keywords: Any) -> list[Any]:
        """Return one text per prompt, drawn in shared model calls."""
        return super().batch(prompts, **{"phi": self.phi, **keywords})

    def sample(self, prompt: Any, n: int = 1, **keywords: Any) -> Draws:
        """Return ``n`` draws with their weights, guarantee and counts.

        Parameters
        ----------
        prompt
            ``str`` or Outlines ``Chat``.
        n
            How many; i.i.d.
        **keywords
            As in a call.
        """
        return self.sample_batch([prompt], n, **keywords)[0]

    def sample_batch(self, prompts: list[Any], n: int = 1, **keywords: Any) -> list[Draws]:
        """Return :meth:`sample` of every prompt, drawn in shared model calls."""
        phi = resolve_phi(keywords.pop("phi", self.phi))
        if phi is None:
            raise UnsupportedError(
                "sample() needs an estimator to know the law of its draws; give phi='exact' or phi='local' (masking)."
            )
        if "num_return_sequences" in keywords:
            raise UnsupportedError("num_return_sequences was given to sample(); the number of draws is its argument n.")
        options = replace(CallOptions.read(keywords, self.model.model.generation_config), n=n)
        return self.model.draw(prompts, self.logits_processor.table, phi, options)


def Generator(  # noqa: N802 - named as the host's own function
    model: PhiTransformers, output_type: Any, *, phi: str | Phi | None = "exact"
) -> PhiGenerator:
    """Return a generator of ``output_type`` that draws under ``phi``.

    The counterpart of ``outlines.Generator``.

    Parameters
    ----------
    model
        From :func:`outlines_phi.from_transformers` or :func:`outlines_phi.wrap`.
    output_type
        What to write; see :func:`outlines_phi.plugin.output_types.to_pattern`.
    phi
        ``"exact"``, ``"local"``, ``"onestep"``, an estimator, or ``None`` for plain Outlines.

    Raises
    ------
    UnsupportedError
        A model or an output type that cannot be used; says what can.
    """
    if not isinstance(model, PhiTransformers):
        raise UnsupportedError(
            f"{type(model).__name__} was given as model; wrap it first: outlines_phi.wrap(model), or load it by "
            "outlines_phi.from_transformers(hf_model, hf_tokenizer)."
        )
    if output_type is None:
        raise UnsupportedError(
            "output_type=None was given: free text has nothing to correct. Give a type, or call the model itself."
        )
    return PhiGenerator(model, output_type, resolve_phi(phi))
