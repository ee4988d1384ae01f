"""Draws over 151,936 tokens by models of the shapes of Qwen3 0.6 B and 8 B: what they cost beside the forward pass.

    python -m benchmarks.gpu

The weights are random, so that nothing is downloaded; free text has the length that is asked for. Wall time, the accelerator
waited for before and after each forward pass: nothing of one is counted as the other. It runs on a CPU too, with ``--shapes tiny``.
"""

import math
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.large_vocabulary import TEXT
from benchmarks.report import Report
from benchmarks.scaling import first_tokens, free_text
from benchmarks.schemas import tekken_vocabulary
from outlines_phi.drafting.earlier_texts import PromptLookupDrafter
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.table import Table
from outlines_phi.lm.transformers.transformers_model import TransformersModel
from outlines_phi.phi.estimator import LocalPhi, OneStepPhi
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.phi_options import AutoPhi, ExactPhi
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Prefetch, Request, Sampler
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary.vocabulary import Vocabulary

SHAPES: dict[str, tuple[int, int, int, int]] = {
    "tiny": (32, 64, 1, 2),
    "0.6B": (1024, 3072, 28, 16),
    "8B": (4096, 12_288, 36, 32),
}
"""Width, inner width, layers and heads: those of the published models."""

LOOKUP = Prefetch(PromptLookupDrafter(), 8, None)

SAMPLERS: dict[str, tuple[Callable[[], Sampler], str]] = {
    "exact": (lambda: ExactSampler(ExactPhi()), "text"),
    "auto": (lambda: AutoSampler(AutoPhi()), "text"),
    "local": (lambda: AncestralSampler(LocalPhi()), "text"),
    "onestep": (lambda: AncestralSampler(OneStepPhi()), "text"),
    "local, drafts": (lambda: AncestralSampler(LocalPhi(), draft=LOOKUP), "text"),
    "exact, banned": (lambda: ExactSampler(ExactPhi()), "banned"),
    "local, banned": (lambda: AncestralSampler(LocalPhi()), "banned"),
}
"""Each sampler, and the language that it draws from."""


def shaped(shape: str, vocabulary: Vocabulary, device: torch.device) -> Qwen3ForCausalLM:
    """Return a model of random weights that ends a text about once in 50 tokens: in half precision, but on a CPU."""
    width, inner, layers, heads = SHAPES[shape]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4) if shape == "8B" else max(1, heads // 2),
        head_dim=8 if shape == "tiny" else 128,
        tie_word_embeddings=False,
        max_position_embeddings=4096,
    )
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(torch.float32 if device.type == "cpu" else torch.bfloat16).eval()
        model.lm_head = torch.nn.Linear(width, len(vocabulary), dtype=model.dtype)
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 2 * width**-0.5)
        model.lm_head.bias.zero_()
        model.lm_head.bias[vocabulary.eos_ids[0]] = 2 + math.log(len(vocabulary) / 50)
    return model


def languages(vocabulary: Vocabulary) -> dict[str, Table]:
    """Return the languages of the draws."""
    return {
        "text": Table(FSMGuide.from_automaton(compile_regex(TEXT), vocabulary)),
        "banned": free_text(vocabulary),
    }


class WallClock:
    """The wall seconds of a model's forward passes, by hooks that wait for the accelerator."""

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        self.seconds = self._start = 0.0
        model.register_forward_pre_hook(lambda *_: setattr(self, "_start", now()))
        model.register_forward_hook(lambda *_: setattr(self, "seconds", self.seconds + now() - self._start))


def now() -> float:
    """Return the time once the accelerator is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main(
    shapes: Annotated[str, typer.Option(help="Shapes of models, by comma.")] = "0.6B,8B",
    batches: Annotated[str, typer.Option(help="Draws of one prompt, by comma.")] = "1,4,16,64,256",
    length: Annotated[int, typer.Option(help="Tokens of a text, at most.")] = 64,
    size: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = 151_936,
    only: Annotated[str, typer.Option(help="Samplers, by semicolon; all by default.")] = "",
) -> None:
    """Measure and write ``benchmarks/results/gpu.json``; on a CPU ``gpu_cpu.json``."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    vocabulary = first_tokens(tekken_vocabulary(), size)
    tables, title = languages(vocabulary), f"{len(vocabulary):,} tokens: wall time of a model call, and beside it"
    columns = ["model", "sampler", "draws", "model calls", "tokens", "forward, ms / call", "beside it, ms / call"]
    report = Report(f"gpu_{device.type}".removesuffix("_cuda"), title, columns)
    for shape in shapes.split(","):
        model = shaped(shape, vocabulary, device)
        clock, lm = WallClock(model), TransformersModel(model, vocabulary)
        for name, (build, language) in SAMPLERS.items():
            if only and name not in only.split(";"):
                continue
            for n in map(int, batches.split(",")):
                report.add(shape, name, n, *cost(build, lm, tables[language], n, length, clock))
    report.write(shapes=shapes, batches=batches, length=length, text=TEXT)


def cost(
    build: Callable[[], Sampler], lm: TransformersModel, table: Table, n: int, length: int, clock: WallClock
) -> list[Any]:
    """Return model calls, tokens, and milliseconds per call of the model and of all else: of the second time that it is done."""
    for seed in range(2):
        settings = SamplingSettings(max_new_tokens=length, seed=seed)
        request = Request(lm=lm, table=table, prompts=[(5, 6, 7)], settings=settings, n=n)
        clock.seconds, start = 0.0, now()
        counts = build().sample(request)[0].counts
        total = now() - start
    return [
        counts.calls,
        counts.tokens,
        1e3 * clock.seconds / counts.calls,
        1e3 * (total - clock.seconds) / counts.calls,
    ]


if __name__ == "__main__":
    typer.run(main)
