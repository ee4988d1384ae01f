"""Without Outlines: Hugging Face's own ``generate``, three ways.

A choice whose truth is computed beside it. ``custom_generate=`` hands the call to the exact sampler. A logits processor
stays in Hugging Face's loop: its draws are biased as those of every mask are, and its weights undo the bias.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

import outlines_phi
from outlines_phi.fidelity.probabilities import probabilities
from outlines_phi.lm import bundled
from outlines_phi.lm.transformers.transformers_model import TransformersModel
from outlines_phi.phi.tree.tree import BoundsTree

PROMPT = "Question: is the bakery open on Sunday? Answer: "
ANSWER = Literal["yes", "no", "not now"]
BUDGET = 12
TEMPERATURE = 0.7


def truth(model: Any, processor: outlines_phi.PhiLogitsProcessor, prompt: list[int]) -> dict[str, float]:
    """Return the distribution of the model conditioned on the format, by enumeration."""
    lm = TransformersModel(model, processor.table.vocabulary)
    trees = [BoundsTree(processor.table, BUDGET)]
    (found,) = probabilities(lm, processor.settings, [prompt], trees, tolerance=1e-9, max_tokens=10_000)
    return found.distribution


def main(n: int = 2000) -> None:
    """Draw ``n`` answers on each road and compare them with the truth."""
    model, tokenizer = bundled.load()
    inputs = tokenizer([PROMPT], return_tensors="pt")
    length = inputs["input_ids"].shape[1]

    def texts(sequences: torch.Tensor) -> list[str]:
        return tokenizer.batch_decode(sequences[:, length:], skip_special_tokens=True)

    exact = model.generate(
        **inputs,
        custom_generate=outlines_phi.custom_generate,
        output_type=ANSWER,
        vocabulary=tokenizer,
        phi="exact",
        temperature=TEMPERATURE,
        max_new_tokens=BUDGET,
        num_return_sequences=n,
        seed=1,
    )

    processor = outlines_phi.PhiLogitsProcessor(
        model, ANSWER, tokenizer=tokenizer, phi="onestep", temperature=TEMPERATURE, max_new_tokens=BUDGET
    )
    torch.manual_seed(1)
    proposed = model.generate(**inputs, logits_processor=[processor], num_return_sequences=n, **processor.host_options)
    w = np.exp(processor.log_w(proposed))

    distribution = truth(model, processor, inputs["input_ids"][0].tolist())
    print(f"{'':10}{'truth':>10}{'exact':>10}{'processor':>12}{'weighted':>10}")
    drawn, inside = texts(exact), np.array(texts(proposed))
    for text, p in sorted(distribution.items()):
        share = np.mean(inside == text)
        weighted = w[inside == text].sum() / w.sum()
        print(f"{text:10}{p:10.1%}{drawn.count(text) / n:10.1%}{share:12.1%}{weighted:10.1%}")
    print(f"\nestimate of Phi by the weights: {w.mean():.3f}")


if __name__ == "__main__":
    main()
