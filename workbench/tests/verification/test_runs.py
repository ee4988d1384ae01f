"""Many texts read at once, against each of them read alone."""

from __future__ import annotations

import numpy as np
import pytest

from outlines_phi.guides.grammar.grammar import Terminal
from outlines_phi_workbench.verification.lexing import START, Lexing
from outlines_phi_workbench.verification.oracle import GrammarOracle
from outlines_phi_workbench.verification.runs import FAILED, Alike, Runs, WordTrees
from tests.guides.grammar.fixtures import FIXTURES, Fixture, grammar, words

TEXTS = [b"", b"a", b"aa", b"a+_a", b"+_+", b"x", b"ax", b"_", b"__"]
CALC = (Terminal("ID", "a+"), Terminal("PLUS", r"\+", literal=True), Terminal("WS", "_+", ignored=True))


def runs_of(lexing: Lexing) -> Runs:
    def step(state: int, byte: int) -> tuple[int, tuple[int, ...]] | None:
        move = lexing.run(bytes([byte]), state)
        return None if move is None else (move.state, move.word)

    return Runs(TEXTS, step)


def test_each_text_is_read_as_alone() -> None:
    lexing = Lexing(CALC)
    runs, tried = runs_of(lexing), 0
    for before in (b"", b"a", b"a+", b"_", b"aa_"):
        state = lexing.run(before).state
        found = runs.of(state)
        for text, target, word in zip(TEXTS, found.target.tolist(), found.word.tolist(), strict=True):
            move = lexing.run(text, state)
            assert (target == FAILED) == (move is None)
            assert move is None or (move.state, move.word) == (target, runs.words[word])
            tried += move is not None and bool(move.word)
    assert tried > 10


def test_outcomes_are_a_tree_of_words() -> None:
    runs = runs_of(Lexing(CALC))
    effects = runs.of(START)
    branches = WordTrees.of(effects, runs.words)
    spelled = [()]
    for before, terminal in branches.steps:
        spelled.append((*spelled[before], terminal))
    assert len(set(spelled)) == len(spelled)
    for place, target, word in zip(branches.of_text, effects.target, effects.word, strict=True):
        assert (place == -1) == (target == FAILED)
        assert place == -1 or spelled[branches.node[place]] == runs.words[word]
        assert place == -1 or branches.state[place] == target


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.id)
def test_outcomes_of_an_oracle(fixture: Fixture) -> None:
    """All texts at once have the points, and the futures, that each has alone."""
    oracle = GrammarOracle(fixture.grammar, [token.encode() for token in fixture.tokens])
    texts = tuple("".join(word).encode() for word in words(fixture.tokens, 2))
    for before in texts:
        point = oracle.advance(oracle.start, before)
        if point is None or not oracle.continues(point):
            continue
        found = oracle.outcomes(point, texts)
        for text, place in zip(texts, found.of_text.tolist(), strict=True):
            after = oracle.advance(point, text)
            assert (after is None) == (place == -1)
            assert found.continues[place] == (after is not None and oracle.continues(after))
            assert found.survives[place] == (after is not None and oracle.survives(after))
            assert place == -1 or not found.continues[place] or found.points[place] == after


def test_states_that_do_the_same() -> None:
    """One ``a`` and two are places in a pattern; what follows is the same."""
    oracle = GrammarOracle(grammar(CALC, "s: ID | s PLUS ID"))
    one, two, plus = (oracle.lexing.run(text).state for text in (b"a", b"aa", b"+"))
    assert one != two and Alike(oracle.step, oracle.end).are(one, two)
    assert not Alike(oracle.step, oracle.end).are(one, plus)
    assert not Alike(oracle.step, oracle.end).are(plus, START)


def test_tables_grow_with_the_states() -> None:
    runs = Runs([bytes([1] * n) for n in range(300)], lambda state, byte: (state + byte, (state,)))
    found = runs.of(5)
    assert found.target.tolist() == [5 + n for n in range(300)]
    assert runs.words[found.word[299]] == tuple(np.arange(5, 304).tolist())
