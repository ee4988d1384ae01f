"""Verdicts of audits, limits of means, distances between laws; reports: the numbers, the page, the picture, tables."""

import html
import json
import math
from collections.abc import Mapping
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_phi import AuditReport, LocalPhi, Probabilities, SamplingSettings, UnsupportedError, Vocabulary
from outlines_phi.fidelity import AuditVerdict, Probability
from outlines_phi.fidelity.plots import draw_reports, page
from outlines_phi.fidelity.report_text import TextTable, verdict_on
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import TableModel
from tests.chi_square import ChiSquare
from tests.inner import (
    END,
    OUTSIDE,
    ROOT,
    TOLERANCE,
    WHOLE,
    AncestralSampler,
    Bias,
    Interval,
    ModelCounts,
    Report,
    Request,
    Sample,
    Trace,
    TraceRecorder,
    audit_traces,
    bias,
    byte_places,
    compare,
    compile_regex,
    field_values,
    frequencies,
    label,
    log_weights,
    lower_limit,
    measure,
    noise_floor,
    noise_limit,
    total_variation,
    tree_bounds,
    unit_interval,
)

TOKENS = ["<eos>", "x", "y", "z", "?"]
VOCABULARY = Vocabulary.from_tokens(TOKENS, 0)
TABLE = Table(FSMGuide.from_automaton(compile_regex("(x|y)z"), VOCABULARY))

AUDITS = 20  # Of each law and number of draws
KNOWN = [(0.2, 1.0), (0.6, 0.1), (0.95, 1.0), (1.0, 0.2)]
"""Laws of :func:`drawn`: their total variations are 1/3, 1/8, 0.013 and 0."""

known = pytest.mark.parametrize("law", KNOWN, ids=lambda law: "{} and {}".format(*law))


@pytest.fixture(autouse=True)
def no_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias, "RESAMPLES", 2)


@cache
def drawn(law: tuple[float, float]) -> list[Trace]:
    """Masked draws of ``(x|y)z`` where x and y are alike likely, and z has probability ``a b`` after x, ``b`` after y."""
    after_x, after_y = law[0] * law[1], law[1]

    def logits(sequence: tuple[int, ...]) -> np.ndarray:
        text = "".join(TOKENS[token] for token in sequence[1:])
        legal = {"": {"x": 0.5, "y": 0.5}, "x": {"z": after_x}, "y": {"z": after_y}}.get(text, {"<eos>": 1.0})
        p = [legal.get(token, 0.0) for token in TOKENS]
        with np.errstate(divide="ignore"):
            return np.log([*p[:-1], 1 - sum(p)])

    settings = SamplingSettings(max_new_tokens=3, seed=1)
    request = Request(lm=TableModel(VOCABULARY, logits), table=TABLE, prompts=[(1,)], settings=settings, n=8000)
    recorder = TraceRecorder(VOCABULARY, 1, request.n)
    AncestralSampler(LocalPhi(), recorder).sample(request)
    return recorder.traces[0]


def truth(law: tuple[float, float]) -> AuditVerdict:
    return AuditVerdict.BIASED if 0.5 - law[0] / (1 + law[0]) > TOLERANCE else AuditVerdict.NOT_BIASED


def audits(law: tuple[float, float], n: int, *, tree: bool, seed: int = 0) -> list[Bias]:
    rng, traces = np.random.default_rng(seed), drawn(law)
    found = []
    for _ in range(AUDITS):
        chosen = [traces[i] for i in rng.choice(len(traces), n, replace=False)]
        found.append(measure([log_weights(chosen)], [tree_bounds(chosen) if tree else (0.0, 1.0)], 0.05))
    return found


def report(law: tuple[float, float], n: int, prompts: int = 1, **options: object) -> AuditReport:
    traces = [drawn(law)[i * n : (i + 1) * n] for i in range(prompts)]
    defaults = {"settings": SamplingSettings(), "budgets": [3] * prompts, "counts": ModelCounts()}
    return audit_traces(traces, [f"prompt {i}" for i in range(prompts)], **{**defaults, **options})  # type: ignore[arg-type]


