"""Regular expressions without a meaning in a ban are refused, with the remedy."""

from __future__ import annotations

import re

import pytest

from outlines_phi.errors import GrammarError, OutlinesPhiError, UnsupportedError
from outlines_phi.guides.phrases.banned import BannedPhrases

ANCHOR = "has an anchor, and a phrase is banned wherever in a text it occurs; leave the anchor out"
LOOK = "has look-around, which is not offered; make what it looks for part of the phrase: 'cats' for 'cat(?=s)'"


@pytest.mark.parametrize("flags", [0, re.IGNORECASE])
@pytest.mark.parametrize(
    ("pattern", "said", "column"),
    [
        ("^cat$", ANCHOR, 0),
        ("cat$", ANCHOR, 3),
        ("a{1,3}$|b", ANCHOR, 6),
        (r"(\Acat)", ANCHOR, 1),
        (r"cat\Z", ANCHOR, 3),
        (r"\bcat\b", "has a word boundary; give BannedPhrases(['cat'], whole_word=True), for which", 0),
        (r"\b(?:cat|dog)\b", "give BannedPhrases([re.compile('(?:cat|dog)')], whole_word=True)", 0),
        (r"\bcats?\b", "give BannedPhrases([re.compile('cats?')], whole_word=True)", 0),
        (r"cat\b", "give BannedPhrases(['cat'], whole_word=True), for which the characters on both sides", 3),
        (r"\bcat$", "has a word boundary; give BannedPhrases([...], whole_word=True)", 0),
        (r"\Bcat", "write those out, as part of the phrase", 0),
        (r"(?<!a)cat", LOOK, 0),
        (r"cat(?=s)", LOOK, 3),
        (r"(a)\1", "has a back-reference, which is not offered; write out what the group matches", 3),
        ("a+", "bound, as in {1,20} for +\n", 1),
        ("(a|b)*c", "bound, as in {0,20} for *\n", 5),
        ("a{1,3}bc{2,}", "bound, as in {2,20} for {2,}\n", 8),
        ("xa{30,}", "bound, as in {30,60} for {30,}\n", 2),
        ("a+?b", "bound, as in {1,20} for +\n", 1),
    ],
)
def test_what_a_ban_cannot_mean(pattern: str, said: str, column: int, flags: int) -> None:
    with pytest.raises(UnsupportedError) as caught:
        BannedPhrases([re.compile(pattern, flags)])
    message = str(caught.value)
    assert message.startswith(f"the banned regular expression {pattern!r} ") and said in message
    assert "generation" not in message and "output" not in message
    place, line, caret = message.splitlines()[-3:]
    assert line == f"  {pattern}" and caret.index("^") == column + 2 and f"column {column + 1}" in place


def test_what_is_advised_is_accepted() -> None:
    for pattern in ("a{1,20}", "(a|b){0,20}c", "a{30,60}", "cats", "cat[^s]"):
        assert len(BannedPhrases([re.compile(pattern)])) == 1
    assert len(BannedPhrases([re.compile("(?:cat|dog)")], whole_word=True)) == 1


@pytest.mark.parametrize("pattern", [r"a\^\$", r"[$^]a", r"\\b", "a[\\b]"])
def test_what_only_looks_like_an_assertion_is_left_alone(pattern: str) -> None:
    try:
        BannedPhrases([re.compile(pattern)])
    except OutlinesPhiError as error:
        assert "anchor" not in str(error) and "boundary" not in str(error)


def test_an_error_points_into_the_expression_that_was_given() -> None:
    with pytest.raises(GrammarError, match="a repeat is written") as caught:
        BannedPhrases([re.compile("a{,3}b")], ignore_case=True)
    line, caret = str(caught.value).splitlines()[-2:]
    assert line == "  a{,3}b" and line[caret.index("^")] == "{"
