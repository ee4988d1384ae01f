"""The tables of the pages are those of the kept results: a page that was edited by hand, or left behind, is found."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import fidelity_page, report, summary, table
from benchmarks.fidelity import RESULT

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
MOST_WORDS = 1250
WORD = re.compile(r"\w[\w.,%'*+-]*")


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of the pages, whose tables are gone."""
    docs = tmp_path / "docs"
    (docs / "images").mkdir(parents=True)
    shutil.copytree(DOCS / "appendix", docs / "appendix")
    for name in ("performance.md", "fidelity.md"):
        shutil.copy(DOCS / name, docs)
    for page in docs.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(
            re.sub(r"(<!-- \w+:start -->).*?(<!-- \w+:end -->)", r"\1\n\2", text, flags=re.DOTALL), encoding="utf-8"
        )
    monkeypatch.setattr(table, "PAGE", docs / "performance.md")
    monkeypatch.setattr(table, "PICTURE", docs / "images" / "performance.png")
    monkeypatch.setattr(table, "APPENDIX", docs / "appendix")
    monkeypatch.setattr(fidelity_page, "PAGE", docs / "fidelity.md")
    monkeypatch.setattr(fidelity_page, "PICTURE", docs / "images" / "fidelity.png")
    monkeypatch.setattr(fidelity_page, "MATRICES", docs / "appendix" / "fidelity-languages.md")
    monkeypatch.setattr(fidelity_page, "CELLS", docs / "appendix" / "fidelity-figures.md")
    return docs


def test_the_pages_are_what_the_scripts_write(copies: Path) -> None:
    bare = {page: page.read_text(encoding="utf-8") for page in copies.rglob("*.md")}
    table.main()
    fidelity_page.publish(json.loads(RESULT.read_text(encoding="utf-8")))
    written = {page: page.read_text(encoding="utf-8") for page in bare}
    assert sum(written[page] != text for page, text in bare.items()) == len(table.PAGES) + 4
    for page, text in written.items():
        assert text == (DOCS / page.relative_to(copies)).read_text(encoding="utf-8"), page.name
    for picture in ("performance", "fidelity"):
        assert (copies / "images" / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_every_result_is_on_one_page() -> None:
    named = [name for names in table.PAGES.values() for name in names]
    assert sorted(named) == sorted({path.stem for path in report.RESULTS.glob("*.json")} - table.ELSEWHERE)


def test_every_figure_is_there_and_is_shown() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    shown = {
        Path(link).name
        for page in pages
        for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert {path.name for path in (DOCS / "images").iterdir()} == shown


@pytest.mark.parametrize("name", ["performance.md", "fidelity.md"])
def test_a_page_is_a_summary_and_a_figure(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1
    prose = re.sub(r"\]\([^)]*\)|<!--.*?-->", "", text)
    assert len(WORD.findall(prose)) <= MOST_WORDS


def test_the_comparisons_are_of_both_kinds() -> None:
    middles = [summary.spread(one.ratios)[1] for one in summary.comparisons()]
    assert min(middles) < 0.1 and max(middles) > 10, "what is dearer here than elsewhere is shown as well"
