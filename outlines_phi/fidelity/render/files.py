"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from ...errors import UnsupportedError


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` by way of a temporary file in the same folder; what stood there stays until it is done.

    Raises
    ------
    UnsupportedError
        The file cannot be written; says why.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise UnsupportedError(
            f"{path} cannot be written: {error.strerror}. Give the path of a file in a folder that exists."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
