"""The laws of every host: one table, of which each environment runs the hosts that it has."""

import importlib.util
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex
from pydantic import BaseModel

from outlines_phi import (
    SMC,
    AuditReport,
    Generator,
    Special,
    Thinking,
    Tools,
    audit,
    from_language_model,
    from_transformers,
    structural_tag,
    wrap,
)
from outlines_phi.lm import bundled
from outlines_phi.plugin.session import PhiModel
from outlines_phi.testing import check_language_model
from tests.languages import p_value
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning", "ignore::DeprecationWarning")

QUESTION = "Question: is the bakery open on Sunday? Answer: "


class Hours(BaseModel):
    day: Literal["Sunday", "Monday"]
    open: bool


def transformers(folder: Path) -> PhiModel:
    return from_transformers(*bundled.load())


def own(folder: Path) -> PhiModel:
    model = from_transformers(*bundled.load())
    return from_language_model(model.lm, model.hf_tokenizer.encode)


def llamacpp(folder: Path) -> PhiModel:
    from llama_cpp import Llama

    from tests.hosts.gguf_model import write

    path, options = folder / "bundled.gguf", {"n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0}
    write(path)
    llama = Llama(str(path), n_ctx=512, n_batch=128, verbose=False, **options)
    return wrap(outlines.from_llamacpp(llama, chat_mode=False))


def mlx(folder: Path) -> PhiModel:
    import mlx.core as mx
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(Path(bundled.__file__).parent))
    model.set_dtype(mx.float32)
    return wrap(outlines.from_mlxlm(model, tokenizer))


def vllm_offline(folder: Path) -> PhiModel:
    from tests.hosts.vllm_engine import engine

    return wrap(outlines.from_vllm_offline(engine()))


def vllm_requests(folder: Path) -> PhiModel:
    """The same engine, asked as an application asks it."""
    from outlines_phi.lm.vllm import vllm_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_model.CoreCalls, "fits", lambda llm: False)
        patch.setattr(vllm_model, "SESSIONS", {})
        model = vllm_offline(folder)
        _ = model.lm
    return model


HOSTS: dict[str, tuple[Callable[[Path], PhiModel], str]] = {
    "transformers": (transformers, "transformers"),
    "own": (own, "transformers"),
    "llamacpp": (llamacpp, "llama_cpp"),
    "mlx": (mlx, "mlx_lm"),
    "vllm": (vllm_offline, "vllm"),
    "vllm by requests": (vllm_requests, "vllm"),
}
"""Each host over the bundled model in single precision, and the package that it needs."""


@pytest.fixture(scope="module", params=HOSTS)
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PhiModel:
    make, package = HOSTS[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    return make(tmp_path_factory.mktemp(request.param))


def test_its_trees_conform_and_its_distribution_is_that_of_transformers(host: PhiModel, elsewhere: PhiModel) -> None:
    passed = check_language_model(
        host.lm, reference=lambda sequence: elsewhere.lm.trees([sequence]).roots().logits[0], tolerance=1e-3
    )
    assert passed.nodes > 100


def test_prompts_longer_than_a_batch(host: PhiModel, elsewhere: PhiModel) -> None:
    """The first calls read no logits of them; the others wait."""
    prompts = [tuple(range(2, 402)), (5, 6, 7), tuple(range(300, 500))]
    here, there = (each.lm.trees(prompts).roots([0, 2], [9, 8]).logits.double() for each in (host, elsewhere))
    assert float((here.softmax(-1) - there.softmax(-1)).abs().max()) < 1e-3


@pytest.mark.parametrize("output_type", [Literal["yes", "no", "not on Sunday"], regex("[a-z]{2,6}( [a-z]+)?")], ids=str)
def test_seeded_exact_texts_are_those_of_transformers(output_type: Any, host: PhiModel, elsewhere: PhiModel) -> None:
    here, there = (
        Generator(each, output_type).sample(QUESTION, n=100, seed=3, phi="exact").texts for each in (host, elsewhere)
    )
    assert here == there and len(set(here)) > 1


def order(dish: Literal["soup", "bread"], count: Literal[1, 2]) -> None:
    """A tool."""


FORM = {"type": "tag", "begin": "<", "content": {"type": "regex", "pattern": "[a-z]{1,4}"}, "end": [">", "."]}
FEATURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "thought": (Thinking(Literal["yes", "no"], end=".", max_tokens=4), {}),
    "joint": (Thinking(Literal["yes", "no"], end=Special("<|pad|>"), max_tokens=3, scope="joint"), {}),
    "special token": (regex("[a-z]{1,3}") + Special("<|pad|>") + regex("[ab]"), {}),
    "structural tag": (structural_tag({"type": "structural_tag", "format": FORM}), {}),
    "tools": (Tools([order], "required", "hermes"), {}),
    "stop": (Literal["yes", "no"], {"stop": [",", " o", "\n"]}),
    "special stop": (regex("[a-z ]+"), {"stop_strings": ["e", Special("<|pad|>")]}),
}


