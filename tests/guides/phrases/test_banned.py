"""Lists of banned phrases: what is counted, named and kept, and what cannot be banned; stop strings."""

import pickle
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from outlines.types import CFG, JsonSchema

from outlines_phi import BannedPhrases, EmptyLanguageError, GrammarError, OutlinesPhiError, Special, UnsupportedError
from outlines_phi.automata.stops import StoppedTexts
from outlines_phi.guides import FSMGuide, Guide, MachineGuide
from outlines_phi.guides.phrases import banned
from outlines_phi.guides.thinking import Stops, stopped
from outlines_phi.testing import assert_guide
from outlines_phi.vocabulary.special_tokens import spelling
from tests.inner import DEAD, DONE, CompiledTypes, compile_regex, free_text
from tests.inner import banned as ban_module
from tests.languages import JSON_VOCABULARY, SPECIAL_VOCABULARY, VOCABULARY, Ids
from tests.refusals import refused


def test_phrases_are_counted_once_named_and_completed_where_they_fold_alike() -> None:
    phrases = BannedPhrases(
        ["a", b"a", "é", "é".encode(), re.compile("b{2}"), re.compile("b{2}"), re.compile("c", re.I), "a"]
    )
    assert phrases.phrases == ("a", "é", re.compile("b{2}"), re.compile("c", re.I)) and len(phrases) == 4
    assert (
        phrases.names == phrases.matcher.names == ("'a'", "'é'", "re.compile('b{2}')", "re.compile('c', re.IGNORECASE)")
    )
    assert phrases.matcher.completed(phrases.matcher.read(phrases.matcher.start, "Cé".encode())) == (1,)
    long = "x" * 300
    assert BannedPhrases([re.compile(long)]).names == (f"re.compile({long!r})",), "not cut short"
    matcher = BannedPhrases(["Ab", "aB", "b"], ignore_case=True).matcher
    assert matcher.completed(matcher.read(matcher.start, b"AB")) == (0, 1, 2)


def test_equal_phrases_are_equal() -> None:
    one, other = (
        BannedPhrases(["a", re.compile("b")], ignore_case=True),
        BannedPhrases((b"a", re.compile("b")), ignore_case=True),
    )
    assert one == other and hash(one) == hash(other)
    assert one != BannedPhrases(["a", re.compile("b")]) and one != BannedPhrases(
        ["a", re.compile("b")], True, level="exact"
    )
    assert one.matcher is one.matcher
    again = pickle.loads(pickle.dumps(one))
    assert again == one and again.matcher.names == one.matcher.names
    with pytest.raises(AttributeError):
        one.ignore_case = False  # type: ignore[misc]


def test_phrases_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "banned.txt"
    path.write_bytes("\ufefflinarith\r\n\n  \n leading\nnaïve\u2028line\nlinarith".encode())
    found = BannedPhrases.from_file(path, whole_word=True, level="mask")
    assert found == BannedPhrases(["linarith", " leading", "naïve\u2028line"], whole_word=True, level="mask")
    path.write_bytes(b"fine\n\nnot\xffthis\n")
    refused(r"banned\.txt is not UTF-8: byte 0xff on line 3", BannedPhrases.from_file, str(path))
    path.write_bytes(b"\n \n")
    refused("empty", BannedPhrases.from_file, path)
    refused(None, BannedPhrases.from_file, tmp_path / "missing.txt", error=FileNotFoundError)


