"""The program that is extracted from the proofs, built once for all tests."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROOFS = Path(__file__).parents[3] / "proofs"
THEORIES = ("tree", "thinning", "pick", "transducer", "lexing", "grammar", "certificate", "extraction")

Run = Callable[..., tuple[int, str]]


def is_coq_here() -> bool:
    """Return True if there are Coq, with Mathematical Components, and OCaml."""
    if shutil.which("coqc") is None or shutil.which("ocamlfind") is None:
        return False
    found = subprocess.run(["coqc", "-where"], capture_output=True, text=True, check=True)
    return (Path(found.stdout.strip()) / "user-contrib" / "mathcomp").is_dir()


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Extract and compile the program; return what runs it on data, and gives the exit status and what was said."""
    if not is_coq_here():
        pytest.skip("Coq with Mathematical Components, and OCaml, are not here")
    folder = tmp_path_factory.mktemp("checker")
    for theory in THEORIES:
        shutil.copy(PROOFS / "theories" / f"{theory}.v", folder)
        subprocess.run(["coqc", "-q", "-w", "none", "-R", ".", "Phi", f"{theory}.v"], cwd=folder, check=True)
    shutil.copy(PROOFS / "checker" / "main.ml", folder)
    build = ["ocamlfind", "ocamlopt", "-w", "-a", "certificate.mli", "certificate.ml", "main.ml", "-o", "check"]
    subprocess.run(build, cwd=folder, check=True)

    def run(found: Any, *options: str) -> tuple[int, str]:
        path = folder / "data.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        done = subprocess.run([folder / "check", *options, path], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    return run
