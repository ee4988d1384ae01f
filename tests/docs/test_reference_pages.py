"""The reference has every public name in one place, and the hooks of the site write pages, links, formulas and docstrings."""

import ast
import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "outlines_phi"
REFERENCE = ROOT / "docs" / "reference"
SHOWN = re.compile(r"^::: outlines_phi\.(\S+)$", re.MULTILINE)
RETURNED = {"plugin.generator.PhiGenerator", "lm.bundled"}
"""The members shown though no stub names them: the result of a public function, and the model of the examples."""


def public() -> set[str]:
    """The names that the stubs export, folders left out, and what has no stub: errors, roll-outs, what vLLM loads."""
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
    training = ast.parse((PACKAGE / "rl.py").read_text(encoding="utf-8")).body
    defined = [node.name for node in training if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    names |= {f"rl.{name}" for name in defined if not name.startswith("_")}
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


for needed in ("mkdocs", "griffe", "latex2mathml"):
    pytest.importorskip(needed, reason="the site is made in an environment of its own: make test-docs")

THEORY = "theory" + ".md"  # in two parts: tests/test_citations.py reads citations of the source


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hook_{name}", ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.html", '<script src="https://cdn.example/x.js"></script>', 1),
        ("a.html", "<img alt=x src=//cdn.example/x.png>", 1),
        ("a.html", '<link rel="stylesheet" href="https://fonts.example/css">', 1),
        ("a.css", "@import 'https://fonts.example/css'; a { background: url(https://cdn.example/x.png) }", 2),
        ("a.html", '<script src="assets/x.js"></script><img src="x.png"><a href="https://elsewhere.example">x</a>', 0),
        ("a.html", '<link rel="canonical" href="https://site.example/">', 0),
        ("a.css", "a { background: url('data:image/svg+xml;utf8,<svg xmlns=\"http://www.w3.org/2000/svg\"/>') }", 0),
    ],
)
def test_what_a_site_loads_from_elsewhere_is_found(name: str, text: str, count: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert len(hook("offline").elsewhere(tmp_path)) == count


def test_files_outside_of_the_documentation_have_pages() -> None:
    pages = hook("repository_pages")
    text = "[a](../examples/audit.py), [b](auto.md#x), [c](#here), [d](https://x.example/y.py), [e](../missing.py)"
    assert pages.outside("docs/index.md", text) == {"examples/audit.py"}
    assert pages.page_of("examples/audit.py") == "repository/examples/audit.py.md"
    assert pages.page_of("CHANGELOG.md") == "repository/CHANGELOG.md"
    assert "```python\n" in pages.shown("examples/audit.py")
    assert "- `audit.py`" in pages.shown("examples")


def test_links_lead_to_those_pages() -> None:
    pages = hook("repository_pages")

    def led(here: str, markdown: str) -> str:
        file = type("File", (), {"src_uri": here})
        return pages.on_page_markdown(markdown, type("Page", (), {"file": file}), None, None)

    assert led("recipes/a.md", "[x](../../examples/audit.py)") == "[x](../repository/examples/audit.py.md)"
    assert led("recipes/a.md", "[x](../auto.md#y)") == "[x](../auto.md#y)"
    assert led("repository/CONTRIBUTING.md", "[x](docs/auto.md#1)") == "[x](../auto.md#1)"
    assert led("repository/examples/audit.py.md", "x[0](a)") == "x[0](a)"


def test_formulas_become_mathml() -> None:
    formulas = hook("formulas")
    content = r'<p><span class="arithmatex">\(p &lt; q\)</span></p><div class="arithmatex">\[ x_1 \]</div>'
    found = formulas.on_page_content(content, None, None, None)
    assert found.count("<math") == 2 and "arithmatex" not in found and "<mo>&#x0003C;</mo>" in found


def test_roles_become_references_and_shared_descriptions_are_told_apart() -> None:
    docstrings = hook("docstrings")
    role = docstrings.ROLE.sub(docstrings.reference, "of :class:`~outlines_phi.Draws`")
    assert role == 'of <autoref identifier="outlines_phi.Draws" optional><code>Draws</code></autoref>'
    assert docstrings.ROLE.sub(docstrings.reference, ":meth:`probabilities`") == "`probabilities`"
    text = "Parameters\n----------\nn, seed\n    How many.\n\nkey : str\n    A column.\n"
    apart = docstrings.SHARED.sub(docstrings.apart, text)
    assert apart == "Parameters\n----------\nn\n    How many.\nseed\n    How many.\n\nkey : str\n    A column.\n"


def test_cited_sections_of_the_theory_are_links() -> None:
    docstrings = hook("docstrings")
    cited = docstrings.CITED.sub(docstrings.section, f"a number ({THEORY},\n    section 1.3)")
    assert cited == 'a number (<autoref identifier="13-future-validity">theory, section 1.3</autoref>)'
    with pytest.raises(KeyError):
        docstrings.CITED.sub(docstrings.section, f"{THEORY}, section 99")
