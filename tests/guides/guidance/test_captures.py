"""Captures: those that guidance has, and which derivation an ambiguous text has."""

from __future__ import annotations

import pytest

from outlines_phi.guides.guidance.guidance_grammar import GuidanceGrammar
from tests.guides.guidance.oracle import HEADER, RECORDED

MATCHES = [
    (name, text, captures)
    for name, program in RECORDED.items()
    for text, captures in program["captures"].items()
    if captures is not None
]


@pytest.mark.parametrize(("name", "text", "captures"), MATCHES)
def test_captures_are_those_of_guidance(name: str, text: str, captures: dict[str, object]) -> None:
    assert GuidanceGrammar(RECORDED[name]["grammar"]).captures(text) == captures


@pytest.mark.parametrize(
    ("rules", "text", "captures"),
    [
        # The first alternative as written, and what comes first is as long as it can be.
        ('start: a | b\na[capture]: "x" "y"\nb[capture]: "xy" | "x" "y"', "xy", {"b": "xy"}),
        ('start: a | b\na[capture]: c c\nb[capture]: c c\nc: "x"', "xx", {"a": "xx"}),
        ('start: a b\na[capture]: c*\nb[capture]: c*\nc: "x"', "xxx", {"a": "xxx", "b": ""}),
        ('start: e\ne[capture="__LIST_APPEND:e"]: "x" | e "+" e', "x+x+x", {"e": ["x", "x", "x+x", "x", "x+x+x"]}),
        # What ends a text is no part of its capture, and of those around it where it stays.
        ('start: o\no[capture]: x "!"\nx[capture, suffix=";"]: /[a-z]*/', "ab;!", {"x": "ab", "o": "ab;!"}),
        (
            'start: o\no[capture]: x ";!"\nx[capture, stop=";", stop_capture="s"]: /[a-z]*/',
            "ab;!",
            {"x": "ab", "s": ";", "o": "ab;!"},
        ),
        ('start: x\nx[capture, stop=/;|!/, stop_capture="s"]: /[a-z]*/', "ab!", {"x": "ab", "s": "!"}),
        ('start: "é" x\nx[capture, lazy]: /.*?é/', "é日本é", {"x": "日本é"}),
        ('start: (x ",")*\nx[capture="__LIST_APPEND:a"]: y?\ny[capture="a"]: "b"', "b,,", {"a": ["b", ""]}),
        ('start: "" x?\nx[capture]: "a"', "", {}),
    ],
)
def test_which_derivation_is_captured(rules: str, text: str, captures: dict[str, object]) -> None:
    assert GuidanceGrammar(HEADER + rules).captures(text) == captures


def test_long_texts_and_deep_ones() -> None:
    many = GuidanceGrammar(HEADER + 'start: x+\nx[capture="__LIST_APPEND:x"]: /[a-z]/')
    assert many.captures("ab" * 500) == {"x": ["a", "b"] * 500}
    deep = GuidanceGrammar(HEADER + 'start: e\ne: x | "(" e ")"\nx[capture]: /[0-9]+/')
    assert deep.captures("(" * 1500 + "7" + ")" * 1500) == {"x": "7"}


def test_a_rule_that_derives_itself_through_what_may_be_empty() -> None:
    assert GuidanceGrammar(HEADER + 'start: ((x?)* "b"?)*\nx[capture]: "a"').captures("aab") == {"x": "a"}


def test_a_text_that_is_none_has_no_captures() -> None:
    with pytest.raises(ValueError, match="'no' is not in the format"):
        GuidanceGrammar(HEADER + 'start: "yes"').captures("no")
