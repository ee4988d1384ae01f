"""Mutants of the runtime: each place holds a mistake that can be made, and a wrong module is made without a file."""

import ast
import importlib.util
from importlib.machinery import SourceFileLoader
from typing import Any

import pytest

from outlines_phi_workbench.mutation import PACKAGE, ROOT, SWAPS, Blocks, load_changed, mutated, sites


@pytest.mark.parametrize("name", ["phi/tree/tree.py", "lm/sequences.py", "sampling/draws.py"])
def test_every_place_can_be_made_wrong(name: str) -> None:
    source, found = (ROOT / PACKAGE / name).read_text(encoding="utf-8"), list(sites(ROOT / PACKAGE / name))
    for site in found:
        tree = mutated(ROOT / site.path, site.node)
        assert ast.dump(tree) != ast.dump(ast.parse(source)), site
        compile(tree, name, "exec")
    assert len(found) > 50 and {site.kind for site in found} & {
        f"{a.__name__} to {b.__name__}" for a, b in SWAPS.items()
    }


def test_a_module_marks_the_blocks_that_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)
    load_changed((blocks := Blocks()).marked)
    spec: Any = importlib.util.find_spec("outlines_phi.numerics.checks")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    assert len(blocks.taken()) < 3 and module.is_count(3) and len(blocks.taken()) == 1
