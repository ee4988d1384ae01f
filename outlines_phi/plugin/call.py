"""One call: what every door asks for, decided once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, TypeAlias, final

from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor
from outlines.processors import OutlinesLogitsProcessor
from transformers import GenerationConfig

from ..automata.prefix_match import PrefixMatch
from ..errors import EmptyLanguageError, UnsupportedError
from ..guides.fsm import is_byte_level
from ..guides.guide import Guide
from ..guides.phrases.banned import BannedPhrases, Phrase
from ..guides.phrases.phrase_guide import BanningGuide
from ..guides.table import Table
from ..guides.thinking import Stops
from ..phi.constraint import TextConstraint
from ..phi.dp_bigram import BigramDPPhi
from ..phi.estimator import LocalPhi, OneStepPhi, Phi, ProposalPhi
from ..phi.learned import LearnedPhi
from ..phi.state_values import StateValues
from ..sampling.ancestral import SMC
from ..sampling.draws import Draws
from ..sampling.phi_options import AutoPhi, Effort, ExactPhi, FieldsPhi, LookaheadPhi
from ..settings import SamplingSettings
from ..vocabulary.special_tokens import references
from .choices import (
    MEANT,
    MEANT_BY_DRAWS,
    STOPS,
    UNSAID,
    USED,
    Told,
    check_config,
    guessed,
    held,
    meant,
    refuse_misfits,
    refuse_unknown,
)
from .drafts import DraftOptions, resolve_draft
from .processor import MaskLogitsProcessor, TableLogitsProcessor
from .types.output_types import Special, Thinking
from .types.tables import CompiledTypes

ESTIMATORS: dict[str, type[Phi]] = {
    **{phi.name: phi for phi in (AutoPhi, ExactPhi, LocalPhi, OneStepPhi, BigramDPPhi)},
    "dp": BigramDPPhi,
    **{phi.name: phi for phi in (LearnedPhi, FieldsPhi, LookaheadPhi)},
}
"""Names that ``phi="..."`` takes."""

NAMED = {name: kind() for name, kind in ESTIMATORS.items() if kind is not LearnedPhi}
"""The estimators of these names but for the one that learns, which is another one in each call."""

GONE = {
    "rollout": "give 'learned', or 'exact'",
    "lookahead1": "give 'learned', or 'exact'",
    "dp-frozen": "give 'dp' or 'learned', or a copy of it, which is benchmarks/estimators/dp_frozen.py of the repository",
}
"""Names of earlier versions, and what to give instead."""


class Unset(Enum):
    """Defaults of ``phi`` and ``banned_phrases``."""

    UNSET = "the model's own default"


def resolve_phi(phi: object) -> Phi | None:
    """Return the estimator that a call means by ``phi``: a name of :data:`ESTIMATORS`, an estimator, or ``None``."""
    if phi is None:
        return None
    if isinstance(phi, Phi) and isinstance(phi, (ProposalPhi, *ESTIMATORS.values())):
        return phi
    if isinstance(phi, str) and phi in ESTIMATORS:
        return NAMED.get(phi) or ESTIMATORS[phi]()
    names = ", ".join(repr(name) for name in ESTIMATORS)
    raise UnsupportedError(
        f"phi={phi!r} was given{meant_by(phi)}; expected {names}, an estimator such as ExactPhi(...), or None."
    )


def meant_by(phi: object) -> str:
    """Guess the meaning of a wrong ``phi``; empty where nothing is known of it."""
    if isinstance(phi, str) and phi in GONE:
        return f", which is not here any more ({GONE[phi]})"
    if isinstance(phi, Phi):
        return ", which no walk can follow (derive it from ProposalPhi or StepPhi of outlines_phi.phi)"
    if isinstance(phi, StateValues):
        return " (did you mean LearnedPhi(values)?)"
    return guessed(phi, ESTIMATORS, Phi)


@final
@dataclass(frozen=True)
class CallOptions:
    """Request of a call under a correction: ``n`` draws per prompt.

    ``ban`` is what must not be written, for messages, and ``weighted`` whether the caller gets weights.
    """

    settings: SamplingSettings
    n: int = 1
    tokenization: str = "any"
    constraint: TextConstraint | None = None
    sampler: SMC | None = None
    draft: DraftOptions | None = None
    ban: BannedPhrases | None = None
    weighted: bool = True
    progress: Told = None
    tokens: bool = False
    top: int | None = None

    @classmethod
    def read(
        cls,
        keywords: dict[str, Any],
        defaults: GenerationConfig | None,
        ban: BannedPhrases | None = None,
        *,
        weighted: bool = True,
    ) -> CallOptions:
        """Read the keywords of a call that bans ``ban``, over the model's ``generation_config``, whose truncations do *not* apply:
        they change the distribution that draws are faithful to and can empty the language, so the call has to ask for them.
        """
        refuse_unknown(
            keywords,
            USED,
            MEANT_BY_DRAWS,
            "With phi=None every keyword of the model's own generate works.",
        )
        refuse_misfits("draws", keywords)
        check_config(defaults, keywords)
        given = UNSAID | {name: meant(name, keywords[name]) for name in USED if name in keywords}
        given |= {name: held(name, given[name], defaults) for name in ("temperature", "repetition_penalty")}
        given["top_k"] = None if given["top_k"] == 0 else given["top_k"]  # 0 means none in transformers
        if given["constraint"] is not None and not isinstance(given["constraint"], TextConstraint):
            given["constraint"] = TextConstraint(given["constraint"])  # a function of texts is one of their beginnings
        refuse_misfits(f"ends={given['ends']!r}", given)
        if read_stops(keywords) is not None:
            refuse_misfits("stop strings", given)
        if given["top"] and not given["tokens"]:
            raise UnsupportedError(
                f"Give tokens=True beside top=, or leave that out. top={given['top']} was given, and alternatives are "
                "a part of the accounts of tokens."
            )
        return cls(
            SamplingSettings(**{field.name: given[field.name] for field in fields(SamplingSettings)}),
            given["num_return_sequences"] or 1,
            given["tokenization"],
            given["constraint"],
            given["sampler"],
            resolve_draft(given["draft"], given["draft_length"]),
            ban,
            weighted,
            given["progress"],
            given["tokens"],
            given["top"],
        )


def read_stops(keywords: Mapping[str, Any]) -> Stops | None:
    """Return the stop strings of a call: those of ``stop=`` are not in the text, as in vLLM and llama.cpp, those of
    ``stop_strings=`` are, as in transformers.
    """
    if keywords.keys().isdisjoint(STOPS):
        return None
    found = [name for name in STOPS if name in keywords and meant(name, keywords[name])]
    if not found:
        return None
    if len(found) > 1:
        raise UnsupportedError(
            "Give stop= for strings that are not in the text, or stop_strings= for strings that are. Both were given."
        )
    given = keywords[found[0]]
    every = given if isinstance(given, (list, tuple)) else [given]
    special = tuple(token for one in every if isinstance(one, Special) for token in references(one.written))
    return Stops(tuple(one for one in every if isinstance(one, str)), special, kept=found[0] == "stop_strings")


SEARCH_EFFORT = Effort(tokens=100_000)
"""Of an enumeration or a search for which no other effort is given. A certificate takes more than a draw."""

MEANT_BY_SEARCHES = {**MEANT, "n": "give top= to mode(); nothing is drawn here, so leave it out"}
"""The remedies for keywords that a call without draws does not take."""


def dead_end(options: CallOptions, failed: str = "") -> EmptyLanguageError:
    """Return the error of draws that met a step without a way on; ``failed`` says how many, where it is no stream."""
    truncation = options.settings.truncation
    rows: tuple[tuple[object, str, str], ...] = (
        (truncation, "loosen the truncation", truncation),
        (not truncation, "", "the model"),
        (options.tokenization == "canonical", "leave tokenization out", "under tokenization='canonical'"),
        (
            options.constraint,
            "let the predicate refuse earlier what comes to nothing",
            f"under constraint={options.constraint}",
        ),
        (options.ban, "ban less", f"without the banned phrases {options.ban and options.ban.listed}"),
        (True, "use phi='exact'", ""),
        (failed, "take the weights: outlines_phi.Generator(model, T).sample(prompt, n=...)", ""),
    )
    remedy = ", or ".join(remedy for holds, remedy, _ in rows if holds and remedy)
    obstacles = " ".join(obstacle for holds, _, obstacle in rows if holds and obstacle)
    kind = "trajectories" if options.sampler is None else "populations of particles"
    who = f"{failed} {kind}" if failed else "The stream"
    return EmptyLanguageError(
        f"{remedy[0].upper()}{remedy[1:]}. {who} met a step where {obstacles} leaves no allowed token: a draw of weight "
        "0, which has no text."
    )


def texts(draws: Draws, options: CallOptions) -> str | list[str]:
    """Return the result as stock Outlines does: a text, or a list where several were asked for."""
    if draws.failures:
        raise dead_end(options, f"{draws.failures} of {draws.failures + len(draws)}")
    return draws.texts[0] if len(draws) == 1 else draws.texts


def check_closed(table: Table, door: str) -> None:
    """Refuse to search free text, of which ``door`` was asked: no text has a probability that could be ranked."""
    if table.guide.open and not isinstance(table.guide.match, PrefixMatch):
        raise UnsupportedError(
            "Give an output type, draw texts (sample()), or give phi=None and do_sample=False to a call for Hugging Face's "
            f"step-by-step argmax under the mask of the phrases. {door} was asked of free text with banned phrases."
        )
    thoughts = table.guide.thoughts
    if thoughts is not None and thoughts.scope == "answer":
        raise UnsupportedError(
            f"Give Thinking(..., scope='joint'), or draw: sample(), and .marginals() of the draws. {door} was asked of answers "
            "after thoughts that are drawn freely, of which no text has a known probability."
        )


def search_effort(phi: Phi | None, effort: Effort | None) -> Effort:
    """Return the effort of the call, else that of the estimator where it is not the default of draws."""
    own = phi.effort if isinstance(phi, ExactPhi) else Effort()
    return meant("effort", effort) or (SEARCH_EFFORT if own == Effort() else own)


Ban: TypeAlias = BannedPhrases | Iterable[Phrase]  # The values of `banned_phrases=`

LEVELS: dict[str | None, Phi] = {
    "mask": LocalPhi(),
    "lookahead": LookaheadPhi(),
    "weighted": LookaheadPhi(weights=True),
    "exact": ExactPhi(),
}
"""The estimator of each level of :class:`BannedPhrases`."""

DRAWN = AutoPhi()  # The estimator of draws of a format for which nobody has chosen one


def resolve_ban(given: object) -> BannedPhrases | None:
    """Resolve the ``banned_phrases`` of a call: ``None`` and an empty list or tuple ban nothing."""
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
    """The estimator of a model, a generator or a call, and its ban: the one place where ``phi`` meets ``banned_phrases``.

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
    def chosen(self) -> bool:
        """True if the estimator was asked for here, by name or by level."""
        return not isinstance(self.level, Unset) or not (self.inherited or isinstance(self.phi, Unset))

    def replaced_by(
        self, phi: str | Phi | Unset | None = Unset.UNSET, banned_phrases: Ban | Unset | None = Unset.UNSET
    ) -> Correction:
        """Return the correction with these in place: ``phi`` before the level beside it, and both before what was there."""
        kept = isinstance(banned_phrases, Unset)
        ban = self.ban if kept else resolve_ban(banned_phrases)
        meant = Unset.UNSET if kept or ban is None else LEVELS.get(ban.level, Unset.UNSET)
        if isinstance(phi, Unset):
            return self if kept else Correction(self.phi, meant, ban, inherited=True)
        resolved = resolve_phi(phi)
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
        said = self.phi if isinstance(self.level, Unset) else self.level
        if not isinstance(said, Unset):
            return said
        return LocalPhi() if sampler is not None else LookaheadPhi() if free else usual


