"""Generators with their correction built in, and audits: how biased the masking of an application is, as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from inspect import signature
from types import FunctionType, UnionType
from typing import Any, final, get_origin

from outlines.generator import SteerableGenerator
from outlines.types.dsl import Term
from transformers import GenerationConfig

from ..errors import BudgetError, InterruptedDraws, UnsupportedError
from ..fidelity.audit_report import AuditReport, audit_traces, check
from ..fidelity.bias import TOLERANCE as UNBIASED
from ..fidelity.bias import FitTable
from ..fidelity.findings import TraceRecorder
from ..fidelity.probabilities import Probabilities
from ..guides.phrases.banned import BannedPhrases
from ..guides.table import Table
from ..lm.model import ModelCounts, Progress, follow
from ..numerics.checks import check_counts, is_count, shown
from ..numerics.marginals import Marginals
from ..numerics.weights import Evidence
from ..phi.constraint import Predicate, TextConstraint
from ..phi.estimator import LocalPhi, Phi
from ..phi.tree.best_first import grow_trees
from ..phi.tree.evaluator import Evaluator
from ..phi.tree.tree import BoundsTree
from ..sampling.ancestral import SMC, AncestralSampler
from ..sampling.draws import Draws
from ..sampling.phi_options import AutoPhi, Effort
from ..sampling.ranking import Ranking, greedy_lines
from ..sampling.rejection.exact_sampler import Certification
from ..sampling.sampler import Request
from .call import (
    MEANT_BY_SEARCHES,
    Ban,
    Call,
    CallOptions,
    Correction,
    Unset,
    check_closed,
    resolve_ban,
    search_effort,
)
from .choices import (
    COUNTED,
    FIELDS,
    MEANT,
    MEANT_BY_DRAWS,
    MISFITS,
    STOPS,
    TRUNCATION,
    USED,
    Told,
    meant,
    refuse_misfits,
    refuse_unknown,
)
from .drafts import Drafts, check_draft
from .mistakes import check_one, not_pickled
from .session import PhiModel, fit_of
from .streaming import Asynchronous, Pieces
from .types.readers import ValueReader, name, reader
from .types.tools import Tools, of_model
from .wrapping import wrapped

TOLERANCE = 1e-3  # Distance of the bounds of Phi, relative to the lower one, at which no more tokens are spent on them
WIDTH = 64  # Residual attempts in flight at once, per prompt

LINE = 16  # Tokens of the line that fit() shows of the model by itself, at most

OF_LANGUAGES: tuple[str, ...] = (
    "tokenization",
    "constraint",
    "ends",
    "open_at",
    *STOPS,
)  # The options that say what a text may be

CERTIFIED = Effort(tokens=4096)
"""Of the enumeration that marginals() tries before it draws."""


def audit(
    source: Any,
    prompts: Any,
    n: int = 200,
    *,
    confidence: float = 0.95,
    tolerance: float = UNBIASED,
    bounds_tokens: int = 0,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    progress: Told = None,
    **settings: Any,
) -> AuditReport:
    """Measure the bias of plain masking in an application, from ``n`` weighted draws of ``phi="local"`` after each prompt.

    Mathematics in ``docs/audit.md``.

    Parameters
    ----------
    source
        The application's callable: an ``outlines.Generator(model, T)`` or one of this package, or the pair ``(model, T)``.
    prompts
        One prompt (``str`` or Outlines ``Chat``), or a list of them.
    n
        Draws per prompt, at least 2.
    confidence
        Of each interval of the report by itself.
    tolerance
        The total variation up to which masking passes for not biased: what :attr:`AuditReport.verdict` compares the interval with.
    bounds_tokens
        Model tokens per prompt to spend beyond the draws on bounds of Phi, and so on a narrower interval of the total variation,
        where the model rarely meets the format: on certain bounds by enumeration, then on residual attempts.
    banned_phrases
        The phrases never to write; of free text, ``(model, None)``, they are all that is masked. Left out, what the generator or
        the model bans. Its level says nothing here.
    progress
        As in a call with ``phi=``.
    **settings
        The keywords that define the distribution, as in a call with ``phi=``. Give those that the application gives.

    Raises
    ------
    UnsupportedError
        Something that cannot be audited; says what can.
    EmptyLanguageError
        No draw was completed.
    """
    rows = prompts if isinstance(prompts, list | tuple) else [prompts]
    if isinstance(prompts, (type, Term, FunctionType, UnionType)) or get_origin(prompts) is not None:
        raise UnsupportedError(
            "Give model and type as a pair, then the prompts: outlines_phi.audit((model, T), prompts); "
            f"{prompts!r:.80} was given in the place of the prompts."
        )
    model, table = _application(source, banned_phrases)
    check(len(rows), n, confidence, tolerance)
    if not is_count(bounds_tokens) or bounds_tokens > 2**63:
        raise UnsupportedError(
            f"bounds_tokens={shown(bounds_tokens)} was given; expected a whole number from 0 to 2**63."
        )
    refuse_misfits("an audit", settings, n=n)
    refuse_unknown(settings, COUNTED, MEANT)
    defaults = model.defaults
    options = replace(CallOptions.read({**settings, "progress": progress}, defaults), n=n)
    recorder = TraceRecorder(model.lm.vocabulary, len(rows), n)
    with model.asking(rows, table, options) as request:
        drawn = AncestralSampler(LocalPhi(), recorder).sample(request)[0].counts
        counts = ModelCounts(drawn.calls, drawn.prompt_tokens, drawn.tokens)
        bounds, evidence = None, list[Evidence]()
        if bounds_tokens:
            bounds, evidence, counts = _bounded(request, bounds_tokens, confidence, counts)
    return audit_traces(
        recorder.traces,
        [prompt if isinstance(prompt, str) else f"prompt {row + 1}" for row, prompt in enumerate(rows)],
        settings=options.settings,
        budgets=request.budgets,
        bounds=bounds,
        evidence=evidence,
        counts=counts,
        confidence=confidence,
        tolerance=tolerance,
        notes=_notes(settings, defaults),
    )


def _application(source: Any, banned_phrases: Ban | Unset | None) -> tuple[PhiModel, Table]:
    """Return the model of what an application calls, and the language that its masks allow."""
    match source:
        case PhiGenerator():
            refuse_misfits("an audit", {name: source.options[name] for name in OF_LANGUAGES if name in source.options})
            model, language, own = source.model, source.unbanned, source.banned_phrases
        case SteerableGenerator(model=given, logits_processor=language) | (given, language):
            model = wrapped(given)
            own = model.banned_phrases
        case _:
            raise UnsupportedError(
                f"A {type(source).__name__} was given to audit; expected an outlines.Generator(model, T) over a transformers "
                "model, or the pair (model, T): outlines_phi.audit((model, T), prompts)."
            )
    ban = own if isinstance(banned_phrases, Unset) else resolve_ban(banned_phrases)
    if language is None and ban is None:
        raise UnsupportedError(
            "Give an audit an output type, or banned_phrases=[...]: free text has no format, so masking changes nothing."
        )
    table = model.table(language, ban)
    if table.guide.thoughts is not None:
        check_closed(table, "an audit")
    return model, table


def _bounded(
    request: Request, tokens: int, confidence: float, before: ModelCounts
) -> tuple[list[tuple[float, float]], list[Evidence], ModelCounts]:
    """Return certain bounds of Phi per prompt, residual attempts on what they leave open, and the cost beside that ``before``."""
    begins = zip(request.budgets, request.starts, strict=True)
    trees = [BoundsTree(request.table, budget, start=start) for budget, start in begins]
    evaluator = Evaluator(request.lm, request.settings, request.prompts, trees)
    drawn = request.n * len(trees)
    spent = lambda: ModelCounts(*map(sum, zip(astuple(before), astuple(evaluator.counts), strict=True)))  # noqa: E731
    log_bounds = lambda: [tree.log_bounds for tree in trees]  # noqa: E731
    follow(lambda: Progress.of(spent(), draws=drawn, wanted=drawn, attempts=drawn, log_bounds=log_bounds()))
    effort = Effort(tokens=tokens, attempts=tokens)
    found = [
        Certification(tree, TOLERANCE, confidence, partial(request.stream, row), effort, WIDTH)
        for row, tree in enumerate(trees)
    ]
    grow_trees(found, evaluator)
    bounds = [(math.exp(low), math.exp(high)) for low, high in log_bounds()]
    return bounds, [row.evidence for row in found], spent()


def _notes(settings: dict[str, Any], defaults: GenerationConfig | None) -> list[str]:
    """Return notes on differences between the distribution audited and that of the application's own calls without keywords."""
    ignored = [
        f"{name}={getattr(defaults, name)}"
        for name in TRUNCATION
        if name not in settings and getattr(defaults, name, None) not in FIELDS[name].neutral
    ]
    notes = []
    if ignored:
        notes.append(
            f"The model's generation_config has {', '.join(ignored)}, which stock calls apply unless they say otherwise. "
            "The distribution audited here is the one without. Give the option to audit with it (it then truncates before the "
            "mask does)."
        )
    if not getattr(defaults, "do_sample", None):
        notes.append(
            "The model's generation_config does not sample, so stock calls without do_sample=True are greedy. The distribution "
            "audited here is that of sampling."
        )
    return notes


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
    options: Mapping[str, Any] = field(default_factory=dict)  # Keywords of its calls that do not say otherwise
    backend: str | None = None

    def __post_init__(self) -> None:
        self.worker = self.model.worker
        self.output_type = of_model(self.output_type, self.model)
        self.reader = str if self.output_type is None else reader(self.output_type)
        typed = self.output_type is not None
        self.unbanned = self.model.table(self.output_type, backend=self.backend) if typed else None
        self.logits_processor = self._made(self.correction).processor(self.model.compiled)
        if self.logits_processor is not None:  # A new generator says anew how its format fits.
            self.model.told_of_fit.discard(self.logits_processor.table)

    def __reduce__(self) -> Any:
        raise not_pickled("A generator")

    @property
    def phi(self) -> Phi | None:
        """The estimator; ``None`` for plain masking, in Outlines' own loop."""
        return self.correction.estimator(free=self.output_type is None)

    @property
    def banned_phrases(self) -> BannedPhrases | None:
        """The phrases that are never written; ``None`` where nothing is banned."""
        return self.correction.ban

    def _made(self, correction: Correction) -> Call:
        """Return the call of which the language is the output type less the banned phrases."""
        return Call.of(correction, self.unbanned, {"sampler": self.options.get("sampler")})

    @property
    def _language(self) -> Table | None:
        """The table of the output type less the banned phrases; ``None`` for free text without a ban."""
        return self.logits_processor and self.logits_processor.table

    def _call(self, keywords: dict[str, Any]) -> Call:
        """Return a call with ``keywords``, and all of the generator's own that they leave out."""
        said = (keywords.pop(name, Unset.UNSET) for name in ("phi", "banned_phrases"))
        correction = self.correction.replaced_by(*said)
        # Its drafts are for draws; a search for the mode has no use for them.
        unused = ["draft"] if keywords.get("do_sample") is False else []
        keywords = {name: value for name, value in self.options.items() if name not in unused} | keywords
        if correction is not self.correction:
            return Call.of(correction, self.unbanned, keywords)
        # The table is without what is banned.
        return Call.of(replace(correction, ban=None), self._language, keywords)

    def _law(self, door: str, keywords: dict[str, Any]) -> tuple[Table, CallOptions]:
        """Return the language and the options of the distribution that ``door``, which draws nothing, is asked about."""
        language = self._language
        if "banned_phrases" in keywords:
            correction = self.correction.replaced_by(banned_phrases=keywords.pop("banned_phrases"))
            language = self._made(correction).table(self.model.compiled)
        keywords = {name: value for name, value in self.options.items() if name in OF_LANGUAGES} | keywords
        table = Call(None, language, None, keywords).table(self.model.compiled)
        check_closed(table, door)
        refuse_misfits(door, keywords)
        known = [name for name in USED if all(name not in misfit.names for misfit in MISFITS[door])]
        refuse_unknown(keywords, known, MEANT_BY_SEARCHES)
        return table, CallOptions.read(keywords, self.model.defaults)

    @property
    def table(self) -> Table:
        """The compiled language of calls without further keywords."""
        return Call(None, self._language, None, dict(self.options)).table(self.model.compiled)

    def __call__(self, prompt: Any, **keywords: Any) -> Any:
        """Return one text; a list of them where ``num_return_sequences`` is more than 1."""
        return self.model.written(self._call(keywords), prompt)

    def batch(self, prompts: list[Any], **keywords: Any) -> list[Any]:
        """Return one text per prompt, drawn in shared model calls."""
        return self.model.written_batch(self._call(keywords), prompts)

    def stream(self, prompt: Any, **keywords: Any) -> Pieces:
        """Yield the text of a call piece by piece: only what is accepted, whole characters, never taken back.

        With ``tokens=True`` the account of each token comes in its place.
        """
        return self.model.written_in_pieces(self._call(keywords), prompt)

    async def asample(self, prompt: Any, n: int = 1, **keywords: Any) -> Draws:
        """Run :meth:`sample` without blocking the event loop; as :meth:`agenerate`."""
        return await self.model.worker.run(partial(self.sample, prompt, n, **keywords))

    def sample(self, prompt: Any, n: int = 1, **keywords: Any) -> Draws:
        """Return ``n`` draws, i.i.d., with their weights, guarantee and counts; keywords as in a call."""
        check_one(prompt, "sample_batch()")
        return self.sample_batch([prompt], n, **keywords)[0]

    def sample_batch(self, prompts: list[Any], n: int = 1, **keywords: Any) -> list[Draws]:
        """Return :meth:`sample` of every prompt, drawn in shared model calls."""
        call = self._call(keywords)
        table = call.table(self.model.compiled)
        if call.phi is None:
            raise UnsupportedError(
                "Give phi='exact' or phi='local' (masking) to sample(), which has to know the distribution of its draws."
            )
        refuse_misfits("sample()", call.keywords)
        refuse_unknown(call.keywords, COUNTED, MEANT_BY_DRAWS)
        options = replace(CallOptions.read(call.keywords, self.model.defaults), n=n)
        try:
            results = self.model.draw(prompts, table, call.phi, options)
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
        meant("tolerance", tolerance)
        table, options = self._law("probabilities()", settings)
        keeps = isinstance(self.reader, ValueReader) and self.reader.keeps
        reader, limit = None if keeps else self.reader, search_effort(self.phi, effort)
        return self.model.probabilities(prompts, table, options, reader, tolerance=tolerance, effort=limit)

    def tool_probabilities(
        self, prompt: Any, *, tolerance: float = 1e-3, effort: Effort | None = None, **settings: Any
    ) -> Probabilities:
        """Return the probability that the answer begins with a call of each tool, of an output type :class:`outlines_phi.Tools`.

        With ``b_t`` the text of a call of ``t`` up to the character behind its name, in any tokens, and ``P`` the model's own
        distribution::

            "required":  P(tool = t) = P(y begins with b_t) / sum_u P(y begins with b_u)
            "auto":      P(tool = t) = P(y begins with b_t),  P(None) = 1 - sum_u P(y begins with b_u)

        This is the first decision of an answer: what the model calls, whatever its arguments will be; the key of an answer that
        begins otherwise is ``None``. Exact draws have each tool in proportion to ``P(y begins with b_t)`` times the probability
        that an answer so begun is completed inside the format.

        No interval ends wider than ``tolerance``. One model call reads the beginnings in their usual tokens, where they have few
        hundred characters together; others follow as far as the model writes them in other tokens. The other parameters are as
        for :meth:`probabilities`.
        """
        if not isinstance(self.output_type, Tools):
            raise UnsupportedError(f"Give outlines_phi.Tools(...) as output type. {name(self.output_type)} was given.")
        check_one(prompt, "tool_probabilities()")
        tools = self.output_type
        first = replace(self, output_type=tools.beginnings, options={**self.options, "ends": "open"})
        return tools.probabilities(
            first.probabilities(
                prompt, tolerance=tolerance / (2 if tools.choice == "auto" else 1), effort=effort, **settings
            )
        )

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
        table, options = self._law("mode()", settings)
        limit = search_effort(self.phi, effort)
        return self.model.rank(prompts, table, options, top, self.reader, tolerance=tolerance, effort=limit)

    def marginals(
        self,
        prompt: Any,
        n: int = 200,
        *,
        tolerance: float = 0.01,
        effort: Effort | None = None,
        confidence: float = 0.95,
        **settings: Any,
    ) -> Marginals:
        """Return the distribution of each field of the values, by its dotted path.

        With certified bounds where :meth:`probabilities` comes to ``tolerance`` within the ``effort`` (4,096 model tokens by
        default), which a format with few texts does; else with intervals from ``n`` draws, see :meth:`Draws.marginals`.
        """
        check_counts("marginals()", n=n)
        try:
            law = self.probabilities(prompt, tolerance=tolerance, effort=effort or CERTIFIED, **settings)
        except BudgetError:
            return self.sample(prompt, n, **settings).marginals(confidence)
        return law.marginals()

    def fit(self, prompts: Any, formats: Sequence[Any] = (), *, tokens: int = LINE, **settings: Any) -> FitTable:
        """Measure the fit of this output type, and of other ``formats``, to the model's own texts after each prompt.

        ``log Phi`` by bounds and weighted draws, the likeliest first tokens outside and inside of each format, the line of at most
        ``tokens`` tokens that greedy decoding writes without one, and what usually helps. The ``settings`` are those of a call.
        """
        rows = list(prompts) if isinstance(prompts, list | tuple) else [prompts]
        check_counts("fit()", tokens=tokens)
        if not rows:
            raise UnsupportedError("Give fit() at least one prompt. An empty list was given.")
        generators = [self, *(replace(self, output_type=form) for form in formats)]
        found: list[list[Draws]] = []
        for each in generators:
            table, options = each._law("fit()", dict(settings))
            self.model.told_of_fit.add(table)
            found.append(each.sample_batch(rows, phi=AutoPhi(share=0), sampler=None, draft=None, **settings))
        with self.model.asking(rows, table, options) as request:
            lines = greedy_lines(request, tokens)
        names = [name(each.output_type) for each in generators]
        return FitTable(
            tuple(
                fit_of(prompt, form, draws[row], lines[row])
                for row, prompt in enumerate(rows)
                for form, draws in zip(names, found, strict=True)
            )
        )

    def audit(self, prompts: Any, n: int = 200, **settings: Any) -> AuditReport:
        """Measure the bias of plain masking here; see :func:`outlines_phi.audit`."""
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
    ends: str = "text",
    open_at: str | None = None,
    stop: Any = None,
    stop_strings: Any = None,
    **unknown: Any,
) -> PhiGenerator:
    """Return a generator of ``output_type`` that draws under ``phi``. The counterpart of ``outlines.Generator``.

    Parameters
    ----------
    model
        From :func:`outlines_phi.from_transformers` or :func:`outlines_phi.wrap`, or a stock one, which is wrapped.
    output_type
        The format to write: anything that Outlines takes, a guide or a table. Left out, free text without ``banned_phrases``.
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
        The phrases never to write: a list, or a :class:`outlines_phi.BannedPhrases`. Left out, those that the model bans.
    draft
        The sources of drafts of the next tokens: ``"forced"``, ``"prompt_lookup"``, ``"tree"``, a drafter, a smaller
        model with the same tokenizer, or a list of these. Without it ``["forced", "prompt_lookup"]``; an empty list is
        for no drafts.
    draft_length
        The most tokens of a draft; 8 where there is one.
    backend
        The reader of a JSON schema: this package, ``None``, or ``"outlines_core"``. Outlines' other backends are refused.
    ends
        ``"text"`` where the whole text is a member, ``"open"`` where it begins with one and may go on: the longest is what counts.
    open_at
        With ``ends="open"``, a regular expression of one character that has to follow a member, unless the text ends with it.
    stop, stop_strings
        Strings of which the first ends the text, in whatever tokens, and in place of the end of sequence: ``stop`` not in the text,
        as in vLLM and llama.cpp, ``stop_strings`` in it, as in transformers; see :func:`outlines_phi.guides.thinking.stopped`.
        A string that is the name of a special token stands for the token, too; ``Special(...)`` for a token alone.

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
    own: dict[str, Any] = {
        "tokenization": tokenization,
        "constraint": constraint,
        "sampler": sampler,
        "ends": ends,
        "open_at": open_at,
        "stop": stop,
        "stop_strings": stop_strings,
    }
    options = CallOptions.read({**own, "draft": draft, "draft_length": draft_length}, None)
    own |= {"constraint": options.constraint, "draft": check_draft(model, correction.estimator(sampler), options.draft)}
    made = PhiGenerator(model, output_type, correction, own, backend)
    _ = made.table  # raises what does not go with ``ends``
    return made


KEYWORDS = tuple(name for name, one in signature(Generator).parameters.items() if one.kind is one.KEYWORD_ONLY)
