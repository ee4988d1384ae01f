"""Drafters for samplers that draw from token trees: good and bad ones, and one that knows a forced text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from outlines_phi.drafting import Draft, Drafter, ModelDrafter, Site
from outlines_phi.guides import Table
from outlines_phi.lm import LanguageModel, TableModel
from tests.drafting.runs import Scripted
from tests.inner import DONE, Prefetch
from tests.languages import LANGUAGES, VOCABULARY, Language
from tests.sampling.banning import Banned

WORDS, LOOP, _, LATE = LANGUAGES


def walked(lm: LanguageModel, table: Table, choice: Callable[[np.ndarray], int]) -> Scripted:
    """Return the drafter that goes to the live token which ``choice`` picks by the logits, not to the end of sequence."""

    def answer(site: Site, length: int) -> Draft:
        tokens: list[int] = []
        while len(tokens) < length:
            moves = table.moves(site.state, site.remaining)
            live = moves.tokens[moves.targets != DONE]
            if not live.size:
                break
            assert isinstance(lm, TableModel)
            logits = lm.logits((*site.prompt, *site.tokens))[live]
            tokens.append(int(live[choice(logits)]))
            site = site.after(tokens[-1], table)
        return Draft(tuple(tokens))

    return Scripted(answer)


def drafters(language: Language | Banned) -> dict[str, Drafter]:
    """Return drafters that are good, bad, of no use, in the way, and drawn from a law."""
    lm, table = language.lm, language.table
    vocabulary = table.vocabulary
    return {
        "likeliest": walked(lm, table, lambda logits: int(logits.argmax())),
        "least likely": walked(lm, table, lambda logits: int(logits.argmin())),
        "always the same": Scripted(lambda site, length: Draft((3,) * length)),
        "always dead": Scripted(lambda site, length: Draft((vocabulary.eos_ids[0],) * length)),
        "drawn": ModelDrafter(TableModel.random(vocabulary, seed=99)),
        "drawn from the law": ModelDrafter(lm),
    }


NAMES = tuple(drafters(WORDS))
names = pytest.mark.parametrize("name", NAMES)


def ahead(language: Language | Banned, name: str, length: int = 3) -> Prefetch:
    return Prefetch(drafters(language)[name], length)


def forced(length: int) -> Language:
    """Return a language of one text under a law that knows its spelling."""
    language = Language("forced", f"(ab){{{length}}}x", 3 * length, seed=0)
    law = np.full(len(VOCABULARY), -30.0)
    law[VOCABULARY.tokens.index(b"ab")] = 0.0

    def logits(sequence: tuple[int, ...]) -> np.ndarray:
        peaked = law.copy()
        written = len(sequence) - 2
        if written >= length:
            peaked[:] = -30.0
            peaked[VOCABULARY.tokens.index(b"x") if written == length else 0] = 0.0
        return peaked

    language.__dict__["lm"] = TableModel(VOCABULARY, logits)
    return language
