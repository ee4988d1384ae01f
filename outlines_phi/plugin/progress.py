"""``progress=``: who is told how far a call has come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, final

from tqdm.auto import tqdm

from ..lm.watch import Progress, Watch, watching
from ..phi.estimator import Phi
from ..sampling.phi_options import ExactPhi
from .choices import Told

SLOW = 2.0  # Seconds after which a call for exact draws says that it goes on

logger = logging.getLogger("outlines_phi")


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
    """Show how far a call has come by a bar of tqdm: of draws where some were asked for, else a count of model calls."""
    with ExitStack() as opened:
        bars: list[Any] = []

        def show(progress: Progress) -> None:
            total, done = (progress.wanted, progress.draws) if progress.wanted else (None, progress.calls)
            if not bars:
                bars.append(opened.enter_context(tqdm(total=total, unit="draw" if total else "call")))
            bars[0].set_postfix_str(beside(progress), refresh=False)
            bars[0].update(done - bars[0].n)

        yield partial(_tell, show)


def beside(progress: Progress, *, draws: bool = False) -> str:
    """Return what is said beside a bar, with the ``draws`` where it does not show them itself."""
    drawn = f"{progress.draws:,} of {progress.wanted:,} draws, " if draws else ""
    attempts = f"{progress.attempts:,} attempts, " if progress.attempts else ""
    uppers = [upper for _, upper in progress.log_z_bounds]
    bounds = f", log Phi in [{progress.log_z_bounds[0][0]:.3g}, {uppers[0]:.3g}]" if len(uppers) == 1 else ""
    return f"{drawn}{attempts}{progress.calls:,} calls, {progress.tokens:,} tokens{bounds}"
