"""Stop strings: the guide allows the token sequences of the definition, and no others."""

from collections.abc import Callable
from functools import cache

import pytest
from outlines.types import CFG, JsonSchema

from outlines_phi import BannedPhrases, EmptyLanguageError, Special, UnsupportedError
from outlines_phi.automata.stops import StoppedTexts
from outlines_phi.guides import FSMGuide, Guide, MachineGuide
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.phrases.ban_language import banned, free_text
from outlines_phi.guides.stopping import Stops, stopped
from outlines_phi.testing import assert_guide
from outlines_phi.vocabulary.special_tokens import spelling
from tests.inner import CompiledTypes, compile_regex
from tests.languages import JSON_VOCABULARY, SPECIAL_VOCABULARY, VOCABULARY, Ids

BUDGET = 4
PATTERNS = ("[abc]{0,3}", "a*b?", "(ab|c)+", "a+b", "(aa|ba)*x?")
STOPS = (("b",), ("ab",), ("cc", "c"), ("bab", "a"), ("aba", "bb"), ("ax", "x"))


def first(text: bytes, strings: tuple[str, ...]) -> tuple[int, int] | None:
    """Return the stop string that is complete first, of several complete at once the longest."""
    for end in range(1, len(text) + 1):
        if found := [string.encode() for string in strings if text[:end].endswith(string.encode())]:
            return end - max(map(len, found)), end
    return None


def defined(accepts: Callable[[bytes], bool], strings: tuple[str, ...], phrases: tuple[str, ...] = ()) -> set[Ids]:
    """Return the token sequences of the definition, by trying all."""
    found, waiting = set[Ids](), [((), b"")]
    for tokens, text in waiting:  # it grows
        if accepts(text):
            found.add((*tokens, 0))
        for token, written in enumerate(VOCABULARY.tokens[1:], 1):
            below = text + written
            if any(phrase.encode() in below for phrase in phrases):
                continue
            if stop := first(below, strings):
                if accepts(below[: stop[0]]) or accepts(below[: stop[1]]):
                    found.add((*tokens, token))
            elif len(tokens) + 2 <= BUDGET:
                waiting.append(((*tokens, token), below))
    return found


def allowed(guide: Guide) -> set[Ids]:
    """Return the token sequences of a guide."""
    found, waiting = set[Ids](), [((), guide.start)]
    for tokens, state in waiting:  # it grows
        row = guide.row(state)
        for token in range(len(guide.vocabulary)):
            target = guide.advance(state, token)
            assert target == row.targets[row.partition.class_of[token]]
            if target == DONE:
                found.add((*tokens, token))
            elif target != DEAD and guide.min_tokens(target) <= BUDGET - len(tokens) - 1:
                waiting.append(((*tokens, token), target))
    return found


@pytest.mark.parametrize("strings", STOPS, ids="+".join)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_allows_what_the_definition_does(pattern: str, strings: tuple[str, ...]) -> None:
    automaton = compile_regex(pattern)
    expected, left = defined(automaton.accepts, strings), FSMGuide.from_automaton(automaton, VOCABULARY)
    if not expected:
        with pytest.raises(EmptyLanguageError, match="Give other stop strings"):
            stopped(left, Stops(strings), VOCABULARY)
        return
    guide = stopped(left, Stops(strings), VOCABULARY)
    assert allowed(guide) == expected
    assert_guide(guide)
    for phrases in (("aa",), ("ca", "b")):
        ban = BannedPhrases(phrases, across_prompt=False)
        texts = defined(automaton.accepts, strings, phrases)
        if texts and defined(automaton.accepts, ("no such string",), phrases):
            assert allowed(stopped(banned(left, ban), Stops(strings), VOCABULARY)) == texts
    # On demand: near the limit some texts are out of reach.
    texts = StoppedTexts(automaton, [string.encode() for string in strings])
    lazy = MachineGuide(texts, VOCABULARY, texts)
    assert expected >= allowed(lazy) and len(allowed(lazy)) > 0.7 * len(expected)
    assert_guide(lazy, shortest=False)


def test_free_text_may_stop_anywhere() -> None:
    for left, phrases in ((None, ()), (free_text(VOCABULARY, BannedPhrases(["aa"], across_prompt=False)), ("aa",))):
        guide = stopped(left, Stops(("cc", "b")), VOCABULARY)
        assert guide.open and allowed(guide) >= defined(lambda text: True, ("cc", "b"), phrases)


