"""Look-ahead past what may become a banned phrase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

from ...errors import UnsupportedError
from ...numerics.checks import check_counts, check_fits, check_kind
from ..estimator import Need, Phi
from ..tree.window import Ending, Release, Renewal
from .exact import Effort

ReleaseRule = Literal["window", "early"]

WINDOW = 16
"""The default of ``LookaheadPhi(window=...)``."""

WINDOW_EFFORT = Effort(attempts=2_000, tokens=2_000)
"""The default of ``LookaheadPhi(effort=...)``: the distributions of so many texts of one window may be in memory at once."""


@final
@dataclass(frozen=True, kw_only=True)
class LookaheadPhi(Phi):
    """Draws of a text without banned phrases that takes back what led to one (theory.md, section 6).

    The text is written in *windows*. A window begins at the committed text ``r`` and ends as soon as nothing waits, that is when no
    end of the text may begin a phrase, or with the text. It is drawn from ``p(x | r) 1[no phrase] / Psi(r)`` with ``Psi(r) =
    Pr_p(no phrase before the end of the window | r)``, by adaptive rejection, and then committed as a whole. So each window has the
    model's distribution, conditioned; the whole text has ``q(y) = p(y) 1[no phrase] / prod_j Psi(r_j)``, which is not the
    distribution of the model under the condition that no phrase occurs anywhere (``phi="exact"``), but comes closer to it than
    masking, as a rule. Where nothing ever waits, every token costs one model token.

    Attributes
    ----------
    weights
        Whether ``log_w = sum_j log Psi_hat_j`` is estimated, so that ``E[w f] = Phi mu*(f)``, by further walks after every window
        in which something is undecided. Without, a draw's ``log_w`` is ``nan``: not known.
    window
        Tokens, 16 by default. A window of this many ends as soon as what waits has begun inside its last token; one of four
        times as many, or one that seven walks in eight would not have come through, ends in any case: with hundreds of phrases
        something waits nearly always. What waits then is still kept from becoming a phrase, from there on.
    release
        ``"window"``; or ``"early"``: a token is committed as soon as nothing of it waits, though later ones do. It is drawn
        from ``p(v | y, E)``, with ``E`` the event that it comes to be committed without a phrase. Streams run ahead of long
        phrases; the weights of such draws are not known.
    effort
        When to give up a window with a :class:`BudgetError`; the model tokens and attempts are those of one window. It has no
        ``seconds``.
    width
        Attempts of a window in flight at once, at most: as many as have failed.

    Raises
    ------
    UnsupportedError
        A value out of range, or an option without effect beside the others.
    """

    weights: bool = False
    window: int | None = None
    release: ReleaseRule = "window"
    effort: Effort = WINDOW_EFFORT
    width: int = 4
    name: ClassVar[str] = "lookahead"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def __post_init__(self) -> None:
        check_kind("LookaheadPhi", "weights", self.weights, bool, "True or False")
        if self.release not in get_args(ReleaseRule):
            expected = " or ".join(map(repr, get_args(ReleaseRule)))
            raise UnsupportedError(f"release={self.release!r} was given to LookaheadPhi; expected {expected}.")
        check_kind("LookaheadPhi", "effort", self.effort, Effort, "Effort(attempts=..., tokens=...)")
        if self.effort.seconds is not None:
            raise UnsupportedError(
                "Leave seconds out of LookaheadPhi(effort=Effort(...)), or give phi='exact', which bans the same phrases and takes "
                "them. All draws of a look-ahead advance together, so what a limit of time leaves of them would be the short ones."
            )
        check_counts("LookaheadPhi", width=self.width)
        check_fits("width", self.width, each=4096, things="attempts at once")
        if self.window is not None:
            check_counts("LookaheadPhi", window=self.window)
        if self.release == "early" and self.weights:
            raise UnsupportedError(
                "LookaheadPhi(weights=True, release='early') was given; there is no estimate of the weight of a text that was "
                "released early. Give release='window' for weights, or leave weights out."
            )
        if self.release == "early" and self.window is not None:
            raise UnsupportedError(
                f"LookaheadPhi(window={self.window}, release='early') was given; window= has no effect where tokens are released "
                "early, because no window is long there. Leave one of them out."
            )

    @property
    def ending(self) -> Ending:
        """Where windows end."""
        return Release() if self.release == "early" else Renewal(WINDOW if self.window is None else self.window)
