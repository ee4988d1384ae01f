r"""Translated patterns match what Python's do; a lazy quantifier ends a lexeme where Python ends it."""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache
from itertools import product

import pytest

from outlines_phi.guides.grammar.notation.dialect import Untranslatable, literal, translate
from outlines_phi.regex.patterns import compile_regex


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
    (r"(?:a{1}?b??)+?", "", 0),
    (r"a|", "", 0),
    (r'"([^"\\\x00-\x1f]|\\["\\/n])*"', '"\\n\x1f', 5),
    (r"[\ud800-\udfffa]", "ab\ue000", 1),
    (r"[^\ud800-\udfff]", "ab\ue000", 1),
]


@pytest.mark.parametrize(
    ("pattern", "alphabet", "longest"), [row for row in GREEDY if row[2]], ids=lambda row: repr(row)
)
def test_the_same_texts_as_python(pattern: str, alphabet: str, longest: int) -> None:
    translation = translate(pattern)
    automaton, oracle = compile_regex(translation.pattern), re.compile(pattern)
    assert not translation.shortest
    found = [automaton.accepts(text.encode()) for text in texts(alphabet, longest)]
    assert found == [oracle.fullmatch(text) is not None for text in texts(alphabet, longest)]
    assert any(found) or pattern.startswith(r"\.")  # no comparison of nothing with nothing


def test_every_character_of_a_named_class_is_as_in_python() -> None:
    """Of those that Python's version of Unicode has."""
    for pattern in (r"\d", r"\s", r"\w", r"\D", r"\S", r"\W", r"[^\w]", r"[\W\d]", r"(?i:k)", r"(?i:[r-t])", r"."):
        automaton, oracle = compile_regex(translate(pattern).pattern), re.compile(pattern)
        for code in range(0x600):
            if unicodedata.category(chr(code)) == "Cn":
                continue
            assert automaton.accepts(chr(code).encode()) is (oracle.fullmatch(chr(code)) is not None), (pattern, code)


LAZY = [
    # An expression of the texts up to their first end:
    (r'".*?"', '"a\n', False),
    (r'".+?"', '"a\n', False),
    (r'".{2,}?"', '"a\n', False),
    (r"[^;]*?;", "a;\n", False),
    (r"/\*(.|\n)*?\*/", "/*\n", False),
    (r"/\*[\s\S]*?\*/", "/*\n", False),
    (r"(?s:/\*.*?\*/)", "/*\n", False),
    (r"/\*(?s:.*?)\*/", "/*\n", False),
    (r"'''(?s:.*?)'''", "'a", False),
    (r"a(?s:.*?)abab", "ab", False),
    (r"a(?s:.*?)abca", "abc", False),
    (r"a.*?bb", "ab\n", False),
    (r'".*?"|\'.*?\'', "\"'a", False),
    (r"(?:/\*.*?\*/)", "/*a", False),
    (r'".*?(?<!\\)(\\\\)*?"', '"\\a', False),
    (r'"(.|\n)*?(?<!\\)(\\\\)*?"', '"\\\n', False),
    (r'".*?(?<!\\)"', '"\\a', False),
    # A lexeme that ends where it first matches:
    (r'"(?:[^"\\]|\\.)*?"', '"\\a', True),
    (r"a(?:[^b]|bb)*?ab", "abc", True),
    (r".*?(?:ab|ba)", "abc", True),
    (r"(?i:a.*?ab)", "aAb", True),
    (r"ab??", "ab", True),
    (r"a+?", "ab", True),
    (r"ab{1,3}?", "ab", True),
    (r"ba{1,3}?b", "ab", True),
    (r"a?b(?:.|;)*?ca", "abc", False),
    (r"(?i:a(?s:.)*?b)", "aAb", True),
]


@pytest.mark.parametrize(("pattern", "alphabet", "shortest"), LAZY, ids=[row[0] for row in LAZY])
def test_a_lazy_quantifier_ends_where_python_ends(pattern: str, alphabet: str, shortest: bool) -> None:
    """No lexeme goes on behind another one, so what Python finds at the beginning of a text is all that there is."""
    translation = translate(pattern)
    automaton, oracle = compile_regex(translation.pattern), re.compile(pattern)
    assert translation.shortest is shortest
    accepts = cache(automaton.accepts)  # texts begin alike
    found = 0
    for text in texts(alphabet, 8 if len(alphabet) == 3 else 10):
        ends = [end for end in range(len(text) + 1) if accepts(text[:end].encode())]
        match = oracle.match(text)
        assert (ends[:1] if shortest else ends) == ([match.end()] if match else []), text
        found += match is not None
    assert found


