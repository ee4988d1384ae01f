"""``outlines-phi generate``: draws of many prompts, as lines of JSON."""

from __future__ import annotations

import secrets
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, final

import typer

from ..errors import UnsupportedError, too_small
from ..guides.phrases.banned import BannedPhrases
from ..numerics.checks import check_fits, counted
from ..phi.estimator import Phi, ProposalPhi
from ..phi.estimators.auto import AutoPhi
from ..phi.estimators.exact import ExactPhi
from ..phi.estimators.lookahead import LookaheadPhi
from ..plugin.call import Correction
from ..plugin.generator import Generator, PhiGenerator
from ..plugin.options import ESTIMATORS, CallOptions, Unset
from ..plugin.types.output_types import to_language
from ..sampling.draw import Guarantee
from ..sampling.draws import DrawCounts
from ..sampling.smc.smc import SMC
from ..settings import SamplingSettings
from .bar import Quiet, bar
from .ending import FAILED, INTERRUPTED, Debug, note, tell
from .inputs.model import check_chats, identity, load
from .inputs.options import (
    BanLevel,
    BanOptions,
    Confidence,
    DraftingOptions,
    FormatOptions,
    ModelOptions,
    Particles,
    PhiOption,
    PromptOptions,
    ResampleOption,
    Seed,
    SettingOptions,
    Tokenization,
    Tolerance,
    grouped,
    keywords,
)
from .results import journal
from .results.batches import Batches, Outcome
from .results.journal import Saved
from .results.records import draw_records, error_record

SHOWN = 5
"""Banned phrases whose attempts are told, at most."""


