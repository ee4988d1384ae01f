"""vLLM by itself, in the application: its settings, its prompts, its room, and its end."""

import gc
import json
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.inputs import Chat
from outlines.types import regex
from safetensors.torch import save_file

from outlines_phi import Generator, from_transformers, from_vllm_offline, wrap
from outlines_phi.errors import ModelError
from outlines_phi.lm import bundled
from outlines_phi.plugin.session import PhiModel
from tests.hosts.test_hosts import QUESTION
from tests.precision import near_log
from tests.refusals import refused

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and its libraries say of one another
    vllm = pytest.importorskip("vllm")
    psutil = pytest.importorskip("psutil")

    from vllm import SamplingParams, TokensPrompt
    from vllm.lora.request import LoRARequest

    from outlines_phi.lm.vllm.engine import check_engine
    from outlines_phi.lm.vllm.vllm_model import VLLMModel
    from outlines_phi.vllm import ENGINE
    from tests.hosts.vllm_engine import engine, start

pytestmark = pytest.mark.filterwarnings("ignore")
ANSWER = Literal["yes", "no", "not on Sunday"]
WORDS = regex("[a-z]{2,6}( [a-z]{2,6}){3,5}")


@pytest.fixture(scope="module", autouse=True)
def _engines_end_here() -> Iterator[None]:
    """Collect engines that nobody has closed, whose warnings would else be errors of a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="module")
def model() -> Any:
    return from_vllm_offline(engine())


@pytest.fixture(scope="module")
def narrow() -> Any:
    """An engine with little room, which reads prompts in parts and schedules ahead, in a process of its own."""
    llm = start(**ENGINE, num_gpu_blocks_override=60, max_num_batched_tokens=64, max_num_seqs=16, async_scheduling=True)
    return from_vllm_offline(llm)


@pytest.fixture(scope="module")
def inside() -> Iterator[Any]:
    """An engine whose scheduler runs in this process, without a cache of prefixes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        llm = start(**ENGINE, enable_prefix_caching=False, max_num_seqs=8, enable_lora=True, max_loras=2)
        yield from_vllm_offline(llm)


def test_an_engine_that_does_not_hand_out_logits_is_refused() -> None:
    for config in (
        {},
        {"logits_processors": None},
        {"logits_processors": ["another:Processor", *ENGINE["logits_processors"]]},
        {"logits_processors": ENGINE["logits_processors"], "worker_extension_cls": "another.Extension"},
    ):
        llm = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=configuration(**config)))
        refused(r"Make it with LLM\(..., \*\*outlines_phi.vllm.ENGINE\)", VLLMModel, llm)


def configuration(**settings: Any) -> Any:
    """Return the parts of a ``VllmConfig`` that are read before anything is asked of the engine."""
    usual = {"runner_type": "generate", "logits_processors": (), "is_encoder_decoder": False, "is_diffusion": False}
    return SimpleNamespace(
        speculative_config=settings.pop("speculative_config", None),
        parallel_config=SimpleNamespace(
            worker_extension_cls=settings.pop("worker_extension_cls", ""),
            enable_batch_sharded_sampling=settings.pop("enable_batch_sharded_sampling", None),
        ),
        model_config=SimpleNamespace(**{**usual, **settings}),
    )


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"speculative_config": object()}, "Start vLLM without speculative_config"),
        ({"enable_batch_sharded_sampling": True}, "Start vLLM without enable_batch_sharded_sampling"),
        ({"runner_type": "pooling"}, "Load a generative model"),
        ({"is_encoder_decoder": True}, "Load a model without an encoder"),
        ({"is_diffusion": True}, "or diffusion"),
    ],
)
def test_an_engine_whose_rows_cannot_be_told_is_refused(settings: dict[str, Any], remedy: str) -> None:
    refused(remedy, check_engine, configuration(**settings))


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    refused("Install it, by pip install", VLLMModel, engine())


def test_what_is_no_engine_is_refused() -> None:
    refused(r"Give vllm.LLM\(model, \*\*outlines_phi.vllm.ENGINE\)", from_vllm_offline, "Qwen/Qwen3-0.6B")


def test_without_phi_a_call_is_that_of_outlines(model: Any) -> None:
    stock = outlines.from_vllm_offline(engine())
    given = {"sampling_params": SamplingParams(max_tokens=12, seed=5), "use_tqdm": False}
    for output_type in (None, ANSWER):
        assert model(QUESTION, output_type, **given) == stock(QUESTION, output_type, **given)
        assert model.batch([QUESTION] * 2, output_type, **given) == stock.batch([QUESTION] * 2, output_type, **given)
        assert outlines.Generator(model, output_type)(QUESTION, **given) == stock(QUESTION, output_type, **given)


