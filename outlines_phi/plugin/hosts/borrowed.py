"""Models that belong to the application: what is kept for one of them as long as it lives, and not a moment longer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np

from ...errors import VocabularyError
from ...guides.table import Table
from ...lm.interruption import turn
from ...lm.transformers.model import TransformersModel
from ...phi.constraint import Constraint
from ...phi.estimator import Phi
from ...phi.tree.store import TreeStore
from ...sampling.draws import Draws
from ...sampling.ranking import Ranking, rank
from ...sampling.resolve import sampler_for
from ...sampling.sampler import Request
from ...vocabulary.vocabulary import Vocabulary
from ..draft_sources import DraftSources
from ..options import CallOptions
from ..progress import telling
from ..types.tables import CompiledTypes
from .stand_in import Borrowed


@final
class Kept:
    """What is kept between the calls of one model with one vocabulary.

    Attributes
    ----------
    lm, compiled, trees
        The model, the output types it was asked for, and the token trees of earlier calls.
    drafts
        What its drafts are made with.
    drawing
        Threads that share a model take turns: their calls share trees.
    """

    def __init__(self, lm: TransformersModel) -> None:
        self.lm = lm
        self.compiled = CompiledTypes(lm.vocabulary)
        self.trees = TreeStore()
        self.drafts = DraftSources(lm)
        self.drawing = threading.RLock()

    def draw(
        self,
        prompts: Sequence[tuple[int, ...]],
        table: Table,
        phi: Phi,
        options: CallOptions,
        constraint: Constraint | None = None,
        tokenizer: Any = None,
    ) -> list[Draws]:
        """Return the draws of every prompt, given by its ids; drafts are written as by ``tokenizer``, where there is one."""
        request, trees = self._request(prompts, table, options, constraint)
        sampler = sampler_for(phi, trees, options.sampler, **self.drafts.of(options.draft, phi, tokenizer))
        with turn(self.drawing), telling(options.progress, phi):
            return sampler.sample(request)

    def rank(
        self,
        prompts: Sequence[tuple[int, ...]],
        table: Table,
        options: CallOptions,
        top: int,
        constraint: Constraint | None = None,
        **limits: Any,
    ) -> list[Ranking]:
        """Return the ``top`` most probable members after every prompt; ``limits`` as :func:`rank` takes them."""
        request, trees = self._request(prompts, table, options, constraint)
        with turn(self.drawing), telling(options.progress):
            return rank(request, top, trees, **limits)

    def _request(
        self, prompts: Sequence[tuple[int, ...]], table: Table, options: CallOptions, constraint: Constraint | None
    ) -> tuple[Request, TreeStore]:
        request = options.request(self.lm, table, prompts, constraint)
        # A constraint may hold the application's tokenizer, which nothing here may keep alive: its trees go with the call.
        return request, self.trees if constraint is None else TreeStore(self.trees.max_bytes)


@final
class Loans:
    """Everything kept for models that belong to the application, by model and vocabulary; all of it weakly.

    A tokenizer that is loaded afresh for every call costs its reading, and nothing stays of it.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Any, dict[str, Kept]] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[Any, WeakKeyDictionary[Any, Kept]] = WeakKeyDictionary()

    def of(self, model: Any, tokenizer: Any) -> Kept:
        """Return what is kept for a model with its tokenizer, or with a :class:`Vocabulary` that is made already.

        Raises
        ------
        UnsupportedError, VocabularyError
            As :class:`outlines_phi.PhiTransformers`.
        """
        read = self._read.setdefault(model, WeakKeyDictionary())
        if tokenizer not in read:
            made = isinstance(tokenizer, Vocabulary)
            lm = (TransformersModel if made else TransformersModel.with_tokenizer)(Borrowed(model), tokenizer)
            read[tokenizer] = self._of(model, lm)
        return read[tokenizer]

    def without_tokenizer(self, model: Any, eos_ids: Sequence[int]) -> Kept:
        """Return what is kept for a model whose tokens are known by their ids alone.

        Enough for a language that is given over ids, such as an index of outlines_core.
        """
        if not eos_ids:
            raise VocabularyError(
                "no end-of-sequence id is known, so a text could never end; set model.generation_config.eos_token_id, "
                "or give the tokenizer: vocabulary=tokenizer"
            )
        size = getattr(model.get_output_embeddings(), "out_features", model.config.vocab_size)
        vocabulary = Vocabulary((b"",) * size, tuple(eos_ids), np.ones(size, dtype=bool))
        return self._of(model, TransformersModel(Borrowed(model), vocabulary))

    def _of(self, model: Any, lm: TransformersModel) -> Kept:
        return self._kept.setdefault(model, {}).setdefault(lm.vocabulary.fingerprint, Kept(lm))


LOANS = Loans()
"""Those of this process."""
