"""Fixtures shared by all tests."""

from __future__ import annotations

import os

# Tests never touch the user's cache folder.
os.environ.setdefault("OUTLINES_PHI_CACHE", "")
