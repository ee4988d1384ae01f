"""Many prompts in batches, such that one that fails does not stop the others."""

from __future__ import annotations

import math
import secrets
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, final

import numpy as np
from jinja2 import TemplateError

from .. import __version__
from ..errors import BudgetError, FidelityWarning, OutlinesPhiError, UnsupportedError, too_small
from ..fidelity.bias import LOW
from ..guides.table import Table
from ..numerics.checks import counted
from ..numerics.weights import bounds_text
from ..phi.estimator import Phi
from ..plugin.call import Call, CallOptions
from ..plugin.choices import STOPS
from ..plugin.generator import Generator, PhiGenerator
from ..plugin.session import PhiModel
from ..plugin.types.output_types import to_language
from ..plugin.wrapping import wrapped
from ..sampling.draws import Draws, Guarantee
from ..sampling.phi_options import AutoPhi, LookaheadPhi
from .app import FAILED, INTERRUPTED, note, tell
from .inputs import Prompt, identity, model_input
from .journal import FORMAT, VERSION, Outcome, Record, Saved, check_same_run, digest, records_of
from .terminal import Bar, bar

T = TypeVar("T")
R = TypeVar("R")

SHOWN = 5  # Banned phrases whose attempts are told, at most
DRAFTED = ("written", "drafted", "followed", "turns")  # Counts of a call that say what drafts were worth


@final
@dataclass(frozen=True, kw_only=True)
class Batches:
    """Drawer of prompts, batch by batch.

    The random streams of a prompt come from the seed and its number: it has the same draws in any batch, whatever was drawn before,
    so that a run may begin at any prompt, and be divided among machines.
    """

    task: Task
    generator: PhiGenerator
    keywords: dict[str, Any]

    def outcomes(self, prompts: Sequence[Prompt], size: int, finished: Container[int] = ()) -> Iterator[list[Outcome]]:
        """Yield the outcomes of the prompts that are not ``finished``, in order, batch by batch.

        Batches begin at the multiples of their ``size``; where some prompts of one are finished, all of it are drawn, so that their
        numbers are rounded as they would have been.
        """
        for first in range(0, len(prompts), size):
            rows = list(enumerate(prompts[first : first + size], first))
            if any(index not in finished for index, _ in rows):
                yield [outcome for outcome in self.drawn(rows) if outcome.index not in finished]

    def drawn(self, rows: Sequence[tuple[int, Prompt | OutlinesPhiError]]) -> list[Outcome]:
        """Return the outcomes of prompts with their numbers, drawn in shared model calls; an error in place of one is its own."""
        model, table = self.generator.model, self.generator.table
        options = replace(CallOptions.read(self.keywords, model.defaults), n=self.task.n)

        def refused(row: tuple[int, Prompt | OutlinesPhiError]) -> OutlinesPhiError | None:
            return row[1] if isinstance(row[1], OutlinesPhiError) else refusal(model, table, row[1], options)

        found = apart(cast(Any, self._draw), rows, refused)
        return [
            Outcome(index=index, prompt=None if prompt is each else cast(Prompt, prompt), error=each)
            if isinstance(each, OutlinesPhiError)
            else each
            for (index, prompt), each in zip(rows, found, strict=True)
        ]

    def _draw(self, rows: Sequence[tuple[int, Prompt]]) -> list[Outcome]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FidelityWarning)  # the command sums them up
                results = self.generator.sample_batch(
                    [model_input(prompt) for _, prompt in rows],
                    self.task.n,
                    # Fresh ones are not from torch's generator, which begins alike in every process.
                    seed=[
                        secrets.randbits(63)
                        if self.task.seed is None
                        else int(np.random.SeedSequence((self.task.seed, index)).generate_state(1, np.uint64)[0])
                        for index, _ in rows
                    ],
                    **self.keywords,
                )
        except BudgetError as error:
            results = error.draws  # every prompt was drawn as far as its own effort went
        outcomes = []
        for (index, prompt), draws in zip(rows, results, strict=True):
            missing = self.task.n - len(draws) - draws.failures
            short = _shortfall(draws, self.task.n, self.generator.phi) if missing else None
            outcomes.append(Outcome(index=index, prompt=prompt, draws=draws, error=short))
        return outcomes


