"""Reports as one self-contained HTML page: no script, no font and no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from html import escape
from pathlib import Path

from ..findings import Findings
from ..report import WHOLE, Report, Sample, View, label
from .chart import STYLE as CHARTS
from .chart import audit_charts
from .files import write_atomically
from .summary import TITLE, sections, verdict

ROWS = 16
"""Values of a field that are drawn."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5d6678; --paper: #f6f7f9; --card: #fff; --line: #e4e7ec;
  --first: #e4572e; --second: #1b998b; --truth: #1c2330; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf0; --soft: #9aa3b5; --paper: #12151b; --card: #1b1f27;
  --line: #2c323d; --first: #f0744f; --second: #2bb5a5; --truth: #fff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1rem 4rem; }
h1 { font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.02em; }
h2 { margin: 0 0 .8rem; font-size: 1.35rem; }
h3 { margin: 0; font-size: 1.05rem; }
p { margin: .5rem 0; max-width: 46rem; }
.soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1.4rem;
  margin: 1.4rem 0; }
.asked { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .3rem 1rem; margin: 0 0 1.2rem; }
.asked dt { color: var(--soft); } .asked dd { margin: 0; min-width: 0; }
pre { margin: 0; overflow-x: auto; white-space: pre-wrap; font: .88rem/1.45 ui-monospace, monospace; }
code { font: .92em ui-monospace, monospace; }
.key span { display: inline-block; margin-right: 1.2rem; }
.key i { display: inline-block; width: .9rem; height: .9rem; border-radius: 3px; margin-right: .45rem;
  vertical-align: -.1rem; }
.key i.truth { width: 3px; background: var(--truth); border-radius: 0; }
.first { background: var(--first); } .second { background: var(--second); }
.field { padding: 1.1rem 0 .4rem; border-top: 1px solid var(--line); }
.row { display: grid; grid-template-columns: minmax(5rem, 9rem) 1fr 1fr; gap: .2rem 1.1rem; align-items: center;
  padding: .16rem 0; }
.row .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.head { color: var(--soft); font-size: .88rem; } .head b { color: var(--ink); }
.cell { display: flex; align-items: center; gap: .5rem; min-width: 0; }
.cell span { width: 3.1rem; text-align: right; font-size: .82rem; font-variant-numeric: tabular-nums; }
.bar { position: relative; flex: 1; height: 1.25rem; background: var(--line); border-radius: 3px; min-width: 0; }
.bar div { height: 100%; border-radius: 3px 0 0 3px; }
.bar i { position: absolute; top: -.18rem; bottom: -.18rem; width: 3px; margin-left: -1.5px; background: var(--truth); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .4rem 0; }
th, td { padding: .3rem 1.2rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); font-weight: normal; }
th:first-child { text-align: left; } thead th { color: var(--soft); }
@media (max-width: 40rem) { .card { padding: 1rem; }
  .row { grid-template-columns: 1fr 1fr; } .row .name { grid-column: 1 / -1; } }
"""


def write_page(reports: Sequence[Report], path: Path, *, command: str) -> None:
    """Write ``reports``, each of two samples and made by ``command``, to ``path``."""
    write_atomically(path, page(reports, command=command).encode())


def page(reports: Sequence[Report], *, command: str) -> str:
    """Return the HTML of ``reports``, each of two samples and made by ``command``."""
    return _document(
        "The bias of masking, and its removal",
        f"""<p>Masking tokens makes every output fit the format, and silently changes what the model says: it pays for a token
before it knows whether the rest will fit. Both columns below use the same model, prompt and format,
{reports[0].n:,} draws each. A bar is how often a value was drawn; the mark across it is the truth, the model's own
law conditioned on the format.</p>
{_key(reports[0])}
{"".join(_section(report) for report in reports)}
<p class="soft">Made by <code>{escape(command)}</code>; the same command gives the same draws.</p>
""",
    )


def audit_page(report: Findings) -> str:
    """Return the HTML of an audit."""
    warnings = "".join(f'<p class="card"><b>Warning.</b> {escape(warning)}</p>' for warning in report.warnings)
    cards = "".join(
        f'<section class="card"><h2>{escape(title)}</h2>{table(head, rows) if rows else ""}'
        f'<p class="soft">{escape(remark)}</p></section>\n'
        for title, head, rows, remark in sections(report)
    )
    return _document(TITLE, f"<p>{escape(verdict(report))}</p>\n{warnings}\n{audit_charts(report)}{cards}")


def _document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}{CHARTS}</style></head>
<body><main>
<h1>{escape(title)}</h1>
{body}</main></body>
</html>
"""


