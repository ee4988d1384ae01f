"""Drafters for one model: smaller models are read once, and the tokenizer tried out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
from outlines.models.transformers import Transformers

from ..drafting.combine import FirstOf
from ..drafting.drafter import Drafter
from ..drafting.forced import ForcedDrafter
from ..drafting.length import AdaptedLength
from ..drafting.model_drafter import ModelDrafter, check_vocabularies, rows_missing
from ..errors import UnsupportedError
from ..lm.model import LanguageModel
from ..lm.transformers.model import TransformersModel
from ..phi.estimator import Phi, ProposalPhi
from ..vocabulary.canonical import CanonicalTokenization
from ..vocabulary.vocabulary import Vocabulary
from .drafts import DraftOptions, hosted_draft
from .hosts.stand_in import Borrowed

Encode = Callable[[str], Sequence[int]]

PACKED = "packed"
"""The road on which a chain of tokens costs little more than its last one."""

CERTAIN = (ForcedDrafter, AdaptedLength, FirstOf)
"""Drafters whose length needs no adapting: what is forced is kept, and the others see to it themselves."""


@final
class DraftSources:
    """What the drafts for a model are made with.

    Parameters
    ----------
    lm
        The model that is drafted for.
    """

    def __init__(self, lm: TransformersModel) -> None:
        self._lm = lm
        # Whoever gave a model holds it: the options of the call do, meanwhile.
        self._models: WeakKeyDictionary[Any, TransformersModel] = WeakKeyDictionary()
        self._encoders: WeakKeyDictionary[Any, Encode | None] = WeakKeyDictionary()

    def of(self, options: DraftOptions | None, phi: Phi, tokenizer: Any) -> dict[str, Any]:
        """Return what ``sampler_for`` takes for the drafts of a call; errors as :meth:`drafter`."""
        if options is None:
            return {}
        encode = None if tokenizer is None else self.encode(tokenizer)
        return {"drafter": self.drafter(options, phi), "length": options.length, "encode": encode}

    def drafter(self, options: DraftOptions, phi: Phi) -> Drafter:
        """Return the drafter that ``options`` stand for under ``phi``.

        Several are asked one after the other, and those that guess have a length of their own, adapted to what becomes of theirs.
        A smaller model draws its drafts for walks, which are coupled to them. What draws from trees is not coupled to anything, and
        comes upon the likeliest tokens most often.

        Raises
        ------
        UnsupportedError
            The model that is drafted for is on a fall-back road, where a draft costs what it saves, or a model cannot draft.
        VocabularyError
            A smaller model has other tokens; says which.
        """
        if self._lm.road != PACKED:
            raise UnsupportedError(
                f"draft={options.names} was given for a model whose token trees cannot be packed into one cache, as with recurrent "
                f"layers: they are evaluated by {self._lm.road}, where a drafted token costs a row of its own. Leave draft out, or "
                "load the model with attn_implementation='sdpa' or 'eager' if it was loaded otherwise."
            )
        drafters = [
            source if isinstance(source, Drafter) else self._model(source, greedy=not isinstance(phi, ProposalPhi))
            for source in (*options.sources, *options.guesses)
        ]
        adapted = tuple(each if isinstance(each, CERTAIN) else AdaptedLength(each) for each in drafters)
        return adapted[0] if len(adapted) == 1 else FirstOf(adapted)

    def encode(self, tokenizer: Any) -> Encode | None:
        """Return what writes a text in tokens of ``tokenizer``, which is not kept alive; ``None`` where it adds to its texts."""
        if tokenizer not in self._encoders:
            try:
                encode = CanonicalTokenization(Borrowed(tokenizer), self._lm.vocabulary).encode
            except UnsupportedError:
                encode = None
            self._encoders[tokenizer] = encode
        return self._encoders[tokenizer]

    def _model(self, given: Any, *, greedy: bool) -> ModelDrafter:
        model = self._language_model(given)
        check_vocabularies(model.vocabulary, self._lm.vocabulary)
        return ModelDrafter(model, greedy)

    def _language_model(self, given: Any) -> LanguageModel:
        match given:
            case LanguageModel():
                return given
            case Transformers() if isinstance(own := getattr(given, "lm", None), LanguageModel):
                return own  # wrapped by this package
        if given not in self._models:
            match given:
                case Transformers():
                    model = TransformersModel.with_tokenizer(Borrowed(given.model), given.hf_tokenizer)
                case _:
                    rows = getattr(given.get_output_embeddings(), "out_features", given.config.vocab_size)
                    model = TransformersModel(Borrowed(given), _with_rows(self._lm.vocabulary, rows))
            self._models[given] = model
        return self._models[given]


def check_draft(model: Any, phi: Phi | None, options: DraftOptions | None) -> DraftOptions | None:
    """Return the drafts of a generator of ``model`` (a :class:`PhiTransformers`), found usable before any call.

    Raises
    ------
    UnsupportedError, VocabularyError
        As :meth:`DraftSources.drafter`; or there is no estimator to draft for.
    """
    if options is not None:
        if phi is None:
            raise hosted_draft(options)
        model.drafts.drafter(options, phi)
    return options


def _with_rows(vocabulary: Vocabulary, rows: int) -> Vocabulary:
    """Return the vocabulary for a model of the same tokenizer with ``rows`` rows: models pad their output differently.

    Raises
    ------
    VocabularyError
        The model has no row for tokens of the vocabulary; says which.
    """
    if rows == len(vocabulary):
        return vocabulary
    if missing := np.flatnonzero(vocabulary.real[rows:]).tolist():
        raise rows_missing([rows + v for v in missing], vocabulary)
    more = max(0, rows - len(vocabulary))
    real = np.concatenate([vocabulary.real[:rows], np.zeros(more, dtype=bool)])
    return Vocabulary((*vocabulary.tokens[:rows], *(b"",) * more), vocabulary.eos_ids, real)
