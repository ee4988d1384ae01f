"""The transitions of tokens on a lexer's states, against lexing every token from every state."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.automata.lift import FIRST
from outlines_phi.guides.grammar.grammar import Terminal
from outlines_phi.guides.grammar.lexing.lexer import START, Lexer
from outlines_phi.guides.grammar.lexing.spanner import Spanner
from outlines_phi.vocabulary.classes import EOS, NEVER
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.guides.grammar.lexing.test_lexer import ALL, DYCK, KW, literals

WS = Terminal("WS", r"[ \n]+", ignored=True)
SYMBOLS = (Terminal("NAME", r"\w+"), *literals("→", "∀", "let", "in", "="), WS)
C_LIKE = (
    *literals("if", "int", "->", "-", "--", ".", "..."),
    Terminal("NAME", "[a-z]+"),
    Terminal("NUM", r"\d+(\.\d+)?(e-?\d+)?"),
    Terminal("COMMENT", r"/\*([^*]|\*+[^*/])*\*+/", ignored=True),
    *literals("/", "*"),
    WS,
)
LEXERS = {
    **ALL,
    "SYMBOLS": (SYMBOLS, ("→", "∀x", "let ", "é", "in", "\n", "=", b"\xe2", b"\x86\x92", b"\x88", b"\x80y", "л→")),
    "C_LIKE": (C_LIKE, ("if", "->", "1.", ".", "..1", "e", "-", "/*", "*/", "/**/", " x", "intx", "1e-", "*", "\n ")),
}


def counted(lexer: Lexer, word: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(t for t in word if not lexer.terminals[t].ignored)


def assert_spanned(lexer: Lexer, vocabulary: Vocabulary) -> None:
    spanner = Spanner(lexer, vocabulary)
    assert spanner.words[0] == ()
    steps = set()
    for state in range(len(lexer)):
        spans = spanner.of_state(state)
        assert spans is spanner.of_state(state)
        assert len(spans.target) == len(spans.word) == spans.partition.size
        class_of = spans.partition.class_of
        by_action: dict[tuple[int, tuple[int, ...]], int] = {}
        for v, token in enumerate(vocabulary.tokens):
            g = int(class_of[v])
            if not token:
                assert g == (EOS if v == vocabulary.eos_ids[0] else NEVER)
                continue
            run = lexer.lex(token, state) if state else None
            if run is None:
                assert g == NEVER
                continue
            action = (run[0], counted(lexer, run[1]))
            steps.add((state, *action))
            assert g >= FIRST and action == (spans.target[g], spanner.words[spans.word[g]])
            assert by_action.setdefault(action, g) == g, "tokens that act alike share a class"
        assert list(by_action.values()) == list(range(FIRST, spans.partition.size)), "no two classes act alike"
        assert spans.target[NEVER] == 0 and spans.word[NEVER] == 0
        end = lexer.flush(state) if state else None
        assert spans.target[EOS] == (0 if end is None else START)
        assert spanner.words[spans.word[EOS]] == counted(lexer, end or ())
    assert len(set(spanner.words)) == len(spanner.words)
    edges = spanner.edges()
    found = [(q, t, spanner.words[w]) for q, t, w in zip(*(part.tolist() for part in edges), strict=True)]
    held = [len(lexer.words[word]) for word in lexer.held.tolist()]
    assert len(set(found)) == len(found)
    assert set(found) == {step for step in steps if len(step[2]) <= held[step[0]] + 1}


def vocabulary_of(tokens: list[str | bytes]) -> Vocabulary:
    """Special ids at both ends, and a second end of sequence."""
    all_tokens = (b"", *[token.encode() if isinstance(token, str) else token for token in tokens], b"", b"")
    return Vocabulary(all_tokens, (len(all_tokens) - 1, 0), np.ones(len(all_tokens), dtype=bool))


@pytest.mark.parametrize("name", LEXERS)
def test_all_short_tokens(name: str) -> None:
    terminals, pieces = LEXERS[name]
    spelled = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    tokens = [b"".join(some) for n in (1, 2, 3) for some in product(spelled, repeat=n)]
    # Each twice: two ids with the same bytes.
    assert_spanned(Lexer.of(terminals), vocabulary_of([*tokens[:300], *tokens[:300:-3], *tokens[:40]]))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.sampled_from(sorted(LEXERS)), st.data())
def test_random_vocabularies(name: str, data: st.DataObject) -> None:
    terminals, pieces = LEXERS[name]
    spelled = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    token = st.lists(st.sampled_from([*spelled, b"\xff"]), max_size=4).map(b"".join)
    assert_spanned(Lexer.of(terminals), vocabulary_of(data.draw(st.lists(token, max_size=20))))


@pytest.mark.parametrize("name", ["C_LIKE", "SYMBOLS", "REENT", "RANGE"])
def test_only_the_text_matters(name: str) -> None:
    """T2: tokens one by one do what their bytes do, however the text is cut."""
    terminals, pieces = LEXERS[name]
    lexer = Lexer.of(terminals)
    spelled = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    vocabulary = vocabulary_of([*spelled, *(a + b for a, b in product(spelled, repeat=2))])
    spanner = Spanner(lexer, vocabulary)
    rng = np.random.default_rng(0)
    alive = 0
    for _ in range(2000):
        state, emitted = START, ()
        ids = rng.integers(1, len(vocabulary) - 2, size=rng.integers(1, 5)).tolist()
        for v in ids:
            spans = spanner.of_state(state)
            g = spans.partition.class_of[v]
            state, emitted = int(spans.target[g]), emitted + spanner.words[spans.word[g]]
        run = lexer.lex(vocabulary.decode(ids))
        alive += run is not None
        assert (run and (run[0], counted(lexer, run[1]))) == ((state, emitted) if state else None)
    assert alive > 100


def test_states_that_differ_by_their_own_terminal_share_classes() -> None:
    lexer = Lexer.of(DYCK)
    spanner = Spanner(lexer, vocabulary_of(["(", ")", "_", "()", "_)"]))
    complete = [(lexer.lex(text) or (0,))[0] for text in (b"(", b")")]
    one, other = (spanner.of_state(state) for state in complete)
    assert one.partition is other.partition and not np.array_equal(one.word, other.word)


def test_a_vocabulary_without_use() -> None:
    assert_spanned(Lexer.of(KW), vocabulary_of(["x", "xif"]))
    assert_spanned(Lexer.of(KW), vocabulary_of([]))


def test_terminals_that_are_held_back_come_in_one_word() -> None:
    lexer = Lexer.of(C_LIKE)
    spanner = Spanner(lexer, vocabulary_of(["1e-", "-x", ">", " "]))
    state, _ = lexer.lex(b"1e-") or (0, ())
    spans = spanner.of_state(state)
    words = {
        token: [C_LIKE[t].name for t in spanner.words[spans.word[spans.partition.class_of[v]]]]
        for v, token in enumerate(spanner.vocabulary.tokens)
        if token and spans.partition.class_of[v] != NEVER
    }
    assert words == {
        b"1e-": ["NUM", "NAME"],
        b"-x": ["NUM", "NAME", "--"],
        b">": ["NUM", "NAME"],
        b" ": ["NUM", "NAME", "-"],
    }
