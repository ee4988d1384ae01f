"""Indexes of outlines_core over a real vocabulary: exactly their transitions, dead ends pruned, nothing else."""

import numpy as np
import pytest
from outlines_core import Index
from outlines_core import Vocabulary as CoreVocabulary

from outlines_phi.errors import EmptyLanguageError, UnsupportedError, VocabularyError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE
from outlines_phi.guides.index import token_moves
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.testing import assert_guide, assert_spells
from outlines_phi.testing.guide_conformance import reachable
from outlines_phi.vocabulary.classes import EOS, NEVER
from outlines_phi.vocabulary.vocabulary import Vocabulary

EOS_ID = 3
TOKENS = ["a", "b", "ab", "<eos>", "ba", "c", "1", ".", ".5", "5", "ab", '"', "aa"]
"""One spelling has two ids."""

VOCABULARY = Vocabulary.from_tokens(TOKENS, EOS_ID)


def index_of(pattern: str, tokens: list[str] = TOKENS, eos: int = EOS_ID) -> Index:
    ids: dict[str, list[int]] = {}
    for v, token in enumerate(tokens):
        if v != eos:
            ids.setdefault(token, []).append(v)
    return Index(pattern, CoreVocabulary(eos, ids))


def allowed_by_the_index(index: Index, budget: int) -> set[tuple[int, ...]]:
    """Return the token sequences, end of sequence included, that a walk through the index may write, by brute force."""
    found: set[tuple[int, ...]] = set()
    level = [((), index.get_initial_state())]
    for _ in range(budget):
        below = []
        for ids, state in level:
            for token in index.get_allowed_tokens(state) or ():
                if token == EOS_ID:
                    found.add((*ids, token))
                else:
                    below.append(((*ids, token), index.get_next_state(state, token)))
        level = below
    return found


def allowed_by_the_guide(guide: FSMGuide, budget: int) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    level = [((), guide.start)]
    for _ in range(budget):
        level = [((*ids, v), guide.advance(state, v)) for ids, state in level for v in range(len(guide.vocabulary))]
        found |= {ids for ids, state in level if state == DONE}
        level = [(ids, state) for ids, state in level if state not in (DEAD, DONE)]
    return found


PATTERNS = ["ab|c", "(ab|ba|c){1,3}", "(ab)*c?", "a{2,4}b?", r"1(\.5)?", "a|ab|aba", "[abc]*", '"[ab]*"', "(ab)*xx|c"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_language_is_that_of_the_index(pattern: str) -> None:
    index = index_of(pattern)
    guide = FSMGuide.from_index(index, VOCABULARY)
    language = allowed_by_the_index(index, 5)
    assert language and allowed_by_the_guide(guide, 5) == language
    assert_guide(guide)


@pytest.mark.parametrize("pattern", ["ab|c", "a{2,4}b?", '"[ab]*"', '"(ab|c)*"', "[abc]*"])
def test_where_the_engine_loses_nothing_it_is_the_lift(pattern: str) -> None:
    assert_spells(FSMGuide.from_index(index_of(pattern), VOCABULARY), compile_regex(pattern))


def test_what_the_engine_loses_stays_lost() -> None:
    """After the member `1` the engine leaves out the single byte `.`, so one spelling of `1.5` is not written."""
    guide = FSMGuide.from_index(index_of(r"1(\.5)?"), VOCABULARY)
    one, point, half, five = (TOKENS.index(token) for token in ("1", ".", ".5", "5"))
    assert allowed_by_the_guide(guide, 4) == {(one, EOS_ID), (one, half, EOS_ID)}
    lifted = FSMGuide.from_automaton(compile_regex(r"1(\.5)?"), VOCABULARY)
    assert (one, point, five, EOS_ID) in allowed_by_the_guide(lifted, 4)
    with pytest.raises(AssertionError):
        assert_spells(guide, compile_regex(r"1(\.5)?"))


def test_dead_ends_are_pruned() -> None:
    """Without an `x` in the vocabulary, `(ab)*xx` loops for ever; the engine allows the loop."""
    index = index_of("(ab)*xx|c")
    guide = FSMGuide.from_index(index, VOCABULARY)
    first, c = TOKENS.index("ab"), TOKENS.index("c")
    assert first in index.get_allowed_tokens(index.get_initial_state())
    assert guide.advance(guide.start, first) == DEAD
    assert guide.partition.class_of[first] == NEVER
    assert guide.min_tokens(guide.advance(guide.start, c)) == 1
    assert all(guide.min_tokens(state) < UNREACHABLE for state in reachable(guide))


def test_tokens_of_equal_columns_share_a_class() -> None:
    guide = FSMGuide.from_index(index_of('"[abc]*"1?'), VOCABULARY)
    class_of = guide.partition.class_of
    twins = [v for v, token in enumerate(TOKENS) if token == "ab"]
    assert class_of[twins[0]] == class_of[twins[1]] == class_of[TOKENS.index("c")]
    assert class_of[TOKENS.index("c")] != class_of[TOKENS.index("1")]
    assert class_of[EOS_ID] == EOS
    assert guide.partition.size == 1 + class_of.max()
    columns = np.stack([guide.row(state).targets for state in range(len(guide))]).T[2:]
    assert len(np.unique(columns, axis=0)) == len(columns), "no two classes do the same"


def test_equal_indexes_give_equal_moves() -> None:
    for pattern in PATTERNS[:4]:
        one, two = (token_moves(index_of(pattern), VOCABULARY) for _ in range(2))
        assert one.moves.equals(two.moves) and one.start == two.start
        assert np.array_equal(one.accepting, two.accepting)


def test_other_ends_of_the_vocabulary_are_never_text() -> None:
    """The token that the model stops at is the end of sequence, also where the index has it as an ordinary token."""
    vocabulary = Vocabulary((b"a", b"b", b"", b""), (3, 2), np.ones(4, dtype=bool))
    guide = FSMGuide.from_index(index_of("[abx]{1,2}", ["a", "b", "x", "<eos>"]), vocabulary)
    assert {ids[:-1] for ids in allowed_by_the_guide(guide, 3)} == {(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)}


def test_an_index_over_another_vocabulary() -> None:
    smaller = Vocabulary.from_tokens(TOKENS[:6], EOS_ID)
    with pytest.raises(VocabularyError, match="allows the id 10, which this vocabulary of 6 ids"):
        FSMGuide.from_index(index_of("(ab|c)+"), smaller)
    other_end = Vocabulary.from_tokens(["<eos>", *TOKENS[1:]], 0)
    with pytest.raises(VocabularyError, match="allows the id 3, .* does not end with"):
        FSMGuide.from_index(index_of("b|c"), other_end)


def test_an_index_of_nothing_but_dead_ends() -> None:
    with pytest.raises(EmptyLanguageError, match="every path runs into a dead end"):
        FSMGuide.from_index(index_of("(ab)*xx"), VOCABULARY)


def test_products_with_an_index_are_refused() -> None:
    guide = FSMGuide.from_index(index_of("ab|c"), VOCABULARY)
    with pytest.raises(UnsupportedError, match="made from a token table"):
        _ = guide & FSMGuide.from_automaton(compile_regex("c"), VOCABULARY)
