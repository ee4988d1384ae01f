"""The scores of lm-evaluation-harness by exact probabilities, against sums over all token sequences of the bundled model."""

import json
import math
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="make test-extras")

from datasets import Dataset
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from benchmarks.peers.meter import Meter
from outlines_phi.errors import BudgetError, UnsupportedError
from outlines_phi.lm import bundled
from outlines_phi.lm_eval import ExactLM

pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness

NAMES = "Nora Hugo Mara Otto Zoe Felix Aria Ben".split()
JOBS = "baker", "teacher", "nurse", "lawyer", "pilot", "farmer", "singer", "doctor"


@pytest.fixture(scope="module")
def loaded() -> Any:
    return bundled.load(torch.float64)


def harness(loaded: Any, kind: Any = ExactLM, **arguments: Any) -> Any:
    return kind(loaded[0], **{"tokenizer": loaded[1], "batch_size": 64} | arguments)


def asked(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def scores(lm: Any, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
    return lm.loglikelihood([asked("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)


class Enumeration:
    """Sums over all token sequences, and greedy decoding, by plain forward passes of the model."""

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

    def prompt(self, context: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(context or self.tokenizer.eos_token)["input_ids"])

    def p(self, context: str, answer: str, *, ends: bool = False) -> float:
        return self._p(self.prompt(context), answer.encode(), ends)

    def _p(self, ids: tuple[int, ...], rest: bytes, ends: bool) -> float:
        law, total = self.next(ids), 0.0
        if not rest:
            return float(law[self.eos].sum())
        for token, written in enumerate(self.tokens):
            if written.startswith(rest) and not ends:
                total += float(law[token])
            elif written and rest.startswith(written):
                total += float(law[token]) * self._p((*ids, token), rest[len(written) :], ends)
        return total

    def greedy(self, context: str, most: int = 20) -> tuple[str, bool]:
        ids = start = self.prompt(context)
        while len(ids) < len(start) + most and (best := int(self.next(ids).argmax())) not in self.eos:
            ids = (*ids, best)
        return b"".join(self.tokens[token] for token in ids[len(start) :]).decode(), len(ids) < len(start) + most


@pytest.fixture(scope="module")
def enumeration(loaded: Any) -> Enumeration:
    return Enumeration(loaded)


def test_64_questions_are_scored_by_all_tokenizations_in_one_model_call(loaded: Any, enumeration: Enumeration) -> None:
    contexts = [f"Person: {one} is a {job}. City: Rome. Person: Nora is a" for one, job in product(NAMES, JOBS)]
    pairs = list(product(contexts, (" baker", " nurse", " teacher")))
    lm, meter = harness(loaded, batch_size=192), Meter(loaded[0])
    found = scores(lm, pairs)
    assert (meter.calls, meter.sequences) == (1, len(contexts))
    for (context, answer), (log_p, _) in list(zip(pairs, found, strict=True))[::40]:
        assert log_p == pytest.approx(math.log(enumeration.p(context, answer)), abs=1e-6)


QUESTIONS = "Person: Nora is a baker. City:", "Person: Hugo is a nurse. City: ", ""
CITIES = " Li", " Lisbon", " Rome", " Lisbon,"  # one begins another


def begun(enumeration: Enumeration, context: str, answer: str) -> float:
    return enumeration.p(context, answer)


def ended(enumeration: Enumeration, context: str, answer: str) -> float:
    return enumeration.p(context, answer, ends=True)


def before_a_mark(enumeration: Enumeration, context: str, answer: str) -> float:
    return sum(enumeration.p(context, answer + mark) for mark in ".,") + enumeration.p(context, answer, ends=True)


@pytest.mark.parametrize(
    ("arguments", "exact", "greedy"),
    [
        ({"ends": "open"}, begun, lambda text, end, answer: text.startswith(answer)),
        ({"ends": "text"}, ended, lambda text, end, answer: end and text == answer),
        ({"open_at": "[.,]"}, before_a_mark, lambda text, end, answer: text.startswith((answer + ".", answer + ","))),
    ],
)
def test_scores_are_within_their_tolerance(
    loaded: Any, enumeration: Enumeration, arguments: dict[str, Any], exact: Any, greedy: Any
) -> None:
    lm, pairs = harness(loaded, tolerance=1e-7, **arguments), list(product(QUESTIONS, CITIES))
    for (context, answer), (log_p, is_greedy) in zip(pairs, scores(lm, pairs), strict=True):
        stem = context.rstrip()  # blanks belong to the answer, as in the harness
        answer = context[len(stem) :] + answer
        assert log_p == pytest.approx(math.log(exact(enumeration, stem, answer)), abs=1e-6)
        assert is_greedy == greedy(*enumeration.greedy(stem), answer)


def test_what_greedy_decoding_writes_is_greedy(loaded: Any, enumeration: Enumeration) -> None:
    context = "Person: Nora is a baker. City:"
    line, _ = enumeration.greedy(context)
    answers = line[:4], line[:9], line[:6] + "~"
    assert [greedy for _, greedy in scores(harness(loaded), [(context, answer) for answer in answers])] == [
        True,
        True,
        False,
    ]


def test_the_score_of_one_tokenization_is_another(loaded: Any, enumeration: Enumeration) -> None:
    """The power control: the harness's own model fails the law that is tested above."""
    context, answer = "Person: Nora is a baker. City:", " Lisbon"
    ((usual, _),) = scores(harness(loaded, HFLM), [(context, answer)])
    assert usual < math.log(enumeration.p(context, answer)) - 1


def test_a_score_that_is_not_reached_is_an_error(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_phi.lm_eval.MOST_PREFIXES", 2)
    with pytest.raises(BudgetError, match="tolerance"):
        scores(harness(loaded, tolerance=1e-9), [(QUESTIONS[0], " Lisbon, in the south")])


def written(lm: Any, context: str, **keywords: Any) -> str:
    (text,) = lm.generate_until([asked("generate_until", context, keywords)], disable_tqdm=True)
    return text


def test_texts_are_of_the_format_of_the_task_or_of_the_model(loaded: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["age"],
    }
    lm, prompt = harness(loaded, regex="[a-z]{3,4}"), "Person: Nora. JSON: "
    likeliest = written(lm, prompt, max_gen_toks=6)
    assert re.fullmatch("[a-z]{3,4}", likeliest) and likeliest == written(lm, prompt, max_gen_toks=6, temperature=0)
    drawn = {written(lm, prompt, regex="[0-9]{2}", do_sample=True, temperature=2.0) for _ in range(8)}
    assert len(drawn) > 1 and all(re.fullmatch("[0-9]{2}", text) for text in drawn)
    assert written(lm, prompt, regex="a{1,4}b?", until=["aa"], max_gen_toks=8, do_sample=True) in ("a", "ab")
    assert json.loads(written(harness(loaded, json_schema=schema), prompt, max_gen_toks=16))["age"] in range(100)


def test_what_is_not_honoured_is_refused(loaded: Any) -> None:
    lm = harness(loaded)
    for call, remedy in {
        lambda: written(lm, "City: "): "--model hf for free text",
        lambda: written(lm, "City: ", regex="a", json_schema="{}"): "regex and json_schema",
        lambda: written(lm, "City: ", regex="[a-z]", num_beams=4): "num_beams",
        lambda: lm.loglikelihood_rolling([asked("loglikelihood_rolling", "A document.")]): "--model hf",
        lambda: harness(loaded, max_length=20): "max_length",
        lambda: harness(loaded, batch_size="auto"): "batch_size",
        lambda: scores(harness(loaded, ends="text", open_at="x"), [("City:", " Rome")]): "open_at",
    }.items():
        with pytest.raises(UnsupportedError, match=remedy):
            call()


def test_the_harness_evaluates_a_task_by_the_name_of_the_model(enumeration: Enumeration) -> None:
    choices = [" Rome", " Lisbon", " Li"]
    task = {
        "task": "cities",
        "custom_dataset": lambda **_: {"test": Dataset.from_list([{"name": name} for name in NAMES[:2]])},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "Person: {{name}} is a baker. City:",
        "doc_to_choice": [choice[1:] for choice in choices],
        "doc_to_target": 1,
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    arguments = {"pretrained": str(bundled.path()), "dtype": "float64"}
    found = simple_evaluate(
        "outlines_phi",
        arguments,
        tasks=[task],
        batch_size=8,
        device="cpu",
        bootstrap_iters=0,
        apply_chat_template=False,
    )
    for name, sample in zip(NAMES, found["samples"]["cities"], strict=False):
        exact = [math.log(enumeration.p(f"Person: {name} is a baker. City:", choice)) for choice in choices]
        assert [log_p for log_p, _ in sample["filtered_resps"]] == pytest.approx(exact, abs=2e-3)
        assert sample["acc"] == float(max(exact) == exact[1])
