"""Byte automata against sets of texts: their algebra, their lift to tokens, Aho and Corasick's, and longest matches."""

import random
import re
from dataclasses import replace
from functools import cache
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outlines_phi import EmptyLanguageError, UnsupportedError, Vocabulary
from outlines_phi.automata import lift as lifting
from outlines_phi.automata.aho_corasick import AhoCorasick
from outlines_phi.automata.automaton import DEAD, UNREACHABLE, ByteAutomaton, distances
from outlines_phi.automata.lift import FIRST, lift
from outlines_phi.automata.prefix_match import PrefixMatch, boundary
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.guides.guide import DONE
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.testing import assert_guide
from outlines_phi.vocabulary.vocabulary import EOS, NEVER

fixed = settings(derandomize=True, deadline=None)

TEXTS = [bytes(text) for length in range(5) for text in product(b"ab\xff", repeat=length)]
"""Every text of up to four bytes; what other bytes do is what \\xff does not."""


def automaton(
    edges: list[tuple[int, int, int]], accepting: list[int], start: int = 1, states: int = 5
) -> ByteAutomaton:
    unique = {(source, byte): target for source, byte, target in edges}
    source, byte = np.array(list(unique), dtype=np.int32).reshape(-1, 2).T
    return ByteAutomaton.from_edges(
        source,
        byte,
        np.array(list(unique.values()), dtype=np.int32),
        start=start,
        accepting=np.isin(np.arange(states), accepting),
    )


automata = st.builds(
    automaton,
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(b"ab\xff"), st.integers(1, 4)), max_size=12),
    st.lists(st.integers(1, 4), max_size=3),
    st.integers(0, 4),
)


def language(a: ByteAutomaton) -> set[bytes]:
    return {text for text in TEXTS if a.accepts(text)}


@fixed
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 255), st.integers(1, 4)), max_size=40))
def test_from_edges_keeps_every_edge(edges: list[tuple[int, int, int]]) -> None:
    a = automaton(edges, [2])
    expected = {(source, byte): target for source, byte, target in edges}
    for state, byte in product(range(5), range(256)):
        assert a.advance(state, bytes([byte])) == expected.get((state, byte), DEAD)
    columns = [a.targets[:, g].tolist() for g in range(a.targets.shape[1])]
    assert len({tuple(column) for column in columns}) == len(columns), "bytes that act alike share a column"


@fixed
@given(automata, automata)
def test_the_algebra_is_that_of_sets(a: ByteAutomaton, b: ByteAutomaton) -> None:
    assert language(a & b) == language(a) & language(b)
    assert language(a | b) == language(a) | language(b)
    assert language(a - b) == language(a) - language(b)
    assert a.witness((a - b) | (a & b)) is None
    text = a.witness(b)
    if text is None:
        assert language(a) == language(b)
    else:
        assert a.accepts(text) != b.accepts(text)
        assert all(a.accepts(shorter) == b.accepts(shorter) for shorter in TEXTS if len(shorter) < len(text))


@fixed
@given(automata)
def test_trim_keeps_the_language_and_only_useful_states(a: ByteAutomaton) -> None:
    trimmed = a.trim()
    assert language(trimmed) == language(a)
    reached = {trimmed.start, *(trimmed.advance(trimmed.start, text) for text in TEXTS)}
    assert set(range(1, len(trimmed))) <= reached
    assert (trimmed.distances[1:] != UNREACHABLE).all() and trimmed.trim() is trimmed


@fixed
@given(automata)
def test_distances_are_the_lengths_of_shortest_texts(a: ByteAutomaton) -> None:
    for state in range(len(a)):
        lengths = [len(text) for text in TEXTS if a.accepting[a.advance(state, text)]]
        assert a.distances[state] == min(lengths, default=UNREACHABLE)


@fixed
@given(automata)
def test_members_come_in_order(a: ByteAutomaton) -> None:
    expected = sorted(language(a), key=lambda text: (len(text), text))
    assert [text for text in islice(a.members(), 2 * len(TEXTS)) if len(text) <= 4] == expected
    assert a.is_empty == (not expected)
    if expected:
        assert a.shortest() == expected[0]
    else:
        with pytest.raises(ValueError, match="no text leads to an end"):
            a.shortest()


