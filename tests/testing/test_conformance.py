"""The conformance test: our hosts pass it, and every fault that it looks for is found."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from outlines.types import regex

import outlines_phi
from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.errors import ModelError
from outlines_phi.lm import LanguageModel, SequenceTrees, TableModel, TokenTrees, TransformersModel
from outlines_phi.testing import check_language_model
from tests.inner import Evaluation, ModelCounts, Rows, WrappedModel
from tests.lm.gardens import VOCABULARY, build, evaluate
from tests.refusals import refused

TABLE = TableModel.random(VOCABULARY, seed=2, max_length=40)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "longrope", "mamba"])
def test_every_road_of_transformers_passes(name: str) -> None:
    passed = check_language_model(
        TransformersModel(build(name), VOCABULARY), reference=lambda sequence: evaluate(build(name), sequence)
    )
    assert passed.nodes > 100 and passed.calls > 10 and 0 < passed.error < 1e-3


@pytest.mark.parametrize("lm", [TABLE, TableModel.random(VOCABULARY, seed=1, max_length=None)])
def test_models_of_a_table_pass(lm: LanguageModel) -> None:
    assert check_language_model(lm).error == 0


class Faulty(WrappedModel):
    """A table of probabilities whose trees have a fault."""

    def __init__(self, fault: Callable[[TokenTrees], None], **own: Any) -> None:
        super().__init__(TABLE)
        self._fault, self._own = fault, own

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__").get("_own", {})
        return own[name] if name in own else object.__getattribute__(self, name)

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        trees = TABLE.trees(prompts)
        self._fault(trees)
        return trees


def answering(change: Callable[[Evaluation, Sequence[int]], Evaluation]) -> Callable[[TokenTrees], None]:
    """A fault of the answers of ``extend``, given the parents."""

    def fault(trees: Any) -> None:
        extend = trees.extend
        trees.extend = lambda parents, tokens: change(extend(parents, tokens), parents)

    return fault


def taking(
    wrong: Callable[[Sequence[int], Sequence[int]], tuple[list[int], list[int]]],
) -> Callable[[TokenTrees], None]:
    """A fault of what ``extend`` evaluates."""

    def fault(trees: Any) -> None:
        extend = trees.extend
        trees.extend = lambda parents, tokens: extend(*wrong(parents, tokens))

    return fault


def ignoring(name: str) -> Callable[[TokenTrees], None]:
    return lambda trees: setattr(trees, name, lambda *given: None)


def twice(trees: Any) -> None:
    """Roots that are evaluated as often as they are asked for."""
    roots, answers = trees.roots, []

    def again(parents: Sequence[int] = (), tokens: Sequence[int] = ()) -> Evaluation:
        if not answers:
            answers.append(roots(parents, tokens))
        return answers[0]

    trees.roots = again


def crashing(trees: Any) -> None:
    """A parent that no node has is an error of Python."""
    extend = trees.extend

    def looked_up(parents: Sequence[int], tokens: Sequence[int]) -> Evaluation:
        known = list(range(trees.next_node + len(parents)))
        return extend([known[parent] for parent in parents], tokens)

    trees.extend = looked_up


def uncounted(trees: Any) -> None:
    """Every call has counts of its own."""
    roots, extend = trees.roots, trees.extend

    def forgetting(call: Callable[..., Evaluation]) -> Callable[..., Evaluation]:
        def made(*given: Any) -> Evaluation:
            answer = call(*given)
            trees.counts = ModelCounts()
            return answer

        return made

    trees.roots, trees.extend = forgetting(roots), forgetting(extend)


def astray(trees: Any) -> None:
    """Nodes of one call stand below the first prompt."""
    extend, calls = trees.extend, itertools.count()
    trees.extend = lambda parents, tokens: extend([0] * len(parents) if next(calls) == 2 else parents, tokens)


def rolled(answer: Evaluation, parents: Sequence[int]) -> Evaluation:
    return replace(answer, rows=Rows.all(answer.logits.roll(1, 0)))


FAULTS: dict[str, tuple[Callable[[TokenTrees], None], str]] = {
    "rows in another order": (answering(rolled), "rows in another order"),
    "logits of a smaller vocabulary": (
        answering(lambda answer, _: replace(answer, rows=Rows.all(answer.logits[:, 1:]))),
        r"Return a row of logits for each node",
    ),
    "other handles": (
        answering(lambda answer, _: replace(answer, nodes=range(answer.nodes.start + 1, answer.nodes.stop + 1))),
        "Number new nodes",
    ),
    "children of other nodes": (astray, "log p is off by"),
    "any token is taken": (
        taking(lambda parents, tokens: ([*parents], [abs(token) % 64 for token in tokens])),
        "a token beyond the vocabulary was taken",
    ),
    "more parents than tokens": (
        taking(lambda parents, tokens: ([*parents][: len(tokens)], [*tokens])),
        "more parents than tokens was taken",
    ),
    "nothing is given back": (ignoring("compact"), "a parent that was given back was taken"),
    "roots at any time": (twice, "a second roots.. was taken"),
    "an error of Python": (crashing, "raised IndexError"),
    "nothing is counted": (uncounted, "Count calls"),
}
"""Faults of the trees."""
SAID: list[tuple[dict[str, Any], str]] = [
    ({"version": lambda: []}, r"version\(\)"),
    ({"version": iter(range(99)).__next__}, "one hashable value"),
    ({"fingerprint": lambda: 3}, r"fingerprint\(\)"),
    ({"rounding": -1.0}, "rounding"),
    ({"max_length": 0}, "max_length"),
    ({"max_length": 50}, "Raise ModelError|context"),
    ({"device": "cpu"}, "torch.device"),
]
"""Statements that no model may make about itself."""


@pytest.mark.parametrize(
    ("fault", "own", "words"),
    [*((fault, {}, words) for fault, words in FAULTS.values()), *((lambda trees: None, *row) for row in SAID)],
    ids=[*FAULTS, *(words for _, words in SAID)],
)
def test_a_fault_is_found(fault: Callable[[TokenTrees], None], own: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        check_language_model(Faulty(fault, **own))


def test_a_context_that_is_no_limit_is_found() -> None:
    class Endless(WrappedModel):
        def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
            return TableModel.random(VOCABULARY, seed=2).trees(prompts)

    with pytest.raises(ModelError, match="a node beyond max_length=40 was taken"):
        check_language_model(Endless(TABLE))


def test_a_reference_tells_a_wrong_model_from_a_right_one() -> None:
    """Trees agree with their own model, whatever it is."""
    other = TableModel.random(VOCABULARY, seed=3, max_length=40)
    assert check_language_model(other).error == 0
    with pytest.raises(ModelError, match="log p is off by"):
        check_language_model(other, reference=TABLE.logits)


def test_rounding_is_not_a_fault_and_its_bound_is_the_tolerance() -> None:
    noise = np.random.default_rng(0)

    class Rounded(WrappedModel):
        def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
            return SequenceTrees(self.logits, prompts, len(VOCABULARY), 40)

        def logits(self, sequences: Sequence[tuple[int, ...]]) -> torch.Tensor:
            rows = np.stack([TABLE.logits(sequence) for sequence in sequences]) if sequences else np.zeros((0, 64))
            return torch.from_numpy(rows + 1e-4 * noise.standard_normal(rows.shape))

    assert 1e-5 < check_language_model(Rounded(TABLE)).error < 1e-3
    with pytest.raises(ModelError, match="beyond tolerance=1e-05"):
        check_language_model(Rounded(TABLE), tolerance=1e-5)


class Own(WrappedModel):
    """A model of a few lines over whole sequences, by the same logits after each."""

    def __init__(self, logits: Any) -> None:
        super().__init__(TABLE)
        self._logits = logits

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SequenceTrees(lambda sequences: self._logits.repeat(len(sequences), 1), prompts, len(VOCABULARY), 40)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_distribution_is_an_error_of_draws_as_well(number: float) -> None:
    lm = Own(torch.full((1, len(VOCABULARY)), number))
    refused("below .inf.*NaN", check_language_model, lm, error=ModelError)
    generator = outlines_phi.Generator(outlines_phi.from_language_model(lm), regex("0|1"))
    for call in (generator.sample, generator.probabilities, generator.mode):
        refused("NaN, .inf or only -inf", call, (1,), max_new_tokens=3, error=ModelError)


def test_gradients_are_left_and_flat_distributions_are_compared() -> None:
    """Of one that is flat over more than 10,000 tokens none is likely."""
    lm = Own(torch.nn.Parameter(torch.zeros(1, len(VOCABULARY))))
    assert check_language_model(lm).error == 0
    assert outlines_phi.Generator(outlines_phi.from_language_model(lm), regex("0"))((1,), max_new_tokens=3) == "0"
    flat, steep = (
        TableModel(Vocabulary.from_tokens([*map(str, range(20_001))], 0), lambda _, rows=rows: rows)
        for rows in (np.zeros(20_001), np.arange(20_001) % 2 / 100)
    )
    assert check_language_model(flat).error == 0
    with pytest.raises(ModelError, match="log p is off by"):
        check_language_model(flat, reference=steep.logits)


@pytest.mark.parametrize("given", [[[5], [6, 7, 8]], [[9, 10, 11, 12, 13, 14], [9, 10], [9, 10]]])
def test_prompts_of_ones_own(given: list[list[int]]) -> None:
    assert check_language_model(TABLE, prompts=given).error == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lm": None}, "LanguageModel"),
        ({"prompts": ["ab", "c"]}, "sequences of token ids"),
        ({"prompts": [[1], []]}, "not empty"),
        ({"prompts": [[5] * 40]}, "shorter than max_length"),
        ({"tolerance": "a"}, "number of nats"),
        ({"tolerance": -1}, "number of nats"),
        ({"prompts": 5}, "as a list"),
        ({"reference": 3}, "as a function"),
        ({"seed": -1}, "as a whole number"),
        ({"reference": lambda sequence: [1.0, 2.0]}, "one logit for each of the 64 tokens"),
    ],
)
def test_what_nothing_can_be_checked_with_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        check_language_model(**({"lm": TABLE} | given))
