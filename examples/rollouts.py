"""Reinforcement learning of a conditioned policy: GRPO, in a plain loop, over roll-outs that follow the model given the format.

The bundled model learns which role to give to a character. ``outlines_phi.rl.rollout_func`` does the same inside TRL's trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

import outlines_phi
from outlines_phi.lm import bundled
from outlines_phi.rl import Rollout, advantages, rollouts

PROMPT = "Character: Aria is a brave elf. Role: "
Role = Literal["wizard", "rogue", "healer", "ranger captain"]


def log_p(model: Any, found: Sequence[Rollout]) -> torch.Tensor:
    """Return ``log p`` of each completion, which can be differentiated."""
    begun, longest = len(found[0].prompt_ids), max(len(one.completion_ids) for one in found)
    rows = torch.zeros(len(found), begun + longest, dtype=torch.long)
    written = torch.zeros(len(found), longest, dtype=torch.bool)
    for k, one in enumerate(found):
        ids = (*one.prompt_ids, *one.completion_ids)
        rows[k, : len(ids)] = torch.tensor(ids)
        written[k, : len(one.completion_ids)] = True
    steps = model(rows).logits[:, begun - 1 : -1].log_softmax(-1)
    return steps.gather(-1, rows[:, begun:, None])[..., 0].where(written, torch.tensor(0.0)).sum(-1)


def main(n: int = 64, steps: int = 8) -> None:
    """Train by so many steps of ``n`` roll-outs, and show the probability of a healer before and after."""
    hf_model, tokenizer = bundled.load()
    generator = outlines_phi.Generator(outlines_phi.from_transformers(hf_model, tokenizer), Role)
    optimizer = torch.optim.Adam(hf_model.parameters(), lr=3e-4)
    print(f"healer before: {generator.probabilities(PROMPT)['healer'].p:.2f}")
    for step in range(steps):
        found = rollouts(generator, [PROMPT], n, seed=step, max_new_tokens=12)
        rewards = [float(one.value == "healer") for one in found]
        a = advantages(rewards, [one.log_w for one in found], [one.group for one in found])
        optimizer.zero_grad()
        (-torch.from_numpy(a) * log_p(hf_model, found)).mean().backward()
        optimizer.step()
    print(f"healer after {steps} steps: {generator.probabilities(PROMPT)['healer'].p:.2f}")


if __name__ == "__main__":
    main()