@grouped
def generate(
    inputs: PromptOptions,
    source: ModelOptions,
    form: FormatOptions,
    bans: BanOptions,
    law: SettingOptions,
    drafting: DraftingOptions,
    ban_level: BanLevel = None,
    phi: PhiOption = None,
    particles: Particles = None,
    resample: ResampleOption = None,
    tolerance: Tolerance = None,
    confidence: Confidence = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Draws per prompt.")] = 1,
    tokenization: Tokenization = None,
    seed: Seed = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Prompts that share model calls.")] = 16,
    output: Annotated[
        Path | None,
        typer.Option(help="File of the draws, gone on with where it ended; by default the standard output."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin the file anew.")] = False,
    token_ids: Annotated[bool, typer.Option("--token-ids", help="Write the token ids of every draw.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw outputs in a format, each with its weight and guarantee, as lines of JSON.

    The first line says what the draws depend on; then comes a line per draw, or one with the error of a prompt that has none.
    """
    if overwrite and output is None:
        raise UnsupportedError(
            "Leave --overwrite out: --overwrite was given without --output, so there is no file to begin anew."
        )
    check_fits(
        "n", n, count=n, each=1024, things="draws of a prompt", instead="Draw into several files, with a seed each"
    )
    given = inputs.read()
    banned = bans.read(ban_level)
    type_name, output_type = form.read(free=banned is not None)
    sampler = _sampler(particles, resample)
    certified = keywords(tolerance=tolerance, confidence=confidence)
    if certified:
        estimator: Phi = _certified(phi, sampler, certified)
        Correction().replaced_by(estimator, banned)
    else:
        estimator = _estimator(phi, sampler, banned, free=output_type is None)
    settings = law.keywords() | keywords(tokenization=tokenization, sampler=sampler)
    drafts = drafting.read(particles)
    CallOptions.read({**settings, **keywords(seed=seed)}, None)
    language = "" if output_type is None else to_language(output_type)
    saved = None
    if output is not None:
        journal.check_target(output)
        saved = None if overwrite else journal.read(output, given)
    loaded = load(source.model, source.device, source.dtype)
    check_chats(loaded, given)
    options = CallOptions.read(settings, loaded.model.generation_config)
    header = journal.header(
        model=identity(source.model, loaded),
        output_type=type_name,
        pattern=language if isinstance(language, str) else language.text,
        settings=options.settings,
        tokenization=options.tokenization,
        ban=banned,
        phi=_told(estimator),
        sampler=None if sampler is None else asdict(sampler),
        draft=None if drafts is None else {"names": drafts.names, "length": drafts.length},
        n=n,
        seed=_seed(seed, saved),
        **certified,
    )
    if saved is not None:
        journal.check_same_run(saved.header, header, output)
    generator = Generator(loaded, output_type, phi=estimator, banned_phrases=banned, draft=drafts)
    _check_fits(generator, options.settings)
    batches = Batches(generator=generator, keywords=settings, prompts=given, n=n, seed=header["seed"], size=batch_size)
    raise typer.Exit(_work(batches, header, output, saved, token_ids, quiet))


def _sampler(particles: int | None, resample: str | None) -> SMC | None:
    if particles is None and resample is not None:
        raise UnsupportedError(
            f"Give --particles 50, or leave it out: --resample {resample} was given without --particles, so there is nothing to "
            "resample."
        )
    return None if particles is None else SMC(particles=particles, **keywords(resample=resample))


def _certified(phi: str | None, sampler: SMC | None, options: dict[str, Any]) -> ExactPhi:
    if sampler is not None or phi not in (None, ExactPhi.name):
        other = f"--phi {phi}" if sampler is None else "--particles"
        raise UnsupportedError(
            f"Leave one of the two out: --tolerance or --confidence was given with {other}, and draws at a certified distance come "
            "from --phi exact alone."
        )
    return ExactPhi(**options)


def _estimator(given: str | None, sampler: SMC | None, ban: BannedPhrases | None, *, free: bool) -> Phi:
    correction = Correction().replaced_by(Unset.UNSET if given is None else given, ban)
    estimator = correction.estimator(sampler, free=free)
    assert estimator is not None  # no name stands for it
    phi = estimator.name if given is None else given
    if sampler is not None and not (isinstance(estimator, ProposalPhi) or estimator == LookaheadPhi(weights=True)):
        names = ", ".join(name for name, each in ESTIMATORS.items() if issubclass(each, ProposalPhi))
        raise UnsupportedError(
            f"Give one that particles can follow ({names}; --ban-level weighted), or leave one of the two out: --phi {phi} was "
            "given with --particles, and draws in a way of its own."
        )
    return estimator


def _told(estimator: Phi) -> str:
    """Return how a file names an estimator: two that differ in the distribution of their draws differ in it."""
    return f"{estimator.name} (weighted)" if estimator == LookaheadPhi(weights=True) else estimator.name


def _seed(given: int | None, saved: Saved | None) -> int:
    """Return the seed of the command, of the file that it goes on with, or a new one."""
    match saved:
        case Saved(header={"seed": int(begun)}) if given is None:
            return begun
    return secrets.randbelow(2**32) if given is None else given


def _check_fits(generator: PhiGenerator, settings: SamplingSettings) -> None:
    """Raise an error now that every prompt would else raise: the length limit is too small for the format."""
    table = generator.logits_processor.table
    least, most = table.guide.min_tokens(table.start), settings.max_new_tokens
    if most is not None and most < least:
        raise too_small(most, least)


def _work(
    batches: Batches, header: dict[str, Any], output: Path | None, saved: Saved | None, token_ids: bool, quiet: bool
) -> int:
    """Draw what the file does not have yet; return the exit code."""
    begin = 0 if saved is None else saved.prompts
    tally = Tally(prompts=begin, errors=Counter(earlier=0 if saved is None else saved.errors))
    if begin:
        note(f"{output} has {begin} of {counted(len(batches.prompts), 'prompt')}; going on from there.")
    interrupted = False
    # No lines run through the bar.
    shown = not quiet and (output is not None or not sys.stdout.isatty())
    end = 0 if saved is None else saved.end
    with (
        journal.writing(output, end) as write,
        bar("prompts", len(batches.prompts), begin=begin, shown=shown) as progress,
    ):
        batches = replace(batches, keywords={**batches.keywords, "progress": progress.told(completed=False)})
        try:
            if saved is None:
                write([header])
            for outcomes in batches.outcomes(begin) if begin < len(batches.prompts) else ():
                write([record for outcome in outcomes for record in _records(outcome, token_ids)])
                for outcome in outcomes:
                    tally.count(outcome)
                progress.move(tally.prompts)
        except KeyboardInterrupt:
            interrupted = True
    tally.report(len(batches.prompts), output, batches.generator.phi)
    if interrupted:
        begun = "The same command, without --overwrite, goes on from there."
        resume = begun if output else "A run with --output FILE can go on where it ended."
        tell("Interrupted", "yellow", f"after {tally.prompts} of {counted(len(batches.prompts), 'prompt')}. {resume}")
        return INTERRUPTED
    return FAILED if tally.errors.total() else 0


def _records(outcome: Outcome, token_ids: bool) -> Iterator[dict[str, Any]]:
    if outcome.draws is not None:
        yield from draw_records(outcome.index, outcome.prompt, outcome.draws, token_ids=token_ids)
    if outcome.error is not None:
        yield error_record(outcome.index, outcome.prompt, outcome.error)


@final
@dataclass
class Tally:
    """What was drawn, and what is to be said of it at the end.

    Attributes
    ----------
    prompts
        Prompts that are finished.
    errors
        How many of them ended by each kind of error.
    draws, weighted
        Draws, and the effective sample sizes of those that are weighted.
    failures
        Trajectories that found no allowed token.
    rejections
        Attempts that each banned phrase has cost.
    counts
        What the draws of each prompt have cost.
    """

    prompts: int
    errors: Counter[str]
    draws: int = 0
    weighted: list[float] = field(default_factory=list)
    failures: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    counts: list[DrawCounts] = field(default_factory=list)

    def count(self, outcome: Outcome) -> None:
        """Take note of what became of a prompt."""
        self.prompts += 1
        if outcome.error is not None:
            self.errors[type(outcome.error).__name__] += 1
        if outcome.draws is not None:
            self.draws += len(outcome.draws)
            self.failures += outcome.draws.failures
            self.rejections.update(outcome.draws.rejections)
            self.counts.append(outcome.draws.counts)
            self.weighted += [draw.ess for draw in outcome.draws if draw.guarantee == Guarantee.WEIGHTED]

    def report(self, prompts: int, output: Path | None, phi: Phi | None) -> None:
        """Print what the user should know."""
        if output is not None:
            note(f"{counted(self.draws, 'draw')} written; {output} has {self.prompts} of {counted(prompts, 'prompt')}.")
        if self.rejections:
            costly = ", ".join(f"{name} {count:,}" for name, count in self.rejections.most_common(SHOWN))
            rest = f", and {len(self.rejections) - SHOWN} more" if len(self.rejections) > SHOWN else ""
            note(f"Attempts that came upon a banned phrase: {costly}{rest}.")
        if turns := sum(counts.turns for counts in self.counts):
            drafted, kept, written = (
                sum(getattr(counts, name) for counts in self.counts) for name in ("drafted", "followed", "written")
            )
            note(f"Drafts: {kept:,} of {drafted:,} tokens kept; {written / turns:.2f} tokens per model call.")
        if self.weighted and isinstance(phi, AutoPhi):
            tell(
                "Warning",
                "yellow",
                f"{len(self.weighted)} of {self.draws} draws are weighted, not exact: exact sampling ran out of its effort. Each "
                f"was picked by weight from candidates worth {statistics.median(self.weighted):.1f} (median effective sample "
                'size). Use their weights, or --phi exact; the lines say which: "guarantee": "weighted".',
            )
        if self.failures:
            tell(
                "Warning",
                "yellow",
                f"{self.failures} trajectories met a step where truncation, --tokenization or the model leaves no allowed "
                "token. They are the lines without a text, and count in every mean with weight 0.",
            )
        if self.errors.total():
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.errors.items() if count)
            tell(
                "Failed",
                "red",
                f'{self.errors.total()} of {counted(prompts, "prompt")} ({kinds}); the lines with "record": "error".',
            )
