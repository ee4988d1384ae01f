r"""Terminals of Lark match what Python's patterns do; a lazy quantifier ends a lexeme where Python ends it."""

import random
import re
import unicodedata
from functools import cache
from itertools import product

import pytest

from outlines_phi import GrammarError, UnsupportedError
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides import read_grammar
from outlines_phi.guides.grammar.grammar import Terminal
from outlines_phi.guides.grammar.lexing.lexeme_automaton import automaton_of
from outlines_phi.regex.patterns import compile_regex, literal


def compiled(pattern: str) -> ByteAutomaton:
    return automaton_of(Terminal("T", pattern, dialect="python"))


def texts(alphabet: str, longest: int) -> list[str]:
    return ["".join(word) for length in range(longest + 1) for word in product(alphabet, repeat=length)]


GREEDY = [
    (r"a", "ab\n", 3),
    (r".b", "ab\n", 3),
    (r"(?s:.)b", "ab\n", 3),
    (r"[^a]+", "ab\n", 4),
    (r"[a-c]{2,3}|d{2}", "abcd", 4),
    (r"(?:ab|a(b)(?P<n>c))*a{0,1}c", "abc", 6),
    (r"(?i:sel)e", "sSeElL", 4),
    (r"(?i:s(?-i:e))", "sSeE", 2),
    (r"(?i)s(?s:.)", "sSx\n", 2),
    (r"(?x: a  b # comment" + "\n c)", "abc #", 4),
    (r"(?m:a.)", "a\n", 3),
    (r"\d\s\w\D\S\W", "1 a", 6),
    (r"[\d\s]", "1 a\x1c\x1f\x0b", 1),
    (r"[^\W\d]\w*", "aé1_-", 3),
    (r"(?a:\w\d)", "aé1_٣", 2),
    (r"[]\-^[]+", "]-^[\\", 3),
    (r"\.\*\(\)\{\}\|\#\&\~", ".*(){}|#&~", 1),
    (r"[.*#&~^-]+", ".*#&~^-a", 2),
    (r"\x41\u00e9\N{BULLET}?", "Aé•", 3),
    (r"a{2}", "a", 4),
    (r"/\*(?:\*(?!/)|[^*])*\*/", "/*a", 6),
    (r'"(?!"")[^"]"', '"a', 4),
    (r"a\b-|(?=a)ab(?<!bb)", "ab-", 3),
    (r"a{2,}", "a", 4),
    (r"a{,2}b", "ab", 4),
    (r"a{,}b|a{", "ab{,}", 4),
    (r"(?ai:k)[\W]?", "kK\u212aé", 2),
    (r'"([^"\\\x00-\x1f]|\\["\\/n])*"', '"\\n\x1f', 5),
    (r"[\ud800-\udfffa]", "ab\ue000", 1),
    (r"[^\ud800-\udfff]", "ab\ue000", 1),
]


@pytest.mark.parametrize(("pattern", "alphabet", "longest"), GREEDY, ids=lambda row: repr(row))
def test_the_same_texts_as_python(pattern: str, alphabet: str, longest: int) -> None:
    automaton, oracle = compiled(pattern), re.compile(pattern)
    found = [automaton.accepts(text.encode()) for text in texts(alphabet, longest)]
    assert found == [oracle.fullmatch(text) is not None for text in texts(alphabet, longest)]
    assert any(found) or pattern.startswith(r"\.")  # no comparison of nothing with nothing


def test_every_character_of_a_named_class_is_as_in_python() -> None:
    """Of those that Python's version of Unicode has."""
    for pattern in (r"\d", r"\s", r"\w", r"\D", r"\S", r"\W", r"[^\w]", r"[\W\d]", r"(?i:k)", r"(?i:[r-t])", r"."):
        automaton, oracle = compiled(pattern), re.compile(pattern)
        for code in range(0x600):
            if unicodedata.category(chr(code)) == "Cn":
                continue
            assert automaton.accepts(chr(code).encode()) is (oracle.fullmatch(chr(code)) is not None), (pattern, code)


LAZY = [
    (r'".*?"', '"a\n'),
    (r'".+?"', '"a\n'),
    (r'".{2,}?"', '"a\n'),
    (r"[^;]*?;", "a;\n"),
    (r"/\*(.|\n)*?\*/", "/*\n"),
    (r"(?s:/\*.*?\*/)", "/*\n"),
    (r"'''(?s:.*?)'''", "'a"),
    (r"a(?s:.*?)abab", "ab"),
    (r"a(?s:.*?)abca", "abc"),
    (r'".*?"|\'.*?\'', "\"'a"),
    (r'".*?(?<!\\)(\\\\)*?"', '"\\a'),
    (r'"(.|\n)*?(?<!\\)(\\\\)*?"', '"\\\n'),
    (r'".*?(?<!\\)"', '"\\a'),
    (r'"(?:[^"\\]|\\.)*?"', '"\\a'),
    (r"a(?:[^b]|bb)*?ab", "abc"),
    (r".*?(?:ab|ba)", "abc"),
    (r"(?i:a.*?ab)", "aAb"),
    (r"ab??", "ab"),
    (r"a+?", "ab"),
    (r"ab{1,3}?", "ab"),
    (r"ba{1,3}?b", "ab"),
    (r"a?b(?:.|;)*?ca", "abc"),
    (r"(?i:a(?s:.)*?b)", "aAb"),
    (r".*?(END|FI)", "ENDFI"),
    (r"a+.*?(?:b|cc)", "abc"),
    (r"#+.*?#", "#a"),
    (r"(?:<.*?>)+", "<>a"),
    (r"(?:a.*?(?:b|c)|d)", "abcd"),
    (r"(?i:a.*?b)c", "aBbc"),
    (r'"""(?s:.*?)(?<!\\)(\\\\)*?"""', '"\\'),
    (r"-(?!\*)a?.*?-", "-*a"),
]


