"""Every public name has its place in the reference, and only one."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "outlines_phi"
REFERENCE = ROOT / "docs" / "reference"
SHOWN = re.compile(r"^::: outlines_phi\.(\S+)$", re.MULTILINE)
RETURNED = {"plugin.generator.PhiGenerator", "lm.bundled"}
"""The members shown though no stub names them: the result of a public function, and the model of the examples."""


def public() -> set[str]:
    """The names that the stubs export, folders left out, and what has no stub: the errors and what vLLM loads."""
    names = set()
    for stub in PACKAGE.rglob("__init__.pyi"):
        folder = stub.parent.relative_to(PACKAGE).as_posix().replace("/", ".").removeprefix(".")
        imports = [
            node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)
        ]
        names |= {
            f"{folder}.{alias.name}" if folder else alias.name
            for node in imports
            if node.module
            for alias in node.names
        }
    errors = ast.parse((PACKAGE / "errors.py").read_text(encoding="utf-8")).body
    named = {node.name for node in errors if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
    loaded = re.search(
        r"^NAMES = \{(.*?)^\}", (PACKAGE / "vllm.py").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert loaded
    names |= {f"errors.{name}" for name in named - names}
    return names | {f"vllm.{name}" for name in re.findall(r'^ +"(\w+)":', loaded[1], re.MULTILINE)}


def shown() -> Counter[str]:
    return Counter(name for page in REFERENCE.glob("*.md") for name in SHOWN.findall(page.read_text(encoding="utf-8")))


def test_every_public_name_is_on_one_page() -> None:
    assert shown() == Counter(public() | RETURNED)


def test_the_index_names_what_each_page_shows() -> None:
    rows = re.findall(
        r"^\| \[[^]]*\]\((\S+\.md)\) \| (.*) \|$", (REFERENCE / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {page for page, _ in rows} == {page.name for page in REFERENCE.glob("*.md")} - {"index.md"}
    for page, names in rows:
        listed = SHOWN.findall((REFERENCE / page).read_text(encoding="utf-8"))
        assert re.findall(r"`([\w.]+)`", names) == [name for name in listed if not name.startswith("plugin.")]


@pytest.mark.parametrize("name", ["Generator", "ray.generate", "errors.DraftError", "vllm.ENGINE", "drafting.Site"])
def test_the_names_are_those_of_the_stubs(name: str) -> None:
    assert name in public()
