"""Mutation testing of the runtime: random mistakes in its functions, and which tests find each.

    python -m outlines_phi_workbench.mutation record MAP tests/lm tests/phi ...
    python -m outlines_phi_workbench.mutation try MAP RESULT [--number 200] [--seed 1] [--under lm,phi]

``record`` runs the folders one by one and adds to the folder MAP which test begins which blocks of statements, how long each
takes, and what failed. ``try`` samples mutants by a fixed seed, and for each runs the tests that begin its block: those of the
folder of the same name first, and quick ones before slow ones, in a process forked after the slow imports. No file is written
but the result: what is wrong is the syntax tree from which a module is made.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import json
import multiprocessing
import os
import random
import resource
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = "outlines_phi"

OPTIONS = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]

HEAVY = [
    "torch",
    "transformers.models.llama.modeling_llama",
    "outlines",
    "scipy.stats",
    "hypothesis",
    "lark",
    "pydantic",
]
"""The packages that are imported before forks."""

FORK = multiprocessing.get_context("fork")

SECONDS = 15.0
"""The seconds that the tests of a mutant may take by their recorded times: the last ones in order are left out."""

PATIENCE = 60
"""The seconds of work after which a mutant that does not end counts as caught; ten times as many by the clock."""

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

SWAPS: dict[type[ast.AST], type[Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


class MutationSite(NamedTuple):
    """A place for a mistake: the file below the root, the place of the node in the order of ``ast.walk``, and its line."""

    path: str
    node: int
    line: int
    kind: str


def mistake(node: ast.AST) -> tuple[str, str, Any] | None:
    """Return the name of the mistake that can be made at a node, and the attribute and value that make it; ``None`` for none."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp | ast.AugAssign):
        operator = type(node.ops[0] if isinstance(node, ast.Compare) else node.op)
        if operator not in SWAPS:
            return None
        wrong, name = SWAPS[operator](), f"{operator.__name__} to {SWAPS[operator].__name__}"
        return (name, "ops", [wrong, *node.ops[1:]]) if isinstance(node, ast.Compare) else (name, "op", wrong)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        return f"{node.value} to {value}", "value", value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "not dropped", "operand", ast.UnaryOp(ast.Not(), node.operand)
    if isinstance(node, ast.Return) and not (node.value is None or isinstance(node.value, ast.Constant)):
        return "None returned", "value", ast.Constant(None)
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return "condition negated", "test", ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "statement removed", "value", ast.Constant(None)
    return None


