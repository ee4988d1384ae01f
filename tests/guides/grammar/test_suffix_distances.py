"""The distances from the tops of stacks, against each token read from the whole stack by itself."""

from collections import Counter
from functools import lru_cache

import numpy as np
import pytest

from outlines_phi.guides.grammar import cfg_guide
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.completion import Completion
from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar
from outlines_phi.guides.grammar.parsing.parser import Parser
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.vocabulary.vocabulary import Vocabulary

TEXTS = {
    "arithmetic": ["(1+2*(3/-(4-5)))*6", "((((((((7))))))))", "1+2*3-4/5+--6"],
    "json": ['{"a": [1, {"b": [[[true]]]}, []], "c": null}', "[[[[[[[[0]]]]]]], {}]"],
    "c": [
        "int f(int a) { if (a) { while (b) { c = ((d + e[f(g, h)]) * 2 == 3) && k; } } else return (1); }",
        "void m() { a = b = c ? d[e[f[g]]] : (((((h))))); { { { ; } } } }",
    ],
    "sql": ["SELECT a.b, c FROM d JOIN e ON ((a.b = 1 AND (c < 2 OR d >= 'x'))) WHERE (((a = b))) ORDER BY c;"],
    # Right recursion, which is taken apart as a whole at its end, and a grammar that is not LALR(1).
    'start: "a" start | "b" "a" | "(" start ")"': ["aaaaaaa(aa(aaaba)"],
    'start: start "+" start | "a" | "(" start ")"': ["a+a+(a+(a+a)+a)"],
}
PIECES = (
    ")",
    "))",
    ");",
    "]",
    "]]",
    "}",
    "}}",
    "],",
    "+(",
    "*",
    " = ",
    " AND ",
    ") OR (",
    "(((",
    "(a",
    "a",
    "aa",
    "aaa",
    "1",
    "{",
    ", ",
)


@lru_cache
def built(name: str) -> CFGGuide:
    text = name if name.startswith("start") else grammar_text(name)
    tokens = dict.fromkeys([*map(chr, range(32, 127)), "\n", *PIECES])
    return CFGGuide.of(read_grammar(text), Vocabulary.from_tokens([*tokens, "<eos>"], len(tokens)))


def states_along(guide: CFGGuide, text: str) -> list[int]:
    """The states along the characters of a text, which is a member or the beginning of one."""
    states = [guide.start]
    for character in text:
        states.append(guide.advance(states[-1], guide.vocabulary.tokens.index(character.encode())))
    assert DEAD not in states, text[: states.index(DEAD)]
    return states


def one_by_one(guide: CFGGuide, state: int) -> list[int]:
    """The distance after each token."""
    return [guide.min_tokens(guide.advance(state, token)) for token in range(len(guide.vocabulary))]


def assert_split(name: str) -> int:
    """Assert that distances are those of tokens read one by one; return how many were compared that are no dead end."""
    guide, found = built(name), Counter[bool]()
    for text in TEXTS[name]:
        for state in states_along(guide, text):
            expected = one_by_one(guide, state)
            distances = guide.distances_after(state)[guide.partition_of(state).class_of]
            assert distances.tolist() == expected, guide.describe(state)
            found.update(guide.advance(state, token) != DEAD for token in range(len(guide.vocabulary)))
    return found[True]


@pytest.mark.in_turn
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("top", [1, 2, 3, 6])
def test_it_does_not_matter_how_much_is_looked_at(name: str, top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfg_guide, "_TOP", top)
    built.cache_clear()
    assert assert_split(name) > 50


def test_words_that_end_elsewhere_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is left is read from a stack one entry too deep."""
    beyond = Parser.beyond
    monkeypatch.setattr(Parser, "beyond", lambda *given: (beyond(*given)[0] + 1, beyond(*given)[1]))
    built.cache_clear()
    with pytest.raises((AssertionError, ValueError, KeyError)):
        assert_split("c")
    built.cache_clear()


@pytest.mark.parametrize("keep", [1, 3])
def test_what_is_dropped_is_found_again(keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfg_guide, "_KEPT_TOPS", keep)
    built.cache_clear()
    assert_split("json")
    assert len(built("json")._suffix_distances._decided) == keep


@pytest.mark.parametrize("name", TEXTS)
def test_stacks_that_are_alike_are_the_same_but_for_a_constant(name: str) -> None:
    """The distances known from other stacks are those found of each by itself."""
    guide = built(name)
    for text in TEXTS[name]:
        for state in states_along(guide, text)[::9]:
            alone = Completion(guide.spanner, guide.parser)
            configuration, lexeme = divmod(state - DONE - 1, len(guide.lexer))
            assert alone.distance(configuration, lexeme) == guide.min_tokens(state) < 200
            assert alone.distances(np.array([configuration]), np.array([lexeme])).tolist() == [guide.min_tokens(state)]


NESTED = {
    "arithmetic": ("(1+2*", "1", "-3)"),
    "json": ('[{"a":', "0", "}]"),
    "c": ("{if(a)", "{x=((b+c[d])*e);}", "}"),
    "sql": ("(a=1 AND ", "b", ")"),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_deeper_stack_takes_a_few_look_ups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack parsed for the masks of a text is not parsed for those of a deeper one, and its completion is known."""
    guide, (opening, middle, closing) = built(name), NESTED[name]
    begin = {"c": "void f()", "sql": "SELECT a FROM b WHERE "}.get(name, "")
    shallow, deep = (begin + opening * n + middle + closing * n for n in (8, 60))
    for state in states_along(guide, shallow):
        guide.distances_after(state)
    calls = Counter[str]()

    def count(called: str) -> None:
        original = getattr(Parser, called)

        def counting(*given: int) -> object:
            calls[called] += 1
            return original(*given)

        monkeypatch.setattr(Parser, called, counting)

    count("goto")
    states = states_along(guide, deep)
    assert calls["goto"] == 0
    count("shift")
    for state in states:
        guide.distances_after(state)
    assert calls["shift"] == 0
    assert 0 < calls["goto"] < 4 * len(deep)
