"""Reports: the numbers, the page, the picture, and tables as plain text and as Markdown."""

import json
import math
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outlines_phi import Probabilities
from outlines_phi.fidelity import Probability
from outlines_phi.fidelity.comparison import OUTSIDE, WHOLE, Report, Sample, compare, label
from outlines_phi.fidelity.plots import draw_reports, page
from outlines_phi.fidelity.report_text import TextTable
from tests.inner import ModelCounts


def sample(name: str, texts: list[str]) -> Sample:
    return Sample(name=name, texts=texts, calls=3, tokens=1_234, seconds=0.5)


def truth(probabilities: Mapping[str, float]) -> Probabilities:
    entries = [
        Probability(value=text, p=p, lo=p, hi=p, texts=(text,), spellings=1) for text, p in probabilities.items()
    ]
    bounds = math.log(0.25), math.log(0.25025)
    counts = ModelCounts(calls=4, tokens=567)
    return Probabilities(
        entries=tuple(entries), other=(0.0, 1e-3), complete=False, log_z_bounds=bounds, counts=counts, budget=8
    )


def record(kind: str, level: int) -> str:
    return json.dumps({"kind": kind, "level": level})


@pytest.fixture
def report() -> Report:
    law = {record("elf", 10): 0.5, record("elf", 9): 0.25, record("<orc>", 9): 0.25}
    plain = [record("elf", 9)] * 6 + [record("<orc>", 9)] * 2 + ['{"kind": "el'] * 2
    exact = [record("elf", 10)] * 5 + [record("elf", 9)] * 2 + [record("<orc>", 9)] * 3
    samples = [sample("plain", plain), sample("exact & fair", exact)]
    costs = [sample("shared", exact)]
    return compare("Title", "A <prompt>", "class T", truth(law), samples, json.loads, costs=costs)


def test_each_field_has_its_law_and_its_frequencies(report: Report) -> None:
    kind, level, whole = report.views
    assert [view.name for view in report.views] == ["kind", "level", WHOLE]
    assert kind.truth == {"elf": 0.75, "<orc>": 0.25}
    assert list(level.truth.items()) == [(9, 0.5), (10, 0.5)]
    assert kind.frequencies["plain"] == pytest.approx({"elf": 0.6, "<orc>": 0.2, OUTSIDE: 0.2})
    assert (kind.distances["plain"], kind.distances["exact & fair"]) == (pytest.approx(0.2), pytest.approx(0.05))
    assert kind.values == ["elf", "<orc>", OUTSIDE]
    assert whole.distances["plain"] == pytest.approx((0.5 + 0.35 + 0.05 + 0.2) / 2)
    assert 0 < kind.floor < whole.floor < 0.3
    assert all(view.floor < view.limit for view in report.views) and report.n == 10


def test_a_choice_has_one_view_and_labels_are_texts_or_json() -> None:
    assert [label(value) for value in ("a b", True, None, 3)] == ["a b", "true", "null", "3"]
    report = compare("Title", "p", "T", truth({"yes": 1.0}), [sample("plain", ["yes"])], lambda text: {"answer": text})
    assert [view.name for view in report.views] == ["answer"]


class Tags(HTMLParser):
    """Collects tags and attributes, and fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_self_contained_escapes_and_shows_every_number(report: Report) -> None:
    text, tags = page([report], command="demo"), Tags()
    tags.feed(text)
    assert not tags.open and not {name for name, _ in tags.attributes} & {"src", "href", "onload"}
    assert not any(part in text for part in ("http", "@import", "url(", "<orc>", "<prompt>"))
    for part in (
        "A &lt;prompt&gt;",
        "&lt;orc&gt;",
        "exact &amp; fair",
        "0.200",
        "0.050",
        "1,234",
        "567",
        "60.0%",
        "0.25",
    ):
        assert part in text


def test_the_picture_is_written(report: Report, tmp_path: Path) -> None:
    draw_reports([report, report], tmp_path / "demo.png", dpi=40)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


TABLE = TextTable(("name", "p"), [("a|b", "0.5"), ("long name", "12.25"), ("x", "")], "Title", "A remark.")


def test_tables_are_aligned_escaped_and_empty_without_rows() -> None:
    assert TABLE.plain() == ["name           p", "a|b          0.5", "long name  12.25", "x"]
    rows = ["| name | p |", "|---|---:|", "| a\\|b | 0.5 |", "| long name | 12.25 |", "| x |  |"]
    assert TABLE.markdown() == rows
    assert TextTable(("name", "p"), []).plain() == TextTable(("name", "p"), []).markdown() == []
