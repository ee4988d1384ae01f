"""Regular expressions built by ``outlines_core.Index`` over single bytes: here, or in a process that can be stopped.

This file is also the program that the other process runs, so it imports nothing of this package.
"""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, NoReturn

import numpy as np
import outlines_core
from numpy.typing import NDArray

ASCII = tuple(map(chr, range(128)))

_END = 256
_BYTES = outlines_core.Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})
_ASCII = outlines_core.Vocabulary(_END, {character.encode(): [ord(character)] for character in ASCII})
_REFUSED, _TOO_LARGE = 3, 4
"""Exit status of the program when outlines_core refuses the pattern, and when it has too many states; with a message as output."""

_GROWTH = 4.0  # How many times as many states the next version of a pattern may have that is looked at


class Transitions(NamedTuple):
    """The deterministic automaton of a pattern as outlines_core builds it; states are numbered from 1."""

    source: NDArray[np.int32]
    byte: NDArray[np.int32]
    target: NDArray[np.int32]
    start: NDArray[np.int32]  # no axes
    final: NDArray[np.int32]
    states: NDArray[np.int32]  # no axes: how many


class Stopped(Exception):
    """outlines_core was stopped: it needed more states or memory than it was given."""


def build(pattern: str) -> Transitions:
    """Return the automaton of ``pattern``; ``ValueError`` is outlines_core's own refusal.

    Every byte is a token of its own. outlines_core 0.2.14 leaves out steps from a final state into one that is not final, and what
    a match of higher priority ends; a pattern that can only match at the end of the text, ``...\\z``, loses nothing.
    """
    index = outlines_core.Index(pattern, _BYTES)
    rows = index.get_transitions()
    width = np.fromiter(map(len, rows.values()), dtype=np.int64, count=len(rows))
    total = int(width.sum())
    byte = np.fromiter(chain.from_iterable(rows.values()), dtype=np.int32, count=total)
    target = np.fromiter(chain.from_iterable(row.values() for row in rows.values()), dtype=np.int64, count=total)
    source = np.repeat(np.fromiter(rows, dtype=np.int64, count=len(rows)), width)
    start, final = index.get_initial_state(), np.array(sorted(index.get_final_states()), dtype=np.int64)
    names = np.unique(np.concatenate([[start], source, target, final]))
    spelled = byte != _END  # outlines_core adds an end-of-sequence loop to final states

    def number(states: NDArray[np.int64]) -> NDArray[np.int32]:
        return (np.searchsorted(names, states) + 1).astype(np.int32)

    return Transitions(
        number(source[spelled]),
        byte[spelled],
        number(target[spelled]),
        number(np.array(start)),
        number(final),
        np.array(len(names), dtype=np.int32),
    )


def size(pattern: str) -> int:
    """Return the number of states of :func:`build`."""
    return len(outlines_core.Index(pattern, _BYTES).get_transitions())


@lru_cache(maxsize=1024)
def first_ascii(pattern: str) -> frozenset[str] | None:
    """Return which ASCII characters a match of ``pattern`` may begin with; ``None`` if it cannot be read."""
    try:
        index = outlines_core.Index(pattern, _ASCII)
    except ValueError as error:
        # outlines_core finds no transition from the first state: none of them.
        return frozenset() if "incompatible" in str(error) else None
    return frozenset(chr(token) for token in index.get_allowed_tokens(index.get_initial_state()) or () if token != _END)


def build_apart(versions: Sequence[tuple[int, str]], *, states: int, megabytes: int) -> Transitions:
    """Return :func:`build` of the last of ``versions``, made in another process unless it has more than ``states`` states.

    The ``versions`` are the pattern with its repeats cut to some number, ascending, and last the pattern as it is, with its largest
    bound. Their states are counted first: one that has too many ends it, so what is refused does not depend on how fast the machine
    is. The bound on memory, where the system has one, is for what grows beyond reason from one version to the next; while versions
    are counted it is a sixteenth of ``megabytes``, for few states that are large sets take as long as many states.
    :class:`Stopped` where one of the bounds is exceeded, ``ValueError`` as for :func:`build`.
    """
    program = f"import runpy, sys; sys.path[:] = {sys.path!r}; runpy.run_path({__file__!r}, run_name='__main__')"
    command = [sys.executable, "-c", program, str(states), str(megabytes)]
    # Threads of linear algebra reserve memory that counts and is not used.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, input=json.dumps(versions).encode(), capture_output=True, check=False, env=environment
        )
    except OSError as error:
        raise Stopped(f"another process, which could not be started ({error})") from None
    if done.returncode == _REFUSED:
        raise ValueError(done.stdout.decode())
    if done.returncode == _TOO_LARGE:
        raise Stopped(done.stdout.decode())
    if done.returncode != 0:
        raise Stopped(f"too much memory, of a bound of {megabytes} MB")
    with np.load(io.BytesIO(done.stdout)) as arrays:
        return Transitions(**arrays)


def _main() -> None:
    most, megabytes = map(int, sys.argv[1:])
    versions = json.load(sys.stdin.buffer)
    _limit_memory(megabytes // 16)
    if found := _too_large(versions, most):
        _end(_TOO_LARGE, found)
    _limit_memory(megabytes)
    try:
        transitions = build(versions[-1][1])
    except ValueError as error:
        _end(_REFUSED, str(error))
    if transitions.states > most:
        _end(_TOO_LARGE, f"{int(transitions.states):,} states, more than {most:,}")
    buffer = io.BytesIO()
    np.savez(buffer, **transitions._asdict())
    sys.stdout.buffer.write(buffer.getvalue())


def _end(status: int, message: str) -> NoReturn:
    sys.stdout.write(message)
    sys.stdout.flush()
    sys.exit(status)


def _too_large(versions: Sequence[tuple[int, str]], most: int) -> str | None:
    """Return what a version before the last has, if it has more than ``most`` states.

    Versions are left out as long as the next one is expected to have at most :data:`_GROWTH` times as many states as this one.
    """
    place, cap, before = 0, 0, 1.0
    while place < len(versions) - 1:
        try:
            here, found = versions[place][0], size(versions[place][1])
        except ValueError:  # the pattern as it is may be read, and says better what is wrong
            return None
        if found > most:
            return f"more than {most:,} states: {found:,} where its repeats are cut to {here}"
        rate = math.log(max(found / before, 1)) / (here - cap)
        cap, before = here, found
        place += 1
        while place < len(versions) - 1 and rate * (versions[place + 1][0] - cap) < math.log(_GROWTH):
            place += 1
    return None


def _limit_memory(megabytes: int) -> None:
    """Bound the memory of this process, beyond what it took to start."""
    try:
        import resource
    except ImportError:  # Windows has no such limit; the one on states still holds
        return
    try:
        with open("/proc/self/statm") as counts:
            started = int(counts.read().split()[0]) * resource.getpagesize()
    except OSError:  # only Linux has it
        started = 256 << 20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (started + (megabytes << 20), hard))


if __name__ == "__main__":
    _main()
