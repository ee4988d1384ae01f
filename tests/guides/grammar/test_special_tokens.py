"""Special tokens in grammars of Lark's dialect and of guidance: what is read, what is refused, and llguidance beside it."""

import llguidance
import numpy as np
import pytest
from llguidance.hf import from_tokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from outlines_phi import GrammarError, Vocabulary
from outlines_phi.errors import VocabularyError
from outlines_phi.guides import CFGGuide, Guide, read_grammar
from outlines_phi.guides.guidance.guidance_grammar import GuidanceGrammar
from outlines_phi.lm import bundled

WORDS = Vocabulary.from_tokens(["<eos>", "a", "b", "<t>", "<t>", "<s>"], 0, special={"<t>": 4, "<s>": 5})


def test_names_and_ids_in_rules_templates_and_imports(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "parts.lark").write_text('item: <t> "a"  // <s>\n')
    (tmp_path / "all.lark").write_text('start: pair{item} <[5]>?\npair{x}: x x | "<t>"\n%import .parts (item)')
    guide = CFGGuide.of(read_grammar(tmp_path / "all.lark"), WORDS)
    for tokens in ([4, 1, 4, 1, 0], [3, 5, 0]):
        state = guide.start
        for token in tokens:
            state = guide.advance(state, token)
            assert state
    assert not guide.advance(guide.start, 5) and guide.text([4, 1, 3]) == b"a<t>"


@pytest.mark.parametrize(
    ("grammar", "error", "said"),
    [
        ('start: A\nA: "a" <t>', GrammarError, "a special token is no part of a lexeme"),
        ("start: <u>", VocabularyError, "Those like it|It has"),
        ("start: <[1]>", VocabularyError, "Write the text b'a'"),
        ("start: <[^4]>", GrammarError, "Name the special tokens"),
        ("start: <🙂>", GrammarError, "not expected here"),
        ('start: "\U000f0041"', GrammarError, "private character"),
    ],
)
def test_what_is_refused(grammar: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        CFGGuide.of(read_grammar(grammar), WORDS)


def test_a_terminal_has_none_in_llguidance_either() -> None:
    oracle = from_tokenizer(bundled.load()[1])
    for text in ('start: A\nA: "a" <[5]>', "start: A\nA: /a/ | <[5]>"):
        said = llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(text), oracle)
        assert "cannot be used in terminals" in said
        for refused in (read_grammar, lambda text: GuidanceGrammar(f"%llguidance {{}}\n{text}")):
            with pytest.raises(GrammarError, match="a special token is no part of a lexeme"):
                refused(text)


def test_captures_beside_special_tokens() -> None:
    """They are read by the tokens, which tell what the text does not, and show nothing of them."""
    grammar = GuidanceGrammar(
        "%llguidance {}\nstart: x | y\nx[capture]: <t> z\nz[capture]: /[ab]+/\ny[capture]: <s> /[ab]+/"
    )
    guide = grammar.guide(WORDS)
    texts = [guide.member(tokens).decode(errors="surrogateescape") for tokens in ([4, 1, 2], [5, 1, 2])]
    assert [grammar.captures(text) for text in texts] == [{"x": "ab", "z": "ab"}, {"y": "ab"}]
    with pytest.raises(ValueError, match="Take the value of a draw of sample"):
        grammar.captures("ab")


def test_a_guidance_grammar_names_tokens_that_there_are() -> None:
    with pytest.raises(VocabularyError, match="Those like it: '<t>'"):
        GuidanceGrammar("%llguidance {}\nstart: <u>").guide(WORDS)


@pytest.mark.parametrize(
    ("text", "gbnf"),
    [
        ('start: WORD? </think> ("YES" | "NO")\nWORD: /[a-z ]+/', 'root ::= [a-z ]* </think> ("YES" | "NO")'),
        ('start: e </think>\ne: <|x|> e "b" | "a"', 'root ::= e </think>\ne ::= <|x|> e "b" | "a"'),
        ("start: (<|x|> | </think>)* /[0-9]+/", "root ::= (<|x|> | </think>)* [0-9]+"),
    ],
)
def test_masks_are_those_of_llguidance(text: str, gbnf: str) -> None:
    _, tokenizer = bundled.load()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>", "<|x|>"]})
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    guides: list[Guide] = [
        CFGGuide.of(read_grammar(text), vocabulary),
        CFGGuide.of(read_grammar(gbnf, dialect="gbnf"), vocabulary),
        GuidanceGrammar(f"%llguidance {{}}\n{text}").guide(vocabulary),
    ]
    oracle, rng = from_tokenizer(tokenizer), np.random.default_rng(0)
    bits = allocate_token_bitmask(1, oracle.vocab_size)
    special = list(vocabulary.special.values())
    for _ in range(4):
        matcher, states = (
            llguidance.LLMatcher(oracle, llguidance.LLMatcher.grammar_from_lark(text)),
            [g.start for g in guides],
        )
        for _ in range(8):
            fill_next_token_bitmask(matcher, bits)
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(vocabulary)]
            for guide, state in zip(guides, states, strict=True):
                ours = np.unpackbits(guide.mask(state).view(np.uint8), bitorder="little")[: len(vocabulary)]
                differ = np.flatnonzero(ours != allowed).tolist()
                assert not differ, [tokenizer.convert_ids_to_tokens(one) for one in differ[:5]]
            live = np.flatnonzero(allowed)
            likely = np.intersect1d(live, special)
            token = int(rng.choice(likely if len(likely) and rng.random() < 0.4 else live))
            if token in vocabulary.eos_ids:
                break
            assert matcher.consume_token(token)
            states = [guide.advance(state, token) for guide, state in zip(guides, states, strict=True)]
