"""Audits of applications: how biased their masking is, as they are."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from functools import partial
from types import FunctionType, UnionType
from typing import Any, get_origin

from outlines.generator import SteerableGenerator
from outlines.types.dsl import Term
from transformers import GenerationConfig

from ..errors import UnsupportedError
from ..fidelity.audit_report import AuditReport, audit_traces, check
from ..fidelity.bias import TOLERANCE as UNBIASED
from ..fidelity.traces import TraceRecorder
from ..lm.model import ModelCounts
from ..lm.watch import Progress, follow
from ..numerics.checks import is_count, shown
from ..phi.onestep import LocalPhi
from ..phi.tree.best_first import grow_trees
from ..phi.tree.evaluator import Evaluator
from ..phi.tree.evidence import Evidence
from ..phi.tree.tree import BoundsTree
from ..sampling.ancestral import AncestralSampler
from ..sampling.phi_options import Effort
from ..sampling.rejection.certify import Certification
from ..sampling.sampler import Request
from .call import COUNTED, Ban, CallOptions, Unset, resolve_ban
from .choices import FIELDS, MEANT, TRUNCATION, refuse_misfits, refuse_unknown, said
from .processor import MaskLogitsProcessor
from .progress import Told
from .session import PhiModel
from .wrapping import wrapped

TOLERANCE = 1e-3  # Distance of the bounds of Phi, relative to the lower one, at which no more tokens are spent on them
WIDTH = 64  # Residual attempts in flight at once, per prompt


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
    """Return how biased plain masking is in an application, from ``n`` weighted draws of ``phi="local"`` after each prompt.

    Mathematics in ``docs/audit.md``.

    Parameters
    ----------
    source
        What the application calls: an ``outlines.Generator(model, T)`` or one of this package, or the pair ``(model, T)``.
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
        What must not be written beside; of free text, ``(model, None)``, it is all that is masked. Left out, what the generator or
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
    model, processor = _application(source, banned_phrases)
    check(len(rows), n, confidence, tolerance)
    if not is_count(bounds_tokens) or bounds_tokens > 2**63:
        raise UnsupportedError(
            f"bounds_tokens={shown(bounds_tokens)} was given; expected a whole number from 0 to 2**63."
        )
    refuse_misfits("an audit", settings, n=n)
    refuse_unknown(said(settings), COUNTED, MEANT)
    defaults = model.defaults
    options = replace(CallOptions.read({**settings, "progress": progress}, defaults), n=n)
    recorder = TraceRecorder(model.lm.vocabulary, len(rows), n)
    with model.asking(rows, model.table(processor), options) as request:
        drawn = AncestralSampler(LocalPhi(), recorder).sample(request)[0].counts
        counts = ModelCounts(calls=drawn.calls, prompt_tokens=drawn.prompt_tokens, tokens=drawn.tokens)
        bounds, evidence = _bounded(request, bounds_tokens, confidence, counts) if bounds_tokens else (None, ())
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


def _application(source: Any, banned_phrases: Ban | Unset | None) -> tuple[PhiModel, Any]:
    """Return the model and the logits processor of what an application calls."""
    match source:
        case SteerableGenerator():
            for option, neutral in (("tokenization", "any"), ("constraint", None)):
                if getattr(source, option, neutral) != neutral:
                    raise UnsupportedError(
                        f"Audit a generator made without {option}=: an audit is of plain masking, which knows no {option}."
                    )
            model, processor = wrapped(source.model), source.logits_processor
        case (given, output_type):
            model = wrapped(given)
            processor = None if output_type is None else MaskLogitsProcessor(model.table(output_type))
        case _:
            raise UnsupportedError(
                f"A {type(source).__name__} was given to audit; expected an outlines.Generator(model, T) over a transformers "
                "model, or the pair (model, T): outlines_phi.audit((model, T), prompts)."
            )
    ours = hasattr(source, "correction")
    if isinstance(banned_phrases, Unset):
        # The processor of a generator of this package keeps out what it bans.
        ban = None if ours else model.banned_phrases
    else:
        ban, processor = resolve_ban(banned_phrases), source.unbanned_processor if ours else processor
    if ban is not None:
        processor = MaskLogitsProcessor(model.table(processor, ban), ban=ban)
    if processor is None:
        raise UnsupportedError(
            "Give an audit an output type, or banned_phrases=[...]: free text has no format, so masking changes nothing."
        )
    return model, processor


def _bounded(
    request: Request, tokens: int, confidence: float, counts: ModelCounts
) -> tuple[list[tuple[float, float]], list[Evidence]]:
    """Return certain bounds of Phi per prompt, and residual attempts on what they leave open; ``counts`` goes up by the cost."""
    begins = zip(request.budgets, request.starts, strict=True)
    trees = [BoundsTree(request.table, budget, start=start) for budget, start in begins]
    evaluator = Evaluator(request.lm, request.settings, request.prompts, trees)
    before, drawn = replace(counts), request.n * len(trees)

    def progress() -> Progress:
        spent = ModelCounts(*map(sum, zip(astuple(before), astuple(evaluator.counts), strict=True)))
        return Progress.of(
            spent, draws=drawn, wanted=drawn, attempts=drawn, log_bounds=[tree.log_bounds for tree in trees]
        )

    follow(progress)
    effort = Effort(tokens=tokens, attempts=tokens)
    found = [
        Certification(tree, TOLERANCE, confidence, partial(request.stream, row), effort, WIDTH)
        for row, tree in enumerate(trees)
    ]
    grow_trees(found, evaluator)
    counts.calls += evaluator.counts.calls
    counts.prompt_tokens += evaluator.counts.prompt_tokens
    counts.tokens += evaluator.counts.tokens
    bounds = [(math.exp(low), math.exp(high)) for low, high in (tree.log_bounds for tree in trees)]
    return bounds, [row.evidence for row in found]


def _notes(settings: dict[str, Any], defaults: GenerationConfig | None) -> list[str]:
    """Return where the application's own calls, without further keywords, would follow another distribution than the one
    audited.
    """
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
