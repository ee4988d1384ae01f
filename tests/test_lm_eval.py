"""The scores of lm-evaluation-harness by exact probabilities, against sums over all token sequences of the bundled model."""

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="make test-extras")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from benchmarks.peers.meter import Meter
from outlines_phi.errors import UnsupportedError
from outlines_phi.lm import bundled
from outlines_phi.lm_eval import ExactLM

pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness

NAMES = "Nora Hugo Mara Otto Zoe Felix Aria Ben".split()
JOBS = "baker", "teacher", "nurse", "lawyer", "pilot", "farmer", "singer", "doctor"


@pytest.fixture(scope="module")
def loaded() -> Any:
    return bundled.load(torch.float64)


def harness(loaded: Any, kind: Any = ExactLM, **arguments: Any) -> Any:
    return kind(loaded[0], tokenizer=loaded[1], batch_size=64, **arguments)


def asked(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def scores(lm: Any, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
    return lm.loglikelihood([asked("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)


class Enumeration:
    """Sums over all token sequences, by plain forward passes of the model."""

    def __init__(self, loaded: Any) -> None:
        self.model, self.tokenizer = loaded
        vocabulary = harness(loaded).exact.lm.vocabulary
        self.tokens, self.eos = vocabulary.tokens, list(vocabulary.eos_ids)
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    def next(self, ids: tuple[int, ...]) -> torch.Tensor:
        if ids not in self.known:
            with torch.no_grad():
                self.known[ids] = self.model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
        return self.known[ids]

    def p(self, context: str, answer: str, ends: str) -> float:
        return self._p(tuple(self.tokenizer(context)["input_ids"]), answer.encode(), ends)

    def _p(self, ids: tuple[int, ...], rest: bytes, ends: str) -> float:
        law = self.next(ids)
        if not rest:
            return float(law[self.eos].sum())
        total = 0.0
        for token, written in enumerate(self.tokens):
            if written and ends == "open" and written.startswith(rest):
                total += float(law[token])
            elif written and rest.startswith(written):
                total += float(law[token]) * self._p((*ids, token), rest[len(written) :], ends)
        return total

    def greedy(self, context: str, tokens: int) -> tuple[bytes, bool]:
        ids = tuple(self.tokenizer(context)["input_ids"])
        start = len(ids)
        while len(ids) < start + tokens and (best := int(self.next(ids).argmax())) not in self.eos:
            ids = (*ids, best)
        return b"".join(self.tokens[token] for token in ids[start:]), len(ids) < start + tokens


def test_scores_of_64_questions_are_sums_over_all_tokenizations_at_one_model_call(loaded: Any) -> None:
    contexts = [f"Person: {one} is a {job}. City: Rome. Person: {NAMES[0]} is a" for one, job in product(NAMES, JOBS)]
    pairs = list(product(contexts, (" baker", " nurse", " teacher")))
    lm, enumeration = harness(loaded), Enumeration(loaded)
    meter = Meter(loaded[0])
    found = scores(lm, pairs)
    calls = meter.read()[0]
    assert calls == 1
    for (context, answer), (log_p, _) in zip(pairs, found, strict=True):
        assert log_p == pytest.approx(math.log(enumeration.p(context, answer, "open")), abs=1e-6)


CASES = [
    ("open", None, [" Lisbon", " Lima", " Li", " London town"]),  # one begins another
    ("text", None, [" Lisbon", " Lima", " Li", " London town"]),
    ("open", "[^a-z]", [" Li", " Lisbon", " Lisbon."]),
]
CONTEXTS = "Person: Nora is a baker. City:", "Person: Hugo is a nurse. City: ", ""


@pytest.mark.parametrize(("ends", "open_at", "answers"), CASES)
def test_each_score_is_within_its_tolerance(loaded: Any, ends: str, open_at: str | None, answers: list[str]) -> None:
    lm, enumeration = harness(loaded, ends=ends, open_at=open_at, tolerance=1e-7), Enumeration(loaded)
    pairs = list(product(CONTEXTS, answers))
    for (context, answer), (log_p, greedy) in zip(pairs, scores(lm, pairs), strict=True):
        stem = context.rstrip()
        blank = context[len(stem) :]
        p = enumeration.p(stem or "<|endoftext|>", blank + answer, "text" if ends == "text" else "open")
        if open_at is not None:
            p = sum(
                enumeration.p(stem or "<|endoftext|>", blank + answer + chr(code), "open")
                for code in range(128)
                if not chr(code).islower()
            ) + enumeration.p(stem or "<|endoftext|>", blank + answer, "text")
        assert log_p == pytest.approx(math.log(p), abs=1e-6), (context, answer)
        text, ended = enumeration.greedy(stem or "<|endoftext|>", 20)
        begun = text.startswith((blank + answer).encode())
        assert greedy == ((ended and text == (blank + answer).encode()) if ends == "text" else begun), (text, answer)
