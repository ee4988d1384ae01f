"""A generator with its correction built in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, final

from outlines.generator import SteerableGenerator

from ..errors import BudgetError, InterruptedDraws, UnsupportedError
from ..fidelity.audit_report import AuditReport
from ..fidelity.probabilities import Probabilities
from ..guides.phrases.banned import BannedPhrases
from ..guides.table import Table
from ..phi.constraint import Predicate, TextConstraint
from ..phi.estimator import Phi
from ..sampling.draws import Draws
from ..sampling.phi_options import Effort
from ..sampling.ranking import Ranking
from ..sampling.smc import SMC
from .auditing import audit
from .call import (
    COUNTED,
    TOKENIZATIONS,
    USED,
    Ban,
    Call,
    CallOptions,
    Correction,
    Unset,
    check_tolerance,
    law_options,
    resolve_constraint,
    resolve_sampler,
    search_effort,
)
from .choices import MEANT, MEANT_BY_DRAWS, refuse_unknown, said
from .drafts import DraftOptions, Drafts, check_draft, resolve_draft
from .mistakes import check_one, not_pickled
from .processor import MaskLogitsProcessor
from .session import PhiModel
from .streaming import Asynchronous, Pieces
from .types.readers import ValueReader, reader
from .wrapping import wrapped


@final
@dataclass(eq=False, repr=False)
class PhiGenerator(Asynchronous, SteerableGenerator):
    """A model, a compiled output type and an estimator, ready to be called. Made by :func:`Generator`.

    Calls take the keywords of :class:`outlines_phi.SamplingSettings`, ``num_return_sequences`` and ``progress=``, and, in place of
    the generator's own, ``phi=``, ``banned_phrases=``, ``sampler=``, ``draft=`` and ``draft_length=``. Particles follow plain
    masking, ``"local"``, where no estimator was chosen.
    """

    model: PhiModel
    output_type: Any
    correction: Correction
    tokenization: str = "any"
    constraint: TextConstraint | None = None
    sampler: SMC | None = None
    draft: DraftOptions | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        self.worker = self.model.worker
        self.reader = str if self.output_type is None else reader(self.output_type)
        self.unbanned_processor = (
            None
            if self.output_type is None
            else MaskLogitsProcessor(self.model.table(self.output_type, backend=self.backend))
        )
        self.logits_processor = self._processor(self.correction)

    def __reduce__(self) -> Any:
        raise not_pickled("A generator")

    @property
    def phi(self) -> Phi | None:
        """The estimator; ``None`` for plain masking, in Outlines' own loop."""
        return self.correction.estimator(free=self.output_type is None)

    @property
    def banned_phrases(self) -> BannedPhrases | None:
        """What is not written; ``None`` where nothing is banned."""
        return self.correction.ban

    def _processor(self, correction: Correction) -> Any:
        """Return what allows the output type without what is banned; ``None`` for free text without a ban."""
        call = Call.of(correction, self.unbanned_processor, {"sampler": self.sampler})
        return call.processor(self.model.compiled)

    def _call(self, keywords: dict[str, Any]) -> Call:
        """Return a call with ``keywords``, and all of the generator's own that they leave out."""
        said = (keywords.pop(name, Unset.UNSET) for name in ("phi", "banned_phrases"))
        correction = self.correction.replaced_by(*said)
        # Its drafts are for draws; a search for the mode has no use for them.
        draft = {} if keywords.get("do_sample") is False else {"draft": self.draft}
        keywords = {"sampler": self.sampler, **draft, **self._language, **keywords}
        if correction is not self.correction:
            return Call.of(correction, self.unbanned_processor, keywords)
        # The processor keeps out what is banned already.
        return Call.of(replace(correction, ban=None), self.logits_processor, keywords)

    def _law(self, keywords: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
        """Return what a call that draws nothing is about, and its other keywords."""
        processor = self.logits_processor
        if "banned_phrases" in keywords:
            processor = self._processor(self.correction.replaced_by(banned_phrases=keywords.pop("banned_phrases")))
        return self.model.table(processor), {**self._language, **keywords}

    @property
    def _language(self) -> dict[str, Any]:
        return {"tokenization": self.tokenization, "constraint": self.constraint}

    def __call__(self, prompt: Any, **keywords: Any) -> Any:
        """Return one text; a list of them where ``num_return_sequences`` is more than 1."""
        return self.model.written(self._call(keywords), prompt)

    def batch(self, prompts: list[Any], **keywords: Any) -> list[Any]:
        """Return one text per prompt, drawn in shared model calls."""
        return self.model.written_batch(self._call(keywords), prompts)

    def stream(self, prompt: Any, **keywords: Any) -> Pieces:
        """Yield the text of a call piece by piece: only what is accepted, whole characters, never taken back."""
        return self.model.written_in_pieces(self._call(keywords), prompt)

    async def asample(self, prompt: Any, n: int = 1, **keywords: Any) -> Draws:
        """Return what :meth:`sample` does; as :meth:`agenerate`."""
        return await self.model.worker.run(partial(self.sample, prompt, n, **keywords))

    def sample(self, prompt: Any, n: int = 1, **keywords: Any) -> Draws:
        """Return ``n`` draws, i.i.d., with their weights, guarantee and counts; keywords as in a call."""
        check_one(prompt, "sample_batch()")
        return self.sample_batch([prompt], n, **keywords)[0]

    def sample_batch(self, prompts: list[Any], n: int = 1, **keywords: Any) -> list[Draws]:
        """Return :meth:`sample` of every prompt, drawn in shared model calls."""
        call = self._call(keywords)
        phi, keywords, table = call.phi, call.keywords, call.table(self.model.compiled)
        if phi is None:
            raise UnsupportedError(
                "Give phi='exact' or phi='local' (masking) to sample(), which has to know the distribution of its draws."
            )
        if "num_return_sequences" in keywords:
            raise UnsupportedError("Give sample() its argument n, the number of draws, not num_return_sequences.")
        refuse_unknown(said(keywords), COUNTED, MEANT_BY_DRAWS)
        options = replace(CallOptions.read(keywords, self.model.defaults), n=n)
        try:
            results = self.model.draw(prompts, table, phi, options)
        except (BudgetError, InterruptedDraws) as error:
            error.draws = [draws.read_by(self.reader) for draws in error.draws]
            raise
        return [draws.read_by(self.reader) for draws in results]

    def probabilities(
        self, prompt: Any, *, tolerance: float = 1e-3, effort: Effort | None = None, **settings: Any
    ) -> Probabilities:
        """Return the probability of every value under the conditioned distribution, with certified bounds.

        No interval ends wider than ``tolerance``; 0 is enumeration to the last prefix. Beyond ``effort``, an
        ``Effort(tokens=..., seconds=...)``, a ``BudgetError`` carries the bounds so far. The ``settings`` are those of a call.
        """
        check_one(prompt, "probabilities_batch()")
        return self.probabilities_batch([prompt], tolerance=tolerance, effort=effort, **settings)[0]

    def probabilities_batch(
        self, prompts: list[Any], *, tolerance: float = 1e-3, effort: Effort | None = None, **settings: Any
    ) -> list[Probabilities]:
        """Return :meth:`probabilities` of every prompt, in shared model calls."""
        table, keywords = self._law(settings)
        check_tolerance(tolerance)
        options = law_options(table, "probabilities()", keywords, self.model.defaults)
        keeps = isinstance(self.reader, ValueReader) and self.reader.keeps
        reader, limit = None if keeps else self.reader, search_effort(self.phi, effort)
        return self.model.probabilities(prompts, table, options, reader, tolerance=tolerance, effort=limit)

    def mode(
        self, prompt: Any, top: int = 1, *, tolerance: float = 0.0, effort: Effort | None = None, **settings: Any
    ) -> Ranking:
        """Return the ``top`` most probable members (token sequences) of the language, with a certificate.

        There may be fewer than ``top``. With ``tolerance``, no other member has more than ``1 + tolerance`` times the probability
        of the last one. The other parameters are as for :meth:`probabilities`.
        """
        check_one(prompt, "mode_batch()")
        return self.mode_batch([prompt], top, tolerance=tolerance, effort=effort, **settings)[0]

    def mode_batch(
        self, prompts: list[Any], top: int = 1, *, tolerance: float = 0.0, effort: Effort | None = None, **settings: Any
    ) -> list[Ranking]:
        """Return :meth:`mode` of every prompt, in shared model calls."""
        table, keywords = self._law(settings)
        options = law_options(table, "mode()", keywords, self.model.defaults)
        limit = search_effort(self.phi, effort)
        return self.model.rank(prompts, table, options, top, self.reader, tolerance=tolerance, effort=limit)

    def audit(self, prompts: Any, n: int = 200, **settings: Any) -> AuditReport:
        """Return how biased plain masking is here; see :func:`outlines_phi.audit`."""
        return audit(self, prompts, n, **settings)


def Generator(  # noqa: N802 - named as the host's own function
    model: Any,
    output_type: Any = None,
    *,
    phi: str | Phi | Unset | None = Unset.UNSET,
    tokenization: str = "any",
    constraint: Predicate | TextConstraint | None = None,
    sampler: SMC | None = None,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    draft: Drafts | None = None,
    draft_length: int | None = None,
    backend: str | None = None,
    **unknown: Any,
) -> PhiGenerator:
    """Return a generator of ``output_type`` that draws under ``phi``. The counterpart of ``outlines.Generator``.

    Parameters
    ----------
    model
        From :func:`outlines_phi.from_transformers` or :func:`outlines_phi.wrap`, or a stock one, which is wrapped.
    output_type
        What to write: anything that Outlines takes, a guide or a table. Left out, free text without ``banned_phrases``.
    phi
        ``"auto"``, ``"exact"``, ``"local"``, ``"onestep"``, an estimator, or ``None`` for plain Outlines. Left
        out, the model's own where it has one, else ``"auto"``; for free text ``"lookahead"``.
    tokenization
        ``"any"`` tokenization of a text, as the model may write it, or the ``"canonical"`` one alone: the tokenizer's own.
    constraint
        A function that says whether a text may be the beginning of an output, or a :class:`outlines_phi.TextConstraint`.
    sampler
        ``SMC(...)`` for particles that follow the estimator; ``None`` for what the estimator has by itself.
    banned_phrases
        What must not be written: a list of phrases, or a :class:`outlines_phi.BannedPhrases`. Left out, what the model bans.
    draft
        What proposes the tokens that will probably follow: ``"forced"``, ``"prompt_lookup"``, ``"tree"``, a drafter, a smaller
        model with the same tokenizer, or a list of these.
    draft_length
        The most tokens of a draft; 8 where there is one.
    backend
        Who reads a JSON schema: this package, ``None``, or ``"outlines_core"``. Outlines' other backends are refused.

    Raises
    ------
    VocabularyError
        A model that is to draft has other tokens; says which.
    UnsupportedError
        A model or an output type that cannot be used; says what can.
    EmptyLanguageError
        The phrases leave nothing of the output type.
    """
    model = wrapped(model, "Generator(model, output_type)", output_type)
    refuse_unknown(unknown, KEYWORDS, MEANT | {name: "give it to the generator's call" for name in USED})
    correction = model.correction.replaced_by(phi, banned_phrases)
    if output_type is None and correction.ban is None:
        raise UnsupportedError(
            "Give a type or banned_phrases=[...], or call the model itself: output_type=None was given, and free text "
            "has nothing to correct."
        )
    if tokenization not in TOKENIZATIONS:
        raise UnsupportedError(f"tokenization={tokenization!r} was given; expected 'any' or 'canonical'.")
    drafts = check_draft(model, correction.estimator(sampler), resolve_draft(draft, draft_length))
    given = resolve_constraint(constraint), resolve_sampler(sampler), drafts
    return PhiGenerator(model, output_type, correction, tokenization, *given, backend)


KEYWORDS = tuple(name for name, one in signature(Generator).parameters.items() if one.kind is one.KEYWORD_ONLY)
