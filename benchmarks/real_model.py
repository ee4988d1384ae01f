"""Balanced brackets on any checkpoint: how far masking, one step of look-ahead and exact sampling are from the exact distribution.

    python -m benchmarks.real_model --model ID

``ID`` is what ``outlines-phi --model`` takes: a folder that ``save_pretrained`` wrote, a name on the Hugging Face hub that the
machine can reach, or ``bundled``. This is the table of Dyck words of the paper on future validity, which has it for a model
of eight billion parameters: every prefix of a small language is evaluated, so that the distribution of each method is a
sum and not an estimate.

*TV* is the total variation to the model's distribution given the language, of token sequences, as in the paper. *Reduction* is the
paper's own measure: how much smaller it is than that of masking, in percent. *Throughput* is model tokens a second of draws
under an estimator over those of masking, in turns. The exact rows are 200 draws, with the total variation that as many
draws of the exact distribution itself show (*floor*). ``docs/peers.md`` sums the kept result up.

``local`` is masking, ``onestep`` rates what follows the next token by the current logits (the OneStep of the paper);
``true one-step`` asks the model about every next token; ``exact-0.1`` and ``exact-0.01`` are backward induction over the token
tree to that tolerance. A language is kept as soon as it is measured: a run that was interrupted goes on behind it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, final

import torch
import typer

from benchmarks.real.rows import file_name, say
from benchmarks.report import Report
from outlines_phi.cli.inputs import BUNDLED, load
from outlines_phi.errors import BudgetError, OutlinesPhiError
from outlines_phi.fidelity.findings import frequencies, noise_floor, total_variation
from outlines_phi.guides.guide import DONE
from outlines_phi.phi.estimator import Estimate, LocalPhi, Need, OneStepPhi, Phi, Prefixes, ProposalPhi, SampledRun
from outlines_phi.phi.tree.evaluator import TreeStore
from outlines_phi.plugin.call import CallOptions
from outlines_phi.sampling.phi_options import ExactPhi
from outlines_phi.sampling.resolve import sampler_for
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.suite.languages import SUITE, Language
from outlines_phi_workbench.suite.reference import CertifiedWalk, count_prefixes, enumerate_language

CHOSEN = "dyck1-8-single,dyck1-12-single,dyck2-8-single,dyck1-8,dyck1-upto8"
PREFIXES = 20_000
"""Prefixes of a language that is enumerated, at most."""

COLUMNS = ["language", "Phi", "prefixes", "method", "TV", "reduction, %", "floor", "throughput of masking"]


@final
@dataclass(frozen=True)
class NextStepPhi(ProposalPhi):
    """``h(yv) = sum_w p(w|yv) 1[w live after yv]``: the true distribution after each live token, one model token each."""

    name: ClassVar[str] = "true one-step"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def begin(self, run: SampledRun) -> NextStepEstimate:
        return NextStepEstimate(run)


@final
@dataclass(frozen=True)
class NextStepEstimate(Estimate):
    """The estimator in a run, whose model it asks."""

    run: SampledRun

    def scores(self, log_p: torch.Tensor, prefixes: Prefixes) -> torch.Tensor:
        """See :meth:`Estimate.scores`."""
        scores = torch.full_like(log_p, -torch.inf)
        for i, (row, node, state, left, tokens) in enumerate(
            zip(prefixes.rows, prefixes.nodes, prefixes.states, prefixes.remaining, prefixes.tokens, strict=True)
        ):
            moves = self.run.table.moves(state, left)
            targets = moves.leads[moves.classes]
            ends = moves.tokens[targets == DONE].tolist()
            scores[i, ends] = log_p[i, ends]
            inner = [(int(v), int(s)) for v, s in zip(moves.tokens, targets, strict=True) if s != DONE]
            if not inner:
                continue
            logits = self.run.branches.evaluate([(node, v) for v, _ in inner]).whole()
            after = self.run.log_p(logits, [(row, [*tokens, v]) for v, _ in inner])
            for (v, target), line in zip(inner, after, strict=True):
                bias = self.run.table.bias(target, left - 1, line.device)
                scores[i, v] = log_p[i, v] + torch.logsumexp(line + bias, -1)
        return scores


PROPOSALS: dict[str, ProposalPhi] = {
    "local": LocalPhi(),
    "onestep": OneStepPhi(),
    "true one-step": NextStepPhi(),
    "exact-0.1": CertifiedWalk(tolerance=0.1),
    "exact-0.01": CertifiedWalk(tolerance=0.01),
}


def speed(request: Request, phi: Phi, n: int) -> float:
    """Return the model tokens a second of ``n`` draws."""
    start = time.perf_counter()
    (draws,) = sampler_for(phi, TreeStore()).sample(replace(request, n=n))
    return draws.counts.tokens / (time.perf_counter() - start)


def throughput(request: Request, n: int, repeats: int) -> float:
    """Return the throughput of ``onestep`` over that of masking: the median over repeats in which they take turns."""
    ratios = [speed(request, OneStepPhi(), n) / speed(request, LocalPhi(), n) for _ in range(repeats + 1)]
    return statistics.median(ratios[1:])


def rows(model: Any, language: Language, n: int, repeats: int) -> list[list[object]]:
    """Return the row of each method."""
    table = language.table(model)
    settings = SamplingSettings(seed=0, max_new_tokens=language.budget)
    with model.asking([language.prompt], table, CallOptions(settings)) as request:
        budget = request.budgets[0]
        prefixes = count_prefixes(table, budget, PREFIXES)
        if prefixes is None:
            return [[language.name, "", f"> {PREFIXES}", "too many to enumerate", "", "", "", ""]]
        reference = enumerate_language(request.lm, table, request.prompts[0], settings, budget, estimators=PROPOSALS)
        phi, found = float(torch.tensor(reference.log_phi, dtype=torch.float64).exp()), []
        away = {name: total_variation(reference.distribution(name), reference.mu) for name in PROPOSALS}
        for name, tv in away.items():
            ratio = throughput(request, n, repeats) if name == "onestep" else ""
            found.append([language.name, phi, prefixes, name, tv, reduction(tv, away["local"]), "", ratio])
        try:
            (draws,) = sampler_for(ExactPhi(), TreeStore()).sample(replace(request, n=n))
        except BudgetError as error:
            found.append([language.name, phi, prefixes, f"exact: {error}", "", "", "", ""])
        else:
            tv = total_variation(frequencies(draw.token_ids for draw in draws), reference.mu)
            found.append([language.name, phi, prefixes, f"exact, {n} draws", tv, "", noise_floor(reference.mu, n), ""])
    return found


def reduction(tv: float, masked: float) -> float:
    """Return by how many percent ``tv`` is below that of masking; below 0 where it is above."""
    return 100 * (1 - tv / masked) if masked else 0.0


def line(row: Sequence[object]) -> str:
    """Return a row in 80 columns."""
    language, phi, prefixes, method, *numbers = row
    shown = [f"{number:.3g}" if isinstance(number, float) else str(number) for number in numbers]
    return f"{language:15} {method:20.20} " + " ".join(
        f"{name} {value}" for name, value in zip(("TV", "reduced, %", "floor", "speed"), shown, strict=True) if value
    )


def chosen(names: str) -> Sequence[Language]:
    """Return languages of the fidelity suite by name."""
    known = {language.name: language for language in SUITE if language.family == "brackets"}
    if unknown := [name for name in names.split(",") if name not in known]:
        raise typer.BadParameter(f"Give some of {', '.join(known)}. --languages {','.join(unknown)} was given.")
    return [known[name] for name in names.split(",")]


def main(
    model: Annotated[str, typer.Option(help="A folder, a name on the hub, or 'bundled'.")] = BUNDLED,
    prompt: Annotated[str, typer.Option(help="What stands before the brackets; that of the suite by default.")] = "",
    languages: Annotated[str, typer.Option(help="Bracket languages of the fidelity suite, by commas.")] = CHOSEN,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...; a GPU where there is one by default.")] = "",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16; as saved by default.")] = "",
    n: Annotated[int, typer.Option(help="Exact draws, and draws of each timing.")] = 200,
    repeats: Annotated[int, typer.Option(help="Timings of each estimator.")] = 5,
    out: Annotated[str, typer.Option(help="Name of the kept result; that of the model by default.")] = "",
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Measure and keep each language in ``real_model.json``, or the result of another name; what it holds is not repeated."""
    picked = chosen(languages)
    try:
        loaded = load(model, device or None, dtype or None)
        where, kind = loaded.model.device, str(loaded.model.dtype).removeprefix("torch.")
        if where.type == "cpu" and model == BUNDLED:
            torch.set_num_threads(1)
        parameters = sum(p.numel() for p in loaded.model.parameters())
        say(f"{model}: {parameters:,} parameters, {kind}, {len(loaded.lm.vocabulary):,} tokens, on {where}.")
        report = Report(
            out or "real_model" + ("" if model == BUNDLED else f"--{file_name(model)}".removesuffix(".json")),
            "Dyck words: total variation to the exact distribution",
            COLUMNS,
        )
        settings = {"model": model, "parameters": parameters, "dtype": kind, "ran_on": str(where), "n": n}
        settings |= {"prompt": prompt or picked[0].prompt}
        report.resume(**settings)
        for language in picked:
            if language.name not in {row[0] for row in report.rows}:
                for row in rows(loaded, replace(language, prompt=prompt or language.prompt), n, repeats):
                    report.add(*row)
                report.keep(**settings)
            for row in report.rows:
                if row[0] == language.name:
                    say(line(row))
    except OutlinesPhiError as error:
        if debug:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
