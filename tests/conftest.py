"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os

import pytest
import torch

# Tests never touch the user's cache folder.
os.environ.setdefault("OUTLINES_PHI_CACHE", "")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models run many times slower when shared cores fight over threads."""
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What torch and transformers have imported is not walked through again at every collection of garbage: a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_unconfigure() -> None:
    """What was set aside is given back, so that extension modules find nothing of theirs left at the end."""
    gc.unfreeze()