def _agree(phi: Phi | None, meant: Phi) -> bool:
    """Return True if a correction is the one of a level; its other options are free."""
    if phi is None:
        return isinstance(meant, LocalPhi)  # a mask, in the host's own loop
    options = [[getattr(each, name, None) for name in ("weights", "tolerance")] for each in (phi, meant)]
    return type(phi) is type(meant) and options[0] == options[1]


@final
@dataclass(frozen=True)
class Call:
    """The request of a call: an estimator, a language, the phrases kept out of it, and all the other keywords.

    ``phi=None`` is the host's own loop. ``language`` is an output type, a table or a logits processor, ``None`` for free text.
    ``keywords`` are read as :class:`outlines_phi.plugin.call.CallOptions` where draws are made.
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
        if isinstance(language, MaskLogitsProcessor) and language.ban is not None and not correction.chosen:
            correction = replace(correction, level=LEVELS.get(language.ban.level, Unset.UNSET))
        allowed = language.table if isinstance(language, TableLogitsProcessor) else language
        guide = allowed.guide if isinstance(allowed, Table) else allowed
        free = guide is None or (isinstance(guide, Guide) and guide.open)
        phi = correction.estimator(keywords.get("sampler"), free=free, usual=usual)
        if phi is None and (isinstance(allowed, Thinking) or (guide is not None and getattr(guide, "thoughts", None))):
            raise UnsupportedError(
                "Give phi='auto' or phi='exact', or phi='local' for masking: Thinking was asked for with phi=None, and the host's "
                "own loop does not tell thoughts from answers."
            )
        call = cls(phi, language, correction.ban, keywords)
        # A look-ahead needs a guide that tells what is pending. One that does has the phrases already; what is kept out twice is
        # counted for no phrase.
        told = isinstance(guide, BanningGuide) or not isinstance(phi, LookaheadPhi)
        return call if told else replace(call, ban=call.ban or call.banned)

    @property
    def banned(self) -> BannedPhrases | None:
        """The bans of the call and of its language: of two, the one whose whole words have to know where a loop ends."""
        language = self.language
        own = language.guide.phrases if isinstance(language, Table) else getattr(language, "ban", None)
        return own if self.ban is None or (own is not None and own.whole_word) else self.ban

    @property
    def searched(self) -> bool:
        """True if the most probable text is asked for, not a draw."""
        return self.keywords.get("do_sample") is False

    def table(self, compiled: CompiledTypes) -> Table:
        """Return the table of the language; errors as the methods of :class:`CompiledTypes`."""
        stops, watched = read_stops(self.keywords), isinstance(self.phi, LookaheadPhi)
        if stops is None:
            table = compiled.without(self.language, self.ban, watched=watched)
        else:
            table = compiled.stopped(self.language, self.ban, stops, watched=watched)
            if isinstance(self.phi, FieldsPhi) and not table.guide.blocks:
                raise UnsupportedError(
                    "Leave stop strings out of phi='fields', or give a regular expression with named groups. They were given for "
                    "something else, whose fields are not told apart when strings may end it."
                )
        if self.searched and self.phi is not None:
            check_closed(table, "do_sample=False")
        return compiled.open(table, self.keywords.get("open_at")) if self.keywords.get("ends") == "open" else table

    def options(self, defaults: GenerationConfig | None, *, weighted: bool = False) -> CallOptions:
        """Return the options of draws, or of the search for the most probable texts; errors as :meth:`CallOptions.read`."""
        keywords = self.keywords
        if self.searched:
            refuse_misfits("do_sample=False", keywords)
            if isinstance(self.phi, (ProposalPhi, LookaheadPhi, FieldsPhi)):
                raise UnsupportedError(
                    "Give phi='exact' with do_sample=False, or phi=None for Hugging Face's step-by-step argmax. The most "
                    "probable member is that of the conditioned distribution, whatever proposal "
                    f"(phi={self.phi.name!r}) draws would come from."
                )
            keywords = {**keywords, "do_sample": None}
        return CallOptions.read(keywords, defaults, self.banned, weighted=weighted)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of a search."""
        return {"tolerance": getattr(self.phi, "tolerance", 0.0), "effort": search_effort(self.phi, None)}

    def processor(self, compiled: CompiledTypes) -> Any:
        """Return the logits processor of the host's own loop; ``None`` where there is nothing to mask.

        It is a fresh one, so that no state is left of the last generation, but for processors that are not read here.
        """
        language = self.language
        read = isinstance(language, MaskLogitsProcessor) or (
            isinstance(language, OutlinesCoreLogitsProcessor) and is_byte_level(language.index)
        )
        if self.ban is None and not read and (language is None or isinstance(language, OutlinesLogitsProcessor)):
            return language
        # The loop has stop strings of its own.
        return MaskLogitsProcessor(replace(self, keywords={}).table(compiled).current, ban=self.banned)
