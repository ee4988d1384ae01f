"""The environment of genlm-control, which cannot live beside this package."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".venv-genlm"


def interpreter() -> str:
    """Return the interpreter of ``.venv-genlm``, which is made by ``requirements.txt`` where it is not there."""
    python = FOLDER / "bin" / "python"
    ready = FOLDER / ".ready"  # an installation that was cut off is made again
    if not ready.exists():
        print(f"Making {FOLDER.name}, the environment of genlm-control, which takes some minutes.", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        requirements = Path(__file__).parent / "requirements.txt"
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)]
        subprocess.run([str(python), *install], check=True)
        ready.touch()
    return str(python)