def _key(report: Report) -> str:
    kinds = zip(("first", "second"), report.samples, strict=True)
    samples = "".join(f'<span><i class="{kind}"></i>{escape(sample.name)}</span>' for kind, sample in kinds)
    return f'<p class="key">{samples}<span><i class="truth"></i>truth</span></p>'


def _section(report: Report) -> str:
    truth = report.truth
    fields = "".join(_field(report, view) for view in report.views if view.name != WHOLE)
    return f"""<section class="card">
<h2>{escape(report.title)}</h2>
<dl class="asked"><dt>prompt</dt><dd><pre>{escape(repr(report.prompt))}</pre></dd>
<dt>type</dt><dd><pre>{escape(report.output_type)}</pre></dd></dl>
{fields}
<div class="field"><h3>Distance to the truth</h3>
<p class="soft">Total variation (TV), beside the TV of {report.n:,} draws from the truth: its mean, and what it stays under
in 95 of 100 cases.</p>
{table(["", *(sample.name for sample in report.samples), "noise floor", "noise, 95 %"], _distances(report))}</div>
<div class="field"><h3>Cost</h3>
{table(["", "model calls", "model tokens", "seconds"], _costs(report))}</div>
<p class="soft">The truth was computed by enumeration of the token tree with {truth.tokens:,} model tokens,
to a total variation of at most {truth.tolerance:.1e}. The model meets the format by itself with probability
{truth.phi_bounds[0]:.4g}.</p>
</section>
"""


def _field(report: Report, view: View) -> str:
    scale = max(p for law in (view.law, *view.frequencies.values()) for p in law.values())
    heads = "".join(
        f"<span>{escape(sample.name)}: TV <b>{view.distances[sample.name]:.3f}</b></span>" for sample in report.samples
    )
    rows = "".join(_row(report.samples, view, value, scale) for value in view.values[:ROWS])
    rest = len(view.values) - ROWS
    more = f'<p class="soft">... {rest} more values</p>' if rest > 0 else ""
    head = f'<div class="row head"><h3 class="name">{escape(view.name)}</h3>{heads}</div>'
    return f'<div class="field">{head}{rows}{more}</div>\n'


def _row(samples: Sequence[Sample], view: View, value: Hashable, scale: float) -> str:
    truth = view.law.get(value, 0.0)
    bars = "".join(
        _bar(kind, view.frequencies[sample.name].get(value, 0.0), truth, scale)
        for kind, sample in zip(("first", "second"), samples, strict=True)
    )
    name = escape(label(value))
    return f'<div class="row"><span class="name" title="{name}">{name}</span>{bars}</div>'


def _bar(kind: str, share: float, truth: float, scale: float) -> str:
    width, mark = (96 * p / scale for p in (share, truth))
    parts = f'<div class="{kind}" style="width:{width:.2f}%"></div><i style="left:{mark:.2f}%"></i>'
    title = f"drawn {share:.1%}, truth {truth:.1%}"
    return f'<div class="cell" title="{title}"><div class="bar">{parts}</div><span>{share:.1%}</span></div>'


def _distances(report: Report) -> list[list[str]]:
    return [
        [
            view.name,
            *(f"{view.distances[sample.name]:.3f}" for sample in report.samples),
            f"{view.floor:.3f}",
            f"{view.limit:.3f}",
        ]
        for view in report.views
    ]


def _costs(report: Report) -> list[list[str]]:
    return [
        [sample.name, f"{sample.calls:,}", f"{sample.tokens:,}", f"{sample.seconds:.1f}"]
        for sample in (*report.samples, *report.costs)
    ]


def table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table; the first cell of each row is its name."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