@cache
def compiled() -> CompiledTypes:
    return CompiledTypes(JSON_VOCABULARY)


@pytest.mark.parametrize(
    ("term", "strings", "inside", "outside"),
    [
        (JsonSchema({"type": "array", "items": {"type": "integer"}}), ("2]", "\n"), ["[12]", "[1, 2]", "[]\n"], ["[12", "\n"]),
        (JsonSchema({"enum": ["a\n", "b"]}), ("b", "}]"), ['"a\\n"', '"a\\n"}]'], ['"b"', '"a\\n"}']),
        (CFG('start: "(" start ")" | "x"'), (")x",), ["x", "x)x", "((x))"], ["((x", "(x)x"]),
    ],
    ids=["array", "enum", "grammar"],
)  # fmt: skip
def test_formats_of_every_kind(term: object, strings: tuple[str, ...], inside: list[str], outside: list[str]) -> None:
    guide = compiled().stopped(term, None, Stops(strings)).guide
    assert isinstance(guide, MachineGuide)
    for text in (*inside, *outside):
        place = guide.machine.read(text.encode())
        assert (place is not None and guide.machine.ends(place)) == (text in inside), text
        here = guide.machine.start
        for byte in text.encode():
            rest = guide.machine.completed(here)
            assert guide.machine.ends(guide.machine.read(rest, here)) and len(rest) == guide.machine.size(here)
            here = guide.machine.step(here, byte)
            if here is None or not guide.machine.is_live(here):
                break
    assert_guide(guide, limit=40, shortest=False)


@pytest.mark.parametrize(
    ("written", "kept", "removed", "certain"),
    [
        (b"aad", b"aad", b"aad", b"aad"),
        (b"aac", b"aac", b"aac", b"aa"),
        (b"aacd", b"aacd", b"aa", b""),
        (b"aacdxyz", b"aacd", b"aa", b""),
        (b"ab", b"ab", b"ab", b""),  # the member ends with the stop string
    ],
)
def test_what_is_shown(written: bytes, kept: bytes, removed: bytes, certain: bytes) -> None:
    texts = StoppedTexts(compile_regex("a+|ab"), [b"cd", b"ab"])
    with_it, without = StoppedTexts(compile_regex("a+|ab"), [b"cd", b"ab"], kept=True), texts
    assert with_it.text(written) == kept and without.text(written) == removed == with_it.member(written)
    if certain:
        assert without.text(written, ended=False) == certain and with_it.text(written, ended=False) == written


def test_the_name_of_a_special_token_stands_for_it_too() -> None:
    think = SPECIAL_VOCABULARY.special["</t>"]
    letter = SPECIAL_VOCABULARY.tokens.index(b"a")
    left = FSMGuide.from_automaton(compile_regex("a+"), SPECIAL_VOCABULARY)
    for stops, ends in [
        (Stops(("</t>",)), (think, think - 1)),
        (Stops((), (Special("</t>").written,)), (think,)),
        (Stops((), (f"<[{think}]>",)), (think,)),
        (Stops(("</",)), (think - 1,)),
    ]:
        guide = stopped(left, stops, SPECIAL_VOCABULARY)
        after = guide.advance(guide.start, letter)
        assert [token for token in (think, think - 1) if guide.advance(after, token) == DONE] == list(ends)
        assert guide.text([letter, think]) == b"a" and guide.advance(guide.start, think) == DEAD
    assert spelling("</t>") in stopped(left, Stops(("</t>",)), SPECIAL_VOCABULARY).vocabulary.tokens


def test_what_cannot_be_stopped() -> None:
    left = FSMGuide.from_automaton(compile_regex("[ab]+"), VOCABULARY)
    with pytest.raises(UnsupportedError, match=r"Give BannedPhrases\(..., whole_word=False\) beside stop strings"):
        stopped(banned(left, BannedPhrases(["a"], whole_word=True)), Stops(("c",)), VOCABULARY)
    guide = stopped(left, Stops(("c",)), VOCABULARY)
    with pytest.raises(UnsupportedError, match="Give an output type beside stop strings"):
        stopped(guide, Stops(("c",)), VOCABULARY)
