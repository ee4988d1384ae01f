"""Many prompts at once: exact draws in shared model calls, and what they cost."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

import outlines_phi
from outlines_phi.lm import bundled

PROMPTS = [
    f"Order: {number} {size} {item} for {name}. JSON: "
    for number, size, item, name in [
        ("two", "small", "green tea", "Nora"),
        ("one", "large", "black coffee", "Hugo"),
        ("six", "medium", "apple pie", "Mara"),
        ("four", "small", "rye bread", "Otto"),
        ("three", "large", "tomato soup", "Zoe"),
        ("one", "medium", "lemon cake", "Felix"),
    ]
]


class Order(BaseModel):
    """An order of a shop."""

    item: str = Field(max_length=14)
    size: Literal["small", "medium", "large"]
    count: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    paid: bool


def main(n: int = 20) -> None:
    """Draw one order for each prompt, then ``n``, and report the bounds on the probability of the format."""
    model = outlines_phi.from_transformers(*bundled.load())
    generator = outlines_phi.Generator(model, Order)  # phi="exact"

    for prompt, text in zip(PROMPTS, generator.batch(PROMPTS, max_new_tokens=100), strict=True):
        order = Order.model_validate_json(text)
        print(f"{prompt[7:-7]:32} -> {order.count} x {order.size} {order.item}")

    results = generator.sample_batch(PROMPTS, n, max_new_tokens=100, seed=0)
    print(f"\n{n} draws for each of {len(PROMPTS)} prompts:")
    for prompt, draws in zip(PROMPTS, results, strict=True):
        lower, upper = draws.log_z_bounds
        guarantee = draws.guarantee.name.lower()
        print(
            f"{prompt[7:-7]:32} log Phi in [{lower:5.2f}, {upper:5.2f}], {draws.counts.attempts} attempts, {guarantee}"
        )
    counts = results[0].counts  # of the whole batch
    print(f"{counts.calls} model calls, {counts.prompt_tokens} prompt tokens, {counts.tokens} generated tokens in all")


if __name__ == "__main__":
    main()
