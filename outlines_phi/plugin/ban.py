"""A ban for what an application has already: one line, and its type stays what it is."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from outlines.generator import SteerableGenerator
from outlines.processors import OutlinesLogitsProcessor

from ..errors import UnsupportedError
from ..guides.phrases.banned import BannedPhrases
from .call import Ban, resolve_ban
from .choices import refuse_unknown
from .classic.generate import ClassicGenerator
from .generator import PhiGenerator
from .hosts.phi_processor import PhiLogitsProcessor, compiled_for
from .hosts.transformers import check_budget
from .processor import MaskLogitsProcessor, TableLogitsProcessor
from .session import PhiModel
from .types.tables import CompiledTypes
from .wrapping import HOSTS, wrap

OPTIONS = tuple(field.name for field in fields(BannedPhrases) if field.name != "phrases")
"""The options of :class:`BannedPhrases`."""

_SECOND = "the phrases are the second argument, ban(thing, phrases)"


def ban(thing: Any, phrases: Ban, *, tokenizer: Any = None, max_new_tokens: int | None = None, **options: Any) -> Any:
    """Ban phrases from the texts of ``thing``, which itself stays as it is.

    ==============================================================  ===========================================================
    thing                                                           what comes back
    ==============================================================  ===========================================================
    an Outlines model (stock, or of this package)                   a model of this package, whose calls all keep the ban
    a generator of this package, also of ``generate.json``, ...     the same with the ban
    an ``outlines.Generator(model, T)``                             the same with a processor that masks
    a logits processor whose language can be read                   a logits processor that masks
    a Hugging Face model (with ``tokenizer``), a tokenizer          a logits processor that masks, for free text
    ==============================================================  ===========================================================

    What masks runs in the host's own loop, ``hf_model.generate(**inputs, logits_processor=[processor])``: level ``"mask"``, which
    bends a text that was on the way to a phrase away at the last token. Models and generators of this package do better.

    Parameters
    ----------
    thing
        As in the table. Where it bans phrases already, these are added.
    phrases
        A list of phrases, or a :class:`BannedPhrases`.
    tokenizer
        The tokenizer of a Hugging Face model, or of the model that a stock logits processor was made for.
    max_new_tokens
        For what masks: the most tokens that the host's loop will write. Whole words need it, so that no text is cut after one that
        would have had to go on.
    **options
        ``ignore_case``, ``whole_word``, ``across_prompt`` and ``level`` of :class:`BannedPhrases`.

    Raises
    ------
    UnsupportedError
        A thing that cannot be read, an option that has no use for it, or nothing to ban; says what to give.
    EmptyLanguageError
        The phrases leave nothing of what ``thing`` writes.
    """
    banned = _read(phrases, options)
    hosted, ours = isinstance(thing, (PhiModel, *HOSTS)), isinstance(getattr(thing, "model", None), PhiModel)
    if hosted or isinstance(thing, ClassicGenerator) or (isinstance(thing, SteerableGenerator) and ours):
        _refuse_of_loops(thing, tokenizer, max_new_tokens)
        if isinstance(thing, ClassicGenerator):
            return replace(thing, generator=ban(thing.generator, banned))
        if isinstance(thing, PhiGenerator):
            joined = _joined(thing.banned_phrases, banned)
            return replace(thing, correction=thing.correction.replaced_by(banned_phrases=joined))
        if hosted:
            return wrap(thing, banned_phrases=_joined(getattr(thing, "banned_phrases", None), banned))
    else:
        check_masked(banned, max_new_tokens or getattr(thing, "budget", None))
    match thing:
        case PhiLogitsProcessor():
            return PhiLogitsProcessor(
                thing.table.vocabulary,
                thing.table,
                phi=thing.phi,
                temperature=thing.settings.temperature,
                top_k=thing.settings.top_k,
                max_new_tokens=thing.budget if max_new_tokens is None else max_new_tokens,
                tensor_library_name=thing.tensor_adapter.library_name,
                banned_phrases=_joined(thing.ban, banned),
            )
        case SteerableGenerator():
            processor = masking(compiled_for(thing.model), thing.logits_processor, banned, max_new_tokens)
            return type(thing).from_processor(thing.model, processor)
        case TableLogitsProcessor():
            return masking(CompiledTypes.of_vocabulary(thing.table.vocabulary), thing, banned, max_new_tokens)
        case OutlinesLogitsProcessor():
            if tokenizer is None:
                raise UnsupportedError(
                    f"Add tokenizer=tokenizer, which knows what tokens write: a {type(thing).__name__} was given to ban() without "
                    "the tokenizer of its model."
                )
            return masking(compiled_for(tokenizer), thing, banned, max_new_tokens)
    return masking(compiled_for(thing, tokenizer), None, banned, max_new_tokens)


def _read(phrases: Ban, options: dict[str, Any]) -> BannedPhrases:
    refuse_unknown(options, OPTIONS, dict.fromkeys(("banned_phrases", "banned_phrase", "ban_phrases"), _SECOND))
    if isinstance(phrases, BannedPhrases) and options:
        raise UnsupportedError(
            f"Give one of the two: {', '.join(options)} was given to ban() beside a BannedPhrases, which has options of its own."
        )
    banned = (
        resolve_ban(phrases) if isinstance(phrases, BannedPhrases) or not options else BannedPhrases(phrases, **options)
    )
    if banned is None:
        raise UnsupportedError("Give at least one phrase, such as ['linarith']: ban() was given no phrases.")
    return banned


def _joined(own: BannedPhrases | None, banned: BannedPhrases | None) -> BannedPhrases | None:
    """Return the union of the bans of both, which must have the same options."""
    if own is None or banned is None:
        return banned or own
    then, now = ({name: getattr(each, name) for name in OPTIONS} for each in (own, banned))
    if banned.level is None:
        now["level"] = own.level
    if then != now:
        different = ", ".join(f"{name}={then[name]!r}" for name in OPTIONS if then[name] != now[name])
        raise UnsupportedError(
            f"Give the same options, or all phrases at once: ban() was given something that bans phrases already, with {different}."
        )
    return BannedPhrases((*own.phrases, *banned.phrases), **then)


def masking(
    compiled: CompiledTypes, language: Any, banned: BannedPhrases | None, budget: int | None
) -> MaskLogitsProcessor:
    """Return the processor for an output type, or what another processor allows, less banned phrases; ``None`` is free text."""
    joined = _joined(getattr(language, "ban", None), banned)
    budget = getattr(language, "budget", None) if budget is None else budget
    table = compiled.without(language, joined)
    if budget is not None:
        check_budget(table, budget)
    return MaskLogitsProcessor(table, ban=joined, budget=budget)


def _refuse_of_loops(thing: Any, tokenizer: Any, max_new_tokens: int | None) -> None:
    for name, value in (("tokenizer", tokenizer), ("max_new_tokens", max_new_tokens)):
        if value is not None:
            raise UnsupportedError(
                f"Leave it out: {name}= was given to ban() beside a {type(thing).__name__}, which does not need it, since its "
                "model has a tokenizer and its calls take max_new_tokens=."
            )


def check_masked(banned: BannedPhrases, max_new_tokens: int | None, door: str = "ban()") -> None:
    """Refuse a ban that no mask of the host's own loop keeps."""
    if banned.level not in (None, "mask"):
        raise UnsupportedError(
            "Leave level out, or draw with outlines_phi.ban(outlines_model, phrases, level=...), or give custom_generate="
            "outlines_phi.custom_generate and banned_phrases= to a call of generate. "
            f"level={banned.level!r} was given to {door} for the host's own loop, where a token that is written stays: it masks."
        )
    if banned.whole_word and max_new_tokens is None:
        raise UnsupportedError(
            f"Give {door.removesuffix(')')}..., max_new_tokens=N), and the loop the same. whole_word=True was given to {door} for "
            "the host's own loop without max_new_tokens: a text that the loop cuts after 'cat' on the way to 'catalog' ends in the "
            "word 'cat'."
        )
