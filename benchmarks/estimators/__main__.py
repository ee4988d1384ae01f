"""The cost of cheap estimators per masked step, against a forward pass of a model of half a billion parameters, in one run.

    python -m benchmarks.estimators

The model has the shape of Qwen3, random weights and 131,072 tokens; it makes one step of each row with a key-value cache, in
whichever of bfloat16 and float32 is the faster for that batch. Before every measured step stands a forward pass, so that an
estimator finds the processor's caches as it finds them in use. What is counted is the step of the estimator (``log p + log
h`` for every token) less that of the plain mask, along the same texts; tables are warm, as they are after the first draws of
a type. Both are processor time of the one thread that works, so that other work on the machine does not count.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import typer
from rich.progress import track
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from benchmarks.estimators.dp_frozen import FrozenDPPhi
from benchmarks.report import Report
from benchmarks.schemas import SCHEMAS, pattern, tekken_vocabulary
from benchmarks.step import texts
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import UNREACHABLE
from outlines_phi.guides.table import Table
from outlines_phi.lm.transformers.transformers_model import TransformersModel
from outlines_phi.phi.branches import Branches
from outlines_phi.phi.estimator import Estimate, LocalPhi, OneStepPhi, Prefixes, ProposalPhi, SampledRun
from outlines_phi.phi.learned import LearnedPhi
from outlines_phi.phi.state_values import StateValues
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings

MASK = "mask"
ESTIMATORS: dict[str, Callable[[], ProposalPhi]] = {
    MASK: LocalPhi,
    "onestep": OneStepPhi,
    "dp-frozen": FrozenDPPhi,
    "learned": lambda: LearnedPhi(StateValues()),
}
LIMITS = {1: 0.01, 8: 0.02}
"""The largest share of a forward pass that an estimator may add, by batch size."""

DTYPES = (torch.bfloat16, torch.float32)
PROMPT = 64


def half_billion(vocabulary: int, layers: int, hidden: int) -> Qwen3ForCausalLM:
    """Return a model of Qwen3's shape with random weights: 0.51 B parameters with 24 layers of width 1024."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
    )
    return Qwen3ForCausalLM(config).eval()


class Stream:
    """A batch that a model continues token by token, with a key-value cache.

    Parameters
    ----------
    model
        The model.
    batch
        The number of rows.
    """

    def __init__(self, model: Qwen3ForCausalLM, batch: int) -> None:
        self.model, self.seconds = model, list[float]()
        self._prompt = torch.randint(model.config.vocab_size, (batch, PROMPT))
        self.restart()

    @torch.inference_mode()
    def restart(self) -> None:
        """Return to the end of the prompt."""
        self._cache = DynamicCache(config=self.model.config)
        self.model(self._prompt, past_key_values=self._cache, use_cache=True, logits_to_keep=1)

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append ``tokens``, ``[batch, 1]``, in one timed forward pass, and return ``[batch, V]`` logits."""
        start = time.thread_time()
        output = self.model(tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self.seconds.append(time.thread_time() - start)
        return output.logits[:, -1].clone()


def faster(model: Qwen3ForCausalLM, batch: int, repeats: int = 3) -> torch.dtype:
    """Return the dtype in which a step of the batch takes less time, and leave the model in it."""
    medians = {}
    for dtype in DTYPES:
        stream = Stream(model.to(dtype), batch)
        for _ in range(repeats + 1):
            stream.step(stream._prompt[:, :1])
        medians[dtype] = statistics.median(stream.seconds[1:])
    best = min(medians, key=lambda dtype: medians[dtype])
    model.to(best)
    return best


def prefixes(table: Table, tokens: torch.Tensor, length: int, budget: int) -> Prefixes:
    """Return the first ``length`` tokens of each text, as a run's prefixes."""
    written = tokens[:, :length].tolist()
    states = []
    for text in written:
        state = table.start
        for token in text:
            state = table.guide.advance(state, token)
        states.append(state)
    rows = range(len(written))
    return Prefixes(rows, rows, states, [budget - length] * len(written), written)


def begun(names: Sequence[str], model: TransformersModel, table: Table, batch: int, budget: int) -> dict[str, Estimate]:
    """Return every estimator at work in a run of ``batch`` prompts."""
    settings = SamplingSettings(max_new_tokens=min(budget, 256), seed=0)
    request = Request(lm=model, table=table, prompts=[(5, 6, 7)] * batch, settings=settings)
    run = SampledRun(
        lm=model,
        table=table,
        settings=settings,
        prompts=request.prompts,
        budgets=[budget] * batch,
        branches=Branches(model, request.prompts),
        stream=lambda row: request.stream(row, 0),
    )
    run.branches.plant()
    return {name: ESTIMATORS[name]().begin(run) for name in names}


def main(
    steps: Annotated[int, typer.Option(help="Tokens per text.")] = 12,
    repeats: Annotated[int, typer.Option(help="Times that each text is walked, after a first to warm up.")] = 4,
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 24,
    hidden: Annotated[int, typer.Option(help="Width of the model.")] = 1024,
    schema: Annotated[str, typer.Option(help="Which schema.")] = "nested, bounded",
) -> None:
    """Measure and write ``benchmarks/results/estimators.json``."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    vocabulary = tekken_vocabulary()
    table = Table(FSMGuide.from_automaton(compile_regex(pattern(SCHEMAS[schema])), vocabulary))
    hf_model = half_billion(len(vocabulary), layers, hidden)
    parameters = sum(weights.numel() for weights in hf_model.parameters())
    report = Report(
        "estimators",
        f"What an estimator adds to a masked step, against a forward pass of {parameters / 1e9:.2f} B parameters (medians)",
        [
            "estimator",
            "batch",
            "budget",
            "forward, ms",
            "dtype",
            "step, ms",
            "of it the mask, ms",
            "added / forward",
            "limit",
        ],
    )
    settings = SamplingSettings()
    for batch, limit in LIMITS.items():
        dtype = faster(hf_model, batch)
        stream = Stream(hf_model, batch)
        tokens = texts(table, batch, steps, seed=batch)
        for budget in (UNREACHABLE - 1, 200):
            estimates = begun(list(ESTIMATORS), TransformersModel(hf_model, vocabulary), table, batch, budget)
            seconds: dict[str, list[float]] = {name: [] for name in estimates}
            stream.seconds.clear()
            for repeat in track(range(repeats + 1), description=f"batch {batch}"):
                stream.restart()
                for length in range(steps):
                    where = prefixes(table, tokens, length, budget)
                    for name, estimate in estimates.items():
                        scores = settings.log_p(stream.step(tokens[:, length : length + 1]), vocabulary, ())
                        start = time.thread_time()
                        estimate.scores(scores, where)
                        if repeat:  # the first walk fills the tables
                            seconds[name].append(time.thread_time() - start)
            forward, mask = statistics.median(stream.seconds), statistics.median(seconds.pop(MASK))
            for name, values in seconds.items():
                step = statistics.median(values)
                bound = "none" if budget > 1000 else budget
                times = (1e3 * forward, str(dtype).removeprefix("torch."), 1e3 * step, 1e3 * mask)
                report.add(name, batch, bound, *times, (step - mask) / forward, limit)
    report.write(vocabulary=len(vocabulary), schema=schema, steps=steps, repeats=repeats)


if __name__ == "__main__":
    typer.run(main)
