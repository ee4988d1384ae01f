"""The ratchets of size: statements and lines per folder, and words of the documentation, may only fall.

    python -m tests.test_size [--allowance STATEMENTS]

writes `sizes.json` anew. A folder may grow by what leaves another one; the total of a distribution only within an allowance.
"""

import ast
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
KEPT = HERE / "sizes.json"

SOURCES = {
    "runtime": ROOT / "outlines_phi",
    "workbench": ROOT / "workbench",
    "tests": HERE,
    "benchmarks": ROOT / "benchmarks",
}
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_LANGUAGES = {".c", ".h", ".js"}
"""Languages of which each line counts as a statement, since nothing here parses them."""

SLACK = 0.05
"""The share by which a folder may fall below its row before the row has to follow."""

PRIVATE = 59
"""The most private accesses of all tests; it may only fall."""
OF_OTHERS = {"_dynamo", "_exit", "_getframe", "_get_default_generation_params", "_replace", "_tokenizer"}
"""Names that Python and other packages give to anybody, or have no public word for."""

Size = tuple[int, int]


def statements(source: str) -> int:
    """Count the statements of a Python module, docstrings and those of constants aside: denser lines gain nothing."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return len(nodes) - sum(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in nodes)


def size_of(path: Path) -> Size:
    """Return the statements and lines of a source file."""
    source = path.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    return (lines, lines) if path.suffix in OTHER_LANGUAGES else (statements(source), lines)


def sizes_of(root: Path) -> dict[str, Size]:
    """Return the statements and lines of each folder right below ``root``; of its own files under ``"."``."""
    sizes: dict[str, Size] = defaultdict(lambda: (0, 0))
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root).parts
        hidden = any(part.startswith(".") or part == "vendor" for part in inside)
        if path.suffix in {".py", *OTHER_LANGUAGES} and not hidden:
            folder = inside[0] if len(inside) > 1 else "."
            sizes[folder] = tuple(map(sum, zip(sizes[folder], size_of(path), strict=True)))  # type: ignore[assignment]
    return dict(sizes)


def measured() -> dict[str, dict[str, Size]]:
    """Return the sizes of all folders, and the words of the documentation as ``{"docs": {"words": (w, w)}}``."""
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in DOCUMENTS)
    found = {name: sizes_of(root) for name, root in SOURCES.items() if root.exists()}
    return {**found, "docs": {"words": (words, words)}}


def kept() -> dict[str, dict[str, Size]]:
    """Return the rows that hold today."""
    rows = json.loads(KEPT.read_text(encoding="utf-8"))
    return {name: {folder: tuple(size) for folder, size in sizes.items()} for name, sizes in rows.items()}


def excess(sizes: dict[str, dict[str, Size]], bounds: dict[str, dict[str, Size]]) -> list[str]:
    """Name the folders that are larger than their rows, or without one."""
    return [
        f"{name}/{folder}: {size}, above {bounds.get(name, {}).get(folder, (0, 0))}"
        for name, folders in sizes.items()
        for folder, size in folders.items()
        if any(now > bound for now, bound in zip(size, bounds.get(name, {}).get(folder, (0, 0)), strict=True))
    ]


def loose(sizes: dict[str, dict[str, Size]], bounds: dict[str, dict[str, Size]]) -> list[str]:
    """Name the rows that their folders have fallen away from."""
    return [
        f"{name}/{folder}"
        for name, folders in bounds.items()
        for folder, bound in folders.items()
        if any(
            now < before * (1 - SLACK)
            for now, before in zip(sizes.get(name, {}).get(folder, (0, 0)), bound, strict=True)
        )
    ]


def totals(sizes: dict[str, dict[str, Size]]) -> dict[str, int]:
    """Return the statements of each distribution."""
    return {name: sum(size[0] for size in folders.values()) for name, folders in sizes.items()}


def test_nothing_grows() -> None:
    assert excess(measured(), kept()) == []


def test_rows_follow_what_falls() -> None:
    assert loose(measured(), kept()) == [], "run python -m tests.test_size"


def private_accesses(source: str) -> int:
    """Count ``x._name``, where ``x`` is not the test's own ``self`` or ``cls``, and texts that are a private name alone."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {id(node) for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"self", "cls"}}
    read = [node.attr for node in nodes if isinstance(node, ast.Attribute) and id(node) not in own]
    said = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return sum(
        re.fullmatch(r"_[a-zA-Z](\w*[a-zA-Z0-9])?", name) is not None
        for name in (*read, *said)
        if name not in OF_OTHERS
    )


def test_private_accesses_only_fall() -> None:
    counts = {str(path): private_accesses(path.read_text(encoding="utf-8")) for path in HERE.rglob("*.py")}
    assert sum(counts.values()) <= PRIVATE, {path: count for path, count in counts.items() if count}


def test_growth_and_slack_are_found() -> None:
    rows = {"runtime": {"phi": (100, 200)}}
    assert excess({"runtime": {"phi": (100, 201)}}, rows) and excess({"runtime": {"new": (1, 1)}}, rows)
    assert not excess(rows, rows) and not loose(rows, rows)
    assert loose({"runtime": {"phi": (90, 200)}}, rows) and loose({"runtime": {}}, rows)


def test_private_accesses_of_others_are_counted() -> None:
    assert private_accesses("x._a = self._b; setattr(x, '_a', x.__dict__); y._exit()") == 2


@pytest.mark.parametrize(
    ("source", "count"), [('"""Text."""\nx = 1; y = 2\n', 2), ("def f():\n  'Text.'\n  return 1", 2)]
)
def test_statements_are_those_of_the_syntax_tree(source: str, count: int) -> None:
    assert statements(source) == count


def main(allowance: int) -> None:
    """Write the rows anew, unless a total has grown by more than the allowance."""
    found = measured()
    before = totals(kept()) if KEPT.exists() else {}
    grown = {name: now - before[name] for name, now in totals(found).items() if now > before.get(name, now) + allowance}
    if grown:
        raise SystemExit(f"Delete as much as was added, or name the allowance: these have grown: {grown}.")
    rows = [
        f"  {json.dumps(name)}: {{\n"
        + ",\n".join(f"    {json.dumps(folder)}: {json.dumps(size)}" for folder, size in sorted(folders.items()))
        + "\n  }"
        for name, folders in found.items()
    ]
    KEPT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(totals(found))


if __name__ == "__main__":
    main(int(sys.argv[2]) if sys.argv[1:2] == ["--allowance"] else 0)
