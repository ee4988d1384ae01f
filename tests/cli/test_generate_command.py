"""``outlines-phi generate`` on the bundled model."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from scipy import stats

from outlines_phi import Effort, ExactPhi, Generator, from_transformers
from outlines_phi.cli import command_options, journal
from outlines_phi.cli.batches import Batches
from outlines_phi.cli.command_options import Given
from outlines_phi.errors import BudgetError, SchemaWarning, UnsupportedError
from outlines_phi.fidelity.comparison import frequencies, total_variation
from outlines_phi.lm import bundled
from outlines_phi.plugin.call import Call
from outlines_phi.sampling.phi_options import AutoPhi
from tests.chi_square import ChiSquare
from tests.precision import near_log

from .conftest import Cli, records

BAKERY = "Question: is the bakery open on Sunday? Answer: "
MUSEUM = "Question: is the museum open on Monday? Answer: "
ARIA = "New character: Aria. JSON: "
PROMPTS = [BAKERY, MUSEUM, "Question: is the café open? Answer: ", "Question: is it? Answer: ", "Answer: "]
LONG = "word " * 600


def write(path: Path, prompts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    return path


class TestLines:
    def test_a_line_per_draw_says_what_it_is(self, cli: Cli) -> None:
        result = cli(
            "generate",
            "--type",
            "formats:Character",
            "--n",
            3,
            "--seed",
            1,
            "--token-ids",
            "--phi",
            "exact",
            ARIA,
            ARIA,
        )
        assert result.exit_code == 0 and result.stderr == ""
        lines, vocabulary = records(result.stdout), from_transformers(*bundled.load()).lm.vocabulary
        assert [(line["prompt_index"], line["draw_index"]) for line in lines] == [
            (i, j) for i in (0, 1) for j in range(3)
        ]
        for line in lines:
            assert line["record"] == "draw" and line["prompt"] == ARIA and line["guarantee"] == "exact"
            assert line["value"] == json.loads(line["text"])
            assert vocabulary.decode(line["token_ids"]).decode() == line["text"]
            assert (
                line["log_p"] < line["log_z_bounds"][1]
                and line["log_z_bounds"][0] <= line["log_z"] <= line["log_z_bounds"][1]
            )
            assert (
                line["weight"] == pytest.approx(1 / 3) and line["ess"] == 1 and line["prompt_ess"] == pytest.approx(3)
            )

    def test_canonical_draws_are_spelled_as_the_tokenizer_spells_them(self, cli: Cli) -> None:
        arguments = (
            "--type",
            "formats:Character",
            "--n",
            10,
            "--seed",
            1,
            "--token-ids",
            "--tokenization",
            "canonical",
        )
        tokenizer = bundled.load()[1]
        for line in records(cli("generate", *arguments, ARIA).stdout):
            assert line["token_ids"][:-1] == tokenizer.encode(line["text"])

    def test_masked_draws_have_weights(self, cli: Cli) -> None:
        lines = records(
            cli("generate", "--type", "formats:Character", "--n", 50, "--phi", "local", "--seed", 2, ARIA).stdout
        )
        w = [math.exp(line["log_w"]) for line in lines]
        assert {line["guarantee"] for line in lines} == {"weighted"}
        assert [line["weight"] for line in lines] == pytest.approx([x / sum(w) for x in w])
        assert lines[0]["prompt_ess"] == pytest.approx(sum(w) ** 2 / sum(x * x for x in w))
        assert lines[0]["log_z"] == pytest.approx(math.log(sum(w) / 50))

    def test_a_trajectory_without_a_token_is_a_line_of_weight_0(self, cli: Cli) -> None:
        result = cli(
            "generate", "--regex", "(yes|no) 9", "--n", 20, "--phi", "local", "--top-k", 3, "--seed", 0, BAKERY
        )
        lines = records(result.stdout)
        failed = [line for line in lines if line["text"] is None]
        assert len(lines) == 20 and failed
        assert all(line["log_w"] is None and line["weight"] == 0 for line in failed)
        assert f"{len(failed)} trajectories met a step" in result.stderr

    @pytest.mark.parametrize(
        ("option", "name", "allowed"),
        [
            ("--type", "formats:Answer", ["yes", "no"]),
            ("--type", "formats:Size", ["small", "large"]),
            ("--type", "formats:Outer.Inner", ["a", "b"]),
            (
                "--type",
                "formats:book",
                [{"room": room, "nights": nights} for room in ("sea", "garden") for nights in (1, 2)],
            ),
            ("--type", "builtins:bool", [True, False]),
            ("--regex", "[0-9]", [str(digit) for digit in range(10)]),
        ],
    )
    def test_values_are_those_of_the_type(self, option: str, name: str, allowed: list[Any], cli: Cli) -> None:
        result = cli("generate", option, name, "--n", 4, BAKERY)
        assert result.exit_code == 0, result.stderr
        assert all(line["value"] in allowed for line in records(result.stdout))

    @pytest.mark.parametrize("phi", ["exact", "local"])
    def test_what_is_written_to_a_file_is_told_with_log_phi(self, phi: str, cli: Cli, folder: Path) -> None:
        result = cli(
            "generate", "--regex", "yes|no", "--phi", phi, "--n", 5, "--seed", 1, "--output", "o.jsonl", BAKERY
        )
        *_, last = records((folder / "o.jsonl").read_text(encoding="utf-8"))
        told = re.findall(r"log Phi is (-\d+\.\d+)\.\n$", result.stderr)
        assert list(map(float, told)) == pytest.approx([last["log_z"]], rel=1e-3)

    def test_a_date_is_written_as_json_has_it(self, cli: Cli) -> None:
        for line in records(
            cli("generate", "--type", "formats:Day", "--n", 5, "--phi", "local", "--seed", 1, "Date: ").stdout
        ):
            assert line["value"] is None and "refuses" in line["value_error"] or len(line["value"]) == 10

    def test_a_text_that_the_type_refuses_stays_a_draw(self, cli: Cli) -> None:
        with pytest.warns(SchemaWarning, match="what .*Order.check checks"):
            result = cli("generate", "--type", "formats:Order", "--max-new-tokens", 40, "--seed", 1, "Order: ")
        (line,) = records(result.stdout)
        assert result.exit_code == 0
        assert line["value"] is None and "refuses" in line["value_error"]

    def test_a_grammar_from_a_file_or_by_its_name(self, cli: Cli, folder: Path) -> None:
        (folder / "letters.lark").write_text('start: "a" | "b" start', encoding="utf-8")
        (folder / "b.gbnf").write_text('root ::= "b" | "(" root ")"', encoding="utf-8")
        for name, pattern in (("letters.lark", "b*a"), ("b.gbnf", r"\(*b\)*"), ("dyck-1", r"[()]*")):
            result = cli("generate", "--grammar", name, "--max-new-tokens", 6, "--phi", "local", BAKERY)
            header, line = map(json.loads, result.stdout.splitlines())
            assert header["output_type"]["name"] == f"--grammar {name}" and re.fullmatch(pattern, line["text"])
        (folder / "letters.lark").write_text('start: "a" b', encoding="utf-8")
        result = cli("generate", "--grammar", "letters.lark", BAKERY)
        assert result.exit_code == 2 and "--grammar letters.lark: rule 'b' is not defined" in result.stderr

    def test_a_schema_from_a_file(self, cli: Cli, folder: Path) -> None:
        schema = {"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}
        schema["additionalProperties"] = False
        (folder / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
        (line,) = records(cli("generate", "--schema", "schema.json", "New door. JSON: ").stdout)
        assert set(line["value"]) == {"open"} and isinstance(line["value"]["open"], bool)

    def test_the_first_line_says_what_the_draws_depend_on(self, cli: Cli) -> None:
        header = json.loads(
            cli("generate", "--regex", "[0-9]", "--temperature", 0.7, "--seed", 5, BAKERY).stdout.split("\n")[0]
        )
        assert header["settings"]["temperature"] == 0.7 and header["seed"] == 5 and header["phi"] == "auto"
        assert header["output_type"]["name"] == "--regex [0-9]"

    def test_odd_prompts_stay_what_they_are(self, cli: Cli, folder: Path) -> None:
        odd = ["a\u2028b\u0085c", "🦊 \x00", "\ud800", 'quote " and \\']
        result = cli("generate", "--regex", "[0-9]", "--file", write(folder / "p.jsonl", odd), "--output", "o.jsonl")
        assert result.exit_code == 1  # half a surrogate pair is no text
        lines = records((folder / "o.jsonl").read_text(encoding="utf-8").replace("\u2028", " ").replace("\u0085", " "))
        assert [line["record"] for line in lines] == ["draw", "draw", "error", "draw"]
        assert lines[2]["prompt"] == "\ud800" and "valid Unicode" in lines[2]["message"]


class TestPrompts:
    def test_a_text_file_has_one_per_line(self, cli: Cli, folder: Path) -> None:
        (folder / "p.txt").write_text(f"{BAKERY}\r\n{MUSEUM}\n\n", encoding="utf-8")
        assert [line["prompt"] for line in records(cli("generate", "--regex", "[0-9]", "--file", "p.txt").stdout)] == [
            BAKERY,
            MUSEUM,
        ]

    @pytest.mark.parametrize("arguments", [["-"], ["--file", "-"]])
    def test_a_pipe_has_one_per_line(self, arguments: list[str], cli: Cli) -> None:
        result = cli("generate", "--regex", "[0-9]", *arguments, stdin=f"{BAKERY}\n{MUSEUM}\n")
        assert [line["prompt"] for line in records(result.stdout)] == [BAKERY, MUSEUM]

    def test_a_chat_goes_through_the_template(self, cli: Cli, folder: Path, other_model: Path) -> None:
        chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": BAKERY}]
        arguments = (
            "generate",
            "--type",
            "formats:Answer",
            "--n",
            40,
            "--seed",
            3,
            "--phi",
            "exact",
            "--model",
            other_model,
        )
        lines = records(cli(*arguments, "--file", write(folder / "p.jsonl", [chat, BAKERY])).stdout)
        assert lines[0]["prompt"] == chat and lines[-1]["prompt"] == BAKERY
        assert lines[0]["log_z"] != lines[-1]["log_z"]
        # A plain text is a user message; the bounds are the law's, whatever the seed.
        alone = records(cli(*arguments, "--file", write(folder / "q.jsonl", [[chat[1]]])).stdout)
        assert alone[0]["log_z"] == near_log(lines[-1]["log_z"])

    def test_a_chat_without_a_template_is_refused_at_once(self, cli: Cli, folder: Path) -> None:
        file = write(folder / "p.jsonl", [BAKERY, [{"role": "user", "content": "hi"}]])
        result = cli("generate", "--regex", "[0-9]", "--file", file)
        assert result.exit_code == 2 and "Prompt 1" in result.stderr and "chat template" in result.stderr


class TestGoingOn:
    ARGUMENTS = (
        "generate",
        "--type",
        "formats:Answer",
        "--n",
        2,
        "--seed",
        7,
        "--batch-size",
        2,
        "--output",
        "o.jsonl",
    )

    @pytest.fixture
    def prompts(self, folder: Path) -> Path:
        # One of them fails, in the middle of a batch.
        return write(folder / "p.jsonl", [PROMPTS[0], LONG, *PROMPTS[1:]])

    def test_a_file_goes_on_where_a_kill_cut_it(self, cli: Cli, folder: Path, prompts: Path) -> None:
        assert cli(*self.ARGUMENTS, "--file", prompts).exit_code == 1
        output = folder / "o.jsonl"
        whole = output.read_bytes()
        ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
        assert len(ends) == 1 + 5 * 2 + 1
        cuts = [
            0,
            5,
            ends[0] - 1,
            ends[0],
            ends[0] + 1,
            ends[1],
            ends[1] + 30,
            ends[3] - 1,
            ends[5],
            ends[8] + 9,
            len(whole) - 1,
        ]
        for cut in cuts:
            output.write_bytes(whole[:cut])
            assert cli(*self.ARGUMENTS, "--file", prompts).exit_code == 1
            assert output.read_bytes() == whole, cut

    def test_a_finished_file_costs_nothing_more(
        self, cli: Cli, folder: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cli(*self.ARGUMENTS, "--file", prompts)
        whole = (folder / "o.jsonl").read_bytes()
        monkeypatch.setattr(Batches, "_draw", lambda *_: pytest.fail("drew again"))
        result = cli(*self.ARGUMENTS, "--file", prompts)
        assert result.exit_code == 1 and "1 of 6 prompts (1 earlier)" in result.stderr
        assert (folder / "o.jsonl").read_bytes() == whole

    def test_ctrl_c_leaves_whole_lines_and_a_hint(
        self, cli: Cli, folder: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cli(*self.ARGUMENTS, "--file", prompts)
        whole = (folder / "o.jsonl").read_bytes()
        draw, calls = Batches._draw, Counter[str]()

        def interrupted(self: Batches, rows: Any) -> Any:
            calls["draw"] += 1
            if calls["draw"] == 3:
                raise KeyboardInterrupt
            return draw(self, rows)

        monkeypatch.setattr(Batches, "_draw", interrupted)
        result = cli(*self.ARGUMENTS, "--overwrite", "--file", prompts)
        assert result.exit_code == 130
        assert "after 4 of 6 prompts. The same command, without --overwrite, goes on from there." in result.stderr
        kept = (folder / "o.jsonl").read_bytes()
        assert kept.endswith(b"\n") and whole.startswith(kept) and len(kept) < len(whole)
        cli(*self.ARGUMENTS, "--file", prompts)
        assert (folder / "o.jsonl").read_bytes() == whole

    def test_more_prompts_may_follow(self, cli: Cli, folder: Path) -> None:
        arguments = (*self.ARGUMENTS, "--file")
        assert cli(*arguments, write(folder / "p.jsonl", PROMPTS[:2])).exit_code == 0
        begun = (folder / "o.jsonl").read_bytes()
        assert cli(*arguments, write(folder / "p.jsonl", PROMPTS[:4])).exit_code == 0
        grown = (folder / "o.jsonl").read_bytes()
        assert grown.startswith(begun)
        cli(*arguments, folder / "p.jsonl", "--overwrite")
        assert (folder / "o.jsonl").read_bytes() == grown

    def test_a_smaller_batch_may_follow(self, cli: Cli, folder: Path) -> None:
        arguments = ("--file", write(folder / "p.jsonl", PROMPTS[:4]), "--batch-size")
        cli(*self.ARGUMENTS, *arguments, 2)
        output = folder / "o.jsonl"
        kept = b"".join(output.read_bytes().splitlines(keepends=True)[: 1 + 3 * 2])
        output.write_bytes(kept)
        assert cli(*self.ARGUMENTS, *arguments, 3).exit_code == 0
        assert output.read_bytes().startswith(kept)
        assert [line["prompt_index"] for line in records(output.read_text(encoding="utf-8"))] == [
            0,
            0,
            1,
            1,
            2,
            2,
            3,
            3,
        ]

    @pytest.mark.parametrize("phi", ["exact", "local"])
    def test_the_draws_of_a_prompt_are_those_of_any_batch(self, phi: str, cli: Cli, folder: Path) -> None:
        found = []
        for number, size in enumerate((1, 2, 5)):
            sent = ("--regex", "[a-z]{4,6}", "--phi", phi, "--n", 8, "--seed", 7, "--batch-size", size)
            assert cli("generate", *sent, "--output", f"{number}.jsonl", *PROMPTS).exit_code == 0
            lines = records((folder / f"{number}.jsonl").read_text(encoding="utf-8"))
            found.append([(line["prompt"], line["text"]) for line in lines])
        assert found[0] == found[1] == found[2]
        # Prompts have streams of their own: equal ones are drawn apart.
        twice = records(cli("generate", *sent, ARIA, ARIA).stdout)
        assert [line["text"] for line in twice[:8]] != [line["text"] for line in twice[8:]]

    def test_a_run_without_a_seed_goes_on_with_its_own(self, cli: Cli, folder: Path) -> None:
        arguments = ("generate", "--regex", "[0-9]{5}", "--output", "o.jsonl", "--batch-size", 1, *PROMPTS[:3])
        cli(*arguments)
        whole = (folder / "o.jsonl").read_bytes()
        (folder / "o.jsonl").write_bytes(whole[: len(whole) // 2])
        cli(*arguments)
        assert (folder / "o.jsonl").read_bytes() == whole
        cli(*arguments, "--overwrite")
        assert (folder / "o.jsonl").read_bytes() != whole

    def test_batches_have_streams_of_their_own(self, cli: Cli) -> None:
        same = [BAKERY] * 6
        lines = records(
            cli("generate", "--regex", "[0-9]{6}", "--phi", "local", "--seed", 1, "--batch-size", 2, *same).stdout
        )
        assert len({line["text"] for line in lines}) == 6


class TestRefusedFiles:
    ARGUMENTS = {"--regex": "[0-9]", "--n": "1", "--phi": "exact", "--seed": "1", "--output": "o.jsonl"}

    def run(self, cli: Cli, prompts: list[str] = [BAKERY], **changed: object) -> Any:  # noqa: B006
        options = {**self.ARGUMENTS, **{f"--{name.replace('_', '-')}": value for name, value in changed.items()}}
        return cli("generate", *(part for option in options.items() for part in option), *prompts)

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"regex": "[0-8]"}, ["the output type ('--regex [0-9]' in the file, '--regex [0-8]' in this command)"]),
            ({"n": 2}, ["n (1 in the file, 2 in this command)"]),
            ({"phi": "local"}, ["phi ('exact' in the file, 'local' in this command)"]),
            ({"seed": 2}, ["seed (1 in the file, 2"]),
            ({"temperature": 0.5}, ["temperature (1.0 in the file, 0.5"]),
            ({"tokenization": "canonical"}, ["tokenization ('any' in the file, 'canonical'"]),
            ({"top_k": 3, "min_p": 0.1}, ["top_k (None in the file, 3", "min_p (None"]),
            ({"dtype": "bfloat16"}, ["the type of the weights ('float32' in the file, 'bfloat16' in this"]),
        ],
    )
    def test_a_file_of_another_run_says_which_part_differs(
        self, changed: dict[str, object], words: list[str], cli: Cli, folder: Path
    ) -> None:
        assert self.run(cli).exit_code == 0
        before = (folder / "o.jsonl").read_bytes()
        result = self.run(cli, **changed)
        assert result.exit_code == 2 and "--overwrite" in result.stderr and result.stderr.count("\n") == 1
        assert all(word in result.stderr for word in words)
        assert (folder / "o.jsonl").read_bytes() == before

    def test_a_file_of_another_model_is_refused(self, cli: Cli, folder: Path, other_model: Path) -> None:
        self.run(cli)
        result = self.run(cli, model=other_model)
        assert result.exit_code == 2 and "the weights or the configuration of the model ('bundled'" in result.stderr
        assert "chat template" in result.stderr

    def test_the_same_weights_in_another_folder_are_the_same_model(self, cli: Cli, folder: Path) -> None:
        model, tokenizer = bundled.load()
        model.save_pretrained(folder / "copy")
        tokenizer.save_pretrained(folder / "copy")
        self.run(cli)
        result = self.run(cli, model=folder / "copy")
        assert result.exit_code == 0, result.stderr

    @pytest.mark.parametrize("prompts", [[MUSEUM, MUSEUM], [BAKERY], [MUSEUM]])
    def test_a_file_of_other_prompts_is_refused(self, prompts: list[str], cli: Cli) -> None:
        self.run(cli, [BAKERY, MUSEUM])
        result = self.run(cli, prompts)
        assert result.exit_code == 2 and "goes on with the same prompts" in result.stderr

    @pytest.mark.parametrize("content", [b"hello\n", b"hello", b'{"a": 1}\n', b"\xff\x00", b"[1]\n"])
    def test_a_foreign_file_is_never_touched(self, content: bytes, cli: Cli, folder: Path) -> None:
        (folder / "o.jsonl").write_bytes(content)
        result = self.run(cli)
        assert result.exit_code == 2 and "was not written by outlines-phi generate" in result.stderr
        assert (folder / "o.jsonl").read_bytes() == content
        assert self.run(cli, ["--overwrite", BAKERY]).exit_code == 0
        assert len(records((folder / "o.jsonl").read_text(encoding="utf-8"))) == 1

    def test_a_file_of_another_format_version_is_refused(self, cli: Cli, folder: Path) -> None:
        self.run(cli)
        text = (folder / "o.jsonl").read_text(encoding="utf-8")
        (folder / "o.jsonl").write_text(text.replace('"version": 1', '"version": 2'), encoding="utf-8")
        assert "version 2 of the format" in self.run(cli).stderr

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda lines: [lines[0], "{broken", *lines[2:]], "Line 2 of o.jsonl is not valid JSON"),
            (lambda lines: [lines[0], *lines[2:]], "Line 2 of o.jsonl has draw 0 of prompt 1"),
            (lambda lines: [*lines[:2], lines[1], *lines[2:]], "Line 3 of o.jsonl has draw 0 of prompt 0"),
            (lambda lines: [lines[0], '{"x": 1}', *lines[1:]], "Line 2 of o.jsonl is neither a draw nor an error"),
        ],
    )
    def test_a_damaged_file_is_refused_with_the_line(self, damage: Any, words: str, cli: Cli, folder: Path) -> None:
        self.run(cli, [BAKERY, MUSEUM])
        lines = (folder / "o.jsonl").read_text(encoding="utf-8").splitlines()
        (folder / "o.jsonl").write_text("\n".join(damage(lines)) + "\n", encoding="utf-8")
        result = self.run(cli, [BAKERY, MUSEUM])
        assert result.exit_code == 2 and words in result.stderr

    def test_two_runs_do_not_write_one_file(self, cli: Cli, folder: Path) -> None:
        self.run(cli)
        before = (folder / "o.jsonl").read_bytes()
        end = (folder / "o.jsonl").stat().st_size
        with journal.Lines(folder / "o.jsonl", []).writing({}, end):
            result = self.run(cli, [BAKERY, MUSEUM])
            assert result.exit_code == 2 and "is being written by another run" in result.stderr
        assert (folder / "o.jsonl").read_bytes() == before
        assert self.run(cli, [BAKERY, MUSEUM]).exit_code == 0


class TestFailures:
    def test_a_prompt_that_fails_does_not_stop_the_others(self, cli: Cli, folder: Path) -> None:
        file = write(folder / "p.jsonl", [BAKERY, LONG, "", MUSEUM])
        result = cli("generate", "--type", "formats:Answer", "--file", file, "--output", "o.jsonl", "--seed", 1)
        lines = records((folder / "o.jsonl").read_text(encoding="utf-8"))
        assert [line["record"] for line in lines] == ["draw", "error", "error", "draw"]
        assert lines[1]["error"] == "ModelError" and "Shorten the prompt" in lines[1]["message"]
        assert lines[2]["error"] == "UnsupportedError" and "no tokens" in lines[2]["message"]
        assert result.exit_code == 1
        assert "2 of 4 prompts (1 ModelError, 1 UnsupportedError)" in result.stderr

    def test_a_prompt_for_which_truncation_empties_the_format(self, cli: Cli, folder: Path) -> None:
        """Known only while drawing, and then for the whole batch at once."""
        file = write(folder / "p.jsonl", [BAKERY, ARIA, MUSEUM, BAKERY])
        arguments = ("--type", "formats:Answer", "--phi", "exact", "--top-k", 8, "--seed", 1)
        result = cli("generate", *arguments, "--file", file)
        lines = records(result.stdout)
        assert [line["record"] for line in lines] == ["draw", "error", "draw", "draw"]
        assert lines[1]["error"] == "EmptyLanguageError" and lines[1]["message"].startswith("no member of the language")
        assert result.exit_code == 1

    def test_draws_at_a_certified_distance_say_it(self, cli: Cli, folder: Path) -> None:
        story, target = (
            ["--regex", "[a-z ]{1,20}[.]", "--n", 5, "--seed", 1, "Story: Aria is a "],
            folder / "draws.jsonl",
        )
        asked = ["generate", *story, "--tolerance", 0.3, "--max-new-tokens", 20, "--output", target]
        result = cli(*asked, "--confidence", 0.9)
        assert result.exit_code == 0
        header, *lines = map(json.loads, target.read_text(encoding="utf-8").splitlines())
        assert (header["phi"], header["tolerance"], header["confidence"]) == ("exact", 0.3, 0.9)
        assert {line["guarantee"] for line in lines} == {"confident"} and {line["confidence"] for line in lines} == {
            0.9
        }
        assert 0 < lines[0]["total_variation"] <= 0.3
        again = cli(*asked)
        assert again.exit_code == 2 and "differs in confidence (0.9 in the file, None in this command)" in again.stderr

    def test_a_prompt_without_a_certificate_says_what_was_reached(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hasty = partial(ExactPhi, effort=Effort(tokens=300))
        monkeypatch.setattr(command_options, "ExactPhi", hasty)
        monkeypatch.setattr(hasty, "name", ExactPhi.name, raising=False)
        story = ["--regex", "[a-z ]{1,20}[.]", "--seed", 1, "--max-new-tokens", 20, "Story: Aria is a "]
        result = cli("generate", *story, "--tolerance", 0.01, "--confidence", 0.9)
        assert result.exit_code == 1
        (line,) = records(result.stdout)
        assert line["error"] == "BudgetError" and "at 0.9 confidence, short of --tolerance" in line["message"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--tolerance", 0.1, "--phi", "local"], "given with --phi local"),
            (["--tolerance", 0.1, "--particles", 5], "was given with phi='exact'"),
            (["--confidence", 0.9], "tolerance=0, which asks for exact draws"),
            (["--tolerance", 2], "expected a number in"),
            (["--tolerance", 0.1, "--confidence", 95], "between 0 and 1"),
        ],
    )
    def test_certificates_that_make_no_sense_are_refused(self, options: list[Any], message: str, cli: Cli) -> None:
        result = cli("generate", "--regex", "yes|no", BAKERY, *options)
        assert result.exit_code == 2 and message in " ".join(result.stderr.split())

    def test_what_the_effort_reached_is_kept(self, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hasty = ExactPhi(effort=Effort(attempts=3, tokens=10**6), width=1)
        monkeypatch.setattr(Given, "call", lambda *_: Call(hasty, None, None, {}))
        file = write(folder / "p.jsonl", [ARIA, "Story: Aria is a brave elf ranger. "])
        arguments = (
            "generate",
            "--type",
            "formats:Character",
            "--n",
            20,
            "--file",
            file,
            "--output",
            "o.jsonl",
            "--seed",
            8,
        )
        result = cli(*arguments)
        lines = records((folder / "o.jsonl").read_text(encoding="utf-8"))
        errors = [line for line in lines if line["record"] == "error"]
        assert {line["prompt_index"] for line in lines} == {0, 1} and len(errors) == 1
        assert result.exit_code == 1 and errors and all(line["error"] == BudgetError.__name__ for line in errors)
        for line in errors:
            drawn = [one for one in lines if one["prompt_index"] == line["prompt_index"] and one["record"] == "draw"]
            assert len(drawn) < 20 and f"with {len(drawn)} of 20 exact draws" in line["message"]
            assert all(one["guarantee"] == "exact" for one in drawn)
        whole = (folder / "o.jsonl").read_bytes()
        (folder / "o.jsonl").write_bytes(whole[: whole.rindex(b'"record": "error"')])
        cli(*arguments)
        assert (folder / "o.jsonl").read_bytes() == whole

    def test_weighted_draws_of_auto_are_summed_up_in_one_line(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Given, "call", lambda *_: Call(AutoPhi(share=0), None, None, {}))
        result = cli("generate", "--regex", "(yes|no) [a-z]{4}", "--n", 2, "--batch-size", 1, "--seed", 1, *PROMPTS)
        assert result.exit_code == 0
        assert result.stderr.count("Warning:") == 2 and "10 of 10 draws are weighted" in result.stderr
        assert "The model hardly ever writes this" in result.stderr
        assert {line["guarantee"] for line in records(result.stdout)} == {"weighted"}


REFUSED = [
    (["--regex", "[0-9]"], "no prompts"),
    (["--regex", "[0-9]", "--file", "empty.txt"], "--file empty.txt is empty"),
    (["--regex", "[0-9]", "--file", "gap.txt"], "Line 2 of gap.txt is empty"),
    (["--regex", "[0-9]", "--file", "none.txt"], "--file none.txt cannot be read"),
    (["--regex", "[0-9]", "--file", "latin.txt"], "is not UTF-8"),
    (["--regex", "[0-9]", "--file", "broken.jsonl"], "Line 2 of broken.jsonl cannot be read as JSON"),
    (["--regex", "[0-9]", "--file", "wrong.jsonl"], "Line 1 of wrong.jsonl has no prompt"),
    (["--regex", "[0-9]", "--file", "chat.jsonl"], "Line 1 of chat.jsonl has no prompt"),
    (["--regex", "[0-9]", "--file", "gap.txt", "more"], "Give one of the two"),
    (["x"], "No output type"),
    (["--regex", "[0-9]", "--type", "builtins:int", "x"], "--type and --regex were given"),
    (["--regex", "[0-9]", "--grammar", "json", "x"], "--regex and --grammar were given"),
    (["--grammar", "jsn", "x"], "did you mean 'json'"),
    (["--regex", "a", "--phi", "rollout", "x"], "give 'learned'"),
    (["--grammar", "none.lark", "x"], "--grammar none.lark cannot be read"),
    (["--regex", "[0-9", "x"], "^"),
    (["--schema", "broken.json", "x"], "^"),
    (["--schema", "none.json", "x"], "--schema none.json cannot be read"),
    (["--schema", "wrong.json", "x"], "at #/type of the JSON schema. It holds 'nonsense'"),
    (["--type", "formats", "x"], "Give module:Class"),
    (["--type", "formats.py:Answer.", "x"], "Give module:Class"),
    (["--type", "stops:X", "x"], "--type stops:X: the module stops cannot be imported: GeneratorExit: of its own"),
    (["--type", "leaves:X", "x"], "--type leaves:X: the module leaves cannot be imported: SystemExit: 3"),
    (
        ["--regex", "[0-9]", "--file", "digits.jsonl"],
        "Line 2 of digits.jsonl cannot be read as JSON, Exceeds the limit",
    ),
    (
        ["--type", "nothere:X", "x"],
        "--type nothere:X: the module nothere cannot be imported: ModuleNotFoundError: No module named 'nothere'",
    ),
    (["--type", "raises:Answer", "x"], "ZeroDivisionError"),
    (["--type", "formats:Charcter", "x"], "Is Character"),
    (["--type", "formats:pattern", "x"], "outlines.types.regex"),
    (["--regex", "[0-9]", "--phi", "no", "x"], "expected one of auto, exact"),
    (["--regex", "[0-9]", "--temperature", "nan", "x"], "temperature=nan"),
    (["--regex", "[0-9]", "--temperature", "0", "x"], "temperature=0.0"),
    (["--regex", "[0-9]", "--top-p", "2", "x"], "top_p=2.0"),
    (["--regex", "[0-9]", "--seed", "-1", "x"], "seed=-1"),
    (["--regex", "[0-9]{20}", "--max-new-tokens", "2", "x"], "max_new_tokens=2 is too small"),
    (["--regex", "[0-9]", "--model", "./nothere", "x"], "there is no such folder"),
    (["--regex", "[0-9]", "--model", ".", "x"], "--model . cannot be loaded"),
    (["--regex", "[0-9]", "--device", "nothing", "x"], "--device nothing cannot be used"),
    (["--regex", "[0-9]", "--output", "no/o.jsonl", "x"], "there is no folder no"),
    (["--regex", "[0-9]", "--n", "99999999999", "x"], "draws of a prompt at most fit into"),
    (["--regex", "[0-9]", "--overwrite", "x"], "--overwrite was given without --output"),
    (["--regex", "[0-9]", "--output", ".", "x"], "--output . is not a file"),
    (["--regex", "[0-9]", "--output", "/dev/null", "x"], "--output /dev/null is not a file"),
    (
        ["--regex", "[0-9]", "--tokenization", "some", "x"],
        "--tokenization some was given; expected one of any, canonical",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "words"), REFUSED, ids=[f"{' '.join(arguments)}"[:60] for arguments, _ in REFUSED]
)
def test_bad_input_is_one_clear_line(arguments: list[str], words: str, cli: Cli, folder: Path) -> None:
    (folder / "empty.txt").write_text("\n\n")
    (folder / "gap.txt").write_text("one\n\ntwo\n")
    (folder / "latin.txt").write_bytes("café\n".encode("latin-1"))
    (folder / "broken.jsonl").write_text('{"prompt": "x"}\n{"prompt": \n')
    (folder / "wrong.jsonl").write_text('{"text": "x"}\n')
    (folder / "chat.jsonl").write_text('{"prompt": [{"role": "user"}]}\n')
    (folder / "broken.json").write_text('{"type": "object", }')
    (folder / "wrong.json").write_text('{"type": "nonsense"}')
    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "leaves.py").write_text("import sys\n\nsys.exit(3)\n")
    (folder / "stops.py").write_text("raise GeneratorExit('of its own')\n")
    (folder / "digits.jsonl").write_text(f'{{"prompt": "x"}}\n{{"prompt": "y", "id": {"9" * 10_000}}}\n')
    before = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")
    result = cli("generate", *arguments)
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr and "Traceback" not in result.stderr and result.stdout == ""
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == (4 if words == "^" else 1)
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before


def test_debug_shows_the_traceback(cli: Cli) -> None:
    assert isinstance(cli("generate", "--regex", "[0-9]", "--debug").exception, UnsupportedError)


def test_a_disk_that_fails_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "line", full)
    result = cli("generate", "--regex", "[0-9]", "--output", "o.jsonl", BAKERY)
    assert result.exit_code == 1 and "No space left on device" in result.stderr and "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def law() -> dict[str, float]:
    """The computed law of the answers."""
    found = Generator(from_transformers(*bundled.load()), Literal["yes", "no"]).probabilities(BAKERY, tolerance=0)
    return {value: found[value].p for value in found}


def test_memory_that_runs_out_is_one_line_and_the_file_goes_on(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    arguments = ("generate", "--regex", "[0-9]", "--seed", 1, "--output", "o.jsonl", BAKERY)
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "_draw", full)
        result = cli(*arguments)
    assert result.exit_code == 1 and "Give a smaller --batch-size" in result.stderr and result.stderr.count("\n") == 1
    assert cli(*arguments).exit_code == 0
    assert len(records((folder / "o.jsonl").read_text(encoding="utf-8"))) == 1


def test_one_of_a_kind_is_singular(cli: Cli, folder: Path) -> None:
    arguments = ("generate", "--type", "formats:Answer", "--phi", "local", "--seed", 1, "--output", "o.jsonl", BAKERY)
    assert cli(*arguments).stderr.startswith("1 draw written; o.jsonl has 1 of 1 prompt. log Phi is -")
    assert "o.jsonl has 1 of 1 prompt; going on from there." in cli(*arguments).stderr


class TestLaw:
    """The pooled draws of a file have the computed law of the values; those of masking have not."""

    @staticmethod
    def draws(cli: Cli, phi: str) -> list[dict[str, Any]]:
        arguments = ("--type", "formats:Answer", "--n", 100, "--batch-size", 3, "--seed", 11, "--phi", phi)
        return records(cli("generate", *arguments, *[BAKERY] * 10).stdout)

    @staticmethod
    def p_value(texts: list[str], law: dict[str, float]) -> float:
        test = ChiSquare.of(texts, law)
        return 0.0 if test.outside else float(stats.chi2.sf(test.statistic, test.cells - 1))

    def test_exact_draws_have_it(self, cli: Cli, law: dict[str, float]) -> None:
        assert self.p_value([line["value"] for line in self.draws(cli, "exact")], law) > 0.01

    def test_masked_draws_have_it_by_weight_only(self, cli: Cli, law: dict[str, float]) -> None:
        lines = self.draws(cli, "local")
        texts = [line["value"] for line in lines]
        assert self.p_value(texts, law) < 1e-6
        weighted = frequencies(texts, [math.exp(line["log_w"]) for line in lines])
        assert total_variation(weighted, law) < 0.05 < 0.2 < total_variation(frequencies(texts), law)
