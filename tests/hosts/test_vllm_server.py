"""A vLLM server of its own, asked over HTTP: what no engine of the tests' own can show. Run by `make test-vllm`."""

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex
from pydantic import BaseModel

from outlines_phi import BannedPhrases, Generator, Guarantee, wrap
from outlines_phi.cli.app import command_of
from outlines_phi.errors import ModelError
from outlines_phi.lm import bundled
from outlines_phi.plugin.hosts.vllm_server import phi_vllm
from tests.languages import p_value
from tests.leaks import leaks
from tests.refusals import refused

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vllm", allow_module_level=True)

import openai  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

QUESTION = "Question: is the bakery open on Sunday? Answer: "
ALPHA = 1e-4
FOLDER = Path(bundled.__file__).parent
ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "block_size": 32, "max_num_seqs": 64}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Record(BaseModel, frozen=True):
    name: Literal["Ada", "Bob"]
    open: bool


FORMATS: dict[str, tuple[Any, str]] = {
    "literal": (Literal["yes", "no", "not on Sunday"], QUESTION),
    "regex": (regex(r"(human|elf|dwarf|halfling) (wizard|rogue|healer|ranger)\."), "Hugo is a "),
    "record": (Record, "A record in JSON: "),
}


def start(processor: str | None = None, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server, as `outlines-phi serve` does; ``processor`` is another one than ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [
        part
        for name, value in ENGINE.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
        if value is not True
    ]
    extra = [*given, "--enforce-eager", "--chat-template", TEMPLATE, "--served-model-name", "bundled", *options]
    command = command_of(str(FOLDER), port, extra)
    if processor is not None:
        command[command.index("--logits-processors") + 1] = processor
    root = str(Path(__file__).parents[2])
    variables = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    variables["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    server = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # its engine is a process of its own, which ends with it
    )
    return server, f"http://127.0.0.1:{port}/v1"


def end(server: subprocess.Popen[bytes], sent: signal.Signals = signal.SIGTERM) -> None:
    """End a server with its engine."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, sent)
    server.wait(60)


def wait(server: subprocess.Popen[bytes] | None, url: str) -> openai.OpenAI:
    """Return a client of a server once it answers."""
    client = openai.OpenAI(base_url=url, api_key="-", max_retries=0)
    for _ in range(1_200):
        assert server is None or server.poll() is None, "the server has not started"
        try:
            client.models.list()
        except openai.APIConnectionError:
            time.sleep(0.5)
        else:
            return client
    raise AssertionError("the server does not answer")


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    running = os.environ.get("OUTLINES_PHI_TEST_SERVER")  # one that runs already
    server, url = (None, running) if running else start()
    try:
        with wait(server, url) as client:
            yield client
    finally:
        if server is not None:
            end(server)


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> Any:
    return wrap(outlines.from_vllm(client, "bundled"))


def law(elsewhere: Any, name: str) -> dict[Any, float]:
    output_type, prompt = FORMATS[name]
    found = Generator(elsewhere, output_type).probabilities(prompt, tolerance=0.01).distribution
    return {str(value): p / sum(found.values()) for value, p in found.items()}


def distance(values: list[str], expected: dict[str, float]) -> float:
    """The total variation of the frequencies of values to a law."""
    counts = Counter(values)
    return 0.5 * sum(abs(counts[value] / len(values) - expected.get(value, 0)) for value in {*counts, *expected})


@pytest.mark.parametrize("name", FORMATS)
def test_exact_draws_have_the_conditioned_distribution_and_masking_has_not(
    name: str, model: Any, elsewhere: Any, record_property: Any
) -> None:
    output_type, prompt = FORMATS[name]
    expected = law(elsewhere, name)
    generator = Generator(model, output_type)
    found = {phi: list(map(str, generator.sample(prompt, n=300, phi=phi).values)) for phi in ("exact", "local")}
    for phi, values in found.items():
        record_property(f"{name} {phi}", round(distance(values, expected), 4))
        print(f"\n{name}, {phi}: TV {distance(values, expected):.3f}")
    assert p_value(found["exact"], expected) > ALPHA > p_value(found["local"], expected)


def test_numbers_and_seeded_masked_texts_are_those_of_transformers(model: Any, elsewhere: Any) -> None:
    for output_type, prompt in FORMATS.values():
        here, there = (
            Generator(each, output_type).sample(prompt, n=30, phi="local", seed=2) for each in (model, elsewhere)
        )
        assert here.texts == there.texts and here.guarantee is Guarantee.WEIGHTED
        mine, theirs = ([*draws.log_w, *(draw.log_p for draw in draws)] for draws in (here, there))
        assert mine == pytest.approx(theirs, abs=1e-3)
        low, high = Generator(model, output_type).sample(prompt, n=30, phi="exact").log_z_bounds
        known = Generator(elsewhere, output_type).sample(prompt, n=30, phi="exact").log_z_bounds
        assert low <= known[1] + 1e-3 and high >= known[0] - 1e-3


def test_a_seed_names_the_texts(model: Any) -> None:
    generator = Generator(model, FORMATS["regex"][0], phi="exact")
    first, again, other = (generator.sample("Hugo is a ", n=20, seed=seed).texts for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("phi", ["exact", "local"])
def test_nothing_banned_is_written(phi: str, model: Any) -> None:
    ban = BannedPhrases(["open", "es", " the"], ignore_case=True)
    free = Generator(model, None, banned_phrases=ban, phi=phi).sample(QUESTION, n=150, max_new_tokens=16).texts
    typed = Generator(model, regex("[a-z ]{4,20}"), banned_phrases=ban, phi=phi).sample(QUESTION, n=150).texts
    assert len(free) == len(typed) == 150
    assert [leak for text in [*free, *typed] for leak in leaks(ban, text.encode(), QUESTION.encode())] == []


def test_many_callers_at_once(model: Any, elsewhere: Any) -> None:
    output_type, prompt = FORMATS["literal"]
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda _: model(prompt, output_type, phi="exact"), range(160)))
    assert p_value(found, law(elsewhere, "literal")) > ALPHA


def test_asynchronous(client: openai.OpenAI) -> None:
    async def called() -> list[str]:
        asynchronous = openai.AsyncOpenAI(base_url=str(client.base_url), api_key="-")
        model = wrap(outlines.from_vllm(asynchronous, "bundled"))
        generator = Generator(model, Literal["yes", "no"], phi="exact")
        texts = list(await asyncio.gather(*(model(QUESTION, Literal["yes", "no"], phi="exact") for _ in range(12))))
        texts += [await generator(QUESTION), *(await generator.asample(QUESTION, n=5)).texts]
        waiting = asyncio.create_task(generator.asample(QUESTION, n=300))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asynchronous.close()
        return texts

    assert set(asyncio.run(called())) <= {"yes", "no"}


def test_calls_without_phi_are_those_of_outlines(client: openai.OpenAI, model: Any) -> None:
    stock = outlines.from_vllm(client, "bundled")
    plain = {"temperature": 0.0, "max_tokens": 6}
    assert model(QUESTION, **plain) == stock(QUESTION, **plain)
    assert model(QUESTION, Literal["yes", "no"], **plain) == stock(QUESTION, Literal["yes", "no"], **plain)
    assert "".join(model.stream(QUESTION, **plain)) == stock(QUESTION, **plain)


def test_what_is_wrong_with_a_request_is_said_and_hurts_no_other(client: openai.OpenAI, model: Any) -> None:
    with ThreadPoolExecutor(2) as callers:
        beside = callers.submit(Generator(model, FORMATS["regex"][0]).sample, "Hugo is a ", n=100, phi="exact")
        refused("context", model, QUESTION * 60, Literal["yes"], phi="exact", error=ModelError)
        refused("--max-model-len", model, QUESTION, regex("[a-z]{2000}[0-9]{2000}"), phi="exact", error=ModelError)
        arguments = {
            "model": "bundled",
            "messages": [{"role": "user", "content": "x"}],
            "seed": 0,
            "logprobs": True,
            "top_logprobs": 6,
        }
        for given, words in (
            ({"temperature": 0.5, "extra_body": {"vllm_xargs": {"outlines_phi": "{}"}}}, "Leave temperature"),
            ({"temperature": 1.0, "extra_body": {"vllm_xargs": {"outlines_phi": "{}"}}}, "cannot be read"),
        ):
            refused(words, client.chat.completions.create, **arguments, **given, error=openai.BadRequestError)
        assert len(beside.result()) == 100


def test_a_server_without_the_processor_is_told(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know the argument, and writes what it would have written."""
    monkeypatch.setattr(phi_vllm, "ARGUMENT", "nobody")
    model = wrap(outlines.from_vllm(client, "bundled"))
    refused("outlines-phi serve MODEL", model, QUESTION, Literal["yes", "no"], phi="exact")


def test_a_server_without_the_coin_and_one_that_dies_in_a_draw(elsewhere: Any) -> None:
    server, url = start("tests.hosts.other_processor:WithoutCoin")
    try:
        with wait(server, url) as client:
            model = wrap(outlines.from_vllm(client, "bundled"))
            outcomes = []
            for budget in range(30, 40):  # each has a tree of its own
                draws = Generator(model, FORMATS["regex"][0], phi="exact").sample(
                    "Hugo is a ", n=30, max_new_tokens=budget
                )
                outcomes += [str(value) for value in draws.values]
            expected = law(elsewhere, "regex")
            print(f"\nregex, without the coin: TV {distance(outcomes, expected):.3f}")
            assert p_value(outcomes, expected) < ALPHA
            with ThreadPoolExecutor(1) as caller:
                call = caller.submit(model, QUESTION, regex("[a-z]{300}"), phi="local", num_return_sequences=60)
                time.sleep(1)
                server.kill()
                refused(None, call.result, timeout=60, error=outlines.exceptions.APIError)
    finally:
        end(server, signal.SIGKILL)


def test_a_server_that_could_not_draw_does_not_start() -> None:
    command = [*command_of(str(FOLDER), None, ()), "--dtype", "float32", "--enforce-eager", "--max-model-len", "128"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    given = ["--block-size", "32", "--enable-chunked-prefill", "--logprobs-mode", "raw_logprobs"]
    ended = subprocess.run([*command, *given], env=environment, capture_output=True, timeout=900)
    assert ended.returncode != 0 and b"Start the server by outlines-phi serve MODEL" in ended.stdout + ended.stderr


def test_a_request_that_is_cancelled_leaves_nothing_behind() -> None:
    """In an engine of another process, whose memory can be looked into there: some walks are cancelled, some come back."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.hosts.cancelled_requests"]
    found = subprocess.run(command, env=environment, cwd=root, capture_output=True, timeout=500, text=True)
    assert found.returncode == 0, found.stderr[-2000:]
    assert "left: 0 walks, 0 rows" in found.stdout