def mutated(file: Path, place: int) -> ast.Module:
    """Return the syntax tree of a module with the mistake at one node."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    node = list(ast.walk(tree))[place]
    _, attribute, value = mistake(node) or ("", "", None)
    setattr(node, attribute, value)
    return ast.fix_missing_locations(tree)


def sites(path: Path) -> Iterator[MutationSite]:
    """Yield the places for mistakes inside the functions of a file, annotations aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTION)]
    inside = {id(node) for function in functions for part in function.body for node in ast.walk(part)}
    notes = (getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns"))
    outside = {id(node) for note in notes if note is not None for node in ast.walk(note)}
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in inside - outside and (found := mistake(node)) is not None:
            yield MutationSite(path.relative_to(ROOT).as_posix(), place, node.lineno, found[0])  # type: ignore[attr-defined]


def load_changed(change: Callable[[Path], ast.Module | None]) -> None:
    """Have modules of the package made from the syntax trees that ``change`` returns of their files, ``None`` for no change."""
    known = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        tree = change(Path(loader.path)) if loader.path.startswith(f"{ROOT / PACKAGE}/") else None
        return known(loader, name) if tree is None else compile(tree, loader.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


class Blocks:
    """The blocks of statements inside functions, each of which marks itself when it begins: a byte of ``builtins.__begun__``."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, int]] = []
        builtins.__begun__ = self.seen = bytearray(1 << 16)  # type: ignore[attr-defined]

    def marked(self, file: Path) -> ast.Module:
        """Return the tree of a module with a mark at the beginning of each block."""
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTION)]
        for node in {id(node): node for function in functions for node in ast.walk(function)}.values():
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if not isinstance(block, list) or not block or isinstance(node, ast.ClassDef):
                    continue
                self.lines.append((file.relative_to(ROOT).as_posix(), block[0].lineno, block[-1].end_lineno or 0))
                first = int(isinstance(node, FUNCTION) and ast.get_docstring(node) is not None)
                block[first:first] = ast.parse(f"__begun__[{len(self.lines) - 1}] = 1").body
        return ast.fix_missing_locations(tree)

    def taken(self) -> list[int]:
        """Return the blocks that were begun since the last time."""
        found = [place for place, byte in enumerate(self.seen) if byte]
        self.seen[:] = bytes(len(self.seen))
        return found


class Recorder:
    """The plugin of pytest that keeps the time of each test, the blocks that it begins, and the failures."""

    def __init__(self, blocks: Blocks | None = None) -> None:
        self.blocks, self.times, self.failed = blocks, defaultdict[str, float](float), list[str]()
        self.tests = defaultdict[str, set[int]](set)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self.blocks is not None:
            self.tests[nodeid.partition("[")[0]].update(self.blocks.taken())

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.times[report.nodeid.partition("[")[0]] += report.duration
        self.failed += [report.nodeid] * report.failed

    def pytest_collectreport(self, report: Any) -> None:
        self.failed += [f"import of {report.nodeid}"] * report.failed


def record(folder: Path, part: str) -> None:
    """Run a folder of tests, and keep which test begins which blocks, the times, and what failed."""
    import pytest

    load_changed((blocks := Blocks()).marked)
    recorder = Recorder(blocks)
    pytest.main([part, *OPTIONS], plugins=[recorder])
    kept = {"blocks": blocks.lines, "times": recorder.times, "failed": recorder.failed}
    kept["tests"] = {test: sorted(begun) for test, begun in recorder.tests.items()}
    (folder / part.replace("/", "_")).with_suffix(".json").write_text(json.dumps(kept))


class Map:
    """The tests that begin each block, in the order in which they are tried."""

    def __init__(self, folder: Path) -> None:
        self.times: dict[str, float] = {}
        self.tests: dict[str, dict[tuple[int, int], set[str]]] = defaultdict(lambda: defaultdict(set))
        for kept in (json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))):
            self.times.update(kept["times"])
            for test, begun in kept["tests"].items():
                for path, line, end in (kept["blocks"][block] for block in begun):
                    self.tests[path][line, end].add(test)

    def chosen(self, site: MutationSite) -> list[str]:
        """Return the tests of a place: those of the same folder first, and quick ones first, within the time."""
        same = "tests" + site.path.removeprefix(PACKAGE).rpartition("/")[0] + "/"
        around = [block for block in self.tests[site.path] if block[0] <= site.line <= block[1]]
        begun = self.tests[site.path][min(around, key=lambda block: block[1] - block[0])] if around else set[str]()
        tests = sorted(begun, key=lambda test: (not test.startswith(same), self.times[test]))
        total = list(accumulate(self.times[test] for test in tests))
        return tests[: max(1, bisect_right(total, SECONDS))]


def attempt(site: MutationSite, tests: list[str], answer: Any) -> None:
    """Run some tests with a mistake in place, and put the first that fails into a queue, ``""`` where none does."""
    import pytest

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
    load_changed(lambda file: mutated(file, site.node) if file == ROOT / site.path else None)
    recorder = Recorder()
    code = pytest.main(["-x", *OPTIONS, *tests], plugins=[recorder])
    answer.put(next(iter(recorder.failed), "" if code == 0 else f"exit {int(code)}"))
    os._exit(0)


def forked(work: Callable[..., None], *given: Any) -> bool:
    """Return True if some work in a process of its own ends by itself."""
    process = FORK.Process(target=work, args=given)
    process.start()
    process.join(None if work is record else 10 * PATIENCE)
    if process.exitcode is None:
        process.kill()
    return process.exitcode == 0


def main() -> None:
    """Record a map, or try mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["record", "try"])
    parser.add_argument("map", type=Path)
    parser.add_argument("arguments", nargs="+")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--under", default="")
    options = parser.parse_args()
    for name in HEAVY:
        importlib.import_module(name)
    assert PACKAGE not in sys.modules, "a module that is imported before the forks cannot be made wrong"
    options.map.mkdir(parents=True, exist_ok=True)
    if options.action == "record":
        lost = [part for part in options.arguments if not forked(record, options.map, part)]
        sys.exit(f"These were not recorded: {', '.join(lost)}." if lost else 0)
    places = [site for path in sorted((ROOT / PACKAGE).rglob("*.py")) for site in sites(path)]
    chosen = random.Random(options.seed).sample(places, options.number)
    folders, which, rows = set(filter(None, options.under.split(","))), Map(options.map), []
    for site in (site for site in chosen if not folders or site.path.split("/")[1] in folders):
        tests, answer, start = which.chosen(site), FORK.SimpleQueue(), time.monotonic()
        ended = not tests or forked(attempt, site, tests, answer)
        caught = (answer.get() if tests else "") if ended else "no end"
        row = {"site": f"{site.path}:{site.line}", "node": site.node, "mutation": site.kind, "tests": len(tests)}
        rows.append({**row, "caught": caught, "seconds": round(time.monotonic() - start, 1)})
        Path(options.arguments[0]).write_text(json.dumps(rows, indent=1) + "\n")
    print(sum(bool(row["caught"]) for row in rows), "of", len(rows), "mutants caught")


if __name__ == "__main__":
    main()
