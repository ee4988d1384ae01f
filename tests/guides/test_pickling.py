"""Guides that are pickled: the same masks in another process, and for grammars the same states, without preparing them again.

That a copy of each guide allows the same is a law of ``test_machines``.
"""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, TimeoutError
from typing import Any

import numpy as np
import pytest
import torch

from outlines_phi import BannedPhrases, UnsupportedError, Vocabulary
from outlines_phi.guides import CFGGuide, Guide, Table, read_grammar
from outlines_phi.guides.grammar import cfg_guide as cfg_guide
from outlines_phi.guides.grammar.lexer import Lexer
from outlines_phi.guides.grammar.lr_tables import LRTables
from outlines_phi.guides.grammar.notation.reader import grammar_text
from outlines_phi.guides.guide import DONE
from outlines_phi.guides.json_schema.shapes import ObjectShape
from outlines_phi.guides.phrases.ban_language import ProductGuide
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.lm import bundled
from outlines_phi.vocabulary.trie import merged_tokens
from tests.languages import GRAMMARS, LANGUAGES, VOCABULARY

BANNED = ProductGuide(GRAMMARS[1].table.guide, PhraseGuide(VOCABULARY, BannedPhrases(["aba", "c)"])))
GRAMMAR, DOCUMENT = "c", b"int main() { int x = 3; while (x < 10) { x = x + f(y[2], 'a'); } return 0; }\n"


@pytest.fixture
def prepared() -> CFGGuide:
    return CFGGuide.of(read_grammar(grammar_text(GRAMMAR)), Vocabulary.from_tokenizer(bundled.load()[1]))


def states_along(guide: Guide, text: bytes) -> list[int]:
    """Return the states along a member of the language, without that of its end."""
    tokens, states = merged_tokens(guide.vocabulary, text), [guide.start]
    for token in tokens:
        states.append(guide.advance(states[-1], token))
    assert guide.advance(states[-1], guide.vocabulary.eos_ids[0]) == DONE
    return states


def masks(guide: Guide, states: list[int]) -> list[tuple[Any, ...]]:
    """Return the mask of each state, token by token, and the distances to the end."""
    rows = [(guide.row(state), guide.distances_after(state)) for state in states]
    return [tuple(x[row.partition.class_of].tolist() for x in (row.targets, distances)) for row, distances in rows]


def test_a_shape_of_another_process_is_found_among_its_equals() -> None:
    shape, equal = (ObjectShape(required=frozenset({"a"})) for _ in range(2))
    vars(shape)["_hash"] = hash(shape) + 1  # as texts hash there
    assert pickle.loads(pickle.dumps(shape)) in {equal} and shape not in {equal}


def test_tables_are_pickled_without_what_a_device_holds() -> None:
    table = pickle.loads(pickle.dumps(Table(LANGUAGES[1].table.guide)))
    assert table.moves(table.start, 9).tokens.tolist()
    partition = LANGUAGES[0].table.partition(2)
    empty = len(pickle.dumps(partition))
    partition.mass(torch.ones(len(VOCABULARY)))
    assert len(pickle.dumps(partition)) == empty


def test_states_that_were_met_keep_their_numbers(prepared: CFGGuide) -> None:
    states = states_along(prepared, DOCUMENT)
    again: CFGGuide = pickle.loads(pickle.dumps(prepared))
    fresh = CFGGuide.of(prepared.grammar, prepared.vocabulary)
    states_along(fresh, b"char c = 'c';")
    assert masks(again, states) == masks(prepared, states) and states_along(again, DOCUMENT) == states
    # Control: states are numbered as they are met, so a guide that has met others calls these otherwise.
    assert states_along(fresh, DOCUMENT) != states


def test_another_process_sees_the_same_masks(prepared: CFGGuide) -> None:
    states, product = np.array(states_along(prepared, DOCUMENT)), BANNED
    asked = (
        (prepared.min_tokens_of, states),
        (prepared.distances_after, states[9]),
        (product.distances_after, product.start),
    )
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        theirs = [pool.submit(*call) for call in asked]
        assert all(np.array_equal(found.result(), of(given)) for found, (of, given) in zip(theirs, asked, strict=True))


def test_nothing_is_prepared_again_and_rows_take_no_room(prepared: CFGGuide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data as large as the vocabulary for each state is left out."""
    states = states_along(prepared, DOCUMENT)
    expected = masks(prepared, states)

    def prepare(*_: object) -> None:
        raise AssertionError("tables were prepared")

    for kind in (Lexer, LRTables):
        monkeypatch.setattr(kind, "of", prepare)
    with pytest.raises(AssertionError, match="prepared"):
        CFGGuide.of(prepared.grammar, prepared.vocabulary)
    pickled = pickle.dumps(prepared)
    assert b"Partition" not in pickled and masks(pickle.loads(pickled), states) == expected


def test_other_threads_wait_while_a_guide_is_pickled() -> None:
    guide = CFGGuide.of(read_grammar(GRAMMARS[0].pattern), VOCABULARY)
    with ThreadPoolExecutor(1) as pool:
        with guide._lock:
            pickled = pool.submit(pickle.dumps, guide)
            with pytest.raises(TimeoutError):
                pickled.result(timeout=0.1)
        assert np.array_equal(pickle.loads(pickled.result()).mask(guide.start), guide.mask(guide.start))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(GRAMMARS[0].table.guide)
    monkeypatch.setattr(cfg_guide, "__version__", "99.0")
    with pytest.raises(UnsupportedError, match=r"unpickled by outlines_phi 99\.0.*make it anew"):
        pickle.loads(pickled)
