"""Walks over token trees as samplers make them, beside one plain forward pass for every node."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outlines_phi import OutlinesPhiError, Vocabulary
from outlines_phi.lm import TokenTrees, TransformersModel
from tests.precision import NATS

from .families import SIZE

DEEPEST = 7  # tokens that a walk adds to a prompt
# The largest error of a log-probability, over the standard deviation of the log-probabilities (at least one).
# Rounding gives 3e-5, 0.01 and 0.06; a wrong mask or wrong positions give more than 0.1 in float32.
TOLERANCE = {torch.float32: NATS, torch.float16: 0.1, torch.bfloat16: 0.6}
# Their recurrence in chunks rounds otherwise behind padding: 6e-4 on the random weights of these tests.
CHUNKED = frozenset({"qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text"})
IMPOSSIBLE = -80.0  # in nats: below it, only that the tree says so too is asked for


@dataclass(frozen=True)
class Outcome:
    """The outcome of one walk.

    Attributes
    ----------
    error
        The largest error of a log-probability in units of their standard deviation; ``None`` when nothing was answered.
    refusal
        The typed error that ended the walk, if one did.
    fault
        The fault: an exception that is not typed, or an error beyond the tolerance. Empty when all is right.
    road
        The road that evaluated the trees.
    """

    error: float | None
    refusal: str = ""
    fault: str = ""
    road: str = ""


class Truth:
    """The log-probabilities after whole sequences: one plain call for each, without mask or cache."""

    def __init__(self, hf_model: Any) -> None:
        self.hf_model, self.known = hf_model, dict[tuple[int, ...], Tensor]()
        parameters = inspect.signature(hf_model.forward).parameters
        takes_use_cache = "use_cache" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.options = {"use_cache": False} if takes_use_cache else {}

    def __call__(self, sequence: Sequence[int]) -> Tensor:
        key = tuple(sequence)
        if key not in self.known:
            with torch.inference_mode():
                logits = self.hf_model(input_ids=torch.tensor([key]), **self.options).logits
            self.known[key] = logits[0, -1].double().log_softmax(-1)
        return self.known[key]


def draw(length: int, seed: int) -> list[int]:
    """Return ``length`` random tokens."""
    return np.random.default_rng([seed, length]).integers(3, SIZE, size=length).tolist()


def companies(length: int) -> list[list[list[int]]]:
    """Return the prompts of two walks: a prompt of ``length`` tokens alone, and in company of a short one."""
    return [[draw(length, 0)], [draw(length, 0), draw(2, 1)]]


def vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of ``size`` tokens that are bytes or pairs of them."""
    return Vocabulary.from_tokens([bytes([v]) if v < 256 else bytes(divmod(v, 256)) for v in range(size)], 2)


class Walk:
    """Grows trees as samplers do, at most :data:`DEEPEST` tokens deep, and remembers every node's sequence and law."""

    def __init__(self, trees: TokenTrees, prompts: Sequence[Sequence[int]]) -> None:
        self.trees, self.random = trees, np.random.default_rng(3)
        self.sequences = {node: tuple(prompt) for node, prompt in enumerate(prompts)}
        self.laws: dict[int, Tensor] = {}

    def go(self) -> None:
        """Plant, extend from anywhere, follow the last call's nodes with one repeated and one dropped, compact, grow on."""
        last = len(self.sequences) - 1
        first = last + 1
        self.add([0, 0, first, last, first + 2], planting=True)  # a child of a node of the same call, twice
        after = self.add([0, first + 1, first + 3, first + 4])  # from anywhere; the deepest has 4 tokens
        after = self.follow(after)
        after = self.follow(after)
        self.trees.compact([after[-1], first + 3])
        after = self.add([first + 3, after[-1], 0])
        self.add([after[0], after[0], after[2]])

    def follow(self, nodes: range) -> range:
        """Extend the nodes of the last call: the first one twice, the second one not at all."""
        return self.add([nodes[0], nodes[0], *nodes[2:]])

    def add(self, parents: Sequence[int], *, planting: bool = False) -> range:
        tokens = self.random.integers(3, SIZE, size=len(parents)).tolist()
        first = len(self.sequences)
        for node, (parent, token) in enumerate(zip(parents, tokens, strict=True), first):
            self.sequences[node] = (*self.sequences[parent], token)
        evaluation = self.trees.roots(parents, tokens) if planting else self.trees.extend(parents, tokens)
        assert evaluation.nodes.stop == len(self.sequences)
        self.laws |= {
            node: logits.double().cpu().log_softmax(-1)
            for node, logits in zip(evaluation.nodes, evaluation.logits, strict=True)
        }
        return range(first, len(self.sequences))


def distance(laws: Tensor, truth: Tensor) -> float:
    """Return the largest error of a log-probability over the standard deviation of the true ones, at least one."""
    possible = truth > IMPOSSIBLE
    if bool((laws[~possible] > IMPOSSIBLE / 2).any()):
        return float("inf")
    return float((laws - truth)[possible].abs().max() / truth[possible].std().clamp(min=1.0))


def walk(hf_model: Any, prompts: Sequence[Sequence[int]], truth: Truth | None = None) -> Outcome:
    """Walk over the trees of ``prompts``, and compare every node that was answered with a plain call."""
    truth, road, walked, refusal, fault = truth or Truth(hf_model), "", None, "", ""
    try:
        size = hf_model.get_output_embeddings()
        size = getattr(size, "out_features", None) or hf_model.config.get_text_config(decoder=True).vocab_size
        model = TransformersModel(hf_model, vocabulary(size))
        walked = Walk(model.trees(prompts), prompts)
        road = model.road
        walked.go()
    except OutlinesPhiError as problem:
        refusal = f"{type(problem).__name__}: {problem}"
    except Exception as problem:  # whatever it is, it is not typed
        fault = f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"
    if walked is None or not walked.laws:
        return Outcome(None, refusal, fault, road)
    nodes = list(walked.laws)
    error = distance(
        torch.stack([walked.laws[node] for node in nodes]),
        torch.stack([truth(walked.sequences[node]) for node in nodes]),
    )
    chunked = hf_model.config.model_type in CHUNKED
    if not fault and not error <= TOLERANCE[hf_model.dtype] * (10 if chunked else 1):
        fault = f"off by {error:.2g}"
    return Outcome(error, refusal, fault, road)


def walks(hf_model: Any, lengths: Sequence[int]) -> dict[str, Outcome]:
    """Return the outcome of a walk for each length of the first prompt, alone and in company."""
    truth = Truth(hf_model)
    return {
        f"{length}{' in company' if len(prompts) > 1 else ''}": walk(hf_model, prompts, truth)
        for length in lengths
        for prompts in companies(length)
    }
