"""A pattern is found where ECMA-262 says that it is."""

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.errors import GrammarError, UnsupportedError
from outlines_phi.guides.json_schema.string_set import StringSet

fuzz = settings(derandomize=True, deadline=None, max_examples=300)

TEXTS = ["".join(letters) for length in range(6) for letters in product("ab ", repeat=length)]
TEXTS += ["".join(letters) for length in range(4) for letters in product("a\né-0", repeat=length)]

ATOMS = (
    "a",
    "b",
    " ",
    "é",
    "0",
    "-",
    ".",
    "[ab]",
    "[^a]",
    r"[\s\S]",
    r"\d",
    r"\w",
    r"\s",
    r"\S",
    r"[\w-]",
    r"\x61",
    r"\-",
    r"\/",
)
PLACES = (r"\A", r"\Z", r"\b", r"(?!\b)")
"""As Python writes them: its `$` also stands before a final line break, its `\\B` not in an empty text."""


def extended(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        several.map("".join),
        several.map(lambda branches: f"(?:{'|'.join(branches)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}?", "{2,}", "*?"])).map(
            "(?:{0[0]}){0[1]}".format
        ),
        st.tuples(st.sampled_from(["(?=", "(?!", "("]), inner).map("{0[0]}{0[1]})".format),
        # Python's look-behind has a fixed length.
        st.tuples(st.sampled_from(["(?<=", "(?<!"]), st.sampled_from(ATOMS)).map("{0[0]}{0[1]})".format),
    )


PATTERNS = st.recursive(st.sampled_from(ATOMS + PLACES), extended, max_leaves=6)


