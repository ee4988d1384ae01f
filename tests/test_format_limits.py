"""Limits of formats: names, bounds, and where they hold."""

import pytest

import outlines_phi
from outlines_phi.errors import UnsupportedError
from outlines_phi.format_limits import current_limits


def test_a_limit_holds_inside_its_block_alone() -> None:
    before = current_limits()
    with outlines_phi.limits(states=7), outlines_phi.limits(nesting=3) as inner:
        assert (inner.states, inner.nesting, inner.source) == (7, 3, before.source)
        with pytest.raises(UnsupportedError, match=r"limits\(states=8\).*pattern is 8, more than 7"):
            inner.check("states", 8, "The number of states of this pattern")
    assert current_limits() == before


@pytest.mark.parametrize("bounds", [{"sates": 1}, {"states": 0}, {"states": True}, {"states": "many"}])
def test_what_is_no_limit_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(UnsupportedError, match="Give"), outlines_phi.limits(**bounds):
        pass
