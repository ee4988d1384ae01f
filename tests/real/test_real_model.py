"""A chat model that people use: its distribution over labels, draws of it, and records. Run by `make real`."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
from outlines.types import regex
from scipy.stats import chi2

import outlines_phi
from benchmarks.real import model as real
from benchmarks.real.tasks import PERCENT, Person, chosen
from outlines_phi import Guarantee
from tests.chi_square import ChiSquare

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # of the hosts
HOST = os.environ.get("REAL_HOST", "transformers")

LogP = Callable[[Sequence[int]], torch.Tensor]
"""``log p`` of the next token at each place of a sequence: one forward pass of the host itself."""

QUESTION = "Is it warm in Lisbon in August? Answer with yes, no or maybe."
ANSWERS = "yes", "no", "maybe"


@pytest.fixture(scope="module")
def model() -> Any:
    return outlines_phi.wrap(real.outlines_model(HOST))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(real.folder())


@pytest.fixture(scope="module")
def log_p() -> LogP:
    if HOST == "transformers":
        hf_model, _ = real.load()
        return torch.inference_mode()(
            lambda ids: torch.log_softmax(hf_model(torch.tensor([ids])).logits[0].double(), -1)
        )
    from llama_cpp import Llama

    llama = Llama(str(real.gguf()), n_ctx=512, n_threads=1, logits_all=True, verbose=False)

    def evaluate(ids: Sequence[int]) -> torch.Tensor:
        llama.reset()
        llama.eval(list(ids))
        return torch.log_softmax(torch.tensor(llama.scores[: len(ids)]).double(), -1)

    return evaluate


def spellings(text: str, vocabulary: dict[str, int]) -> Iterator[list[int]]:
    """Yield every sequence of tokens that writes ``text``, which has letters alone."""
    if not text:
        yield []
    for end in range(1, len(text) + 1):
        if text[:end] in vocabulary:
            yield from ([vocabulary[text[:end]], *rest] for rest in spellings(text[end:], vocabulary))


def test_probabilities_of_labels_are_those_of_direct_forward_passes(model: Any, tokenizer: Any, log_p: LogP) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
    )
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    ends = list(model.lm.vocabulary.eos_ids)
    mass = dict.fromkeys(ANSWERS, 0.0)
    for answer in ANSWERS:
        for ids in spellings(answer, tokenizer.get_vocab()):
            rows = log_p([*prompt, *ids])[len(prompt) - 1 :]
            written = sum(float(rows[i, token]) for i, token in enumerate(ids))
            mass[answer] += float((written + rows[len(ids), ends].logsumexp(0)).exp())
    found = outlines_phi.Generator(model, Literal[ANSWERS]).probabilities(QUESTION, tolerance=0.0)
    total = sum(mass.values())
    assert {answer: found[answer].p for answer in ANSWERS} == pytest.approx(
        {answer: p / total for answer, p in mass.items()}, rel=0.02 if HOST == "llamacpp" else 1e-3
    )
    assert found.log_z_bounds == pytest.approx((math.log(total),) * 2, abs=0.02)


def test_exact_draws_have_the_distribution_and_masked_ones_do_not(model: Any) -> None:
    (prompt,) = chosen("rating")[0].prompts(0)
    generator = outlines_phi.Generator(model, regex(PERCENT))
    law = {one.text: one.p for one in generator.probabilities(prompt).values()}
    limits = {}
    for phi in ("exact", "local"):
        fit = ChiSquare.of(generator.sample(prompt, 300, phi=phi, seed=1).texts, law)
        limits[phi] = fit.statistic / chi2.ppf(0.999, fit.cells - 1)
    assert limits["exact"] < 1 < limits["local"]


@pytest.mark.parametrize("phi", ["local", "auto"])
def test_a_record_is_valid(model: Any, phi: str) -> None:
    (task,) = chosen("record, 3 fields")
    (prompt,) = task.prompts(0)
    (draw,) = outlines_phi.Generator(model, Person, phi=phi).sample(prompt, seed=0, max_new_tokens=task.tokens)
    assert isinstance(draw.value, Person) and draw.guarantee >= Guarantee.WEIGHTED
    assert Person.model_validate_json(draw.text) == draw.value


def test_the_model_knows_something_of_the_world(model: Any) -> None:
    capital = outlines_phi.Generator(model, Literal["Paris", "Rome", "Madrid"])
    assert capital.mode("What is the capital of France? Answer with one word.").values == ["Paris"]


@pytest.mark.skipif(HOST != "transformers", reason="llama.cpp reads the file as it is")
def test_a_broken_conversion_is_not_taken_for_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(source: Path, target: Path) -> None:
        target.mkdir()
        raise OSError("no space left")

    monkeypatch.setattr(real, "FOLDER", tmp_path / "cache" / "model")
    monkeypatch.setattr(real, "convert", half)
    with pytest.raises(OSError, match="no space left"):
        real.folder()
    assert not list((tmp_path / "cache").iterdir())
    monkeypatch.setattr(real, "convert", lambda source, target: target.mkdir())
    assert real.folder().exists() and [path.name for path in (tmp_path / "cache").iterdir()] == ["model"]
