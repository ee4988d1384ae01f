"""Free text is refused where no character can be written, and the end of the budget is an end of an open guide."""

import itertools
import re
from collections import Counter
from typing import ClassVar, final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import EmptyLanguageError, Vocabulary
from outlines_phi.guides import Table
from outlines_phi.guides.guide import DEAD, DONE, Guide, Row
from outlines_phi.guides.phrases.ban_language import free_text
from outlines_phi.guides.phrases.banned import QUESTIONS, BannedPhrases, smallest_conflict
from outlines_phi.vocabulary.classes import EOS, NEVER, Partition

BYTES = Vocabulary.from_tokens(["<eos>", *(bytes((byte,)) for byte in range(256)), "ab", b" \xc3", "é", "🙂"], 0)
PIECES = ["a", b"a\xc3", "é", b"\xc3", b"\xa9", b"\xa9a", b"\xff", "è", b"\xa8", "aé", "éa"]
LONGEST = 4


def written(vocabulary: Vocabulary, phrases: list[str]) -> list[str]:
    """Texts of up to so many tokens that are whole characters and hold no phrase, as Python sees them."""
    texts = []
    for size in range(1, LONGEST + 1):
        for tokens in itertools.product(vocabulary.tokens[1:], repeat=size):
            try:
                text = b"".join(tokens).decode()
            except UnicodeDecodeError:
                continue
            texts += [text] if not any(phrase in text for phrase in phrases) else []
    return texts


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
    with pytest.raises(EmptyLanguageError) as error:
        free_text(BYTES, BannedPhrases(phrases, ignore_case=ignore_case))
    assert str(error.value).endswith(f"tokens of the vocabulary write no character without {named}. Ban less of them.")


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
    asked = []

    def at_fault(some: BannedPhrases) -> bool:
        asked.append(some)
        return len(some) == 1000

    phrases = BannedPhrases([f"{i} " for i in range(1000)])
    assert smallest_conflict(phrases, at_fault) == phrases and len(asked) == QUESTIONS


VOCABULARY = Vocabulary.from_tokens(["a", "b", "<eos>"], eos=2)
PARTITION = Partition(np.array([2, 3, EOS], dtype=np.int32), 4)


@final
class NoTwoAs(Guide):
    """Free text over ``a`` and ``b`` without ``aa``; the text may not end in ``a`` where ``strict``."""

    open: ClassVar[bool] = True

    def __init__(self, strict: bool = False) -> None:
        self.vocabulary, self.start = VOCABULARY, 2
        self._strict = strict

    def row(self, state: int) -> Row:
        targets = np.full(4, DEAD, dtype=np.int32)
        if state in (2, 3):
            targets[2], targets[3] = (3 if state == 2 else DEAD), 2
            targets[EOS] = DEAD if self._strict and state == 3 else DONE
        return Row(PARTITION, targets)

    def min_tokens(self, state: int) -> int:
        return int(state == 3 and self._strict) if state != DEAD else np.iinfo(np.int32).max

    def describe(self, state: int) -> str:
        return str(state)


def members(strict: bool, budget: int) -> set[tuple[int, ...]]:
    """Return the members within the budget, by brute force."""
    found, level = set(), [()]
    for left in range(budget, 0, -1):
        below = []
        for ids in level:
            for token in range(3):
                text = "".join("ab"[v] for v in ids if v < 2) + ("ab"[token] if token < 2 else "")
                ends = token == 2 or left == 1
                if "aa" in text or (ends and strict and text.endswith("a")):
                    continue
                (found.add if ends else below.append)((*ids, token))
        level = below
    return found


def walked(table: Table, budget: int) -> set[tuple[int, ...]]:
    """Return the members that the moves of a table lead to."""
    found, level = set(), [((), table.start)]
    for left in range(budget, 0, -1):
        below = []
        for ids, state in level:
            moves = table.moves(state, left)
            for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
                assert target == table.advance(state, token, left) != DEAD
                (found.add((*ids, token)) if target == DONE else below.append(((*ids, token), target)))
        level = below
    return found


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_a_text_ends_where_it_says_so_or_where_the_budget_does(strict: bool, budget: int) -> None:
    table = Table(NoTwoAs(strict))
    everything = members(strict, budget)
    # With the strict end, a prefix may run into the end of the budget; live prefixes are those that need not.
    assert walked(table, budget) == everything and everything


@pytest.mark.parametrize("strict", [False, True])
def test_what_estimators_read_agrees_with_the_moves(strict: bool) -> None:
    table, device = Table(NoTwoAs(strict)), torch.device("cpu")
    for left in (1, 2, 3):
        for state in (2, 3):
            moves = table.moves(state, left)
            to = table.class_targets(state, left, device)
            assert (to.states[to.places.numpy()[to.partition.class_of[moves.tokens]]] == moves.targets).all()
            step = table.one_step(state, left, device)
            assert ((moves.targets == DONE) == step.ends.numpy()[to.partition.class_of[moves.tokens]]).all()
            assert NEVER == 0 and not step.live[NEVER]
