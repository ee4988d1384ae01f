"""``outlines-phi audit``, ``probabilities`` and ``demo`` on the bundled model; the commands of the documentation."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from typer.testing import CliRunner

import outlines_phi
from outlines_phi import Generator, PhiTransformers, from_transformers
from outlines_phi.cli.app import OWN, app, command
from outlines_phi.cli.demo_command import ANSWER, CHARACTER, EXACT, PLAIN, Case, run_case
from outlines_phi.cli.model_commands import read_weights
from tests.inner import WHOLE, Report, bundled, measure
from tests.precision import near, near_log

from .conftest import ARIA, BAKERY, LONG, MUSEUM, Cli, refused

HUGO = "New character: Hugo. JSON: "


def test_the_report_is_that_of_the_library_and_on_the_terminal(cli: Cli, folder: Path) -> None:
    result = cli("audit --type formats:Character --n 60 --seed 1 --output a.json", ARIA)
    assert result.exit_code == 3, result.stderr
    from formats import Character  # type: ignore[import-not-found]

    model = outlines_phi.from_transformers(*bundled.load())
    expected = outlines_phi.audit((model, Character), ARIA, 60, seed=1).to_dict()
    assert json.loads((folder / "a.json").read_text(encoding="utf-8")) == json.loads(json.dumps(expected))
    text = " ".join(result.stdout.split())
    assert re.search(r"Plain masking is biased: .* is between 0\.\d+ and 0\.\d+ \(95% confidence\)", text)
    assert '"ranger captain"' in text and "Where legal mass is lost" in text and "effective sample size, of 60" in text
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_reports_are_written_in_every_format(cli: Cli, folder: Path) -> None:
    outputs = " ".join(f"--output a.{suffix}" for suffix in ("md", "html", "json", "png"))
    sent = f"audit --type formats:Answer --n 40 --seed 1 {outputs} --temperature 0.9 -"
    result = cli(sent, stdin=f"{BAKERY}\n{MUSEUM}\n")
    assert result.exit_code == 3 and "all 2 prompts" in " ".join(result.stdout.split()), result.stderr
    assert (folder / "a.md").read_text(encoding="utf-8").startswith("# Audit of plain masking")
    assert "temperature=0.9" in (folder / "a.html").read_text(encoding="utf-8")
    assert len(json.loads((folder / "a.json").read_text(encoding="utf-8"))["findings"]) == 2
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--n 200 --tolerance 0.9", 0, "Plain masking is not biased by more than 0.9:"),
        ("--n 200", 3, "Plain masking is biased:"),
        ("--n 4", 4, "Undecided whether plain masking is biased by more than 0.05:"),
    ],
)
def test_each_verdict_has_an_exit_code(options: str, code: int, words: str, cli: Cli) -> None:
    result = cli(f"audit --type formats:Answer --seed 1 {options}", BAKERY)
    assert (result.exit_code, result.stderr) == (code, "")
    text = " ".join(result.stdout.split())
    assert text.startswith(words) and ("To decide it, take about" in text) == (code == 4)


def test_bounds_are_paid_for_in_tokens(cli: Cli, folder: Path) -> None:
    widths = []
    for tokens in (0, 2000):
        cli(f"audit --regex [a-z]{{3}} --n 20 --seed 1 --bounds-tokens {tokens} --output {tokens}.json", BAKERY)
        report = json.loads((folder / f"{tokens}.json").read_text(encoding="utf-8"))
        widths.append(report["pooled"]["bias"]["certain"]["high"] - report["pooled"]["bias"]["certain"]["low"])
    assert widths[1] < widths[0]


class TestSaved:
    """The audit of a file that ``generate --phi local`` wrote."""

    def generate(self, cli: Cli, more: str) -> None:
        sent = f"generate --type formats:Character --n 100 --seed 2 --output o.jsonl {more}"
        assert cli(sent, ARIA, HUGO).exit_code == 0

    def test_it_has_the_numbers_of_its_weights(self, cli: Cli, folder: Path) -> None:
        self.generate(cli, "--phi local")
        result = cli("audit --from o.jsonl")
        assert result.exit_code == 3, result.stderr
        assert result.stdout.splitlines()[2].startswith("Plain masking is biased: its distance")
        assert cli("audit --from o.jsonl --tolerance 0.99").exit_code == 0
        from formats import Character

        _, log_w = read_weights(folder / "o.jsonl")
        bias = measure([np.array(weights) for weights in log_w], [(0.0, 1.0)] * 2, 0.05)
        text, here = " ".join(result.stdout.split()), bias.tv.interval
        assert f"{here.low:.3f} ... {here.high:.3f}" in text
        assert f"effective sample size, of 200 draws {bias.ess:.1f}" in text
        # Other draws of the same law, with more known about it: the two intervals hold the same number.
        model = outlines_phi.from_transformers(*bundled.load())
        there = outlines_phi.audit((model, Character), [ARIA, HUGO], 200, seed=5).pooled.bias.tv.interval
        assert here.low <= there.high and there.low <= here.high and here.low > 0.05
        # A line that a kill has torn does not count.
        (folder / "o.jsonl").write_bytes((folder / "o.jsonl").read_bytes()[:-20])
        assert "after each of 1 prompt," in cli("audit --from o.jsonl").stdout

    @pytest.mark.parametrize(
        ("sent", "said"),
        [
            ("--phi exact", "holds draws of --phi exact"),
            ("--phi local --top-k 1", "None of the draws"),
            ("--particles 10", "holds draws of --particles"),
            ("--phi local --tokenization canonical", "Draw without --tokenization canonical to audit"),
        ],
    )
    def test_other_draws_are_refused(self, sent: str, said: str, cli: Cli) -> None:
        self.generate(cli, sent)
        refused(cli("audit --from o.jsonl"), said)

    @pytest.mark.parametrize(
        "content", ['{"a": 1}\n', "", "[]\n", '{"record": "run", "format": "outlines-phi draws", "version": 1}\n']
    )
    def test_another_file_is_refused(self, content: str, cli: Cli, folder: Path) -> None:
        (folder / "o.jsonl").write_text(content)
        refused(cli("audit --from o.jsonl"), "was not written by outlines-phi generate")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_numbers_are_those_of_the_library(cli: Cli, folder: Path) -> None:
    result = cli("probabilities", "--type", "formats:Answer", "--tolerance", 0, "--output", "p.jsonl", BAKERY, ARIA)
    assert result.exit_code == 0, result.stderr
    generator = Generator(from_transformers(*bundled.load()), Literal["yes", "no"])
    lines = read(folder / "p.jsonl")
    for index, prompt in enumerate((BAKERY, ARIA)):
        expected = generator.probabilities(prompt, tolerance=0)
        here = [line for line in lines if line["prompt_index"] == index]
        assert [line["record"] for line in here] == ["value", "value", "others"]
        for rank, (line, entry) in enumerate(zip(here, expected.entries, strict=False)):
            assert (line["rank"], line["value"], line["prompt"]) == (rank, entry.value, prompt)
            assert [line["p"], *line["p_bounds"]] == near([entry.p, entry.lo, entry.hi])
            assert f"{entry.value}" in result.stdout and f"{line['p']:.4f}" in result.stdout
        assert here[-1]["p_bounds"] == [0, 0] and here[-1]["log_z_bounds"] == near_log(expected.log_z_bounds)
    # The settings are part of the distribution.
    hot = cli("probabilities", "--type", "formats:Answer", "--temperature", 3, "--output", "q.jsonl", BAKERY)
    assert hot.exit_code == 0 and abs(read(folder / "q.jsonl")[0]["p"] - lines[0]["p"]) > 0.05


def test_a_table_has_the_top_and_the_rest(cli: Cli, folder: Path) -> None:
    result = cli("probabilities", "--type", "formats:Character", "--top", 3, "--output", "p.jsonl", ARIA)
    assert result.exit_code == 0 and f"After '{ARIA}'" in result.stdout
    assert (
        "... 29 more" in result.stdout and "all others" not in result.stdout
    )  # 32 records in a few layouts are all listed
    lines = read(folder / "p.jsonl")
    low, high = lines[-1]["log_z_bounds"]
    assert f"log Phi in [{low:.4g}, {high:.4g}]" in result.stdout
    assert len(lines) == 33 and [line["p"] for line in lines[:-1]] == sorted(
        (line["p"] for line in lines[:-1]), reverse=True
    )
    assert lines[0]["value"] == json.loads(lines[0]["text"]) and lines[0]["text"] in lines[0]["texts"]
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_banned_phrases_have_no_probability(cli: Cli, folder: Path) -> None:
    result = cli("probabilities", "--regex", "yes|no|not now", "--ban", "no", "--output", "p.jsonl", BAKERY)
    assert result.exit_code == 0, result.stderr
    assert {line["value"]: line["p"] for line in read(folder / "p.jsonl") if line.get("p")} == {"yes": 1.0}


def test_what_a_type_refuses_is_listed_with_the_reason(cli: Cli, folder: Path) -> None:
    result = cli("probabilities", "--type", "formats:Day", "--effort", 400, "--output", "p.jsonl", "Date: ")
    refused = [line for line in read(folder / "p.jsonl") if "value_error" in line]
    assert all(line["value"] is None and "refuses" in line["value_error"] for line in refused)
    assert result.exit_code == 1 and ("(refused)" in result.stdout) == any(line["rank"] < 20 for line in refused)


def test_a_prompt_fails_alone(cli: Cli, folder: Path) -> None:
    """One that is too long, and one that is short of the tolerance, of which what holds is listed."""
    result = cli("probabilities", "--regex", "[a-z]{1,9}", "--effort", 60, "--output", "p.jsonl", BAKERY, LONG, ARIA)
    assert result.exit_code == 1 and "Failed: 2 of 3 prompts." in result.stderr
    assert "short of --tolerance 0.001" in " ".join(result.stderr.split())
    lines = read(folder / "p.jsonl")
    errors = {line["prompt_index"]: line["error"] for line in lines if line["record"] == "error"}
    assert errors == {1: "ModelError", 2: "BudgetError"}
    listed = {line["prompt_index"] for line in lines if line["record"] == "value"}
    others = {line["prompt_index"]: line["p_bounds"] for line in lines if line["record"] == "others"}
    assert listed == {0, 2} == set(others) and all(low == 0 < high < 1 for low, high in others.values())
    wide = cli("probabilities", "--regex", "[a-z]{1,9}", "--effort", 60, "--tolerance", 0.99, BAKERY, LONG)
    assert wide.exit_code == 1 and "Failed: 1 of 2 prompts." in wide.stderr
    refused(
        cli("probabilities --top-k 1 --batch-size 8 --regex", "(yes|no) 9", BAKERY, ARIA, BAKERY), "of 3 prompts.", 1
    )


def test_texts_that_begin_with_a_value(cli: Cli, folder: Path) -> None:
    options = ("--type", "formats:Answer", "--ends", "open", "--open-at", "[^a-z]")
    result = cli("probabilities", *options, "--tolerance", 0, "--output", "p.jsonl", BAKERY)
    assert result.exit_code == 0, result.stderr
    model = from_transformers(*bundled.load())
    expected = Generator(model, Literal["yes", "no"], ends="open", open_at="[^a-z]").probabilities(BAKERY, tolerance=0)
    lines = read(folder / "p.jsonl")[:-1]
    assert {line["value"]: line["p"] for line in lines} == {entry.value: near(entry.p) for entry in expected.entries}
    assert cli("generate --n 20 --phi local --max-new-tokens 1 --output d.jsonl", *options, BAKERY).exit_code == 0
    header, *draws = read(folder / "d.jsonl")
    assert (header["ends"], header["open_at"]) == ("open", "[^a-z]")
    assert {draw["text"] for draw in draws} <= {"yes", "no"}
    refused(cli("generate --type formats:Answer --n 20 --phi local --output d.jsonl", BAKERY), "'open'")
    refused(cli("audit --from d.jsonl"), "Draw without --ends open to audit")


@pytest.fixture(scope="module", params=[ANSWER, CHARACTER], ids=["choice", "pydantic"])
def report(request: pytest.FixtureRequest, model: PhiTransformers) -> Report:
    return run_case(model, request.param, 300, 0)


def test_the_bias_is_visible_beside_a_certified_truth_and_what_draws_cost(report: Report) -> None:
    worst = max((view for view in report.views if view.name != WHOLE), key=lambda view: view.distances[PLAIN])
    assert worst.distances[PLAIN] > 3 * worst.limit
    assert all(view.distances[EXACT] < 1.5 * view.limit for view in report.views)
    assert report.truth.tolerance <= 1e-3 and sum(report.truth.distribution.values()) == pytest.approx(1)
    assert all(set(view.frequencies[name]) <= set(view.truth) for view in report.views[:-1] for name in (PLAIN, EXACT))
    assert all(len(sample.texts) == 300 for sample in report.samples)
    plain, exact = report.samples
    assert report.costs[0].tokens <= plain.tokens and 0 < exact.tokens < plain.tokens and 0 < plain.calls <= 128


@pytest.mark.parametrize("case", [ANSWER, CHARACTER], ids=["choice", "pydantic"])
def test_the_token_count_of_plain_outlines_is_that_of_its_texts(model: PhiTransformers, case: Case) -> None:
    """Each text costs at least one token a piece of its likeliest spelling, less the one that the model never reads."""
    plain = run_case(model, case, 20, 1).samples[0]
    fewest = sum(len(model.hf_tokenizer.encode(text)) for text in plain.texts)
    assert fewest * 0.9 <= plain.tokens <= sum(len(text.encode()) for text in plain.texts)


def test_the_command_writes_a_picture_and_a_page_and_fits_80_columns(tmp_path: Path) -> None:
    prompt = "Character: Bram is a proud dwarf. JSON: "
    arguments = ["demo", "--n", "20", "--output", str(tmp_path / "demo"), "--prompt", prompt]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert prompt in result.stdout
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
    assert "proud dwarf" in (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    assert max(len(line) for line in result.stdout.splitlines() if str(tmp_path) not in line) <= 80


PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e-?\d+)?")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def normal(line: str) -> str:
    """A line without its digits and spaces, which may differ from machine to machine."""
    return "".join(NUMBER.sub("#", line).split())


def test_the_page_is_what_the_commands_print(cli: Cli, folder: Path) -> None:
    (folder / "schemas.py").write_text(blocks("python")[0], encoding="utf-8")
    (folder / "prompts.jsonl").write_text(blocks("json")[0], encoding="utf-8")
    seen = []
    for session in "".join(blocks("console")).split("$ outlines-phi ")[1:]:
        command, *said = session.splitlines()
        command, _, piped = command.partition(" | ")
        result = cli(*shlex.split(command))
        refused, biased = said[0].startswith("Error:"), "Plain masking is biased" in "".join(said)
        assert result.exit_code == (2 if refused else 3 if biased else 0), result.stderr
        printed = {normal(line) for line in (result.stdout + result.stderr).splitlines()}
        if piped:
            printed = {normal(text) for text in re.findall(r'"text": "(\w+)"', result.stdout)}
        assert {normal(line) for line in said} - {"", "..."} <= printed, command
        seen.append(command.split()[0])
    assert seen == ["generate", "generate", "generate", "audit", "generate", "audit", "probabilities", "fit"]


def test_the_page_names_every_option_and_help_says_what_commands_do() -> None:
    for name in ("generate", "audit", "probabilities", "fit"):
        options = {option for parameter in command(name).params for option in parameter.opts if option.startswith("--")}
        assert {option for option in options - {"--help"} if f"`{option}" not in PAGE} == set(), name
    assert {name: str(command(name).help).splitlines()[0] for name in OWN} == OWN
