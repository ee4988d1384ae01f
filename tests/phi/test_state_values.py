"""Values of guide states: what follows from steps, and how it is kept by threads and files."""

import math
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from outlines_phi import LearnedPhi, StateValues, UnsupportedError
from outlines_phi.lm import TableModel
from outlines_phi.phi.state_values import EMPTY, STEPS, Knowledge, Observed
from tests.inner import DONE, AncestralSampler
from tests.languages import LANGUAGES, VOCABULARY
from tests.phi.walks import ManyPartitions

WORDS, LOOP, _, LATE = LANGUAGES


def step(state: int, **mass: float) -> Observed:
    """A step from ``state``: probabilities by target, written ``to3=0.5``."""
    targets = np.array([int(name[2:]) for name in mass], dtype=np.int32)
    return Observed(state, targets, np.array(list(mass.values())))


def value(known: Knowledge, state: int) -> float:
    return math.exp(known.log_values(np.array([state], dtype=np.int32))[0])


BELOW = 0.3 * 0.1 + 0.1 * 0.5
VALUES: dict[str, tuple[list[Observed], dict[int, float]]] = {
    "a chain": ([step(2, to3=0.5, to4=0.2), step(3, to1=0.1), step(4, to1=0.8)], {3: 0.1, 2: 0.5 * 0.1 + 0.2 * 0.8}),
    "averages in logs": ([step(2, to1=1e-8), step(2, to1=1e-2)], {2: 1e-5}),
    "a step that leads nowhere counts by its share": ([step(2, to1=0.4), step(2, to1=0.0)], {2: 0.2}),
    "an unseen target is an average one of its siblings": (
        [step(2, to3=0.3, to4=0.1, to5=0.2), step(3, to1=0.1), step(4, to1=0.5)],
        {2: BELOW + 0.2 * BELOW / 0.4},
    ),
}


class TestKnowledge:
    @pytest.mark.parametrize("name", VALUES)
    def test_values(self, name: str) -> None:
        steps, expected = VALUES[name]
        known = EMPTY.after(steps)
        assert {state: value(known, state) for state in expected} == pytest.approx(expected)

    def test_a_state_that_leads_back_to_itself_has_the_value_of_its_ways_out(self) -> None:
        """V = 0.9 V + 0.05: the least solution, not the 1 that one that starts high would stay near."""
        assert value(EMPTY.after([step(2, to2=0.9, to1=0.05)]), 2) == pytest.approx(0.5, rel=0.05)

    def test_tiny_values_keep_their_proportions(self) -> None:
        steps = [step(s, **{f"to{s + 1}": 1e-30}) for s in range(2, 40)] + [step(40, to1=1e-30)]
        log_v = EMPTY.after(steps).log_values(np.arange(2, 41, dtype=np.int32))
        assert log_v[:5] == pytest.approx([-k * 30 * math.log(10) for k in range(39, 34, -1)])

    def test_ends_and_strangers(self) -> None:
        found = EMPTY.after([step(2, to1=0.5)]).log_values(np.array([0, DONE, 2, 7], dtype=np.int32))
        assert found[0] == -math.inf and found[1] == 0 and found[2] == pytest.approx(math.log(0.5))
        assert math.isnan(found[3])

    def test_the_latest_steps_are_kept(self) -> None:
        known = EMPTY.after([step(2, to1=0.9)] * STEPS)
        known = known.after([step(2, to1=0.1)] * STEPS)
        assert len(known.at) == STEPS and value(known, 2) == pytest.approx(0.1)

    def test_learning_in_parts_is_learning_at_once(self) -> None:
        steps = [step(2, to3=0.5, to2=0.2), step(3, to1=0.1, to2=0.1), step(2, to3=0.1)]
        parts = EMPTY
        for one in steps:
            parts = parts.after([one])
        assert parts.log_v == pytest.approx(EMPTY.after(steps).log_v, abs=0.03)


@pytest.fixture
def values() -> StateValues:
    torch.manual_seed(0)
    values = StateValues()
    AncestralSampler(LearnedPhi(values)).sample(WORDS.request(40, seed=None))
    return values


