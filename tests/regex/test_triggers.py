"""Free text around strings that it must not hold, by definition."""

from itertools import product

import pytest

from outlines_phi import UnsupportedError
from outlines_phi.regex.patterns import text_up_to, text_without

TEXTS = ["".join(letters) for size in range(5) for letters in product("abc</é", repeat=size)]


@pytest.mark.parametrize("triggers", [("ab",), ("</", "ab", "b"), ("aa", "aba", "c"), ("aé",), ("a.b", "[a]")])
def test_texts_are_those_without_and_those_up_to_the_first(triggers: tuple[str, ...]) -> None:
    without, up_to = text_without(triggers), text_up_to(triggers)
    for text in TEXTS:
        ends = [at + len(one) for one in triggers for at in range(len(text)) if text.startswith(one, at)]
        assert without.accepts(text.encode()) == (not ends)
        assert up_to.accepts(text.encode()) == (min(ends, default=-1) == len(text))
    assert not without.accepts(b"\xff") and not without.accepts(b"\xc3")


@pytest.mark.parametrize("triggers", [(), ("a", "")])
def test_no_trigger_and_an_empty_one_are_refused(triggers: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedError, match="at least one character"):
        text_without(triggers)
