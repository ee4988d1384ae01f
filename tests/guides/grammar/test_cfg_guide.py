"""The masks of grammars, against their definition, which shares no code with the engine."""

import warnings
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, Vocabulary
from outlines_phi.errors import EmptyLanguageError, GrammarError, GrammarWarning
from outlines_phi.guides import CFGGuide
from outlines_phi.guides.grammar import cfg_guide, completion
from outlines_phi.guides.grammar.grammar import Grammar, Terminal
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Guide
from outlines_phi.guides.phrases.ban_language import banned
from outlines_phi.testing import assert_guide
from tests.guides.grammar.definition import Definition
from tests.guides.grammar.fixtures import FIXTURES, Fixture, grammar, vocabulary
from tests.guides.grammar.recognizer import grammars

fixed = settings(derandomize=True, deadline=None, max_examples=60)
WRITABLE = [fixture for fixture in FIXTURES if not fixture.empty]


def compiled(rules: Grammar, tokens: Vocabulary) -> CFGGuide:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrammarWarning)
        return CFGGuide.of(rules, tokens)


def assert_language(built: CFGGuide, rules: Grammar, depth: int) -> None:
    """Assert that a token is allowed if and only if it goes on to a member, and the end if and only if the text is one."""
    tokens, eos = built.vocabulary, built.vocabulary.eos_ids[0]
    definition = Definition(rules, tokens.decode(v for v in range(len(tokens)) if v != eos).decode())
    level = [(b"", built.start)]
    for _ in range(depth):
        below = []
        for text, state in level:
            assert (built.advance(state, eos) == DONE) == definition.is_member(text.decode()), text
            for token, spelled in enumerate(tokens.tokens):
                if token != eos:
                    target = built.advance(state, token)
                    assert (target != DEAD) == definition.is_prefix((text + spelled).decode()), (text, spelled)
                    below.append((text + spelled, target))
        level = [(text, state) for text, state in below if state != DEAD]


def assert_rows(built: CFGGuide, depth: int = 3) -> None:
    """Assert that rows, the distances that need no rows, and ``advance``, which reads one token, agree."""
    states = {built.start}
    for _ in range(depth):
        for state in states:
            row, tokens = built.row(state), range(len(built.vocabulary))
            one_by_one = [built.advance(state, token) for token in tokens]
            assert row.targets[row.partition.class_of].tolist() == one_by_one, built.describe(state)
            distances = built.distances_after(state)[row.partition.class_of]
            assert distances.tolist() == built.min_tokens_of(np.array(one_by_one)).tolist(), built.describe(state)
        states = {built.advance(s, v) for s in states for v in range(len(built.vocabulary))} - {DEAD, DONE}


def ways_to_end(built: Guide, depth: int) -> dict[int, int]:
    """The least tokens to the end, where at most ``depth``, of the states that as many tokens reach; by ``advance`` alone."""
    levels = [{built.start}]
    for _ in range(2 * depth):
        levels.append({built.advance(s, v) for s in levels[-1] for v in range(len(built.vocabulary))} - {DEAD, DONE})
    known = {state for level in levels for state in level}
    least = {DONE: 0}
    for steps in range(1, depth + 1):
        ending = {
            s for s in known - set(least) if any(built.advance(s, v) in least for v in range(len(built.vocabulary)))
        }
        least |= dict.fromkeys(ending, steps)
    return {state: steps for state, steps in least.items() if state in set().union(*levels[: depth + 1])}


@pytest.mark.parametrize("fixture", WRITABLE, ids=lambda fixture: fixture.id)
def test_what_the_grammar_derives_and_nothing_else(fixture: Fixture) -> None:
    built = compiled(fixture.grammar, fixture.vocabulary)
    assert_language(built, fixture.grammar, depth=4)
    assert_rows(built, depth=4)
    assert_guide(built, limit=300, shortest=False)


@pytest.mark.parametrize("fixture", WRITABLE, ids=lambda fixture: fixture.id)
def test_the_distance_is_an_upper_bound_that_a_token_lowers(fixture: Fixture) -> None:
    built = compiled(fixture.grammar, fixture.vocabulary)
    for state, least in ways_to_end(built, 3).items():
        assert least <= built.min_tokens(state) < UNREACHABLE, built.describe(state)


@pytest.mark.parametrize("fixture", WRITABLE, ids=lambda fixture: fixture.id)
def test_the_distance_is_the_least_where_each_token_is_a_byte(fixture: Fixture) -> None:
    built = compiled(fixture.grammar, vocabulary(*sorted({letter for token in fixture.tokens for letter in token})))
    for state, least in ways_to_end(built, 4).items():
        assert built.min_tokens(state) == least, built.describe(state)


