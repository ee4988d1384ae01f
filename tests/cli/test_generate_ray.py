"""``outlines-phi generate --ray``, with a double in the place of Ray; ``tests/hosts/test_ray.py`` has the real one."""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from outlines_phi.cli import actors
from outlines_phi.cli.actors import RecordDrawer

from .conftest import LONG, Cli, records, refused
from .ray_double import RayDouble

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

PROMPTS = [f"Question: is shop {number} open? Answer: " for number in range(10)]
SENT = "generate --type formats:Answer --n 2 --seed 3 --phi exact --batch-size 4"
RAY = f"{SENT} --ray --actors 2 --output draws"

Lines = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> RayDouble:
    monkeypatch.setattr(actors, "PART_ROWS", 1)
    return RayDouble().installed(monkeypatch)


@pytest.fixture
def prompts(folder: Path) -> Path:
    return write(folder / "p.jsonl", [{"prompt": prompt} for prompt in PROMPTS])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(path: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def read(folder: Path) -> Lines:
    """The lines of all parts, in the order of their rows; fails where a draw is there twice."""
    found: Lines = []
    for path in folder.glob("part-*"):
        if path.suffix == ".parquet":
            found += pyarrow.parquet.read_table(path).to_pylist()
        else:
            found += map(json.loads, path.read_text(encoding="utf-8").splitlines())
    found.sort(key=lambda line: (line["prompt_index"], line.get("draw_index") or 0))
    places = [(line["prompt_index"], line.get("draw_index"), line.get("error")) for line in found]
    assert len(set(places)) == len(places)
    return found


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*"))


class TestDraws:
    def test_they_are_those_of_one_process(self, cli: Cli, folder: Path, prompts: Path) -> None:
        plain, drawn = cli(SENT, "--file", prompts), cli(RAY, "--input", prompts)
        refused(drawn, "20 draws written; draws has 10 of 10 prompts.", code=0)
        assert read(folder / "draws") == records(plain.stdout)
        header = json.loads((folder / "draws" / "run.jsonl").read_text(encoding="utf-8"))
        assert header == {**json.loads(plain.stdout.splitlines()[0]), "parts": "jsonl"}

    def test_they_stand_beside_the_other_fields(self, cli: Cli, folder: Path) -> None:
        rows = [{"ask": prompt, "id": number, "tags": [number, "a"]} for number, prompt in enumerate(PROMPTS[:3])]
        assert cli(RAY, "--file", write(folder / "p.jsonl", rows), "--column", "ask").exit_code == 0
        for line in read(folder / "draws"):
            row = rows[line["prompt_index"]]
            assert [line["prompt"], line["id"], line["tags"]] == list(row.values()) and "ask" not in line

    def test_a_bad_row_fails_alone(self, cli: Cli, folder: Path) -> None:
        rows: Lines = [{"prompt": prompt} for prompt in (PROMPTS[0], LONG, 5, None, "\ud800", PROMPTS[5])]
        file = write(folder / "p.jsonl", rows)
        file.write_text(file.read_text(encoding="utf-8").replace('{"prompt": null}', "{no"), encoding="utf-8")
        refused(cli(RAY, "--file", file), "Failed: 4 of 6 prompts", code=1)
        lines = read(folder / "draws")
        errors = {line["prompt_index"]: line["error"] for line in lines if line["record"] == "error"}
        assert errors == {1: "ModelError", 2: "UnsupportedError", 3: "UnsupportedError", 4: "UnsupportedError"}
        assert [line["prompt_index"] for line in lines if line["record"] == "draw"] == [0, 0, 5, 5]
        again = cli(RAY, "--file", file)
        assert "0 draws written" in again.stderr
        refused(again, "(4 earlier)", code=1)

    def test_a_table_keeps_its_columns(self, cli: Cli, folder: Path) -> None:
        days = [datetime.date(2026, 1, day) for day in (1, 2, 3, 4)]
        chat = [[{"role": "user", "content": PROMPTS[0]}]] * 4
        small = pyarrow.array(range(4), pyarrow.int8())
        file = table(
            folder / "p.parquet", prompt=[PROMPTS[0], None, LONG, PROMPTS[3]], day=days, small=small, chat=chat
        )
        result = cli(RAY, "--file", file)
        assert result.exit_code == 1, result.stderr
        lines = read(folder / "draws")
        assert [(line["day"], line["error"]) for line in lines] == [
            *[(days[0], None)] * 2,
            (days[1], "UnsupportedError"),
            (days[2], "ModelError"),
            *[(days[3], None)] * 2,
        ]
        kept, begun = (pyarrow.parquet.read_schema(path) for path in (parts(folder / "draws")[0], file))
        assert [kept.field(name) for name in begun.names] == list(begun)
        assert all(json.loads(line["value"]) == line["text"] for line in lines if line["text"])
        wrong = cli(RAY, "--file", file, "--column", "chat", "--overwrite")
        refused(wrong, "Prompt 0 (counted from 0) is a list of chat messages")

    def test_either_form_may_come_out_of_either(self, cli: Cli, folder: Path, prompts: Path) -> None:
        file = table(folder / "p.parquet", prompt=PROMPTS, day=[datetime.date(2026, 1, 1)] * 10)
        assert cli(RAY, "--file", file, "--parts", "jsonl").exit_code == 0
        lines = read(folder / "draws")
        assert {line["day"] for line in lines} == {"2026-01-01"}
        assert cli(RAY, "--file", prompts, "--parts", "parquet", "--overwrite").exit_code == 0
        assert [line["text"] for line in read(folder / "draws")] == [line["text"] for line in lines]
        assert {path.suffix for path in parts(folder / "draws")} == {".parquet"}

    def test_a_parquet_file_is_read_without_ray(self, cli: Cli, folder: Path) -> None:
        lines = records(cli(SENT, "--file", table(folder / "p.parquet", ask=PROMPTS), "--column", "ask").stdout)
        assert [line["prompt"] for line in lines[::2]] == PROMPTS
        refused(cli(SENT, "--file", table(folder / "q.parquet", prompt=["a", None])), "Row 1 of --file")


class TestGoingOn:
    def test_what_is_there_is_not_drawn_again(
        self, cli: Cli, folder: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert cli(RAY, "--file", prompts).exit_code == 0
        whole, begun = read(folder / "draws"), parts(folder / "draws")
        assert len(begun) == 3
        begun[1].unlink()
        (folder / "draws" / ".part-000009.jsonl").write_bytes(b'{"torn')
        kept = begun[0].read_bytes()
        result = cli(RAY, "--file", prompts)
        assert result.exit_code == 0 and "draws has 6 of 10 prompts; going on from there." in result.stderr
        assert "8 draws written" in result.stderr and read(folder / "draws") == whole
        assert begun[0].read_bytes() == kept and not list((folder / "draws").glob(".part*"))
        monkeypatch.setattr(RecordDrawer, "__call__", lambda *_: pytest.fail("drew again"))
        assert cli(RAY, "--file", prompts).exit_code == 0

    def test_ctrl_c_keeps_what_came(
        self, cli: Cli, folder: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draw, left = RecordDrawer.__call__, [2]

        def interrupted(self: RecordDrawer, given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return draw(self, given)

        monkeypatch.setattr(RecordDrawer, "__call__", interrupted)
        monkeypatch.setattr(actors, "PART_ROWS", 100)
        refused(cli(RAY, "--file", prompts), "after 6 of 10 prompts", code=130)
        assert len(read(folder / "draws")) == 12
        monkeypatch.setattr(RecordDrawer, "__call__", draw)
        assert cli(RAY, "--file", prompts).exit_code == 0
        assert read(folder / "draws") == records(cli(SENT, "--file", prompts).stdout)

    def test_more_rows_may_follow_and_a_seed_is_remembered(self, cli: Cli, folder: Path) -> None:
        sent, file = RAY.replace("--seed 3", ""), folder / "p.parquet"
        assert cli(sent, "--file", table(file, prompt=PROMPTS[:4])).exit_code == 0
        begun = read(folder / "draws")
        assert cli(sent, "--file", table(file, prompt=PROMPTS)).exit_code == 0
        assert read(folder / "draws")[:8] == begun and len(read(folder / "draws")) == 20

    @pytest.mark.parametrize("form", ["jsonl", "parquet"])
    def test_another_run_is_refused(self, form: str, cli: Cli, folder: Path, prompts: Path) -> None:
        sent = f"{RAY} --parts {form} --file"
        assert cli(sent, prompts).exit_code == 0
        whole, rows = read(folder / "draws"), [{"prompt": prompt} for prompt in PROMPTS]
        other, fewer = write(folder / "q.jsonl", rows[::-1]), write(folder / "f.jsonl", rows[:9])
        for given, said in [
            ((prompts, "--temperature", 0.7), "differs in temperature (1.0 in the file, 0.7 in this command)"),
            ((prompts, "--n", 3), "differs in n"),
            ((other,), "a run goes on with the same rows"),
            ((fewer,), "draws of row 9"),
            ((prompts, "--parts", "parquet" if form == "jsonl" else "jsonl"), f"Give --parts {form} to go on"),
        ]:
            refused(cli(sent, *given), said)
        assert read(folder / "draws") == whole
        assert cli(sent, other, "--overwrite").exit_code == 0
        assert [line["prompt"] for line in read(folder / "draws")[::2]] == PROMPTS[::-1]

    def test_a_part_that_is_none_is_refused(self, cli: Cli, folder: Path, prompts: Path) -> None:
        assert cli(RAY, "--file", prompts).exit_code == 0
        parts(folder / "draws")[0].write_text("[]\n", encoding="utf-8")
        refused(cli(RAY, "--file", prompts), "is no part of a run")


def test_an_actor_has_a_gpu_where_there_is_one(cli: Cli, ray: RayDouble) -> None:
    sent = f"{RAY} --overwrite"
    assert cli(sent, *PROMPTS[:2]).exit_code == 0
    ray.resources["GPU"] = 2.0
    assert cli(sent, *PROMPTS[:2]).exit_code == 0 and cli(f"{sent} --gpus 0.5", *PROMPTS[:2]).exit_code == 0
    assert [task["num_gpus"] for task in ray.reserved] == [0, 1, 0.5] and not ray.context.enable_progress_bars
    refused(cli(f"{sent} --gpus 2", *PROMPTS[:2]), "2 actors of 2 GPU each do not fit, Ray has 2 here")


@pytest.mark.parametrize(("module", "extra"), [("ray.data", "ray"), ("pyarrow.parquet", "parquet")])
def test_a_package_that_is_missing_is_named(
    module: str, extra: str, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table(folder / "p.parquet", prompt=PROMPTS)
    monkeypatch.setitem(sys.modules, module, None)
    result = cli(RAY, "--file", file)
    refused(result, f'pip install "outlines_phi[{extra}]"')
    assert module in result.stderr and not (folder / "draws").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (f"{SENT} --actors 2 x", "--actors was given without --ray"),
        (f"{SENT} --gpus 1 --parts jsonl x", "--gpus, --parts was given without --ray"),
        (f"{SENT} --ray x", "--ray was given without --output"),
        (f"{SENT} --ray --output full/a.txt x", "--output full/a.txt is a file"),
        (f"{SENT} --ray --output no/draws x", "Make the folder no first"),
        (f"{SENT} --ray --output full x", "has files that outlines-phi did not write"),
        (f"{SENT} --ray --actors 5 --output draws x", "Give fewer --actors"),
        (f"{RAY} --column ask x", "--column ask is of no use for plain texts"),
        (f"{RAY} --file p.parquet --column x", "one of prompt, text: --file p.parquet has no column x"),
        (f"{RAY} --file p.parquet", "Rename text"),
        (f"{RAY} --file broken.parquet", "--file broken.parquet cannot be read"),
        (f"{RAY} --file p.jsonl --column ask", "Rename prompt, which a line has of its own"),
        (f"{RAY} --file q.jsonl --parts parquet", "Give the values of a column one type"),
        (f"{RAY} --max-new-tokens 1 x", "Give max_new_tokens="),
        (f"{RAY} --parts csv x", "expected one of jsonl, parquet"),
    ],
)
def test_what_cannot_be_used_is_said(given: str, said: str, cli: Cli, folder: Path) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "a.txt").touch()
    (folder / "broken.parquet").write_bytes(b"no")
    table(folder / "p.parquet", prompt=PROMPTS, text=PROMPTS)
    write(folder / "p.jsonl", [{"ask": PROMPTS[0], "prompt": "x"}])
    write(folder / "q.jsonl", [{"prompt": PROMPTS[0], "id": 1}, {"prompt": PROMPTS[0], "id": "a"}])
    refused(cli(given), said)
