"""A choice of two texts: how often each way of sampling gives them, beside the truth.

The model answers ``no`` mostly with a reason (``no, it is closed``). Where only the bare words may be written,
masking has paid for the ``no`` before it meets the reason that it must not write.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import outlines

import outlines_phi
from outlines_phi.fidelity.findings import frequencies, noise_floor, total_variation
from outlines_phi.lm import bundled

PROMPT = "Question: is the bakery open on Sunday? Answer: "
Answer = Literal["yes", "no"]


def main(n: int = 2000) -> None:
    """Draw ``n`` answers each way and compare them with the distribution that they should follow."""
    model = outlines_phi.from_transformers(*bundled.load())
    generator = outlines.Generator(model, Answer)  # stock Outlines; nothing is patched

    plain = generator(PROMPT, num_return_sequences=n, max_new_tokens=8)
    exact = generator(PROMPT, num_return_sequences=n, max_new_tokens=8, phi="exact")

    # The truth: every tokenization of every answer under the model, summed and normalised.
    found = outlines_phi.Generator(model, Answer).probabilities(PROMPT, tolerance=1e-9, max_new_tokens=8)
    truth = found.distribution

    print(f"{'':8}{'truth':>8}{'plain':>8}{'exact':>8}   of {n} draws")
    before, after = Counter(plain), Counter(exact)
    for text, p in truth.items():
        print(f"{text:8}{p:8.1%}{before[text] / n:8.1%}{after[text] / n:8.1%}")
    for name, texts in (("plain", plain), ("exact", exact)):
        print(f"total variation, {name}: {total_variation(truth, frequencies(texts)):.3f}")
    print(f"noise floor of {n} draws: {noise_floor(truth, n):.3f}")


if __name__ == "__main__":
    main()
