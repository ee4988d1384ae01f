"""The table of the fidelity suite: in a terminal, in Markdown, as data, and as a figure of distance against cost."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, final

from outlines_phi.fidelity.plots import INK, figure_class
from outlines_phi.fidelity.report_text import TextTable, jsonable

from .cells import Cell

COLUMNS = ("TV", "to masking", "noise", "TV tokens", "KL", "ESS", "log Z", "certificate", "calls", "tokens")
"""The columns of a cell, after its method."""

LEGEND = (
    "TV: total variation from the model's own distribution, conditioned on the language. Without a noise: of texts, summed over "
    "every member. With a noise: of the frequencies of draws; the noise is the mean TV that as many draws of the true distribution "
    "show, and a TV with >= is over groups of texts, a lower limit. With +-: of token sequences, estimated from weights, "
    "with its standard error. To masking: the TV relative to that of plain masking; negative is better. TV tokens, KL "
    "(nats): of token sequences. ESS: the effective sample size of a weighted draw. log Z: the log of the mean "
    "weight minus log Phi. Certificate: an upper limit of the TV by the sampler's own account. Calls, tokens: model calls "
    "and generated tokens evaluated, of one draw in a call of its own."
)
"""Explanation of the table."""


@final
@dataclass(frozen=True, kw_only=True)
class Heading:
    """The language above its rows: ``log Phi`` of the prompt, off by ``error``, ``None`` where it is not known."""

    name: str
    family: str
    title: str
    log_phi: float | None = None
    error: float | None = None
    source: str = ""  # how the truth is known, or why it is not

    @property
    def phi(self) -> str:
        """``Phi`` as it is shown."""
        if self.log_phi is None:
            return "Phi unknown"
        error = f" +-{100 * self.error:.2g} %" if self.error and self.error >= 5e-4 else ""
        return f"Phi {math.exp(self.log_phi):.3g}{error}"


@final
@dataclass(frozen=True)
class Grid:
    """Cells, under the headings of their languages."""

    headings: Sequence[Heading]
    cells: Sequence[Cell]

    def of(self, heading: Heading) -> list[Cell]:
        """Return the cells of a language."""
        return [cell for cell in self.cells if cell.language == heading.name]

    def table(self, heading: Heading, columns: Collection[str] = COLUMNS) -> TextTable:
        """Return the table of a language, with some of :data:`COLUMNS`."""
        shown = ["", *(name for name in COLUMNS if name in columns)]
        rows = [dict(zip(("", *COLUMNS), row(cell), strict=True)) for cell in self.of(heading)]
        return TextTable(shown, [[texts[name] for name in shown] for texts in rows])

    def notes(self, heading: Heading) -> list[str]:
        """Return the remark on the cells of a language that hold no figures."""
        return [f"{cell.method}: {cell.note}" for cell in self.of(heading) if cell.note]

    def markdown(self) -> str:
        """Return a table for each language."""
        parts = []
        for family in dict.fromkeys(heading.family for heading in self.headings):
            parts += [f"### {family[0].upper()}{family[1:]}", ""]
            for heading in self.headings:
                if heading.family == family and self.of(heading):
                    parts += [f"**{heading.name}**: {heading.title}. {heading.phi}; {heading.source}.", ""]
                    parts += [*self.table(heading).markdown(), ""]
                    if notes := [f"- {note}" for note in self.notes(heading)]:
                        parts += [*notes, ""]
        return "\n".join(parts)

    def json(self, **context: Any) -> str:
        """Return everything, unrounded, as JSON text, with what it was measured by: what is not finite is ``null``."""
        data = {"languages": jsonable(self.headings), "cells": jsonable(self.cells)}
        return json.dumps({**context, **data}, indent=1, allow_nan=False) + "\n"


def row(cell: Cell) -> list[str]:
    """Return the row of a cell: its method, then :data:`COLUMNS`."""
    if cell.note:
        return [cell.method, *["-"] * len(COLUMNS)]
    measured = cell.how != "theorem"
    return [
        cell.method,
        f"{'>= ' if cell.how == 'groups' else ''}{number(cell.tv)}" if measured else "0 (theorem)",
        change_of(cell),
        f"{'+-' if cell.how == 'weights' else ''}{number(cell.floor)}" if cell.floor else "-",
        number(cell.tv_tokens),
        number(cell.kl),
        number(cell.ess),
        "-" if cell.log_z_error is None else f"{cell.log_z_error:+.2g}",
        number(cell.certificate),
        number(cell.calls),
        number(cell.tokens),
    ]


def number(x: float | None) -> str:
    """Return a figure in a few digits; ``-`` for one that is not known."""
    if x is None or math.isnan(x):
        return "-"
    if x == 0:
        return "0"
    if abs(x) >= 100:
        return f"{x:,.0f}"
    return f"{x:.1e}" if abs(x) < 1e-3 else f"{x:.3g}"


def change_of(cell: Cell) -> str:
    """Return the change of a cell against masking, as tables show it."""
    if cell.change is None or cell.how == "theorem":
        return "-"
    if is_noise(cell):
        return "noise"
    return f"{100 * cell.change:+.0f} %" if cell.change < 9 else f"x {number(1 + cell.change)}"


def is_noise(cell: Cell) -> bool:
    """Return True if draws of ``mu*`` itself could well have shown the distance."""
    return cell.how in ("draws", "groups") and cell.tv is not None and cell.tv < 2 * (cell.floor or 0.0)


COLORS = "#1c2330 #e4572e #f2a541 #8f5bd6 #2e86ab #1b998b #6a994e #bc4b83 #7a6c5d #4059ad #c1121f #588157".split()
"""Of the estimators, in the order of the table."""

MARKERS = "os^DvPX"  # Of the samplers
LEAST, TOP = 1e-4, 1.15  # The distances of the axis; what is nearer is drawn at its foot


def draw_grid(grid: Grid) -> Any:
    """Return a figure with a panel per family: TV against tokens per draw, faint for each language, bold for the middle of them.

    Distances that noise decides are not drawn at their value: a point that is within twice its noise is drawn at the noise, hollow,
    which says no more than that it lies below.
    """
    shown = [each for each in grid.cells if each.tv is not None and each.tokens and each.how not in ("theorem", "")]
    families = list(dict.fromkeys(cell.family for cell in shown))
    methods = list(dict.fromkeys((cell.estimator, cell.sampler) for cell in grid.cells if cell.tv is not None))
    estimators, samplers = (list(dict.fromkeys(names)) for names in zip(*methods, strict=True)) if methods else ([], [])
    columns = min(3, max(1, len(families)))
    rows = max(1, math.ceil(len(families) / columns))
    figure = figure_class()(figsize=(4.6 * columns, 3.7 * rows + 1.3), layout="constrained", facecolor="white")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    colors = dict(zip(estimators, cycle(COLORS), strict=False))
    markers = dict(zip(samplers, cycle(MARKERS), strict=False))
    for axis, family in zip(axes, families, strict=False):
        for number, (estimator, sampler) in enumerate(methods):
            cells = [
                each for each in shown if (each.family, each.estimator, each.sampler) == (family, estimator, sampler)
            ]
            if cells:
                style = {"color": colors[estimator], "marker": markers[sampler], "linestyle": "none"}
                _draw(axis, cells, style, zorder=3 + len(methods) - number)
        _style(axis, family)
    for axis in axes[len(families) :]:
        axis.set_visible(False)
    _legend(figure, colors, markers, ncols=2 * columns)
    return figure


def _height(cell: Cell) -> tuple[float, bool]:
    """Return the place of a cell in the plot, and whether it is known to be there."""
    tv, floor = cell.tv or 0.0, cell.floor or 0.0
    if tv > 2 * floor:
        return max(tv, LEAST), True
    return max(2 * floor if cell.how == "weights" else floor, LEAST), False


def _draw(axis: Any, cells: Sequence[Cell], style: dict[str, Any], zorder: int) -> None:
    places = [(float(cell.tokens or 0.0), *_height(cell)) for cell in cells]
    x, y = (math.exp(statistics.median([math.log(place[i]) for place in places])) for i in (0, 1))
    known = sum(resolved for *_, resolved in places) * 2 >= len(places)
    for at, to, resolved in places:
        axis.plot(at, to, markerfacecolor=style["color"] if resolved else "none", markersize=4, alpha=0.35, **style)
    face = style["color"] if known else "white"
    axis.plot(x, y, markerfacecolor=face, markersize=10, markeredgewidth=1.8, zorder=zorder, **style)


def _style(axis: Any, family: str) -> None:
    axis.set(xscale="log", yscale="log", ylim=(LEAST * 0.7, TOP))
    for of_axis in (axis.xaxis, axis.yaxis):
        of_axis.set_major_formatter(lambda x, _: f"{x:g}")
        of_axis.set_minor_formatter(lambda x, _: "")
    axis.set_title(family, loc="left", fontsize=11, fontweight="bold", color=INK)
    axis.set_xlabel("model tokens of one draw", fontsize=9, color=INK)
    axis.set_ylabel("TV from the conditioned distribution", fontsize=9, color=INK)
    axis.grid(color="#e3e6ec", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0, which="both")
    axis.spines[:].set_visible(False)


def _legend(figure: Any, colors: dict[str, str], markers: dict[str, str], ncols: int) -> None:
    from matplotlib.lines import Line2D

    entries = [("o", color, f"{name} (masking)" if name == "local" else name) for name, color in colors.items()]
    if len(markers) > 1:
        entries += [(mark, INK, "by itself" if name == "draw" else name) for name, mark in markers.items()]
    plain: dict[str, Any] = {"linestyle": "none", "markersize": 9}
    handles = [Line2D([], [], marker=mark, color=color, label=label, **plain) for mark, color, label in entries]
    hollow = Line2D([], [], marker="o", color=INK, markerfacecolor="white", label="below this: within noise", **plain)
    figure.legend(handles=[*handles, hollow], loc="outside lower center", ncols=ncols, frameon=False, fontsize=9)
