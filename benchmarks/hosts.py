"""The cost of a draw on each host, beside that host's own generation of free text.

    PYTHONPATH=workbench python -m benchmarks.hosts --host transformers

The hosts llamacpp, mlx and vllm run in the environments of make test-llamacpp, ...

The bundled model in single precision, one thread, processor seconds: the same weights everywhere. Plain generation writes as many
tokens as a masked draw does, and does not end before.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from outlines.types import regex

import outlines_phi
from benchmarks.report import Report
from outlines_phi.plugin.session import PhiModel
from tests.hosts.test_hosts import HOSTS
from tests.hosts.vllm_engine import start

PROMPT = "Question: is the bakery open on Sunday? Answer: "
TEXT = regex("[a-z ,.]{120}")
ANSWER = regex("[a-zA-Z ,.]{2,80}")  # The model's usual answers, nearly


def model_of(host: str, folder: Path) -> PhiModel:
    """Return the bundled model on a host; an engine runs in this process, for processes that wait for each other take time, too."""
    if host != "vllm":
        return HOSTS[host][0](folder)
    from outlines_phi.vllm import ENGINE

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return outlines_phi.from_vllm_offline(start(**ENGINE, distributed_executor_backend="uni"))


def plain(name: str, model: Any) -> Callable[[int], object]:
    """Return the host's own generation of so many tokens of free text."""
    ids = list(model._prompt_ids(PROMPT))
    match name:
        case "transformers":
            given = torch.tensor([ids])
            usual = {"do_sample": True, "top_k": 0, "attention_mask": torch.ones_like(given), "pad_token_id": 1}
            return lambda length: model.model.generate(given, min_new_tokens=length, max_new_tokens=length, **usual)
        case "llamacpp":
            usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "logit_bias": {0: -1e9}}
            return lambda length: model.model(PROMPT, max_tokens=length, **usual)
        case "vllm":
            from vllm import SamplingParams, TokensPrompt

            given = [TokensPrompt(prompt_token_ids=ids)]
            own = lambda length: SamplingParams(min_tokens=length, max_tokens=length, detokenize=False)  # noqa: E731
            return lambda length: model.model.generate(given, own(length), use_tqdm=False)
        case _:
            import mlx.core as mx
            from mlx_lm.generate import generate_step
            from mlx_lm.sample_utils import make_sampler

            sampler = make_sampler(temp=1.0)
            return lambda length: list(generate_step(mx.array(ids), model.model, max_tokens=length, sampler=sampler))


def spent(work: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main(
    host: Annotated[str, typer.Option(help="transformers, llamacpp, mlx or vllm.")] = "transformers",
    n: Annotated[int, typer.Option(help="Draws.")] = 64,
    repeats: Annotated[int, typer.Option(help="The best of so many.")] = 3,
) -> None:
    """Measure and write ``hosts_<host>.json``."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(host, Path(folder))
        text, answer = (outlines_phi.Generator(model, output_type) for output_type in (TEXT, ANSWER))

        def draws(phi: str, generator: outlines_phi.Generator, together: bool) -> tuple[float, int]:
            """Return the processor seconds of ``n`` draws, and their tokens."""
            numbers = [n] if together else [1] * n
            made: list[Any] = []
            seconds = spent(
                lambda: made.extend(
                    generator.sample(PROMPT, n=number, phi=phi, seed=seed, max_new_tokens=120)
                    for seed, number in enumerate(numbers)
                )
            )
            return seconds, sum(len(draw.token_ids) for each in made for draw in each)

        draws("local", text, True)  # compiles the type, and warms up
        length = max(1, round(draws("local", text, True)[1] / n))
        generate = plain(host, model)
        own = min(spent(lambda: [generate(length) for _ in range(n)]) / (n * length) for _ in range(repeats))
        report = Report(
            f"hosts_{host}",
            f"Draws on {host}: CPU ms a token, and relative to its own generation of {length} tokens of free text, one by one",
            ["what", "ms a token", "relative"],
        )
        report.add("own generation", 1e3 * own, 1.0)
        for what, *asked in (
            ("local, 120 letters, one by one", "local", text, False),
            ("local, 120 letters, one call", "local", text, True),
            ("exact, an answer, one by one", "exact", answer, False),
            ("exact, an answer, one call", "exact", answer, True),
        ):
            seconds = min(cost / tokens for cost, tokens in (draws(*asked) for _ in range(repeats)))
            report.add(what, 1e3 * seconds, seconds / own)
        report.write(n=n, repeats=repeats, prompt=PROMPT)


if __name__ == "__main__":
    typer.run(main)
