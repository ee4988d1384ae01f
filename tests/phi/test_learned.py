"""Values of guide states: what follows from steps, how it is kept by threads and files, and as a proposal."""

import math
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch

from outlines_phi import (
    Draws,
    Generator,
    LearnedPhi,
    LocalPhi,
    PhiLogitsProcessor,
    StateValues,
    UnsupportedError,
    from_transformers,
)
from outlines_phi.lm import TableModel
from outlines_phi.phi import Prefixes, learned
from tests.inner import DONE, EMPTY, STEPS, AncestralSampler, Knowledge, Observed, TreeStore, bundled
from tests.languages import AND_OPEN, LANGUAGES, VOCABULARY, Language, deviation, errors_of, sample, z
from tests.phi.walks import ManyPartitions, mean_weight, paths
from tests.refusals import refused

WORDS, LOOP, NESTED, LATE = LANGUAGES


def step(state: int, **mass: float) -> Observed:
    """A step from ``state``: probabilities by target, written ``to3=0.5``."""
    return Observed(state, np.array([int(name[2:]) for name in mass], dtype=np.int32), np.array(list(mass.values())))


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

    def test_loops_tiny_values_ends_and_strangers_have_their_values(self) -> None:
        """V = 0.9 V + 0.05: the least solution, not the 1 that one that starts high would stay near."""
        assert value(EMPTY.after([step(2, to2=0.9, to1=0.05)]), 2) == pytest.approx(0.5, rel=0.05)
        steps = [step(s, **{f"to{s + 1}": 1e-30}) for s in range(2, 40)] + [step(40, to1=1e-30)]
        log_v = EMPTY.after(steps).log_values(np.arange(2, 41, dtype=np.int32))
        assert log_v[:5] == pytest.approx([-k * 30 * math.log(10) for k in range(39, 34, -1)])
        found = EMPTY.after([step(2, to1=0.5)]).log_values(np.array([0, DONE, 2, 7], dtype=np.int32))
        assert found[0] == -math.inf and found[1] == 0 and found[2] == pytest.approx(math.log(0.5))
        assert math.isnan(found[3])

    def test_the_latest_steps_are_kept_and_learning_in_parts_is_learning_at_once(self) -> None:
        known = EMPTY.after([step(2, to1=0.9)] * STEPS)
        known = known.after([step(2, to1=0.1)] * STEPS)
        assert len(known.at) == STEPS and value(known, 2) == pytest.approx(0.1)
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
        refused(f"{words}.*phi='learned'", sampler.sample, request_of())

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
        refused(r"LearnedPhi\(StateValues\(\)\).*file\.npz", StateValues.load, path)

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
        refused("before any call", StateValues().save, tmp_path / "file")
        assert not list(tmp_path.iterdir())

    def test_states_without_stable_names_cannot_be_shared(self, values: StateValues) -> None:
        table = type(WORDS.table)(ManyPartitions(WORDS.table.guide))
        refused(
            "ManyPartitions has no fingerprint.*phi='learned'",
            AncestralSampler(LearnedPhi(StateValues())).sample,
            replace(WORDS.request(1, 0), table=table),
        )
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
    root = Path(__file__).parents[2]
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


languages = pytest.mark.parametrize("language", AND_OPEN, ids=str)
PROMPT = "Question: is the bakery open on Sunday? Answer: "
ANSWER, OTHER = Literal["yes", "no", "not now", "nobody"], Literal["yes", "no"]


def taught(language: Language, draws: int = 64, **options: object) -> StateValues:
    """Values of some unseeded draws, as a start that does not move."""
    torch.manual_seed(0)
    values = StateValues()
    sample(LearnedPhi(values), language.request(draws, seed=None, **options))
    return values.copy()


def test_without_a_floor_mass_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: states whose every step led nowhere have V = 0, and Phi is not 0 everywhere in them."""
    lost = []
    for language in (WORDS, LOOP):
        values = taught(language, 8, top_k=5)
        phi = math.exp(language.reference(top_k=5).log_phi)
        with monkeypatch.context() as patch:
            patch.setattr(learned, "math", SimpleNamespace(log=lambda floor: -math.inf, inf=math.inf))
            lost.append(mean_weight(paths(language, LearnedPhi(values), top_k=5)) / phi < 1 - 1e-6)
        assert mean_weight(paths(language, LearnedPhi(values), top_k=5)) == pytest.approx(phi, rel=1e-9)
    assert any(lost)


def test_weights_of_walks_that_learn_are_unbiased() -> None:
    """E[w f] = Phi mu*(f) over calls of 32 walks in 3 rounds, each of which learns from those before it.

    The errors of seven languages are added: a bias of all shows as in 350 calls of one.
    """
    errors = [errors_of(sample(LearnedPhi(), each.request(32, seed=5, rows=50)), each) for each in AND_OPEN]
    assert all(deviation(column) < 3.5 for column in zip(*errors, strict=True))


def test_scoring_all_walks_by_the_last_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: weights under the values that a call ends with are biased."""
    kept: list[tuple[learned.LearnedEstimate, object]] = []
    begin = LearnedPhi.begin

    def noting(self: LearnedPhi, run: object) -> learned.LearnedEstimate:
        kept.append((begin(self, run), run))  # type: ignore[arg-type]
        return kept[-1][0]

    monkeypatch.setattr(LearnedPhi, "begin", noting)
    results = sample(LearnedPhi(), LOOP.request(16, seed=5, rows=120))
    ((estimate, run),) = kept
    estimate.learn()
    w = [
        np.mean([math.exp(d.log_p - rescored(estimate, run, row, d.token_ids)) for d in draws])
        for row, draws in enumerate(results)
    ]
    assert abs(z(np.array(w) / math.exp(LOOP.reference().log_phi), 1.0)) > 5


