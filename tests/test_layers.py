"""The arrows of the architecture: imports point down, sizes stay small.

      cli
      plugin
sampling   fidelity
    drafting
      phi
guides       lm
vocabulary, partition, automaton, ...
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "outlines_phi"
MODULES = sorted(PACKAGE.rglob("*.py"))

BOTTOM = "bottom"
RANKS = {BOTTOM: 0, "guides": 1, "lm": 1, "phi": 2, "drafting": 3, "sampling": 4, "fidelity": 4, "plugin": 5, "cli": 6}
"""A folder may import from folders of a lower rank, and from itself."""

SPEAK_OUTLINES = {"plugin", "cli"}
"""The only layers that may import outlines."""

MAX_LINES = 400


def layer(parts: tuple[str, ...]) -> str:
    """The layer of a module, by its path below the package."""
    return parts[0] if len(parts) > 1 and parts[0] in RANKS else BOTTOM


def imported(tree: ast.AST, parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The absolute path of every module that a module imports; ``parts`` is the importing one, below the package."""
    here = ("outlines_phi", *parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*module, alias.name) for alias in node.names)


def violations(source: str, parts: tuple[str, ...]) -> list[str]:
    """What a module of the package may not import."""
    own, wrong = layer(parts), []
    tree = ast.parse(source)
    for target in imported(tree, parts):
        if target[0] == "outlines" and own not in SPEAK_OUTLINES:
            wrong.append("outlines")
        if target[0] != "outlines_phi":
            continue
        inside = target[1:]
        top_level = len(inside) == 1 and inside[0] not in RANKS  # outlines_phi.<file> or a name of its __init__
        other = BOTTOM if top_level or inside[0] not in RANKS else inside[0]
        if other != own and RANKS[other] >= RANKS[own]:
            wrong.append(".".join(target))
    return wrong


def local_imports(source: str) -> list[str]:
    """Internal imports inside functions: they hide a cycle."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [
        ast.unparse(node)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("outlines_phi"))
    ]


SOURCES = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in MODULES}


def test_imports_point_down() -> None:
    below = {
        path: source for path, source in SOURCES.items() if path != Path("__init__.py")
    }  # which is above all layers
    found = {str(path): violations(source, path.with_suffix("").parts) for path, source in below.items()}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_no_import_hides_in_a_function() -> None:
    found = {str(path): local_imports(source) for path, source in SOURCES.items()}
    assert {path: hidden for path, hidden in found.items() if hidden} == {}


def test_no_file_is_too_long() -> None:
    lines = {str(path): len(source.splitlines()) for path, source in SOURCES.items()}
    assert {path: n for path, n in lines.items() if n > MAX_LINES} == {}


def test_every_folder_has_a_rank() -> None:
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in MODULES if path.parent != PACKAGE}
    assert folders <= set(RANKS)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from ..phi.tree import Node", ("guides", "fsm")),
        ("from ..lm.model import LanguageModel", ("guides", "fsm")),
        ("from ..guides import guide", ("lm", "model")),
        ("from ...guides.guide import DONE", ("lm", "transformers", "model")),
        ("from ..sampling.draws import Draws", ("fidelity", "report")),
        ("from ..sampling.sampler import Request", ("drafting", "model")),
        ("from .guides.guide import DEAD", ("vocabulary",)),
        ("from . import plugin", ("settings",)),
        ("import outlines_phi.cli.app", ("plugin", "model")),
        ("def f():\n    from ..plugin.model import wrap", ("sampling", "exact")),
        ("import outlines", ("sampling", "exact")),
        ("from outlines.types.dsl import Term", ("guides", "regex")),
    ],
)
def test_an_arrow_that_runs_up_is_found(source: str, parts: tuple[str, ...]) -> None:
    assert violations(source, parts)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from ..guides.guide import DONE", ("phi", "tree")),
        ("from ...vocabulary import Vocabulary", ("lm", "transformers", "model")),
        ("from .rows import Rows", ("lm", "transformers", "model")),
        ("import outlines_core\nfrom .. import errors", ("guides", "regex")),
        ("import outlines\nfrom .. import __version__", ("cli", "app")),
    ],
)
def test_an_arrow_that_runs_down_is_allowed(source: str, parts: tuple[str, ...]) -> None:
    assert violations(source, parts) == []


def test_a_hidden_import_is_found() -> None:
    assert local_imports("def f():\n    from .x import y") == ["from .x import y"]
    assert local_imports("def f():\n    import torch") == []
