"""The texts of a guidance grammar are those of llguidance, every one of a few bytes."""

import itertools
import re

import pytest

from outlines_phi import EmptyLanguageError, GrammarError
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides.guidance.guidance_grammar import GuidanceGrammar
from outlines_phi.guides.guidance.guidance_rules import GuidanceRules
from outlines_phi.regex.patterns import compile_regex
from tests.guides.guidance.oracle import BYTES, HEADER, accepted, random_grammar
from tests.guides.walking import ended

ABC = b"abc"

REGULAR = [
    'start: A "b"\nA: /[ab]+/',
    'start: A "c"\nA: /[ab]*/',
    'start: ("a" | "ab") "b"',
    'start: A "b"\nA: "a" | "ab"',
    'start: x "b"\nx[lazy]: /[ab]*c/',
    'start: x "b"\nx[lazy]: /a*/',
    'start: x "c"\nx[stop="c"]: /[abc]*/',
    'start: x "cb"\nx[stop="c"]: /[abc]*/',
    'start: x\nx[stop="c"]: /[abc]*/',
    "start: x\nx[stop=/b|c/]: /[abc]*/",
    'start: x "b"\nx[suffix="c"]: /[abc]*/',
    'start: x "b"\nx[suffix=/[cb]/]: /a*/',
    'start: (x | "ab") "c"\nx[lazy]: /a/',
    'start: (x | A) "c"\nx[lazy]: /ab/\nA: /[ab]+/',
    'start: (A "b" | B "c")\nA: /a+/\nB: /a/',
    "start: A*\nA: /a?/",
    'start: "a" |',
    'start: A{2,3} "b"\nA: /a/',
    'start: A{2,3} "b"\nA: /a+/',
    'start: A? "a" "b"\nA: /a/',
    'start: (A | B) "b"\nA: /a/\nB: /ac/',
    "start: A B\nA: /a(bc)?/\nB: /b+/",
    'start: "a" | %lark {\nstart: B+\nB: "b"\n} "c"',
    'start: A\nA: %regex {"substring_chunks": ["a", "bc", "a"]}',
    'start: "A"i "b".."c" [ "c" ] A~2 | ""\nA: ("a" "b"){,1} "c"',
]
RECURSIVE = [
    'start: e\ne: "a" e "b" | "c"',
    'start: e\ne: A | e "b" A\nA: /a+/',
    'start: e\ne: A | "b" e "c"\nA: /a(aa)?/',
    'start: e\ne: x | "a" e "b"\nx[suffix="c"]: /c*b/',
    'start: e\ne: f | "a" | "b" e\nf: e',
    "start: e\ne: A | B e\nA: /[ab]/\nB: /[bc]/",
    'start: e\ne: x | y e "c"\nx[lazy]: /[ab]/\ny[lazy]: /b/',
]


def texts_of(grammar: str, longest: int) -> set[tuple[int, ...]]:
    try:
        return ended(GuidanceGrammar(grammar).guide(BYTES), longest, tokens=ABC)
    except EmptyLanguageError:
        return set()


@pytest.mark.parametrize("rules", REGULAR + RECURSIVE)
def test_texts_are_those_of_llguidance(rules: str) -> None:
    pytest.importorskip("llguidance")
    assert texts_of(HEADER + rules, 5) == accepted(HEADER + rules, ABC, 5)


@pytest.mark.parametrize(
    "rules",
    [
        'start: "a" %json {"type": "integer", "minimum": 1, "maximum": 20} "b"',
        'start: ("a" j)+ "b"?\nj: %json {"enum": [1, 12, [2]], "x-guidance": {"whitespace_flexible": false}}',
        'start: j | A "," j\nj: %json {"const": [1], "x-guidance": {"whitespace_flexible": false}}\nA: /[ab]+/',
    ],
)
def test_texts_around_json_values_are_those_of_llguidance(rules: str) -> None:
    pytest.importorskip("llguidance")
    found = ended(GuidanceGrammar(HEADER + rules).guide(BYTES), 5, tokens=b"ab12[],")
    assert found == accepted(HEADER + rules, b"ab12[],", 5) and found


@pytest.mark.parametrize("recursive", [False, True])
def test_texts_of_random_grammars_are_those_of_llguidance(recursive: bool) -> None:
    pytest.importorskip("llguidance")
    compared = written = 0
    for seed in range(250):
        grammar = random_grammar(seed, recursive=recursive)
        try:
            found = texts_of(grammar, 4)
        except GrammarError:
            assert recursive
            continue
        assert found == accepted(grammar, ABC, 4), grammar
        compared, written = compared + 1, written + bool(found)
    assert compared > (120 if recursive else 249) and written > 100


