"""The documentation: sections and theorems that are cited, blocks that run, links that lead somewhere."""

import dataclasses
import re
import shlex
import subprocess
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
DOCS = ROOT / "docs"
THEORIES = ("theory.md", "grammar-theory.md")
HOMES = (ROOT, ROOT / "outlines_phi", ROOT / "workbench" / "outlines_phi_workbench")

SOURCES = [
    path
    for folder in ("outlines_phi", "workbench", "tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != Path(__file__)
]

NUMBER = r"\d+(?:\.\d+)?"
NUMBERS = rf"{NUMBER}(?:(?:,| and| to)\s+{NUMBER}\b)*"
MENTION = re.compile(
    rf"(?:\b(?P<row>[ST]\d+)\s+of\s+)?(?<![\w-])(?P<page>[\w-]+\.md)\b(?:,\s+sections?\s+(?P<numbers>{NUMBERS}))?"
)
NUMBERED = re.compile(rf"^#+ ({NUMBER})\.? ", re.MULTILINE)
ROW = re.compile(r"^\| ([ST]\d+) \|", re.MULTILINE)
RELATIVE = re.compile(
    r'^ *r?"""(?:(?:\w+ )?(?:what|whatever|whether|how|who|whom|why|which|whichever)'
    r"|whose|(?:(?:return|yield|say|tell) )?(?:where|wherever|when|whenever))\b",
    re.IGNORECASE | re.MULTILINE,
)
FILE = re.compile(r"`(\w+(?:/\w+)+\.py)(?:: (\w+))?[`.]")


def places(page: str) -> set[str]:
    """The numbers of the headings of a page, and the names of the rows of its tables."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return {*NUMBERED.findall(text), *ROW.findall(text)}


PLACES = {page: places(page) for page in THEORIES}


def broken(text: str) -> Iterator[str]:
    """Yield the citations in a text that name no section, or one that is not there, or a page that is not in ``docs``."""
    for found in MENTION.finditer(text):
        named = re.findall(NUMBER, found["numbers"] or "") + ([found["row"]] if found["row"] else [])
        known = PLACES.get(found["page"])
        if known is not None and (not named or not known.issuperset(named)):
            yield found[0]
        if known is None and named:
            yield found[0]


def test_every_citation_names_a_section_that_is_there() -> None:
    wrong = [f"{path.relative_to(ROOT)}: {one}" for path in SOURCES for one in broken(path.read_text(encoding="utf-8"))]
    assert not wrong


def test_the_pages_are_cited() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    cited = [found["page"] for found in MENTION.finditer(text) if found["numbers"] or found["row"]]
    assert cited.count("theory.md") > 40
    assert cited.count("grammar-theory.md") > 10


@pytest.mark.parametrize(
    "text",
    [
        "(theory.md, section 99)",
        "(theory.md, sections 5.3 and 5.99)",
        "(theory.md,\n    section 99)",
        "as in theory.md",
        "theorem T99 of grammar-theory.md",
        "(mathematics.md, section 1)",
    ],
)
def test_a_wrong_citation_is_found(text: str) -> None:
    assert list(broken(text))


@pytest.mark.parametrize("page", [*(f"docs/{page}" for page in THEORIES), "CONTRIBUTING.md"])
def test_the_files_and_names_of_a_page_are_there(page: str) -> None:
    found = FILE.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(found) > 15
    for path, name in found:
        (file,) = [root / path for root in HOMES if (root / path).is_file()] or [None]
        assert file, f"{page} names {path}"
        assert name in file.read_text(encoding="utf-8"), f"{page} names {name} of {path}"


def test_no_docstring_begins_with_a_relative_clause() -> None:
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in SOURCES}
    found = ((path, text[: one.end()]) for path, text in texts.items() for one in RELATIVE.finditer(text))
    lines = [f"{path}:{1 + before.count(chr(10))}" for path, before in found]
    assert not lines, 'name the thing, as in "Log mass of the live tokens.", or the action, as in "Return True if ..."'


@pytest.mark.parametrize(
    "text", ["What is live.", "Return whether it ends.", "Yield where it leads.", "Read how it ends."]
)
def test_a_relative_clause_is_found(text: str) -> None:
    source = '"""{0}"""\nx = "{0}"\n"""{0}"""\n\ndef f():\n    """{0}"""'
    assert [source.format(text)[: one.end()].count("\n") for one in RELATIVE.finditer(source.format(text))] == [0, 2, 5]
    assert not RELATIVE.search(source.format("Sites whose drafts wait.") + source.format("True if it ends."))


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
    for target in re.findall(r"\bmake (\w+)\s+#", text + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_site_is_tested_where_the_package_cannot_be_imported() -> None:
    given = re.search(
        r"-docs/bin/python -m pytest (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert given
    without = "import sys; sys.modules['lazy_loader'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", without, *shlex.split(given[1]), "--collect-only", "-p", "no:cacheprovider"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0 and "test_browser.py" in found.stdout, found.stdout + found.stderr


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


def test_the_readme_is_one_screen_and_names_the_tested_versions() -> None:
    readme, constraints, project = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "constraints.txt", "pyproject.toml")
    )
    torch_ = re.search(r"^torch==\S+", constraints, re.MULTILINE)
    assert len(readme.split()) <= 600 and torch_ and f"{torch_[0]} --index-url" in readme
    assert 'requires-python = ">=3.10,<3.14"' in project and "Python 3.10 to 3.13" in readme
