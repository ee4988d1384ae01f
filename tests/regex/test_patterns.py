"""The language of a regular expression is that of Outlines' engine, and no pattern hangs; free text around strings."""

import re
import time
from contextlib import suppress
from itertools import islice, product

import outlines_core
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlines_phi import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError, Vocabulary, limits
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides import FSMGuide
from outlines_phi.guides.guide import DONE
from outlines_phi.numerics.cache import forget_parts
from outlines_phi.regex.patterns import LARGER, compile_lexeme, compile_regex, free_text
from outlines_phi.regex.syntax_tree import RUST
from tests.regex.outlines_engine import difference, direct, whole

LITERALS = ("a", "b", "c", "0", "é", "日", r"\.", r"\n", " ", "-")
CLASSES = (
    "[ab]",
    "[^a]",
    "[a-c0]",
    ".",
    r"\d",
    r"\w",
    r"\s",
    r"\p{Lu}",
    r"[^\W\d]",
    "[[:alpha:]]",
    "[a-z&&[^b]]",
    r"[\]\-]",
    "[é-ü]",
    r"\x41",
    r"\u00e9",
)
REPEATS = ("*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "{1,2}?", "??")
FLAGS = ("(?i:", "(?s:", "(?s-i:", "(?P<name>", "(?U:")


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map("(?:{})".format)
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda branches: f"(?:{'|'.join(branches)})"),
        st.tuples(group, st.sampled_from(REPEATS)).map("".join),
        st.tuples(st.sampled_from(FLAGS), inner).map(lambda parts: f"{''.join(parts)})"),
    )


def patterns(atoms: tuple[str, ...] = LITERALS + CLASSES) -> st.SearchStrategy[str]:
    """Return random patterns over ``atoms``, with groups, alternatives, repeats and flags."""
    # One group name is enough, and a name cannot occur twice.
    return st.recursive(st.sampled_from(atoms), _extend, max_leaves=6).filter(lambda text: text.count("<name>") < 2)


def jumbles() -> st.SearchStrategy[str]:
    """Return random strings of the pieces that patterns are made of; most of them cannot be read."""
    pieces = [
        *r"ab()[]{}?*+|^$.,-&~:x12<>=!#\ " + "\n",
        "(?:",
        "(?i)",
        "(?s:",
        "(?x)",
        "(?P<n>",
        "[^",
        "[[:alpha:]",
        r"\p{L}",
        r"\b",
        r"\z",
        r"\]",
        r"\d",
        "{1,2}",
        "(?=",
        r"\1",
        "&&",
        "--",
    ]
    return st.lists(st.sampled_from(pieces), max_size=9).map("".join)


fuzz = settings(derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def is_prefix_free(automaton: ByteAutomaton) -> bool:
    """Return True if no member is the beginning of another (``automaton`` is trimmed)."""
    return not automaton.targets[automaton.accepting].any()


# --- the language -----------------------------------------------------------------------------------------------------


@fuzz
@given(patterns())
def test_up_to_the_end_of_the_text_outlines_has_the_same_language(pattern: str) -> None:
    assert difference(compile_regex(pattern), whole(pattern)) is None


@fuzz
@given(patterns())
def test_what_the_engine_accepts_by_itself_is_accepted(pattern: str) -> None:
    """All of it; and nothing else where no member is the beginning of another."""
    ours, theirs = compile_regex(pattern), direct(pattern)
    assert (theirs - ours).is_empty
    if is_prefix_free(ours):
        assert difference(compile_regex(pattern), theirs) is None


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
        ("(?i)σ|k", {"σ", "ς", "Σ", "k", "K", "\N{KELVIN SIGN}"}),
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
        ("^(yes|no)$", {"yes", "no"}),
        (r"\A\d{0}a\b$", {"a"}),
        (r"\bcat\b( \bdog\b)?", {"cat", "cat dog"}),
        (r"(?!ab)[ab]{2}(?<!bb)", {"aa", "ba"}),
        (r"(?=.*b)[ab]{2}", {"ab", "ba", "bb"}),
        (r"/\*(\*(?!/)|x){0,1}\*/", {"/**/", "/*x*/", "/***/"}),
        (r"(?i)(?<=^|,)k{1}$", {"k", "K", "\N{KELVIN SIGN}"}),
        (r"\b{start}a\b{end}|\<b\>", {"a", "b"}),
    ],
)
def test_members(pattern: str, members: set[str]) -> None:
    assert {text.decode() for text in islice(compile_regex(pattern).members(), 10)} == members


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
def test_a_pattern_that_the_engine_reads_has_its_language_and_most_others_are_refused(pattern: str) -> None:
    try:
        theirs = whole(pattern)
    except ValueError:
        # An assertion that the engine has not, or a branch that matches nothing; or `a|)(b`, read inside a group.
        if not re.search(r"\^|\\b|\(\?[=!<]|&&|--|\\z|\$", pattern):
            with pytest.raises(OutlinesPhiError):
                compile_regex(pattern)
    else:
        if re.search(r"(?<!\[)\^|\\b", pattern):
            return  # the engine has read what comes before the pattern
        with suppress(EmptyLanguageError, GrammarError if ")" in pattern else EmptyLanguageError):
            assert difference(compile_regex(pattern), theirs) is None


