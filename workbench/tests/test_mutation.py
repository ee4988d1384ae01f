"""Mutants of the runtime: each place holds a mistake that can be made, and a wrong module is made without a file."""

import ast
import importlib.util

import pytest

from outlines_phi_workbench.mutation import PACKAGE, ROOT, SWAPS, Wrong, mutated, sites


@pytest.mark.parametrize("name", ["phi/tree/tree.py", "lm/sequences.py", "sampling/draws.py"])
def test_every_place_can_be_made_wrong(name: str) -> None:
    source, found = (ROOT / PACKAGE / name).read_text(encoding="utf-8"), list(sites(ROOT / PACKAGE / name))
    for site in found:
        tree = mutated(source, site.node)
        assert ast.dump(tree) != ast.dump(ast.parse(source)), site
        compile(tree, name, "exec")
    assert len(found) > 50 and {site.kind for site in found} & {
        f"{a.__name__} to {b.__name__}" for a, b in SWAPS.items()
    }


def test_a_module_is_imported_wrong() -> None:
    (site,) = [site for site in sites(ROOT / PACKAGE / "numerics" / "checks.py") if site.kind == "None returned"][:1]
    right = importlib.util.find_spec("outlines_phi.numerics.checks")
    wrong = Wrong(site).find_spec("outlines_phi.numerics.checks", None)
    assert right is not None and wrong is not None and wrong.origin == right.origin
    code = [spec.loader.get_code(spec.name) for spec in (right, wrong)]  # type: ignore[union-attr, attr-defined]
    assert code[0] != code[1] and Wrong(site).find_spec("outlines_phi.numerics.weights", None) is None
