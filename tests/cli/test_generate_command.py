"""``outlines-phi generate`` on the bundled model."""

import json
import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from outlines_phi import AutoPhi, BudgetError, Effort, ExactPhi, Generator, UnsupportedError, from_transformers
from outlines_phi.cli import command_options, journal
from outlines_phi.cli.batches import Batches
from outlines_phi.cli.command_options import Given
from tests.inner import Call, bundled, frequencies, total_variation
from tests.languages import p_value
from tests.precision import near_log

from .conftest import ARIA, BAKERY, LONG, MUSEUM, Cli, records, refused, saved, write

PROMPTS = [BAKERY, MUSEUM, "Question: is the café open? Answer: ", "Question: is it? Answer: ", "Answer: "]


class TestLines:
    def test_a_line_per_draw_says_what_it_is(self, cli: Cli) -> None:
        result = cli("generate --type formats:Character --n 3 --seed 1 --token-ids --phi exact", ARIA, ARIA)
        assert result.exit_code == 0 and result.stderr == ""
        lines, vocabulary = records(result.stdout), from_transformers(*bundled.load()).lm.vocabulary
        places = [(line["prompt_index"], line["draw_index"]) for line in lines]
        assert places == [(i, j) for i in (0, 1) for j in range(3)]
        for line in lines:
            assert line["record"] == "draw" and line["prompt"] == ARIA and line["guarantee"] == "exact"
            assert line["value"] == json.loads(line["text"])
            assert vocabulary.decode(line["token_ids"]).decode() == line["text"]
            low, high = line["log_z_bounds"]
            assert low <= line["log_z"] <= high and line["log_p"] < high
            assert [line["weight"], line["ess"], line["prompt_ess"]] == pytest.approx([1 / 3, 1, 3])

    def test_accounts_of_tokens_are_in_the_lines(self, cli: Cli) -> None:
        sent = "generate --type formats:Answer --n 3 --seed 1 --phi {} --tokens --top 2"
        for phi in ("local", "exact"):
            for line in records(cli(sent.format(phi), BAKERY).stdout):
                accounts = line["tokens"]
                assert "".join(account["text"] for account in accounts) == line["text"]
                assert [bytes(account["bytes"]).decode() for account in accounts] == [each["text"] for each in accounts]
                assert sum(account["log_p"] for account in accounts) == pytest.approx(line["log_p"])
                assert all(len(account["top"]) == 2 for account in accounts)
                keys = {"id", "text", "bytes", "log_p", "allowed"}
                assert {frozenset(each) for account in accounts for each in account["top"]} == {frozenset(keys)}
                proposed = [account["log_q"] for account in accounts]
                assert proposed == [None] * len(proposed) if phi == "exact" else None not in proposed

    def test_thoughts_are_in_the_lines(self, cli: Cli) -> None:
        for line in records(
            cli("generate --type formats:Thought --n 3 --seed 1 --phi exact --token-ids", BAKERY).stdout
        ):
            thought = line["thought"]
            assert line["text"] == line["value"] and line["value"] in ("yes", "no") and line["guarantee"] == "fieldwise"
            assert thought["answer"] == "exact" and thought["log_w"] == line["log_w"] <= 0
            assert (
                ". " not in thought["text"] and line["token_ids"][: len(thought["token_ids"])] == thought["token_ids"]
            )

    def test_canonical_draws_are_spelled_as_the_tokenizer_spells_them(self, cli: Cli) -> None:
        sent = "generate --type formats:Character --n 10 --seed 1 --token-ids --tokenization canonical"
        for line in records(cli(sent, ARIA).stdout):
            assert line["token_ids"][:-1] == bundled.load()[1].encode(line["text"])

    def test_masked_draws_have_weights(self, cli: Cli) -> None:
        lines = records(cli("generate --type formats:Character --n 50 --phi local --seed 2", ARIA).stdout)
        w = [math.exp(line["log_w"]) for line in lines]
        assert {line["guarantee"] for line in lines} == {"weighted"}
        assert [line["weight"] for line in lines] == pytest.approx([x / sum(w) for x in w])
        assert lines[0]["prompt_ess"] == pytest.approx(sum(w) ** 2 / sum(x * x for x in w))
        assert lines[0]["log_z"] == pytest.approx(math.log(sum(w) / 50))

    def test_a_trajectory_without_a_token_is_a_line_of_weight_0(self, cli: Cli) -> None:
        result = cli("generate --n 20 --phi local --top-k 3 --seed 0 --regex", "(yes|no) 9", BAKERY)
        lines = records(result.stdout)
        failed = [line for line in lines if line["text"] is None]
        assert len(lines) == 20 and failed and all(line["log_w"] is None and line["weight"] == 0 for line in failed)
        assert f"{len(failed)} trajectories met a step" in result.stderr

    @pytest.mark.parametrize(
        ("option", "allowed"),
        [
            ("--type formats:Answer", ["yes", "no"]),
            ("--type formats:Size", ["small", "large"]),
            ("--type formats:Outer.Inner", ["a", "b"]),
            ("--type formats:book", [{"room": room, "nights": n} for room in ("sea", "garden") for n in (1, 2)]),
            ("--type builtins:bool", [True, False]),
            ("--regex [0-9]", list("0123456789")),
            ("--schema door.json", [{"open": True}, {"open": False}]),
        ],
    )
    def test_values_are_those_of_the_type(self, option: str, allowed: list[Any], cli: Cli, folder: Path) -> None:
        door = {"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}
        (folder / "door.json").write_text(json.dumps(door | {"additionalProperties": False}), encoding="utf-8")
        result = cli(f"generate {option} --n 4", BAKERY)
        assert result.exit_code == 0, result.stderr
        assert all(line["value"] in allowed for line in records(result.stdout))

    @pytest.mark.parametrize("phi", ["exact", "local"])
    def test_what_is_written_to_a_file_is_told_with_log_phi(self, phi: str, cli: Cli, folder: Path) -> None:
        result = cli(f"generate --regex yes|no --phi {phi} --n 5 --seed 1 --output o.jsonl", BAKERY)
        told = re.findall(r"log Phi is (-\d+\.\d+)\.\n$", result.stderr)
        assert list(map(float, told)) == pytest.approx([saved(folder / "o.jsonl")[-1]["log_z"]], rel=1e-3)

    @pytest.mark.filterwarnings("always")
    def test_values_have_the_form_of_json_and_one_that_the_type_refuses_stays_a_draw(self, cli: Cli) -> None:
        for line in records(cli("generate --type formats:Day --n 5 --phi local --seed 1", "Date: ").stdout):
            assert line["value"] is None and "refuses" in line["value_error"] or len(line["value"]) == 10
        result = cli("generate --type formats:Order --max-new-tokens 40 --seed 1", "Order: ")
        (line,) = records(result.stdout)
        assert re.search(r"^Warning: .*Order\.check checks", result.stderr, re.M) and "warn" not in result.stderr
        assert result.exit_code == 0 and line["value"] is None and "refuses" in line["value_error"]

    def test_a_grammar_from_a_file_or_by_its_name(self, cli: Cli, folder: Path) -> None:
        (folder / "letters.lark").write_text('start: "a" | "b" start', encoding="utf-8")
        (folder / "b.gbnf").write_text('root ::= "b" | "(" root ")"', encoding="utf-8")
        for name, pattern in (("letters.lark", "b*a"), ("b.gbnf", r"\(*b\)*"), ("dyck-1", r"[()]*")):
            result = cli(f"generate --grammar {name} --max-new-tokens 6 --phi local", BAKERY)
            header, line = map(json.loads, result.stdout.splitlines())
            assert header["output_type"]["name"] == f"--grammar {name}" and re.fullmatch(pattern, line["text"])
        (folder / "letters.lark").write_text('start: "a" b', encoding="utf-8")
        refused(cli("generate --grammar letters.lark", BAKERY), "--grammar letters.lark: rule 'b' is not defined")

    def test_the_first_line_says_what_the_draws_depend_on(self, cli: Cli) -> None:
        header = json.loads(cli("generate --regex [0-9] --temperature 0.7 --seed 5", BAKERY).stdout.split("\n")[0])
        assert header["settings"]["temperature"] == 0.7 and header["seed"] == 5 and header["phi"] == "auto"
        assert header["output_type"]["name"] == "--regex [0-9]"

    def test_odd_prompts_stay_what_they_are(self, cli: Cli, folder: Path) -> None:
        odd = ["a\u2028b\u0085c", "🦊 \x00", "\ud800", 'quote " and \\']
        sent = "generate --regex [0-9] --output o.jsonl --file"
        assert cli(sent, write(folder / "p.jsonl", odd)).exit_code == 1  # half a surrogate pair is no text
        lines = records((folder / "o.jsonl").read_text(encoding="utf-8").replace("\u2028", " ").replace("\u0085", " "))
        assert [line["record"] for line in lines] == ["draw", "draw", "error", "draw"]
        assert lines[2]["prompt"] == "\ud800" and "valid Unicode" in lines[2]["message"]


@pytest.mark.parametrize("given", ["--file p.txt", "-", "--file -"])
def test_a_text_file_or_a_pipe_has_one_prompt_per_line(given: str, cli: Cli, folder: Path) -> None:
    (folder / "p.txt").write_text(f"{BAKERY}\r\n{MUSEUM}\n\n", encoding="utf-8")
    result = cli(f"generate --regex [0-9] {given}", stdin=f"{BAKERY}\n{MUSEUM}\n")
    assert [line["prompt"] for line in records(result.stdout)] == [BAKERY, MUSEUM]


def test_a_chat_goes_through_the_template(cli: Cli, folder: Path, other_model: Path) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": BAKERY}]
    sent = f"generate --type formats:Answer --n 40 --seed 3 --phi exact --model {other_model} --file"
    lines = records(cli(sent, write(folder / "p.jsonl", [chat, BAKERY])).stdout)
    assert lines[0]["prompt"] == chat and lines[-1]["prompt"] == BAKERY
    assert lines[0]["log_z"] != lines[-1]["log_z"]
    # A plain text is a user message; the bounds are the law's, whatever the seed.
    assert records(cli(sent, write(folder / "q.jsonl", [[chat[1]]])).stdout)[0]["log_z"] == near_log(lines[-1]["log_z"])


def test_a_chat_without_a_template_is_refused_at_once(cli: Cli, folder: Path) -> None:
    file = write(folder / "p.jsonl", [BAKERY, [{"role": "user", "content": "hi"}]])
    refused(cli("generate --regex [0-9] --file", file), "chat template, and Prompt 1")


class TestGoingOn:
    SENT = "generate --type formats:Answer --n 2 --seed 7 --batch-size 2 --output o.jsonl"

    @pytest.fixture
    def again(self, cli: Cli, folder: Path) -> Any:
        """Draw once more; the second of six prompts fails, in the middle of a batch."""
        prompts = write(folder / "p.jsonl", [PROMPTS[0], LONG, *PROMPTS[1:]])
        return lambda *more: cli(self.SENT, "--file", prompts, *more)

    def test_a_file_goes_on_where_a_kill_cut_it(self, again: Any, folder: Path) -> None:
        assert again().exit_code == 1
        output = folder / "o.jsonl"
        whole = output.read_bytes()
        ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
        assert len(ends) == 1 + 5 * 2 + 1
        early = (0, 5, ends[0] - 1, ends[0], ends[0] + 1, ends[1], ends[1] + 30)
        for cut in (*early, ends[3] - 1, ends[5], ends[8] + 9, len(whole) - 1):
            output.write_bytes(whole[:cut])
            assert again().exit_code == 1 and output.read_bytes() == whole, cut

    def test_a_finished_file_costs_nothing_more(
        self, again: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        again()
        whole = (folder / "o.jsonl").read_bytes()
        monkeypatch.setattr(Batches, "_draw", lambda *_: pytest.fail("drew again"))
        refused(again(), "1 of 6 prompts (1 earlier)", code=1)
        assert (folder / "o.jsonl").read_bytes() == whole

    def test_ctrl_c_leaves_whole_lines_and_a_hint(
        self, again: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        again()
        whole = (folder / "o.jsonl").read_bytes()
        draw, calls = Batches._draw, Counter[str]()

        def interrupted(self: Batches, rows: Any) -> Any:
            calls["draw"] += 1
            if calls["draw"] == 3:
                raise KeyboardInterrupt
            return draw(self, rows)

        monkeypatch.setattr(Batches, "_draw", interrupted)
        said = "after 4 of 6 prompts. The same command, without --overwrite, goes on from there."
        refused(again("--overwrite"), said, code=130)
        kept = (folder / "o.jsonl").read_bytes()
        assert kept.endswith(b"\n") and whole.startswith(kept) and len(kept) < len(whole)
        again()
        assert (folder / "o.jsonl").read_bytes() == whole

    def test_more_prompts_and_a_smaller_batch_may_follow(self, cli: Cli, folder: Path) -> None:
        output = folder / "o.jsonl"
        assert cli(self.SENT, "--file", write(folder / "p.jsonl", PROMPTS[:2])).exit_code == 0
        begun, file = output.read_bytes(), write(folder / "p.jsonl", PROMPTS[:4])
        assert cli(self.SENT, "--file", file).exit_code == 0
        grown = output.read_bytes()
        assert grown.startswith(begun)
        cli(self.SENT, "--file", file, "--overwrite")
        assert output.read_bytes() == grown
        kept = b"".join(grown.splitlines(keepends=True)[: 1 + 3 * 2])
        output.write_bytes(kept)
        assert cli(self.SENT, "--file", file, "--batch-size", 3).exit_code == 0
        assert output.read_bytes().startswith(kept)
        assert [line["prompt_index"] for line in saved(output)] == [0, 0, 1, 1, 2, 2, 3, 3]

    @pytest.mark.parametrize("phi", ["exact", "local"])
    def test_the_draws_of_a_prompt_are_those_of_any_batch(self, phi: str, cli: Cli, folder: Path) -> None:
        found = []
        for size in (1, 2, 5):
            sent = f"generate --regex [a-z]{{4,6}} --phi {phi} --n 8 --seed 7 --batch-size {size}"
            assert cli(f"{sent} --output {size}.jsonl", *PROMPTS).exit_code == 0
            found.append([(line["prompt"], line["text"]) for line in saved(folder / f"{size}.jsonl")])
        assert found[0] == found[1] == found[2]
        # Prompts have streams of their own: equal ones are drawn apart.
        twice = records(cli(sent, ARIA, ARIA).stdout)
        assert [line["text"] for line in twice[:8]] != [line["text"] for line in twice[8:]]

    def test_a_run_without_a_seed_goes_on_with_its_own(self, cli: Cli, folder: Path) -> None:
        sent, output = "generate --regex [0-9]{5} --output o.jsonl --batch-size 1", folder / "o.jsonl"
        cli(sent, *PROMPTS[:3])
        whole = output.read_bytes()
        output.write_bytes(whole[: len(whole) // 2])
        cli(sent, *PROMPTS[:3])
        assert output.read_bytes() == whole
        cli(f"{sent} --overwrite", *PROMPTS[:3])
        assert output.read_bytes() != whole

    def test_batches_have_streams_of_their_own(self, cli: Cli) -> None:
        lines = records(cli("generate --regex [0-9]{6} --phi local --seed 1 --batch-size 2", *[BAKERY] * 6).stdout)
        assert len({line["text"] for line in lines}) == 6


class TestRefusedFiles:
    def run(self, cli: Cli, *prompts: str, changed: str = "") -> Any:
        return cli(
            f"generate --regex [0-9] --n 1 --phi exact --seed 1 --output o.jsonl {changed}", *prompts or [BAKERY]
        )

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ("--regex [0-8]", ["the output type ('--regex [0-9]' in the file, '--regex [0-8]' in this command)"]),
            ("--n 2", ["n (1 in the file, 2 in this command)"]),
            ("--phi local", ["phi ('exact' in the file, 'local' in this command)"]),
            ("--seed 2", ["seed (1 in the file, 2"]),
            ("--temperature 0.5", ["temperature (1.0 in the file, 0.5"]),
            ("--tokenization canonical", ["tokenization ('any' in the file, 'canonical'"]),
            ("--top-k 3 --min-p 0.1", ["top_k (None in the file, 3", "min_p (None"]),
            ("--dtype bfloat16", ["the type of the weights ('float32' in the file, 'bfloat16' in this"]),
            ("--model {other}", ["the weights or the configuration of the model ('bundled'", "chat template"]),
        ],
    )
    def test_a_file_of_another_run_says_which_part_differs(
        self, changed: str, words: list[str], cli: Cli, folder: Path, other_model: Path
    ) -> None:
        assert self.run(cli).exit_code == 0
        before = (folder / "o.jsonl").read_bytes()
        result = self.run(cli, changed=changed.format(other=other_model))
        assert result.exit_code == 2 and "--overwrite" in result.stderr and result.stderr.count("\n") == 1
        assert all(word in result.stderr for word in words)
        assert (folder / "o.jsonl").read_bytes() == before

    def test_the_same_weights_in_another_folder_are_the_same_model(self, cli: Cli, folder: Path) -> None:
        for part in bundled.load():
            part.save_pretrained(folder / "copy")
        self.run(cli)
        result = self.run(cli, changed=f"--model {folder / 'copy'}")
        assert result.exit_code == 0, result.stderr

    @pytest.mark.parametrize("prompts", [[MUSEUM, MUSEUM], [BAKERY], [MUSEUM]])
    def test_a_file_of_other_prompts_is_refused(self, prompts: list[str], cli: Cli) -> None:
        self.run(cli, BAKERY, MUSEUM)
        refused(self.run(cli, *prompts), "goes on with the same prompts")

    @pytest.mark.parametrize("content", [b"hello\n", b"hello", b'{"a": 1}\n', b"\xff\x00", b"[1]\n"])
    def test_a_foreign_file_is_never_touched(self, content: bytes, cli: Cli, folder: Path) -> None:
        (folder / "o.jsonl").write_bytes(content)
        refused(self.run(cli), "was not written by outlines-phi generate")
        assert (folder / "o.jsonl").read_bytes() == content
        assert self.run(cli, "--overwrite", BAKERY).exit_code == 0
        assert len(saved(folder / "o.jsonl")) == 1

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda lines: [lines[0], "{broken", *lines[2:]], "Line 2 of o.jsonl is not valid JSON"),
            (lambda lines: [lines[0], *lines[2:]], "Line 2 of o.jsonl has draw 0 of prompt 1"),
            (lambda lines: [*lines[:2], lines[1], *lines[2:]], "Line 3 of o.jsonl has draw 0 of prompt 0"),
            (lambda lines: [lines[0], '{"x": 1}', *lines[1:]], "Line 2 of o.jsonl is neither a draw nor an error"),
            (lambda lines: [lines[0].replace('"version": 1', '"version": 2'), *lines[1:]], "version 2 of the format"),
        ],
    )
    def test_a_damaged_file_is_refused_with_the_line(self, damage: Any, words: str, cli: Cli, folder: Path) -> None:
        self.run(cli, BAKERY, MUSEUM)
        lines = (folder / "o.jsonl").read_text(encoding="utf-8").splitlines()
        (folder / "o.jsonl").write_text("\n".join(damage(lines)) + "\n", encoding="utf-8")
        refused(self.run(cli, BAKERY, MUSEUM), words)

    def test_two_runs_do_not_write_one_file(self, cli: Cli, folder: Path) -> None:
        self.run(cli)
        before = (folder / "o.jsonl").read_bytes()
        with journal.Lines(folder / "o.jsonl", []).writing({}, len(before)):
            refused(self.run(cli, BAKERY, MUSEUM), "is being written by another run")
        assert (folder / "o.jsonl").read_bytes() == before
        assert self.run(cli, BAKERY, MUSEUM).exit_code == 0


