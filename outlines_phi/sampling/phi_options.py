"""The values of ``phi=`` that are samplers of their own rather than proposals, with their options."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar, Literal, final

from ..errors import UnsupportedError
from ..guides.table import Table
from ..numerics.checks import Checked, Count, by, check, check_counts, fitting, is_number, of_kind, that
from ..phi.estimator import Phi
from ..phi.tree.window import BlockWindows, PhraseWindows, Release, Renewal, Windows
from .draws import Guarantee


@final
@dataclass(frozen=True, kw_only=True)
class Effort(Checked):
    """The compute limit of a call. Work that was started is always finished.

    Attributes
    ----------
    attempts
        Attempts launched per requested draw.
    tokens
        Model tokens per requested draw, prompts excluded, counted for each prompt alone when an attempt is launched.
    seconds
        Seconds of the whole call, from when it is its turn at the model; ``None`` for no limit. Read between model calls,
        before an attempt is launched or more is expanded. Every draw that is there then is as good as any other. *How many*
        there are, and in a seeded call whether they are all there, depends on the machine: to use such a set as if it were
        complete costs at most the probability that the time runs out, in total variation.
    """

    attempts: Count = 5_000
    tokens: Count = 20_000
    seconds: Annotated[
        float | None, that(lambda s: is_number(s) and s > 0, "a positive number, or None for no limit of time")
    ] = None


@final
@dataclass(frozen=True, kw_only=True)
class ExactPhi(Checked, Phi):
    """Exact draws of ``mu*`` by adaptive rejection over a tree of bounds (theory.md, section 5).

    Attributes
    ----------
    tolerance
        0 for exact draws. A positive ``eps`` enumerates best-first until ``U - Lo <= eps Lo`` and then draws without rejection,
        with a total variation to ``mu*`` of at most ``(U - Lo) / U``.
    confidence
        ``None`` for certainty. Else, in (0, 1) and beside a tolerance ``eps``: what enumeration leaves undecided is tested by
        residual attempts, and draws are made, from the members that were enumerated, as soon as ``TV(distribution, mu*) <= eps`` is
        certified at this confidence. Enumeration and attempts share the effort's tokens.
    effort
        When to give up with a :class:`BudgetError`. A certificate may take ``tokens`` model tokens and ``attempts`` residual
        attempts in all, for any number of draws; its seconds are those of certificate and draws together.
    normalizers
        Residual attempts after the draws; each gives an unbiased estimate of ``Phi`` within the tree's bounds.
    width
        Attempts in flight at first, per prompt; more mean fewer model calls and, for few draws, more model tokens. So many more
        with every model call while most of those launched go on, up to what is missing and 512 of all prompts together.
    """

    tolerance: Annotated[float, that(lambda t: is_number(t) and 0 <= t < 1, "a number in [0, 1)")] = 0.0
    confidence: Annotated[
        float | None,
        that(
            lambda c: is_number(c) and 0 < c < 1,
            "a number between 0 and 1, such as 0.95, or None for a certificate that is certain",
        ),
    ] = None
    effort: Annotated[Effort, of_kind(Effort, "Effort(attempts=..., tokens=..., seconds=...)")] = field(
        default_factory=Effort
    )
    normalizers: Annotated[int, by(partial(check_counts, least=0)), fitting(32, "residual attempts")] = 0
    width: Annotated[Count, fitting(4096, "attempts at once")] = 32
    name: ClassVar[str] = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            "ExactPhi",
            self.confidence is None or self.tolerance > 0,
            "no confidence of exact draws, which need no certificate, or the total variation that will do as well: "
            f"ExactPhi(tolerance=0.05, confidence={self.confidence})",
            tolerance=self.tolerance,
            confidence=self.confidence,
        )


@final
@dataclass(frozen=True, kw_only=True)
class AutoPhi(Checked, Phi):
    """Exact draws of ``mu*`` within an effort, then weighted draws from what the tree has learned (theory.md, section 5.10).

    A draw that the effort does not reach is picked by weight from several candidates (sampling-importance-resampling), which come
    from the tree's adaptive proposal. Its guarantee says ``WEIGHTED``, its ``ess`` how many candidates it is worth, and the call
    gives one :class:`~outlines_phi.FidelityWarning`. Where texts alone are returned, a single one is the last state of a chain over
    them; of a format with blocks, texts that are missing after as many model calls as the shortest has tokens are drawn as by
    :class:`FieldsPhi`, without candidates.

    Attributes
    ----------
    candidates
        Candidates of a weighted draw; a single one has twice as many.
    share
        The cost at which a call stops launching attempts at exact draws and turns to weighted ones, as a share of what its
        weighted draws would cost alone; before it turns to fields, the model calls as a share of the tokens of the shortest text.
        0 makes every draw weighted.
    width
        Attempts in flight at once, per prompt.
    """

    candidates: Annotated[Count, fitting(4096, "of them")] = 16
    share: Annotated[
        float,
        that(
            lambda share: is_number(share) and 0 <= share <= 1,
            "a number in [0, 1]; for a larger exact effort give ExactPhi(effort=Effort(...))",
        ),
    ] = 1.0
    width: Annotated[Count, fitting(4096, "of them")] = 32
    name: ClassVar[str] = "auto"


ReleaseRule = Literal["window", "early"]

WINDOW = 16
"""The default of ``LookaheadPhi(window=...)``."""

WINDOW_EFFORT = Effort(attempts=2_000, tokens=2_000)
"""The default of ``LookaheadPhi(effort=...)``: the distributions of so many texts of one window may be in memory at once."""


@final
@dataclass(frozen=True, kw_only=True)
class LookaheadPhi(Checked, Phi):
    """Draws of a text without banned phrases that takes back what led to one (theory.md, section 6).

    The text is written in *windows*. A window begins at the committed text ``r`` and ends as soon as nothing waits, that is
    when no end of the text may begin a phrase, or with the text. It is drawn from ``p(x | r) 1[no phrase] / Psi(r)`` with
    ``Psi(r) = Pr_p(no phrase before the end of the window | r)``, by adaptive rejection, and then committed as a whole. So each
    window has the model's distribution, conditioned; the whole text has ``q(y) = p(y) 1[no phrase] / prod_j Psi(r_j)``, which
    is not the distribution of the model under the condition that no phrase occurs anywhere (``phi="exact"``), but comes closer
    to it than masking, as a rule. Where nothing ever waits, every token costs one model token.

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
    window: Count | None = None
    release: ReleaseRule = "window"
    effort: Annotated[Effort, of_kind(Effort, "Effort(attempts=..., tokens=...)")] = WINDOW_EFFORT
    width: Annotated[Count, fitting(4096, "attempts at once")] = 4
    name: ClassVar[str] = "lookahead"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.effort.seconds is not None:
            raise UnsupportedError(
                "Leave seconds out of LookaheadPhi(effort=Effort(...)), or give phi='exact', which bans the same phrases and takes "
                "them. All draws of a look-ahead advance together, so what a limit of time leaves of them would be the short ones."
            )
        check(
            "LookaheadPhi",
            not self.weights or self.release == "window",
            "release='window' for weights, or no weights: there is no estimate of that of a text that was released early",
            release=self.release,
            weights=self.weights,
        )
        check(
            "LookaheadPhi",
            self.window is None or self.release == "window",
            "one of them: window= has no effect where tokens are released early, because no window is long there",
            release=self.release,
            window=self.window,
        )

    candidates: ClassVar[int] = 0  # Nothing is picked by weight: a window whose effort runs out is an error

    def windows(self, table: Table) -> Windows:
        """Return the windows over a compiled guide; :class:`UnsupportedError` where it bans no phrases."""
        early = self.release == "early"
        return PhraseWindows(table, Release() if early else Renewal(WINDOW if self.window is None else self.window))

    def guarantee(self, table: Table, picked: int) -> Guarantee:
        """Return the guarantee of draws against ``mu*``."""
        return Guarantee.WEIGHTED if self.weights else Guarantee.APPROXIMATE