@pytest.mark.parametrize(("pattern", "alphabet"), LAZY, ids=[row[0] for row in LAZY])
def test_a_lazy_quantifier_ends_where_python_ends(pattern: str, alphabet: str) -> None:
    automaton, oracle = compiled(pattern), re.compile(pattern)
    accepts = cache(automaton.accepts)  # texts begin alike
    found = 0
    for text in texts(alphabet, {2: 11, 3: 8, 4: 6}.get(len(alphabet), 5)):
        end = max((end for end in range(len(text) + 1) if accepts(text[:end].encode())), default=None)
        match = oracle.match(text)
        assert end == (match and match.end()), text
        found += match is not None
    assert found


def random_pattern(rng: random.Random) -> str:
    """Return a pattern over ``abc`` with a lazy quantifier near its end."""
    before = "".join(rng.choice(["a", "b", "[ab]", ".", "a?b"]) for _ in range(rng.randint(0, 2)))
    repeated = rng.choice([".", "[^c]", r"(?:.|\n)", "(?s:.)", "[ab]", "(?:ab|c)", "(?:a|b.)", "(?:a|ab)"])
    after = rng.choice(["", "c", "ab", "aba", "abab", "(?:ab|ca)", "[ab]c", "(?:a|bc)"])
    return before + repeated + rng.choice(["*?", "+?", "{2,}?", "??", "{1,3}?"]) + after


def test_random_patterns() -> None:
    rng, samples, taken = random.Random(7), texts("abc", 5) + texts("ab\n", 4), 0
    for pattern in (random_pattern(rng) for _ in range(120)):
        try:
            automaton = compiled(pattern)
        except (GrammarError, UnsupportedError):
            continue
        taken += 1
        for text in samples:
            ends = [end for end in range(len(text) + 1) if automaton.accepts(text[:end].encode())]
            match = re.match(pattern, text)
            assert ends[-1:] == ([match.end()] if match else []), (pattern, text)
    assert taken > 70


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"a(?=b)", "looks beyond the lexeme.*at offset 1"),
        (r"(?!if)[a-z]+", "looks beyond"),
        (r'"(?!"").*"', "looks beyond"),
        (r"^yes$", "looks beyond"),
        (r"a$", "looks beyond"),
        (r"\b(cat|dog)\b", "a word ends where a name would"),
        (r"(a)\1", "a back-reference at offset 3"),
        (r"(a)?(?(1)b|c)", "a conditional group"),
        (r"a*", "matches the empty text"),
        (r"a*?", "matches the empty text"),
        (r"(", "cannot be read"),
        (r"[z-a]", "cannot be read"),
        (r"(?:" * 3000 + "a" + ")" * 3000, "nested too deeply"),
        ("\ud800", "surrogate"),
        (r"\ud800", "matches nothing"),
        (r"a.*?bc?", "may end in several places"),
        (r"(?:a|ab)*?c(?i:d)", "may end in several places"),
        (r"(.*?)a.*?bc?", "may end in several places"),
        (r"(?:a.*?b){2}", "more behind it"),
        (r"(?:a.*?b|c)d", "more behind it"),
        (r"a.*?b(?!c)", "looks ahead behind it"),
        *((pattern, "atomic group|possessive|cannot be read") for pattern in ("(?>a|b)c", "a++b", "a*+b")),
    ],
)
def test_what_is_refused(pattern: str, words: str) -> None:
    with pytest.raises((GrammarError, UnsupportedError), match=words):
        compiled(pattern)


def test_flags_in_the_middle_have_advice() -> None:
    with pytest.raises(GrammarError, match="behind the closing slash"):
        read_grammar('start: A\nA: "b" /(?i)a/')


@pytest.mark.parametrize("text", ["a.b", "\\", "[a]{2}", "é•\U0001f600", "\n\t\x01", "# & ~-", "(?i:x)"])
def test_a_literal_matches_itself_only(text: str) -> None:
    assert list(compile_regex(literal(text)).members()) == [text.encode()]


def test_a_literal_without_case() -> None:
    automaton = compile_regex(literal("Or.", ignore_case=True))
    assert {member.decode() for member in automaton.members()} == {"or.", "oR.", "Or.", "OR."}
