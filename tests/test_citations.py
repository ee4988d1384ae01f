"""Citations name sections, files and names that are there, and docstrings name the thing or the action."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ("theory.md", "grammar-theory.md")
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
HEADING = re.compile(rf"^#+ ({NUMBER})\.? ", re.MULTILINE)
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
    return {*HEADING.findall(text), *ROW.findall(text)}


PLACES = {page: places(page) for page in PAGES}


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


@pytest.mark.parametrize("page", [*(f"docs/{page}" for page in PAGES), "CONTRIBUTING.md"])
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
