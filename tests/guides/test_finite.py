"""Finite guides, lifted from automata, read from indexes of outlines_core or automata over characters, and made of each other."""

from dataclasses import replace
from itertools import product

import interegular
import numpy as np
import pytest
from outlines_core import Index
from outlines_core import Vocabulary as CoreVocabulary

from outlines_phi import EmptyLanguageError, UnsupportedError, Vocabulary, from_transformers, generate
from outlines_phi.automata.lift import lift
from outlines_phi.errors import VocabularyError
from outlines_phi.guides import FSMGuide
from outlines_phi.guides.fsm import CharacterFSM, encoded
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE
from outlines_phi.lm import bundled
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.testing import assert_guide, assert_spells
from outlines_phi.testing.guide_conformance import reachable
from outlines_phi.vocabulary.classes import EOS, NEVER
from tests.guides.walking import Ids, assert_row, ended, read

VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c"], 0)


def guide_of(pattern: str, vocabulary: Vocabulary = VOCABULARY) -> FSMGuide:
    return FSMGuide.from_automaton(compile_regex(pattern), vocabulary)


def test_every_spelling_of_every_member_and_nothing_else() -> None:
    assert ended(guide_of("ab|c"), 4) == {(1, 2), (3,), (5,)}
    assert ended(guide_of("aba"), 4) == {(1, 2, 1), (1, 4), (3, 1)}
    assert ended(guide_of("[abc]{2,3}") & guide_of("(ab|c)*") & guide_of(".*c"), 4) == {
        (3, 5),
        (1, 2, 5),
        (5, 5),
        (5, 5, 5),
    }


def test_min_tokens_counts_the_end_of_sequence() -> None:
    guide = guide_of("abab|c")
    assert [guide.min_tokens(state) for state in (guide.start, read(guide, "a"), DONE, DEAD)] == [2, 3, 0, UNREACHABLE]


def test_a_token_that_no_further_token_can_complete_is_dead() -> None:
    """Without a token `c` alone, `a` and then `c` can only be `ac`."""
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", "ac", "d"], 0)
    assert ended(guide_of("ac|ad", vocabulary), 3) == {(2,), (1, 3)}
    stuck = guide_of("ac|d", vocabulary)
    assert stuck.advance(stuck.start, 1) == DEAD
    assert stuck.partition.class_of[1] == NEVER, "a token that is dead everywhere joins the class of such tokens"


def test_only_the_first_end_of_sequence_is_allowed() -> None:
    guide = guide_of("a?", Vocabulary((b"a", b"", b""), (2, 1), np.ones(3, dtype=bool)))
    assert [guide.advance(guide.start, end) for end in (2, 1)] == [DONE, DEAD]


@pytest.mark.parametrize("pattern", ["(a|b|c)*a(a|b|c){4}", "(ab|ba|c){1,3}x?"])
def test_transformations_that_differ_have_different_names(pattern: str) -> None:
    """Tokens that act alike are found by them; a name that many share costs a comparison of them all, again and again."""
    letters = Vocabulary.from_tokens(["<eos>", *"abcx", *map("".join, product("abcx", repeat=3))], 0)
    automaton = compile_regex(pattern)
    names = lift(automaton.targets, automaton.byte_class, letters).transformations.hashes(0)
    assert len(np.unique(names)) == len(names) > 8


EOS_ID = 3
TOKENS = ["a", "b", "ab", "<eos>", "ba", "c", "1", ".", ".5", "5", "ab", '"', "aa"]
"""One spelling has two ids."""

CORE = Vocabulary.from_tokens(TOKENS, EOS_ID)


def index_of(pattern: str, tokens: list[str] = TOKENS, eos: int = EOS_ID) -> Index:
    ids: dict[str, list[int]] = {}
    for v, token in enumerate(tokens):
        if v != eos:
            ids.setdefault(token, []).append(v)
    return Index(pattern, CoreVocabulary(eos, ids))


def allowed(index: Index, budget: int) -> set[Ids]:
    """Return the token sequences, the end left out, that a walk through the index may write, by brute force."""
    found, level = set[Ids](), [((), index.get_initial_state())]
    for _ in range(budget + 1):
        moves = [(ids, state, token) for ids, state in level for token in index.get_allowed_tokens(state) or ()]
        found |= {ids for ids, _, token in moves if token == EOS_ID}
        level = [((*ids, token), index.get_next_state(state, token)) for ids, state, token in moves if token != EOS_ID]
    return found


@pytest.mark.parametrize(
    "pattern",
    ["ab|c", "(ab|ba|c){1,3}", "(ab)*c?", "a{2,4}b?", r"1(\.5)?", "a|ab|aba", "[abc]*", '"[ab]*"', "(ab)*xx|c"],
)
def test_the_language_is_that_of_the_index(pattern: str) -> None:
    guide = FSMGuide.from_index(index_of(pattern), CORE)
    language = allowed(index_of(pattern), 4)
    assert language and ended(guide, 4) == language
    assert_guide(guide)
    for state in reachable(guide):
        assert_row(guide, state)
    columns = np.stack([guide.row(state).targets for state in range(len(guide))]).T[2:]
    assert len(np.unique(columns, axis=0)) == len(columns) == guide.partition.class_of.max() - 1, (
        "no two classes do the same"
    )
    again = FSMGuide.from_index(index_of(pattern), CORE)
    assert again.fingerprint() == guide.fingerprint(), "equal indexes give equal guides"