def test_a_generator_of_outlines_takes_phi(model: Any) -> None:
    expected = model(QUESTION, ANSWER, phi="exact", seed=3)
    assert outlines.Generator(model, ANSWER)(QUESTION, phi="exact", seed=3) == expected
    assert outlines.Generator(model, ANSWER).batch([QUESTION], phi="exact", seed=3) == [expected]
    assert "".join(outlines.Generator(model, ANSWER).stream(QUESTION, phi="exact", seed=3)) == expected


def test_sampling_params_say_what_keywords_say(model: Any) -> None:
    params = SamplingParams(temperature=0.7, top_k=1000, max_tokens=30, seed=4, n=3, repetition_penalty=1.1)
    words = {"temperature": 0.7, "top_k": 1000, "max_new_tokens": 30, "seed": 4, "repetition_penalty": 1.1}
    expected = model(QUESTION, WORDS, phi="local", num_return_sequences=3, **words)
    assert model(QUESTION, WORDS, phi="local", sampling_params=params, use_tqdm=False) == expected
    assert len(set(expected)) == 3
    for kept, name in ((False, "stop"), (True, "stop_strings")):
        stopping = SamplingParams(
            stop=[",", " o"], include_stop_str_in_output=kept, n=9, seed=1, max_tokens=8, temperature=1.0
        )
        words = {"num_return_sequences": 9, "seed": 1, "max_new_tokens": 8, name: [",", " o"]}
        assert model(QUESTION, ANSWER, phi="exact", sampling_params=stopping) == model(
            QUESTION, ANSWER, phi="exact", **words
        )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sampling_params": SamplingParams(stop_token_ids=[3])}, "Leave stop_token_ids out of SamplingParams"),
        ({"sampling_params": SamplingParams(stop=["."]), "stop": ["x"]}, "Leave one of the two out: stop="),
        ({"sampling_params": SamplingParams(presence_penalty=0.5)}, "Leave presence_penalty out of SamplingParams"),
        ({"sampling_params": SamplingParams(logit_bias={3: 1.0})}, "Leave logit_bias out of SamplingParams"),
        ({"sampling_params": SamplingParams(seed=1), "seed": 2}, "Leave one of the two out: seed=2"),
        ({"sampling_params": [SamplingParams()]}, "Give one SamplingParams of vLLM"),
        ({"sampling_params": SamplingParams(temperature=0.0)}, "temperature"),
        ({"lora_request": object()}, "lora_request cannot be used here"),
    ],
)
def test_what_has_no_place_in_the_distribution_is_refused(given: dict[str, Any], said: str, model: Any) -> None:
    refused(said, model, QUESTION, ANSWER, phi="exact", **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": 0.5}, r"Give it in sampling_params=SamplingParams\(...\)"),
        ({"draft": "forced"}, "Give phi='exact', phi='auto' or a proposal"),
        ({"banned_phrases": ["yes"]}, "Give phi='local' for masking by this package"),
        ({"backend": "xgrammar"}, "Leave backend= out"),
        ({"phy": "exact"}, r"did you mean phi=\?"),
    ],
)
def test_what_its_own_loop_has_no_use_for_is_refused(given: dict[str, Any], said: str, model: Any) -> None:
    refused(said, model, QUESTION, ANSWER, phi=None, **given)


def test_a_prompt_beyond_the_context_is_said_to_be(model: Any) -> None:
    refused("Shorten the prompt", model, "word " * 600, ANSWER, phi="exact", error=ModelError)
    refused("context", model, "word " * 160, regex("[a-z]{400}"), phi="local", error=ModelError)


def test_a_template_that_knows_thoughts_is_rendered_for_them(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if enable_thinking %}. Think{% endif %}"
    monkeypatch.setattr(model.hf_tokenizer, "chat_template", template)
    asked = [Chat([{"role": "user", "content": "yes"}])]
    found = [model.prompt_ids(asked, thinking=thinking)[0] for thinking in (False, True)]
    assert found == [tuple(model.hf_tokenizer.encode(text)) for text in ("yes", "yes. Think")]