@pytest.mark.parametrize(
    ("pattern", "error", "column", "says"),
    [
        ("ab(c", GrammarError, 3, "never closed"),
        ("ab)c", GrammarError, 3, "no group to close"),
        ("a)(?:b", GrammarError, 2, "no group to close"),
        ("a[bc", GrammarError, 2, "never closed"),
        ("a[c-b]", GrammarError, 4, "wrong order"),
        (r"a[\d-z]", GrammarError, 5, "between two characters"),
        (r"a[\s&&[b", GrammarError, 7, "never closed"),
        ("a\\", GrammarError, 2, "escapes nothing"),
        ("*a", GrammarError, 1, "nothing to repeat"),
        ("a|+", GrammarError, 3, "nothing to repeat"),
        ("a{2", GrammarError, 2, r"\\{ to match a brace"),
        ("a{3,2}", GrammarError, 2, "at least 3"),
        ("(?q)a", GrammarError, 1, "flags are not known"),
        ("(?P<n>a)(?P<n>b)", GrammarError, 13, "redefinition"),
        ("a\ud800", GrammarError, 2, "surrogate"),
        ("a{2}{1,0}", GrammarError, 5, "at least 1"),
        ("a{1234567890123}", GrammarError, 2, "12 digits"),
    ],
)
def test_errors_point_at_the_fault(pattern: str, error: type[OutlinesPhiError], column: int, says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        compile_regex(pattern)
    where = str(raised.value).splitlines()
    assert where[1].strip() == f"line 1, column {column}"
    assert where[3].index("^") == column + 1


@pytest.mark.parametrize(
    ("pattern", "offset", "says"),
    [
        (r"(a)\1", 3, "Write out what the group matches.* a back-reference"),
        (r"b(?a)\w", 1, r"Use `\[A-Za-z0-9_\]` for `\\w`, or `\(\?-u:.* the flag a or L"),
        ("(?P<n>a)(?P=n)", 8, "a back-reference"),
        (r"ab\Z", 2, r"Use `\$`, .*whole output"),
        ("(?>a)", 0, "an atomic group"),
        (r"a\p{Foo}", 1, "the Unicode property 'Foo' .* not known"),
        (r"a\y", 1, "the escape"),
        ("(?-u:[^a])", 5, "bytes that are no characters"),
        ("(?<=a(?=b))c", None, "^Put the look-ahead behind the look-behind"),
    ],
)
def test_what_is_not_offered_has_a_remedy(pattern: str, offset: int | None, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says) as raised:
        compile_regex(pattern)
    assert offset is None or f" at offset {offset}, " in str(raised.value)


NOTHING = ["[a&&b]", "a[b&&c]", "[^\\x00-\\x{10FFFF}]", "a(?!a)a", "b^"]


@pytest.mark.parametrize(
    ("pattern", "error", "words"),
    [
        ("line one\nline (two", GrammarError, "line 2, column 6"),
        *((pattern, EmptyLanguageError, "matches nothing") for pattern in NOTHING),
    ],
)
def test_a_place_is_counted_in_lines_and_what_matches_nothing_is_said(
    pattern: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
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
        (r"[\s\S]{0,900}", 7_202),
        (r"(?s)(.{0,30}){0,20}", 4_802),
        ("[^,].{0,40},x", 411),
        ("(?i)[^a]{0,30}[^b]{0,30}", 482),
        (r"\s+a", 11),
        ("[😀-😂]b", 7),
    ],
)
def test_outlines_alone_would_not_come_back(pattern: str, states: int) -> None:
    """Each of these takes 2^N in its engine; the number of states is the least."""
    forget_parts()
    started = time.perf_counter()
    assert len(compile_regex(pattern)) == states
    assert time.perf_counter() - started < 10