def apart(
    work: Callable[[Sequence[T]], Sequence[R]],
    rows: Sequence[T],
    refused: Callable[[T], OutlinesPhiError | None] = lambda _: None,
) -> list[R | OutlinesPhiError]:
    """Apply ``work`` to some rows; return the result or the error of each: of those which are ``refused``, their own.

    Where the work fails for all of them, it is done again with each half.
    """
    errors = [refused(row) for row in rows]
    done = iter(_halved(work, [row for row, error in zip(rows, errors, strict=True) if error is None]))
    return [next(done) if error is None else error for error in errors]


def _halved(work: Callable[[Sequence[T]], Sequence[R]], rows: Sequence[T]) -> list[R | OutlinesPhiError]:
    if not rows:
        return []
    try:
        return list(work(rows))
    except OutlinesPhiError as error:
        if len(rows) == 1:
            return [error]
        half = len(rows) // 2
        return [*_halved(work, rows[:half]), *_halved(work, rows[half:])]


def refusal(model: PhiModel, table: Table, prompt: Prompt, options: CallOptions) -> OutlinesPhiError | None:
    """Return the error of a prompt that cannot be drawn, as far as that is known before any model call."""
    try:
        model.check_prompt(model_input(prompt), table, options)
    except OutlinesPhiError as error:
        return error
    except TemplateError as error:
        return UnsupportedError(f"Write the chat as the model's template takes it, which says: {error}.")
    return None


def _shortfall(draws: Draws, n: int, phi: Phi | None) -> BudgetError:
    if isinstance(phi, LookaheadPhi):
        return BudgetError.of(
            "Give --ban-level mask, or another prompt",
            f"The effort ran out with {len(draws)} of {n} draws, where the model hardly writes anything else than banned phrases",
        )
    certificate, (low, high) = draws.certificate, draws.log_z_bounds
    if certificate is not None and certificate.total_variation and not len(draws):
        return BudgetError.of(
            "Give a larger --tolerance, --confidence 0.95 beside it, or --phi exact without it",
            f"The effort ran out with {certificate}, short of --tolerance",
        )
    return BudgetError.of(
        "Draw with weights (--phi auto), or move the prompt closer to the format",
        f"The effort ran out with {len(draws)} of {n} exact draws (log Phi between {low:.4g} and {high:.4g})",
        "each that is there is exact",
    )