@pytest.mark.parametrize(
    ("phrases", "given", "said"),
    [
        ("linarith", {}, r"is one phrase; expected a list of phrases: \['linarith'\]"),
        (b"linarith", {}, "is one phrase"),
        (re.compile("a"), {}, "is one phrase"),
        (None, {}, "expected a list of phrases"),
        (7, {}, "expected a list of phrases"),
        ([], {}, "empty; leave it out, or name a phrase"),
        (["a", ""], {}, "a banned phrase is empty"),
        ([b""], {}, "a banned phrase is empty"),
        (["a", 7], {}, "the banned phrase 7 is of type int"),
        ([["a"]], {}, "is of type list"),
        (["\ud800"], {}, "cannot be written in UTF-8"),
        ([b"\xff"], {}, "cannot be written in UTF-8"),
        (["a"], {"ignore_case": 1}, "ignore_case=1 was given; expected True or False"),
        (["a"], {"whole_word": None}, "whole_word=None"),
        (["a"], {"across_prompt": "no"}, "across_prompt='no'"),
        (["a"], {"level": "all"}, "level='all' was given for banned phrases; expected one of 'mask', 'lookahead'"),
        ([re.compile(b"a")], {}, "is one for bytes"),
        ([re.compile("a", re.DOTALL)], {}, r"has the flags re.DOTALL; .*\(\?s:\.\)"),
        ([re.compile("a.*b")], {}, "is unbounded"),
        ([re.compile("a?")], {}, "matches the empty text"),
        ([re.compile("")], {}, "matches the empty text"),
        ([re.compile("(?!a)b")], {}, "look-around"),
        ([re.compile(r"\bcat\b")], {}, "word boundary"),
        ([re.compile("[^\\s\\S]")], {}, "matches nothing at all"),
    ],
)
def test_what_cannot_be_banned_is_refused(phrases: Any, given: dict[str, Any], said: str) -> None:
    caught = refused("(?s)" + said, BannedPhrases, phrases, **given, error=OutlinesPhiError)
    assert isinstance(caught.value, UnsupportedError)


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
    message = str(refused(None, BannedPhrases, [re.compile(pattern, flags)]).value)
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
    caught = refused("a repeat is written", BannedPhrases, [re.compile("a{,3}b")], ignore_case=True, error=GrammarError)
    line, caret = str(caught.value).splitlines()[-2:]
    assert line == "  a{,3}b" and line[caret.index("^")] == "{"


def test_the_states_of_all_regular_expressions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [re.compile(f"{word}x{{1,3}}") for word in ("ab", "cde", "f")]
    states = sum(len(compile_regex(pattern.pattern)) for pattern in patterns)
    monkeypatch.setattr(banned, "MOST_STATES", states)
    assert BannedPhrases(patterns).matcher
    monkeypatch.setattr(banned, "MOST_STATES", states - 1)
    e = refused(
        rf"of the first 3 of 3 .* have {states} states, more than {states - 1}; ", BannedPhrases, [*patterns, "a text"]
    )
    assert "the largest, re.compile('cdex{1,3}'), has" in str(e.value) and "ban texts as str" in str(e.value)


def test_a_thousand_that_are_too_many_are_refused_before_all_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banned, "MOST_STATES", 8_000)
    patterns = [re.compile(f"{'abcdefghij'[i % 10]}{i}\\w{{1,9}}") for i in range(1_000)]
    refused(r"the first \d of 1,000 banned regular expressions have 8,\d\d\d states", BannedPhrases, patterns)


def test_each_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the cache of compiled patterns holds."""
    compiled = list[str]()
    monkeypatch.setattr(banned, "compile_regex", lambda one: compiled.append(one) or compile_regex(one))
    phrases = BannedPhrases([re.compile(f"a{i}[bc]") for i in range(300)])
    assert phrases.matcher.longest == 5 and len(compiled) == 300 and len(phrases.matcher.names) == 300


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
        refused("Give other stop strings", stopped, left, Stops(strings), VOCABULARY, error=EmptyLanguageError)
        return
    guide = stopped(left, Stops(strings), VOCABULARY)
    assert allowed(guide) == expected
    assert_guide(guide)
    for phrases in (("aa",), ("ca", "b")):
        ban = BannedPhrases(phrases, across_prompt=False)
        texts = defined(automaton.accepts, strings, phrases)
        if texts and defined(automaton.accepts, ("no such string",), phrases):
            assert allowed(stopped(ban_module(left, ban), Stops(strings), VOCABULARY)) == texts
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
    refused(
        r"Give BannedPhrases\(..., whole_word=False\) beside stop strings",
        stopped,
        ban_module(left, BannedPhrases(["a"], whole_word=True)),
        Stops(("c",)),
        VOCABULARY,
    )
    guide = stopped(left, Stops(("c",)), VOCABULARY)
    refused("Give an output type beside stop strings", stopped, guide, Stops(("c",)), VOCABULARY)
