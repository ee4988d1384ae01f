"""``outlines-phi fit`` on the bundled model."""

from __future__ import annotations

from typing import Literal

from outlines_phi import Generator, from_transformers
from outlines_phi.fidelity.format_fit import REMEDIES
from outlines_phi.lm import bundled

from .conftest import Cli

BAKERY, ARIA = "Question: is the bakery open on Sunday? Answer: ", "New character: Aria. JSON: "


def test_the_table_is_that_of_the_library(cli: Cli) -> None:
    result = cli("fit", "--type", "formats:Answer", "--regex", "Yes|No", BAKERY, ARIA, "--line", 4)
    assert result.exit_code == 0, result.stderr
    table = Generator(from_transformers(*bundled.load()), Literal["yes", "no"]).fit([BAKERY, ARIA], tokens=4)
    for fit in table:
        assert f"{fit.log_phi}" in result.stdout and repr(fit.line) in result.stdout
    assert "Regex(pattern='Yes|No')" in result.stdout and "-15.89" in result.stdout
    assert REMEDIES["ask"] in " ".join(result.stdout.split())


def test_without_a_type_it_says_what_to_give(cli: Cli) -> None:
    result = cli("fit", BAKERY)
    assert result.exit_code == 2 and "Give at least one of --type" in " ".join(result.stderr.split())
