"""Free text is refused where no character can be written, and the end of the budget is an end of an open guide."""

import re
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, EmptyLanguageError, Vocabulary
from outlines_phi.guides import Table
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.phrases.ban_language import free_text
from outlines_phi.guides.phrases.banned import QUESTIONS, smallest_conflict
from outlines_phi.vocabulary.classes import NEVER
from tests.guides.banning import is_free
from tests.guides.walking import members

BYTES = Vocabulary.from_tokens(["<eos>", *(bytes((byte,)) for byte in range(256)), "ab", b" \xc3", "é", "🙂"], 0)
PIECES = ["a", b"a\xc3", "é", b"\xc3", b"\xa9", b"\xa9a", b"\xff", "è", b"\xa8", "aé", "éa"]


def written(vocabulary: Vocabulary, phrases: list[str]) -> set[tuple[int, ...]]:
    """Sequences of some tokens that write whole characters and no phrase, as Python sees them."""

    def is_text(text: bytes) -> bool:
        own = text.decode(errors="surrogateescape")
        return bool(own) and not re.search("[\udc80-\udcff]", own) and not any(phrase in own for phrase in phrases)

    return members(vocabulary, 4, is_text)


def test_a_list_is_refused_where_no_text_is_left() -> None:
    seen: Counter[str] = Counter()

    @settings(derandomize=True, deadline=None, max_examples=150)
    @given(
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=4, unique=True),
        st.lists(st.sampled_from(["a", "é", "è", "aa", "éa"]), min_size=1, max_size=4, unique=True),
    )
    def check(pieces: list[str | bytes], phrases: list[str]) -> None:
        vocabulary = Vocabulary.from_tokens(["<eos>", *pieces], 0)
        if not written(vocabulary, []):
            return  # of lone bytes alone: nothing that is banned makes a difference
        left = written(vocabulary, phrases)
        broken = any(not any(phrase.encode() in token for phrase in phrases) for token in vocabulary.tokens[1:])
        seen["text" if left else "broken" if broken else "nothing"] += 1
        if left:
            assert free_text(vocabulary, BannedPhrases(phrases)).min_tokens(2) == 0
            return
        with pytest.raises(EmptyLanguageError) as error:
            free_text(vocabulary, BannedPhrases(phrases))
        named = [phrase for phrase in phrases if repr(phrase) in str(error.value)]
        assert named and not written(vocabulary, named)
        assert all(written(vocabulary, [other for other in named if other != phrase]) for phrase in named)

    check()
    assert all(seen[kind] > 5 for kind in ("text", "broken", "nothing")), seen


@pytest.mark.parametrize(
    ("phrases", "ignore_case", "named"),
    [
        ([re.compile("(?s:.)"), "abc"], False, "re.compile('(?s:.)')"),
        ([re.compile("[^a]"), "zz", "a"], False, "re.compile('[^a]'), 'a'"),
        ([re.compile("[^é]"), "É"], True, "re.compile('[^é]'), 'É'"),
        (
            [*map(chr, range(128)), re.compile("[^\0-\x7f]")],
            False,
            "'\\x00', '\\x01', '\\x02', '\\x03', '\\x04' and 124 more",
        ),
    ],
)
def test_lone_bytes_are_no_text(phrases: list[str | re.Pattern[str]], ignore_case: bool, named: str) -> None:
    with pytest.raises(EmptyLanguageError, match="write no character.*Ban less of them") as error:
        free_text(BYTES, BannedPhrases(phrases, ignore_case=ignore_case))
    assert f"without {named}. " in str(error.value)


@pytest.mark.parametrize(
    "phrases", [[re.compile("[^a]")], [re.compile("[^é]")], [re.compile("(?s:.){2}")], [*map(chr, range(0x80, 0x800))]]
)
def test_one_character_is_text(phrases: list[str | re.Pattern[str]]) -> None:
    assert free_text(BYTES, BannedPhrases(phrases)).min_tokens(2) == 0


def test_a_character_that_tokens_cannot_finish_is_no_text() -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", b"\xc3", b"\xff"], 0)
    with pytest.raises(EmptyLanguageError, match="no character without 'a'"):
        free_text(vocabulary, BannedPhrases(["b", "a"]))


def test_a_long_list_that_is_at_fault_as_a_whole_takes_few_questions() -> None:
    asked, phrases = list[BannedPhrases](), BannedPhrases([f"{i} " for i in range(1000)])
    assert smallest_conflict(phrases, lambda some: asked.append(some) or len(some) == 1000) == phrases
    assert len(asked) == QUESTIONS


LETTERS = Vocabulary.from_tokens(["<eos>", "a", "b"], 0)
WAITING = BannedPhrases(["a", "ba"], whole_word=True)
"""Phrases of which a text that ends with one waits for a letter."""


def walked(table: Table, budget: int) -> set[tuple[int, ...]]:
    """Return the members that the moves of a table lead to, the end of sequence included where one is written."""
    found, level, device = set(), [((), table.start)], torch.device("cpu")
    for left in range(budget, 0, -1):
        below = []
        for ids, state in level:
            moves, to, step = (
                of(state, left)
                for of in (
                    table.moves,
                    partial(table.class_targets, device=device),
                    partial(table.one_step, device=device),
                )
            )
            classes = to.partition.class_of[moves.tokens]
            assert (to.states[to.places.numpy()[classes]] == moves.targets).all(), "what estimators read"
            assert ((moves.targets == DONE) == step.ends.numpy()[classes]).all() and not step.live[NEVER]
            for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
                assert target == table.advance(state, token, left) != DEAD
                (found.add((*ids, token)) if target == DONE else below.append(((*ids, token), target)))
        level = below
    return found


@pytest.mark.parametrize("phrases", [BannedPhrases(["aa"]), WAITING], ids=str)
@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_a_text_ends_where_it_says_so_or_where_the_budget_does(phrases: BannedPhrases, budget: int) -> None:
    expected = {ids if len(ids) == budget else (*ids, 0) for ids in members(LETTERS, budget, is_free(phrases))}
    assert walked(Table(free_text(LETTERS, phrases)), budget) == expected and expected


def test_the_end_of_the_budget_is_no_end_of_a_text_that_waits() -> None:
    assert {(1,), (2, 1)}.isdisjoint(walked(Table(free_text(LETTERS, WAITING)), 2)) and (1, 2, 1) in walked(
        Table(free_text(LETTERS, WAITING)), 3
    )
