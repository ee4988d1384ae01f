"""Classification by true probabilities: what the model thinks of each label, and what masking makes of it.

An application that wants a distribution over labels often draws many constrained answers and counts. Masked draws follow
another distribution than the model's, so their frequencies are off however many there are. The probabilities themselves are
computed here, summed over every way to spell a label, in a few model calls.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

import outlines_phi
from outlines_phi.lm import bundled

PROMPTS = (
    "Character: Aria is a brave elf. Role: ",
    "Character: Hugo is a quiet dwarf. Role: ",
)


class Role(Enum):
    """The role of a character."""

    WIZARD = "wizard"
    ROGUE = "rogue"
    HEALER = "healer"
    CAPTAIN = "ranger captain"


def main(n: int = 2000) -> None:
    """Compare ``n`` masked answers per prompt with the probabilities."""
    model = outlines_phi.from_transformers(*bundled.load())
    generator = outlines_phi.Generator(model, Role)

    results = generator.probabilities_batch(list(PROMPTS))
    for prompt, distribution in zip(PROMPTS, results, strict=True):
        masked = Counter(generator(prompt, phi=None, do_sample=True, num_return_sequences=n, max_new_tokens=12))
        print(prompt)
        print(f"  {'role':16}{'probability':>12}{'masked':>9}")
        for role, probability in distribution.items():
            print(f"  {role.value:16}{probability.p:12.1%}{masked[role.value] / n:9.1%}")
        best = generator.mode(prompt)
        print(f"  the most probable answer: {best[0].value} (proven: gap {best.gap})")
    counts = results[0].counts
    print(f"{len(PROMPTS)} prompts took {counts.calls} model calls and {counts.tokens} tokens; the modes took none")


if __name__ == "__main__":
    main()
