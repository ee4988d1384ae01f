"""``progress=``: who is told how far a call has come."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias, final

from ..errors import UnsupportedError
from ..lm.watch import Progress, Watch, watching
from ..phi.estimator import Phi
from ..sampling.phi_options import ExactPhi

Told: TypeAlias = Callable[[Progress], object] | bool | None
"""What ``progress=`` may be."""

SLOW = 2.0
"""Seconds after which a call for exact draws says that it goes on."""

logger = logging.getLogger("outlines_phi")


def resolve_progress(given: object) -> Told:
    """Return what a call means by ``progress=``."""
    if given is None or isinstance(given, bool) or (callable(given) and not isinstance(given, type)):
        return given
    raise UnsupportedError(
        f"Give progress=True for a bar, progress=function to have function(progress) called after every model call, or "
        f"progress=False for nothing; progress={given!r:.80} was given."
    )


@contextmanager
def telling(progress: Told, phi: Phi | None = None) -> Iterator[None]:
    """Watch a call under ``phi``, and tell how far it has come."""
    if progress is True:
        with _shown() as tell, watching(tell):
            yield
    elif progress is None:
        endless = isinstance(phi, ExactPhi) and phi.effort.seconds is None
        with watching(SlowCall() if endless else None):
            yield
    else:
        with watching(partial(_tell, progress) if progress else None):
            yield


@final
class SlowCall:
    """Says once that a call for exact draws does not end soon, and what to do."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, watch: Watch) -> None:
        """Log one line where it is time for it."""
        if self._said or watch.ended or watch.seconds < SLOW or watch.progress is None:
            return
        self._said, progress = True, watch.progress()
        row, (lower, upper) = min(enumerate(progress.log_z_bounds), key=lambda bounds: bounds[1][1])
        of = f" of prompt {row}" if len(progress.log_z_bounds) > 1 else ""
        logger.warning(
            "Give phi='auto' for weighted draws where exact ones are dear, ExactPhi(effort=Effort(seconds=...)) for a limit, or a "
            "prompt closer to the format: after %.0f s there are %d of %d draws, by %s attempts, and log Phi%s is between %.4g and "
            "%.4g. (progress=True shows a bar, progress=False nothing.)",
            progress.seconds,
            progress.draws,
            progress.wanted,
            f"{progress.attempts:,}",
            of,
            lower,
            upper,
        )


def _tell(callback: Callable[[Progress], object], watch: Watch) -> None:
    if watch.progress is not None:
        callback(watch.progress())


@contextmanager
def _shown() -> Iterator[Callable[[Watch], None]]:
    """Show how far a call has come: by tqdm's bar where there is tqdm, else by a line on stderr."""
    bar = _Bar(import_module("tqdm.auto").tqdm) if find_spec("tqdm") is not None else _Line()
    try:
        yield partial(_tell, bar.show)
    finally:
        bar.close()


@final
class _Bar:
    """A bar of tqdm: of draws where some were asked for, else a count of model calls."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm, self._bar = tqdm, None  # type: Any, Any

    def show(self, progress: Progress) -> None:
        """Move the bar to where the call is."""
        total, done = (progress.wanted, progress.draws) if progress.wanted else (None, progress.calls)
        if self._bar is None:
            self._bar = self._tqdm(total=total, unit="draw" if total else "call")
        self._bar.set_postfix_str(beside(progress), refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


@final
class _Line:
    """A line on stderr that is written again and again."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, progress: Progress) -> None:
        """Write where the call is."""
        said = str(progress)
        sys.stderr.write(f"\r{said:{self._width}}")
        sys.stderr.flush()
        self._width = len(said)

    def close(self) -> None:
        """End the line."""
        if self._width:
            sys.stderr.write("\n")


def beside(progress: Progress, *, draws: bool = False) -> str:
    """Return what is said beside a bar, with the ``draws`` where it does not show them itself."""
    drawn = f"{progress.draws:,} of {progress.wanted:,} draws, " if draws else ""
    attempts = f"{progress.attempts:,} attempts, " if progress.attempts else ""
    uppers = [upper for _, upper in progress.log_z_bounds]
    bounds = f", log Phi in [{progress.log_z_bounds[0][0]:.3g}, {uppers[0]:.3g}]" if len(uppers) == 1 else ""
    return f"{drawn}{attempts}{progress.calls:,} calls, {progress.tokens:,} tokens{bounds}"
