"""Every benchmark runs, with tiny counts and into a folder of the test's own; what it measures is not looked at here."""

import importlib
import json
import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import (
    ban_distances,
    ban_page,
    control,
    drafting,
    finite,
    maskbench,
    overhead,
    report,
    scale,
    scaling,
    smc,
    table,
)
from benchmarks.bans.cases import random_case
from benchmarks.peers import __main__ as peers
from benchmarks.peers import masks, page
from benchmarks.peers.client import Cost
from benchmarks.peers.languages import LANGUAGES
from benchmarks.peers.meter import Meter
from benchmarks.real import accuracy, bias, calibration, cost, fit
from benchmarks.real import overhead as real_overhead
from benchmarks.real import page as real_page
from benchmarks.real.rows import kept_rows
from benchmarks.schema_engines import Ours
from benchmarks.schema_trials import Speller, Trial, tried
from outlines_phi.lm import bundled
from outlines_phi.vocabulary.vocabulary import Vocabulary

NEEDS_TEKKEN = pytest.mark.skipif(find_spec("mistral_common") is None, reason="the vocabulary is in mistral-common")
GENLM = os.environ.get("OUTLINES_PHI_GENLM_PYTHON", "")
"""The interpreter of an environment with genlm-control (benchmarks/peers/requirements.txt)."""

RUNS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("ban_tokens", {"draws": 1, "length": 20, "phrases": 5}, ["ban_tokens"]),
    ("bundled", {"n": 4, "cases": "a, answer"}, ["bundled"]),
    (
        "drafting", {"prompts": 1, "training": 3, "repeats": 1, "layers": 1, "hidden": 128},
        ["drafting", "drafting_sibling", "drafting_verify"],
    ),
    ("draws", {"prompts": 2, "n": 2}, ["batch", "first_draw", "many_draws"]),
    ("finite", {"repeats": 1}, ["finite"]),
    ("hosts", {"n": 2, "repeats": 1}, ["hosts_transformers"]),
    ("memory", {"calls": 6, "warm_up": 2, "every": 2}, ["memory"]),
    ("overhead", {"repeats": 2, "kept": 2}, ["overhead"]),
    ("rl", {"seeds": 1, "steps": 2, "n": 4}, ["rl"]),
    ("smc", {"particles": 4, "repeats": 1}, ["smc"]),
]  # fmt: skip
OVER_TEKKEN: list[tuple[str, dict[str, Any], list[str]]] = [
    ("compile", {"repeats": 1, "only": "e-mail"}, []),
    ("estimators.__main__", {"steps": 2, "repeats": 1, "layers": 1, "hidden": 128}, ["estimators"]),
    ("large_vocabulary", {"n": 2, "repeats": 1, "only": "exact"}, ["large_vocabulary"]),
    (
        "gpu",
        {"shapes": "tiny", "batches": "2", "length": 8, "size": 2048},
        ["gpu" if torch.cuda.is_available() else "gpu_cpu"],
    ),
    ("grammar_masks", {"names": "arithmetic", "only": "ours", "count": 1}, []),
    ("scaling", {"most": 4, "n": 1}, ["scaling"]),
    ("step", {"steps": 2, "repeats": 1, "schema": "e-mail"}, ["step"]),
]
"""Benchmarks with tiny counts, and the results that each keeps."""


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(overhead, "BLOCK", 1)
    monkeypatch.setattr(drafting, "VOCABULARY", 1024)
    monkeypatch.setattr(drafting, "RECORDS", dict(list(drafting.RECORDS.items())[:1]))
    monkeypatch.setattr(
        finite, "TYPES", {name: finite.TYPES[name] for name in ("yes, no", *list(finite.ASKED_FOR)[:1])}
    )
    monkeypatch.setattr(scaling, "STOCK", 2)
    monkeypatch.setattr(smc, "PROPOSALS", smc.PROPOSALS[:1])
    return tmp_path