TERMINALS = (
    (Terminal("A", "a"), Terminal("B", "b")),
    (Terminal("A", "a+"), Terminal("B", "b")),
    (Terminal("A", "a+"), Terminal("B", "ab")),
    (Terminal("A", "[ab]+"), Terminal("B", "b", literal=True)),
    (Terminal("A", "a+"), Terminal("B", "b"), Terminal("S", "_+", ignored=True)),
    (Terminal("A", "a(ba)?"), Terminal("B", "b"), Terminal("S", "_", ignored=True)),
)


@st.composite
def lexed(draw: st.DrawFn) -> Grammar:
    """Random grammars over terminals that overlap, that cannot stand side by side, that are cut by going back."""
    terminals, rules = draw(st.sampled_from(TERMINALS)), draw(grammars())
    shift = len(terminals) - 2
    moved = tuple(
        type(p)(p.head + shift, tuple(s if s < 2 else s + shift for s in p.body), p.line) for p in rules.productions
    )
    return Grammar(terminals, rules.nonterminals, moved, rules.start + shift)


tokens = st.lists(st.text("ab_", min_size=2, max_size=3), max_size=3, unique=True).map(
    lambda longer: vocabulary("a", "b", "_", *longer)
)


@fixed
@given(lexed(), tokens)
def test_any_grammar_over_any_vocabulary(rules: Grammar, letters: Vocabulary) -> None:
    try:
        built = compiled(rules, letters)
    except (EmptyLanguageError, GrammarError):
        definition = Definition(rules, "ab_")
        texts = ("".join(word) for n in range(1, 5) for word in product("ab_", repeat=n))
        assert not any(map(definition.is_member, texts))
        return
    assert_language(built, built.grammar, depth=4)
    assert_rows(built)
    assert_guide(built, limit=60, shortest=False)


def test_a_longer_lexeme_that_fails_on_the_only_way_to_the_end() -> None:
    """After ``a`` the lexer waits for ``abc``; that it is ``a`` and ``b`` only shows with the ``d``."""
    terminals = (Terminal("A", "a"), Terminal("ABC", "abc"), Terminal("B", "b"), Terminal("D", "d"))
    found = grammar(terminals, "s: A B D | s ABC A")
    built = compiled(found, vocabulary("a", "b", "c", "d", "bd"))
    assert_language(built, found, depth=6)
    assert built.min_tokens(built.start) == 4


def test_the_definition_finds_dead_ends_that_are_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = next(fixture for fixture in FIXTURES if fixture.id == "DEAD")
    built = compiled(dead.grammar, dead.vocabulary)
    monkeypatch.setattr(completion.Completion, "distance", lambda *given: 9)
    with pytest.raises(AssertionError):
        assert_language(built, dead.grammar, depth=2)


def test_the_oracle_finds_words_that_are_parsed_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    calc = FIXTURES[0]
    of = cfg_guide.TerminalWords.of
    monkeypatch.setattr(cfg_guide.TerminalWords, "of", lambda words, number: of([word[:1] for word in words], number))
    with pytest.raises(AssertionError):
        assert_rows(compiled(calc.grammar, calc.vocabulary))


def test_what_cannot_be_written_is_refused() -> None:
    empty = next(fixture for fixture in FIXTURES if fixture.empty)
    with pytest.raises(EmptyLanguageError, match="no text of this output type"):
        compiled(empty.grammar, empty.vocabulary)


def test_phrases_are_banned_from_a_grammar() -> None:
    calc = FIXTURES[0]
    built = banned(compiled(calc.grammar, calc.vocabulary), BannedPhrases(["a+a", "aaa"]))
    definition, names = Definition(calc.grammar, ""), calc.vocabulary.tokens
    level = [((), built.start)]
    for _ in range(4):
        for ids, state in level:
            text = calc.vocabulary.decode(ids)
            allowed = definition.is_member(text.decode()) and b"a+a" not in text and b"aaa" not in text
            assert (built.advance(state, len(names) - 1) == DONE) == allowed, text
        below = [((*ids, v), built.advance(state, v)) for ids, state in level for v in range(len(names) - 1)]
        level = [(ids, state) for ids, state in below if state != DEAD]
    assert any(b"+" in calc.vocabulary.decode(ids) for ids, _ in level)