@pytest.mark.in_turn
@known
def test_many_draws_decide_and_few_do_not(law: tuple[float, float]) -> None:
    """Power: the right verdict from 1,200 draws in each audit; of 6 draws each says that they are too few; none is wrong."""
    assert {found.verdict for found in audits(law, 1200, tree=True)} == {truth(law)}
    few = [found.verdict for n in (6, 25) for found in audits(law, n, tree=False)]
    assert set(few[:AUDITS]) == {AuditVerdict.UNDECIDED} and set(few) <= {AuditVerdict.UNDECIDED, truth(law)}


@pytest.mark.in_turn
@known
@pytest.mark.parametrize("tree", [False, True], ids=["draws alone", "with their tree"])
def test_the_number_that_is_named_is_about_enough(law: tuple[float, float], tree: bool) -> None:
    """In most audits of it there is a verdict, the right one; in few of a third of it."""
    first = audits(law, 10, tree=tree)
    assert all(found.needed is not None for found in first if found.verdict is AuditVerdict.UNDECIDED)
    named = [found.needed for found in first if found.needed is not None and found.needed <= 8000]
    assert len(named) >= AUDITS // 2
    there = int(np.median(named))
    enough = [found.verdict for found in audits(law, there, tree=tree, seed=1)]
    short = [found.verdict for found in audits(law, there // 3, tree=tree, seed=2)]
    assert set(enough) <= {AuditVerdict.UNDECIDED, truth(law)} and enough.count(truth(law)) >= 0.5 * AUDITS
    assert short.count(truth(law)) <= 0.25 * AUDITS


def test_where_phi_is_tiny_bounds_are_named_instead_of_draws() -> None:
    """The upper limit of a Phi of 1e-6 comes down to it after some millions of draws alone."""
    alike = np.full(50, np.log(1e-6))
    alone = measure([alike], [(0.0, 1.0)], 0.05)
    assert (alone.verdict, alone.needed) == (AuditVerdict.UNDECIDED, None)
    assert "bounds_tokens" in verdict_on(alone, 0.95, "after it")
    bounded = measure([alike], [(9.9e-7, 1.01e-6)], 0.05)
    assert bounded.needed is not None and bounded.needed < 400


def test_a_verdict_is_where_the_interval_lies() -> None:
    for low, high, expected in [
        (0.0, 0.05, AuditVerdict.NOT_BIASED),
        (0.05, 0.3, AuditVerdict.UNDECIDED),
        (0.004, 0.811, AuditVerdict.UNDECIDED),
        (0.051, 0.3, AuditVerdict.BIASED),
    ]:
        assert AuditVerdict.of(Interval(low, high), 0.05) is expected


def test_every_form_of_a_report_says_the_verdict() -> None:
    for law, n, tolerance, words in [
        ((0.2, 1.0), 1000, 0.05, "Plain masking is biased: its distance"),
        ((1.0, 1.0), 1000, 0.05, "Plain masking is not biased by more than 0.05: its distance"),
        ((0.6, 1.0), 1000, 0.3, "Plain masking is not biased by more than 0.3: its distance"),
        ((0.6, 1.0), 10, 0.05, "Undecided whether plain masking is biased by more than 0.05: its distance"),
    ]:
        found = report(law, n, tolerance=tolerance)
        for written in (str(found), found.to_markdown(), html.unescape(found.to_html())):
            assert words in " ".join(written.split())
            assert ("To decide it, take about " in " ".join(written.split())) == (
                found.verdict is AuditVerdict.UNDECIDED
            )
        kept = json.loads(found.to_json())["pooled"]["bias"]
        assert (kept["verdict"], kept["needed"], kept["tolerance"]) == (found.verdict, found.draws_needed, tolerance)


def test_several_prompts_have_a_verdict_each_and_one_together() -> None:
    both = report((0.6, 1.0), 5, prompts=2)
    assert both.verdict is both.pooled.bias.verdict is AuditVerdict.UNDECIDED
    assert [finding.bias.verdict for finding in both.findings] == [AuditVerdict.UNDECIDED] * 2
    alone = [finding.bias.needed for finding in both.findings]
    assert both.draws_needed is not None and both.draws_needed < min(n for n in alone if n is not None)


@pytest.mark.parametrize("tolerance", [0, -0.1, 1.5, float("nan"), True, "small", None])
def test_a_tolerance_that_is_none_is_refused(tolerance: object) -> None:
    with pytest.raises(UnsupportedError, match="tolerance"):
        report((1.0, 1.0), 10, tolerance=tolerance)


SAMPLES, DRAWS = 400, 60
LAWS = {
    "constant": (lambda rng: np.full(DRAWS, 0.3), 0.3),
    "rare": (lambda rng: (rng.random(DRAWS) < 0.02).astype(float), 0.02),
    "even": (lambda rng: rng.random(DRAWS), 0.5),
    "two values": (lambda rng: np.where(rng.random(DRAWS) < 0.5, 0.9, 0.1), 0.5),
    "different laws": (lambda rng: rng.random(DRAWS) * np.linspace(0.2, 1.0, DRAWS), 0.3),
}


def heavy(rng: np.random.Generator) -> np.ndarray:
    """Lognormal with mean 1 and a log-sd of 3: the mean rests on draws that are rarely seen."""
    return np.exp(rng.normal(-4.5, 3.0, DRAWS))


@pytest.mark.parametrize("name", LAWS)
def test_the_interval_holds_at_its_rate_and_is_not_vacuous(name: str) -> None:
    draw, mean = LAWS[name]
    rng = np.random.default_rng(1)
    intervals = [unit_interval(draw(rng), 0.1) for _ in range(SAMPLES)]
    assert sum(not low - 1e-12 <= mean <= high + 1e-12 for low, high in intervals) <= 0.1 * SAMPLES
    assert np.mean([interval.width for interval in intervals]) < 0.4


def test_the_lower_limit_holds_under_heavy_tails_and_a_bootstrap_interval_does_not() -> None:
    """Power control: the same count tells the two apart."""
    rng = np.random.default_rng(2)
    samples = [heavy(rng) for _ in range(SAMPLES)]
    assert sum(lower_limit(x, 0.05) > 1.0 for x in samples) <= 0.05 * SAMPLES
    upper = [np.quantile(rng.choice(x, (200, DRAWS)).mean(axis=1), 0.95) for x in samples]
    assert sum(limit < 1.0 for limit in upper) > 0.2 * SAMPLES


def test_the_limit_scales_is_monotone_and_beats_half_of_markov() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        x = heavy(rng)
        limit = lower_limit(x, 0.05)
        assert lower_limit(x * 1e-200, 0.05) == pytest.approx(limit * 1e-200)
        assert lower_limit(x + rng.random(DRAWS) * x, 0.05) >= limit
        assert 0.5 * 0.05 * x.mean() <= limit * (1 + 1e-9) and limit <= x.mean()


def test_no_variance_is_worth_more_than_hoeffding_and_zeros_say_how_rare_the_rest_is() -> None:
    low, high = unit_interval(np.full(1000, 0.5), 0.05)
    assert low <= 0.5 <= high and high - low < 0.3 * 2 * math.sqrt(math.log(2 / 0.05) / 2000)
    low, high = unit_interval(np.zeros(100), 0.05)
    assert low == 0.0
    assert math.log(1 / 0.025) / 101 <= high <= 0.08


LAW = {"a": 0.5, "b": 0.3, "c": 0.2}


def test_distances_and_frequencies() -> None:
    for other, distance in ((LAW, 0), ({"a": 0.2, "b": 0.3, "d": 0.5}, 0.5), ({"x": 1.0}, 1)):
        assert total_variation(LAW, other) == pytest.approx(distance)
    assert frequencies("aab") == {"a": 2 / 3, "b": 1 / 3}
    assert frequencies("aab", [1.0, 2.0, 1.0]) == {"a": 0.75, "b": 0.25}
    with pytest.raises(ValueError):
        frequencies("aab", [1.0])


@pytest.mark.parametrize("n", [100, 2_500])
def test_noise_floor_is_the_distance_that_draws_from_the_law_itself_show(n: int) -> None:
    """Against the normal limit: E|share - p| = sqrt(2 p (1 - p) / (pi n))."""
    expected = sum(np.sqrt(2 * p * (1 - p) / (np.pi * n)) for p in LAW.values()) / 2
    assert noise_floor(LAW, n, repeats=4_000) == pytest.approx(expected, rel=0.05)


def test_noise_limit_is_passed_by_one_in_twenty_and_chi_square_pools_rare_outcomes() -> None:
    rng = np.random.default_rng(1)
    limit = noise_limit(LAW, 500)
    distances = [
        total_variation(LAW, frequencies(rng.choice(list(LAW), size=500, p=list(LAW.values())))) for _ in range(600)
    ]
    assert np.mean([distance > limit for distance in distances]) == pytest.approx(0.05, abs=0.025)
    assert noise_floor(LAW, 500) < limit
    law = {i: 1 / 20 for i in range(20)}
    outcomes = [*range(20)] * 10
    test = ChiSquare.of([*outcomes, "x"], law, max_cells=5)
    assert (test.cells, test.outside) == (5, 1)
    assert ChiSquare.of(outcomes, law).statistic == pytest.approx(0)
    assert ChiSquare.of([0] * 200, law).statistic > 1_000


KEYS = st.text(alphabet='ab" \\.é', max_size=4)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
)
RECORDS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


def scanned(text: str) -> list[str]:
    """The place before each byte of a text, and after the last."""
    return byte_places(text.encode())


def written(value: Any, place: str) -> list[tuple[str, str]]:
    """The characters of a value, each with the place that it belongs to: a second, independent way to know them."""
    match value:
        case dict():
            parts = [("{", place)]
            for i, (key, member) in enumerate(value.items()):
                name = key if key.isalpha() else json.dumps(key, ensure_ascii=False)
                inner = name if place == ROOT else f"{place}.{name}"
                parts += [(c, place) for c in (", " if i else "") + json.dumps(key) + ":"]
                parts += [(" ", inner), *written(member, inner)]
            return [*parts, ("}", place)]
        case list():
            parts, inner = [("[", place)], "[]" if place == ROOT else f"{place}[]"
            for i, member in enumerate(value):
                parts += [(",", place), (" ", inner)] if i else []
                parts += written(member, inner)
            return [*parts, ("]", inner if not value else place)]
        case _:
            return [(c, place) for c in json.dumps(value)]


@given(RECORDS)
def test_every_byte_has_its_place(record: Any) -> None:
    parts = written(record, ROOT)
    text = "".join(c for c, _ in parts)
    assert json.loads(text) == record
    found = scanned(text)[:-1]
    for i, ((c, place), here) in enumerate(zip(parts, found, strict=True)):
        # Where a number ends shows only in what follows: until then the text stands in the number.
        number_before = i > 0 and parts[i - 1][0] in "0123456789" and c in ",]}"
        assert here == (parts[i - 1][1] if number_before and found[i - 1] == parts[i - 1][1] != place else place)


@given(RECORDS, st.booleans(), st.randoms(use_true_random=False))
def test_a_place_does_not_depend_on_what_follows(record: Any, indented: bool, random: Random) -> None:
    text = json.dumps(record, ensure_ascii=False, indent=1 if indented else None).encode()
    places = byte_places(text)
    ends = random.sample(range(len(text)), min(len(text), 12))
    assert all(byte_places(text[:end]) == places[: end + 1] for end in ends)


def test_a_record_by_hand() -> None:
    text = '{"who": {"name": "Ann"}, "tags": ["x", 12]} '
    places = dict(zip(range(len(text) + 1), scanned(text), strict=True))
    assert {places[i] for i in (0, 1, text.index('"who"'), text.index(', "tags'))} == {ROOT}
    assert places[text.index("{", 1)] == "who" == places[text.index("name")]
    assert places[text.index("Ann")] == "who.name" == places[text.index('"}')] and places[text.index("}")] == "who"
    assert places[text.index('["x')] == "tags" == places[text.index(", 12")]
    assert places[text.index("12")] == "tags[]" == places[text.index("]")] and places[len(text)] == END


@given(st.binary(max_size=40))
def test_any_bytes_have_places(data: bytes) -> None:
    places = byte_places(data)
    assert len(places) == len(data) + 1 and all(places)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": {"b c": 1, "d": []}, "e": "é"}', {'a."b c"': "1", "a.d": "[]", "e": '"é"'}),
        ("[1, {}]", {ROOT: "[1, {}]"}),
        ("{}", {ROOT: "{}"}),
        ("12", None),
        ('"yes"', None),
        ('{"a": 1', None),
        ("yes", None),
    ],
)
def test_values_of_fields(text: str, values: dict[str, str] | None) -> None:
    assert field_values(text) == values


