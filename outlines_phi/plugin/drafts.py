"""``draft=`` and ``draft_length=``: what a call means by them, and the drafters that they stand for with one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final
from weakref import WeakKeyDictionary, ref

import numpy as np
from outlines.models.transformers import Transformers

from ..drafting.drafter import AdaptedLength, Drafter, FirstOf, check_length
from ..drafting.earlier_texts import PromptLookupDrafter, TreeDrafter
from ..drafting.forced import EndingDrafter, ForcedDrafter
from ..drafting.model_drafter import ModelDrafter, check_vocabularies, rows_missing
from ..errors import UnsupportedError
from ..lm.model import LanguageModel
from ..lm.transformers.transformers_model import TransformersModel
from ..phi.estimator import Phi, ProposalPhi
from ..sampling.sampler import DRAFT_LENGTH, Prefetch
from ..vocabulary.canonical import CanonicalTokenization
from ..vocabulary.vocabulary import Vocabulary
from .choices import guessed, refuse_misfits
from .mistakes import pretrained


@final
class Borrowed:
    """A stand-in for a model or a tokenizer that does not keep it alive; it answers as that does."""

    __slots__ = ("__weakref__", "_owned")

    def __init__(self, owned: Any) -> None:
        self._owned = ref(owned)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return self._owned().__dict__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owned(), name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        owned: Any = self._owned()
        return owned(*arguments, **keywords)

    def __hash__(self) -> int:
        return hash(self._owned)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Borrowed) and self._owned == other._owned


DRAFTERS: dict[str, Drafter] = {
    drafter.name: drafter for drafter in (ForcedDrafter(), PromptLookupDrafter(), TreeDrafter())
}
"""The drafters that ``draft="..."`` may name."""

GUESSES: dict[str, Drafter] = {ForcedDrafter.name: EndingDrafter()}
"""The drafters that such a name adds, asked where nobody else has a draft: text is forced behind the end of a value."""

Source: TypeAlias = "str | Drafter | Transformers | LanguageModel | Any"  # One thing that `draft=` may be

NAMES = ", ".join(map(repr, DRAFTERS))


Encode = Callable[[str], Sequence[int]]

PACKED = "packed"  # The road on which a chain of tokens costs little more than its last one

CERTAIN = (ForcedDrafter, AdaptedLength, FirstOf)
"""Drafters whose length needs no adapting: what is forced is kept, and the others see to it themselves."""


@final
@dataclass(frozen=True)
class DraftOptions:
    """The sources of a call's drafts, of ``length`` tokens at most: drafters and smaller models, the one to ask first leading.

    None of them for no drafts at all: a call without ``draft=`` has those of :data:`USUAL`.

    ``guesses`` are drafters to ask after all of them.
    """

    sources: tuple[Any, ...]
    length: int = DRAFT_LENGTH
    guesses: tuple[Drafter, ...] = ()

    @property
    def names(self) -> str:
        """The names of the sources in messages."""
        return ", ".join(
            repr(source.name) if isinstance(source, Drafter) else f"a {type(source).__name__}"
            for source in self.sources
        )


Drafts: TypeAlias = "Source | Sequence[Source] | DraftOptions"  # The values of `draft=`


def resolve_draft(draft: object, length: object = None) -> DraftOptions | None:
    """Resolve ``draft=`` and ``draft_length=`` of a call; ``None`` for the drafts of a call without them."""
    own = draft.length if isinstance(draft, DraftOptions) else DRAFT_LENGTH
    most = own if length is None else check_length(length)
    if draft is None and length is not None:
        raise UnsupportedError(
            f"Give draft='forced' beside draft_length={length}, or leave it out: it is the length of the drafts that draft= names."
        )
    if draft is None or isinstance(draft, DraftOptions):
        return draft and replace(draft, length=most)
    given = tuple(draft) if isinstance(draft, (list, tuple)) else (draft,)
    sources = tuple(map(_source, given))
    if not sources and length is not None:
        raise UnsupportedError(
            f"Leave draft_length out, or name a drafter. draft={draft!r} was given, for no drafts at all."
        )
    named = dict.fromkeys(GUESSES[each] for each in given if isinstance(each, str) and each in GUESSES)
    return DraftOptions(sources, most, tuple(guess for guess in named if guess not in sources))


def _source(given: object) -> Any:
    """Return a drafter, or a model that is to draft."""
    models = Transformers, LanguageModel, *pretrained()
    if isinstance(given, str) and given in DRAFTERS:
        return DRAFTERS[given]
    if isinstance(given, (Drafter, *models)):
        return given
    loaded = isinstance(given, type) and issubclass(given, models)
    meant = ", a class: load a model of it" if loaded else guessed(given, DRAFTERS, Drafter)
    raise UnsupportedError(
        f"draft={given!r:.80} was given{meant}; expected {NAMES}, a Drafter of outlines_phi.drafting, a smaller model (of Hugging "
        "Face, of Outlines, or a LanguageModel) with the same tokenizer, a list of these, or None."
    )


def in_turn(*drafters: Drafter) -> Drafter:
    """Return the drafter that asks each of some in turn, those that guess with a length of their own."""
    adapted = tuple(each if isinstance(each, CERTAIN) else AdaptedLength(each) for each in drafters)
    return adapted[0] if len(adapted) == 1 else FirstOf(adapted)


USUAL = in_turn(ForcedDrafter(), PromptLookupDrafter(), EndingDrafter())
"""The drafter of a call without ``draft=``, where a drafted token costs little: of what the format forces, and the prompt says."""


@final
class DraftSources:
    """The drafters and encoders that are kept for a model."""

    def __init__(self, lm: LanguageModel) -> None:
        self._lm = lm
        # Whoever gave a model holds it: the options of the call do, meanwhile.
        self._models: WeakKeyDictionary[Any, TransformersModel] = WeakKeyDictionary()
        # By tokenizer, which they do not keep alive.
        self._encoders: WeakKeyDictionary[Any, Encode | None] = WeakKeyDictionary()

    def of(self, options: DraftOptions | None, phi: Phi, tokenizer: Any) -> Prefetch | None:
        """Return the drafts of a call under ``phi``; ``None`` for none. Errors as :meth:`drafter`."""
        encode: Encode | None = None
        if tokenizer is not None and tokenizer not in self._encoders:
            with suppress(UnsupportedError):  # it adds to its texts
                encode = CanonicalTokenization(Borrowed(tokenizer), self._lm.vocabulary).encode
            self._encoders[tokenizer] = encode
        encode = None if tokenizer is None else self._encoders[tokenizer]
        if options is not None:
            return Prefetch(self.drafter(options, phi), options.length, encode) if options.sources else None
        packed = getattr(self._lm, "road", PACKED) == PACKED
        return Prefetch(USUAL, encode=encode, asked=False) if packed else None

    def drafter(self, options: DraftOptions, phi: Phi) -> Drafter:
        """Return the drafter that ``options`` stand for under ``phi``.

        Several are asked one after the other, and those that guess have a length of their own, adapted to what becomes of theirs.
        A smaller model draws its drafts for walks, which are coupled to them. What draws from trees is not coupled to anything, and
        comes upon the likeliest tokens most often.
        """
        if (road := getattr(self._lm, "road", PACKED)) != PACKED:
            raise UnsupportedError(
                "Leave draft out, or load the model with attn_implementation='sdpa' or 'eager' if it was loaded otherwise. "
                f"draft={options.names} was given for a model whose token trees cannot be packed into one cache, as with recurrent "
                f"layers: they are evaluated by {road}, where a drafted token costs a row of its own."
            )
        drafters = [
            source if isinstance(source, Drafter) else self._model(source, greedy=not isinstance(phi, ProposalPhi))
            for source in (*options.sources, *options.guesses)
        ]
        return in_turn(*drafters)

    def _model(self, given: Any, *, greedy: bool) -> ModelDrafter:
        model = given if isinstance(given, LanguageModel) else getattr(given, "lm", None)  # of a model of this package
        if not isinstance(model, LanguageModel):
            if given not in self._models and isinstance(given, Transformers):
                self._models[given] = TransformersModel.with_tokenizer(Borrowed(given.model), given.hf_tokenizer)
            elif given not in self._models:
                rows = getattr(given.get_output_embeddings(), "out_features", given.config.vocab_size)
                self._models[given] = TransformersModel(Borrowed(given), _with_rows(self._lm.vocabulary, rows))
            model = self._models[given]
        check_vocabularies(model.vocabulary, self._lm.vocabulary)
        return ModelDrafter(model, greedy)


def check_draft(model: Any, phi: Phi | None, options: DraftOptions | None) -> DraftOptions | None:
    """Return the drafts of a generator of ``model`` (a :class:`PhiTransformers`), found usable before any call."""
    if phi is None:
        refuse_misfits("Hugging Face's own loop", {"draft": options})
    elif options is not None and options.sources:
        model.drafts.drafter(options, phi)
    return options


def _with_rows(vocabulary: Vocabulary, rows: int) -> Vocabulary:
    """Return the vocabulary for a model of the same tokenizer with ``rows`` rows: models pad their output differently."""
    if rows == len(vocabulary):
        return vocabulary
    if missing := np.flatnonzero(vocabulary.real[rows:]).tolist():
        raise rows_missing([rows + v for v in missing], vocabulary)
    more = max(0, rows - len(vocabulary))
    real = np.concatenate([vocabulary.real[:rows], np.zeros(more, dtype=bool)])
    return Vocabulary((*vocabulary.tokens[:rows], *(b"",) * more), vocabulary.eos_ids, real)
