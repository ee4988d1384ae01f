"""A search for what is banned in what was written, by Python's own means on the final bytes; and models that want to write it."""

import codecs
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from outlines_phi import BannedPhrases, Vocabulary
from outlines_phi.lm import TableModel

BROKEN = re.compile("[\udc80-\udcff]")


def leaks(ban: BannedPhrases, text: bytes, prompt: bytes = b"", *, ended: bool = True) -> list[str]:
    """Return the banned phrases in ``text`` after ``prompt``; its last word and character may go on unless it has ended."""
    before = prompt if ban.across_prompt else b""
    searched = read(before + text, ended)
    # A character that the prompt leaves unfinished ends in the text.
    own = read(before, False)
    found = []
    for phrase in ban.phrases:
        folds = ban.ignore_case and isinstance(phrase, str)
        letters, first = (searched.casefold(), len(own.casefold())) if folds else (searched, len(own))
        for start, stop in occurrences(phrase, letters, ban.ignore_case):
            beside = letters[max(0, start - 1) : start] + letters[stop : stop + 1]
            alone = not re.search(r"\w", beside) and (ended or stop < len(letters))
            if stop > first and (alone or not ban.whole_word):
                found.append(f"{phrase!r} in {letters!r}, written from {first} on")
    return found


def read(text: bytes, ended: bool) -> str:
    return codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(text, ended)


def occurrences(phrase: str | re.Pattern[str], letters: str, ignore_case: bool) -> Iterator[tuple[int, int]]:
    """Yield the spans of ``phrase`` in ``letters``, folded where case is ignored; bytes that are not UTF-8 match no pattern."""
    if isinstance(phrase, str):
        wanted = phrase.casefold() if ignore_case else phrase
        start = letters.find(wanted)
        while start >= 0:
            yield start, start + len(wanted)
            start = letters.find(wanted, start + 1)
        return
    pattern = re.compile(phrase.pattern, phrase.flags | (re.IGNORECASE if ignore_case else 0))
    for start in range(len(letters)):
        if pattern.match(letters, start):
            stops = (stop for stop in range(start + 1, len(letters) + 1) if pattern.fullmatch(letters, start, stop))
            yield from ((start, stop) for stop in stops if not BROKEN.search(letters, start, stop))


def begun(text: bytes, phrases: Sequence[bytes]) -> int:
    """Return the number of bytes at the end of ``text`` that begin one of ``phrases``, or are all of it."""
    return max((k for phrase in phrases for k in range(1, len(phrase) + 1) if text.endswith(phrase[:k])), default=0)


def wanting(
    vocabulary: Vocabulary, phrases: Sequence[bytes], *, strength: float = 1.5, ending: float = 0.0, seed: int = 0
) -> TableModel:
    """A model that begins phrases and goes on with them, however tokens spell them: for each doubling, ``strength`` nats."""
    noise = np.random.default_rng(seed).standard_normal((7, len(vocabulary)))
    noise[:, vocabulary.eos_ids[0]] += ending
    longest = max(map(len, phrases))

    @cache
    def desire(end: bytes) -> NDArray[np.float64]:
        return np.array(
            [
                strength * math.log2(1 + begun(end + spelled, phrases)) if spelled else 0.0
                for spelled in vocabulary.tokens
            ]
        )

    def law(sequence: tuple[int, ...]) -> NDArray[np.float64]:
        end = vocabulary.decode(sequence[-longest:])
        # What comes before the beginning of a phrase does not matter.
        return desire(end[len(end) - begun(end, phrases) :]) + noise[len(sequence) % 7]

    return TableModel(vocabulary, law)


def bigrams(logits: NDArray[np.floating], eos: int) -> Any:
    """A Hugging Face model whose next token depends on the last one alone, by ``logits[last, next]``."""
    size = len(logits)
    width = -(-size // 8) * 8
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=256,
        rms_norm_eps=1e-12,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.fill_(float("norm" in name))
        # A normalised unit vector has the length sqrt(width).
        model.model.embed_tokens.weight[:, :size] = torch.eye(size)
        model.lm_head.weight[:, :size] = torch.from_numpy(logits.T / math.sqrt(width)).float()
    return model


def following(vocabulary: Vocabulary, texts: Sequence[bytes], *, strength: float, seed: int = 0) -> NDArray[np.float64]:
    """Logits for :func:`bigrams` under which tokens are rather followed by those that follow them in ``texts``, however spelled."""
    logits = np.random.default_rng(seed).standard_normal((len(vocabulary), len(vocabulary)))
    places = [
        [{i for i in range(len(text)) if text.startswith(token, i)} if token else set() for token in vocabulary.tokens]
        for text in texts
    ]
    for starts in places:
        for first, token in enumerate(vocabulary.tokens):
            ends = {start + len(token) for start in starts[first]}
            for second, others in enumerate(starts):
                if ends & others:
                    logits[first, second] += strength
        logits[:, [v for v, found in enumerate(starts) if 0 in found]] += strength / 2
    return logits
