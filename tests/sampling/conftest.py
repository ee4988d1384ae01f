"""Fixtures of the tests of samplers."""

from __future__ import annotations

import pytest

from tests.inner import preexpand


@pytest.fixture
def only_walks_grow_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small finite languages are not enumerated before the first walk."""
    monkeypatch.setattr(preexpand, "SHORT", 0)
