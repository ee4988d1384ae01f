"""Grammars that would be written out without end, or to no end of memory, are refused by what they count, at once."""

from __future__ import annotations

import pytest

from outlines_phi.errors import GrammarError
from outlines_phi.guides.grammar.notation import reader
from outlines_phi.guides.grammar.notation.reader import read_grammar

ITEM = 'start: a{b}\nb: "b"\npair{x, y}: x y\n'
CHAIN = "".join(f"a{i}{{x}}: a{i + 1}{{p{{x}}}} | a{i + 1}{{q{{x}}}}\n" for i in range(20))

ENDLESS = {
    "itself": (ITEM + "a{x}: x | a{a{x}}", r"'a' contains itself .*\(a\{b\}, a\{a\{b\}\}, ", 4),
    "doubled": (ITEM + "a{x}: x | a{pair{x, x}}", r"\(a\{b\}, a\{pair\{b,b\}\}, ", 4),
    "with a literal": (ITEM + 'a{x}: x | a{pair{"(", x}}', r'a\{pair\{"\(",b\}\}, ', 4),
    "through another": (ITEM + "a{x}: x | c{x}\nc{x}: a{pair{x, b}}", "template '[ac]' contains itself", None),
    "by its name": (ITEM + "a{x}: x | use{a, x}\nuse{t, x}: t{pair{x, x}}", "contains itself with ever larger", None),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_never_ends(name: str) -> None:
    text, message, line = ENDLESS[name]
    with pytest.raises(GrammarError, match=message) as caught:
        read_grammar(text)
    assert "writing it out never ends. Give it the arguments that it has, or make a rule of it" in str(caught.value)
    assert line is None or f"line {line}, column 1\n" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_template_may_contain_itself_with_arguments_that_it_has() -> None:
    text = ITEM + 'a{x}: x | "(" c{x, "]"}\nc{x, y}: a{x} y | a{a{b}} y | "!" c{y, x}'
    assert "c{RSQB,a{b}}" in read_grammar(text).nonterminals


def test_templates_for_too_many_arguments() -> None:
    text = f'start: a0{{b}}\nb: "b"\np{{x}}: x "p"\nq{{x}}: x "q"\n{CHAIN}a20{{x}}: x'
    with pytest.raises(GrammarError, match="take more than 100,000 characters when they are written out"):
        read_grammar(text)


@pytest.mark.parametrize("inside", ["R{} R{}", '"a" R{} | R{} "b"'])
def test_terminals_that_double(inside: str) -> None:
    terminals = [f"R{i}: {inside.format(i + 1, i + 1)}" for i in range(40)]
    text = "\n".join(["start: R0", *terminals, 'R40: "a"'])
    with pytest.raises(GrammarError, match="more than 100,000 characters when those inside them are written out"):
        read_grammar(text)


def test_a_long_chain_of_terminals() -> None:
    text = "\n".join(["start: R0", *(f'R{i}: "a" R{i + 1}' for i in range(3_000)), 'R3000: "a"'])
    with pytest.raises(GrammarError, match=r"the terminals up to .*make rules of them\n  line"):
        read_grammar(text)


def test_the_limit_is_a_count_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "start: A\nA: B B\nB: C C\nC: /abc/"  # 7 of C, 6 + 14 of B, 6 + 40 of A
    monkeypatch.setattr(reader, "MOST_WRITTEN", 73)
    assert read_grammar(text).terminals
    monkeypatch.setattr(reader, "MOST_WRITTEN", 72)
    with pytest.raises(GrammarError, match="more than 72 characters"):
        read_grammar(text)


@pytest.mark.parametrize("text", ["start: A\nA: B\nB: A", 'start: A\nA: "a" A'])
def test_a_terminal_that_uses_itself_is_told_as_such(text: str) -> None:
    with pytest.raises(GrammarError, match="uses itself; only rules may"):
        read_grammar(text)


def test_a_number_of_thousands_of_digits() -> None:
    with pytest.raises(GrammarError, match=r"too many digits; repeat a rule that repeats\n  line 1, column 12"):
        read_grammar('start: "a"~' + "9" * 10_000)


def test_a_terminal_of_thousands_of_groups_is_named_in_short() -> None:
    with pytest.raises(GrammarError, match="nested too deeply; write it as several") as caught:
        read_grammar("start: /" + "(" * 5_000 + "a" + ")" * 5_000 + "/")
    assert len(str(caught.value)) < 500
