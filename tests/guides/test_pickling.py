"""Guides that are pickled: the same masks in another process, and for grammars the same states, without preparing them again."""

import copy
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, TimeoutError
from typing import Any

import numpy as np
import pytest
import torch

from outlines_phi import BannedPhrases, UnsupportedError, Vocabulary
from outlines_phi.guides import CFGGuide, Guide, JSONGuide, Table, read_grammar
from outlines_phi.guides.grammar import cfg_guide as cfg_guide
from outlines_phi.guides.grammar.lexing.lexer import Lexer
from outlines_phi.guides.grammar.notation.reader import grammar_text
from outlines_phi.guides.grammar.parsing.lr_tables import LRTables
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.phrases.ban_language import ProductGuide
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.lm import bundled
from outlines_phi.vocabulary.trie import merged_tokens
from tests.guides.json_schema.schemas import SMALL
from tests.languages import GRAMMARS, LANGUAGES, VOCABULARY

PLAIN = BannedPhrases(["aba", "c)"])
WORDS = BannedPhrases(["ab", re.compile("a[bc]{1,2}")], ignore_case=True, whole_word=True)
GUIDES: dict[str, Guide] = {
    "regular": LANGUAGES[1].table.guide,
    "free text": PhraseGuide(VOCABULARY, PLAIN),
    "free text, whole words": PhraseGuide(VOCABULARY, WORDS),
    "regular, banned": ProductGuide(LANGUAGES[1].table.guide, PhraseGuide(VOCABULARY, WORDS)),
    **{language.name: language.table.guide for language in GRAMMARS},
    "JSON": JSONGuide.of({"type": "array"}, SMALL, any_order=True),
    "grammar, banned": ProductGuide(GRAMMARS[1].table.guide, PhraseGuide(VOCABULARY, PLAIN)),
}
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


def assert_alike(guide: Guide, other: Guide, depth: int = 3) -> None:
    """Assert that two guides allow the same and are as far from the end, whatever they call their states."""
    pairs = {(guide.start, other.start)}
    for _ in range(depth):
        below = set()
        for state, theirs in pairs:
            assert guide.min_tokens(state) == other.min_tokens(theirs)
            for token in range(len(guide.vocabulary)):
                after = guide.advance(state, token), other.advance(theirs, token)
                assert (after[0] == DEAD, after[0] == DONE) == (after[1] == DEAD, after[1] == DONE)
                below.add(after)
        pairs = below - {(DEAD, DEAD), (DONE, DONE)}
    assert pairs


@pytest.mark.parametrize("name", GUIDES)
def test_a_copy_allows_the_same(name: str) -> None:
    guide = GUIDES[name]
    again: Guide = pickle.loads(pickle.dumps(guide))
    assert_alike(guide, again)
    assert_alike(guide, copy.deepcopy(guide))
    table = pickle.loads(pickle.dumps(Table(guide, max_bytes=10_000)))
    assert table.max_bytes == 10_000 and table.moves(table.start, 9).tokens.tolist()


def test_what_a_device_holds_is_left_out() -> None:
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
    states, product = np.array(states_along(prepared, DOCUMENT)), GUIDES["grammar, banned"]
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
        assert_alike(guide, pickle.loads(pickled.result()))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(GRAMMARS[0].table.guide)
    monkeypatch.setattr(cfg_guide, "__version__", "99.0")
    with pytest.raises(UnsupportedError, match=r"unpickled by outlines_phi 99\.0.*make it anew"):
        pickle.loads(pickled)
