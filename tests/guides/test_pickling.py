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
from outlines_phi.guides import CFGGuide, Table
from outlines_phi.guides.grammar import cfg_guide as cfg_guide
from outlines_phi.guides.grammar.completion import Completion
from outlines_phi.guides.grammar.lexing.lexer import START
from outlines_phi.guides.grammar.lexing.spanner import Spanner
from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar
from outlines_phi.guides.grammar.parsing.lr_tables import LRTables
from outlines_phi.guides.guide import DEAD, DONE, Guide
from outlines_phi.guides.phrases.ban_language import ProductGuide
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.lm import bundled
from tests.languages import GRAMMARS, LANGUAGES, VOCABULARY

PLAIN = BannedPhrases(["aba", "c)"])
WORDS = BannedPhrases(["ab", re.compile("a[bc]{1,2}")], ignore_case=True, whole_word=True)
GUIDES: dict[str, Guide] = {
    "regular": LANGUAGES[1].table.guide,
    "free text": PhraseGuide(VOCABULARY, PLAIN),
    "free text, whole words": PhraseGuide(VOCABULARY, WORDS),
    "regular, banned": ProductGuide(LANGUAGES[1].table.guide, PhraseGuide(VOCABULARY, WORDS)),
    **{language.name: language.table.guide for language in GRAMMARS},
    "grammar, banned": ProductGuide(GRAMMARS[1].table.guide, PhraseGuide(VOCABULARY, PLAIN)),
}
GRAMMAR, DOCUMENT = "c", b"int main() { int x = 3; while (x < 10) { x = x + f(y[2], 'a'); } return 0; }\n"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(bundled.load()[1])


@pytest.fixture
def prepared(vocabulary: Vocabulary) -> CFGGuide:
    return CFGGuide.of(read_grammar(grammar_text(GRAMMAR)), vocabulary)


def spelled(text: bytes, vocabulary: Vocabulary) -> list[int]:
    """The longest token that fits, again and again."""
    ids = {token: v for v, token in enumerate(vocabulary.tokens) if token}
    found = []
    while text:
        end = next(end for end in range(len(text), 0, -1) if text[:end] in ids)
        found.append(ids[text[:end]])
        text = text[end:]
    return [*found, vocabulary.eos_ids[0]]


def states_along(guide: Guide, tokens: list[int]) -> list[int]:
    states = [guide.start]
    for token in tokens:
        states.append(guide.advance(states[-1], token))
    assert states[-1] == DONE
    return states


def masks(guide: Guide, states: list[int]) -> list[tuple[Any, ...]]:
    """Return the mask of each state, token by token, and the distances to the end."""
    found = []
    for state in states:
        row, distances = guide.row(state), guide.distances_after(state)
        found.append((row.targets[row.partition.class_of].tolist(), distances[row.partition.class_of].tolist()))
    return found


def assert_alike(guide: Guide, other: Guide, depth: int = 4) -> None:
    """Assert that two guides allow the same and are as far from the end, whatever they call their states."""
    pairs = {(guide.start, other.start)}
    for _ in range(depth):
        below = set()
        for state, theirs in pairs:
            assert guide.min_tokens(state) == other.min_tokens(theirs)
            for token in range(len(VOCABULARY)):
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
    tokens = spelled(DOCUMENT, prepared.vocabulary)
    states = states_along(prepared, tokens)
    again: CFGGuide = pickle.loads(pickle.dumps(prepared))
    fresh = CFGGuide.of(prepared.grammar, prepared.vocabulary)
    states_along(fresh, spelled(b"char c = 'c';", prepared.vocabulary))
    assert masks(again, states[:-1]) == masks(prepared, states[:-1])
    assert states_along(again, tokens) == states
    # Control: states are numbered as they are met, so a guide that has met others calls these otherwise.
    assert states_along(fresh, tokens) != states


def test_another_process_sees_the_same_masks(prepared: CFGGuide) -> None:
    states = states_along(prepared, spelled(DOCUMENT, prepared.vocabulary))[:-1]
    product = GUIDES["grammar, banned"]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        theirs = pool.submit(prepared.min_tokens_of, np.array(states)), pool.submit(prepared.distances_after, states[9])
        allowed = pool.submit(product.live_classes, product.start, 6)
        assert theirs[0].result().tolist() == prepared.min_tokens_of(np.array(states)).tolist()
        assert theirs[1].result().tolist() == prepared.distances_after(states[9]).tolist()
        assert allowed.result().tolist() == product.live_classes(product.start, 6).tolist()


def test_nothing_is_prepared_again(prepared: CFGGuide, monkeypatch: pytest.MonkeyPatch) -> None:
    states = states_along(prepared, spelled(DOCUMENT, prepared.vocabulary))
    expected = masks(prepared, states[:-1])

    def prepare(*_: object) -> None:
        raise AssertionError("tables were prepared")

    for kind in (Spanner, Completion):
        monkeypatch.setattr(kind, "__init__", prepare)
    monkeypatch.setattr(LRTables, "of", prepare)
    with pytest.raises(AssertionError, match="prepared"):
        CFGGuide.of(prepared.grammar, prepared.vocabulary)
    assert masks(pickle.loads(pickle.dumps(prepared)), states[:-1]) == expected


def test_rows_and_classes_take_no_room(prepared: CFGGuide) -> None:
    """Data as large as the vocabulary for each state is left out."""
    assert b"Partition" in pickle.dumps(prepared.spanner.of_state(START)) and b"Partition" not in pickle.dumps(prepared)
    assert prepared.row(prepared.start) and prepared._recent_row.cache_info().currsize == 1
    assert pickle.loads(pickle.dumps(prepared))._recent_row.cache_info().currsize == 0


def test_other_threads_wait_while_a_guide_is_pickled() -> None:
    guide = CFGGuide.of(read_grammar(GRAMMARS[0].pattern), VOCABULARY)
    with ThreadPoolExecutor(1) as pool:
        with guide._lock:
            pickled = pool.submit(pickle.dumps, guide)
            with pytest.raises(TimeoutError):
                pickled.result(timeout=0.1)
        with guide.spanner.growing:
            waiting = pool.submit(pickle.dumps, guide)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.1)
        assert_alike(pickle.loads(pickled.result()), pickle.loads(waiting.result()))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(GRAMMARS[0].table.guide)
    monkeypatch.setattr(cfg_guide, "__version__", "99.0")
    with pytest.raises(UnsupportedError, match=r"unpickled by outlines_phi 99\.0.*make it anew"):
        pickle.loads(pickled)