@final
@dataclass(frozen=True, kw_only=True)
class FieldsPhi(Checked, Phi):
    """Each field drawn from the model's own distribution of that field, given what stands before it (theory.md, section 6.5).

    A text is written in *blocks*: the members of an object, the items of an array, the named groups of a pattern. A block is drawn
    from ``p(y_i | y_<i) 1[y_i in L_i] / Phi_i(y_<i)`` by adaptive rejection, with ``Phi_i`` the probability that the block is
    completed inside the format whatever follows, and then committed. So the text has
    ``q(y) = prod_i p(y_i | y_<i) 1[y_i in L_i] / Phi_i(y_<i)``: masking is this with blocks of one token, ``phi="exact"`` with one
    block. A format without blocks is one block, and its draws are exact.

    Attributes
    ----------
    weights
        Whether ``log_w = sum_i log Phi_hat_i`` is estimated, so that ``E[w f] = Phi mu*(f)``, by further walks after every block in
        which something is undecided. Without, a draw's ``log_w`` is ``nan``: not known.
    attempts, tokens
        Attempts at a block, and model tokens of a block, before it is picked by weight.
    candidates
        Texts of a block that are picked from where no attempt has succeeded, by weight or, without ``weights``, by a chain;
        ``Draw.picked`` counts such blocks.
    least
        A block ends with its value where what comes behind the value has a probability of less than this there; else with what
        introduces the next value.
    width
        Attempts at a block in flight at once, at most: as many as have failed.

    Raises
    ------
    UnsupportedError
        A value out of range.
    """

    weights: bool = False
    attempts: Count = 32
    tokens: Count = 2_000
    candidates: Annotated[Count, fitting(4096, "of them")] = 4
    least: Annotated[float, that(lambda p: is_number(p) and 0 <= p < 1, "a probability, in [0, 1)")] = 0.1
    width: Annotated[Count, fitting(4096, "attempts at once")] = 4
    name: ClassVar[str] = "fields"

    @property
    def effort(self) -> Effort:
        """The effort of a block."""
        return Effort(attempts=self.attempts, tokens=self.tokens)

    def windows(self, table: Table) -> Windows:
        """Return the blocks of a compiled guide."""
        return BlockWindows(table, self.least)

    def guarantee(self, table: Table, picked: int) -> Guarantee:
        """Return the guarantee of a format's draws against ``mu*`` if so many of their blocks were ``picked`` by weight.

        That of a text of one block is as of the others: how many there are is known when it is written.
        """
        if self.weights:
            return Guarantee.WEIGHTED
        if picked:
            return Guarantee.APPROXIMATE
        return Guarantee.FIELDWISE if table.guide.blocks else Guarantee.EXACT
