"""GBNF is read as llama.cpp reads it, and keeps its language when pieces of it become lexemes."""

import warnings
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from outlines_phi import EmptyLanguageError, GrammarError, UnsupportedError
from outlines_phi.errors import GrammarWarning
from outlines_phi.guides import CFGGuide, read_grammar
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.grammar.notation.gbnf import read_gbnf
from outlines_phi.guides.grammar.shared_lexemes import told_apart_by_rules
from tests.guides.grammar.definition import Definition
from tests.guides.grammar.fixtures import vocabulary
from tests.guides.grammar.gbnf_grammars import GRAMMARS, ends, random_grammar
from tests.guides.grammar.test_cfg_guide import assert_language
from tests.guides.walking import accepts

NOTATION: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "literals": (r'root ::= "a\"\\\n\t\r\[\]\-" "\x41\u00e9\U0001F600"', ('a"\\\n\t\r[]-Aé😀',), ("a",)),
    "empty literal": ('root ::= "" "a" ""', ("a",), ("",)),
    "classes": (r"root ::= [a-c\]\-x-] [^\n\-\u0100-\U0010FFFF]", ("aé", "]a", "--"[:1] + "b"), ("d1", "a\n", "aĀ", "a-")),
    "ranges that overlap": ("root ::= [a-fc-hb] [^a-fc-h]", ("hi", "az"), ("ii", "ah")),
    "any character": ("root ::= . .", ("\n😀", "a\0"), ("a", "abc")),
    "repeats": (
        'root ::= "a"* "b"+ "c"? "d"{2} "e"{1,} "f"{0,2} "g"{1,2}',
        ("bddeg", "aabbcddeeffgg"),
        ("ddeg", "bdeg", "bddefffg", "bddeggg"),
    ),
    "a repeat is of the whole literal": ('root ::= "ab"{2} "c"', ("ababc",), ("abbc",)),
    "repeats of repeats": ('root ::= "a"{2}* "b"?+', ("", "aaaab", "bbb"), ("ab",)),
    "groups": ('root ::= ("a" | "b" "c")+ (\n\n | # nothing\n "d")', ("abcd", "bc"), ("ac", "")),
    "nothing": ('root ::= | "a"\n', ("", "a"), ("aa",)),
    "lines go on": ('root ::=\n\n  "a" |\r\n # or\n "b"\n', ("a", "b"), ("ab",)),
    "names": ('root ::= a-1_B a-1_B?\n\na-1_B ::= "x" # no more\n', ("x", "xx"), ("a-1_B",)),
    "no blanks are needed": ('root::=a"b"(a)\na::="a"', ("aba",), ("ab",)),
    "blanks in bounds": ('root ::= "a"{ 1 , 2 }', ("a", "aa"), ("aaa",)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*NOTATION, *GRAMMARS])
def test_the_language(name: str) -> None:
    text, members, others = (NOTATION | GRAMMARS)[name]
    rules = read_gbnf(text, ("root",))
    definition = Definition(told_apart_by_rules(read_grammar(text, dialect="gbnf")), "")
    for sample in (*members, *others):
        assert (len(sample) in ends(rules, "root", sample)) == (sample in members), sample
        assert definition.is_member(sample) == (sample in members), sample


