"""Fixtures shared by all tests."""

from __future__ import annotations

import os

import pytest
import torch

# Tests never touch the user's cache folder.
os.environ.setdefault("OUTLINES_PHI_CACHE", "")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models run many times slower when shared cores fight over threads."""
    torch.set_num_threads(1)