class Patterns:
    """Random patterns over ``abc``, with lazy quantifiers near their end if they are ``lazy``."""

    def __init__(self, seed: int, lazy: bool) -> None:
        self.random, self.lazy = random.Random(seed), lazy

    def sequence(self, depth: int) -> str:
        return "".join(self.piece(depth) for _ in range(self.random.randint(1, 3)))

    def piece(self, depth: int) -> str:
        return self.atom(depth) + self.random.choice(["", "", "", "*", "+", "?", "{2}", "{1,2}"])

    def atom(self, depth: int) -> str:
        if not depth or self.random.random() < 0.6:
            return self.random.choice(["a", "b", "c", ".", "[ab]", "[^a]", "[^bc]", r"\n", r"(?s:.)"])
        return f"(?:{'|'.join(self.sequence(depth - 1) for _ in range(self.random.randint(1, 3)))})"

    def pattern(self) -> str:
        if not self.lazy:
            return self.sequence(1)
        before = "".join(self.random.choice(["a", "b", "[ab]", ".", "a?b"]) for _ in range(self.random.randint(0, 2)))
        repeated = self.random.choice([".", "[^c]", r"(?:.|\n)", "(?s:.)", "[ab]", "(?:ab|c)", "(?:a|b.)", "(?:a|ab)"])
        quantifier = self.random.choice(["*?", "+?", "{2,}?", "??", "{1,3}?"])
        after = self.random.choice(["", "c", "ab", "aba", "abab", "(?:ab|ca)", "[ab]c", "(?:a|bc)"])
        return before + repeated + quantifier + after


@pytest.mark.parametrize("lazy", [False, True])
def test_random_patterns(lazy: bool) -> None:
    source, samples = Patterns(7, lazy), texts("abc", 5) + texts("ab\n", 4)
    translated = {False: 0, True: 0}
    for _ in range(120):
        pattern = source.pattern()
        oracle = re.compile(pattern)
        try:
            translation = translate(pattern)
        except Untranslatable:
            assert lazy or oracle.fullmatch(""), pattern
            continue
        automaton = compile_regex(translation.pattern)
        translated[translation.shortest] += 1
        for text in samples:
            if not lazy:
                assert automaton.accepts(text.encode()) is (oracle.fullmatch(text) is not None), (pattern, text)
                continue
            ends = [end for end in range(len(text) + 1) if automaton.accepts(text[:end].encode())]
            match = oracle.match(text)
            assert (ends[:1] if translation.shortest else ends[-1:]) == ([match.end()] if match else []), (
                pattern,
                text,
            )
    assert translated[False] > 20 and (translated[True] > 20) is lazy


def test_what_is_written_for_the_library_of_lark() -> None:
    assert translate(r'".*?(?<!\\)(\\\\)*?"').pattern == r'"(?:[^\n"\\]|\\[^\n])*"'
    assert translate(r"/\*(?:.|\n)*?\*/").pattern == r"/\*(?:/|[^/\*])*\*(?:\*|[^/\*](?:/|[^/\*])*\*)*/"
    assert translate(r"'.*?'").pattern == r"'[^\n']*'"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"a(?=b)", "looks beyond"),
        (r"(?<=b)a", "looks beyond"),
        (r"(?!if)[a-z]+", "looks around"),
        (r'"(?!"").*"', "looks around"),
        (r"(?<!a)b", "looks around"),
        (r"^a", "assertion"),
        (r"a$", "assertion"),
        (r"if\b", "assertion"),
        (r"a\Z", "assertion"),
        (r"(a)\1", "back-reference"),
        (r"(a)?(?(1)b|c)", "conditional group"),
        (r"a*", "matches the empty text"),
        (r"(?:a|b?)", "matches the empty text"),
        (r"a*?", "matches the empty text"),
        (r"(", "cannot be read"),
        (r"[z-a]", "cannot be read"),
        (r"(?:" * 3000 + "a" + ")" * 3000, "nested too deeply"),
        ("\ud800", "surrogate"),
        (r"a+.*?(?:b|cc)", "may end in several places"),
        (r".*?(END|FI)", "may end in several places"),
        (r"(?:a|ab)*?c(?i:d)", "may end in several places"),
        (r"(.*?)a.*?bc?", "more of it follows"),
        (r"(?i:a.*?b)c", "more of it follows"),
        (r"(?:a.*?b){2}", "more of it follows"),
        (r"a.*?(?:b|c)|d", "only a part of it"),
    ],
)
def test_what_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(Untranslatable, match=words):
        translate(pattern)


def test_flags_in_the_middle_have_advice() -> None:
    with pytest.raises(Untranslatable, match="behind the closing slash"):
        translate("(?:(?i)a)b")


@pytest.mark.parametrize("pattern", ["(?>a|b)c", "a++b", "a*+b"])
def test_atomic_groups_are_refused(pattern: str) -> None:
    with pytest.raises(Untranslatable, match="atomic group|cannot be read"):
        translate(pattern)


def test_a_lazy_quantifier_that_is_fixed_is_an_ordinary_one() -> None:
    assert translate("a{2}?b") == translate("a{2}b")


@pytest.mark.parametrize("text", ["a.b", "\\", "[a]{2}", "é•\U0001f600", "\n\t\x01", "# & ~-", "(?i:x)"])
def test_a_literal_matches_itself_only(text: str) -> None:
    automaton = compile_regex(literal(text).pattern)
    assert list(automaton.members()) == [text.encode()]


def test_a_literal_without_case() -> None:
    automaton = compile_regex(literal("Or.", ignore_case=True).pattern)
    assert {member.decode() for member in automaton.members()} == {"or.", "oR.", "Or.", "OR."}
