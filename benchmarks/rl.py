"""Policy gradients over roll-outs: exact and weighted ones come to the optimum of the conditioned policy, masked ones elsewhere.

    python -m benchmarks.rl [--trl 8]

The policy tilts a table by last token with a bias of the token ``a``, its one parameter; the format has four texts, so that every
expectation is a sum. With ``--trl`` also so many steps of the bundled model by ``trl.GRPOTrainer``, all of its parameters.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from outlines.types import regex
from torch import Tensor

import outlines_phi
from benchmarks.report import Report
from outlines_phi import Vocabulary
from outlines_phi.lm import TableModel, bundled
from outlines_phi.rl import Rollout, advantages, rollout_func, rollouts, weighted

VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "!", "?"], 0)
FORMAT = regex("[ab]{2}!")
MEMBERS = [(first, second, 3, 0) for first, second in itertools.product((1, 2), repeat=2)]
PROMPT = (0,)
NEVER = 1e-9
NEXT = {  # by last token: after "a" the format is hardly ever completed
    0: [NEVER, 0.5, 0.5, NEVER, NEVER],
    1: [NEVER, 0.3, 0.1, 0.05, 0.55],
    2: [NEVER, 0.3, 0.3, 0.35, 0.05],
    3: [1.0, NEVER, NEVER, NEVER, NEVER],
    4: [1.0, NEVER, NEVER, NEVER, NEVER],
}
ARMS = {"exact": ("exact", True), "weighted": ("local", True), "masked": ("local", False)}
"""By name: ``phi=``, and whether the weights are used."""


def reward(ids: Sequence[int]) -> float:
    """Return 1 where the two letters differ."""
    return float(ids[0] != ids[1])


class TiltedPolicy:
    """``p(v | u) ~ NEXT[u][v] exp(theta . features[:, v])``, as a language model whose logits follow ``theta``."""

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self.theta = torch.zeros(len(features), dtype=torch.float64, requires_grad=True)
        self.base = torch.tensor([NEXT[token] for token in sorted(NEXT)], dtype=torch.float64).log()
        lm = TableModel(VOCABULARY, lambda sequence: self.logits()[sequence[-1]].detach().numpy())
        self.model = outlines_phi.from_language_model(lm)

    def logits(self) -> Tensor:
        """Return ``[last, next]``."""
        return self.base + self.theta @ self.features

    def log_p(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return ``log p`` of each of some sequences of one length, which can be differentiated."""
        ids = torch.tensor([(*PROMPT, *each) for each in sequences])
        return self.logits().log_softmax(-1)[ids[:, :-1], ids[:, 1:]].sum(-1)

    def log_mu(self, masked: bool = False) -> Tensor:
        """Return the log of the conditioned distribution of the members; of that of masking, which is another."""
        log_p = self.log_p(MEMBERS)
        if not masked:
            return log_p.log_softmax(0)
        steps = self.logits().log_softmax(-1)
        allowed = [[1, 2], [1, 2], [3], [0]]
        log_s = [
            torch.stack([steps[u, allowed[t]].logsumexp(0) for t, u in enumerate((0, *ids[:-1]))]) for ids in MEMBERS
        ]
        return log_p - torch.stack(log_s).sum(-1)

    def expected(self, masked: bool = False) -> Tensor:
        """Return the expected reward, by enumeration."""
        return self.log_mu(masked).exp() @ torch.tensor(list(map(reward, MEMBERS)), dtype=torch.float64)


def bias_of_a() -> TiltedPolicy:
    """Return the policy of one parameter."""
    return TiltedPolicy(torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]], dtype=torch.float64))


def optimum() -> tuple[float, float]:
    """Return the best bias on a grid, and its expected reward."""
    policy, best = bias_of_a(), (0.0, 0.0)
    for theta in np.arange(-3, 3, 0.01):
        with torch.no_grad():
            policy.theta.fill_(theta)
            best = max(best, (policy.expected().item(), float(theta)))
    return best[1], best[0]


def loss_of(policy: TiltedPolicy, found: Sequence[Rollout], weigh: bool = True) -> Tensor:
    """Return the loss of GRPO on ``log p``, without a division by the standard deviation."""
    log_w = [one.log_w if weigh else 0.0 for one in found]
    a = advantages([reward(one.completion_ids) for one in found], log_w, [one.group for one in found])
    return -(torch.from_numpy(a) * policy.log_p([one.completion_ids for one in found])).mean()


