"""Reports from templates: text, Markdown, and a self-contained HTML page without script, font or picture from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from ..errors import UnsupportedError
from ..numerics.cache import replacing
from .comparison import WHOLE, Report, label
from .findings import Findings
from .plots import audit_panels
from .report_text import TITLE, certainty, cost_table, distance_table, sections, to_markdown, verdict


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` by way of a temporary file in the same folder; what stood there stays until it is done."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise UnsupportedError(
            f"{path} cannot be written: {error.strerror}. Give the path of a file in a folder that exists."
        ) from error


def make_folder(folder: Path, given: str) -> None:
    """Make a folder where there is none; ``given`` is what messages call it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnsupportedError(f"Give another folder: {given} cannot be made a folder, {error.strerror}.") from None


ROWS = 16  # Values of a field that are drawn


def page(reports: Sequence[Report], *, command: str) -> str:
    """Return the HTML of ``reports``, each of two samples and made by ``command``."""
    return _render(
        "comparison.html",
        title="The bias of masking, and its removal",
        reports=reports,
        command=command,
        whole=WHOLE,
        rows=ROWS,
        distances=distance_table,
        costs=cost_table,
        truth_of=certainty,
    )


def audit_page(report: Findings, suffix: str) -> str:
    """Return an audit as a page (``html``), as Markdown (``md``) or as text for a terminal (``txt``)."""
    said = {"title": TITLE, "verdict": verdict(report), "warnings": report.warnings, "tables": sections(report)}
    return _render(f"audit.{suffix}", panels=[panel for panel in audit_panels(report) if panel.rows], **said)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader(__package__),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"label": label, "to_markdown": to_markdown}
    return templates


def _render(name: str, **values: object) -> str:
    return _templates().get_template(name).render(values)
