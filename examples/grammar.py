"""A context-free grammar: balanced brackets, one pair around everything.

The model writes brackets, and often goes on with another pair after the first has closed. The grammar does not allow that, and
masking learns of it when the first pair is closed: the end of the text is all that is left, however improbable. Texts that end
early cost the model most, and masking writes too few of them: where a pair should close it goes on inside.
"""

from __future__ import annotations

from outlines.types import CFG

import outlines_phi
from outlines_phi.lm import bundled

PROMPT = "Brackets: "
GRAMMAR = """
start: pair
pair: "(" pair* ")"
    | "[" pair* "]"
    | "{" pair* "}"
"""


def depth(text: str) -> int:
    """Return the largest number of pairs that are open at once."""
    open_pairs = [0]
    for sign in text:
        open_pairs.append(open_pairs[-1] + (1 if sign in "([{" else -1))
    return max(open_pairs)


def main(n: int = 500) -> None:
    """Draw ``n`` texts of the grammar in each way, and compare their lengths and depths."""
    model = outlines_phi.from_transformers(*bundled.load())
    generator = outlines_phi.Generator(model, CFG(GRAMMAR))

    print(f"{'phi=':12}{'signs':>7}{'depth 1':>9}{'2':>7}{'3':>7}   worth   the first draws")
    for phi in ("local", "dp", "exact"):
        draws = generator.sample(PROMPT, n=n, phi=phi, max_new_tokens=24, seed=0)
        shares = [sum(depth(text) == level for text in draws.texts) / n for level in (1, 2, 3)]
        signs = sum(map(len, draws.texts)) / n
        print(
            f"{phi:12}{signs:7.1f}{shares[0]:9.0%}{shares[1]:7.0%}{shares[2]:7.0%}{draws.ess:8.0f}   "
            + " ".join(draws.texts[:3])
        )
        assert all(text[0] in "([{" for text in draws.texts)
    weighted = generator.sample(PROMPT, n=n, phi="local", max_new_tokens=24, seed=0)
    mean = sum(weight * len(text) for weight, text in zip(weighted.weights, weighted.texts, strict=True))
    print(f"\nMasked draws with their weights have {mean:.1f} signs: the weights undo what masking does.")


if __name__ == "__main__":
    main()