class TestFile:
    def test_a_round_trip(self, values: StateValues, tmp_path: Path) -> None:
        values.save(tmp_path / "words.npz")
        loaded = StateValues.load(tmp_path / "words.npz")
        for name, array in vars(values.known).items():
            assert (getattr(loaded.known, name) == array).all()
        first, second = (
            AncestralSampler(LearnedPhi(start)).sample(WORDS.request(20, seed=1))[0]
            for start in (values.copy(), loaded)
        )
        assert first.items == second.items
        assert [path.name for path in tmp_path.iterdir()] == ["words.npz"]

    @pytest.mark.parametrize(
        ("request_of", "words"),
        [
            (lambda: LOOP.request(1, 0), "another model.*another output type"),
            (lambda: replace(WORDS.request(1, 0), table=LOOP.table), "another output type"),
            (lambda: replace(WORDS.request(1, 0), lm=TableModel.random(VOCABULARY, seed=99)), "another model"),
            (lambda: WORDS.request(1, 0, temperature=0.7), r"temperature=1\.0.*temperature=0\.7"),
            (lambda: WORDS.request(1, 0, top_k=5), "top_k=None.*top_k=5"),
        ],
        ids=["model and type", "type", "model", "temperature", "top_k"],
    )
    def test_another_subject_is_refused_with_the_alternative(
        self, values: StateValues, tmp_path: Path, request_of, words: str
    ) -> None:
        values.save(tmp_path / "file")
        sampler = AncestralSampler(LearnedPhi(StateValues.load(tmp_path / "file")))
        with pytest.raises(UnsupportedError, match=f"{words}.*phi='learned'"):
            sampler.sample(request_of())

    def test_another_budget_is_no_other_subject(self, values: StateValues) -> None:
        settings = replace(WORDS.settings(0), max_new_tokens=WORDS.budget + 1)
        assert len(AncestralSampler(LearnedPhi(values)).sample(replace(WORDS.request(4, 0), settings=settings))[0]) == 4

    @pytest.mark.parametrize("path", ["missing/folder/values.npz", ".", 3], ids=str)
    def test_a_path_that_cannot_be_written_is_refused(
        self, values: StateValues, path: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UnsupportedError, match="the path of a file in a folder that exists"):
            values.save(path)  # type: ignore[arg-type]
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "folder", "other arrays", "inconsistent"])
    def test_a_bad_file_is_a_typed_error(self, values: StateValues, tmp_path: Path, damage: str) -> None:
        path = tmp_path / "file.npz"
        values.save(path)
        whole = path.read_bytes()
        path.unlink()
        match damage:
            case "empty":
                path.write_bytes(b"")
            case "text":
                path.write_text("{}")
            case "cut":
                path.write_bytes(whole[: len(whole) // 2])
            case "folder":
                path.mkdir()
            case "other arrays":
                np.savez(path, weights=np.ones(3))
            case "inconsistent":
                (tmp_path / "whole.npz").write_bytes(whole)
                with np.load(tmp_path / "whole.npz") as file:
                    np.savez(path, **{**file, "ends": file["ends"] + 1})
        with pytest.raises(UnsupportedError, match=r"LearnedPhi\(StateValues\(\)\).*file\.npz"):
            StateValues.load(path)

    def test_any_bit_that_was_changed_is_a_typed_error_or_changes_nothing(
        self, values: StateValues, tmp_path: Path
    ) -> None:
        path = tmp_path / "file.npz"
        values.save(path)
        whole = path.read_bytes()
        directory = whole.rindex(b"PK\x01\x02")
        for place in (*range(0, 60), *range(directory, directory + 46), *range(len(whole) - 22, len(whole))):
            for bit in range(8):
                path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
                with suppress(UnsupportedError):
                    StateValues.load(path)

    def test_there_has_to_be_something_to_save(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedError, match="before any call"):
            StateValues().save(tmp_path / "file")
        assert not list(tmp_path.iterdir())

    def test_states_without_stable_names_cannot_be_shared(self, values: StateValues) -> None:
        table = type(WORDS.table)(ManyPartitions(WORDS.table.guide))
        with pytest.raises(UnsupportedError, match="ManyPartitions has no fingerprint.*phi='learned'"):
            AncestralSampler(LearnedPhi(StateValues())).sample(replace(WORDS.request(1, 0), table=table))
        assert len(AncestralSampler(LearnedPhi()).sample(replace(WORDS.request(5, 0), table=table))[0]) == 5


def test_states_have_the_same_numbers_in_every_process() -> None:
    """A file says nothing unless another process compiles the same type to the same states."""
    script = (
        "from outlines_phi.guides.fsm import FSMGuide\n"
        "from outlines_phi.regex.patterns import compile_regex\n"
        "from outlines_phi.vocabulary.vocabulary import Vocabulary\n"
        f"vocabulary = Vocabulary.from_tokens({list(VOCABULARY.tokens)!r}, 0)\n"
        f"print(FSMGuide.from_automaton(compile_regex({WORDS.pattern!r}), vocabulary).fingerprint())\n"
    )
    root = Path(__file__).parents[3]
    run = [sys.executable, "-c", script]
    variables = {"PYTHONHASHSEED": "1", "PYTHONPATH": str(root)}
    found = subprocess.run(run, env=variables, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    assert found == WORDS.table.guide.fingerprint() != LOOP.table.guide.fingerprint()


def test_threads_lose_nothing() -> None:
    values = StateValues()

    def work(state: int) -> None:
        for _ in range(50):
            values.add(step(state, to1=0.5))
            values.known  # noqa: B018 - reading is learning

    threads = [threading.Thread(target=work, args=(state,)) for state in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = values.known
    assert known.states.tolist() == list(range(2, 8)) and len(known.at) == 6 * STEPS
    assert np.exp(known.log_v) == pytest.approx([0.5] * 6)
