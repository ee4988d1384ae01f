"""Grammars over characters keep their language when pieces of them become lexemes."""

from __future__ import annotations

import warnings
from functools import cache
from itertools import product

import pytest

from outlines_phi.errors import EmptyLanguageError, GrammarError, GrammarWarning
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.grammar.notation import scannerless
from outlines_phi.guides.grammar.notation.gbnf import read_gbnf
from outlines_phi.guides.grammar.notation.reader import read_grammar
from outlines_phi.guides.guide import DONE
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.guides.grammar.fixtures import vocabulary
from tests.guides.grammar.notation.gbnf_grammars import ARITHMETIC, JSON, C, ends, random_grammar
from tests.guides.grammar.test_cfg_guide import assert_language

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


def members(grammar: Grammar, tokens: Vocabulary = LETTERS) -> list[str]:
    guide = CFGGuide.of(grammar, tokens)
    found = []
    for word in WORDS:
        state = guide.start
        for letter in word:
            state = guide.advance(state, "abc".index(letter))
        if guide.advance(state, tokens.eos_ids[0]) == DONE:
            found.append(word)
    return found


@cache
def derived(text: str) -> list[str]:
    rules = read_gbnf(text, ("root",))
    return [word for word in WORDS if len(word) in ends(rules, "root", word)]


def test_random_grammars_derive_what_they_say() -> None:
    grammars = random_grammars(0, 40)
    for text, grammar in grammars.items():
        assert members(grammar) == derived(text), text
    assert sum(len(grammar.terminals) > 1 for grammar in grammars.values()) > 12
    assert sum(any(len(t.pattern) > 6 for t in g.terminals) and len(g.terminals) > 1 for g in grammars.values()) > 3


def test_what_is_taken_apart_at_once_derives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scannerless, "_PATIENCE", 0)
    apart = random_grammars(0, 40)
    assert all(members(grammar) == derived(text) for text, grammar in apart.items())


def test_the_condition_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scannerless._Cut, "_prolonged", lambda self: set())
    wrong = 0
    for text, grammar in random_grammars(0, 40).items():
        try:
            wrong += members(grammar) != derived(text)
        except (EmptyLanguageError, GrammarError):
            wrong += 1
    assert wrong > 1


def test_pieces_may_share_texts() -> None:
    text = 'root ::= root x root | root y | "c"\nx ::= "ab" | "bb"\ny ::= "ab" | "aa"'
    grammar = read_grammar(text, dialect="gbnf")
    assert sorted(terminal.name for terminal in grammar.terminals) == ["c", "x", "y"]
    assert members(grammar) == derived(text)


def test_masks_of_random_grammars() -> None:
    tokens = vocabulary(*"abc", "ab", "ba", "cab", "bcb")
    for grammar in random_grammars(60, 72).values():
        guide = CFGGuide.of(grammar, tokens)
        assert_language(guide, guide.grammar, 2)


@pytest.mark.parametrize(
    ("text", "terminals"),
    [
        (JSON, 7),  # strings, numbers, and what stands between them, each with its blanks
        (ARITHMETIC, 8),  # blanks are taken apart, because a line may end behind them; names and numbers are not
        (C, 27),
        ('root ::= "a" root "a" | [b-z]', 2),
    ],
)
def test_pieces_are_as_large_as_they_can_be(text: str, terminals: int) -> None:
    assert len(read_grammar(text, dialect="gbnf").terminals) == terminals


def test_rules_without_recursion_are_one_regular_expression() -> None:
    assert read_grammar('root ::= x{2} "c"\nx ::= [ab]', dialect="gbnf").alone is not None
    assert read_grammar("root ::= x{2}\nx ::= [ab]?", dialect="gbnf").alone is not None
    assert read_grammar('root ::= "(" root ")" | "a"', dialect="gbnf").alone is None
    assert read_grammar('start: "a" B\nB: "b"').alone is None
    assert read_grammar('start: A?\nA: "b"+\n%ignore " "').alone is None


def test_lines_of_rules_are_kept() -> None:
    grammar = read_grammar('root ::= "(" x ")"\n\nx ::= "a" root | "b"', dialect="gbnf")
    assert {grammar.name(p.head): p.line for p in grammar.productions} == {"root": 1, "x": 3}
