"""Drafts on the bundled model: tokens per model call and wall time; a small sibling against theory; what verification adds.

    python -m benchmarks.drafting

Three tables.

*Records*: JSON that the model writes well, one text for each of many distinct prompts, each from a cold tree (every call has a
seed, so nothing is kept). Tokens per call are the tokens of the text over the model calls that drew it. Wall time is that of the
same prompts, in the same run, by plain Outlines (``phi=None``), the same call, and by the same estimator without a draft; the
ratio is of sums, in which prompts take turns. The rows *both* are of all prompts of both records.

*Sibling*: a model of one layer, trained here for about a minute on the text of the bundled model, drafts a fixed number of
tokens. Each test of a drafted token is kept with probability ``a``, the acceptance rate that was counted, so a round of ``k``
drafts is expected to write ``(1 - a^(k+1)) / (1 - a)`` tokens (Leviathan et al., arXiv 2211.17192, equation 1); this is averaged
over the drafts that were made. Those that end with the text have no token after them, for which theory does not allow.

*Verification*: reading the distributions of 8 rows with 5 drafts each over 131,072 tokens, deciding and drawing, against the
forward pass of half a billion parameters that evaluated those tokens, in processor time of the one thread that works.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple
from unittest import mock

import torch
import typer
from pydantic import BaseModel, Field
from rich.progress import track
from transformers import Qwen3ForCausalLM

import outlines_phi
from benchmarks.estimators.__main__ import Stream, faster, half_billion
from benchmarks.report import Report
from outlines_phi.drafting import ForcedDrafter
from outlines_phi.drafting.model_drafter import ModelDrafter
from outlines_phi.lm import bundled
from outlines_phi.lm.transformers.transformers_model import TransformersModel
from outlines_phi.numerics.distributions import Distributions
from outlines_phi.phi.estimator import LocalPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.coupling import Chains, Proposals, verify
from outlines_phi.sampling.draws import Draws
from outlines_phi.sampling.sampler import DRAFT_LENGTH, Prefetch, Request
from outlines_phi.sampling.stepper import Trajectory
from outlines_phi.settings import SamplingSettings

NAMES = ("Bram", "Cleo", "Dara", "Edda", "Finn", "Greta", "Hugo", "Ines", "Jonas", "Kaya")
JOBS = ("baker", "teacher", "nurse", "painter", "farmer")
CITIES = ("Paris", "Oslo", "Rome", "Berlin", "Lisbon")
ITEMS = ("green tea", "black coffee", "apple pie", "rye bread", "tomato soup", "lemon cake")
SIZES = ("small", "medium", "large")
DRAFTS: dict[str, Any] = {
    "none": None,
    "ForcedDrafter()": ForcedDrafter(),
    "ForcedDrafter(), prompt_lookup": [ForcedDrafter(), "prompt_lookup"],
    "forced": "forced",
    "forced, prompt_lookup": ["forced", "prompt_lookup"],
}
PER_CALL, WALL, THEORY, OVERHEAD = 2.5, 0.6, 0.15, 0.05
"""The aims: tokens per call, share of the wall time, distance from theory, share of a forward pass."""

LENGTHS = (2, 4, 8)
BATCH, LENGTH, VOCABULARY = 8, 5, 131072


class Person(BaseModel):
    """A record as the model writes them."""

    name: str = Field(max_length=30)
    age: int
    city: str = Field(max_length=30)


class Order(BaseModel):
    """A record whose values stand in the prompt, of few alternatives."""

    item: str = Field(max_length=14)
    size: Literal["small", "medium", "large"]
    count: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    paid: bool


RECORDS: dict[str, tuple[type[BaseModel], list[str]]] = {
    "person": (
        Person,
        [f"Person: {name} is a {job} in {city}. JSON: " for name in NAMES for job in JOBS for city in CITIES],
    ),
    "order": (
        Order,
        [f"Order: two {size} {item} for {name}. JSON: " for name in NAMES for size in SIZES for item in ITEMS],
    ),
}
"""Output types, each with distinct prompts that the model answers so."""


def training() -> ModuleType:
    """Return the program that trained the bundled model, which has its text."""
    path = Path(__file__).parent.parent / "examples" / "train_bundled_model.py"
    spec = importlib.util.spec_from_file_location("train_bundled_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sibling(tokenizer: Any, steps: int) -> Qwen3ForCausalLM:
    """Return a model of one narrow layer, trained on the text of the bundled model."""
    program = training()
    torch.manual_seed(0)
    model = program.untrained(tokenizer, layers=1, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=max(2, steps), pct_start=0.1)
    return program.learned(model, program.batches(tokenizer, seed=1), steps, optimizer, schedule)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the wall time of a call, in seconds, and what it returned."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def some(prompts: Sequence[str], n: int) -> list[str]:
    """Return ``n`` of the prompts, from all over them."""
    return list(prompts[:: max(1, len(prompts) // n)][:n])


@contextmanager
def draws_noted() -> Iterator[list[Draws]]:
    """Yield a list that gets the draws behind every text."""
    noted: list[Draws] = []
    draw = outlines_phi.PhiTransformers.draw

    def noting(*given: Any, **options: Any) -> list[Draws]:
        noted.extend(results := draw(*given, **options))
        return results

    with mock.patch.object(outlines_phi.PhiTransformers, "draw", noting):
        yield noted


class Sums(NamedTuple):
    """The totals of some texts."""

    texts: int = 0
    written: int = 0
    calls: int = 0
    tokens: int = 0
    drafted: int = 0
    followed: int = 0
    seconds: float = 0.0
    plain: float = 0.0

    @classmethod
    def of(cls, draws: Draws, seconds: float, plain: float) -> Sums:
        """Return those of one text, which took ``seconds``, and plain Outlines ``plain``."""
        counts = draws.counts
        written = len(draws[0].token_ids)
        return cls(1, written, counts.calls, counts.tokens, counts.drafted, counts.followed, seconds, plain)

    def plus(self, other: Sums) -> Sums:
        """Return those of both."""
        return Sums._make(mine + its for mine, its in zip(self, other, strict=True))

    def row(self, undrafted: Sums) -> tuple[Any, ...]:
        """Return the row of the table."""
        aims = ("", "") if self is undrafted else (PER_CALL, WALL)
        kept = self.followed / self.drafted if self.drafted else ""
        each = (self.calls / self.texts, self.tokens / self.texts, 1e3 * self.seconds / self.texts)
        shares = self.seconds / self.plain, self.seconds / undrafted.seconds
        return self.written / self.calls, aims[0], kept, *each, *shares, aims[1]


def records(model: outlines_phi.PhiTransformers, drafts: dict[str, Any], n: int) -> None:
    """Measure tokens per call and wall time, and write ``drafting.json``."""
    report = Report(
        "drafting",
        "Drafts: one JSON record for each of many prompts, from cold trees",
        [
            "record",
            "phi",
            "draft",
            "tokens per model call",
            "aim, at least",
            "drafted tokens kept",
            "model calls",
            "model tokens",
            "ms a text",
            "of plain Outlines",
            "of no draft",
            "aim, at most",
        ],
    )
    for phi in ("local", "exact"):
        both = dict.fromkeys(drafts, Sums())
        for record, (output_type, prompts) in RECORDS.items():
            found = one_record(model, output_type, some(prompts, n), phi, drafts, f"{record}, {phi}")
            for name, sums in found.items():
                report.add(record, phi, name, *sums.row(found["none"]))
                both[name] = both[name].plus(sums)
        for name, sums in both.items():
            report.add("both", phi, name, *sums.row(both["none"]))
    examples = {record: prompts[0] for record, (_, prompts) in RECORDS.items()}
    report.write(prompts=n, **examples, **{"draft length": DRAFT_LENGTH})


def one_record(
    model: outlines_phi.PhiTransformers,
    output_type: type[BaseModel],
    prompts: Sequence[str],
    phi: str,
    drafts: dict[str, Any],
    title: str,
) -> dict[str, Sums]:
    """Write a record for each prompt with every draft; return what each draft has come to."""
    plain = outlines_phi.Generator(model, output_type, phi=None)
    generators = {
        name: outlines_phi.Generator(model, output_type, phi=phi, draft=draft) for name, draft in drafts.items()
    }
    found = dict.fromkeys(drafts, Sums())
    for row, prompt in enumerate(track([prompts[0], *prompts], description=title)):
        torch.manual_seed(row)
        by_plain, _ = timed(partial(plain, prompt, do_sample=True, max_new_tokens=256))
        for name, generator in generators.items():
            with draws_noted() as noted:
                seconds, _ = timed(partial(generator, prompt, seed=row))
            if row:  # the first prompt, which comes again, fills the tables
                found[name] = found[name].plus(Sums.of(noted[0], seconds, by_plain))
    return found


@contextmanager
def rounds_noted() -> Iterator[list[tuple[int, int, int]]]:
    """Yield a list that gets, of every round of a walk, the tokens that were drafted, kept, and written."""
    rounds: list[tuple[int, int, int]] = []
    note = Trajectory.observe

    def noting(state: Trajectory, drafted: int, followed: int, written: int) -> None:
        rounds.append((drafted, followed, written))
        note(state, drafted, followed, written)

    with mock.patch.object(Trajectory, "observe", noting):
        yield rounds


def expected(acceptance: float, drafted: int) -> float:
    """Return the tokens that a round of ``drafted`` tokens is expected to write."""
    return sum(acceptance**i for i in range(drafted + 1))


def against_theory(model: outlines_phi.PhiTransformers, drafting: Any, n: int, steps: int) -> None:
    """Measure the sibling's drafts, and write ``drafting_sibling.json``."""
    report = Report(
        "drafting_sibling",
        "Drafts of a small sibling: tokens per call, measured and expected for its acceptance rate",
        [
            "draft length",
            "rounds",
            "acceptance rate",
            "tokens per call",
            "expected",
            "measured / expected",
            "aim, within",
        ],
    )
    table = outlines_phi.Generator(model, Person, phi="local").logits_processor.table
    small = TransformersModel(drafting, model.lm.vocabulary)
    ids = [tuple(model.hf_tokenizer.encode(prompt)) for prompt in some(RECORDS["person"][1], n)]
    for length in LENGTHS:
        request = Request(lm=model.lm, table=table, prompts=ids, settings=SamplingSettings(seed=0))
        with rounds_noted() as rounds:
            AncestralSampler(LocalPhi(), draft=Prefetch(ModelDrafter(small), length)).sample(request)
        kept = sum(followed for _, followed, _ in rounds)
        acceptance = kept / (kept + sum(followed < drafted for drafted, followed, _ in rounds))
        measured = statistics.mean(written for _, _, written in rounds)
        theory = statistics.mean(expected(acceptance, drafted) for drafted, _, _ in rounds)
        report.add(length, len(rounds), acceptance, measured, theory, measured / theory, THEORY)
    parameters = sum(weights.numel() for weights in drafting.parameters())
    report.write(parameters=parameters, training=f"{steps} steps", prompts=n, phi="local")


