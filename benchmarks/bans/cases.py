"""The distributions and phrases that methods of banning are compared on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import outlines_phi
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.guides.table import Table
from outlines_phi.lm import bundled
from outlines_phi.lm.model import LanguageModel
from outlines_phi.lm.table_model import TableModel
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .texts import Ids, Text, every_text

OTHERS = {"linear": 0.25, "line": 0.15, "list": 0.1, "linary": 0.001, "simp": 0.3, "ring": 0.2}
"""The odds of the texts that the model writes beside the banned tactic; one is a slip of the pen."""

SPELLINGS: dict[str, dict[tuple[str, ...], float]] = {
    "linarith": {("lin", "arith"): 0.8, ("l", "inar", "ith"): 0.2},
    "linear": {("lin", "ear"): 1.0},
    "line": {("lin", "e"): 1.0},
    "list": {("l", "ist"): 1.0},
    "linary": {("l", "inar", "y"): 1.0},
    "simp": {("simp",): 1.0},
    "ring": {("ring",): 1.0},
}
"""The spellings of each tactic by the model, with the share of each."""

AGAIN = {"linear": 0.95, "line": 0.9, "list": 0.8, "linary": 0.8, "simp": 0.3, "ring": 0.6, "linarith": 0.3}
"""The probability of the banned tactic where a second one follows."""

END = 0.3
"""The probability that a proof has one tactic."""

LETTERS = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c"], 0)


@dataclass(frozen=True, eq=False)
class Case:
    """A model, a prompt and phrases, small enough to write every text down.

    Attributes
    ----------
    name, lm, settings, prompt
        The name, the model, its settings with the budget, and the prompt.
    phrases
        The banned phrases.
    spellings
        The arguments of a user of ``bad_words_ids``: one spelling of each phrase, that of the tokenizer.
    innocent
        The text that others share with the phrase; empty where that says nothing.
    """

    name: str
    lm: LanguageModel
    settings: SamplingSettings
    prompt: Ids
    phrases: tuple[bytes, ...]
    spellings: tuple[Ids, ...]
    innocent: bytes = b""

    @cached_property
    def texts(self) -> Text:
        """Every text."""
        budget = self.settings.max_new_tokens
        assert budget is not None
        return every_text(self.lm, self.settings, self.prompt, budget, self.phrases)

    @cached_property
    def every_spelling(self) -> tuple[Ids, ...]:
        """All spellings of the phrases in the vocabulary, and of the phrases after a space."""
        both = [before + phrase for phrase in self.phrases for before in (b"", b" ")]
        return tuple(ids for phrase in both for ids in spelled(phrase, self.lm.vocabulary))

    def request(self, n: int, seed: int) -> Request:
        """Return the call for ``n`` draws."""
        table = Table(PhraseGuide(self.lm.vocabulary, BannedPhrases(self.phrases, across_prompt=False)))
        settings = SamplingSettings(**{**vars(self.settings), "seed": seed})
        return Request(lm=self.lm, table=table, prompts=[self.prompt], settings=settings, n=n)


def spelled(phrase: bytes, vocabulary: Vocabulary) -> Iterator[Ids]:
    """Yield the token sequences that spell ``phrase``."""
    pieces = [(token, text) for token, text in enumerate(vocabulary.tokens) if text and text in phrase]

    def after(start: int) -> Iterator[Ids]:
        if start == len(phrase):
            yield ()
        for token, text in pieces:
            if phrase.startswith(text, start):
                yield from ((token, *rest) for rest in after(start + len(text)))

    yield from after(0)


def tactics(odds: float) -> Case:
    """Return proofs of one or two tactics, of which ``linarith`` is the first with these odds; it has two spellings.

    Other tactics begin with the same letters. Which tactic comes second depends on the first.
    """
    pieces = sorted({piece for spellings in SPELLINGS.values() for pieces in spellings for piece in pieces})
    starts = sorted({spelling[0] for spellings in SPELLINGS.values() for spelling in spellings})
    vocabulary = Vocabulary.from_tokens(["<eos>", "by ", *pieces, *(f" {start}" for start in starts)], 0)
    ids = {text.decode(): token for token, text in enumerate(vocabulary.tokens)}
    shares: dict[Ids, dict[int, float]] = {}

    def add(sequence: Sequence[int], p: float) -> None:
        for i, token in enumerate(sequence):
            below = shares.setdefault(tuple(sequence[:i]), {})
            below[token] = below.get(token, 0.0) + p

    def words(first: float, space: str) -> Iterator[tuple[str, Ids, float]]:
        """Yield each tactic, spelled, with its odds; ``first`` are those of linarith against all others."""
        for word, spellings in SPELLINGS.items():
            for (start, *rest), share in spellings.items():
                odds_of = first if word == "linarith" else OTHERS[word]
                yield word, tuple(ids[piece] for piece in (space + start, *rest)), share * odds_of

    for word, sequence, p in words(odds, ""):
        add((*sequence, 0), p * END)
        second = list(words(AGAIN[word] / (1 - AGAIN[word]), " "))
        total = math.fsum(q for *_, q in second)
        for _, more, q in second:
            add((*sequence, *more, 0), p * (1 - END) * q / total)

    def logits(sequence: Ids) -> np.ndarray:
        found = np.full(len(vocabulary), -np.inf)
        for token, p in shares[sequence[1:]].items():
            found[token] = math.log(p)
        return found

    lin, space_lin, arith = ids["lin"], ids[" lin"], ids["arith"]
    return Case(
        f"linarith, p = {odds / (1 + odds):.2g}" if odds < 100 else f"linarith, p = 1 - {1 / odds:.0e}",
        TableModel(vocabulary, logits),
        SamplingSettings(max_new_tokens=7),
        (ids["by "],),
        (b"linarith",),
        ((lin, arith), (space_lin, arith)),
        b"li",
    )


def random_case(seed: int) -> Case:
    """Return a random distribution over a few letters, and one or two random phrases of two to four letters."""
    rng = np.random.default_rng((20, seed))
    count = int(rng.integers(1, 3))
    phrases = tuple({bytes(rng.choice(list(b"abc"), size=rng.integers(2, 5)).tolist()) for _ in range(count)})
    longest = tuple(min(spelled(phrase, LETTERS), key=len) for phrase in phrases)
    lm = TableModel.random(LETTERS, seed=seed, scale=1.5)
    return Case(f"random {seed}", lm, SamplingSettings(max_new_tokens=5), (1, 5), phrases, longest)


def roles(top_k: int = 8) -> Case:
    """Return the bundled model on the role of a character, without one of its roles."""
    model = outlines_phi.from_transformers(*bundled.load())
    encode = model.hf_tokenizer.encode
    return Case(
        "ranger captain, bundled model",
        model.lm,
        SamplingSettings(max_new_tokens=5, top_k=top_k),
        tuple(encode("Character: Aria is a brave elf. Role: ")),
        (b"ranger captain",),
        (tuple(encode("ranger captain")), tuple(encode(" ranger captain"))),
        b"ranger",
    )