REFUSED = {
    "no rule": ("# nothing\n", "there is no rule 'root'", 1, 1),
    "another start": ('rot ::= "a"', "did you mean 'rot'", 1, 1),
    "not defined": ('root ::= "a" itm\nitem ::= "b"', "rule 'itm' is not defined; did you mean 'item'", 1, 14),
    "defined twice": ('root ::= "a"\nroot ::= "b"', "defined twice", 2, 1),
    "no name": ('root ::= "a"\n::= "b"', "name of a rule is expected", 2, 1),
    "Lark": ('root: "a"', "`::=` is expected", 1, 5),
    "a line that ends": ('root ::= "a"\n  "b"', "name of a rule is expected", 2, 3),
    "what follows a rule": ('root ::= "a" ) "b"', "a rule ends here", 1, 14),
    "open group": ('root ::= ("a" | ("b")', "group is not closed", 1, 10),
    "group": ('root ::= ("a" = "b")', r"`\)` is expected", 1, 15),
    "open string": ('root ::= "a', 'string is not closed; add `"`', 1, 10),
    "open class": ("root ::= [a-", "class of characters is not closed; add `]`", 1, 10),
    "unknown escape": (r'root ::= "a\d"', "escape is not known", 1, 12),
    "short escape": (r'root ::= "\x4"', "escape is not known", 1, 11),
    "no code point": (r'root ::= "\U00110000"', "no character of this code point", 1, 11),
    "a surrogate": (r'root ::= "\uD800"', "lone surrogate", 1, 11),
    "empty class": ("root ::= []", "class has no character", 1, 10),
    "class of nothing": (r"root ::= [^\x00-\U0010FFFF]", "class has no character", 1, 10),
    "a range upside down": ("root ::= [az-b]", "range is empty", 1, 12),
    "nothing to repeat": ('root ::= | * "a"', "nothing to repeat", 1, 12),
    "bounds": ('root ::= "a"{,2}', "repeats are written", 1, 13),
    "bounds upside down": ('root ::= "a"{3,2}', "at least 3 and at most 2", 1, 13),
    "a wrong number": ('root ::= "a"\nx ::= <[1000-]>', "Name the special tokens", 2, 7),
    "an open token": ("root ::= <think .*", "a special token is written `<name>`", 1, 10),
    "not a token": ("root ::= !<[7]>*", "a negated token would be any other token", 1, 10),
    "zero": ('root ::= "\0"', r"written `\\x00`", 1, 11),
    "too deep": (f"root ::= {'(' * 200}{')' * 200}", "groups are inside each other", 1, 160),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_pointed_at(name: str) -> None:
    text, message, line, column = REFUSED[name]
    with pytest.raises(GrammarError, match=message) as caught:
        read_grammar(text, dialect="gbnf")
    assert caught.value.position is not None
    before = caught.value.source[: caught.value.position]
    assert (before.count("\n") + 1, len(before) - before.rfind("\n")) == (line, column)
    assert f"line {line}" in str(caught.value)


def test_rules_that_are_too_large() -> None:
    with pytest.raises(GrammarError, match=r"more than 50,000 symbols.*'root' in line 2"):
        read_grammar('\nroot ::= ("(" root ")"){60000}', dialect="gbnf")
    chain = "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(3000))
    with pytest.raises(GrammarError, match="nested too deeply"):
        read_grammar(f'root ::= r0\n{chain}\nr3000 ::= "a"', dialect="gbnf")


def test_rules_of_no_use() -> None:
    with pytest.warns(GrammarWarning, match="'root' does not need are left out: 'x', 'y'"):
        read_grammar('root ::= "a"\nx ::= y\ny ::= x', dialect="gbnf")
    with pytest.warns(GrammarWarning, match="rules that never end are left out.*'x'"):
        read_grammar('root ::= "a" | x\nx ::= "b" x', dialect="gbnf")
    with pytest.raises(EmptyLanguageError, match="'root' derives no text"):
        read_grammar('root ::= "a" root', dialect="gbnf")


def test_another_start_and_several() -> None:
    text = 'a ::= "a" b?\nb ::= "b"'
    for start, members in {("a",): ["a", "ab"], ("a", "b"): ["a", "ab", "b"]}.items():
        definition = Definition(read_grammar(text, start, dialect="gbnf"), "")
        assert [sample for sample in ("", "a", "ab", "b", "bb") if definition.is_member(sample)] == members
    with pytest.raises(GrammarError, match="no rule 'c'"):
        read_grammar(text, ("a", "c"), dialect="gbnf")


def test_files_and_dialects(tmp_path: Path) -> None:
    gbnf, lark = tmp_path / "list.gbnf", tmp_path / "list.lark"
    gbnf.write_text('root ::= "a"', encoding="utf-8")
    lark.write_text('start: "a"', encoding="utf-8")
    assert read_grammar(gbnf) == read_grammar('root ::= "a"', dialect="gbnf")
    assert read_grammar(lark) == read_grammar(lark.read_text(), dialect="lark")
    with pytest.raises(GrammarError, match="are GBNF, the dialect of llama.cpp"):
        read_grammar(gbnf, dialect="lark")
    with pytest.raises(UnsupportedError, match="there is no dialect 'ebnf'"):
        read_grammar('root ::= "a"', dialect="ebnf")
    with pytest.raises(UnsupportedError, match="cannot be read"):
        read_grammar(tmp_path / "none.gbnf")
    gbnf.write_bytes(b'root ::= "\xe9"')
    with pytest.raises(UnsupportedError, match="Save it as UTF-8"):
        read_grammar(gbnf)


LETTERS = vocabulary(*"abc")
WORDS = ["".join(word) for length in range(5) for word in product("abc", repeat=length)]


def random_grammars(first: int, last: int) -> dict[str, Grammar]:
    found = {}
    for seed in range(first, last):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GrammarWarning)
            try:
                text = random_grammar(seed)
                found[text] = read_grammar(text, dialect="gbnf")
            except EmptyLanguageError:
                pass
    return {text: grammar for text, grammar in found.items() if grammar.terminals}


def members(grammar: Grammar) -> list[str]:
    guide = CFGGuide.of(grammar, LETTERS)
    return [word for word in WORDS if accepts(guide, word)]


@cache
def derived(text: str) -> list[str]:
    rules = read_gbnf(text, ("root",))
    return [word for word in WORDS if len(word) in ends(rules, "root", word)]


def test_random_grammars_derive_what_they_say() -> None:
    grammars = random_grammars(0, 40)
    for text, grammar in grammars.items():
        assert members(grammar) == derived(text), text
    assert len(grammars) > 20


def test_pieces_may_share_texts() -> None:
    text = 'root ::= root x root | root y | "c"\nx ::= "ab" | "bb"\ny ::= "ab" | "aa"'
    assert members(read_grammar(text, dialect="gbnf")) == derived(text)


def test_masks_of_random_grammars() -> None:
    tokens = vocabulary(*"abc", "ab", "ba", "cab", "bcb")
    for grammar in random_grammars(60, 72).values():
        guide = CFGGuide.of(grammar, tokens)
        assert_language(guide, guide.grammar, 2)


def test_rules_without_recursion_are_one_regular_expression() -> None:
    assert read_grammar('root ::= x{2} "c"\nx ::= [ab]', dialect="gbnf").alone is not None
    assert read_grammar("root ::= x{2}\nx ::= [ab]?", dialect="gbnf").alone is not None
    assert read_grammar('root ::= "(" root ")" | "a"', dialect="gbnf").alone is None
    assert read_grammar('start: "a" B\nB: "b"').alone is None
    assert read_grammar('start: A?\nA: "b"+\n%ignore " "').alone is None


def test_lines_of_rules_are_kept() -> None:
    grammar = read_grammar('root ::= "(" x ")"\n\nx ::= "a" root | "b"', dialect="gbnf")
    assert {grammar.name(p.head): p.line for p in grammar.productions} == {"root": 1, "x": 3}
