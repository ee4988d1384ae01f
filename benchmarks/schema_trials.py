"""The trial of an engine on one JSON schema, in a process of its own with bounds on time and memory."""

import ctypes
import gc
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import jsonschema
import numpy as np

from benchmarks.compile import forget_peak, peak_megabytes
from benchmarks.schema_engines import Refused, SchemaEngine
from outlines_phi.vocabulary.vocabulary import Vocabulary

SPELLINGS: dict[str, dict[str, Any]] = {
    "spaced": {},
    "compact": {"separators": (",", ":")},
    "indented": {"indent": 2},
}
"""The options of ``json.dumps`` for the spellings of an instance; the verdict is of the first, which is MaskBench's."""

MASKED = 400
"""Tokens of an instance that are masked; those behind them are only read."""

WALKED = 40
"""Tokens of a random text until it turns to its end."""

LONGEST = 400
"""Tokens after which a random text is given up."""

GIGABYTE = 2**30

MADV_POPULATE_WRITE = 23
"""Of Linux's ``mman-common.h``; Python's ``mmap`` has no name for it."""

PAGE = resource.getpagesize()


VERDICTS = ("pass", "refused", "rejects valid", "accepts invalid", "timeout", "failed")
TEXTS = ("valid", "invalid", "unfinished")


