"""``banned_phrases=``: what a call means by it, and what its level says of how draws are corrected."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from ..errors import UnsupportedError
from ..guides.phrases.banned import BannedPhrases, Phrase
from ..phi.estimator import Phi
from ..phi.estimators.exact import ExactPhi
from ..phi.estimators.local import LocalPhi
from ..phi.estimators.lookahead import LookaheadPhi
from .options import Unset, default_phi, resolve_phi

Ban: TypeAlias = BannedPhrases | Iterable[Phrase]
"""What ``banned_phrases=`` may be."""

LEVELS: dict[str, Phi] = {
    "mask": LocalPhi(),
    "lookahead": LookaheadPhi(),
    "weighted": LookaheadPhi(weights=True),
    "exact": ExactPhi(),
}
"""What each level of :class:`BannedPhrases` stands for."""


def resolve_ban(given: object) -> BannedPhrases | None:
    """Return what is meant by ``banned_phrases``: ``None`` and an empty list or tuple ban nothing.

    Raises
    ------
    UnsupportedError, GrammarError
        As :class:`BannedPhrases`.
    """
    match given:
        case None | BannedPhrases():
            return given
        case list() | tuple() if not given:
            return None
        case os.PathLike():
            raise UnsupportedError(
                f"banned_phrases={given!r} is a path; give what the file holds, one phrase on each line: "
                f"banned_phrases=BannedPhrases.from_file({os.fspath(given)!r})."
            )
        case dict():
            raise UnsupportedError(
                f"banned_phrases={given!r:.80} is a dict; expected a list of phrases, or BannedPhrases(phrases, ignore_case=..., "
                "whole_word=..., level=...)."
            )
    return BannedPhrases(given)  # type: ignore[arg-type]


def corrected_as(phi: str | Phi | Unset | None, ban: BannedPhrases | None) -> Phi | Unset | None:
    """Return the correction that is asked for where ``phi`` and ``ban`` are given together: ``phi``, else the level's; or neither.

    Raises
    ------
    UnsupportedError
        Both are given, and they differ.
    """
    if ban is None or ban.level is None:
        return phi if isinstance(phi, Unset) else resolve_phi(phi)
    meant = LEVELS[ban.level]
    if isinstance(phi, Unset):
        return meant
    resolved = resolve_phi(phi)
    if _agree(resolved, meant):
        return resolved
    raise UnsupportedError(
        f"{_described(resolved)} was given with banned phrases of level={ban.level!r}, which stands for {_described(meant)}. Leave "
        "one of the two out."
    )


@final
@dataclass(frozen=True)
class Correction:
    """How a generator corrects, and what it keeps out. What a call says of either replaces it.

    Attributes
    ----------
    phi
        The estimator: the one that was given, else that of the level, else the model's own; ``None`` for the host's own loop.
    ban
        The phrases that are kept out; ``None`` for none.
    phi_without
        The estimator where a call brings phrases of its own, or lifts these.
    """

    phi: Phi | None
    ban: BannedPhrases | None
    phi_without: Phi | None

    @classmethod
    def of(cls, model: Any, phi: str | Phi | Unset | None, banned_phrases: Ban | Unset | None) -> Correction:
        """Return that of a generator of ``model``; what is left out is as the model has it.

        Raises
        ------
        UnsupportedError, GrammarError
            As :func:`resolve_ban` and :func:`corrected_as`.
        """
        inherited = isinstance(banned_phrases, Unset)
        ban = model.banned_phrases if inherited else resolve_ban(banned_phrases)
        # The model's level stands beside the model's phi; one that is given here is the nearer.
        said = corrected_as(phi, None if inherited and not isinstance(phi, Unset) else ban)
        without = default_phi(phi, model)
        return cls(without if isinstance(said, Unset) else said, ban, without)

    def replaced_by(self, keywords: Mapping[str, Any]) -> Correction:
        """Return that of a call with ``keywords``; itself where they say nothing of it. Errors as :meth:`of`."""
        if "phi" not in keywords and "banned_phrases" not in keywords:
            return self
        own = "banned_phrases" in keywords
        ban = resolve_ban(keywords["banned_phrases"]) if own else self.ban
        said = corrected_as(keywords.get("phi", Unset.UNSET), ban if own else None)
        inherited = self.phi_without if own else self.phi
        return Correction(inherited if isinstance(said, Unset) else said, ban, self.phi_without)


class Corrected:
    """What writes under a correction: the generators of both APIs."""

    correction: Correction

    @property
    def phi(self) -> Phi | None:
        """The estimator; ``None`` for plain masking, in Outlines' own loop."""
        return self.correction.phi

    @property
    def banned_phrases(self) -> BannedPhrases | None:
        """What is not written; ``None`` where nothing is banned."""
        return self.correction.ban


def _described(phi: Phi | None) -> str:
    """Return what to call a correction in a message, with the option that levels differ in."""
    match phi:
        case None:
            return "phi=None"
        case LookaheadPhi():
            return f"phi={phi.name!r} {'with' if phi.weights else 'without'} weights"
        case ExactPhi() if phi.tolerance > 0:
            return f"phi={phi.name!r} with tolerance={phi.tolerance}"
    return f"phi={phi.name!r}"


def _agree(phi: Phi | None, meant: Phi) -> bool:
    """Return whether a correction is one that a level stands for; its other options are free."""
    match phi, meant:
        case None, LocalPhi():
            return True  # a mask, in the host's own loop
        case LookaheadPhi(), LookaheadPhi():
            return phi.weights == meant.weights
        case ExactPhi(), ExactPhi():
            return phi.tolerance == 0
    return phi == meant