def spent(started: float) -> float:
    """Return the seconds of the processor since ``started``, by a clock of loops, thirty a second."""
    now = time.process_time()
    sum(i * i for i in range(1_000_000))
    return (now - started) * min(1.0, 0.03 / (time.process_time() - now))


@pytest.mark.parametrize(
    "pattern",
    [
        r"\w{0,500}",
        r"[\w .,'-]{1,200}",
        r"<think>[\s\S]{0,2000}</think>\n(yes|no)",
        "((a{1,200}){0,200})+",
        "[a-z]{1,99999}",
    ],
)
def test_counts_are_no_copies(pattern: str) -> None:
    """Each takes less than a second, of which its reading has a part that does not grow with the bounds."""
    forget_parts()
    started = time.process_time()
    assert compile_regex(pattern) is compile_regex(pattern)
    assert spent(started) < 1


@pytest.mark.parametrize("pattern", ["(a|b)*a(a|b){20}", "(?x) (a|b)*a (a|b){20}", "(a|b)*a(a|b){10,1000000}"])
def test_exponential_patterns_are_refused_by_their_work(pattern: str) -> None:
    started = time.process_time()
    with pytest.raises(UnsupportedError, match=r"^Lower .*limits\(states=.* needs more than 20,000 states\.$"):
        compile_regex(pattern)
    assert spent(started) < 5


def test_the_number_of_states_decides() -> None:
    assert len(compile_regex("(a|b)*a(a|b){12}")) == 8_193
    with pytest.raises(UnsupportedError, match="more than 10 states"), limits(states=10):
        compile_regex(f"a{{{10 * LARGER}}}")


@pytest.mark.parametrize("pattern", ["(" * 5_000 + "a" + ")" * 5_000, "(?:" * 300 + "a" + ")?" * 300])
def test_groups_inside_thousands_of_others(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match=r"limits\(nesting=\d+\).* groups inside each other .* more than 200"):
        compile_regex(pattern)
    with limits(nesting=240):
        assert compile_regex("(" * 240 + "a" + ")" * 240).accepts(b"a")


@pytest.mark.parametrize(
    ("pattern", "alone"),
    [
        (r"a\b-", True),
        (r"/\*(\*(?!/)|[^*])*\*/", True),
        (r"(?!ab)[ab]{2}", True),
        (r"a(?!$)b", True),
        (r"a(?=b)", False),
        (r"(?<!a)b", False),
        (r"(?!if)[a-z]+", False),
        (r"^a", False),
        (r"if\b", False),
    ],
)
def test_a_lexeme_does_not_depend_on_the_text_around_it(pattern: str, alone: bool) -> None:
    if alone:
        assert compile_lexeme(pattern) is compile_regex(pattern, RUST)
    else:
        with pytest.raises(UnsupportedError, match="^Leave out what looks beyond the lexeme"):
            compile_lexeme(pattern)


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
