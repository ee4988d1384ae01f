"""The report of the bias of plain masking, from its own draws."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from ..errors import EmptyLanguageError, UnsupportedError
from ..lm.model import ModelCounts
from ..numerics.cache import write_atomically
from ..numerics.checks import check_counts, check_fits, check_shares, counted
from ..numerics.weights import Evidence
from ..settings import SamplingSettings
from .bias import TOLERANCE, AuditVerdict, measure
from .findings import (
    ENOUGH,
    Findings,
    PromptFinding,
    Trace,
    distortions,
    field_places,
    is_json,
    log_weights,
    losses,
    step_places,
    tree_bounds,
)
from .plots import audit_figure, audit_page, png
from .report_text import jsonable


@final
@dataclass(frozen=True, kw_only=True)
class AuditReport(Findings):
    """The bias of plain masking here, with honest intervals.

    ``str(report)`` is a summary for a terminal; :meth:`save` writes Markdown, JSON, a page or a picture.
    """

    @property
    def verdict(self) -> AuditVerdict:
        """The verdict on the average over the prompts: biased by more than the tolerance, not biased by more, or undecided."""
        return self.pooled.bias.verdict

    @property
    def draws_needed(self) -> int | None:
        """The number of draws after each prompt that decides the verdict; ``None`` where there is one, and for too many."""
        return self.pooled.bias.needed

    def __str__(self) -> str:
        return audit_page(self, "txt").rstrip("\n")

    def to_dict(self) -> dict[str, Any]:
        """Return every number, ready for JSON: ``None`` where there is none, or where it is infinite. Traces are left out."""
        return {field.name: jsonable(getattr(self, field.name)) for field in fields(self) if field.name != "traces"}

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        return audit_page(self, "md").removesuffix("\n")

    def to_html(self) -> str:
        """Return the report as one self-contained page."""
        return audit_page(self, "html")

    def figure(self) -> Any:
        """Return a ``matplotlib.figure.Figure``: where mass is lost, and the most distorted values."""
        return audit_figure(self)

    def save(self, path: str | Path) -> Path:
        """Write the report to ``path``, whole or not at all; .md, .json, .html and .png are the formats.

        Raises
        ------
        UnsupportedError
            Another suffix, a folder that is not there, or no matplotlib for a picture.
        """
        target = Path(path)
        forms: dict[str, Callable[[], str | bytes]] = {
            ".md": self.to_markdown,
            ".json": self.to_json,
            ".html": self.to_html,
            ".png": lambda: png(self.figure()),
        }
        if target.suffix not in forms:
            raise UnsupportedError(
                f"The suffix {target.suffix!r} of {target.name} names no format; expected .md, .json, .html or .png."
            )
        content = forms[target.suffix]()
        write_atomically(target, content.encode() if isinstance(content, str) else content)
        return target


def audit_traces(
    traces: Sequence[Sequence[Trace]],
    names: Sequence[str],
    *,
    settings: SamplingSettings,
    budgets: Sequence[int],
    counts: ModelCounts,
    bounds: Sequence[tuple[float, float]] | None = None,
    evidence: Sequence[Evidence] = (),
    confidence: float = 0.95,
    tolerance: float = TOLERANCE,
    notes: Sequence[str] = (),
) -> AuditReport:
    """Return the audit of draws of plain masking, of which there are as many after each prompt; no model call is made.

    ``bounds`` and ``evidence`` are, per prompt, certain bounds of Phi beside those of the draws' own tree, and residual attempts
    that limit it; ``notes`` are warnings to begin with. Errors as :func:`check`, and an :class:`EmptyLanguageError` where no draw
    was completed.
    """
    check(len(traces), min(map(len, traces), default=0), confidence, tolerance)
    if all(trace.failed for drawn in traces for trace in drawn):
        raise EmptyLanguageError(
            f"None of the {sum(map(len, traces))} draws was completed: {settings.truncation or 'the model'} left each a step "
            "without a legal token, so there is nothing to measure. Loosen the truncation, or audit more draws."
        )
    alpha = 1 - confidence
    known = [
        _both(tree_bounds(drawn), other)
        for drawn, other in zip(traces, bounds or [(0.0, 1.0)] * len(traces), strict=True)
    ]
    by_field = is_json([trace for drawn in traces for trace in drawn])

    def find(name: str, rows: Sequence[int]) -> PromptFinding:
        chosen = [traces[row] for row in rows]
        by_step = losses(chosen, step_places)
        return PromptFinding(
            name=name,
            bias=measure(
                [log_weights(drawn) for drawn in chosen],
                [known[row] for row in rows],
                alpha,
                [evidence[row] for row in rows] if evidence else (),
                tolerance,
            ),
            places=losses(chosen, field_places) if by_field else by_step,
            steps=by_step,
            distortions=distortions(chosen, alpha, as_json=by_field),
        )

    findings = tuple(find(name, [row]) for row, name in enumerate(names))
    pooled = findings[0] if len(findings) == 1 else find(f"all {len(findings)} prompts", range(len(findings)))
    return AuditReport(
        findings=findings,
        pooled=pooled,
        by_field=by_field,
        confidence=confidence,
        settings=settings,
        budgets=tuple(budgets),
        counts=counts,
        warnings=(*notes, *_warnings(findings, settings)),
        traces=tuple(map(tuple, traces)),
    )


def check(prompts: int, n: int, confidence: float, tolerance: float) -> None:
    """Raise UnsupportedError unless there are prompts, at least two draws each, and a confidence and a tolerance."""
    if prompts < 1:
        raise UnsupportedError("No prompts were given to audit; expected one, or a list of at least one.")
    check_counts("an audit", ", better 200", least=2, n=n)
    check_fits("n", n, count=n * prompts, each=1024, things="draws, of all prompts together,")
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise UnsupportedError(f"confidence={confidence!r} was given; expected a number between 0 and 1, such as 0.95.")
    check_shares("an audit", tolerance=tolerance)


def _both(left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
    low, high = max(left[0], right[0]), min(left[1], right[1])
    return min(low, high), high


def _warnings(findings: Sequence[PromptFinding], settings: SamplingSettings) -> list[str]:
    failures = sum(finding.bias.failures for finding in findings)
    few = [finding for finding in findings if finding.bias.ess < ENOUGH]
    of = f"of {len(findings)} prompts" if len(findings) > 1 else "of the prompt"
    found = []
    if failures:
        found.append(
            f"{counted(failures, 'draw')} met a step where {settings.truncation or 'the model'} leaves no legal token. They have "
            "weight 0; an application that draws so stops there or writes something else."
        )
    if few:
        found.append(
            f"{len(few)} {of}: {few[0].bias.draws} weighted draws are worth fewer than {ENOUGH:.0f} "
            f"({min(f.bias.ess for f in few):.1f} at the least). Point estimates rest on few draws and values are not compared "
            "there; the intervals of Phi and TV hold, that of KL may not. Ask for more draws."
        )
    return found
