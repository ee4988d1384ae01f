"""The cost of look-ahead in model tokens: around phrases that a model is sure to write, and where none is ever close.

    python -m benchmarks.ban_tokens

Counts, the same on every machine. An unconstrained draw of the same length costs a model token for every token but the last.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.report import Report
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.guides.table import Table
from outlines_phi.lm.table_model import TableModel
from outlines_phi.sampling.lookahead import LookaheadSampler
from outlines_phi.sampling.phi_options import LookaheadPhi
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary.vocabulary import Vocabulary

PHRASES = {1: ("abc", 1), 4: ("abc", 3), 32: ("abcdef", 6)}
"""A phrase with so many spellings, and the most letters of a token: all its parts up to that length are tokens."""

OTHERS = (" ", "x", "y", "z", " x", "xy", "yz", " zx")
UNLIKELY = 1e-12
"""The probability of all other tokens together, wherever the phrase is wanted or begun."""

Wanted: TypeAlias = Callable[[int], bool]
"""A predicate: True if the phrase is wanted after so many tokens."""

SHAPES: dict[str, Wanted] = {
    "wanted once": lambda written: written == 16,
    "wanted at every 32nd token": lambda written: written % 32 == 16,
    "wanted at every token": lambda written: True,
}
RULES = {
    "tokens": LookaheadPhi(),
    'tokens, release="early"': LookaheadPhi(release="early"),
    "tokens, weights": LookaheadPhi(weights=True),
}


def shares(sequence: Sequence[int], among: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return a random distribution ``among`` some tokens, which depends on the last three."""
    drawn = np.random.default_rng((9, *sequence[-3:])).exponential(size=len(among)) * among
    return drawn / drawn.sum()


def wanting(phrase: str, most: int, wanted: Wanted) -> TableModel:
    """Return a model that writes ``phrase`` wherever it is wanted, in any spelling, and other things elsewhere, without an end."""
    pieces = {phrase[i : i + k] for k in range(1, most + 1) for i in range(len(phrase) - k + 1)}
    vocabulary = Vocabulary.from_tokens(["<eos>", *OTHERS, *sorted(pieces)], 0)
    others = np.array([token.decode() in OTHERS for token in vocabulary.tokens])

    def distribution(sequence: tuple[int, ...]) -> NDArray[np.float64]:
        text = vocabulary.decode(sequence[1:]).decode()
        begun = next(k for k in range(len(phrase) - 1, -1, -1) if text.endswith(phrase[:k]))
        p = shares(sequence, others)
        if begun or wanted(len(sequence) - 1):
            rest = phrase[begun:].encode()
            p *= UNLIKELY
            p += (1 - UNLIKELY) * shares(
                sequence, np.array([bool(token) and rest.startswith(token) for token in vocabulary.tokens])
            )
        with np.errstate(divide="ignore"):
            return np.log(p)

    return TableModel(vocabulary, distribution)


def harmless(letters: Sequence[str]) -> TableModel:
    """Return a model that writes ``letters``, without an end."""
    vocabulary = Vocabulary.from_tokens(["<eos>", *letters], 0)
    live = np.array([bool(token) for token in vocabulary.tokens])

    def distribution(sequence: tuple[int, ...]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):
            return np.log(shares(sequence, live))

    return TableModel(vocabulary, distribution)


def cost(lm: TableModel, phrases: Sequence[str], length: int, draws: int, phi: LookaheadPhi) -> list[int]:
    """Return the model tokens of each of some draws, of ``length`` tokens, that share nothing."""
    table = Table(PhraseGuide(lm.vocabulary, BannedPhrases(phrases, across_prompt=False)))
    found = []
    for seed in range(draws):
        settings = SamplingSettings(max_new_tokens=length, seed=seed)
        (drawn,) = LookaheadSampler(phi).sample(Request(lm=lm, table=table, prompts=[(1,)], settings=settings))
        (draw,) = drawn
        text = lm.vocabulary.decode(draw.token_ids).decode()
        assert len(draw.token_ids) == length and not any(phrase in text for phrase in phrases)
        found.append(drawn.counts.tokens)
    return found


def main(
    draws: Annotated[int, typer.Option(help="Draws of each kind, one call each.")] = 20,
    length: Annotated[int, typer.Option(help="Tokens of a draw.")] = 128,
    phrases: Annotated[int, typer.Option(help="Phrases of the long list.")] = 1000,
) -> None:
    """Count and write ``benchmarks/results/ban_tokens.json``."""
    report = Report(
        "ban_tokens",
        f"Model tokens of a draw of {length} tokens without a phrase (mean)",
        [
            "the phrase",
            "spellings",
            "unconstrained",
            *(f"{name}{what}" for name in RULES for what in ("", " / unconstrained")),
        ],
    )
    rng = np.random.default_rng(0)
    many = ["".join(rng.choice(list("abcdefgh"), size=rng.integers(5, 12))) + "!" for _ in range(phrases)]
    kinds = [
        (shape, spellings, wanting(phrase, most, wanted), [phrase])
        for shape, wanted in SHAPES.items()
        for spellings, (phrase, most) in PHRASES.items()
    ]
    kinds += [
        ("never begun", 1, harmless(OTHERS), ["abc"]),
        ("begun now and then, never written", 1, harmless(("x", "y", "a", "ab", "b")), ["abc"]),
        (f"{phrases} phrases, something waits nearly always", 1, harmless(tuple("abcdefgh")), many),
    ]
    for name, spellings, lm, banned in kinds:
        costs = [statistics.mean(cost(lm, banned, length, draws, phi)) for phi in RULES.values()]
        plain = length - 1
        report.add(name, spellings, plain, *(x for each in costs for x in (float(each), each / plain)))
    report.write(draws=draws, length=length, **{"probability of the phrase": f"> 1 - {6 * UNLIKELY:.0e}"})


if __name__ == "__main__":
    typer.run(main)
