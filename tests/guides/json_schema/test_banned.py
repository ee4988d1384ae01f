"""Banned phrases beside a schema whose guide has a state of its own behind each token."""

from __future__ import annotations

import json
import random

from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.phrases.ban_language import banned
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.vocabulary.vocabulary import Vocabulary

VOCABULARY = Vocabulary.from_tokens(["<eos>", *(chr(code) for code in range(32, 127)), "ab", '"b', 'b"'], 0)


def test_items_that_must_differ_hold_no_phrase() -> None:
    """The numbers of such states are wider than 32 bits."""
    document = {"type": "array", "uniqueItems": True, "items": {"type": "string", "maxLength": 3}, "minItems": 2}
    guide = banned(JSONGuide.of(document, VOCABULARY, blanks=""), BannedPhrases(["bb"]))
    rng, texts = random.Random(1), []
    for _ in range(2):
        state, text = guide.start, b""
        while state != DONE and len(text) < 40:
            row = guide.row(state)
            targets = row.targets[row.partition.class_of]
            live = [token for token in range(len(VOCABULARY)) if targets[token] != DEAD]
            if len(text) > 8:
                live = [min(live, key=lambda token: guide.min_tokens(int(targets[token])))]
            token = rng.choice(live)
            assert guide.advance(state, token) == targets[token]
            state, text = int(targets[token]), text + VOCABULARY.tokens[token]
        texts.append(text.decode())
    values = [json.loads(text) for text in texts]
    assert all(len(set(value)) == len(value) >= 2 for value in values) and "bb" not in "".join(texts)
