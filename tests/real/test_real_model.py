"""A chat model that people use: its distribution over labels, draws of it, and records. Run by `make real`."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
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
"""``log p`` of the next token at each place of a sequence: a forward pass of the host itself."""

QUESTION = "Is it warm in Lisbon in August? Answer with yes, no or maybe."
ANSWERS = "yes", "no", "maybe"


@pytest.fixture(scope="module")
def model() -> Any:
    return outlines_phi.wrap(real.outlines_model(HOST))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(real.folder())


@pytest.fixture(scope="module")
def passes() -> list[LogP]:
    """Forward passes of the host itself: in llama.cpp token by token, too, which other kernels do, with other rounding."""
    if HOST == "transformers":
        hf_model, _ = real.load()
        whole = lambda ids: torch.log_softmax(hf_model(torch.tensor([ids])).logits[0].double(), -1)  # noqa: E731
        return [torch.inference_mode()(whole)]
    from llama_cpp import Llama

    def evaluate(llama: Any, ids: Sequence[int]) -> torch.Tensor:
        llama.reset()
        llama.eval(list(ids))
        return torch.log_softmax(torch.tensor(llama.scores[: len(ids)]).double(), -1)

    options = {"n_ctx": 512, "n_threads": 1, "logits_all": True, "verbose": False}
    return [partial(evaluate, Llama(str(real.gguf()), n_batch=n, **options)) for n in (512, 1)]


def spellings(text: str, vocabulary: dict[str, int]) -> Iterator[list[int]]:
    """Yield every sequence of tokens that writes ``text``, which has letters alone."""
    if not text:
        yield []
    for end in range(1, len(text) + 1):
        if text[:end] in vocabulary:
            yield from ([vocabulary[text[:end]], *rest] for rest in spellings(text[end:], vocabulary))


def test_probabilities_of_labels_are_those_of_direct_forward_passes(
    model: Any, tokenizer: Any, passes: list[LogP]
) -> None:
    """As far as those agree."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
    )
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    ends = list(model.lm.vocabulary.eos_ids)
    mass = np.zeros((len(passes), len(ANSWERS)))
    for row, log_p in zip(mass, passes, strict=True):
        for place, answer in enumerate(ANSWERS):
            for ids in spellings(answer, tokenizer.get_vocab()):
                rows = log_p([*prompt, *ids])[len(prompt) - 1 :]
                written = sum(float(rows[i, token]) for i, token in enumerate(ids))
                row[place] += float((written + rows[len(ids), ends].logsumexp(0)).exp())
    found = outlines_phi.Generator(model, Literal[ANSWERS]).probabilities(QUESTION, tolerance=0.0)
    laws = np.log(mass / mass.sum(1, keepdims=True))
    within = (1e-3 if HOST == "transformers" else 0.02) + np.ptp(laws, axis=0).max()
    assert within < 0.5
    assert (np.abs(np.log([found[answer].p for answer in ANSWERS]) - laws.mean(0)) < within).all()
    total = np.log(mass.sum(1))
    assert found.log_z_bounds == pytest.approx((total.mean(),) * 2, abs=0.02 + float(np.ptp(total)))


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
