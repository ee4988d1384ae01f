"""Mutation testing of the runtime: random mistakes in its functions, and which tests find each.

    python -m outlines_phi_workbench.mutation record MAP tests/lm tests/phi ...
    python -m outlines_phi_workbench.mutation try MAP RESULT [--number 200] [--seed 1] [--under lm,phi]

``record`` runs the folders one by one under coverage and adds to the folder MAP which test executes which line, and how long each
takes. ``try`` samples mutants by a fixed seed, and for each runs the tests that execute its line: those of the folder of the same
name first, and quick ones before slow ones, in a process forked after the slow imports. No file is written but the result: what is
wrong is the syntax tree from which a module is made.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
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

SECONDS = 15.0
"""The seconds that the tests of a mutant may take by their recorded times: the last ones in order are left out."""

PATIENCE = 60
"""The seconds of work after which a mutant that does not end counts as caught; ten times as many by the clock."""

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


def mutated(source: str, place: int) -> ast.Module:
    """Return the syntax tree of a module with the mistake at one node."""
    tree = ast.parse(source)
    node = list(ast.walk(tree))[place]
    _, attribute, value = mistake(node) or ("", "", None)
    setattr(node, attribute, value)
    return ast.fix_missing_locations(tree)


def sites(path: Path) -> Iterator[MutationSite]:
    """Yield the places for mistakes inside the functions of a file, annotations aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for part in function.body for node in ast.walk(part)}
    notes = (getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns"))
    outside = {id(node) for note in notes if note is not None for node in ast.walk(note)}
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in inside - outside and (found := mistake(node)) is not None:
            yield MutationSite(path.relative_to(ROOT).as_posix(), place, node.lineno, found[0])  # type: ignore[attr-defined]


class Wrong(importlib.abc.MetaPathFinder):
    """The finder of one wrong module, before all others."""

    def __init__(self, site: MutationSite) -> None:
        self.site, self.name = site, site.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        file = str(ROOT / self.site.path)
        return importlib.util.spec_from_file_location(fullname, file, loader=Loader(fullname, file, self.site.node))


class Loader(SourceFileLoader):
    """The loader of a module with a mistake at one node."""

    def __init__(self, name: str, path: str, node: int) -> None:
        super().__init__(name, path)
        self.node = node

    def get_code(self, fullname: str) -> Any:
        return compile(mutated(Path(self.path).read_text(encoding="utf-8"), self.node), self.path, "exec")


class Recorder:
    """The plugin of pytest that switches the context of coverage, adds the time of each test, and keeps the first failure."""

    def __init__(self, coverage: Any = None) -> None:
        self.coverage, self.times, self.failed = coverage, defaultdict[str, float](float), ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.coverage is not None:
            self.coverage.switch_context(nodeid.partition("[")[0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.times[report.nodeid.partition("[")[0]] += report.duration
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report: Any) -> None:
        self.failed = self.failed or (f"import of {report.nodeid}" if report.failed else "")


def record(folder: Path, tests: list[str]) -> None:
    """Run each of some folders of tests, and keep which test executes which line, and the times."""
    import coverage
    import pytest

    folder.mkdir(parents=True, exist_ok=True)
    for part in tests:
        if (process := os.fork()) == 0:
            kept = folder / part.replace("/", "_")
            tracer = coverage.Coverage(f"{kept}.coverage", branch=True, source=[PACKAGE], config_file=False)
            recorder = Recorder(tracer)
            tracer.start()
            code = pytest.main([part, *OPTIONS], plugins=[recorder])
            tracer.stop()
            tracer.save()
            kept.with_suffix(".json").write_text(json.dumps(recorder.times, indent=1))
            os._exit(code)
        os.waitpid(process, 0)


class Map:
    """The tests that execute each line, in the order in which they are tried."""

    def __init__(self, folder: Path) -> None:
        import coverage

        self.times: dict[str, float] = {}
        self.tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for kept in sorted(folder.glob("*.json")):
            self.times.update(json.loads(kept.read_text()))
            data = coverage.CoverageData(str(kept.with_suffix(".coverage")))
            data.read()
            for file in data.measured_files():
                path = file[file.rindex(f"/{PACKAGE}/") + 1 :]
                for line, contexts in data.contexts_by_lineno(file).items():
                    self.tests[path][line] |= set(contexts) - {""}

    def chosen(self, site: MutationSite) -> list[str]:
        """Return the tests of a place: those of the same folder first, and quick ones first, within the time."""
        same = "tests" + site.path.removeprefix(PACKAGE).rpartition("/")[0] + "/"
        tests = sorted(self.tests[site.path][site.line], key=lambda test: (not test.startswith(same), self.times[test]))
        total, kept = 0.0, list[str]()
        for test in tests:
            total += self.times[test]
            if total > SECONDS and kept:
                break
            kept.append(test)
        return kept


def attempt(site: MutationSite, tests: list[str]) -> str:
    """Run some tests with a mistake in place; return the first that fails, ``""`` where none does."""
    import pytest

    reading, writing = os.pipe()
    if (process := os.fork()) == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
        sys.meta_path.insert(0, Wrong(site))
        recorder = Recorder()
        code = pytest.main(["-x", *OPTIONS, *tests], plugins=[recorder])
        os.write(writing, (recorder.failed or ("" if code == 0 else f"exit {int(code)}")).encode())
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + 10 * PATIENCE
    while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    if os.WIFSIGNALED(ended[1]):
        return "no end"
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


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
    if options.action == "record":
        return record(options.map, options.arguments)
    places = [site for path in sorted((ROOT / PACKAGE).rglob("*.py")) for site in sites(path)]
    chosen = random.Random(options.seed).sample(places, options.number)
    folders, which, rows = set(filter(None, options.under.split(","))), Map(options.map), []
    for site in chosen:
        if folders and site.path.split("/")[1] not in folders:
            continue
        tests = which.chosen(site)
        start = time.monotonic()
        rows.append({"site": f"{site.path}:{site.line}", "node": site.node, "mutation": site.kind, "tests": len(tests)})
        rows[-1]["caught"] = attempt(site, tests) if tests else ""
        rows[-1]["seconds"] = round(time.monotonic() - start, 1)
        Path(options.arguments[0]).write_text(json.dumps(rows, indent=1) + "\n")
    print(sum(bool(row["caught"]) for row in rows), "of", len(rows), "mutants caught")


if __name__ == "__main__":
    main()