def overhead(layers: int, hidden: int, repeats: int) -> None:
    """Measure verification at a large vocabulary, and write ``drafting_verify.json``."""
    report = Report(
        "drafting_verify",
        f"Verification of {BATCH} rows with {LENGTH} drafts each over {VOCABULARY:,} tokens, against a forward pass (medians)",
        [
            "drafts",
            "dtype",
            "forward, ms",
            "of one token, ms",
            "verification, ms",
            "share of the pass",
            "of one token",
            "aim",
        ],
    )
    model = half_billion(VOCABULARY, layers, hidden)
    parameters = sum(weights.numel() for weights in model.parameters())
    dtype = faster(model, BATCH)
    stream = Stream(model, BATCH)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    positions = torch.arange(BATCH * (LENGTH + 1)).view(BATCH, -1)
    seconds: dict[str, list[float]] = {"deterministic": [], "sampled": []}
    passes: list[float] = []
    for _ in track(range(repeats + 1), description="verification"):
        for name, spent in seconds.items():
            stream.restart()
            start = time.thread_time()
            with torch.inference_mode():
                output = model(tokens, past_key_values=stream._cache, use_cache=True)
            passes.append(time.thread_time() - start)
            scores = torch.log_softmax(
                output.logits.float().flatten(0, 1), -1
            )  # what a step without drafts has as well
            drafts = scores.view(BATCH, LENGTH + 1, -1)[:, :-1].argmax(-1)
            uniforms = torch.rand(BATCH, LENGTH + 1, dtype=torch.float64)
            chains = Chains(positions, drafts, torch.full((BATCH,), LENGTH), uniforms)
            proposals = None
            if name == "sampled":
                noisy = scores.view(BATCH, LENGTH + 1, -1)[:, :-1].flatten(0, 1)
                log_r = torch.log_softmax(noisy + 0.3 * torch.randn_like(noisy), -1)
                proposals = Proposals(torch.arange(BATCH), torch.arange(BATCH * LENGTH).view(BATCH, -1), log_r)
            stream.step(tokens[:, :1])  # the caches as they are in use
            start = time.thread_time()
            verify(Distributions.of(scores), chains, proposals)
            spent.append(time.thread_time() - start)
    forward, one = statistics.median(passes[len(seconds) :]), statistics.median(stream.seconds[len(seconds) :])
    for name, spent in seconds.items():
        step = statistics.median(spent[1:])
        report.add(
            name,
            str(dtype).removeprefix("torch."),
            1e3 * forward,
            1e3 * one,
            1e3 * step,
            step / forward,
            step / one,
            OVERHEAD,
        )
    report.write(parameters=parameters, batch=BATCH, length=LENGTH, vocabulary=VOCABULARY, repeats=repeats)


def main(
    prompts: Annotated[int, typer.Option(help="Distinct prompts.")] = 100,
    training: Annotated[int, typer.Option(help="Steps that the sibling is trained for.")] = 300,
    repeats: Annotated[int, typer.Option(help="Times that verification is measured, after a first to warm up.")] = 12,
    layers: Annotated[int, typer.Option(help="Layers of the model of half a billion parameters.")] = 24,
    hidden: Annotated[int, typer.Option(help="Its width.")] = 1024,
) -> None:
    """Measure and write ``drafting.json``, ``drafting_sibling.json`` and ``drafting_verify.json``."""
    torch.set_num_threads(1)
    model = outlines_phi.from_transformers(*bundled.load())
    small = sibling(model.hf_tokenizer, training)
    records(model, {**DRAFTS, "forced, sibling": ["forced", small]}, prompts)
    against_theory(model, small, prompts, training)
    torch.manual_seed(0)
    overhead(layers, hidden, repeats)


if __name__ == "__main__":
    typer.run(main)
