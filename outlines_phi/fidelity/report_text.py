"""The words and tables of reports."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, NamedTuple

from ..numerics.checks import counted
from .bias import AuditVerdict, Bias, IntervalEstimate
from .findings import Findings, Loss, Report, label


class TextTable(NamedTuple):
    """A titled table with a remark under it; the first column has the names of the rows, the others are aligned to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    remark: str = ""

    def plain(self) -> list[str]:
        """Return the lines of a plain text, without title and remark; none where there are no rows."""
        if not self.rows:
            return []
        lines = [self.head, *self.rows]
        first, *rest = (max(map(len, column)) for column in zip(*lines, strict=True))
        return ["  ".join([name.ljust(first), *map(str.rjust, cells, rest)]).rstrip() for name, *cells in lines]

    def markdown(self) -> list[str]:
        """Return the lines in Markdown, without title and remark; none where there are no rows."""
        if not self.rows:
            return []
        lines = [f"| {' | '.join(map(to_markdown, line))} |" for line in (self.head, *self.rows)]
        return [lines[0], "|---" + "|---:" * (len(self.head) - 1) + "|", *lines[1:]]


def to_markdown(text: str) -> str:
    """Return a text as a line of Markdown that shows it as it is: no cell, markup or element of HTML begins or ends in it."""
    line = " ".join(text.splitlines()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\`|*\[\]~$]|_(?!\w)|(?<!\w)_", r"\\\g<0>", line)


TITLE = "Audit of plain masking"

ROWS = 12  # Places, values and prompts that a table lists
WIDTH = 34  # Characters of a value or prompt that are shown


def verdict(report: Findings) -> str:
    """Return the verdict of a report in a sentence."""
    name = report.pooled.name
    after = f'after "{shown(name)}"' if len(report.findings) == 1 else f"on the average over {name}"
    return verdict_on(report.pooled.bias, report.confidence, after)


def verdict_on(bias: Bias, confidence: float, after: str) -> str:
    """Return the verdict on the bias ``after`` some prompts in a sentence, and what to do where there is none."""
    low, high = bias.tv.interval
    found, advice = "Plain masking is biased", ""
    if bias.verdict is AuditVerdict.NOT_BIASED:
        found = f"Plain masking is not biased by more than {bias.tolerance:g}"
    elif bias.verdict is AuditVerdict.UNDECIDED:
        found = f"Undecided whether plain masking is biased by more than {bias.tolerance:g}"
        instead = "audit with bounds_tokens, which bound Phi, or with another tolerance: too many draws would be needed"
        advice = (
            f" To decide it, {instead if bias.needed is None else f'take about {bias.needed:,} draws of each prompt'}."
        )
    return (
        f"{found}: its distance (total variation) from the model's own distribution, conditioned on the format, is between "
        f"{number(low, '.3f')} and {number(high, '.3f')} ({confidence:.0%} confidence), {after}.{advice}"
    )


def sections(report: Findings) -> list[TextTable]:
    """Return the tables of a report."""
    several = [_prompts(report)] if len(report.findings) > 1 else []
    return [
        bias_section(report.pooled.bias, report.confidence),
        *several,
        _losses(report),
        _distortions(report),
        _cost(report),
    ]


def distance_table(report: Report) -> TextTable:
    """Return the distance of each sample of a comparison from the truth, beside that of noise alone."""
    rows = [
        (view.name, *(f"{tv:.3f}" for tv in (*view.distances.values(), view.floor, view.limit)))
        for view in report.views
    ]
    return TextTable(("distance", *(sample.name for sample in report.samples), "noise floor", "noise, 95 %"), rows)


def cost_table(report: Report) -> TextTable:
    """Return the cost of each sample of a comparison."""
    rows = [
        (sample.name, f"{sample.calls:,}", f"{sample.tokens:,}", f"{sample.seconds:.1f}")
        for sample in (*report.samples, *report.costs)
    ]
    return TextTable(("cost", "model calls", "model tokens", "seconds"), rows)


def certainty(report: Report) -> str:
    """Return the sentences on the truth of a comparison and its certainty."""
    truth = report.truth
    return (
        "The truth is the model's own distribution, conditioned on the format: enumerated to a total variation (TV) of at most "
        f"{truth.tolerance:.1e} with {truth.counts.tokens:,} model tokens. The model meets the format by itself with "
        f"probability {math.exp(truth.log_z_bounds[0]):.4g}."
    )


def bias_section(bias: Bias, confidence: float) -> TextTable:
    """Return the table of how far masking is from the conditioned distribution."""
    attempted, limited = list[tuple[str, str, str]](), ""
    if bias.residual is not None:
        name = f"Phi, at {confidence:.0%} confidence, by {bias.attempts} residual attempts"
        attempted.append((name, "", interval(*bias.residual, ".3g")))
        limited = (
            "Bounds for certain have no error; the limit of Phi by residual attempts has, "
            "and intervals that use it count it in. "
        )
    rows = [
        ("Phi: the model meets the format by itself", *_both(bias.phi, ".3g")),
        ("log Phi (nats)", *_both(bias.log_phi, ".2f")),
        ("mean of the weights (unbiased for Phi)", number(bias.mean_w, ".3g"), ""),
        ("Phi, for certain", "", interval(*bias.certain, ".3g")),
        *attempted,
        ("total variation (TV) to the conditioned distribution", *_both(bias.tv, ".3f")),
        ("KL divergence to it (nats; interval: bootstrap)", *_both(bias.kl, ".3f")),
        ("draws without a legal token, Pr(w = 0)", *_both(bias.failed, ".3f")),
        (f"effective sample size, of {counted(bias.draws, 'draw')}", f"{bias.ess:.1f}", ""),
    ]
    remark = (
        f"Every interval by itself holds with {confidence:.0%} confidence, whatever the tails of the weights; that of KL "
        f"is a bootstrap's and covers less where tails are heavy. {limited}All of it is about token sequences: the distance of "
        "the distributions of texts is at most this TV."
    )
    return TextTable(("", "estimate", "interval"), rows, "Bias", remark)


def _prompts(report: Findings) -> TextTable:
    ranked = sorted(report.findings, key=lambda finding: -finding.bias.tv.interval.low)
    rows = [
        (
            shown(finding.name),
            number(finding.bias.phi.value, ".3g"),
            *_both(finding.bias.tv, ".3f"),
            number(finding.bias.kl.value, ".3f"),
            f"{finding.bias.ess:.1f}",
        )
        for finding in ranked[:ROWS]
    ]
    remark = f"{len(ranked) - ROWS} more prompts have smaller lower limits of TV." if len(ranked) > ROWS else ""
    return TextTable(("prompt", "Phi", "TV", "TV, interval", "KL", "ESS"), rows, "Prompts", remark)


def _losses(report: Findings) -> TextTable:
    places = report.pooled.places
    total = math.fsum(loss.nats for loss in places)
    ranked = worst(places)
    rows = [
        (
            loss.place,
            number(loss.nats, ".3f"),
            f"{loss.nats / total:.0%}" if total > 0 else "",
            number(loss.excess, "+.3f"),
            number(loss.margin, ".2f"),
            str(loss.failures),
        )
        for loss in ranked
    ]
    unit = "field" if report.by_field else "step"
    remark = (
        f"Loss: - log of the legal mass, per draw, in nats; {len(places)} {unit}s lose {total:.3f} in all. Excess: how much "
        "of it a draw of the conditioned distribution would not lose, which is what distorts; a loss that all draws share has "
        "none. Margin: log probability of the likeliest token less that of the likeliest legal one, per step. Dead ends: draws "
        "that ended there without a legal token."
    )
    return TextTable((unit, "loss", "share", "excess", "margin", "dead ends"), rows, "Where legal mass is lost", remark)


def worst(places: Sequence[Loss], rows: int = ROWS) -> list[Loss]:
    """Return the places of the largest losses, dead ends first."""
    return sorted(
        (loss for loss in places if loss.nats > 0 or loss.failures), key=lambda loss: (-loss.failures, -loss.nats)
    )[:rows]


def _distortions(report: Findings) -> TextTable:
    found = report.pooled.distortions
    rows = [
        (
            shown(one.field),
            shown(one.value),
            number(one.masked, ".3f"),
            number(one.model, ".3f"),
            number(one.masked - one.model, "+.3f"),
            number(one.noise, ".3f"),
        )
        for one in found[:ROWS]
    ]
    more = f" {len(found) - ROWS} more exceed theirs." if len(found) > ROWS else ""
    remark = f"Values whose two shares differ by more than noise explains, all compared values together.{more}"
    return TextTable(
        ("field", "value", "masked", "model", "difference", "noise"),
        rows,
        "Most distorted values",
        remark if rows else "No value differs by more than noise explains.",
    )


def _cost(report: Findings) -> TextTable:
    settings = {name: value for name, value in asdict(report.settings).items() if value is not None}
    low, high = min(report.budgets), max(report.budgets)
    rows = [
        ("settings", ", ".join(f"{name}={value}" for name, value in settings.items())),
        ("budget (tokens)", str(low) if low == high else f"{low} to {high}"),
        ("prompts, draws of each", f"{len(report.findings)}, {report.n}"),
        ("model calls", f"{report.counts.calls:,}"),
        ("tokens (prompt, generated)", f"{report.counts.prompt_tokens:,}, {report.counts.tokens:,}"),
    ]
    return TextTable(("", "value"), rows, "Settings and cost")


def _both(estimate: IntervalEstimate, form: str) -> tuple[str, str]:
    return number(estimate.value, form), interval(*estimate.interval, form)


def number(value: float, form: str) -> str:
    """Return a number as reports write it: ``none`` where there is none, and no sign before what is rounded to 0."""
    written = format(value, form)
    return "none" if math.isnan(value) else written if float(written) else format(0.0, form.lstrip("+"))


def jsonable(value: Any) -> Any:
    """Return a number, or what holds numbers, as JSON has it: ``None`` for what is not finite."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case tuple() if hasattr(value, "_asdict"):
            return jsonable(value._asdict())
        case tuple() | list():
            return [jsonable(part) for part in value]
        case dict():
            return {name: jsonable(part) for name, part in value.items()}
        case _ if is_dataclass(value):
            return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    return value


def interval(low: float, high: float, form: str) -> str:
    """Return an interval as reports write it."""
    return f"{number(low, form)} ... {number(high, form)}"


def shown(text: str) -> str:
    """Return a value or prompt as one short line."""
    line = label(text).replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