def train(arm: str, seed: int, steps: int, n: int, rate: float = 4.0) -> TiltedPolicy:
    """Return the policy after so many steps: the mean of ``theta`` over the second half of them."""
    policy, (phi, weigh), second_half = bias_of_a(), ARMS[arm], []
    generator = outlines_phi.Generator(policy.model, FORMAT, phi=phi)
    optimizer = torch.optim.SGD([policy.theta], lr=rate)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(policy, rollouts(generator, [PROMPT], n, seed=10_000 * seed + step, max_new_tokens=5), weigh).backward()
        optimizer.step()
        second_half += [policy.theta.item()] * (2 * step >= steps)
    with torch.no_grad():
        policy.theta.fill_(statistics.mean(second_half))
    return policy


Role = Literal["wizard", "rogue", "healer", "ranger captain"]
ASKED = "Character: Aria is a brave elf. Role: "
WORTH = {"wizard": 0.0, "rogue": 1.0, "healer": 0.5, "ranger captain": 0.0}


def worth(rollout: list[Rollout], **_: Any) -> list[float]:
    """Return the reward of each role."""
    return [WORTH[one.value] for one in rollout]


def expected_worth(model: Any, tokenizer: Any) -> float:
    """Return the expected reward of a role under the conditioned distribution."""
    host = outlines_phi.from_transformers(model.eval(), tokenizer)
    found = outlines_phi.Generator(host, Role).probabilities(ASKED, tolerance=1e-4)
    return sum(WORTH[role] * p.p for role, p in found.items())


def unweighted(roll_out: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return roll-outs that pass for equal ones."""

    def masked(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        found = roll_out(prompts, trainer)
        return found | {"rollout": [replace(one, log_w=0.0) for one in found["rollout"]]}

    return masked


def grpo(arm: str, seed: int, steps: int, n: int, rate: float = 3e-4) -> float:
    """Return the expected reward of the bundled model after so many steps of TRL's own trainer."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = bundled.load()
    phi, weigh = ARMS[arm]
    roll_out = rollout_func(Role, phi=phi)
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            folder,
            per_device_train_batch_size=n,
            num_generations=n,
            max_completion_length=12,
            max_steps=steps,
            learning_rate=rate,
            lr_scheduler_type="constant",
            loss_type="dr_grpo",
            scale_rewards="none",
            seed=seed,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        GRPOTrainer(
            model,
            weighted(worth),
            arguments,
            Dataset.from_dict({"prompt": [ASKED] * n}),
            processing_class=tokenizer,
            rollout_func=roll_out if weigh else unweighted(roll_out),
        ).train()
    return expected_worth(model, tokenizer)


def _row(values: Sequence[float], best: float) -> tuple[float, float, float]:
    """Return the mean, its standard error, and the distance of the mean below ``best`` in standard errors."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.mean(values), error, (best - statistics.mean(values)) / error if error else 0.0


def main(
    seeds: Annotated[int, typer.Option(help="Runs of each kind.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps of a run.")] = 30,
    n: Annotated[int, typer.Option(help="Roll-outs of a step.")] = 48,
    trl: Annotated[int, typer.Option(help="Steps of the bundled model by TRL, where it is installed.")] = 0,
) -> None:
    """Measure and write ``rl.json``."""
    torch.set_num_threads(1)
    theta, best = optimum()
    report = Report(
        "rl",
        "Expected reward of the conditioned policy after training, by roll-outs",
        [
            "task",
            "roll-outs",
            "bias",
            "expected reward",
            "standard error",
            "below the optimum, in errors",
            "of masking",
        ],
    )
    report.add("one bias", "the optimum, by enumeration", theta, best, 0.0, 0.0, "")
    report.add(
        "one bias", "before", 0.0, bias_of_a().expected().item(), 0.0, 0.0, bias_of_a().expected(masked=True).item()
    )
    for arm in ARMS:
        found = [train(arm, seed, steps, n) for seed in range(seeds)]
        tilt = statistics.mean(policy.theta.item() for policy in found)
        masked = statistics.mean(policy.expected(masked=True).item() for policy in found)
        report.add("one bias", arm, tilt, *_row([policy.expected().item() for policy in found], best), masked)
    if trl:
        report.add("a role, TRL", "before", "", expected_worth(*bundled.load()), 0.0, 0.0, "")
        for arm in ARMS:
            report.add("a role, TRL", arm, "", *_row([grpo(arm, seed, trl, n) for seed in range(seeds)], 1.0), "")
    report.write(seeds=seeds, steps=steps, n=n, trl_steps=trl)


if __name__ == "__main__":
    typer.run(main)
