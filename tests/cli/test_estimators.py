"""``outlines-phi generate --phi`` with every estimator that has a name."""

from __future__ import annotations

import pytest

from outlines_phi.plugin.call import ESTIMATORS

from .conftest import Cli, records

PROMPT = "Question: is the bakery open on Sunday? Answer: "


@pytest.mark.parametrize("phi", ["dp", "dp-bigram"])
def test_it_takes_the_name(cli: Cli, phi: str) -> None:
    assert phi in ESTIMATORS
    result = cli("generate", "--type", "formats:Answer", "--n", 5, "--seed", 1, "--phi", phi, PROMPT)
    assert result.exit_code == 0, result.stderr
    lines = records(result.stdout)
    assert [line["text"] in ("yes", "no") for line in lines] == [True] * 5
    assert {line["guarantee"] for line in lines} == {"weighted"}
    assert sum(line["weight"] for line in lines) == pytest.approx(1)
