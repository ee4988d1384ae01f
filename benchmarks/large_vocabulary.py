"""Draws of free text over 131,072 tokens: what they cost beside the forward pass, in processor time, model calls and memory.

    python -m benchmarks.large_vocabulary

The model is tiny, so that what stands beside it shows; its forward pass is timed apart, by hooks. There are two models: the
distributions of one are wide, those of the other about as peaked as a language model's. The text may hold anything but quotes,
backslashes and control characters. Beside the samplers stands what sampling by itself costs elsewhere: softmax and multinomial of
each row.
"""

import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.report import Report
from benchmarks.schemas import tekken_vocabulary
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.table import Table
from outlines_phi.lm.transformers.transformers_model import TransformersModel
from outlines_phi.phi.estimator import LocalPhi, OneStepPhi
from outlines_phi.phi.tree import evaluator
from outlines_phi.phi.tree.evaluator import TreeStore
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.phi_options import AutoPhi, ExactPhi
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Request, Sampler
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary.vocabulary import Vocabulary

TEXT = r'[^"\\\x00-\x1f]{0,400}'
LENGTH = 64
MODELS = {"wide": (1.0, 14.0), "peaked": (2.0, 18.0)}
"""The scale of the logits, and what is added to that of the end of sequence."""

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "local": lambda: AncestralSampler(LocalPhi()),
    "onestep": lambda: AncestralSampler(OneStepPhi()),
    "exact": lambda: ExactSampler(ExactPhi()),
    "exact, whole rows": lambda: ExactSampler(ExactPhi()),
    "auto": lambda: AutoSampler(AutoPhi()),
}


def tiny(vocabulary: Vocabulary, scale: float, end: float) -> Qwen3ForCausalLM:
    """Return a model of one layer of width 16."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=False,
        max_position_embeddings=4096,
    )
    model = Qwen3ForCausalLM(config).eval()
    model.lm_head = torch.nn.Linear(16, len(vocabulary))
    with torch.no_grad():
        model.lm_head.weight.normal_(0, scale)
        model.lm_head.bias.zero_()
        model.lm_head.bias[vocabulary.eos_ids[0]] = end
    return model


class Clock:
    """The processor seconds that a model itself takes, by hooks around its forward."""

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        self.seconds = self._start = 0.0
        model.register_forward_pre_hook(lambda *_: setattr(self, "_start", time.process_time()))
        model.register_forward_hook(
            lambda *_: setattr(self, "seconds", self.seconds + time.process_time() - self._start)
        )


def per_row(step: Callable[[torch.Tensor], object], rows: int, size: int) -> float:
    """Return the milliseconds of processor time that a row of ``step`` takes, the first time left out."""
    logits = 4 * torch.randn(rows, size)
    step(logits)
    start = time.process_time()
    for _ in range(5):
        step(logits)
    return 1e3 * (time.process_time() - start) / 5 / rows


def main(
    n: Annotated[int, typer.Option(help="Draws of one prompt.")] = 100,
    repeats: Annotated[int, typer.Option(help="Calls of each kind after one to warm up; the least time counts.")] = 3,
    only: Annotated[str, typer.Option(help="Samplers, by comma; all by default.")] = "",
) -> None:
    """Measure and write ``benchmarks/results/large_vocabulary.json``."""
    torch.set_num_threads(1)
    vocabulary = tekken_vocabulary()
    table = Table(FSMGuide.from_automaton(compile_regex(TEXT), vocabulary))
    report = Report(
        "large_vocabulary",
        f"{n} draws of free text over {len(vocabulary):,} tokens, ms of processor time per token beside the forward pass",
        ["model", "sampler", "model calls", "tokens", "forward, ms / token", "beside it, ms / token", "KB / node"],
    )
    stock = per_row(lambda logits: logits.softmax(-1).multinomial(1), 32, len(vocabulary))
    for name, (scale, end) in MODELS.items():
        model = tiny(vocabulary, scale, end)
        clock, lm = Clock(model), TransformersModel(model, vocabulary)
        for sampler, build in SAMPLERS.items():
            if only and sampler not in only.split(","):
                continue
            many, evaluator.MANY = evaluator.MANY, len(vocabulary) if "whole" in sampler else evaluator.MANY
            found = []
            for repeat in range(repeats + 1):
                settings = SamplingSettings(max_new_tokens=LENGTH, seed=repeat)
                request = Request(lm=lm, table=table, prompts=[(5, 6, 7)], settings=settings, n=n)
                clock.seconds, start = 0.0, time.process_time()
                counts = build().sample(request)[0].counts
                total = time.process_time() - start
                cost = [1e3 * clock.seconds / counts.tokens, 1e3 * (total - clock.seconds) / counts.tokens]
                found.append((cost[1], counts.calls, counts.tokens, cost[0]))
            beside, calls, tokens, forward = min(found[1:])
            held = node_kilobytes(lm, table, n) if sampler.startswith("exact") else ""
            report.add(name, sampler, calls, tokens, forward, beside, held)
            evaluator.MANY = many
    report.add("any", "softmax and multinomial alone", "", "", "", stock, "")
    report.write(n=n, vocabulary=len(vocabulary), length=LENGTH, repeats=repeats, text=TEXT)


def node_kilobytes(lm: TransformersModel, table: Table, n: int) -> float:
    """Return the mean kilobytes of a node of the tree after ``n`` draws, the prompt's not counted."""
    store = TreeStore()
    request = Request(lm=lm, table=table, prompts=[(5, 6, 7)], settings=SamplingSettings(max_new_tokens=LENGTH), n=n)
    ExactSampler(ExactPhi(), store=store).sample(request)
    with store.lend(*request.tree_key) as (tree,):
        held = tree.distribution_bytes - (tree.root.free.nbytes if tree.root.free else 0)
        return held / max(1, sum(node.free is not None for node in tree.walk()) - 1) / 1024


if __name__ == "__main__":
    typer.run(main)