@final
@dataclass
class Summary:
    """Counts of what was drawn, for the messages at the end."""

    # Sums: of prompts that are finished, of draws, of trajectories that found no allowed token, and of :data:`DRAFTED`
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # prompts that ended by each kind of error
    rejections: Counter[str] = field(default_factory=Counter)  # attempts that each banned phrase has cost
    weighted: list[float] = field(default_factory=list)  # the effective sample sizes of draws that are weighted
    log_phi: list[float] = field(default_factory=list)  # the bounds and estimates of weighted draws

    def count(self, outcome: Outcome) -> None:
        """Take note of what became of a prompt."""
        self.counts["prompts"] += 1
        if outcome.error is not None:
            self.errors[type(outcome.error).__name__] += 1
        if (draws := outcome.draws) is not None:
            drafted = {name: getattr(draws.counts, name) for name in DRAFTED}
            self.counts.update(drafted, draws=len(draws), failures=draws.failures)
            estimated = draws.guarantee <= Guarantee.WEIGHTED and draws.weighed
            self.log_phi += [draws.log_z] if estimated else draws.log_z_bounds
            self.rejections.update(draws.rejections)
            self.weighted += [draw.ess for draw in draws if draw.guarantee == Guarantee.WEIGHTED]

    def add(self, other: Summary) -> None:
        """Take note of what another summary has."""
        for each in fields(Summary):
            mine, more = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, mine + more)

    def report(self, target: Path | None, asked: str, call: Call) -> None:
        """Print the summary of a run; ``asked`` says how many prompts there are."""
        known = sorted(self.log_phi)
        prompts, drawn, failures, written, drafted, kept, turns = map(
            self.counts.__getitem__, ("prompts", "draws", "failures", *DRAFTED)
        )
        log_phi = f" log Phi is {bounds_text((known[0], known[-1]))}." if known and known[0] > -math.inf else ""
        if target is not None:
            note(f"{counted(drawn, 'draw')} written; {target} has {prompts} of {asked}.{log_phi}")
        if known and known[-1] < LOW:
            tell(
                "Warning",
                "yellow",
                f"{log_phi.strip()} The model hardly ever writes this; outlines-phi fit says what helps.",
            )
        if self.rejections:
            costly = ", ".join(f"{name} {count:,}" for name, count in self.rejections.most_common(SHOWN))
            rest = f", and {len(self.rejections) - SHOWN} more" if len(self.rejections) > SHOWN else ""
            note(f"Attempts that came upon a banned phrase: {costly}{rest}.")
        if turns and call.keywords.get("draft") is not None:
            note(f"Drafts: {kept:,} of {drafted:,} tokens kept; {written / turns:.2f} tokens per model call.")
        if self.weighted and isinstance(call.phi, AutoPhi):
            tell(
                "Warning",
                "yellow",
                f"{len(self.weighted)} of {drawn} draws are weighted, not exact: exact ones would have taken longer. Each "
                f"was picked by weight from candidates worth {statistics.median(self.weighted):.1f} (median effective sample "
                'size). Use their weights, or --phi exact; the lines say which: "guarantee": "weighted".',
            )
        if failures:
            tell(
                "Warning",
                "yellow",
                f"{failures} trajectories met a step where truncation, --tokenization or the model leaves no allowed "
                "token. They are the lines without a text, and count in every mean with weight 0.",
            )
        if self.errors.total():
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.errors.items() if count)
            tell("Failed", "red", f'{self.errors.total()} of {asked} ({kinds}); the lines with "record": "error".')


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """All that decides the draws of a run but its prompts. It holds no model, so that it travels to where there is one."""

    # The maker of the model, and its name.
    load: Callable[[], Any]
    model: str
    # The output type, its name, and the call that is made for each batch of prompts.
    output_type: Any
    type_name: str
    call: Call
    # Draws per prompt, and where all random streams come from; fresh ones where there is none.
    n: int
    seed: int | None
    told: tuple[tuple[str, Any], ...] = ()  # other fields of a file of the draws

    def loaded(self) -> PhiModel:
        """Return the model."""
        return wrapped(self.load())

    def batches(self, model: PhiModel) -> Batches:
        """Compile the output type, and return what draws; raises what every prompt would raise."""
        options, ban = self._options(model), self.call.ban
        own = {"phi": self.call.phi, "banned_phrases": ban, "draft": options.draft, **self._ends}
        generator = Generator(model, self.output_type, **own)
        table, most = generator.table, options.settings.max_new_tokens
        if most is not None and most < (least := table.guide.least_budget(table.start)):
            raise too_small(most, least)
        keep = {name: value for name, value in self.call.keywords.items() if name != "draft"}
        return Batches(task=self, generator=generator, keywords=keep)

    def header(self, model: PhiModel) -> Record:
        """Return the first line of a file of the draws: all that decides them, as JSON has it."""
        options, ban = self._options(model), self.call.ban
        language = "" if self.output_type is None else to_language(self.output_type)
        pattern = language if isinstance(language, str) else language.text
        settings = {**asdict(options.settings), "tokenization": options.tokenization}
        del settings["seed"]
        optional = {
            # Of banned phrases, which may be thousands, it has a fingerprint.
            "banned_phrases": ban
            and {"count": len(ban), "phrases": digest("\n".join(ban.names))}
            | {name: getattr(ban, name) for name in ("ignore_case", "whole_word", "across_prompt")},
            "phi": _told(self.call.phi),
            "sampler": options.sampler and asdict(options.sampler),
            "draft": options.draft and {"names": options.draft.names or "none", "length": options.draft.length},
            "n": self.n,
            "seed": self.seed,
            **self._ends,
            "tokens": options.tokens or None,
            "top": options.top or None,
            **dict(self.told),
        }
        return {
            "record": "run",
            "format": FORMAT,
            "version": VERSION,
            "outlines_phi": __version__,
            "model": identity(self.model, model),
            "output_type": {"name": self.type_name, "pattern": digest(pattern)},
            "settings": settings,
            **{name: value for name, value in optional.items() if value is not None},
        }

    @property
    def _ends(self) -> dict[str, Any]:
        """Ends of texts, where they are said."""
        return {name: value for name, value in self.call.keywords.items() if name in ("ends", "open_at", *STOPS)}

    def _options(self, model: PhiModel) -> CallOptions:
        return CallOptions.read(self.call.keywords, model.defaults, self.call.ban)


