"""``max_tokens``: the tokens that have a byte of a lexeme, counted by the guide's states."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from outlines_phi.errors import EmptyLanguageError, GrammarError
from outlines_phi.guides.guidance.captures import TextReading
from outlines_phi.guides.guidance.guidance_grammar import GuidanceGrammar
from outlines_phi.guides.guidance.guidance_rules import GuidanceRules
from outlines_phi.guides.guidance.productions import Productions
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.guides.guidance.oracle import HEADER, ByteTokens, accepted, allowed

MORE = [b"aa", b"ab", b"ca", b"bc", b"aba"]
TOKENS = [bytes([byte]) for byte in range(256)] + MORE
VOCABULARY = Vocabulary.from_tokens([*TOKENS, b"<eos>"], len(TOKENS))
USED = [*b"abc", 256, 258, 259]

RULES = [
    'start: x "c"\nx[max_tokens={n}]: A\nA: /a+/',
    'start: "c" x "c"?\nx[max_tokens={n}]: A\nA: /a*/',
    'start: (x "b")+\nx[max_tokens={n}]: A\nA: /a+/',
    'start: B x "c"?\nx[max_tokens={n}]: A\nA: /[ab]*/\nB: /a/',
    "start: x y\nx[max_tokens={n}]: A\ny[max_tokens=1]: B\nA: /a+/\nB: /[bc]+/",
    'start: (x | y) "c"\nx[max_tokens={n}]: A\ny[max_tokens=1]: B\nA: /a+/\nB: /[ab]+/',
    "start: x\nx[max_tokens={n}]: A\nA: /(?s:.*)/",
    'start: (x "c"?)+\nx[max_tokens={n}, suffix="b"]: A\nA: /a*/',
]


@cache
def productions(rules: str) -> Productions:
    return Productions.of(GuidanceRules(HEADER + rules))


def within(rules: str, tokens: tuple[int, ...], *, counted: bool = True) -> bool:
    """The definition: whether the text is one of the grammar, with lexemes that few enough tokens have a byte of."""
    text = b"".join(TOKENS[token] for token in tokens)
    token_of = [place for place, token in enumerate(tokens) for _ in TOKENS[token]]
    reading = TextReading(productions(rules), text, {})
    if not reading.holds:
        return False
    # A lexeme of several kinds is of one that is within its limit, which must fit what follows: here any does.
    return not counted or all(
        any(
            kind.max_tokens is None or len({*token_of[piece.begin : piece.end]}) <= kind.max_tokens
            for kind in piece.kinds
        )
        for piece in reading.pieces
    )


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("rules", RULES[:5] + RULES[6:])
def test_all_sequences_are_those_of_the_definition(rules: str, n: int) -> None:
    rules = rules.format(n=n)
    guided = allowed(GuidanceGrammar(HEADER + rules).guide(VOCABULARY), USED, n + 2)
    every = [tokens for length in range(n + 3) for tokens in product(USED, repeat=length)]
    assert guided == {tokens for tokens in every if within(rules, tokens)}
    # The power of this: without the count there are more.
    assert guided < {tokens for tokens in every if within(rules, tokens, counted=False)}


@pytest.mark.parametrize("n", [1, 2, 3])
def test_at_the_beginning_llguidance_counts_alike(n: int) -> None:
    pytest.importorskip("llguidance")
    for rules in (RULES[0], RULES[2]):
        grammar = HEADER + rules.format(n=n)
        guided = allowed(GuidanceGrammar(grammar).guide(VOCABULARY), USED, 4)
        assert guided == accepted(grammar, USED, 4, ByteTokens(MORE))


def test_of_several_kinds_each_has_its_limit() -> None:
    guide = GuidanceGrammar(HEADER + RULES[5].format(n=3)).guide(VOCABULARY)
    a, b, c, aa = 97, 98, 99, 256
    found = allowed(guide, [a, b, c, aa], 4)
    assert {(a, a, a, c), (aa, a, c), (b, c), (aa, c)} <= found and not {(b, b, c), (a, b, c)} & found


def test_distances_and_long_limits() -> None:
    guide = GuidanceGrammar(HEADER + 'start: x "."\nx[max_tokens=200]: A\nA: /[a-c]{2,}/').guide(VOCABULARY)
    assert guide.min_tokens(guide.start) == 3
    state = guide.start
    for _ in range(200):
        state = guide.advance(state, 97)
    assert guide.advance(state, 97) == 0 and guide.min_tokens(state) == 2
    assert guide.min_tokens(guide.advance(state, ord("."))) == 1


def test_a_limit_that_no_text_keeps() -> None:
    with pytest.raises(EmptyLanguageError, match="Raise `max_tokens`"):
        GuidanceGrammar(HEADER + "start: x\nx[max_tokens=1]: A\nA: /a{4}/").guide(VOCABULARY)


@pytest.mark.parametrize(
    "rules",
    [
        'start: e\ne: x | "(" e ")"\nx[max_tokens=3]: A\nA: /a+/',
        'start: x " " j\nx[max_tokens=3]: A\nA: /a+/\nj: %json {"type": "null"}',
    ],
)
def test_beside_recursion_and_values_a_limit_is_refused(rules: str) -> None:
    with pytest.raises(GrammarError, match="Bound the regular expression instead"):
        GuidanceGrammar(HEADER + rules)
