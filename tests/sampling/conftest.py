"""What tests of samplers share."""

from __future__ import annotations

import pytest

from outlines_phi.sampling.rejection import tree_call as exact


@pytest.fixture
def only_walks_grow_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small finite languages are not enumerated before the first walk."""
    monkeypatch.setattr(exact, "FINITE_PREFIXES", 0)
