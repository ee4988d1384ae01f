"""`--host`: commands on every host that is here, and the sentences of those that are not."""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import outlines_phi
from outlines_phi.lm import bundled
from tests.hosts.fake_engine import client_of, vllm_or_stand_ins

QUESTION = "Question: is the bakery open on Sunday? Answer: "
ADDRESS = "http://localhost:1/v1"
PACKAGES = {"transformers": "transformers", "llamacpp": "llama_cpp", "mlx": "mlx_lm", "vllm": "vllm"}


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def draw(run: Run) -> Run:
    asked = ["generate", "--regex", "yes|no|not on Sunday", QUESTION, "--n", "20", "--seed", "1", "--quiet"]
    return lambda *given: run(*asked, *given)


def failed(found: tuple[int, str, str], words: str) -> bool:
    """Return True if a command has failed with a message that holds some words."""
    return found[0] != 0 and words in " ".join(found[2].split())


def texts(found: tuple[int, str, str]) -> list[str]:
    code, out, err = found
    assert code == 0, err
    return [record["text"] for record in [json.loads(line) for line in out.splitlines()] if record["record"] == "draw"]


@pytest.fixture(params=PACKAGES)
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    if importlib.util.find_spec(PACKAGES[request.param]) is None:
        pytest.skip(f"needs {PACKAGES[request.param]}")
    if request.param == "vllm":
        from tests.hosts.vllm_engine import engine

        shared = engine()  # takes long to start
        # With the class, before a function replaces it.
        importlib.import_module("outlines_phi.plugin.hosts.vllm_offline")
        monkeypatch.setattr("vllm.LLM", lambda model, **settings: shared)
    if request.param != "llamacpp":
        return ["--host", request.param]
    from tests.hosts.gguf_model import write

    write(tmp_path / "bundled.gguf")
    return ["--model", str(tmp_path / "bundled.gguf")]


def test_the_texts_of_every_host_are_those_of_transformers(host: list[str], draw: Run) -> None:
    assert texts(draw("--phi", "exact", *host)) == texts(draw("--phi", "exact"))


def goes_on(draw: Run, folder: Path, *host: str) -> bool:
    """Return True if a second run leaves the file of the first one as it is."""
    output = folder / "draws.jsonl"
    asked = ["--phi", "exact", "--output", str(output), *host]
    runs = {(draw(*asked)[0], output.read_text(encoding="utf-8")) for _ in range(2)}
    return runs == {(0, output.read_text(encoding="utf-8"))} and output.stat().st_size > 0


def test_a_run_goes_on_where_it_was(host: list[str], tmp_path: Path, draw: Run) -> None:
    assert goes_on(draw, tmp_path, *host)


def test_probabilities(host: list[str], run: Run, tmp_path: Path) -> None:
    def asked(*given: str) -> dict[str, float]:
        sent = ["probabilities", "--regex", "yes|no|not now", QUESTION, "--tolerance", "0", "--quiet"]
        code, _, err = run(*sent, "--output", str(tmp_path / "p.jsonl"), *given)
        assert code == 0, err
        lines = map(json.loads, (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines())
        return {line["text"]: line["p"] for line in lines if line["record"] == "value"}

    assert asked(*host) == pytest.approx(asked(), abs=1e-3)


def test_an_audit(host: list[str], run: Run) -> None:
    code, _, err = run("audit", "--regex", "yes|no", QUESTION, "--n", "40", "--seed", "1", "--quiet", *host)
    assert code == 3, err


@pytest.mark.parametrize("name", ["llamacpp", "mlx", "vllm"])
def test_a_library_that_is_missing_is_named(name: str, draw: Run) -> None:
    if importlib.util.find_spec(PACKAGES[name]) is not None:
        pytest.skip(f"{name} is here")
    assert failed(draw("--host", name), f'pip install "outlines_phi[{name}]"')


SERVER = ["--host", "vllm-server", "--model"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--host", "sglang"], "expected one of transformers, llamacpp, mlx, vllm, vllm-server"),
        (["--host", "mlx", "--device", "cuda"], "Leave out --device"),
        (["--host", "vllm-server", "--device", "cuda"], "Leave out --device"),
        ([*SERVER, "bundled"], "Give the address of a server"),
        ([*SERVER, ADDRESS, "--dtype", "float16"], "Leave out --dtype: outlines-phi serve loads"),
        (["--model", "no/such/file.gguf"], "there is no such file"),
        (["--host", "llamacpp"], "Give a GGUF file"),
        (["--model", "any.gguf", "--dtype", "float16"], "types of its own"),
    ],
)
def test_what_does_not_go_together_is_said(given: list[str], words: str, server: None, draw: Run) -> None:
    if "llamacpp" in given or ".gguf" in str(given):
        pytest.importorskip("llama_cpp")
    assert failed(draw(*given), words)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client of the OpenAI protocol that finds a server of the bundled model."""
    with vllm_or_stand_ins() as vllm:
        model = outlines_phi.from_transformers(*bundled.load())
        encode = model.hf_tokenizer.encode
        client = client_of(vllm, monkeypatch, model.lm, model.lm.vocabulary, encode, context=256, room=16)
        listed = SimpleNamespace(data=[SimpleNamespace(id="bundled")])
        client.models = SimpleNamespace(list=lambda: listed)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "openai", SimpleNamespace(OpenAI=lambda **given: client, OpenAIError=OSError))  # type: ignore[arg-type]
        yield


def test_a_vllm_server_draws_and_its_file_goes_on(server: None, tmp_path: Path, draw: Run) -> None:
    address = [*SERVER, ADDRESS]
    assert texts(draw("--phi", "local", *address)) == texts(draw("--phi", "local"))
    assert goes_on(draw, tmp_path, *address)


@pytest.mark.parametrize("command", ["audit", "probabilities"])
def test_what_a_server_cannot_tell_is_refused(command: str, server: None, run: Run) -> None:
    found = run(command, "--regex", "yes|no", QUESTION, "--quiet", *SERVER, ADDRESS)
    assert failed(found, "run the model with vLLM offline")