def test_a_regular_expression_of_the_same_parts_has_other_texts() -> None:
    """The power of the comparison: parts that are put together without regard to the longest lexeme."""
    pytest.importorskip("llguidance")
    for rules, pattern in [(REGULAR[0], "[ab]+b"), (REGULAR[2], "(a|ab)b"), (REGULAR[17], "a+a+(a+)?b")]:
        expected = accepted(HEADER + rules, ABC, 5)
        assert {text for text in texts_of(HEADER + f"start: A\nA: /{pattern}/", 5)} > expected


@pytest.mark.parametrize("seed", range(40))
def test_what_reads_a_text_agrees_with_what_guides_it(seed: int) -> None:
    for recursive in (False, True):
        grammar = random_grammar(seed, recursive=recursive)
        try:
            guided = texts_of(grammar, 4)
            read = GuidanceGrammar(grammar) if guided else None
        except GrammarError:
            continue
        every = [bytes(text).decode() for text in texts_of(HEADER + "start: A\nA: /[abc]*/", 4)]
        assert {text for text in every if read and read.holds(text)} == {bytes(text).decode() for text in guided}


APART = [
    ('start: e\ne: A | "(" e ")" | e B\nA: /a+/\nB: /aab/', "A and B may go on, or end within, 'aa'"),
    ("start: e\ne: x | B e\nx[lazy]: /[ab]/\nB: /[bc]/", "B and x both match 'b'"),
    ('start: e\ne: A | e "."\nA: /[0-9]+(\\.[0-9]+)?/', "A may go on, or end within, '0.'"),
    ('start: e\ne: x | "bc" e\nx[lazy]: /b/', 'x and "bc"'),
]


@pytest.mark.parametrize(("rules", "message"), APART)
def test_recursion_beside_lexemes_that_engines_cut_differently_is_refused(rules: str, message: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)) as caught:
        GuidanceGrammar(HEADER + rules)
    assert caught.value.position is not None


def test_what_never_ends_is_said() -> None:
    with pytest.raises(EmptyLanguageError, match="Let the parts of the grammar differ in their characters"):
        GuidanceGrammar(HEADER + 'start: A "s"\nA: /[a-z]+/')
    with pytest.raises(EmptyLanguageError, match="derives no text"):
        GuidanceGrammar(HEADER + 'start: e\ne: "a" e')


def test_lexemes_that_are_written_alike_are_one() -> None:
    assert len(GuidanceRules(HEADER + 'start: "a" A "a" B\nA: /a/\nB: "a"').lexemes) == 1
    assert len(GuidanceRules(HEADER + 'start: "a" x\nx[lazy]: "a"').lexemes) == 2


def places(automaton: ByteAutomaton, texts: list[bytes]) -> list[int]:
    assert automaton.positions is not None
    return [int(automaton.positions[automaton.advance(automaton.start, text)]) for text in texts]


@pytest.mark.parametrize(
    ("rules", "pattern"),
    [
        ('start: "a" x ",b" y "."\nx[capture]: /[bc]+/\ny[capture]: /c{2}/', "a(?P<x>[bc]+),b(?P<y>c{2})[.]"),
        ('start: two "," two\ntwo: x y\nx[capture]: "a"\ny[capture]: /b+/', "(?P<a>a)(?P<b>b+),(?P<c>a)(?P<d>b+)"),
        ('start: x\nx[capture]: y ("," y)*\ny[capture]: /[ab]+/', ""),
        ('start: x | y\nx[capture]: "a"\ny[capture]: "b"', ""),
        ('start: "a" x "b"?\nx[capture, suffix=";"]: /b*/', "a(?P<x>b*)(?:;b?)"),
        ('start: x ",a" y\nx[capture]: /[ab]*/\ny[capture]: /b+/', "(?P<x>[ab]*),a(?P<y>b+)"),
        ('start: x ",a" /,+/ y\nx[capture, stop=","]: /[ab]*/\ny[capture]: /b?/', "(?P<x>[ab]*),a,+(?P<y>b?)"),
    ],
)
def test_captures_in_turn_are_positions(rules: str, pattern: str) -> None:
    """As those of the named groups that say the same, where a text can be read in one way."""
    found = GuidanceGrammar(HEADER + rules).automaton_alone
    assert found is not None
    if not pattern:
        assert found.positions is None
        return
    named = compile_regex(pattern)
    assert found.witness(named) is None
    letters = itertools.chain(*(itertools.product(b"abc,.;", repeat=n) for n in range(7)))
    texts = [text for text in map(bytes, letters) if named.advance(named.start, text)]
    if "suffix" in rules:  # it ends the capture
        assert places(found, [b"abb", b"abb;", b"abb;b"]) == [0, 1, 1]
    assert places(found, texts) == places(named, texts)
