"""The arrows of the architecture: imports point down, and no file imports itself in a circle.

      ray
      cli
      plugin
sampling   fidelity
    drafting
      phi
guides       lm
vocabulary, automata, numerics, regex     (testing beside phi)

The workbench stands above all of it, and nothing of it is imported here.

      commands
inspection   suite
   verification
"""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = {
    path.relative_to(folder).with_suffix("").parts: path
    for folder in (ROOT, ROOT / "workbench")
    for package in ("outlines_phi", "outlines_phi_workbench")
    for path in sorted((folder / package).rglob("*.py"))
}

FLOOR = {"vocabulary", "automata", "numerics", "regex"}
"""Folders of the bottom, which the files beside them belong to as well."""

RANKS = {
    "": 0,
    "guides": 1,
    "lm": 1,
    "testing": 2,
    "phi": 2,
    "drafting": 3,
    "sampling": 4,
    "fidelity": 4,
    "plugin": 5,
    "vllm": 6,
    "rl": 6,
    "lm_eval": 6,
    "cli": 7,
    "ray": 8,
    "verification": 9,
    "inspection": 10,
    "suite": 10,
    "commands": 11,
}
"""A folder may import from folders of a lower rank, and from itself; the bottom has no name. The last four are the workbench's."""

SPEAK_OUTLINES = {"plugin", "rl", "lm_eval", "suite", "cli", "commands"}
"""The only layers that may import outlines."""


def layer(parts: tuple[str, ...]) -> str:
    """The layer of a module, by its path."""
    return parts[1] if len(parts) > 1 and parts[1] in RANKS else ""


def imported(tree: ast.AST, parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The absolute path of every module that a module imports; ``parts`` is the importing one."""
    here = parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*module, alias.name) for alias in node.names)


def violations(source: str, parts: tuple[str, ...]) -> list[str]:
    """Return the imports that a module of the package may not have."""
    own, wrong = layer(parts), []
    for target in imported(ast.parse(source), parts):
        if target[0] == "outlines" and own not in SPEAK_OUTLINES:
            wrong.append("outlines")
        if target[0] in ("outlines_phi", "outlines_phi_workbench"):
            other = layer(target)
            if (other != own and RANKS[other] >= RANKS[own]) or (parts[0] == "outlines_phi" != target[0]):
                wrong.append(".".join(target))
    return wrong


def local_imports(source: str) -> list[str]:
    """Internal imports inside functions: they hide a circle."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [
        ast.unparse(node)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("outlines_phi"))
    ]


def arrows(sources: dict[tuple[str, ...], str]) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """The modules that each module imports, those for type checkers included."""
    return {
        parts: {
            found
            for target in imported(ast.parse(source), parts)
            for found in (target, target[:-1])
            if found in sources and found != parts
        }
        for parts, source in sources.items()
    }


def test_imports_point_down() -> None:
    wrong = {parts: violations(path.read_text(encoding="utf-8"), parts) for parts, path in MODULES.items()}
    assert {parts: found for parts, found in wrong.items() if found} == {}


def test_no_import_hides_in_a_function() -> None:
    wrong = {parts: local_imports(path.read_text(encoding="utf-8")) for parts, path in MODULES.items()}
    assert {parts: found for parts, found in wrong.items() if found} == {}


def test_no_file_imports_itself_in_a_circle() -> None:
    TopologicalSorter(arrows({parts: path.read_text(encoding="utf-8") for parts, path in MODULES.items()})).prepare()


def test_a_circle_is_found() -> None:
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..b.two import Two"
    with pytest.raises(CycleError):
        TopologicalSorter(arrows({("x", "a", "one"): hidden, ("x", "b", "two"): "from ..a.one import One"})).prepare()


def test_no_name_is_that_of_two_files_or_two_classes() -> None:
    files = Counter(parts[-1] for parts in MODULES if parts[-1] != "__init__")
    classes = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for names in (files, classes) for name, count in names.items() if count > 1] == []


def test_every_folder_has_a_rank() -> None:
    assert {parts[1] for parts in MODULES if len(parts) > 2 or parts[1] in RANKS} == {*RANKS, *FLOOR} - {""}


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from ..phi.tree.tree import Node", ("guides", "fsm")),
        ("from ..lm.model import LanguageModel", ("guides", "fsm")),
        ("from ..guides import guide", ("lm", "model")),
        ("from ...guides.guide import DONE", ("lm", "transformers", "model")),
        ("from ..sampling.draws import Draws", ("fidelity", "report")),
        ("from ..sampling.sampler import Request", ("drafting", "model")),
        ("from ..guides.guide import DEAD", ("vocabulary", "trie")),
        ("from . import plugin", ("settings",)),
        ("import outlines_phi.cli.app", ("plugin", "model")),
        ("import outlines_phi_workbench", ("cli", "app")),
        ("def f():\n    from ..plugin.model import wrap", ("sampling", "stepper")),
        ("import outlines", ("sampling", "stepper")),
        ("from outlines.types.dsl import Term", ("guides", "regex")),
    ],
)
def test_an_arrow_that_runs_up_is_found(source: str, parts: tuple[str, ...]) -> None:
    assert violations(source, ("outlines_phi", *parts))


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("from ..guides.guide import DONE", ("phi", "tree")),
        ("from ...vocabulary.vocabulary import Vocabulary", ("lm", "transformers", "model")),
        ("from ..numerics.checks import counted", ("vocabulary", "trie")),
        ("from .rows import Rows", ("lm", "transformers", "model")),
        ("import outlines_core\nfrom .. import errors", ("guides", "index")),
        ("import outlines\nfrom .. import __version__", ("cli", "app")),
    ],
)
def test_an_arrow_that_runs_down_is_allowed(source: str, parts: tuple[str, ...]) -> None:
    assert violations(source, ("outlines_phi", *parts)) == []