def test_an_engine_at_work_is_left_at_it(model: Any) -> None:
    engine().enqueue("The weather", SamplingParams(max_tokens=4), use_tqdm=False)
    refused("Let vLLM finish first", model, QUESTION, ANSWER, phi="exact", error=ModelError)
    (answer,) = engine().wait_for_completion(use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 4
    assert model(QUESTION, ANSWER, phi="exact")


def test_nothing_stays_open_after_a_call(model: Any) -> None:
    Generator(model, WORDS).sample(QUESTION, n=20, phi="local", seed=0)
    assert not len(model.lm.sessions)


@pytest.mark.parametrize("name", ["narrow", "inside"])
def test_little_room_changes_nothing(name: str, elsewhere: PhiModel, request: pytest.FixtureRequest) -> None:
    """Requests wait for room and are preempted; prompts are read in parts."""
    model = request.getfixturevalue(name)
    prompts = [f"{'A long story, told again and again. ' * 9}Is it true? {i} " for i in range(6)]
    for output_type, phi in ((WORDS, "local"), (regex("[a-zA-Z ,.]{2,20}"), "exact")):
        asked = {"n": 4, "seed": 2, "phi": phi, "max_new_tokens": 25}
        here, there = (Generator(each, output_type).sample_batch(prompts, **asked) for each in (model, elsewhere))
        for one, other in zip(here, there, strict=True):
            assert one.texts == other.texts
            assert [draw.log_p for draw in one] == near_log([draw.log_p for draw in other])


def test_models_over_one_engine_share_its_room(narrow: Any) -> None:
    other = wrap(narrow)
    assert other.lm is not narrow.lm and other.lm.sessions is narrow.lm.sessions


def adapted(folder: Path, number: int) -> tuple[Any, PhiModel]:
    """Return the request of a random adapter that is written into a folder, and the model of Transformers with its weights."""
    hf_model, tokenizer = bundled.load()
    generator, weights = torch.Generator().manual_seed(number), {}
    for i, layer in enumerate(hf_model.model.layers):
        matrix = layer.self_attn.q_proj.weight
        down, up = (
            torch.randn(shape, generator=generator) / 2 for shape in ((8, matrix.shape[1]), (matrix.shape[0], 8))
        )
        with torch.no_grad():
            matrix += up @ down
        name = f"base_model.model.model.layers.{i}.self_attn.q_proj"
        weights |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return LoRARequest(f"a{number}", number, str(folder)), from_transformers(hf_model, tokenizer)


def test_each_adapter_has_a_distribution_and_trees_of_its_own(inside: Any, tmp_path: Path) -> None:
    llm, requests = inside.model, []
    for number in (1, 2):
        (folder := tmp_path / str(number)).mkdir()
        request, merged = adapted(folder, number)
        model = from_vllm_offline(llm, lora_request=request)
        requests.append(request)
        laws = [
            Generator(each, ANSWER).probabilities(QUESTION, tolerance=1e-6).distribution
            for each in (model, wrap(model), merged, inside)
        ]
        assert laws[0] == pytest.approx(laws[2], abs=1e-4) == laws[1] and laws[0] != pytest.approx(laws[3], abs=1e-3)
    for phi, said in (("exact", "lora_request cannot be used here"), (None, "Make a model of it")):
        refused(said, model, QUESTION, ANSWER, phi=phi, lora_request=requests[0])
    refused("cannot be loaded", from_vllm_offline, llm, lora_request=LoRARequest("a", 3, str(tmp_path / "none")))
    refused("enable_lora=True", from_vllm_offline, engine(), lora_request=requests[0])


def test_a_thousand_requests_take_no_memory(narrow: Any) -> None:
    generator = Generator(narrow, WORDS)  # an engine all of whose blocks are in use
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]

    def memory() -> int:
        return sum(process.memory_info().rss for process in processes if process.is_running())

    def draw(batch: int) -> None:
        prompts = [f"Question {batch}.{i}: " for i in range(50)]
        generator.sample_batch(prompts, phi="local", seed=batch, max_new_tokens=30)

    for batch in range(20):  # until allocators have what they keep
        draw(batch)
    before = memory()
    for batch in range(20, 40):
        draw(batch)
    assert memory() - before < 30 * 2**20


def test_the_engine_serves_the_application_as_before(narrow: Any) -> None:
    given = [TokensPrompt(prompt_token_ids=[5, 6, 7, *range(20, 300)]) for _ in range(8)]
    params = SamplingParams(temperature=0.0, max_tokens=16)
    before = [answer.outputs[0].token_ids for answer in narrow.model.generate(given, params, use_tqdm=False)]
    Generator(narrow, WORDS).sample(QUESTION, n=20, phi="exact", seed=0)
    assert before == [answer.outputs[0].token_ids for answer in narrow.model.generate(given, params, use_tqdm=False)]


def test_an_engine_that_dies_is_said_to_have(narrow: Any) -> None:
    """The last test of this engine."""
    for process in narrow.model.llm_engine.engine_core.resources.engine_manager.processes:
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ModelError, match="Load the model again"):
        for seed in range(50):
            Generator(narrow, WORDS).sample(QUESTION, n=4, phi="local", seed=seed)
