"""Predicates on texts: what they are asked, what is kept, and what tells one from another."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from outlines_phi import TextConstraint, UnsupportedError, Vocabulary
from outlines_phi.phi.constraint import all_of

EURO = "€".encode()
VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", EURO[:1], EURO[1:], "b", "é"], 0)


class Asked:
    """A predicate that remembers what it was asked."""

    def __init__(self, refused: str = "-") -> None:
        self.refused, self.texts = refused, list[str]()

    def __call__(self, text: str) -> bool:
        self.texts.append(text)
        return self.refused not in text

    def method(self, text: str) -> bool:
        return self(text)


def test_whole_characters_only() -> None:
    asked = Asked("€")
    constraint = TextConstraint(asked).over(VOCABULARY)
    assert constraint.allows([1, 2], finished=False) and not constraint.allows([1, 2, 3], finished=False)
    assert constraint.allows([5, 1], finished=False) and constraint.allows([2], finished=False)
    assert asked.texts == ["a", "a€", "éa"] and constraint.allows([], finished=True) and asked.texts[-1] == ""


def test_beginnings_and_whole_texts() -> None:
    prefix, complete = Asked("b"), Asked("a")
    constraint = TextConstraint(prefix, complete=complete).over(VOCABULARY)
    assert constraint.allows([1], finished=False) and not constraint.allows([1], finished=True)
    assert not constraint.allows([4], finished=False) and not constraint.allows([4], finished=True)
    assert prefix.texts == ["a", "b"] and complete.texts == ["a"]  # what prefix refuses, complete is not asked about
    assert TextConstraint(complete=complete).over(VOCABULARY).allows([1], finished=False)


def test_verdicts_are_kept_within_a_bound() -> None:
    asked = Asked()
    constraint = TextConstraint(asked, memory=3).over(VOCABULARY)
    for tokens in ([1], [1], [4], [1, 1], [1], [1, 4], [1]):
        constraint.allows(tokens, finished=False)
    assert asked.texts == ["a", "b", "aa", "ab", "a"]
    assert 0 < constraint.bytes < 1000
    full = constraint.bytes
    for length in range(20):
        constraint.allows([4] * (length % 3 + 1), finished=False)
    assert constraint.bytes <= full + 10


def test_threads_may_share_a_constraint() -> None:
    """Threads evict what others have just looked up; each gets the answer all the same, and the bound holds."""
    constraint = TextConstraint(lambda text: len(text) % 2 == 0, memory=2).over(VOCABULARY)

    def work(first: int) -> bool:
        lengths = ((first + 7 * i) % 5 + 1 for i in range(4000))
        return all(constraint.allows([1] * n, finished=False) is (n % 2 == 0) for n in lengths)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert constraint.bytes <= 2 * 200


def test_answers_of_numpy_are_answers() -> None:
    constraint = TextConstraint(lambda text: np.bool_(text != "b")).over(VOCABULARY)
    assert constraint.allows([1], finished=False) is True and constraint.allows([4], finished=False) is False


def test_identity_of_the_callable_tells_constraints_apart() -> None:
    @dataclass
    class Equal:
        """Callables that are equal to one another, and cannot be hashed."""

        def __call__(self, text: str) -> bool:
            return True

    one, other = Equal(), Equal()
    assert TextConstraint(one) == TextConstraint(one) and hash(TextConstraint(one)) == hash(TextConstraint(one))
    assert TextConstraint(one) != TextConstraint(other) and one == other
    assert TextConstraint(one) != TextConstraint(complete=one) != TextConstraint(one, further=1)
    asked = Asked()
    assert TextConstraint(asked.method) == TextConstraint(asked.method) != TextConstraint(Asked().method)
    assert TextConstraint(one).over(VOCABULARY) == TextConstraint(one).over(VOCABULARY)
    elsewhere = Vocabulary.from_tokens(["<eos>", "a"], 0)
    assert TextConstraint(one).over(VOCABULARY) != TextConstraint(one).over(elsewhere)


def test_several_constraints_in_one() -> None:
    no_a, no_b = (TextConstraint(Asked(letter), further=n).over(VOCABULARY) for letter, n in (("a", 3), ("b", 2)))
    both = all_of(no_a, None, no_b)
    assert both is not None and all_of(None) is None and all_of(no_a, None) is no_a
    assert [both.allows([token], finished=False) for token in (1, 4, 5)] == [False, False, True]
    assert both.further == 2 and both.bytes == no_a.bytes + no_b.bytes
    assert both == all_of(no_a, no_b) and hash(both) == hash(all_of(no_a, no_b)) and both != all_of(no_b, no_a)


def test_what_messages_call_it() -> None:
    def checked(text: str) -> bool:
        return True

    assert str(TextConstraint(checked)).endswith(".checked")
    assert str(TextConstraint(complete=checked)).startswith("TextConstraint(complete=test_what")
    assert str(TextConstraint(checked).over(VOCABULARY)).startswith("constraint=test_what")


def test_tokens_that_nobody_can_spell() -> None:
    blank = Vocabulary((b"",) * 4, (0,), np.ones(4, dtype=bool))
    with pytest.raises(UnsupportedError, match="give the tokenizer too: vocabulary=tokenizer"):
        TextConstraint(str.isalpha).over(blank)