@pytest.mark.parametrize("pattern", ["ab|c", "a{2,4}b?", '"[ab]*"', '"(ab|c)*"', "[abc]*"])
def test_where_the_engine_loses_nothing_it_is_the_lift(pattern: str) -> None:
    assert_spells(FSMGuide.from_index(index_of(pattern), CORE), compile_regex(pattern))


def test_what_the_engine_loses_stays_lost() -> None:
    """After the member `1` the engine leaves out the single byte `.`, so one spelling of `1.5` is not written."""
    guide = FSMGuide.from_index(index_of(r"1(\.5)?"), CORE)
    one, point, half, five = map(TOKENS.index, ("1", ".", ".5", "5"))
    assert ended(guide, 3) == {(one,), (one, half)} == ended(guide_of(r"1(\.5)?", CORE), 3) - {(one, point, five)}
    with pytest.raises(AssertionError):
        assert_spells(guide, compile_regex(r"1(\.5)?"))


def test_dead_ends_of_an_index_are_pruned() -> None:
    """Without an `x` in the vocabulary, `(ab)*xx` loops for ever; the engine allows the loop."""
    index, first = index_of("(ab)*xx|c"), TOKENS.index("ab")
    guide = FSMGuide.from_index(index, CORE)
    assert first in index.get_allowed_tokens(index.get_initial_state()) and guide.partition.class_of[first] == NEVER
    assert guide.advance(guide.start, first) == DEAD and guide.min_tokens(read(guide, "c")) == 1


def test_other_ends_of_the_vocabulary_are_never_text() -> None:
    """The token that the model stops at is the end of sequence, also where the index has it as an ordinary token."""
    vocabulary = Vocabulary((b"a", b"b", b"", b""), (3, 2), np.ones(4, dtype=bool))
    guide = FSMGuide.from_index(index_of("[abx]{1,2}", ["a", "b", "x", "<eos>"]), vocabulary)
    assert ended(guide, 3) == {(0,), (1,), *product((0, 1), repeat=2)} and guide.partition.class_of[3] == EOS


def test_what_cannot_be_made() -> None:
    guide, indexed = guide_of("a+"), FSMGuide.from_index(index_of("ab|c"), CORE)
    with pytest.raises(EmptyLanguageError, match="no text is allowed by both"):
        _ = guide & guide_of("b+")
    with pytest.raises(VocabularyError, match="two vocabularies"):
        _ = guide & guide_of("a+", Vocabulary.from_tokens(["<eos>", "a"], 0))
    for table, other in ((replace(guide, automaton=None), guide), (indexed, guide_of("c", CORE))):
        with pytest.raises(UnsupportedError, match="token table"):
            _ = table & other
    with pytest.raises(EmptyLanguageError, match=r"b'xyz'.*needs bytes"):
        guide_of("xyz|xyza")
    with pytest.raises(EmptyLanguageError, match="no text at all"):
        FSMGuide.from_automaton(compile_regex("a") & compile_regex("b"), VOCABULARY)
    with pytest.raises(VocabularyError, match="allows the id 10, which this vocabulary of 6 ids"):
        FSMGuide.from_index(index_of("(ab|c)+"), Vocabulary.from_tokens(TOKENS[:6], EOS_ID))
    with pytest.raises(VocabularyError, match="allows the id 3, .* does not end with"):
        FSMGuide.from_index(index_of("b|c"), Vocabulary.from_tokens(["<eos>", *TOKENS[1:]], 0))
    with pytest.raises(EmptyLanguageError, match="every path runs into a dead end"):
        FSMGuide.from_index(index_of("(ab)*xx"), CORE)


def test_describe() -> None:
    guide, many = guide_of("ab?"), guide_of("[a-j]", Vocabulary.from_tokens(["<eos>", *"abcdefghij"], 0))
    assert guide.describe(guide.start) == f"state {guide.start} of 5: 2 tokens to go, next b'a', b'ab'"
    assert guide.describe(read(guide, "a")).endswith("1 tokens to go, next <eos>, b'b'")
    assert (guide.describe(DEAD), guide.describe(DONE)) == ("dead", "done")
    assert many.describe(many.start).endswith("b'f' and 4 more")


@pytest.mark.parametrize(
    "pattern", ["[a-c]é?x|€+", ".*x", "(ab|c)*", "[^a]{2}", "", "(?!ab)[abx]{2}", "a&b", "𝄞|é", "."]
)
def test_texts_of_an_automaton_over_characters(pattern: str) -> None:
    fsm = interegular.parse_pattern(pattern).to_fsm()
    assert isinstance(fsm, CharacterFSM)
    found = encoded(fsm)
    for text in map("".join, (each for n in range(4) for each in product("abcxé€𝄞\n", repeat=n))):
        assert found.accepts(text.encode()) == fsm.accepts(text), text
    assert not any(found.accepts(text) for text in (b"\xc3", b"\xff", b"\xa9", b"\xed\xa0\x80")), "no texts"


def test_the_classic_function_draws_what_the_expression_draws() -> None:
    model, pattern = from_transformers(*bundled.load()), "(yes|no)(, (it|we) (is|are) (open|closed))?"
    fsm, prompt = interegular.parse_pattern(pattern).to_fsm(), "Question: is the bakery open on Sunday? Answer: "
    makes = generate.fsm(model, fsm, phi="exact"), generate.regex(model, pattern, phi="exact")
    one, other = ([make(prompt, max_tokens=12, seed=seed) for seed in range(12)] for make in makes)
    assert one == other and len(set(one)) > 1
