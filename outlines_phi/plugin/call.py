"""One call: what every door asks for, decided once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from ..guides.phrases.banned import BannedPhrases
from ..guides.phrases.phrase_guide import BanningGuide
from ..guides.table import Table
from ..phi.estimator import Phi
from ..phi.estimators.lookahead import LookaheadPhi
from .correction import DRAWN, Correction
from .hosts.processor import MaskLogitsProcessor, TableLogitsProcessor
from .types.tables import CompiledTypes


@final
@dataclass(frozen=True)
class Call:
    """What a call asks for: an estimator, a language, the phrases kept out of it, and all the other keywords.

    Attributes
    ----------
    phi
        The estimator; ``None`` for the host's own loop.
    language
        What may be written: an output type, or a logits processor; ``None`` for free text.
    ban
        What is to be kept out of that; ``None`` where nothing more is.
    keywords
        Everything else that was given; read as :class:`outlines_phi.plugin.options.CallOptions` where draws are made.
    """

    phi: Phi | None
    language: Any
    ban: BannedPhrases | None
    keywords: dict[str, Any]

    @classmethod
    def of(cls, correction: Correction, language: Any, keywords: dict[str, Any], *, usual: Phi | None = DRAWN) -> Call:
        """Return the call that writes ``language`` under ``correction``; ``usual`` is the estimator of formats without a choice."""
        if language is None and correction.ban is None and not correction.chosen:
            # Free text is the model's own law already: a default has nothing to correct there.
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
