"""The program that is extracted from the proofs, built once for all tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROOFS = Path(__file__).parents[3] / "proofs"
THEORIES = ("tree", "thinning", "pick", "transducer", "lexing", "grammar", "certificate", "extraction")


def is_coq_here() -> bool:
    """Return True if there are Coq, with Mathematical Components, and OCaml."""
    if shutil.which("coqc") is None or shutil.which("ocamlfind") is None:
        return False
    found = subprocess.run(["coqc", "-where"], capture_output=True, text=True, check=True)
    return (Path(found.stdout.strip()) / "user-contrib" / "mathcomp").is_dir()


@pytest.fixture(scope="session")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extract the program, compile it, and return where it is."""
    if not is_coq_here():
        pytest.skip("Coq with Mathematical Components, and OCaml, are not here")
    folder = tmp_path_factory.mktemp("checker")
    for theory in THEORIES:
        shutil.copy(PROOFS / "theories" / f"{theory}.v", folder)
        subprocess.run(["coqc", "-q", "-w", "none", "-R", ".", "Phi", f"{theory}.v"], cwd=folder, check=True)
    shutil.copy(PROOFS / "checker" / "main.ml", folder)
    build = ["ocamlfind", "ocamlopt", "-w", "-a", "certificate.mli", "certificate.ml", "main.ml", "-o", "check"]
    subprocess.run(build, cwd=folder, check=True)
    return folder / "check"


@pytest.fixture
def checker(extracted: Path, tmp_path: Path) -> Callable[[Any], tuple[int, str]]:
    """Return the checker of a certificate, which gives the exit status and its output."""

    def run(found: Any) -> tuple[int, str]:
        path = tmp_path / "certificate.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        done = subprocess.run([extracted, path], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def replayed(extracted: Path, tmp_path: Path) -> Callable[[list[Any]], list[int]]:
    """Return the function that replays the choices of steps, each a coin, a quantile and masses; -1 for a failure."""

    def run(steps: list[Any]) -> list[int]:
        path = tmp_path / "steps.json"
        path.write_text(json.dumps(steps))
        done = subprocess.run([extracted, "--steps", path], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout)

    return run
