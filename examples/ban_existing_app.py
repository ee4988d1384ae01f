"""A ban for an application that is there already, in one line on each road.

An application calls stock Outlines, its classic functions, or Hugging Face's own ``generate``. Each keeps its type, its prompts and
its calls.
"""

from __future__ import annotations

from typing import Literal

import outlines
import torch

import outlines_phi
from outlines_phi.lm import bundled

PROMPT = "Question: is the bakery open on Sunday? Answer: "
ANSWER = Literal["yes", "no, it is closed", "nobody knows"]
BANNED = ["closed"]


def main(n: int = 200) -> None:
    """Draw ``n`` answers on each road."""
    hf_model, tokenizer = bundled.load()
    torch.manual_seed(1)
    options = {"do_sample": True, "max_new_tokens": 20, "num_return_sequences": n}

    # A stock generator: the same class, which masks in the same loop.
    generator = outlines.Generator(outlines.from_transformers(hf_model, tokenizer), ANSWER)
    generator = outlines_phi.ban(generator, BANNED)
    show("outlines.Generator, banned", generator(PROMPT, **options))

    # Hugging Face's generate: one processor more.
    inputs = tokenizer([PROMPT], return_tensors="pt")

    def answers(**more: object) -> list[str]:
        rows = hf_model.generate(**inputs, **options, **more)[:, inputs["input_ids"].shape[1] :]
        return tokenizer.batch_decode(rows, skip_special_tokens=True)

    processor = outlines_phi.ban(hf_model, BANNED, tokenizer=tokenizer)
    show("generate, free text", answers())
    show("generate, banned", answers(logits_processor=[processor]))

    # An Outlines model: wrapped, so that free text is drawn with a look-ahead instead of a mask.
    model = outlines.from_transformers(hf_model, tokenizer)
    show("Outlines model, free text", model(PROMPT, **options))
    model = outlines_phi.ban(model, BANNED)
    show("Outlines model, banned", model(PROMPT, **options))

    # A generator of this package, with what it cost.
    draws = outlines_phi.Generator(model, ANSWER, phi="exact").sample(PROMPT, n)
    show("outlines_phi.Generator", draws.texts)
    print(draws)


def show(road: str, texts: list[str]) -> None:
    """Print the number of texts with the phrase."""
    print(f"{road:28}with the phrase: {sum('closed' in text for text in texts)} of {len(texts)}")


if __name__ == "__main__":
    main()
