"""``draft=`` and ``draft_length=``: what a call means by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeAlias, final

from outlines.models.transformers import Transformers

from ..drafting.drafter import Drafter
from ..drafting.ending import EndingDrafter
from ..drafting.forced import ForcedDrafter
from ..drafting.known_paths import TreeDrafter
from ..drafting.length import check_length
from ..drafting.prompt_lookup import PromptLookupDrafter
from ..errors import UnsupportedError
from ..lm.model import LanguageModel
from ..sampling.resolve import DRAFT_LENGTH
from .mistakes import pretrained

DRAFTERS: dict[str, Drafter] = {
    drafter.name: drafter for drafter in (ForcedDrafter(), PromptLookupDrafter(), TreeDrafter())
}
"""What ``draft="..."`` may name."""

GUESSES: dict[str, Drafter] = {ForcedDrafter.name: EndingDrafter()}
"""What such a name brings beside its drafter, asked where nobody else has anything: text is forced behind the end of a value."""

Source: TypeAlias = "str | Drafter | Transformers | LanguageModel | Any"
"""One thing that ``draft=`` may be."""

NAMES = ", ".join(map(repr, DRAFTERS))


@final
@dataclass(frozen=True)
class DraftOptions:
    """What proposes the drafts of a call.

    Attributes
    ----------
    sources
        Drafters and smaller models, the one to ask first leading.
    length
        The most tokens of a draft.
    guesses
        Drafters to ask after all of them.
    """

    sources: tuple[Any, ...]
    length: int = DRAFT_LENGTH
    guesses: tuple[Drafter, ...] = ()

    @property
    def names(self) -> str:
        """What messages call it."""
        return ", ".join(
            repr(source.name) if isinstance(source, Drafter) else f"a {type(source).__name__}"
            for source in self.sources
        )


Drafts: TypeAlias = "Source | Sequence[Source] | DraftOptions"
"""What ``draft=`` may be."""


def resolve_draft(draft: object, length: object = None) -> DraftOptions | None:
    """Return what a call means by ``draft=`` and ``draft_length=``; ``None`` for no drafts.

    Raises
    ------
    UnsupportedError
        An unknown name, nothing that can draft, an empty list, a length that is not a positive whole number, or one without a
        draft; says what can be given.
    """
    if length is not None:
        check_length(length)
    match draft:
        case None if length is not None:
            raise UnsupportedError(
                f"draft_length={length} was given without draft=: there is nothing to draft with. Give draft='forced', or leave it "
                "out."
            )
        case None:
            return None
        case DraftOptions():
            return draft if length is None else replace(draft, length=check_length(length))
        case list() | tuple():
            given = tuple(draft)
        case _:
            given = (draft,)
    sources = tuple(map(_source, given))
    if not sources:
        raise UnsupportedError(
            f"draft={draft!r} has nothing in it; expected at least one of {NAMES}, or None for no drafts."
        )
    named = dict.fromkeys(GUESSES[each] for each in given if isinstance(each, str) and each in GUESSES)
    guesses = (guess for guess in named if guess not in sources)
    return DraftOptions(sources, DRAFT_LENGTH if length is None else check_length(length), tuple(guesses))


def hosted_draft(options: DraftOptions) -> UnsupportedError:
    """Return the error of drafts for the host's own loop."""
    return UnsupportedError(
        f"draft={options.names} was given with phi=None, for Hugging Face's own loop, which has drafts of its own "
        "(assistant_model=, prompt_lookup_num_tokens=). Give phi='local' beside draft= for the same masking with these drafts, or "
        "phi='exact' or 'auto'; or leave draft out."
    )


def _source(given: object) -> Any:
    """Return a drafter, or a model that is to draft."""
    match given:
        case str() if given in DRAFTERS:
            return DRAFTERS[given]
        case Drafter():
            return given
    if isinstance(given, _models()):
        return given
    raise UnsupportedError(
        f"draft={given!r:.80} was given{_meant(given)}; expected {NAMES}, a Drafter of outlines_phi, a smaller model (of Hugging "
        "Face, of Outlines, or a LanguageModel) with the same tokenizer, a list of these, or None."
    )


def _meant(given: object) -> str:
    """Return what a wrong drafter was likely meant to be; empty where nothing is known of it."""
    match given:
        case str():
            near = get_close_matches(given.lower().replace("-", "_").replace(" ", "_"), DRAFTERS, n=1)
            return f" (did you mean {near[0]!r}?)" if near else ""
        case type() if issubclass(given, Drafter):
            return f", a class (did you mean {given.__name__}()?)"
        case type() if issubclass(given, _models()):
            return ", a class: load a model of it"
        case _:
            return ""


def _models() -> tuple[type, ...]:
    """Return what may draft as a smaller model."""
    return Transformers, LanguageModel, *pretrained()