@fuzz
@given(PATTERNS)
def test_a_pattern_is_found_where_python_finds_it(pattern: str) -> None:
    theirs = re.compile(pattern, re.ASCII)
    ours = StringSet.matching(pattern.replace(r"\A", "^").replace(r"\Z", "$").replace(r"(?!\b)", r"\B"))
    assert [text for text in TEXTS if ours.contains(text) != bool(theirs.search(text))] == []


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("a+", ["xxaayy"], ["", "b"]),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        ("^a$", ["a"], ["a\n", "\na"]),
        (".", ["\v", "\x85", "😀"], ["", "\n", "\r", "\u2028", "\u2029"]),
        ("^.$", ["😀", "é"], ["e\u0301"]),
        ("^[😀😁]$", ["😀"], ["\ufffd", "😂"]),
        ("^😀*$", ["", "😀😀"], ["😁"]),
        (r"^\ud83d\ude00$", ["😀"], ["😁"]),
        (r"^[\ud83d\ude00-\ud83d\ude02]$", ["😁"], ["😃"]),
        (r"^\u{1F600}$", ["😀"], ["u"]),
        (r"^\d$", ["7"], ["٣", "๗"]),
        (r"^\D$", ["٣"], ["7"]),
        (r"^\w$", ["a", "_", "0"], ["é", "٣"]),
        (r"^\W$", ["é"], ["a"]),
        (r"^\s$", [" ", "\t", "\v", "\xa0", "\ufeff", "\u2029", "\u2003"], ["\x85", "\x1c", "\u200b"]),
        (r"^\cC$", ["\x03"], ["C", "\\cC"]),
        (r"^\cc$", ["\x03"], ["c"]),
        (r"^\x41\0$", ["A\0"], ["A"]),
        (r"^\p{Letter}+$", ["aéλ"], ["1"]),
        (r"^\p{Script=Greek}\P{L}$", ["λ1"], ["λλ", "a1"]),
        (r"^[\p{Nd}_]$", ["٣", "_"], ["a"]),
        (r"^[^\p{Nd}]$", ["a"], ["3"]),
        ("[]", [], ["", "a"]),
        ("^[^]$", ["\n", "a"], [""]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^[a\-z]$", ["-"], ["b"]),
        (r"^[\w-.]$", ["-", ".", "a"], [","]),
        (r"^[a-]$", ["-", "a"], ["b"]),
        ("^[[]$", ["["], []),
        ("^]}$", ["]}"], []),
        ("^{a}$", ["{a}"], ["a"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("^a{2}$", ["aa"], ["a{2}", "aaa"]),
        ("^(?<year>[0-9]{4})$", ["2020"], ["20"]),
        (r"^a\/b\.\-\@\"$", ['a/b.-@"'], []),
        (r"\bfoo\b", ["a foo", "éfoo"], ["afoo", "foo_"]),
        ("^(?i:[j-l]s|é\\x41)b$", ["Ksb", "kſb", "\N{KELVIN SIGN}Sb", "ÉAb", "éab"], ["KsB", "isb", "e\u0301ab"]),
        (r"^(?i:[^k]\W\p{Lu})$", ["a-b", "l-B", "bſé"], ["k-a", "\N{KELVIN SIGN}-a", "aka", "a-1"]),
        (r"^(?i:(?:a)b)c(?i:d)e$", ["ABcDe", "abcde"], ["abCde", "abcdE"]),
        (r"^(?=.*\d)(?=.*[a-z]).{3,}$", ["a1b"], ["abc", "a1"]),
        ("^(?!foo$)", ["", "fool"], ["foo"]),
        ("(?<!a)b", ["b", "aab b"], ["ab"]),
        ("(?<=^|,)x", ["x", "a,x"], ["ax"]),
        ("(?<=a+b)c", ["aabc"], ["bc"]),
        (r"(?=\bfoo)f", ["a foo"], ["afoo"]),
        ("^(?:a(?!b)|b)*$", ["aab"[::-1], "ba", "aa"], ["ab"]),
        ("(?:^a|b)c$", ["ac", "xbc"], ["xac"]),
        ("^(a*)*$", ["", "aaa"], ["b"]),
        ("(?i)^(yes|no)$", ["Yes", "no"], ["maybe", "yes "]),
        (r"^(?P<n>a)(?<m>b)$", ["ab"], ["a"]),
        ("$^", [""], ["a"]),
        ("a^", [], ["a"]),
        ("", ["", "a"], []),
        ("a||b", [""], []),
    ],
)
def test_special_cases(pattern: str, found: list[str], missed: list[str]) -> None:
    strings = StringSet.matching(pattern)
    assert [text for text in found if not strings.contains(text)] == []
    assert [text for text in missed if strings.contains(text)] == []


def test_a_pattern_is_searched_for() -> None:
    assert StringSet.matching("a") == StringSet.matching("^.*a") | StringSet.matching("a")
    assert StringSet.matching("") == StringSet.matching(".*") == StringSet.all()
    assert StringSet.matching("[]").is_empty


@pytest.mark.parametrize(
    ("pattern", "feature"),
    [
        (r"(a)\1", "back-reference"),
        (r"(?<n>a)\k<n>", "back-reference"),
        ("(?>a)", "atomic group"),
        (r"^a\Z", "assertion"),
        (r"\a", "escape"),
        (r"\x1", "escape"),
        (r"\u12", "escape"),
        (r"[\A]", "escape"),
        (r"\01", "escape"),
        (r"\p{NoSuchProperty}", "not known"),
        ("(?<=a(?=b))", "look-behind"),
        ("(?:a|b)*a(?:a|b){20}$", "states"),
        ("^[a-z]{1,50000}$", "states"),
        ("(" * 201 + ")" * 201, "nest"),
    ],
)
def test_what_is_not_offered_is_refused_with_the_remedy_first(pattern: str, feature: str) -> None:
    with pytest.raises(UnsupportedError, match=f"(?is)^[A-Z][^.]*\\..*{feature}|^nest") as caught:
        StringSet.matching(pattern)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "pattern", ["(", ")", "[a", "a**", "*a", "a{2,1}", "^*", "[z-a]", "\\", r"\u{110000}", "{1}", "(?=a"]
)
def test_what_cannot_be_read_is_an_error_with_its_place(pattern: str) -> None:
    with pytest.raises(GrammarError) as caught:
        StringSet.matching(pattern)
    assert caught.value.position is not None
