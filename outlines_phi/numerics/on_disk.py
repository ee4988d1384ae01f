"""Arrays that are kept on disk between processes."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

CACHE_VARIABLE = "OUTLINES_PHI_CACHE"
"""Environment variable: the folder where arrays are kept between processes; empty for none."""


def load(name: str) -> dict[str, NDArray[Any]] | None:
    """Return the arrays that were kept under a name; ``None`` if there are none, or not whole ones."""
    folder = _folder()
    if folder is None:
        return None
    try:
        with (folder / f"{name}.npz").open("rb") as file, np.load(file) as arrays:
            return dict(arrays)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def save(name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep arrays under a name; another process sees all of them or nothing. A folder that refuses is no error."""
    folder = _folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".npz", delete=False) as file:
            np.savez(file, **dict[str, Any](arrays))
        os.replace(file.name, folder / f"{name}.npz")
    except OSError:
        return


def _folder() -> Path | None:
    folder = os.environ.get(CACHE_VARIABLE)
    if folder is None:
        return Path(platformdirs.user_cache_dir("outlines_phi"))
    return Path(folder) if folder else None
