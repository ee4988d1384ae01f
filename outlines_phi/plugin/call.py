"""One call: what every door asks for, decided once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from ..errors import UnsupportedError
from ..guides.phrases.banned import BannedPhrases, Phrase
from ..guides.phrases.phrase_guide import BanningGuide
from ..guides.table import Table
from ..phi.estimator import Phi
from ..phi.onestep import LocalPhi
from ..sampling.phi_options import AutoPhi, ExactPhi, LookaheadPhi
from .options import Unset, resolve_phi
from .processor import MaskLogitsProcessor, TableLogitsProcessor
from .types.tables import CompiledTypes

Ban: TypeAlias = BannedPhrases | Iterable[Phrase]  # What `banned_phrases=` may be

LEVELS: dict[str, Phi] = {
    "mask": LocalPhi(),
    "lookahead": LookaheadPhi(),
    "weighted": LookaheadPhi(weights=True),
    "exact": ExactPhi(),
}
"""What each level of :class:`BannedPhrases` stands for."""

DRAWN = AutoPhi()  # The estimator of draws of a format for which nobody has chosen one


def resolve_ban(given: object) -> BannedPhrases | None:
    """Return what is meant by ``banned_phrases``: ``None`` and an empty list or tuple ban nothing."""
    match given:
        case None | BannedPhrases():
            return given
        case list() | tuple() if not given:
            return None
        case os.PathLike() | dict():
            raise UnsupportedError(
                f"banned_phrases={given!r:.80} was given; expected a list of phrases, BannedPhrases.from_file(path), or "
                "BannedPhrases(phrases, ignore_case=..., whole_word=..., level=...)."
            )
    return BannedPhrases(given)  # type: ignore[arg-type]


@final
@dataclass(frozen=True)
class Correction:
    """How a model, a generator or a call corrects, and what it keeps out: the one place where ``phi`` meets ``banned_phrases``.

    Each of the three replaces what the one before it says, by :meth:`replaced_by`; what is not said depends on what is drawn, see
    :meth:`estimator`. ``phi`` is the estimator that was given, ``None`` for the host's own loop, and ``inherited`` where it was
    given farther away; ``level`` is the one that the level of the ban stands for, where the ban was given nearer to the call than
    ``phi``.
    """

    phi: Phi | Unset | None = Unset.UNSET
    level: Phi | Unset = Unset.UNSET
    ban: BannedPhrases | None = None
    inherited: bool = False

    @property
    def said(self) -> Phi | Unset | None:
        """The estimator that was asked for, by name or by level."""
        return self.phi if isinstance(self.level, Unset) else self.level

    @property
    def chosen(self) -> bool:
        """Whether the estimator was asked for here, by name or by level."""
        return not isinstance(self.level, Unset) or not (self.inherited or isinstance(self.phi, Unset))

    def replaced_by(
        self, phi: str | Phi | Unset | None = Unset.UNSET, banned_phrases: Ban | Unset | None = Unset.UNSET
    ) -> Correction:
        """Return what holds where these are given: ``phi`` before the level beside it, and both before what was there."""
        inherited = isinstance(banned_phrases, Unset)
        ban = self.ban if inherited else resolve_ban(banned_phrases)
        if isinstance(phi, Unset):
            return self if inherited else Correction(self.phi, level_of(ban), ban, inherited=True)
        resolved = resolve_phi(phi)
        meant = Unset.UNSET if inherited else level_of(ban)
        if not isinstance(meant, Unset) and not _agree(resolved, meant):
            raise UnsupportedError(
                f"Leave one of the two out: phi={resolved!r} was given with banned phrases of level={ban and ban.level!r}, "
                f"which stands for {meant!r}."
            )
        return Correction(resolved, ban=ban)

    def estimator(self, sampler: object = None, *, free: bool = False, usual: Phi | None = DRAWN) -> Phi | None:
        """Return the estimator of a call: the one that was asked for, else what is usual.

        Particles follow plain masking. Free text, which has something to correct only where phrases are banned, looks ahead.
        """
        if not isinstance(self.said, Unset):
            return self.said
        return LocalPhi() if sampler is not None else LookaheadPhi() if free else usual


def level_of(ban: BannedPhrases | None) -> Phi | Unset:
    """Return the estimator that the level of a ban stands for, where it has one."""
    return Unset.UNSET if ban is None or ban.level is None else LEVELS[ban.level]


def _agree(phi: Phi | None, meant: Phi) -> bool:
    """Return whether a correction is one that a level stands for; its other options are free."""
    if phi is None:
        return isinstance(meant, LocalPhi)  # a mask, in the host's own loop
    options = [[getattr(each, name, None) for name in ("weights", "tolerance")] for each in (phi, meant)]
    return type(phi) is type(meant) and options[0] == options[1]


@final
@dataclass(frozen=True)
class Call:
    """What a call asks for: an estimator, a language, the phrases kept out of it, and all the other keywords.

    ``phi=None`` is the host's own loop. ``language`` is an output type or a logits processor, ``None`` for free text. ``keywords``
    are read as :class:`outlines_phi.plugin.options.CallOptions` where draws are made.
    """

    phi: Phi | None
    language: Any
    ban: BannedPhrases | None
    keywords: dict[str, Any]

    @classmethod
    def of(cls, correction: Correction, language: Any, keywords: dict[str, Any], *, usual: Phi | None = DRAWN) -> Call:
        """Return the call that writes ``language`` under ``correction``; ``usual`` is the estimator of formats without a choice."""
        if language is None and correction.ban is None and not correction.chosen:
            # Free text is the model's own distribution already: a default has nothing to correct there.
            return cls(None, None, None, keywords)
        phi = correction.estimator(keywords.get("sampler"), free=is_free(language), usual=usual)
        ban = correction.ban
        if ban is None and isinstance(phi, LookaheadPhi) and isinstance(language, MaskLogitsProcessor):
            # A look-ahead needs a guide that tells what is pending. One that does has the phrases already; what is kept out twice
            # is counted for no phrase.
            ban = None if isinstance(language.table.guide, BanningGuide) else language.ban
        return cls(phi, language, ban, keywords)

    @property
    def banned(self) -> BannedPhrases | None:
        """What is not written, here and by the language: of two bans, the one whose whole words have to know where a loop ends."""
        own = getattr(self.language, "ban", None)
        return own if self.ban is None or (own is not None and own.whole_word) else self.ban

    @property
    def searched(self) -> bool:
        """Whether the most probable text is asked for, not a draw."""
        return self.keywords.get("do_sample") is False

    def table(self, compiled: CompiledTypes) -> Table:
        """Return what may be written; errors as :meth:`CompiledTypes.without`."""
        return compiled.without(self.language, self.ban, watched=isinstance(self.phi, LookaheadPhi))

    def processor(self, compiled: CompiledTypes) -> Any:
        """Return the logits processor of the host's own loop; ``None`` where there is nothing to mask."""
        return self.language if self.ban is None else MaskLogitsProcessor(self.table(compiled), ban=self.banned)


def is_free(language: Any) -> bool:
    """Return whether a language is free text, with or without banned phrases."""
    return language is None or (isinstance(language, TableLogitsProcessor) and language.table.guide.open)
