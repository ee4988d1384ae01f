"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend a temporary path in the folder of ``path`` that takes its place at the end, so that nobody meets half a file.

    After an exception, such as that of a full disk or Ctrl-C, the old file stands as it did, and nothing else is left.

    Raises
    ------
    OSError
        The folder is not there, or refuses the file.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
