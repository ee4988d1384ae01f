"""Free text around strings that it must not hold, by definition."""

from itertools import product

import pytest

from outlines_phi import UnsupportedError
from outlines_phi.regex.patterns import free_text

TEXTS = ["".join(letters) for size in range(5) for letters in product("abc</é", repeat=size)]


@pytest.mark.parametrize("triggers", [("ab",), ("</", "ab", "b"), ("aa", "aba", "c"), ("aé",), ("a.b", "[a]")])
def test_texts_are_those_without_and_those_up_to_the_first(triggers: tuple[str, ...]) -> None:
    without, up_to = free_text(triggers), free_text(end=triggers)
    for text in TEXTS:
        ends = [at + len(one) for one in triggers for at in range(len(text)) if text.startswith(one, at)]
        assert without.accepts(text.encode()) == (not ends)
        assert up_to.accepts(text.encode()) == (min(ends, default=-1) == len(text))
    assert not without.accepts(b"\xff") and not without.accepts(b"\xc3")


def test_both_and_none() -> None:
    both, any_text = free_text(("ab",), ("</", "b")), free_text()
    for text in TEXTS:
        assert both.accepts(text.encode()) == (
            free_text(("ab",)).accepts(text.encode()) and free_text(end=("</", "b")).accepts(text.encode())
        )
        assert any_text.accepts(text.encode())
    assert not any_text.accepts(b"\xff")


def test_an_empty_string_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="at least one character"):
        free_text(("a", ""))
