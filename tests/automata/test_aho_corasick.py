"""The automaton of Aho and Corasick against its definition, word by word."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.automata.aho_corasick import AhoCorasick

fixed = settings(derandomize=True, deadline=None, max_examples=200)

SYMBOLS = 300
words = st.lists(
    st.lists(st.sampled_from([0, 1, 299]), min_size=1, max_size=5).map(tuple), min_size=1, max_size=6, unique=True
)
texts = st.lists(st.sampled_from([0, 1, 7, 299]), max_size=12).map(tuple)

Word = tuple[int, ...]


def spelled(automaton: AhoCorasick, node: int) -> Word:
    """The symbols from the root to a node."""
    symbols: list[int] = []
    while node:
        symbols.append(int(automaton.symbol[node]))
        node = int(automaton.parent[node])
    return tuple(reversed(symbols))


def ends(text: Word) -> list[Word]:
    """The ends of a text, longest first, down to the empty one."""
    return [text[start:] for start in range(len(text) + 1)]


def differences(automaton: AhoCorasick, of: list[Word], text: Word) -> list[str]:
    """Return the facts of the automaton about ``text`` that are wrong."""
    node = 0
    for symbol in text:
        node = int(automaton.after[node, automaton.symbol_class[symbol]])
    begun = {word[:size] for word in of for size in range(len(word) + 1)}
    begun_only = {word[:size] for word in of for size in range(len(word))}
    facts = {
        "node": (spelled(automaton, node), next(end for end in ends(text) if end in begun)),
        "open": (spelled(automaton, int(automaton.open[node])), next(end for end in ends(text) if end in begun_only)),
        "words": ([of[word] for word in automaton.words(node)], [end for end in ends(text) if end in of]),
        "match": (automaton.match[node] > 0, any(end in of for end in ends(text))),
        "depth": (automaton.depth[node], len(spelled(automaton, node))),
    }
    return [name for name, (found, expected) in facts.items() if found != expected]


@fixed
@given(words, texts)
def test_every_text_leads_to_its_longest_end_that_begins_a_word(of: list[Word], text: Word) -> None:
    assert differences(AhoCorasick.build(of, SYMBOLS), of, text) == []


@fixed
@given(words)
def test_the_nodes_are_the_beginnings_of_words(of: list[Word]) -> None:
    automaton = AhoCorasick.build(of, SYMBOLS)
    begun = {word[:size] for word in of for size in range(len(word) + 1)}
    assert sorted(spelled(automaton, node) for node in range(len(automaton))) == sorted(begun)
    assert automaton.after.shape[1] == len({symbol for word in of for symbol in word}) + 1
    assert (np.diff(automaton.depth) >= 0).all(), "level by level"


def test_without_failures_occurrences_are_missed() -> None:
    """The control: a trie that falls back to its root misses a word that begins inside another beginning."""
    of, text = [(0, 0, 1), (0, 2)], (0, 0, 0, 1)
    automaton = AhoCorasick.build(of, SYMBOLS)
    children = automaton.depth[automaton.after] == automaton.depth[:, None] + 1
    trie = replace(automaton, after=np.where(children, automaton.after, 0))
    assert differences(automaton, of, text) == []
    assert "words" in differences(trie, of, text)


def test_all_symbols_may_be_used() -> None:
    automaton = AhoCorasick.build([(symbol,) for symbol in range(256)], 256)
    assert automaton.after.shape == (257, 256) and automaton.words(256) == (255,)


def test_a_thousand_words_take_one_row_for_each_beginning() -> None:
    rng = random.Random(0)
    of = list({bytes(rng.randrange(256) for _ in range(rng.randint(5, 40))) for _ in range(1000)})
    automaton = AhoCorasick.build(of, 256)
    assert len(automaton) == len({word[:size] for word in of for size in range(len(word) + 1)})
    assert automaton.after.nbytes < 30e6


def test_a_word_without_symbols_is_refused() -> None:
    with pytest.raises(AssertionError, match="everywhere"):
        AhoCorasick.build([()], SYMBOLS)
