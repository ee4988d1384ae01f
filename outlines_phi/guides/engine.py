"""The regex engine of Outlines, ``outlines_core.Index``, over single bytes: here, or in a process that can be stopped.

This file is also the program that the other process runs, so it imports nothing of this package.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from itertools import chain
from typing import NamedTuple

import numpy as np
import outlines_core
from numpy.typing import NDArray

ASCII = tuple(map(chr, range(128)))

_END = 256
_BYTES = outlines_core.Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})
_ASCII = outlines_core.Vocabulary(_END, {character.encode(): [ord(character)] for character in ASCII})
_REFUSED = 3
"""Exit status of the program when the engine refuses the pattern; its message is on standard output."""


class Transitions(NamedTuple):
    """The deterministic automaton of a pattern as the engine builds it; states are numbered from 1."""

    source: NDArray[np.int32]
    byte: NDArray[np.int32]
    target: NDArray[np.int32]
    start: NDArray[np.int32]  # no axes
    final: NDArray[np.int32]
    states: NDArray[np.int32]  # no axes: how many


class Stopped(Exception):
    """The engine was stopped: it needed more time or memory than it was given."""


def build(pattern: str) -> Transitions:
    """Return the automaton of ``pattern``; ``ValueError`` is the engine's own refusal.

    Every byte is a token of its own. Note what the engine leaves out (outlines_core 0.2.14): steps from a final state
    into one that is not final, and what a match of higher priority ends. A pattern that can only match at the end of
    the text, ``...\\z``, loses nothing.
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
    spelled = byte != _END  # the engine adds an end-of-sequence loop to final states

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


def first_ascii(pattern: str) -> set[str] | None:
    """Return which ASCII characters a match of ``pattern`` may begin with; ``None`` if it cannot be read."""
    try:
        index = outlines_core.Index(pattern, _ASCII)
    except ValueError as error:
        # The engine finds no transition from the first state: none of them.
        return set() if "incompatible" in str(error) else None
    return {chr(token) for token in index.get_allowed_tokens(index.get_initial_state()) or () if token != _END}


def build_apart(pattern: str, *, seconds: float, megabytes: int) -> Transitions:
    """Return :func:`build` of ``pattern``, made in another process that is stopped past ``seconds`` or ``megabytes``.

    A native build cannot be interrupted, so a pattern whose automaton may be exponentially large is built here.
    Raises :class:`Stopped`, or ``ValueError`` as :func:`build` does.
    """
    program = f"import runpy, sys; sys.path[:] = {sys.path!r}; runpy.run_path({__file__!r}, run_name='__main__')"
    command = [sys.executable, "-c", program, str(megabytes)]
    # Threads of linear algebra reserve memory that counts and is not used.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, input=pattern.encode(), capture_output=True, timeout=seconds, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise Stopped(f"more than {seconds:g} seconds") from None
    except OSError as error:
        raise Stopped(f"another process, which could not be started ({error})") from None
    if done.returncode == _REFUSED:
        raise ValueError(done.stdout.decode())
    if done.returncode != 0:
        raise Stopped(f"more than {megabytes} MB of memory (status {done.returncode})")
    with np.load(io.BytesIO(done.stdout)) as arrays:
        return Transitions(**arrays)


def _main() -> None:
    _limit_memory(int(sys.argv[1]))
    try:
        transitions = build(sys.stdin.buffer.read().decode())
    except ValueError as error:
        sys.stdout.write(str(error))
        sys.stdout.flush()
        sys.exit(_REFUSED)
    buffer = io.BytesIO()
    np.savez(buffer, **transitions._asdict())
    sys.stdout.buffer.write(buffer.getvalue())


def _limit_memory(megabytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit; the deadline still holds
        return
    limit = megabytes << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    _main()
