"""The language of a regular expression is that of Outlines' engine, and no pattern hangs."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from itertools import islice

import outlines_core
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.errors import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError
from outlines_phi.format_limits import limits
from outlines_phi.guides import regex, regex_build
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import DONE
from outlines_phi.guides.regex import compile_regex
from outlines_phi.numerics.cache import forget_parts
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.guides.patterns import jumbles, patterns

fuzz = settings(derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def direct(pattern: str) -> ByteAutomaton:
    """Return what the engine makes of ``pattern`` itself: no guard, no end."""
    return regex._automaton(regex_build.build(pattern)).trim()


def is_prefix_free(automaton: ByteAutomaton) -> bool:
    """Return whether no member is the beginning of another (``automaton`` is trimmed)."""
    return not automaton.targets[automaton.accepting].any()


# --- the language -----------------------------------------------------------------------------------------------------


@fuzz
@given(patterns())
def test_up_to_the_end_of_the_text_the_engine_has_the_same_language(pattern: str) -> None:
    """Whatever the guard is. (The engine refuses `\\z` at the very beginning, so an `a` comes before it, and is read.)"""
    theirs = direct(f"a(?:{pattern})\\z")
    after = ByteAutomaton(theirs.targets, theirs.byte_class, theirs.advance(theirs.start, b"a"), theirs.accepting)
    assert compile_regex(pattern).witness(after.trim()) is None


@fuzz
@given(patterns(), st.sampled_from([("a.", True), (regex._PRIVATE[:70], False), ("", True)]))
def test_the_language_does_not_depend_on_the_guard(pattern: str, literal: tuple[str, bool]) -> None:
    guard = regex.Guard.literal(*literal) if literal[0] else regex.Guard("(?s:.)", "a")
    built = regex_build.build(guard.before(pattern))
    assert compile_regex(pattern).witness(regex._automaton(built, guard.text.encode())) is None


@fuzz
@given(patterns())
def test_what_the_engine_accepts_by_itself_is_accepted(pattern: str) -> None:
    """All of it; and nothing else where no member is the beginning of another."""
    ours, theirs = compile_regex(pattern), direct(pattern)
    assert (theirs & ours.complement()).is_empty
    if is_prefix_free(ours):
        assert ours.witness(theirs) is None


TOKENS = ["<eos>", *"abc0.- \n", "é", "日", "ab", "bc", "aa", "0a", "éa", "A", "AB", "aé"]
VOCABULARY = Vocabulary.from_tokens(TOKENS, 0)


@fuzz
@given(patterns())
def test_what_outlines_allows_is_allowed_token_by_token(pattern: str) -> None:
    """Over tokens of several bytes too `outlines_core.Index` allows no more than we; as much where members are prefix-free."""
    automaton = compile_regex(pattern)
    try:
        index = outlines_core.Index(pattern, outlines_core.Vocabulary(0, {t: [v] for v, t in enumerate(TOKENS) if v}))
        guide = FSMGuide.from_automaton(automaton, VOCABULARY)
    except ValueError:
        return  # some branch cannot be written with these tokens, which the engine refuses
    rows, alive = index.get_transitions(), set(index.get_final_states())
    while more := {state for state, row in rows.items() if alive & set(row.values())} - alive:
        alive |= more
    pairs = [(guide.start, index.get_initial_state())]
    for state, theirs in pairs:
        # The engine also allows tokens that lead into dead ends.
        allowed = {v: after for v, after in rows.get(theirs, {}).items() if v and after in alive}
        targets = {v: guide.advance(state, v) for v in range(1, len(TOKENS))}
        assert all(targets[v] for v in allowed)
        assert guide.advance(state, 0) == DONE or not index.is_final_state(theirs)
        if is_prefix_free(automaton):
            assert {v for v, target in targets.items() if target} == set(allowed)
        pairs += {(targets[v], after) for v, after in allowed.items()} - set(pairs)


ASCII = ("a", "b", "c", "0", r"\.", "[ab]", "[^a]", "[a-c0]", "[^b-c]")


@fuzz
@given(patterns(ASCII).filter(lambda text: "(?" not in text.replace("(?:", "").replace("(?P<name>", "")))
def test_interegular_agrees_on_ascii(pattern: str) -> None:
    """An independent implementation, compared by walking both automata together."""
    import interegular

    fsm = interegular.parse_pattern(pattern).to_fsm()
    automaton = compile_regex(pattern)
    pairs = {(automaton.start, fsm.initial)}
    queue = list(pairs)
    for state, theirs in queue:
        assert bool(automaton.accepting[state]) == (theirs in fsm.finals)
        for byte in range(128):
            symbol = fsm.alphabet[chr(byte)]
            pair = (automaton.advance(state, bytes([byte])), fsm.map.get(theirs, {}).get(symbol))
            if (pair[1] is None or not fsm.islive(pair[1])) or pair[0] == 0:
                assert pair[0] == 0 and (pair[1] is None or not fsm.islive(pair[1]))
            elif pair not in pairs:
                pairs.add(pair)
                queue.append(pair)


@pytest.mark.parametrize(
    ("pattern", "members"),
    [
        ("a|ab", {"a", "ab"}),
        ("a{1,2}?", {"a", "aa"}),
        ("a(bc)?", {"a", "abc"}),
        (r"1(\.5)?", {"1", "1.5"}),
        ("é?", {"", "é"}),
        ("(?i)ß|k", {"ß", "ẞ", "k", "K", "\N{KELVIN SIGN}"}),
        ("", {""}),
        ("abc$", {"abc"}),
        ("a?$", {"", "a"}),
        ("(?x) a b # not this", {"ab"}),
        ("(?x) a (#)\n b) c", {"abc"}),
        ("(?x: a ) b", {"a b"}),
        ("(?m)a\\n^b", {"a\nb"}),
        ("(?m)a$\\nb", {"a\nb"}),
        ("a(?-u:\\b)", {"a"}),
        ("x*[a&&b]|c", {"c"}),
    ],
)
def test_members(pattern: str, members: set[str]) -> None:
    assert {text.decode() for text in islice(compile_regex(pattern).members(), 10)} == members


def test_classes_are_unicode() -> None:
    digits = compile_regex(r"\d")
    assert digits.accepts("٣".encode()) and not digits.accepts(b"\xd9")
    assert compile_regex(r"\p{Greek}").accepts("λ".encode())
    assert not compile_regex("[^x]").accepts(b"\xff"), "no text is outside UTF-8"


PYTHON = ("a", "b", "c", "0", "é", "日", r"\.", "[ab]", "[^a]", "[a-c0]", ".", r"\d", "[é-ü]", r"\x41", r"\u00e9")


@fuzz
@given(patterns(PYTHON), st.lists(st.sampled_from("abcABC0٣é日.\n\r"), max_size=5).map("".join))
def test_python_agrees(pattern: str, text: str) -> None:
    if "(?U:" in pattern or "(?i:" in pattern:
        return  # flags that Python has not, or reads otherwise outside ASCII
    automaton = compile_regex(pattern)
    assert automaton.accepts(text.encode()) == bool(re.fullmatch(pattern, text))
    for member in islice(automaton.members(), 20):
        assert re.fullmatch(pattern, member.decode())


# --- what cannot be read ----------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=600)
@given(jumbles())
def test_a_pattern_is_refused_if_and_only_if_the_engine_refuses_it(pattern: str) -> None:
    try:
        regex_build.build(pattern)
    except ValueError as error:
        # The one leniency: `$` where the empty text matches, which the engine cannot place.
        if "start state" in str(error) and not re.search(r"\^|\\b", pattern):
            return
        with pytest.raises(OutlinesPhiError):
            compile_regex(pattern)
    else:
        # The engine does not see an impossible branch behind a match of higher priority, as in `|a\\zb`.
        with suppress(EmptyLanguageError):
            compile_regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "error", "column", "says"),
    [
        ("ab(c", GrammarError, 3, "never closed"),
        ("ab)c", GrammarError, 3, "no group to close"),
        ("a)(?:b", GrammarError, 2, "no group to close"),
        ("a[bc", GrammarError, 2, "never closed"),
        ("a[c-b]", GrammarError, 2, "not known"),
        (r"a\p{Foo}", GrammarError, 2, "not known"),
        (r"a\y", GrammarError, 2, "not known"),
        ("a\\", GrammarError, 2, "escapes nothing"),
        ("*a", GrammarError, 1, "nothing to repeat"),
        ("a|+", GrammarError, 3, "nothing to repeat"),
        ("a{2", GrammarError, 2, r"\\{ to match a brace"),
        ("a{3,2}", GrammarError, 2, "at least 3"),
        ("(?q)a", GrammarError, 2, "."),
        ("(?P<n>a)(?P<n>b)", GrammarError, 13, "redefinition"),
        ("a\ud800", GrammarError, 2, "surrogate"),
        ("a(?=b)", UnsupportedError, 2, "look-around.*intersect"),
        ("a(?<!b)", UnsupportedError, 2, "look-around"),
        (r"(a)\1", UnsupportedError, 4, "back-reference"),
        (r"b(?a)\w", UnsupportedError, 2, r"the flag a or L .*use `\[A-Za-z0-9_\]` for `\\w`, or `\(\?-u:"),
        ("(?P<n>a)(?P=n)", UnsupportedError, 9, "back-reference"),
        (r"ab\Z", UnsupportedError, 3, "whole output"),
        ("^abc", UnsupportedError, 1, "whole output"),
        (r"a\bb", UnsupportedError, 2, "word boundary"),
        ("(?>a)", UnsupportedError, 1, "atomic"),
    ],
)
def test_errors_point_at_the_fault(pattern: str, error: type[OutlinesPhiError], column: int, says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        compile_regex(pattern)
    where = str(raised.value).splitlines()
    assert where[1].strip() == f"line 1, column {column}"
    assert where[3].index("^") == column + 1


def test_lines_are_counted() -> None:
    with pytest.raises(GrammarError, match="line 2, column 6"):
        compile_regex("line one\nline (two")


@pytest.mark.parametrize("pattern", ["[a&&b]", "a[b&&c]", "[^\\x00-\\x{10FFFF}]"])
def test_a_pattern_that_matches_nothing(pattern: str) -> None:
    with pytest.raises(EmptyLanguageError, match="matches nothing"):
        compile_regex(pattern)


# --- what could take for ever -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        (r"A[A-Z]{0,200}\.", 204),
        (r"[A-Z][^.\n]{0,200}\.", 1_604),
        (r'"([^"\\]|\\["\\]){0,200}"', 1_804),
        (r"The [a-zA-Z ]{0,200}\.", 207),
        ("(?s:.){0,60}b", 543),
        (r'"[^"]{0,300}"', 2_404),
        (r"[\s\S]{0,900}", 7_208),
        (r"(?s)(.{0,30}){0,20}", 4_802),
        ("[^,].{0,40},x", 411),
        ("(?i)[^a]{0,30}[^b]{0,30}", 7_442),
    ],
)
def test_the_engine_alone_would_not_come_back(pattern: str, states: int) -> None:
    """Each of these takes 2^N in the engine itself; the number of states shows that nothing of the guard is left."""
    forget_parts()
    started = time.perf_counter()
    assert len(compile_regex(pattern)) == states
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("pattern", ["(a|b)*a(a|b){20}", "(?x) (a|b)*a (a|b){20}", "(a|b)*a(a|b){10,1000000}"])
def test_exponential_patterns_are_refused_by_their_states(pattern: str) -> None:
    with pytest.raises(
        UnsupportedError, match=r"^Lower .* more than 3,000 states: \d,\d\d\d where its repeats are cut to 1\d\.$"
    ):
        compile_regex(pattern, states=3_000)


def test_the_number_of_states_decides() -> None:
    states = len(compile_regex("(a|b)*a(a|b){12}"))
    assert len(compile_regex("(a|b)*a(a|b){12}", states=states)) == states
    with pytest.raises(UnsupportedError, match="more than 4,000"):
        compile_regex("(a|b)*a(a|b){12}", states=4_000)


def test_no_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: object, **options: object) -> object:
        assert "timeout" not in options
        return subprocess_run(*arguments, **options)

    subprocess_run = regex_build.subprocess.run
    monkeypatch.setattr(regex_build.subprocess, "run", run)
    with pytest.raises(UnsupportedError, match="states"):
        compile_regex("(a|b)*a(a|b){20}", states=1_001)


def test_patterns_with_many_places_per_state_are_stopped() -> None:
    """There are only as many states as places in this one, but each state is a set of most of them."""
    remedies = r"^Lower the bounds .*\[\^<\]\{0,1000\}<`.* `\[\\s\\S\]\*` with max_new_tokens=.* JSON schema.*\. The automaton of"
    with pytest.raises(UnsupportedError, match=rf"{remedies} .* takes too much memory, of a bound of 128 MB\.$"):
        compile_regex("((a{1,200}){0,200})+", megabytes=128)


def test_what_was_built_apart_is_the_same() -> None:
    pattern = "(a|b)*a(a|b){3}"
    here, apart = regex_build.build(pattern), regex_build.build_apart([(3, pattern)], states=99, megabytes=2048)
    assert regex._automaton(here).witness(regex._automaton(apart)) is None
    with pytest.raises(ValueError, match="Failed to build DFA"):
        regex_build.build_apart([(1, "a(")], states=99, megabytes=2048)


def test_only_suspicious_patterns_are_built_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    apart: list[str] = []

    def record(versions: list[tuple[int, str]], **_: object) -> regex_build.Transitions:
        apart.append(versions[-1][1])
        return regex_build.build(versions[-1][1])

    monkeypatch.setattr(regex_build, "build_apart", record)
    forget_parts()
    for pattern in [r"[a-z]{1,30}@[a-z]{1,30}", r"([a-z]{1,9} ){0,9}", '"[^"]{0,300}"', "(a|b){40}"]:
        compile_regex(pattern)
    assert not apart
    compile_regex("(a|b)*a(a|b){13}")
    assert len(apart) == 1
    forget_parts()


def test_compiled_patterns_are_kept() -> None:
    assert compile_regex("a{2}b") is compile_regex("a{2}b")


@pytest.mark.parametrize("pattern", ["(" * 5_000 + "a" + ")" * 5_000, "(?:" * 300 + "a" + ")?" * 300])
def test_groups_inside_thousands_of_others(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match=r"limits\(nesting=\d+\).* groups inside each other .* more than 200"):
        compile_regex(pattern)
    with limits(nesting=240):
        assert compile_regex("(" * 240 + "a" + ")" * 240).accepts(b"a")
