"""The figure of the fidelity suite: how far from the truth, against what a draw costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..fidelity.plots import INK, figure_class
from .cells import Cell
from .grid import Grid

COLORS = (
    "#1c2330", "#e4572e", "#f2a541", "#8f5bd6", "#2e86ab", "#1b998b",
    "#6a994e", "#bc4b83", "#7a6c5d", "#4059ad", "#c1121f", "#588157",
)  # fmt: skip
"""Of the estimators, in the order of the table."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Of the samplers."""

LEAST, TOP = 1e-4, 1.15
"""The distances of the axis; what is nearer is drawn at its foot."""


def draw_grid(grid: Grid) -> Any:
    """Return a figure with a panel per family: TV against tokens per draw, faint for each language, bold for the middle of them.

    Distances that noise decides are not drawn at their value: a point that is within twice its noise is drawn at the noise, hollow,
    which says no more than that it lies below.
    """
    figure_of = figure_class()
    families = [
        family for family in dict.fromkeys(heading.family for heading in grid.headings) if _points(grid, family)
    ]
    methods = list(dict.fromkeys((cell.estimator, cell.sampler) for cell in grid.cells if cell.tv is not None))
    estimators = list(dict.fromkeys(estimator for estimator, _ in methods))
    samplers = list(dict.fromkeys(sampler for _, sampler in methods))
    columns = min(3, max(1, len(families)))
    rows = math.ceil(len(families) / columns)
    figure = figure_of(figsize=(4.6 * columns, 3.7 * rows + 1.3), layout="constrained", facecolor="white")
    axes = figure.subplots(max(1, rows), columns, squeeze=False, sharey=True).flatten()
    for axis, family in zip(axes, families, strict=False):
        for estimator, sampler in methods:
            color = COLORS[estimators.index(estimator) % len(COLORS)]
            marker = MARKERS[samplers.index(sampler) % len(MARKERS)]
            points = [cell for cell in _points(grid, family) if (cell.estimator, cell.sampler) == (estimator, sampler)]
            _draw(axis, points, color, marker, zorder=3 + len(estimators) - estimators.index(estimator))
        _style(axis, family)
    for axis in axes[len(families) :]:
        axis.set_visible(False)
    _legend(figure, estimators, samplers, ncols=2 * columns)
    return figure


def _points(grid: Grid, family: str) -> list[Cell]:
    return [
        cell
        for cell in grid.cells
        if cell.family == family and cell.tv is not None and cell.tokens and cell.how not in ("theorem", "")
    ]


def _height(cell: Cell) -> tuple[float, bool]:
    """Return where a cell is drawn, and whether it is known to be there."""
    assert cell.tv is not None
    floor = cell.floor or 0.0
    if cell.how == "weights":
        return max(cell.tv, 2 * floor, LEAST), cell.tv > 2 * floor
    resolved = cell.tv > 2 * floor
    return max(cell.tv if resolved else floor, LEAST), resolved


def _draw(axis: Any, cells: Sequence[Cell], color: str, marker: str, zorder: int) -> None:
    if not cells:
        return
    places = [(float(cell.tokens or 0.0), *_height(cell)) for cell in cells]
    for x, y, resolved in places:
        face = color if resolved else "none"
        axis.plot(x, y, marker=marker, color=color, markerfacecolor=face, markersize=4, alpha=0.35, linestyle="none")
    x, y = (math.exp(_median([math.log(place[i]) for place in places])) for i in (0, 1))
    known = sum(resolved for *_, resolved in places) * 2 >= len(places)
    face = color if known else "white"
    axis.plot(
        x,
        y,
        marker=marker,
        color=color,
        markerfacecolor=face,
        markersize=10,
        markeredgewidth=1.8,
        linestyle="none",
        zorder=zorder,
    )


def _median(values: Sequence[float]) -> float:
    ranked = sorted(values)
    return (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2


def _style(axis: Any, family: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(LEAST * 0.7, TOP)
    for of_axis, subs in ((axis.xaxis, (1.0, 3.0)), (axis.yaxis, (1.0,))):
        of_axis.set_major_locator(LogLocator(subs=subs))
        of_axis.set_major_formatter(lambda x, _: f"{x:g}")
        of_axis.set_minor_formatter(NullFormatter())
    axis.set_title(family, loc="left", fontsize=11, fontweight="bold", color=INK)
    axis.set_xlabel("model tokens of one draw", fontsize=9, color=INK)
    axis.set_ylabel("TV from the conditioned law", fontsize=9, color=INK)
    axis.grid(color="#e3e6ec", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0, which="both")
    axis.spines[:].set_visible(False)


def _label(estimator: str) -> str:
    return f"{estimator} (masking)" if estimator == "local" else estimator


def _legend(figure: Any, estimators: Sequence[str], samplers: Sequence[str], ncols: int) -> None:
    from matplotlib.lines import Line2D

    plain: dict[str, Any] = {"linestyle": "none", "markersize": 9}
    handles = [
        Line2D([], [], marker="o", color=COLORS[i % len(COLORS)], label=_label(name), **plain)
        for i, name in enumerate(estimators)
    ]
    handles += [
        Line2D(
            [], [], marker=MARKERS[i % len(MARKERS)], color=INK, label="by itself" if name == "draw" else name, **plain
        )
        for i, name in enumerate(samplers)
        if len(samplers) > 1
    ]
    handles.append(
        Line2D([], [], marker="o", color=INK, markerfacecolor="white", label="below this: within noise", **plain)
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9)