def rescored(estimate: learned.LearnedEstimate, run, row: int, ids: tuple[int, ...]) -> float:  # type: ignore[no-untyped-def]
    """``log q`` of a member under the values as they are now."""
    state, log_q = run.table.start, 0.0
    for i, token in enumerate(ids):
        logits = torch.from_numpy(run.lm.logits((*run.prompts[row], *ids[:i])))[None]
        here = Prefixes([row], [0], [state], [run.budgets[row] - i], [ids[:i]])
        (scores,) = estimate.scores(run.log_p(logits, [(row, ids[:i])]), here)
        log_q += float(scores[token] - torch.logsumexp(scores, -1))
        state = run.table.guide.advance(state, token)
    assert state == DONE
    return log_q


def ess(found) -> float:  # type: ignore[no-untyped-def]
    """``(E w)^2 / E w^2``, by summation."""
    square = math.fsum(math.exp(path.log_q + 2 * path.log_w) for path in found if path.log_q > -math.inf)
    return mean_weight(found) ** 2 / square


@pytest.mark.parametrize("language", [LOOP, NESTED], ids=str)
def test_what_is_learned_helps(language: Language) -> None:
    """The exact effective sample size of a draw, where states say something of what lies ahead."""
    assert ess(paths(language, LearnedPhi(taught(language)))) > 1.8 * ess(paths(language, LocalPhi()))


def test_rounds_double_and_learning_costs_no_model_call() -> None:
    assert [LearnedPhi().rounds(n) for n in (1, 8, 16, 50)] == [[1], [8], [8, 8], [8, 8, 16, 18]]
    assert LocalPhi().rounds(50) == (50,)
    # Walks of one round evaluate what masked ones do: each prefix once.
    (draws,) = sample(LearnedPhi(), LATE.request(8, seed=1))
    assert draws.counts.tokens == len({draw.token_ids[:i] for draw in draws for i in range(1, len(draw.token_ids))})


class TestKept:
    def draw(self, store: TreeStore, seed: int | None, **options: object) -> Draws:
        return sample(LearnedPhi(), LATE.request(16, seed, **options), store=store)[0]

    def values(self, store: TreeStore, **options: object) -> StateValues:
        return store.values.of(LATE.lm, LATE.table, LATE.settings(**options))

    def test_a_name_keeps_its_values_with_the_model(self) -> None:
        store = TreeStore()
        torch.manual_seed(0)
        self.draw(store, None)
        first = len(self.values(store).known.at)
        self.draw(store, None)
        assert 0 < first < len(self.values(store).known.at) and len(self.values(store, temperature=0.5)) == 0
        store.clear()
        assert len(self.values(store)) == 0

    def test_a_seeded_call_does_not_depend_on_others(self) -> None:
        store = TreeStore()
        torch.manual_seed(0)
        first = self.draw(store, 3)
        self.draw(store, None)
        assert (self.draw(store, 3).items, self.draw(TreeStore(), 3).items) == (first.items, first.items)

    def test_a_seeded_call_starts_from_what_was_given_for_each_prompt_alone(self) -> None:
        values, request = taught(LATE), LATE.request(16, 3)
        torch.manual_seed(0)
        (first,) = sample(LearnedPhi(values), request)
        sample(LearnedPhi(values), LATE.request(64, None))
        assert sample(LearnedPhi(values), request)[0].items == first.items
        assert sample(LearnedPhi(StateValues()), request)[0].items != first.items
        both = sample(LearnedPhi(), replace(LATE.request(32, 3, rows=2), prompts=[(1, 2), (4, 3)]))
        assert both[0].items == sample(LearnedPhi(), LATE.request(32, 3))[0].items

    def test_few_distributions_of_an_output_type_are_kept(self) -> None:
        store = TreeStore()
        for i in range(20):
            self.values(store, temperature=0.5 + i / 10).add(learned.Observed(2, np.array([1], np.int32), np.ones(1)))
        kept = [len(self.values(store, temperature=0.5 + i / 10)) for i in range(19, 11, -1)]
        assert kept == [1] * 8 and len(self.values(store, temperature=0.5)) == 0

    def test_a_generator_forgets_them_when_its_model_does(self) -> None:
        """Also one that was made before, and keeps its compiled output type."""
        model = from_transformers(*bundled.load())
        generator = Generator(model, ANSWER, phi="learned")

        def draw() -> tuple[float, ...]:
            torch.manual_seed(1)
            return tuple(generator.sample(PROMPT, 8, max_new_tokens=12).log_w)

        first = draw()
        assert draw() != first
        model.clear_cache()
        assert draw() == first


def test_a_loop_learns_and_its_weights_are_unbiased() -> None:
    model = from_transformers(*bundled.load())
    values = StateValues()
    processor = PhiLogitsProcessor(model, ANSWER, phi=LearnedPhi(values), max_new_tokens=12)
    inputs = model.hf_tokenizer([PROMPT] * 400, return_tensors="pt")
    torch.manual_seed(1)
    model.model.generate(**inputs, logits_processor=[processor], **processor.host_options)
    assert len(values) > 3
    exact = Generator(model, ANSWER).sample(PROMPT, 200, seed=0, phi="exact", max_new_tokens=12)
    w = np.exp(processor.log_w())
    assert abs(w.mean() - math.exp(exact.log_z)) < 4 * w.std() / math.sqrt(len(w)) + 1e-6
