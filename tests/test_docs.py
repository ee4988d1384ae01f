"""Every block of Python in the README and the documentation runs, and every relative link leads somewhere."""

import dataclasses
import re
import sys
import types
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import torch

from outlines_phi.cli.app import COMMANDS, OWN, command
from outlines_phi.plugin.call import ESTIMATORS
from outlines_phi.plugin.choices import USED
from outlines_phi.sampling.phi_options import ExactPhi

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"\boutlines-phi ([a-z]+)\b((?:[^`\n]|\\\n)*)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working folder, a seed, and one thread: the bundled model is too small for more."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))], ids=name)
def test_the_code_of_a_page_runs_in_order(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    module = types.ModuleType("page")  # dataclasses and pydantic look their module up
    monkeypatch.setitem(sys.modules, "page", module)
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(page), "exec", dont_inherit=True), vars(module))


def anchors(page: Path) -> set[str]:
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name(page)} links to {link}"
        assert not anchor or anchor in anchors(path), f"{name(page)} links to {link}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", navigation, re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)


def test_the_settings_page_names_every_keyword_and_option() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert all(f"`{keyword}`" in text for keyword in USED)
    assert all(f"`{field.name}`" in text for field in dataclasses.fields(ExactPhi))


def test_every_estimator_has_its_row_and_every_make_target_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
    assert all(re.search(rf'^\|[^|]*`"{phi}"`', rows, re.MULTILINE) for phi in ESTIMATORS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake (\w+)\s+#", text + contributing):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def wrong_uses(page: Path, commands: Collection[str]) -> list[str]:
    """The uses of these commands on a page that have an option which is not there."""
    wrong = []
    for asked, given in COMMAND.findall(page.read_text(encoding="utf-8")):
        if asked in commands:
            known = {option for each in command(asked).params for option in (*each.opts, *each.secondary_opts)}
            ours = given.partition(" -- ")[0]
            if not set(re.findall(r"(?<=\s)--[a-z][a-z-]*", ours)) <= known:
                wrong.append(f"{name(page)} has outlines-phi {asked}{given}")
    return wrong


@pytest.mark.parametrize(
    "page", [page for page in LINKED if COMMAND.search(page.read_text(encoding="utf-8"))], ids=name
)
def test_the_commands_of_a_page_have_their_options(page: Path) -> None:
    assert {asked for asked, _ in COMMAND.findall(page.read_text(encoding="utf-8"))} <= set(COMMANDS)
    assert wrong_uses(page, OWN) == []


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 600


def test_the_readme_names_the_tested_torch() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    version = re.search(r"^torch==(\S+)", constraints, re.MULTILINE)
    assert version and f"torch=={version[1]} --index-url" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_names_the_pythons_of_the_package() -> None:
    assert 'requires-python = ">=3.10,<3.14"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "Python 3.10 to 3.13" in (ROOT / "README.md").read_text(encoding="utf-8")
