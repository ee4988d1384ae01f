"""What an engine makes of one JSON schema, in a process of its own with bounds on time and memory."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, final

import jsonschema
import numpy as np

from benchmarks.compile import forget_peak, peak_megabytes
from benchmarks.schema_engines import Refused, SchemaEngine
from outlines_phi.vocabulary import Vocabulary

SPELLINGS: dict[str, dict[str, Any]] = {
    "spaced": {},
    "compact": {"separators": (",", ":")},
    "indented": {"indent": 2},
}
"""How ``json.dumps`` writes an instance; the verdict is of the first, which is MaskBench's."""

MASKED = 400
"""Tokens of an instance that are masked; those behind them are only read."""

WALKED = 40
"""Tokens of a random text until it turns to its end."""

LONGEST = 400
"""Tokens after which a random text is given up."""

GIGABYTE = 2**30


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
    """One schema, its instances and an engine. Each phase yields what it found.

    Parameters
    ----------
    engine, spell
        What was prepared.
    task
        The schema, and tests with ``valid`` and ``data``.
    texts
        How many random texts are drawn from the masks.
    timed
        Whether masks are made and measured along the instances; else these are only read.
    """

    def __init__(self, engine: SchemaEngine, spell: Speller, task: dict[str, Any], *, texts: int, timed: bool) -> None:
        self.engine, self.spell, self.task, self.texts, self.timed = engine, spell, task, texts, timed

    def ready(self) -> Iterator[dict[str, Any]]:
        """Read the schema and make the first mask."""
        start = time.thread_time()
        try:
            self.engine.compile(self.task["schema"])
        except Refused as refused:
            yield {"refused": str(refused)[:300]}
        else:
            yield {"ready": time.thread_time() - start}

    def instances(self) -> Iterator[dict[str, Any]]:
        """Read each instance: spaced under masks, and in the other spellings."""
        for place, test in enumerate(self.task["tests"]):
            for spelling, options in SPELLINGS.items():
                tokens = self.spell(json.dumps(test["data"], ensure_ascii=False, **options))
                if spelling == "spaced" and self.timed:
                    accepted, seconds = self._masked(tokens)
                else:
                    accepted, seconds = self.engine.accepts(tokens), []
                yield {"test": place, "spelling": spelling, "accepted": accepted, "masks": seconds}

    def random_texts(self) -> Iterator[dict[str, Any]]:
        """Draw texts from the masks, and ask the reference validator."""
        rng = random.Random(0)
        for _ in range(self.texts):
            text = self._random_text(rng)
            if text is None:
                yield {"text": "unfinished"}
            elif (valid := self._is_valid(text)) is not None:
                yield {"text": "valid" if valid else "invalid", "of": text[:300]}

    def _masked(self, tokens: Sequence[int]) -> tuple[bool, list[float]]:
        """Return whether the masks let a text pass, and the processor seconds of each mask that was not at hand."""
        engine, seconds = self.engine, list[float]()
        engine.begin()
        for place, token in enumerate([*tokens, engine.eos]):
            if place < MASKED or token == engine.eos:
                new, start = engine.is_new(), time.thread_time()
                engine.mask()
                if new:
                    seconds.append(time.thread_time() - start)
                if not engine.allowed()[token]:
                    return False, seconds
            if token != engine.eos and not engine.advance(token):
                return False, seconds
        return True, seconds

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
        """Return what the reference validator says; ``None`` where it fails, as on references that lead elsewhere."""
        try:
            value = json.loads(text)
        except ValueError:
            return False
        schema = self.task["schema"]
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            return bool(kind(schema, format_checker=jsonschema.FormatChecker()).is_valid(value))
        except Exception:
            return None


def tried(trial: Trial, *, seconds: int, gigabytes: int) -> list[dict[str, Any]]:
    """Return what the phases of a trial find, in a fork of this process; a phase that is cut off ends with ``{"cut": how}``."""
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            _run(trial, seconds, gigabytes, lambda found: out.write(json.dumps(found) + "\n") and out.flush())
        os._exit(0)  # what this process was about to do is its own
    os.close(writing)
    with os.fdopen(reading) as lines:
        found = [json.loads(line) for line in lines if line.endswith("}\n")]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        found.append({"cut": "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "failed"})
    return found


def _run(trial: Trial, seconds: int, gigabytes: int, tell: Callable[[dict[str, Any]], object]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    held = _megabytes("VmSize") * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (int(held) + gigabytes * GIGABYTE,) * 2)
    forget_peak()
    before = peak_megabytes()
    try:
        for phase in (trial.ready, trial.instances, trial.random_texts):
            _, most = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, most))
            tell({"phase": phase.__name__})
            for found in phase():
                tell(found)
                if "refused" in found:
                    return
            tell({"peak": peak_megabytes(), "grown": peak_megabytes() - before})
    except BaseException as error:  # whatever an engine raises is a result
        with suppress(BaseException):
            tell({"cut": "failed", "why": f"{type(error).__name__}: {error}"[:300]})


def _megabytes(name: str) -> float:
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(name)).split()[1]) / 1024