@fixed
@given(automata, st.integers(0, 12))
def test_members_that_are_few(a: ByteAutomaton, most: int) -> None:
    first = list(islice(a.members(), most + 1))
    found = a.members_up_to(most, longest=100)
    assert found is None if len(first) > most else found is not None and sorted(found) == sorted(first)
    if first and len(first) <= most:
        longest = max(map(len, first))
        assert a.members_up_to(most, longest) == found and (not longest or a.members_up_to(most, longest - 1) is None)


@pytest.mark.parametrize(
    ("targets", "accepting"),
    [([[1], [0]], [False, True]), ([[0], [0]], [True, True]), ([[0], [0]], [False])],
    ids=["dead state moves", "dead state accepts", "lengths differ"],
)
def test_contradictions_are_refused(targets: list[list[int]], accepting: list[bool]) -> None:
    with pytest.raises(AssertionError):
        ByteAutomaton(np.array(targets, dtype=np.int32), np.zeros(256, dtype=np.uint8), 1, np.array(accepting))


def test_the_largest_alphabet_and_the_empty_one() -> None:
    every = automaton([(1, byte, 1 + byte % 2) for byte in range(256)], [2])
    assert every.targets.shape[1] == 2 and every.accepts(b"\x01") and not every.accepts(b"\x02")
    none = automaton([], [1])
    assert none.accepts(b"") and not none.accepts(b"a")


STATES = 7
edges = st.lists(st.tuples(st.integers(0, STATES - 1), st.integers(0, STATES - 1)), max_size=20)


@fixed
@given(edges, st.sets(st.integers(0, STATES - 1)))
def test_least_number_of_edges_to_a_goal(pairs: list[tuple[int, int]], goals: set[int]) -> None:
    source, target = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    expected = [0 if state in goals else UNREACHABLE for state in range(STATES)]
    for _ in range(STATES):
        for s, t in pairs:
            if expected[t] != UNREACHABLE:
                expected[s] = min(expected[s], expected[t] + 1)
    assert distances(source, target, np.array(sorted(goals), dtype=np.int64), STATES).tolist() == expected


def test_a_long_chain() -> None:
    chain = np.arange(70_000)
    assert np.array_equal(distances(chain[:-1], chain[1:], chain[-1:], len(chain)), chain[::-1])


vocabularies = st.lists(st.text("ab\xff", max_size=4).map(lambda t: t.encode("latin-1")), min_size=1, max_size=40).map(
    lambda tokens: Vocabulary.from_tokens([b"", *tokens, b"", "c"], 0)
)


def assert_lifted(automaton: ByteAutomaton, vocabulary: Vocabulary) -> None:
    partition, moves = lift(automaton.targets, automaton.byte_class, vocabulary)
    assert partition.class_of[0] == EOS and partition.size == FIRST + len(moves)
    states = range(len(automaton))
    by_action: dict[tuple[int, ...], int] = {}
    for v, token in enumerate(vocabulary.tokens[1:], start=1):
        action = tuple(automaton.advance(state, token) for state in states) if token else (DEAD,) * len(automaton)
        g = int(partition.class_of[v])
        if not any(action):
            assert g == NEVER
            continue
        assert by_action.setdefault(action, g) == g, "tokens that act alike share a class"
        here = slice(moves.offsets[g - FIRST], moves.offsets[g - FIRST + 1])
        pairs = dict(zip(moves.source[here].tolist(), moves.target[here].tolist(), strict=True))
        assert pairs == {state: target for state, target in zip(states, action, strict=True) if target != DEAD}
    # Classes are told apart, none is without a member, and they come in the order of their first tokens.
    assert list(by_action.values()) == list(range(FIRST, partition.size))


def weak(seed: int, states: NDArray[np.int32], whole: Any = lifting._weights) -> NDArray[np.uint64]:
    """Weights under which the first three hashes tell transformations apart by their numbers of pairs only, or not at all."""
    return np.full(len(states), max(seed, ~seed), dtype=np.uint64) if -4 < seed < 3 else whole(seed, states)


