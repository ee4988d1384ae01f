"""Ray Data, on a cluster of this machine: two actors, one of which is killed in mid-run."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402
from outlines.types import regex  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import outlines_phi.ray  # noqa: E402
from outlines_phi import from_transformers  # noqa: E402
from outlines_phi.cli.actors import Parts, Pool, draw_into  # noqa: E402
from outlines_phi.cli.app import app  # noqa: E402
from outlines_phi.cli.batches import Task  # noqa: E402
from outlines_phi.lm import bundled  # noqa: E402
from outlines_phi.plugin.call import Call, Correction  # noqa: E402
from tests.refusals import refused  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

ROWS = 40
PROMPTS = [f"Question: is shop number {number} open? Answer: " for number in range(ROWS)]
ANSWER = Literal["yes", "no", "not on Sunday"]
LAW = {"phi": "exact", "n": 2, "seed": 5}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected() -> dict[int, list[str]]:
    """The texts of every row, drawn in this process one by one."""
    made: Any = lambda: from_transformers(*bundled.load())  # noqa: E731
    batches = Task(load=made, model="bundled", output_type=ANSWER, type_name="", call=call(), n=2, seed=5).batches(
        made()
    )
    (found,) = [batches.drawn(list(enumerate(PROMPTS)))]
    return {outcome.index: outcome.draws.texts for outcome in found if outcome.draws is not None}


def call() -> Call:
    return Call.of(Correction().replaced_by("exact"), ANSWER, {})


def mortal(flag: Path, calls: int = 12) -> Callable[[], Any]:
    """The bundled model, whose process dies in the middle of a draw, in the first actor that comes so far."""

    def make() -> Any:
        from outlines_phi import from_transformers
        from outlines_phi.lm import bundled

        model, tokenizer = bundled.load()
        left = [calls]

        def die(*_: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                try:
                    os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return
                os._exit(1)

        model.register_forward_pre_hook(die)
        return from_transformers(model, tokenizer)

    return make


def rows(dataset: Any) -> list[dict[str, Any]]:
    return [row for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow") for row in block.to_pylist()]


def texts(records: list[dict[str, Any]], number: str = "prompt_index") -> dict[int, list[str]]:
    """The texts of every row in the order of their numbers; fails where a draw is there twice."""
    assert max(Counter((record[number], record["draw_index"]) for record in records).values()) == 1
    found: dict[int, list[str]] = {}
    for record in sorted(records, key=lambda record: (record[number], record["draw_index"])):
        found.setdefault(record[number], []).append(record["text"])
    return found


def test_a_dataset_loses_nothing_with_an_actor(tmp_path: Path, expected: dict[int, list[str]]) -> None:
    tables = [
        pyarrow.table({"q": PROMPTS[i : i + 4], "row": range(i, i + 4), "x": [0.5] * 4}) for i in range(0, ROWS, 4)
    ]
    drawn = outlines_phi.ray.generate(
        ray.data.from_arrow(tables),
        ANSWER,
        model=mortal(tmp_path / "died"),
        prompt="q",
        key="row",
        batch_size=4,
        actors=2,
        **LAW,
    )
    found = rows(drawn)
    assert (tmp_path / "died").exists()
    assert texts(found, "row") == expected
    assert {row["x"] for row in found} == {0.5} and {row["guarantee"] for row in found} == {"exact"}
    assert [json.loads(row["value"]) for row in found] == [row["text"] for row in found]


def folder_run(folder: Path, model: Callable[[], Any], form: str = "jsonl", **options: Any) -> int:
    given = [({"prompt": prompt}, prompt) for prompt in PROMPTS]
    task = Task(load=model, model="bundled", output_type=ANSWER, type_name="answer", call=call(), n=2, seed=5)
    return draw_into(Parts(path=folder, form=form, column="prompt", rows=given), task, Pool(actors=2), 4, **options)


def read(folder: Path) -> list[dict[str, Any]]:
    if list(folder.glob("*.parquet")):
        return [row for path in folder.glob("*.parquet") for row in pyarrow.parquet.read_table(path).to_pylist()]
    return [json.loads(line) for path in folder.glob("part-*.jsonl") for line in path.open(encoding="utf-8")]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_folder_loses_nothing_with_an_actor(form: str, tmp_path: Path, expected: dict[int, list[str]]) -> None:
    assert folder_run(tmp_path / "draws", mortal(tmp_path / "died"), form) == 0 and (tmp_path / "died").exists()
    assert texts(read(tmp_path / "draws")) == expected


def test_a_run_that_was_killed_goes_on(
    tmp_path: Path, expected: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    replace, left = os.replace, [3]

    def kill(*given: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        replace(*given)

    monkeypatch.setattr("outlines_phi.cli.actors.PART_ROWS", 4)
    monkeypatch.setattr(os, "replace", kill)
    alive = mortal(tmp_path / "died", calls=-1)
    refused(None, folder_run, tmp_path / "draws", alive, error=Killed)
    assert 0 < len(texts(read(tmp_path / "draws"))) < ROWS
    monkeypatch.setattr(os, "replace", replace)
    assert folder_run(tmp_path / "draws", alive) == 0
    assert texts(read(tmp_path / "draws")) == expected and not list((tmp_path / "draws").glob(".part*"))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of the working folder, a Parquet file, and bad rows, which fail alone."""
    (tmp_path / "doors.py").write_text("from typing import Literal\nDoor = Literal['open', 'shut']\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    given = ["The door is ", None, "word " * 600, "The window is "]
    pyarrow.parquet.write_table(pyarrow.table({"ask": given, "id": range(4)}), "p.parquet")
    arguments = ["generate", "--type", "doors:Door", "--seed", "2", "--n", "3", "--quiet"]
    sent = [*arguments, "--ray", "--input", "p.parquet", "--column", "ask", "--output", "draws"]
    result = CliRunner().invoke(app, sent)
    assert result.exit_code == 1, result.stderr
    found = read(tmp_path / "draws")
    assert {row["id"]: row["error"] for row in found} == {0: None, 1: "UnsupportedError", 2: "ModelError", 3: None}
    again = CliRunner().invoke(app, sent)
    assert again.exit_code == 1 and "0 draws written; draws has 4 of 4 prompts." in again.stderr
    Path("p.jsonl").write_text(
        "".join(json.dumps({"prompt": prompt or " "}) + "\n" for prompt in given), encoding="utf-8"
    )
    alone = CliRunner().invoke(app, [*arguments, "--file", "p.jsonl"])
    plain = [json.loads(line) for line in alone.stdout.splitlines()][1:]
    there = texts([row for row in found if not row["error"]])
    assert there == {i: each for i, each in texts([row for row in plain if row["record"] == "draw"]).items() if i != 1}
    other = CliRunner().invoke(app, [*sent, "--temperature", "0.7"])
    assert other.exit_code == 2 and "differs in temperature" in other.stderr


def test_what_the_model_alone_knows_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sent = ["generate", "--regex", "yes|no", "--ray", "--output", "draws", "--max-new-tokens", "1", "Is it? "]
    result = CliRunner().invoke(app, sent)
    assert result.exit_code == 2 and "Give max_new_tokens=2 or more" in result.stderr
    assert not (tmp_path / "draws").exists()


def test_more_actors_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sent = ["generate", "--regex", "yes|no", "--ray", "--actors", "99", "--output", "draws", "Is it? "]
    result = CliRunner().invoke(app, sent)
    assert result.exit_code == 2 and "Give fewer --actors" in result.stderr


def test_draws_without_a_seed_differ_from_actor_to_actor() -> None:
    """Torch's generator begins alike in every process."""
    tables = [pyarrow.table({"prompt": PROMPTS[:1]}) for _ in range(8)]
    drawn = outlines_phi.ray.generate(
        ray.data.from_arrow(tables), regex("[a-z]{8}"), model="bundled", actors=2, phi="local", temperature=50.0
    )
    assert len({row["text"] for row in rows(drawn)}) == 8
