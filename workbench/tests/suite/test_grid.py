"""The table of the suite, in all its forms."""

import json
import math

import pytest

from outlines_phi.fidelity.plots import png
from outlines_phi_workbench.suite.cells import Cell
from outlines_phi_workbench.suite.grid import COLUMNS, Grid, Heading, draw_grid, number, row

CELLS = (
    Cell(
        family="brackets", language="short", estimator="local", sampler="draw", how="computed", tv=0.7112, floor=0.0,
        tv_tokens=0.72, kl=3.5, ess=0.2217, lost=0.0, log_z_error=-0.0129, calls=9.0, tokens=1234.5, n=100,
    ),
    Cell(
        family="brackets", language="short", estimator="local", sampler="smc-50", how="groups",
        tv=0.05, floor=0.03, change=-0.93, calls=9.0, tokens=50.0, n=100,
    ),
    Cell(
        family="strings", language="long", estimator="onestep", sampler="draw", how="weights",
        tv=0.5, floor=0.02, change=0.1, kl=math.inf, calls=20.0, tokens=20.0, n=100,
    ),
    Cell(family="strings", language="long", estimator="exact", sampler="draw", how="theorem", tv=0.0, certificate=0.0),
    Cell(family="strings", language="long", estimator="auto", sampler="draw", note="BudgetError: it ran out."),
)  # fmt: skip
HEADINGS = (
    Heading(name="short", family="brackets", title="Short words", log_phi=math.log(0.25), source="enumerated"),
    Heading(name="long", family="strings", title="Long words", log_phi=-9.0, error=0.02, source="estimated"),
)
GRID = Grid(HEADINGS, CELLS)


def test_a_row_has_all_columns_and_says_where_a_figure_comes_from() -> None:
    assert row(CELLS[0]) == ["local", "0.711", "-", "-", "0.72", "3.5", "0.222", "-0.013", "-", "9", "1,234"]
    assert row(CELLS[1])[:4] == ["local + smc-50", ">= 0.05", "noise", "0.03"]
    assert row(CELLS[2])[1:4] == ["0.5", "+10 %", "+-0.02"] and row(CELLS[3])[1] == "0 (theorem)"
    assert row(CELLS[4]) == ["auto", *["-"] * len(COLUMNS)]
    shown = {None: "-", math.nan: "-", 0.0: "0", 3e-11: "3.0e-11", 0.12345: "0.123", 12345.6: "12,346"}
    assert {x: number(x) for x in shown} == shown


def test_markdown_and_json_have_every_language() -> None:
    text = GRID.markdown()
    assert text.index("### Brackets") < text.index("**short**") < text.index("### Strings") < text.index("**long**")
    assert "Phi 0.25; enumerated" in text and "Phi 0.000123 +-2 %; estimated" in text
    assert "- auto: BudgetError: it ran out." in text
    assert all(line.count("|") == len(COLUMNS) + 2 for line in text.splitlines() if line.startswith("|"))
    data = json.loads(GRID.json(n=100))
    assert data["n"] == 100 and [language["name"] for language in data["languages"]] == ["short", "long"]
    assert data["cells"][0]["tv"] == 0.7112 and data["cells"][2]["kl"] is None


@pytest.mark.parametrize("cells", [CELLS, ()])
def test_the_figure_has_a_panel_per_family_that_has_points(cells: tuple[Cell, ...]) -> None:
    figure = draw_grid(Grid(HEADINGS, cells))
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_visible()]
    assert titles == (["brackets", "strings"] if cells else []) and png(figure).startswith(b"\x89PNG")
