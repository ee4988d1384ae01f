"""``outlines-phi generate``: draws of many prompts, as lines of JSON."""

from __future__ import annotations

import secrets
import statistics
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, final

import typer

from ..errors import UnsupportedError, too_small
from ..numerics.checks import check_fits, counted
from ..phi.estimator import Phi
from ..plugin.generator import Generator, PhiGenerator
from ..plugin.options import CallOptions
from ..plugin.types.output_types import to_language
from ..sampling.draw import Guarantee
from ..sampling.phi_options import AutoPhi, LookaheadPhi
from ..settings import SamplingSettings
from . import journal
from .batches import Batches, Outcome
from .command_options import (
    BanOptions,
    CorrectionOptions,
    DraftingOptions,
    FormatOptions,
    ModelOptions,
    PromptOptions,
    Seed,
    SettingOptions,
    Tokenization,
    grouped,
    keywords,
)
from .ending import FAILED, INTERRUPTED, Debug, note, tell
from .journal import Saved
from .loaded_model import check_chats, identity, load
from .terminal import Quiet, bar

SHOWN = 5  # Banned phrases whose attempts are told, at most
DRAFTED = ("written", "drafted", "followed", "turns")  # Counts of a call that say what drafts were worth


@grouped
def generate(
    inputs: PromptOptions,
    source: ModelOptions,
    form: FormatOptions,
    bans: BanOptions,
    sampling: SettingOptions,
    drafting: DraftingOptions,
    correction: CorrectionOptions,
    n: Annotated[int, typer.Option(min=1, help="Draws per prompt.")] = 1,
    tokenization: Tokenization = None,
    seed: Seed = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that share model calls.")] = 16,
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
    banned = bans.read(correction.ban_level)
    type_name, output_type = form.read(free=banned is not None)
    settings = sampling.keywords() | keywords(tokenization=tokenization)
    call = correction.call(output_type, banned, settings, drafting.read(correction.particles))
    CallOptions.read({**call.keywords, **keywords(seed=seed)}, None)
    language = "" if output_type is None else to_language(output_type)
    saved = None
    if output is not None:
        journal.check_target(output)
        saved = None if overwrite else journal.read(output, given)
    loaded = load(source.model, source.device, source.dtype, source.host)
    check_chats(loaded, given)
    options = CallOptions.read(call.keywords, loaded.defaults, banned)
    drafts = options.draft
    header = journal.header(
        model=identity(source.model, loaded),
        output_type=type_name,
        pattern=language if isinstance(language, str) else language.text,
        settings=options.settings,
        tokenization=options.tokenization,
        ban=banned,
        phi=_told(call.phi),
        sampler=None if options.sampler is None else asdict(options.sampler),
        draft=None if drafts is None else {"names": drafts.names, "length": drafts.length},
        n=n,
        seed=_seed(seed, saved),
        tolerance=correction.tolerance,
        confidence=correction.confidence,
    )
    if saved is not None:
        journal.check_same_run(saved.header, header, output)
    generator = Generator(loaded, output_type, phi=call.phi, banned_phrases=banned, draft=drafts)
    _check_length(generator, options.settings)
    keep = {name: value for name, value in call.keywords.items() if name != "draft"}
    batches = Batches(generator=generator, keywords=keep, prompts=given, n=n, seed=header["seed"], size=batch_size)
    raise typer.Exit(_work(batches, header, output, saved, token_ids, quiet))


def _told(phi: Phi | None) -> str:
    """Return how a file names an estimator: two that differ in the distribution of their draws differ in it."""
    assert phi is not None  # a file has an output type, or a ban
    return f"{phi.name} (weighted)" if phi == LookaheadPhi(weights=True) else phi.name


def _seed(given: int | None, saved: Saved | None) -> int:
    """Return the seed of the command, of the file that it goes on with, or a new one."""
    if given is None:
        return secrets.randbelow(2**32) if saved is None else int(saved.header["seed"])
    return given


def _check_length(generator: PhiGenerator, settings: SamplingSettings) -> None:
    """Raise now what every prompt would raise: the length limit is too small for the format."""
    table = generator.logits_processor.table
    least, most = table.guide.min_tokens(table.start), settings.max_new_tokens
    if most is not None and most < least:
        raise too_small(most, least)


def _work(
    batches: Batches, header: dict[str, Any], output: Path | None, saved: Saved | None, token_ids: bool, quiet: bool
) -> int:
    """Draw what the file does not have yet; return the exit code."""
    begin, end, errors = (0, 0, 0) if saved is None else (saved.prompts, saved.end, saved.errors)
    asked = counted(len(batches.prompts), "prompt")
    summary = Summary(prompts=begin, errors=Counter(earlier=errors))
    if begin:
        note(f"{output} has {begin} of {asked}; going on from there.")
    interrupted = False
    # No lines run through the bar.
    shown = not quiet and (output is not None or not sys.stdout.isatty())
    with (
        journal.writing(output, end) as write,
        bar("prompts", len(batches.prompts), begin=begin, shown=shown) as progress,
    ):
        batches = replace(batches, keywords={**batches.keywords, "progress": progress.told(completed=False)})
        try:
            if saved is None:
                write([header])
            for outcomes in batches.outcomes(begin) if begin < len(batches.prompts) else ():
                write([record for outcome in outcomes for record in journal.records_of(outcome, token_ids=token_ids)])
                for outcome in outcomes:
                    summary.count(outcome)
                progress.move(summary.prompts)
        except KeyboardInterrupt:
            interrupted = True
    if output is not None:
        note(f"{counted(summary.draws, 'draw')} written; {output} has {summary.prompts} of {asked}.")
    summary.report(asked, batches.generator.phi)
    if interrupted:
        begun = "The same command, without --overwrite, goes on from there."
        resume = begun if output else "A run with --output FILE can go on where it ended."
        tell("Interrupted", "yellow", f"after {summary.prompts} of {asked}. {resume}")
        return INTERRUPTED
    return FAILED if summary.errors.total() else 0


@final
@dataclass
class Summary:
    """What was drawn, for the messages at the end."""

    # Prompts that are finished, and how many of them ended by each kind of error.
    prompts: int
    errors: Counter[str]
    # Draws, and the effective sample sizes of those that are weighted.
    draws: int = 0
    weighted: list[float] = field(default_factory=list)
    failures: int = 0  # trajectories that found no allowed token
    rejections: Counter[str] = field(default_factory=Counter)  # attempts that each banned phrase has cost
    counts: Counter[str] = field(default_factory=Counter)  # sums of the counts :data:`DRAFTED`

    def count(self, outcome: Outcome) -> None:
        """Take note of what became of a prompt."""
        self.prompts += 1
        if outcome.error is not None:
            self.errors[type(outcome.error).__name__] += 1
        if (draws := outcome.draws) is not None:
            self.draws += len(draws)
            self.failures += draws.failures
            self.rejections.update(draws.rejections)
            self.counts.update({name: getattr(draws.counts, name) for name in DRAFTED})
            self.weighted += [draw.ess for draw in draws if draw.guarantee == Guarantee.WEIGHTED]

    def report(self, asked: str, phi: Phi | None) -> None:
        """Print what the user should know; ``asked`` says how many prompts there are."""
        if self.rejections:
            costly = ", ".join(f"{name} {count:,}" for name, count in self.rejections.most_common(SHOWN))
            rest = f", and {len(self.rejections) - SHOWN} more" if len(self.rejections) > SHOWN else ""
            note(f"Attempts that came upon a banned phrase: {costly}{rest}.")
        written, drafted, kept, turns = (self.counts[name] for name in DRAFTED)
        if turns:
            note(f"Drafts: {kept:,} of {drafted:,} tokens kept; {written / turns:.2f} tokens per model call.")
        if self.weighted and isinstance(phi, AutoPhi):
            tell(
                "Warning",
                "yellow",
                f"{len(self.weighted)} of {self.draws} draws are weighted, not exact: exact ones would have taken longer. Each "
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
            tell("Failed", "red", f'{self.errors.total()} of {asked} ({kinds}); the lines with "record": "error".')
