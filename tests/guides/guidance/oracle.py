"""The language of llguidance itself, byte by byte, and the grammars that are compared with it."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlines_phi import Vocabulary

HEADER = "%llguidance {}\n"
BYTES = Vocabulary.from_tokens([bytes([byte]) for byte in range(256)] + [b"<eos>"], 256)
RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
"""Of each program of ``tests/hosts/guidance_programs.py`` what guidance made: its grammar, and the captures of some texts."""


class ByteTokens:
    """A tokenizer of single bytes, as llguidance takes them."""

    def __init__(self) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<|end|>"]
        self.eos_token_id, self.bos_token_id = len(self.tokens) - 1, None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def accepted(grammar: str, tokens: Sequence[int], longest: int) -> set[tuple[int, ...]]:
    """The sequences of at most ``longest`` tokens that llguidance accepts."""
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    wrapped = LLTokenizer(TokenizerWrapper(ByteTokens()))
    found: set[tuple[int, ...]] = set()

    def walk(matcher: Any, before: tuple[int, ...]) -> None:
        if matcher.is_accepting():
            found.add(before)
        for token in tokens if len(before) < longest else ():
            branch = matcher.deep_copy()
            if branch.try_consume_tokens([token]) == 1:
                walk(branch, (*before, token))

    matcher = LLMatcher(wrapped, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    walk(matcher, ())
    return found


GREEDY = ("/a+/", "/[ab]+/", "/ab?/", "/a*/", "/b/", "/[abc]/", "/c/", "/a(bc)?/", "/[ab]*c/", "/b+c?/")
# llguidance overlooks that a lazy lexeme matches with its first byte, where that ends the lexeme before.
LAZY = ("/[ab]*cc/", "/ab+/", "/a[bc]*a/", "/[bc]+a/")


def random_grammar(seed: int, *, recursive: bool) -> str:
    """A grammar of a few lexemes over a, b and c."""
    rng = random.Random(seed)
    lines, leaves = [], []
    for number in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.35:
            leaves.append(f'"{rng.choice(["a", "b", "c", "ab", "bc", "ca"])}"')
        elif kind < 0.7:
            lines.append(f"T{number}: {rng.choice(GREEDY)}")
            leaves.append(f"T{number}")
        elif kind < 0.85:
            lines.append(f"x{number}[lazy, capture]: {rng.choice(LAZY)}")
            leaves.append(f"x{number}")
        else:
            lines.append(f'x{number}[suffix="{rng.choice(["c", "bb", "ab"])}", capture]: /[ab]+/')
            leaves.append(f"x{number}")

    def part(depth: int) -> str:
        kind = rng.random()
        if depth == 0 or kind < 0.35:
            return rng.choice([*leaves, "e"] if recursive else leaves)
        if kind < 0.65:
            return f"{part(depth - 1)} {part(depth - 1)}"
        if kind < 0.85:
            return f"({part(depth - 1)} | {part(depth - 1)})"
        return f"({part(depth - 1)}){rng.choice(['*', '+', '?', '{1,2}'])}"

    rules = f"start: e\ne: {part(2)} | {rng.choice(leaves)}\n" if recursive else f"start: {part(3)}\n"
    return HEADER + rules + "\n".join(lines)
