"""``outlines_phi.ray.generate``, with a double in the place of Ray; ``tests/hosts/test_ray.py`` has the real one."""

import json
from pathlib import Path
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex

import outlines_phi.ray
from outlines_phi import Generator, UnsupportedError, from_transformers
from outlines_phi.lm import bundled
from tests.cli.ray_double import Dataset, RayDouble

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

PROMPTS = [f"Question: is shop {number} open? Answer: " for number in range(6)]
ANSWER = Literal["yes", "no", "not now"]
LETTERS = regex("[a-z]{6}")


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> RayDouble:
    return RayDouble().installed(monkeypatch)


def dataset(size: int = 2, **columns: Any) -> Dataset:
    """A dataset in blocks of ``size`` rows."""
    whole = pyarrow.table({"q": PROMPTS, "id": range(6)} | columns)
    return Dataset([whole.slice(first, size) for first in range(0, len(whole), size)])


def stock() -> Any:
    return outlines.from_transformers(*bundled.load())


def rows(drawn: Dataset, key: str = "id") -> list[dict[str, Any]]:
    found = [row for table in drawn.iter_batches(batch_size=None, batch_format="pyarrow") for row in table.to_pylist()]
    return sorted(found, key=lambda row: (str(row[key]), row["draw_index"] or 0))


def test_there_is_a_row_per_draw_beside_all_that_stood_there() -> None:
    drawn = outlines_phi.ray.generate(
        dataset(x=[0.5] * 6), ANSWER, model=stock, prompt="q", key="id", seed=3, n=2, phi="exact", token_ids=True
    )
    found = rows(drawn)
    assert [(row["id"], row["draw_index"]) for row in found] == [(i, j) for i in range(6) for j in range(2)]
    model = from_transformers(*bundled.load())
    for row in found:
        assert row["q"] == PROMPTS[row["id"]] and row["x"] == 0.5 and row["error"] is None
        assert json.loads(row["value"]) == row["text"] and row["guarantee"] == "exact" and row["weight"] == 0.5
        assert model.lm.vocabulary.decode(row["token_ids"]).decode() == row["text"]
        assert row["log_z_bounds"][0] <= row["log_z"] <= row["log_z_bounds"][1]


@pytest.mark.parametrize("phi", ["exact", "local"])
def test_a_draw_depends_on_the_seed_and_the_key_alone(phi: str) -> None:
    def texts(size: int, seed: int = 3, **options: Any) -> dict[Any, str]:
        drawn = outlines_phi.ray.generate(
            dataset(size, name=list("abcdef")), LETTERS, model=stock, prompt="q", seed=seed, phi=phi, **options
        )
        return {row["id"]: row["text"] for row in rows(drawn)}

    one = texts(6, key="id")
    assert texts(2, key="id", actors=2, batch_size=1) == texts(3, key="id", batch_size=2) == one
    assert texts(6, key="id", seed=4) != one
    named = texts(6, key="name")
    assert texts(2, key="name", actors=3) == named != one


def test_numbers_are_the_keys_of_a_file(tmp_path: Path) -> None:
    """And the draws those of the command line."""
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"q": prompt}) + "\n" for prompt in PROMPTS), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.table({"q": PROMPTS}), tmp_path / "p.parquet")
    options: dict[str, Any] = {"model": "bundled", "prompt": "q", "seed": 3}
    expected = rows(outlines_phi.ray.generate(dataset(), LETTERS, key="id", **options))
    for name in ("p.jsonl", "p.parquet"):
        found = rows(outlines_phi.ray.generate(tmp_path / name, LETTERS, **options), "prompt_index")
        assert [row["text"] for row in found] == [row["text"] for row in expected]
        assert [row["prompt_index"] for row in found] == list(range(6))


def test_equal_keys_are_rows_of_their_own() -> None:
    drawn = outlines_phi.ray.generate(
        dataset(6, id=[7] * 6, q=[*PROMPTS[:2]] * 3), LETTERS, model=stock, prompt="q", key="id", seed=3
    )
    found = rows(drawn)
    assert len(found) == 6 and len({(row["q"], row["text"]) for row in found}) == 2


def test_rows_without_a_seed_are_drawn_apart() -> None:
    drawn = outlines_phi.ray.generate(
        dataset(q=[PROMPTS[0]] * 6),
        regex("[a-z]{24}"),
        model=stock,
        prompt="q",
        actors=2,
        phi="local",
        temperature=50.0,
    )  # so many letters that six draws are six texts but for 1e-9
    assert len({row["text"] for row in rows(drawn)}) == 6


def test_a_bad_row_fails_alone() -> None:
    given = [PROMPTS[0], None, "word " * 600, "", PROMPTS[4], PROMPTS[5]]
    found = rows(outlines_phi.ray.generate(dataset(6, q=given), ANSWER, model=stock, prompt="q", key="id", seed=3))
    assert {row["id"]: row["error"] for row in found if row["error"]} == {
        1: "UnsupportedError",
        2: "ModelError",
        3: "UnsupportedError",
    }
    assert all((row["text"] is None) == (row["error"] is not None) == (row["message"] is not None) for row in found)
    alone = Generator(from_transformers(*bundled.load()), ANSWER).sample_batch([PROMPTS[4]], seed=[0])
    assert len(alone[0]) == 1 and [row["text"] for row in found if row["id"] == 4] != [None]


def test_rows_without_a_key_are_refused_where_there_is_a_seed() -> None:
    drawn = outlines_phi.ray.generate(
        dataset(id=[0, None, 2, 3, 4, 5]), ANSWER, model=stock, prompt="q", key="id", seed=3
    )
    with pytest.raises(UnsupportedError, match="Give every row a key"):
        rows(drawn)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": "x"}, r"Give prompt= one of the columns q, id: prompt='x'"),
        ({"key": "x"}, r"Give key= one of the columns q, id: key='x'"),
        ({"seed": 1}, r"Give key=, a column that tells rows apart"),
        ({"phi": None}, r"phi= other than None"),
        ({"output_type": None}, r"Give an output type or banned phrases"),
        ({"phi": "exakt"}, r"expected 'auto', 'exact'"),
        ({"num_return_sequences": 2}, r"num_return_sequences"),
        ({"progress": True}, r"progress"),
        ({"temprature": 2.0}, r"temprature"),
        ({"temperature": -2.0}, r"temperature=-2.0 was given"),
        ({"do_sample": False}, r"do_sample=False was given"),
        ({"device": "cpu", "dtype": "float32"}, r"Leave out device, dtype"),
        ({"n": 0}, r"n=0 was given"),
        ({"actors": 0}, r"actors=0 was given"),
        ({"output_type": object()}, r"object"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_drawn(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        outlines_phi.ray.generate(dataset(), **{"output_type": ANSWER, "model": stock, "prompt": "q", **options})


def test_names_that_are_taken_and_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="Rename text: the dataset has a column"):
        outlines_phi.ray.generate(dataset(text=PROMPTS), ANSWER, model=stock, prompt="q")
    with pytest.raises(UnsupportedError, match=r"Give a file \.jsonl, \.ndjson or \.parquet, or a dataset"):
        outlines_phi.ray.generate(tmp_path / "p.csv", ANSWER, model=stock)