@pytest.mark.parametrize(
    ("name", "value"),
    [("CHUNK", lifting.CHUNK), ("CHUNK", 2), ("_weights", weak)],
    ids=["plain", "chunks", "collisions"],
)
@fixed
@given(automata, vocabularies)
def test_classes_are_the_distinct_actions(
    name: str, value: Any, automaton: ByteAutomaton, vocabulary: Vocabulary
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, name, value)
        assert_lifted(automaton, vocabulary)


def test_nothing_below_a_dead_node_is_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A work bound instead of a timing: 1,000 tokens that start with a dead byte cost no composition."""
    composed = []
    whole = lifting.Transformations.then

    def counting(self: Any, chosen: Any, column: Any, columns: Any) -> Any:
        composed.append(len(chosen))
        return whole(self, chosen, column, columns)

    monkeypatch.setattr(lifting.Transformations, "then", counting)
    tokens = ["<eos>", "a", "aa", *(f"x{i:03d}" for i in range(1_000))]
    targets = np.array([[0, 0], [0, 1]], dtype=np.int32)
    lift(targets, (np.arange(256) == ord("a")).astype(np.uint8), Vocabulary.from_tokens(tokens, 0))
    assert composed == [2], "two byte classes at the root; below `a` is what was found there, below `x` is nothing"


often = settings(derandomize=True, deadline=None, max_examples=200)

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


@often
@given(words, texts)
def test_nodes_are_the_beginnings_of_words_and_texts_lead_to_their_longest_end_that_is_one(
    of: list[Word], text: Word
) -> None:
    automaton = AhoCorasick.build(of, SYMBOLS)
    assert differences(automaton, of, text) == []
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


def test_all_symbols_may_be_used_and_a_thousand_words_take_one_row_for_each_beginning() -> None:
    every, rng = AhoCorasick.build([(symbol,) for symbol in range(256)], 256), random.Random(0)
    assert every.after.shape == (257, 256) and every.words(256) == (255,)
    of = list({bytes(rng.randrange(256) for _ in range(rng.randint(5, 40))) for _ in range(1000)})
    automaton = AhoCorasick.build(of, 256)
    assert len(automaton) == len({word[:size] for word in of for size in range(len(word) + 1)})
    assert automaton.after.nbytes < 30e6


def test_a_word_without_symbols_is_refused() -> None:
    with pytest.raises(AssertionError, match="everywhere"):
        AhoCorasick.build([()], SYMBOLS)


VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c", "cc", "é", b"\xc3", b"\xa9", "ca", "abc"], 0)
CHARACTERS = "abcéèx"  # Representatives of all: two of two bytes, which begin alike
TAILS = [bytes(tail) for length in (1, 2, 3) for tail in product(b"abc\xc3\xa9", repeat=length)]

PATTERNS = ["a|abc|b", "a(ba)*", "a|ac|acb", "é|éa|c", "a*"]
AFTER = [None, "[^ab]", "[bé]"]


@cache
def is_member(pattern: str, text: bytes) -> bool:
    return re.fullmatch(pattern, text.decode(errors="replace")) is not None


@cache
def follows(rest: bytes, after: str | None, *, ended: bool) -> bool:
    """Return True if a member may stand before ``rest``: the first character is known by its bytes to be one of ``after``."""
    if after is None or not rest:
        return after is None or ended
    ways = [[c for c in CHARACTERS if c.encode().startswith(rest[:end])] for end in (1, 2)]
    return any(way and all(re.fullmatch(after, c) for c in way) for way in ways)


@cache
def longest(pattern: str, after: str | None, text: bytes, *, ended: bool) -> bytes | None:
    """The longest member that a text begins with, by the definition."""
    ends = (text[:end] for end in range(len(text), -1, -1) if is_member(pattern, text[:end]))
    return next((member for member in ends if follows(text[len(member) :], after, ended=ended)), None)


@cache
def settled(pattern: str, after: str | None, text: bytes) -> bytes | None:
    """The same where nothing that follows changes it; ``None`` where it is not known yet."""
    found = longest(pattern, after, text, ended=False)
    return found if all(longest(pattern, after, text + tail, ended=False) == found for tail in TAILS) else None


def stopped(pattern: str, after: str | None, budget: int) -> dict[tuple[int, ...], bytes]:
    """Every token sequence that ends when its member is settled, or with the end of the text or of the budget."""
    found, level = dict[tuple[int, ...], bytes](), [()]
    for left in range(budget, 0, -1):
        below: list[tuple[int, ...]] = []
        for ids in level:
            if (member := longest(pattern, after, VOCABULARY.decode(ids), ended=True)) is not None:
                found[(*ids, 0)] = member
            for token in range(1, len(VOCABULARY)):
                text = VOCABULARY.decode((*ids, token))
                if (member := settled(pattern, after, text)) is not None:
                    found[(*ids, token)] = member
                elif left > 1:
                    below.append((*ids, token))
                elif (member := longest(pattern, after, text, ended=True)) is not None:
                    found[(*ids, token)] = member
        level = below
    return found


def walked(table: Table, budget: int) -> dict[tuple[int, ...], bytes]:
    """Return the members that the moves of a table lead to, and the text of each."""
    found, level = dict[tuple[int, ...], bytes](), [((), table.start)]
    for left in range(budget, 0, -1):
        below = []
        for ids, state in level:
            moves = table.moves(state, left)
            for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
                if target == DONE:
                    found[(*ids, token)] = table.guide.text((*ids, token))
                else:
                    below.append(((*ids, token), target))
        level = below
    return found


def guide(pattern: str, after: str | None = None) -> FSMGuide:
    return FSMGuide.from_match(PrefixMatch(compile_regex(pattern), after and boundary(after)), VOCABULARY)


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_guide_is_the_definition_and_what_is_certain_of_a_text_only_grows(pattern: str, after: str | None) -> None:
    made = guide(pattern, after)
    assert_guide(made)
    found = walked(Table(made), 3)
    assert found == stopped(pattern, after, 3) and made.match is not None
    marked, match = made.match.marked, made.match
    certain_of = cache(lambda ids: made.text(ids, ended=False))
    cuts_after = cache(lambda before: match.cuts(marked.advance(marked.start, before), VOCABULARY))
    for ids, member in found.items():
        certain = [certain_of(ids[:end]) for end in range(len(ids))] + [member]
        assert all(later.startswith(one) for one, later in zip(certain, certain[1:], strict=False)), (ids, certain)
        if ids[-1] != 0:  # where members end inside tokens: for all at once what the text of each says by itself
            before, token = VOCABULARY.decode(ids[:-1]), VOCABULARY.tokens[ids[-1]]
            cut = int(cuts_after(before)[ids[-1]])
            whole = before.decode(errors="ignore").encode()
            assert member == {-1: certain[-2], 0: whole}.get(cut, before + token[:cut]), ids


def test_a_boundary_is_known_by_its_first_bytes() -> None:
    assert boundary("[^a-z]").advance(boundary("[^a-z]").start, b"\xe2") != 0
    assert boundary("[^a-z]").members_up_to(300, 9) == sorted(
        bytes([byte])
        for byte in range(256)
        if byte not in range(97, 123) and byte not in range(0x80, 0xC2) and byte < 0xF5
    )
    assert boundary("é").members_up_to(9, 9) == ["é".encode()]


@pytest.mark.parametrize("pattern", ["ab", "a?", "a*", "a|bc"])
def test_a_boundary_is_one_character(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match="Give open_at= a regular expression of one character"):
        boundary(pattern)


def test_members_that_no_token_writes() -> None:
    with pytest.raises(EmptyLanguageError, match="Give members that tokens of this vocabulary can write"):
        guide("z")


def test_open_guides_are_told_from_others_and_not_multiplied() -> None:
    closed = FSMGuide.from_automaton(compile_regex("a|b"), VOCABULARY)
    assert (
        guide("a|b").fingerprint()
        != closed.fingerprint()
        == FSMGuide.from_automaton(compile_regex("a|b"), VOCABULARY).fingerprint()
    )
    with pytest.raises(UnsupportedError, match="only guides of byte automata"):
        guide("a|b") & closed
