"""Long lists of phrases, as people ban them."""

import random
from collections.abc import Sequence

from outlines_phi.vocabulary.vocabulary import Vocabulary

SHORTEST, LONGEST = 5, 40
"""Bytes of a phrase."""


def words(vocabulary: Vocabulary) -> list[str]:
    """Return the tokens that are words of letters, with the space before them where they have one."""
    texts = (token.decode(errors="ignore") for token in vocabulary.tokens)
    return [text for text in texts if len(text) > 1 and text.removeprefix(" ").isalpha()]


def phrases(vocabulary: Vocabulary, count: int, seed: int = 0) -> list[str]:
    """Return ``count`` phrases made of the words of a vocabulary, of 5 to 40 bytes of UTF-8."""
    rng, known = random.Random(seed), words(vocabulary)
    found: dict[str, None] = {}
    while len(found) < count:
        length, text = rng.randint(SHORTEST, LONGEST), ""
        while len(text.encode()) < length:
            text += rng.choice(known)
        text = text.strip().encode()[:length].decode(errors="ignore").strip()
        if len(text.encode()) >= SHORTEST:
            found[text] = None
    return list(found)


def near(vocabulary: Vocabulary, banned: Sequence[str], steps: int, seed: int) -> list[int]:
    """Return ``steps`` tokens of a text that begins phrases and goes on with something else before they are complete."""
    rng, known = random.Random(seed), words(vocabulary)
    longest = max(map(len, vocabulary.tokens))
    ids = {token: v for v, token in enumerate(vocabulary.tokens) if token}
    text, tokens = b"", []
    while len(tokens) < steps:
        phrase = rng.choice(banned)
        text = phrase[: rng.randint(1, len(phrase) - 1)].encode()
        while text and len(tokens) < steps:
            piece = next(text[:k] for k in range(min(longest, len(text)), 0, -1) if text[:k] in ids)
            tokens.append(ids[piece])
            text = text[len(piece) :]
        if len(tokens) < steps:
            tokens.append(ids[rng.choice(known).encode()])
    return tokens