def sample(name: str, texts: list[str]) -> Sample:
    return Sample(name=name, texts=texts, calls=3, tokens=1_234, seconds=0.5)


def distances_of(probabilities: Mapping[str, float]) -> Probabilities:
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
def three() -> Report:
    law = {record("elf", 10): 0.5, record("elf", 9): 0.25, record("<orc>", 9): 0.25}
    plain = [record("elf", 9)] * 6 + [record("<orc>", 9)] * 2 + ['{"kind": "el'] * 2
    exact = [record("elf", 10)] * 5 + [record("elf", 9)] * 2 + [record("<orc>", 9)] * 3
    samples = [sample("plain", plain), sample("exact & fair", exact)]
    costs = [sample("shared", exact)]
    return compare("Title", "A <prompt>", "class T", distances_of(law), samples, json.loads, costs=costs)


def test_each_field_has_its_law_and_its_frequencies(three: Report) -> None:
    kind, level, whole = three.views
    assert [view.name for view in three.views] == ["kind", "level", WHOLE]
    assert kind.truth == {"elf": 0.75, "<orc>": 0.25}
    assert list(level.truth.items()) == [(9, 0.5), (10, 0.5)]
    assert kind.frequencies["plain"] == pytest.approx({"elf": 0.6, "<orc>": 0.2, OUTSIDE: 0.2})
    assert (kind.distances["plain"], kind.distances["exact & fair"]) == (pytest.approx(0.2), pytest.approx(0.05))
    assert kind.values == ["elf", "<orc>", OUTSIDE]
    assert whole.distances["plain"] == pytest.approx((0.5 + 0.35 + 0.05 + 0.2) / 2)
    assert 0 < kind.floor < whole.floor < 0.3
    assert all(view.floor < view.limit for view in three.views) and three.n == 10