def _told(phi: Phi | None) -> str:
    """Return the name of an estimator in files: two that differ in the distribution of their draws differ in it."""
    assert phi is not None  # a file has an output type, or a ban
    return f"{phi.name} (weighted)" if phi == LookaheadPhi(weights=True) else phi.name


Told: TypeAlias = tuple[list[Record], Summary]  # The records of some prompts, and their summary


def told(outcomes: Iterable[Outcome], *, token_ids: bool) -> Told:
    """Return the records of a run for some prompts."""
    records, summary = list[Record](), Summary()
    for outcome in outcomes:
        records += records_of(outcome, token_ids=token_ids)
        summary.count(outcome)
    return records, summary


Drawing: TypeAlias = Callable[[Container[int], Bar], Iterable[Told]]
"""Draws the prompts that are not finished, and shows the progress of each call."""


def run(
    target: Any,
    task: Task,
    begun: Callable[[Task], tuple[Record, Drawing]],
    prompts: int,
    *,
    overwrite: bool,
    shown: bool,
) -> int:
    """Draw for the ``prompts`` that ``target`` does not have yet, write it as it comes, show the progress; return the exit code.

    ``target`` has the methods of :class:`~outlines_phi.cli.journal.Lines`; ``begun`` loads what a task needs, and returns the first
    line and what draws.
    """
    target.check()
    saved = Saved() if overwrite else target.saved()
    if task.seed is None:
        task = replace(task, seed=secrets.randbelow(2**32) if saved.header is None else int(saved.header["seed"]))
    header, drawing = begun(task)
    if saved.header is not None:
        check_same_run(saved.header, header, target.path)
    summary = Summary(Counter(prompts=len(saved.finished)), Counter(earlier=sum(saved.finished.values())))
    asked, interrupted, done = counted(prompts, "prompt"), False, len(saved.finished)
    if done:
        note(f"{target.path} has {summary.counts['prompts']} of {asked}; going on from there.")
    writing, showing = (
        target.writing(header, saved.end),
        bar("prompts", prompts, begin=done, shown=shown),
    )
    with writing as write, showing as progress:
        try:
            for records, more in drawing(saved.finished, progress):
                write(records)
                summary.add(more)
                done = summary.counts["prompts"]
                progress.move(done)
        except KeyboardInterrupt:
            interrupted = True
    summary.report(target.path, asked, task.call)
    if interrupted:
        again = "The same command, without --overwrite, goes on from there."
        resume = again if target.path else "A run with --output FILE can go on where it ended."
        tell("Interrupted", "yellow", f"after {summary.counts['prompts']} of {asked}. {resume}")
        return INTERRUPTED
    return FAILED if summary.errors.total() else 0
