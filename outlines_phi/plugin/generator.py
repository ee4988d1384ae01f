"""A generator with its correction built in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Any, final

from outlines.generator import SteerableGenerator

from ..errors import BudgetError, UnsupportedError
from ..fidelity.audit import AuditReport
from ..fidelity.probabilities import Probabilities
from ..phi.estimator import Phi
from ..phi.exact import Effort
from ..phi.text_constraint import Predicate, TextConstraint
from ..sampling.draws import Draws
from ..sampling.ranking import Ranking
from . import search
from .audit import audit
from .keywords import MEANT, refuse_unknown
from .mistakes import check_one, no_model
from .model import PhiTransformers
from .options import (
    COUNTED,
    NEUTRAL,
    TOKENIZATIONS,
    CallOptions,
    SamplerOptions,
    Unset,
    default_phi,
    proposing,
    resolve_constraint,
    resolve_phi,
    resolve_sampler,
)
from .processor import MaskLogitsProcessor
from .streaming import Pieces
from .values import reader


@final
class PhiGenerator(SteerableGenerator):
    """A model, a compiled output type and an estimator, ready to be called.

    Made by :func:`Generator`. Calls take the keywords of ``SamplingSettings`` (``temperature``, ``top_k``, ``top_p``,
    ``min_p``, ``repetition_penalty``, ``max_new_tokens``, ``seed``) and ``num_return_sequences``; ``phi=`` in a call
    replaces the generator's own. ``sampler=SMC(...)`` or ``PIMH(...)`` draws by particles that follow the estimator: plain masking,
    ``"local"``, where none was chosen.
    """

    def __init__(
        self,
        model: PhiTransformers,
        output_type: Any,
        phi: Phi | None,
        tokenization: str = "any",
        constraint: TextConstraint | None = None,
        sampler: SamplerOptions | None = None,
    ) -> None:
        self.model: PhiTransformers = model
        self.phi, self.tokenization, self.constraint, self.sampler = phi, tokenization, constraint, sampler
        self.logits_processor = MaskLogitsProcessor(model.table(output_type))
        self.reader = reader(output_type)

    @property
    def _given(self) -> dict[str, Any]:
        return {"phi": self.phi, "sampler": self.sampler, **self._language}

    @property
    def _language(self) -> dict[str, Any]:
        return {"tokenization": self.tokenization, "constraint": self.constraint}

    def __call__(self, prompt: Any, **keywords: Any) -> Any:
        """Return one text; a list of them where ``num_return_sequences`` is more than 1."""
        return super().__call__(prompt, **{**self._given, **keywords})

    def batch(self, prompts: list[Any], **keywords: Any) -> list[Any]:
        """Return one text per prompt, drawn in shared model calls."""
        return super().batch(prompts, **{**self._given, **keywords})

    def stream(self, prompt: Any, **keywords: Any) -> Pieces:
        """Yield the text of a call piece by piece: only what is accepted, whole characters, never taken back."""
        return super().stream(prompt, **{**self._given, **keywords})

    async def agenerate(self, prompt: Any, **keywords: Any) -> Any:
        """Return what a call does, without blocking the event loop; cancelling stops it at its next model call."""
        return await self.model.worker.run(partial(self, prompt, **keywords))

    async def abatch(self, prompts: list[Any], **keywords: Any) -> list[Any]:
        """Return what :meth:`batch` does; as :meth:`agenerate`."""
        return await self.model.worker.run(partial(self.batch, prompts, **keywords))

    async def asample(self, prompt: Any, n: int = 1, **keywords: Any) -> Draws:
        """Return what :meth:`sample` does; as :meth:`agenerate`."""
        return await self.model.worker.run(partial(self.sample, prompt, n, **keywords))

    def astream(self, prompt: Any, **keywords: Any) -> AsyncGenerator[str, None]:
        """Yield what :meth:`stream` does; as :meth:`agenerate`."""
        return self.model.worker.stream(partial(self.stream, prompt, **keywords))

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
        check_one(prompt, "sample_batch()")
        return self.sample_batch([prompt], n, **keywords)[0]

    def sample_batch(self, prompts: list[Any], n: int = 1, **keywords: Any) -> list[Draws]:
        """Return :meth:`sample` of every prompt, drawn in shared model calls."""
        keywords = {**self._given, **keywords}
        phi = proposing(resolve_phi(keywords.pop("phi")), keywords.get("sampler"))
        if phi is None:
            raise UnsupportedError(
                "sample() needs an estimator to know the law of its draws; give phi='exact' or phi='local' (masking)."
            )
        if "num_return_sequences" in keywords:
            raise UnsupportedError("num_return_sequences was given to sample(); the number of draws is its argument n.")
        refuse_unknown(keywords.keys() - NEUTRAL.keys(), COUNTED, MEANT)
        options = replace(CallOptions.read(keywords, self.model.model.generation_config), n=n)
        try:
            results = self.model.draw(prompts, self.logits_processor.table, phi, options)
        except BudgetError as error:
            error.draws = [draws.read_by(self.reader) for draws in error.draws]
            raise
        return [draws.read_by(self.reader) for draws in results]

    def probabilities(
        self, prompt: Any, *, tolerance: float = 1e-3, effort: Effort | None = None, **settings: Any
    ) -> Probabilities:
        """Return the probability of every value under the conditioned law, with certified bounds.

        Parameters
        ----------
        prompt
            ``str`` or Outlines ``Chat``.
        tolerance
            No interval ends wider than this; 0 for enumeration to the last prefix.
        effort
            ``Effort(tokens=...)``: model tokens to spend at most, then a ``BudgetError`` that carries the bounds so far.
        **settings
            What defines the law, as in a call.
        """
        check_one(prompt, "probabilities_batch()")
        return self.probabilities_batch([prompt], tolerance=tolerance, effort=effort, **settings)[0]

    def probabilities_batch(
        self, prompts: list[Any], *, tolerance: float = 1e-3, effort: Effort | None = None, **settings: Any
    ) -> list[Probabilities]:
        """Return :meth:`probabilities` of every prompt, in shared model calls."""
        return search.probabilities(self, prompts, tolerance, effort, {**self._language, **settings})

    def mode(
        self, prompt: Any, top: int = 1, *, tolerance: float = 0.0, effort: Effort | None = None, **settings: Any
    ) -> Ranking:
        """Return the ``top`` most probable members (token sequences) of the language, with a certificate.

        Parameters
        ----------
        prompt
            ``str`` or Outlines ``Chat``.
        top
            How many; all of them where there are fewer.
        tolerance
            Be content when no other member can have more than ``1 + tolerance`` times the probability of the last one.
        effort
            As for :meth:`probabilities`.
        **settings
            What defines the law, as in a call.
        """
        check_one(prompt, "mode_batch()")
        return self.mode_batch([prompt], top, tolerance=tolerance, effort=effort, **settings)[0]

    def mode_batch(
        self, prompts: list[Any], top: int = 1, *, tolerance: float = 0.0, effort: Effort | None = None, **settings: Any
    ) -> list[Ranking]:
        """Return :meth:`mode` of every prompt, in shared model calls."""
        return search.mode(self, prompts, top, tolerance, effort, {**self._language, **settings})

    def audit(self, prompts: Any, n: int = 200, **settings: Any) -> AuditReport:
        """Return how biased plain masking is here; see :func:`outlines_phi.audit`."""
        return audit(self, prompts, n, **settings)


def Generator(  # noqa: N802 - named as the host's own function
    model: PhiTransformers,
    output_type: Any,
    *,
    phi: str | Phi | Unset | None = Unset.UNSET,
    tokenization: str = "any",
    constraint: Predicate | TextConstraint | None = None,
    sampler: SamplerOptions | None = None,
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
        ``"auto"``, ``"exact"``, ``"local"``, ``"onestep"``, an estimator, or ``None`` for plain Outlines. Left
        out, the model's own where it has one, else ``"auto"``.
    tokenization
        ``"any"`` spelling of a text by tokens, as the model may write it, or the ``"canonical"`` one alone: the tokenizer's own.
    constraint
        A function that says whether a text may be the beginning of an output, or a :class:`outlines_phi.TextConstraint`.
    sampler
        ``SMC(...)`` or ``PIMH(...)`` for particles that follow the estimator; ``None`` for what the estimator has by itself.

    Raises
    ------
    UnsupportedError
        A model or an output type that cannot be used; says what can.
    """
    if not isinstance(model, PhiTransformers):
        raise no_model(model, "Generator(model, output_type)", output_type)
    if output_type is None:
        raise UnsupportedError(
            "output_type=None was given: free text has nothing to correct. Give a type, or call the model itself."
        )
    if tokenization not in TOKENIZATIONS:
        raise UnsupportedError(f"tokenization={tokenization!r} was given; expected 'any' or 'canonical'.")
    given = resolve_constraint(constraint), resolve_sampler(sampler)
    return PhiGenerator(model, output_type, default_phi(phi, model), tokenization, *given)