def test_a_choice_has_one_view_and_labels_are_texts_or_json() -> None:
    assert [label(value) for value in ("a b", True, None, 3)] == ["a b", "true", "null", "3"]
    three = compare(
        "Title", "p", "T", distances_of({"yes": 1.0}), [sample("plain", ["yes"])], lambda text: {"answer": text}
    )
    assert [view.name for view in three.views] == ["answer"]


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


def test_the_page_is_well_formed_self_contained_escapes_and_shows_every_number(three: Report) -> None:
    text, tags = page([three], command="demo"), Tags()
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


def test_the_picture_is_written(three: Report, tmp_path: Path) -> None:
    draw_reports([three, three], tmp_path / "demo.png", dpi=40)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


PLAIN_TABLE = TextTable(("name", "p"), [("a|b", "0.5"), ("long name", "12.25"), ("x", "")], "Title", "A remark.")


def test_tables_are_aligned_escaped_and_empty_without_rows() -> None:
    assert PLAIN_TABLE.plain() == ["name           p", "a|b          0.5", "long name  12.25", "x"]
    rows = ["| name | p |", "|---|---:|", "| a\\|b | 0.5 |", "| long name | 12.25 |", "| x |  |"]
    assert PLAIN_TABLE.markdown() == rows
    assert TextTable(("name", "p"), []).plain() == TextTable(("name", "p"), []).markdown() == []
