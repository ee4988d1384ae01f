"""What is proven in Coq, run from the tests."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

PROOFS = Path(__file__).parents[2] / "proofs"


@cache
def is_coq_here() -> bool:
    """Whether there is Coq, with Mathematical Components."""
    if shutil.which("coqc") is None:
        return False
    found = subprocess.run(["coqc", "-where"], capture_output=True, text=True, check=True)
    return (Path(found.stdout.strip()) / "user-contrib" / "mathcomp").is_dir()


def coqc(folder: Path, *files: str) -> str:
    """Compile copies of theories, and other files of ``folder``, one after the other; return what the last one prints."""
    said = ""
    for file in files:
        if not (folder / file).exists():
            shutil.copy(PROOFS / "theories" / file, folder)
        said = subprocess.run(
            ["coqc", "-q", "-w", "none", "-R", ".", "Phi", file], cwd=folder, check=True, capture_output=True, text=True
        ).stdout
    return said