@pytest.mark.parametrize("name", FEATURES)
def test_seeded_masked_draws_and_their_accounts_are_those_of_transformers(
    name: str, host: PhiModel, elsewhere: PhiModel
) -> None:
    output_type, options = FEATURES[name]
    here, there = (
        Generator(each, output_type).sample(
            QUESTION, n=4, seed=3, phi="local", max_new_tokens=60, tokens=True, top=2, **options
        )
        for each in (host, elsewhere)
    )
    assert here.texts == there.texts and here.log_w == pytest.approx(there.log_w, abs=1e-3)
    for one, other in zip(here, there, strict=True):
        assert one.token_ids == other.token_ids and (one.thought is None) == (name not in ("thought", "joint"))
        accounts = [
            [(token.log_p, token.log_q, *(entry.log_p for entry in token.top or ())) for token in each.tokens]
            for each in (one, other)
        ]
        assert all(row == pytest.approx(expected, abs=1e-3) for row, expected in zip(*accounts, strict=True))


def test_exact_draws_have_the_conditioned_distribution_and_masking_has_not(host: PhiModel) -> None:
    generator = Generator(host, Literal["yes", "no"])
    law = generator.probabilities(QUESTION, tolerance=0).distribution
    exact, masked = (
        p_value(generator.sample(QUESTION, n=1_000, phi=phi, seed=0).texts, law) for phi in ("exact", "local")
    )
    assert exact > 1e-4 > masked


@pytest.mark.parametrize("phi", ["auto", "exact", "local", "onestep", "learned", "dp-bigram"])
def test_every_door(phi: str, host: PhiModel) -> None:
    output_type = Literal["yes", "no"]
    texts = [
        host(QUESTION, output_type, phi=phi, seed=1),
        *host.batch([QUESTION], output_type, phi=phi, seed=1),
        "".join(host.stream(QUESTION, output_type, phi=phi, seed=1)),
        Generator(host, output_type)(QUESTION, phi=phi, seed=1),
    ]
    assert texts == texts[:1] * 4


def test_what_else_there_is(host: PhiModel) -> None:
    generator = Generator(host, Literal["yes", "no", "perhaps"])
    assert generator.mode(QUESTION).texts[0] in ("yes", "no")
    assert isinstance(audit(generator, QUESTION, n=30, seed=0), AuditReport)
    assert generator.sample(QUESTION, n=8, seed=0, phi="local", draft="forced").texts
    assert generator.sample(QUESTION, n=4, seed=0, phi="local", sampler=SMC(particles=4)).texts
    assert set(generator.sample(QUESTION, n=50, seed=0, banned_phrases=["no"]).texts) <= {"yes", "perhaps"}
    free = host(QUESTION, banned_phrases=["open", "closed"], max_new_tokens=12, seed=0)
    assert "open" not in free and "closed" not in free


def test_threads_take_turns(host: PhiModel) -> None:
    calls = [partial(host, QUESTION, Literal["yes", "no"], phi="exact", seed=seed) for seed in range(4)]
    expected = [call() for call in calls]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda call: call(), calls)) == expected


@pytest.mark.parametrize("prompt", [3, None, {"a": 1}, ""])
def test_what_is_no_prompt_is_refused(prompt: Any, host: PhiModel) -> None:
    refused(None, host, prompt, Literal["yes", "no"], phi="exact")


def test_wrapped_once_more_it_is_another_with_other_defaults(host: PhiModel) -> None:
    if not hasattr(type(host), "over"):
        pytest.skip("is made of a language model")
    again = wrap(host, phi="exact")
    assert again is not host and again.phi is not None and type(again) is type(host)


def test_it_is_not_pickled(host: PhiModel) -> None:
    refused(f"A {type(host).__name__} is neither pickled", pickle.dumps, host)