class TestFailures:
    def test_a_prompt_that_fails_does_not_stop_the_others(self, cli: Cli, folder: Path) -> None:
        file = write(folder / "p.jsonl", [BAKERY, LONG, "", MUSEUM])
        result = cli("generate --type formats:Answer --output o.jsonl --seed 1 --file", file)
        lines = saved(folder / "o.jsonl")
        assert [line.get("error") for line in lines] == [None, "ModelError", "UnsupportedError", None]
        assert "Shorten the prompt" in lines[1]["message"] and "no tokens" in lines[2]["message"]
        refused(result, "2 of 4 prompts (1 ModelError, 1 UnsupportedError)", code=1)

    def test_a_prompt_for_which_truncation_empties_the_format(self, cli: Cli) -> None:
        """Known only while drawing, and then for the whole batch at once."""
        result = cli("generate --type formats:Answer --phi exact --top-k 8 --seed 1", BAKERY, ARIA, MUSEUM, BAKERY)
        lines = records(result.stdout)
        assert [line.get("error") for line in lines] == [None, "EmptyLanguageError", None, None]
        assert result.exit_code == 1 and lines[1]["message"].startswith("no member of the language")

    STORY = ("--regex", "[a-z ]{1,20}[.]", "--seed", 1, "--max-new-tokens", 20, "Story: Aria is a ")

    def test_draws_at_a_certified_distance_say_it(self, cli: Cli, folder: Path) -> None:
        sent = "generate --n 5 --tolerance 0.3 --output draws.jsonl"
        assert cli(f"{sent} --confidence 0.9", *self.STORY).exit_code == 0
        header, *lines = map(json.loads, (folder / "draws.jsonl").read_text(encoding="utf-8").splitlines())
        assert (header["phi"], header["tolerance"], header["confidence"]) == ("exact", 0.3, 0.9)
        assert {(line["guarantee"], line["confidence"]) for line in lines} == {("confident", 0.9)}
        assert 0 < lines[0]["total_variation"] <= 0.3
        refused(cli(sent, *self.STORY), "differs in confidence (0.9 in the file, None in this command)")

    def test_a_prompt_without_a_certificate_says_what_was_reached(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hasty = partial(ExactPhi, effort=Effort(tokens=300))
        monkeypatch.setattr(command_options, "ExactPhi", hasty)
        monkeypatch.setattr(hasty, "name", ExactPhi.name, raising=False)
        result = cli("generate --tolerance 0.01 --confidence 0.9", *self.STORY)
        (line,) = records(result.stdout)
        assert result.exit_code == 1 and line["error"] == "BudgetError"
        assert "at 0.9 confidence, short of --tolerance" in line["message"]

    def test_what_the_effort_reached_is_kept(self, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hasty = ExactPhi(effort=Effort(attempts=3, tokens=10**6), width=1)
        monkeypatch.setattr(Given, "call", lambda *_: Call(hasty, None, None, {}))
        file, output = write(folder / "p.jsonl", [ARIA, "Story: Aria is a brave elf ranger. "]), folder / "o.jsonl"
        sent = "generate --type formats:Character --n 20 --output o.jsonl --seed 8 --file"
        result = cli(sent, file)
        lines = saved(output)
        (error,) = (line for line in lines if line["record"] == "error")
        drawn = [one for one in lines if one["prompt_index"] == error["prompt_index"] and one["record"] == "draw"]
        assert {line["prompt_index"] for line in lines} == {0, 1} and result.exit_code == 1
        assert error["error"] == BudgetError.__name__ and len(drawn) < 20
        assert f"with {len(drawn)} of 20 exact draws" in error["message"]
        assert all(one["guarantee"] == "exact" for one in drawn)
        whole = output.read_bytes()
        output.write_bytes(whole[: whole.rindex(b'"record": "error"')])
        cli(sent, file)
        assert output.read_bytes() == whole

    def test_weighted_draws_of_auto_are_summed_up_in_one_line(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Given, "call", lambda *_: Call(AutoPhi(share=0), None, None, {}))
        result = cli("generate --n 2 --batch-size 1 --seed 1 --regex", "(yes|no) [a-z]{4}", *PROMPTS)
        assert result.exit_code == 0
        assert result.stderr.count("Warning:") == 2 and "10 of 10 draws are weighted" in result.stderr
        assert "The model hardly ever writes this" in result.stderr
        assert {line["guarantee"] for line in records(result.stdout)} == {"weighted"}

    def test_debug_shows_the_traceback(self, cli: Cli) -> None:
        assert isinstance(cli("generate --regex [0-9] --debug").exception, UnsupportedError)

    @pytest.mark.parametrize(
        ("target", "name", "error", "said"),
        [
            (journal, "line", OSError(28, "No space left on device"), "No space left on device"),
            (Batches, "_draw", torch.cuda.OutOfMemoryError("CUDA out of memory."), "Give a smaller --batch-size"),
        ],
    )
    def test_a_disk_or_memory_that_runs_out_is_one_line_and_the_file_goes_on(
        self,
        target: Any,
        name: str,
        error: Exception,
        said: str,
        cli: Cli,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def full(*_: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(target, name, full)
            result = cli("generate --regex [0-9] --seed 1 --output o.jsonl", BAKERY)
        refused(result, said, code=1)
        assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
        assert cli("generate --regex [0-9] --seed 1 --output o.jsonl", BAKERY).exit_code == 0
        assert len(saved(folder / "o.jsonl")) == 1


def test_one_of_a_kind_is_singular(cli: Cli) -> None:
    first, second = (cli("generate --regex yes|no --phi local --seed 1 --output o.jsonl", BAKERY) for _ in range(2))
    assert first.stderr.startswith("1 draw written; o.jsonl has 1 of 1 prompt. log Phi is -")
    assert "o.jsonl has 1 of 1 prompt; going on from there." in second.stderr


def test_exact_draws_have_the_computed_law_and_masked_ones_by_weight_only(cli: Cli) -> None:
    found = Generator(from_transformers(*bundled.load()), Literal["yes", "no"]).probabilities(BAKERY, tolerance=0)
    law = {value: found[value].p for value in found}
    p_values = []
    for phi in ("exact", "local"):
        sent = f"generate --type formats:Answer --n 100 --batch-size 3 --seed 11 --phi {phi}"
        lines = records(cli(sent, *[BAKERY] * 10).stdout)
        p_values.append(p_value(texts := [line["value"] for line in lines], law))
    assert p_values[1] < 1e-6 < 0.01 < p_values[0]
    weighted = frequencies(texts, [math.exp(line["log_w"]) for line in lines])
    assert total_variation(weighted, law) < 0.05 < 0.2 < total_variation(frequencies(texts), law)