@pytest.mark.filterwarnings("ignore")  # of the hosts that are measured beside this package
@pytest.mark.parametrize(
    ("name", "options", "expected"), [*RUNS, *(pytest.param(*run, marks=NEEDS_TEKKEN) for run in OVER_TEKKEN)]
)
def test_every_benchmark_runs(name: str, options: dict[str, Any], expected: list[str], results: Path) -> None:
    with torch._dynamo.config.patch(disable=True):  # stock Outlines' kernels would be compiled for minutes
        importlib.import_module(f"benchmarks.{name}").main(**options)
    check_results(results, expected)


@NEEDS_TEKKEN
@pytest.mark.filterwarnings("ignore")  # a schema is not honoured in full
def test_scale_is_measured(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, task in TASKS.items():
        (data / f"{name}.json").write_text(json.dumps(task))
    scale.schemas(str(data), schemas=6, tokens=4, rows=2, every=5)
    monkeypatch.setattr(scale.transfers, "HOST", scale.transfers.HOST)
    scale.counts(batches="1,4", length=8, sizes="2048")
    kept = check_results(results, ["scale_counts", "scale_schemas"])
    assert [row[:2] for row in kept["scale_schemas"]["rows"]] == [[1, 0], [5, 2]], "a copy is refused as its schema is"
    counted = kept["scale_counts"]
    local = {row[2]: dict(zip(counted["columns"], row, strict=True)) for row in counted["rows"] if row[1] == "local"}
    assert local[4]["tokens / call"] > local[1]["tokens / call"] == pytest.approx(1, abs=0.2)
    assert all(row["reads / call"] <= 1 and row["KB read / call"] > 0 for row in local.values())


def check_results(results: Path, expected: list[str]) -> dict[str, dict[str, Any]]:
    """Assert that these results were kept, each of them a table, and return them."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    assert list(found) == expected
    for result in found.values():
        assert result["rows"] and all(len(row) == len(result["columns"]) for row in result["rows"])
        assert result["title"] in table.markdown(result)
    return found


def marked(results: Path, name: str) -> Path:
    """Return a page with something old between markers."""
    page = results / "page.md"
    page.write_text(f"before\n<!-- {name}:start -->\nold\n<!-- {name}:end -->\nafter\n")
    return page


def rewritten(page: Path) -> str:
    """Return the text of a page of which only what is between markers was replaced."""
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    return text


def test_the_page_of_bans_shows_what_was_kept(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ban_distances.main(n=20, distributions=2, top_k=2)
    check_results(results, ["ban_distances", "ban_random_distances"])
    monkeypatch.setattr(ban_page, "PAGE", marked(results, "bans"))
    monkeypatch.setattr(ban_page, "PICTURE", results / "bans.png")
    ban_page.main()
    assert all(f"| {method} |" in rewritten(ban_page.PAGE) for method in ban_page.METHODS)
    assert ban_page.PICTURE.read_bytes().startswith(b"\x89PNG")


def test_every_benchmark_is_run() -> None:
    folder = Path(report.__file__).parent
    paths = [*folder.glob("*.py"), *folder.glob("*/__main__.py")]
    programs = {
        path.parent.name if path.stem == "__main__" else path.stem
        for path in paths
        if "typer.run(main)" in path.read_text()
    }
    names = {name.removesuffix(".__main__") for name, *_ in (*RUNS, *OVER_TEKKEN)}
    names |= {"ban_distances", "control", "maskbench", "peers", "real"}
    names |= {"ray_overhead", "vllm_engine"}  # which need environments of their own
    names |= {"auto_calls", "bottleneck", "fidelity", "real_model"}  # which the tests of the workbench run
    assert programs <= names, "a benchmark that no test runs breaks silently"


TASKS = {
    "pass": {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}, "tests": [{"valid": True, "data": {"a": 1}}]},
    "refused": {"schema": {"$ref": "elsewhere.json"}, "tests": [{"valid": True, "data": 1}]},
    "rejects valid": {  # members come in the order of the schema
        "schema": {"properties": {"a": {}, "b": {}}}, "tests": [{"valid": True, "data": {"b": 1, "a": 1}}],
    },
}  # fmt: skip


@NEEDS_TEKKEN
@pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is measured")
def test_schemas_are_measured_in_forks(results: Path, tmp_path: Path) -> None:
    data, suite, log = tmp_path / "data", tmp_path / "suite", tmp_path / "log"
    data.mkdir()
    (suite / "optional").mkdir(parents=True)
    for name, task in TASKS.items():
        (data / f"{name}.json").write_text(json.dumps(task))
    tests = [{"valid": True, "data": 1}, {"valid": False, "data": "x"}]
    group = [{"description": "a number", "schema": {"type": "number"}, "tests": tests}]
    (suite / "type.json").write_text(json.dumps(group))
    (suite / "optional" / "left.json").write_text("out")
    maskbench.main(maskbench=str(data), suite=str(suite), engines="ours;llguidance", texts=2, log=str(log))
    found = check_results(results, ["maskbench", "maskbench_times", "schema_suite"])
    ours, other = found["maskbench"]["rows"]
    assert ours[0] == "ours" and ours[1:7] == other[1:7] == [1, 1, 1, 0, 0, 0]
    assert ours[7:10] == ["1 of 3"] * 3 and ours[10:] == [4, 0, 0]
    assert [row[:2] for row in found["maskbench_times"]["rows"]] == [["ours", 2], ["llguidance", 2]]
    assert [row[1:] for row in found["schema_suite"]["rows"]] == [[2, 0, 0, 0, 0, 0]] * 2
    verdicts = [(line["name"], line["verdict"]) for line in map(json.loads, log.read_text().splitlines())]
    assert verdicts[:3] == [(name, name) for name in TASKS]


class Endless(Ours):
    """An engine that does not come back, or asks for more memory than there is, as the schema says."""

    def compile(self, schema: Any) -> None:
        while schema == "forever":
            pass
        bytearray(2**33)


@pytest.mark.skipif(sys.platform != "linux", reason="bounds on memory are those of Linux")
def test_a_schema_that_takes_too_long_or_too_much_is_cut_off() -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", "1"], 0)
    for schema, how in (("forever", "timeout"), ("much", "failed")):
        trial = Trial(Endless(vocabulary), Speller(vocabulary), {"schema": schema, "tests": []}, texts=1, timed=True)
        assert tried(trial, [], seconds=0, gigabytes=1).verdict(trial.task) == how


def test_our_side_of_the_comparison_with_genlm_control() -> None:
    ours, language = control.Ours(), LANGUAGES[3]
    phi, mu = language.distribution(ours.model)
    assert 0 < phi < 1 and math.isclose(sum(mu.values()), 1, abs_tol=1e-6)
    few, many = ours.curve(language, mu, "exact", [1, 256], repeats=1)
    assert many.tv < 0.1 < few.tv, "the curve goes down to the noise of 256 draws"
    assert many.cost.calls >= 1 and many.cost.tokens >= few.cost.tokens > 0
    (_,), (cost,) = ours.draw(language, "exact", 8, [3])
    generator = language.generator(ours.model, phi="exact")
    counts = generator.sample(language.prompt, 8, max_new_tokens=language.budget, seed=3).counts
    assert (cost.calls, cost.tokens) == (counts.calls, counts.tokens), "the hook counts what the package counts"


def test_a_distribution_that_is_read_needs_no_draws() -> None:
    ours, language = control.Ours(), LANGUAGES[1]
    _, mu = language.distribution(ours.model)
    points = ours.distribution(language, mu, repeats=2)
    for tolerance, point in zip(control.TOLERANCES, points, strict=True):
        assert point.tv <= tolerance and point.cost.tokens >= control.least(mu, point.tv)
    tokens = [point.cost.tokens for point in points]
    assert tokens == sorted(tokens) and tokens[0] < tokens[-1]


def test_the_least_that_anybody_reads() -> None:
    mu = {"a": 0.2, "b": 0.5, "c": 0.3}
    assert [control.least(mu, tv) for tv in (0.6, 0.5, 0.4, 0.2, 0.1, 0.0)] == [1, 1, 2, 2, 3, 3]


def test_a_population_is_read_by_its_weights() -> None:
    runs = [[("a", math.log(3)), ("b", 0.0)], [], [("b", -900.0)]]
    assert control.estimate(runs) == pytest.approx({"a": 0.375, "b": 0.625})
    pooled = control.estimate([[particle for run in runs for particle in run]])
    assert pooled == pytest.approx({"a": 0.75, "b": 0.25}), "evidence weighs the runs"


def test_levels_are_those_that_the_peer_reaches() -> None:
    curve = [control.Point(tv, Cost(1, tokens, 1, 1.0)) for tv, tokens in ((0.5, 1), (0.2, 2), (0.09, 4), (0.088, 8))]
    found = {name: point and point.cost.tokens for name, point in control.levels(curve)}
    assert found == {"best": 4, "0.1": 4} and dict(control.levels(curve[:1]))["0.1"] is None


def test_the_meter_leaves_padding_out() -> None:
    model = torch.nn.Linear(1, 1)
    model.forward = lambda input_ids, attention_mask: input_ids  # type: ignore[method-assign, assignment]
    meter = Meter(model)
    model(torch.ones(2, 3, dtype=torch.long), attention_mask=torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0]]))
    assert meter.read() == (1, 4, 2), "two of the columns of the mask belong to what is cached"
    model(input_ids=torch.ones(1, 5, dtype=torch.long), attention_mask=torch.zeros(1, 1, 5, 9))
    assert meter.read() == (2, 9, 3)


@pytest.mark.filterwarnings("ignore")  # of the hosts
def test_the_page_of_the_real_model_shows_what_was_measured(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, loaded = results / "page.md", bundled.load()
    page.write_text(real_page.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(real_page, "PAGE", page)
    (results / "README.md").write_text(real_page.README.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(real_page, "README", results / "README.md")
    with torch._dynamo.config.patch(disable=True):
        cost.run(loaded, "letter", "local,auto", 1, 60.0)
        cost.run(loaded, "date", "exact", 1, 0.0)
        bias.run(loaded, "letter", 1, 10)
        accuracy.run(loaded, "reviews", "local", "1", 2)
        real_overhead.run(loaded, 1)
        monkeypatch.setattr(fit, "FORMS", fit.FORMS[2:])
        fit.run(loaded)
        monkeypatch.setattr(calibration, "questions", lambda name: list(accuracy.questions(name))[:1])
        monkeypatch.setattr(calibration, "DRAWS", 4)
        calibration.run(loaded)
    monkeypatch.setattr(cost.Bench, "stock_call", None)
    cost.run(loaded, "letter", "local,auto", 1, 60.0)  # nothing is missing
    real_page.write()
    text = page.read_text(encoding="utf-8")
    assert text.count("Not measured yet.") == 3, "the Dyck words, the harness, and the GPU"
    assert "|letter|" in text and "\n|greedy||" in text and "|reviews|token probability|1|" in text
    assert "|letter|" in (results / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in (results / "images").iterdir()} == {"real-bias.png", "real-calibration.png"}
    assert "no draw in 0 s of CPU: 1 of 1" in text


def test_the_readme_says_how_many_answers_were_right() -> None:
    lines = [accuracy.summary(row) for row in kept_rows("accuracy")]
    right = {(line["set"], line["method"], line["T"]): f"{100 * float(line['right'].split()[0]):.0f}" for line in lines}
    ways = ("greedy", ""), ("masking", "1"), ("auto", "1")
    reviews, records = ([right[(name, *way)] for way in ways] for name in accuracy.SETS)
    said = (
        "greedy decoding had {} % right, draws at T = 1 {} % (masked) and {} % (`auto`); of 40 records {}, {} and {} %"
    )
    assert said.format(*reviews, *records) in real_page.README.read_text(encoding="utf-8")


def test_confidences_are_scored_by_their_bins_and_read_from_their_tokens() -> None:
    text = '{"name": "Ana \\"B\\"", "age": 30 ,"express":true}'
    found = {key: text[low:high] for key, low, high in calibration.spans(text, ["name", "age", "express", "city"])}
    assert found == {"name": 'Ana \\"B\\"', "age": "30", "express": "true"}
    answers = calibration.pairs([{"a": ["x", 0.9, True], "b": ["y", 0.9, False]}, {"a": ["x", 0.1, False]}])
    assert calibration.scores(answers) == pytest.approx(((0.01 + 0.81 + 0.01) / 3, (2 * 0.4 + 0.1) / 3))


@pytest.fixture
def peers_page(results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page, "PAGE", marked(results, "peers"))
    monkeypatch.setattr(page, "PICTURE", results / "peers.png")
    monkeypatch.setattr(peers, "roles", lambda: random_case(0))
    return page.PAGE


def run_peers(genlm: str) -> None:
    with torch._dynamo.config.patch(disable=True):
        peers.main(genlm=genlm, languages="Dyck-1 up to 8", particles="1", ban_particles="1", draws=2, pool=4, bans=1)


@pytest.mark.filterwarnings("ignore")  # of the peers
@pytest.mark.skipif(not (find_spec("llguidance") and find_spec("xgrammar")), reason="they are measured")
def test_the_page_of_peers_shows_what_was_measured(results: Path, peers_page: Path) -> None:
    run_peers("none")
    found = check_results(results, ["peers", "peers_bans", "peers_curves", "peers_masks", "peers_tools"])
    text = rewritten(peers_page)
    assert all(f"| {row[2]} |" in text for name in ("peers", "peers_bans") for row in found[name]["rows"])
    by = {row[1]: dict(zip(found["peers_masks"]["columns"], row, strict=True)) for row in found["peers_masks"]["rows"]}
    assert by["xgrammar"]["too few"] == by["xgrammar"]["too many"] == 0 < by["xgrammar"]["prefixes"]
    assert by["outlines_core"]["too few"] > 0, "its alternatives are leftmost first"
    missing = {name: row["a token that is missing"] for name, row in by.items()}
    assert missing["outlines_core"].endswith("after ''") and not missing["outlines_core, longest first"].endswith(
        "after ''"
    )
    assert (results / "peers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not GENLM, reason="OUTLINES_PHI_GENLM_PYTHON names no environment with genlm-control")
def test_the_page_of_peers_shows_genlm_control(results: Path, peers_page: Path) -> None:
    run_peers(GENLM)
    text = peers_page.read_text()
    assert "| genlm-control, AWRS |" in text and "| genlm-control, SMC, the ban as its critic, N = 1 |" in text


def test_masks_that_differ_are_counted() -> None:
    ours, language = control.Ours(), LANGUAGES[1]
    table = language.generator(ours.model).logits_processor.table
    draws = language.generator(ours.model, phi="exact").sample(language.prompt, 4, seed=0, max_new_tokens=12)
    texts = [draw.token_ids for draw in draws]

    class Banning:
        """This package's own masks, without the first token of a text."""

        def reset(self) -> None: ...

        def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            *_, mask = masks.ours(table, language.budget, ids[0, 1:].tolist())
            mask[texts[0][0]] &= ids.shape[1] > 1
            return logits.masked_fill(~mask, -torch.inf)

    prefixes, differing, example = masks.compared(table, language.budget, Banning(), [5], texts, len(table.vocabulary))
    members = {ids[:length] for ids in texts for length in range(len(ids))}
    assert (prefixes, differing["fewer"], differing["more"]) == (len(members), 1, 0)
    assert example.endswith("after ''")


@pytest.mark.skipif(not GENLM, reason="OUTLINES_PHI_GENLM_PYTHON names no environment with genlm-control")
def test_the_comparison_with_genlm_control_runs(results: Path) -> None:
    control.main(python=GENLM, particles="2", runs=4, most=4, repeats=2, languages="enum, off-prompt")
    draw, many = check_results(results, ["control_draw", "control_many"]).values()
    assert [row[2] for row in draw["rows"]] == ["exact", "genlm-control, N = 2"]
    assert [row[2] for row in many["rows"]] == ["best", "0.1"]