@final
@dataclass
class Outcome:
    """The outcome of a schema under an engine.

    Attributes
    ----------
    refused, cut, error
        The reason of a refusal; the end before its time, "timeout" or "failed"; the error raised.
    ready, masks
        Processor seconds to the first mask, and of each mask along the instances that was not at hand, by the number of the
        instance and that of the token.
    accepted
        For each test, whether it was accepted, by spelling.
    texts, wrong
        The outcome of each random text, and those that are invalid.
    peak, grown
        The most megabytes that the process held, and what of these came with the schema.
    """

    refused: str = ""
    cut: str = ""
    error: str = ""
    ready: float | None = None
    masks: dict[str, float] = field(default_factory=dict)
    accepted: list[dict[str, bool]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    peak: float = 0.0
    grown: float = 0.0

    def verdict(self, task: dict[str, Any]) -> str:
        """Return the verdict by MaskBench's rule, with the worst that is known."""
        verdicts = [self.of_test(task, place) for place in range(len(task["tests"]))]
        if self.ready is None:
            return "refused" if self.refused else self.cut
        return next((verdict for verdict in reversed(VERDICTS) if verdict in verdicts), "pass")

    def of_test(self, task: dict[str, Any], place: int) -> str:
        """Return the verdict of one test."""
        if place >= len(self.accepted) or "spaced" not in self.accepted[place]:
            return "refused" if self.refused else self.cut
        accepted, valid = self.accepted[place]["spaced"], task["tests"][place]["valid"]
        return "pass" if accepted == valid else "accepts invalid" if accepted else "rejects valid"


class Speller:
    """The tokens of a text, the longest that fits first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = {token: v for v, token in enumerate(vocabulary.tokens) if token}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str) -> list[int]:
        rest, at, tokens = text.encode("utf-8", "surrogatepass"), 0, []
        while at < len(rest):
            sizes = range(min(self._longest, len(rest) - at), 0, -1)
            size = next(size for size in sizes if rest[at : at + size] in self._ids)
            tokens.append(self._ids[rest[at : at + size]])
            at += size
        return tokens


@final
class Trial:
    """One schema, its instances and an engine, in phases; what they find is in ``outcome``.

    Parameters
    ----------
    engine, spell
        The engine prepared and its speller.
    task
        The schema, and tests with ``valid`` and ``data``.
    texts
        The number of random texts drawn from the masks.
    timed
        True if masks are made and measured along the instances; else these are only read.
    """

    def __init__(self, engine: SchemaEngine, spell: Speller, task: dict[str, Any], *, texts: int, timed: bool) -> None:
        self.engine, self.spell, self.task, self.texts, self.timed = engine, spell, task, texts, timed
        self.outcome = Outcome()
        self.phases = self.ready, self.instances, self.random_texts

    def ready(self) -> None:
        """Read the schema and make the first mask."""
        start = time.thread_time()
        try:
            self.engine.compile(self.task["schema"])
        except Refused as refused:
            self.outcome.refused = str(refused)[:300] or "refused"
        else:
            self.outcome.ready = time.thread_time() - start

    def instances(self) -> None:
        """Read each instance: spaced under masks, and in the other spellings."""
        for test in self.task["tests"]:
            self.outcome.accepted.append({})
            for spelling, options in SPELLINGS.items():
                tokens = self.spell(json.dumps(test["data"], ensure_ascii=False, **options))
                masked = spelling == "spaced" and self.timed
                self.outcome.accepted[-1][spelling] = self._masked(tokens) if masked else self.engine.accepts(tokens)

    def random_texts(self) -> None:
        """Draw texts from the masks, and ask the reference validator."""
        rng = random.Random(0)
        for _ in range(self.texts):
            text = self._random_text(rng)
            if text is None:
                self.outcome.texts.append("unfinished")
            elif (valid := self._is_valid(text)) is not None:
                self.outcome.texts.append("valid" if valid else "invalid")
                if not valid:
                    self.outcome.wrong.append(text[:300])

    def _masked(self, tokens: Sequence[int]) -> bool:
        """Return True if the masks let a text pass."""
        engine = self.engine
        engine.begin()
        for place, token in enumerate([*tokens, engine.eos]):
            if place < MASKED or token == engine.eos:
                new, start = engine.is_new(), time.thread_time()
                engine.mask()
                if new:
                    self.outcome.masks[f"{len(self.outcome.accepted)}:{place}"] = time.thread_time() - start
                if not engine.allowed()[token]:
                    return False
            if token != engine.eos and not engine.advance(token):
                return False
        return True

    def _random_text(self, rng: random.Random) -> str | None:
        engine, tokens = self.engine, list[int]()
        engine.begin()
        while len(tokens) < LONGEST:
            engine.mask()
            allowed = engine.allowed()
            if allowed[engine.eos] and (len(tokens) >= WALKED or not allowed.sum() > 1 or rng.random() < 0.1):
                return b"".join(engine.vocabulary.tokens[token] for token in tokens).decode("utf-8", "replace")
            allowed[engine.eos] = False
            choices = np.flatnonzero(allowed)
            if not len(choices):
                return None
            if len(tokens) >= WALKED:
                choices = np.flatnonzero(engine.nearer(allowed))
            tokens.append(int(choices[rng.randrange(len(choices))]))
            if not engine.advance(tokens[-1]):
                return None
        return None

    def _is_valid(self, text: str) -> bool | None:
        """Return the verdict of the reference validator; ``None`` where it fails, as on references that lead elsewhere."""
        try:
            value = json.loads(text)
        except ValueError:
            return False
        schema = self.task["schema"]
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            return bool(kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(value))
        except Exception:
            return None


def tried(trial: Trial, first: Sequence[Trial], *, seconds: int, gigabytes: int) -> Outcome:
    """Run a trial in a fork of this process, with so many seconds for each phase.

    Memory that the fork shares with this process would be copied where it is first written, also by counts of references: so it
    is copied before, and the trials ``first`` run once more.
    """
    gc.collect()
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as out:
                for outcome in _phases(trial, first, seconds, gigabytes):
                    out.write(json.dumps(asdict(outcome)) + "\n")
                    out.flush()
        finally:
            os._exit(0)  # what this process was about to do is the other's
    os.close(writing)
    with os.fdopen(reading) as lines:
        whole = [line for line in lines if line.endswith("}\n")]
    _, status = os.waitpid(child, 0)
    outcome = Outcome(**json.loads(whole[-1])) if whole else Outcome(cut="failed")
    if os.WIFSIGNALED(status):
        outcome.cut = "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "failed"
    return outcome


def _phases(trial: Trial, first: Sequence[Trial], seconds: int, gigabytes: int) -> Iterator[Outcome]:
    """Yield the outcome so far after each phase, within bounds on this process."""
    gc.freeze()
    _copy_memory()
    for earlier in first:
        for phase in earlier.phases:
            phase()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_held() + gigabytes * GIGABYTE,) * 2)
    forget_peak()
    before = peak_megabytes()
    outcome = trial.outcome
    for phase in trial.phases:
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, most))
        try:
            phase()
        except Exception as error:  # whatever an engine raises is a result
            outcome.cut, outcome.error = "failed", f"{type(error).__name__}: {error}"[:300]
        outcome.peak, outcome.grown = peak_megabytes(), peak_megabytes() - before
        yield outcome
        if outcome.refused or outcome.cut:
            return


def _copy_memory() -> None:
    """Copy the pages that a fork shares with its parent, where the kernel can (Linux 5.14); not those that nobody has written."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for area in Path("/proc/self/maps").read_text().splitlines():
            addresses, access, *_ = area.split()
            start, end = (int(address, 16) for address in addresses.split("-"))
            if access == "rw-p":
                pages.seek(start // PAGE * 8)
                written = np.frombuffer(pages.read((end - start) // PAGE * 8), np.uint64) >> 62 != 0
                for first, last in (
                    np.flatnonzero(np.diff(written, prepend=False, append=False)).reshape(-1, 2).tolist()
                ):
                    madvise(start + first * PAGE, (last - first) * PAGE, MADV_POPULATE_WRITE)


def _held() -> int:
    """Return the bytes of this process's address space."""
    with open("/proc/self/status") as status:
        return 1024 * int(next(line for line in status if line.startswith("VmSize")).split()[1])
