"""The pages of the documentation: their tables are those of the kept results, and they use the workbench's commands as they are."""

import json
import re
from pathlib import Path

import pytest

import outlines_phi
from benchmarks import auto_calls, ban_page, fidelity, report, table
from benchmarks.peers import page as peers_page
from outlines_phi.cli.app import WORKBENCH, command
from tests.cli.conftest import Cli
from tests.test_citations import LINKED, wrong_uses

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
MOST_WORDS = 1250
PAGES = {
    "performance.md": table, "fidelity.md": fidelity, "banned-phrases.md": ban_page, "peers.md": peers_page,
    "auto.md": auto_calls,
}  # fmt: skip
"""The function that writes between the markers of each page."""

WORD = re.compile(r"\w[\w.,%'*+-]*")


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of the pages, whose tables are gone."""
    for page, module in PAGES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        bare = re.sub(r"(<!-- \w+:start -->).*?(<!-- \w+:end -->)", r"\1\n\2", text, flags=re.DOTALL)
        assert bare != text
        (tmp_path / page).write_text(bare, encoding="utf-8")
        monkeypatch.setattr(module, "PAGE", tmp_path / page)
        if hasattr(module, "PICTURE"):
            monkeypatch.setattr(module, "PICTURE", tmp_path / f"{page}.png")
    return tmp_path


def test_the_pages_are_what_the_scripts_write(copies: Path) -> None:
    table.main()
    fidelity.publish(json.loads(fidelity.RESULT.read_text(encoding="utf-8")))
    ban_page.main()
    peers_page.write()
    auto_calls.publish(json.loads((report.RESULTS / "auto_calls.json").read_text(encoding="utf-8")))
    for page in PAGES:
        assert (copies / page).read_text(encoding="utf-8") == (DOCS / page).read_text(encoding="utf-8"), page
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in copies.glob("*.png"))


def test_every_result_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.stem for path in report.RESULTS.glob("*.json") if path.stem != "fidelity")
    table.main(names)
    assert capsys.readouterr().out.count("### ") == len(names) > 30


def test_the_comparisons_name_their_results_and_are_of_both_kinds() -> None:
    assert all(list(report.RESULTS.glob(f"{one.result}.json")) for one in table.comparisons())
    middles = [table.spread(one.ratios)[1] for one in table.comparisons()]
    assert min(middles) < 0.1 and max(middles) > 10, "what is dearer here than elsewhere is shown as well"


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


def test_help_says_what_the_commands_say_of_themselves(cli: Cli) -> None:
    assert {name: str(command(name).help).splitlines()[0] for name in WORKBENCH} == WORKBENCH
    for name in WORKBENCH:
        asked = cli(name, "-h")
        assert asked.exit_code == 0 and asked.stdout == cli(name, "--help").stdout and "Usage: " in asked.stdout


def test_pages_use_the_options_that_are_there() -> None:
    pages = [*LINKED, ROOT / "proofs" / "README.md", ROOT / "workbench" / "README.md"]
    assert [wrong for page in pages for wrong in wrong_uses(page, WORKBENCH)] == []


def test_the_runtime_is_pinned_to_its_own_version() -> None:
    text = (ROOT / "workbench" / "pyproject.toml").read_text(encoding="utf-8")
    pins = re.findall(r'^version = "(.*)"$|"outlines_phi\[cli\]==(.*)"', text, re.MULTILINE)
    assert ["".join(pin) for pin in pins] == [outlines_phi.__version__] * 2
