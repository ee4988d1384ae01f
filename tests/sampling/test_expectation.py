"""The arguments of ``expectation`` and ``for_draws``, and those that they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outlines_phi import Draw, Guarantee, UnsupportedError
from outlines_phi.sampling import Certificate
from outlines_phi.sampling.draw import numbers_of

DRAWS = [Draw(text=text, token_ids=(0,), log_p=-1.0, log_w=0.0, guarantee=Guarantee.EXACT) for text in ("no", "yes")]


@pytest.mark.parametrize("kind", [bool, int, float, np.bool_, np.float32, torch.tensor])
def test_every_kind_of_number_counts(kind: Any) -> None:
    assert numbers_of(lambda draw: kind(draw.text == "yes"), DRAWS) == [0.0, 1.0]


@pytest.mark.parametrize("value", ["1", None, [1.0], np.ones(2), 1j, torch.ones(2)])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(
        UnsupportedError, match="returned .* for 'no'; expected a function of a draw that returns a number"
    ):
        numbers_of(lambda _: value, DRAWS)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"expectation\(3\) was asked for; expected a function"):
        numbers_of(3, DRAWS)  # type: ignore[arg-type]


def test_errors_of_the_function_are_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        numbers_of(lambda _: 1 / 0, DRAWS)


@pytest.mark.parametrize("n", ["3", -1, 1.5, None, True])
def test_a_certificate_is_of_a_whole_number_of_draws(n: Any) -> None:
    certificate = Certificate(total_variation=0.1)
    assert certificate.for_draws(0) == 0 and certificate.for_draws(2) == pytest.approx(0.19)
    with pytest.raises(UnsupportedError, match="expected a whole number of at least 0"):
        certificate.for_draws(n)
