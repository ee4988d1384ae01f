"""Roll-outs: their gradient is that of the conditioned policy, by enumeration, and masked ones fail the same tests."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import peft
import pytest
import torch

import outlines_phi
from benchmarks.rl import (
    ARMS,
    ASKED,
    FORMAT,
    MEMBERS,
    PROMPT,
    WORTH,
    Role,
    TiltedPolicy,
    bias_of_a,
    loss_of,
    optimum,
    reward,
    train,
    unweighted,
    worth,
)
from outlines_phi import EmptyLanguageError, UnsupportedError
from outlines_phi.lm import bundled
from outlines_phi.rl import Rollout, advantages, rollout_func, rollouts, weighted, weights
from tests.refusals import refused

THETA = (0.4, -0.3, 0.6)
GROUPS, N = 60, 16
REWARDS = np.array([reward(ids) for ids in MEMBERS])
LORA = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4, lora_alpha=2, init_lora_weights=False)


def tilted() -> TiltedPolicy:
    policy = TiltedPolicy(torch.eye(5, dtype=torch.float64)[1:4])
    with torch.no_grad():
        policy.theta += torch.tensor(THETA)
    return policy


def trained(model: Any) -> list[torch.Tensor]:
    return [each for each in model.parameters() if each.requires_grad]


def differences(policy: TiltedPolicy, step: float = 1e-5) -> np.ndarray:
    """The gradient of the expected reward by central differences."""
    found = []
    with torch.no_grad():
        for k in range(len(policy.theta)):
            policy.theta[k] += step
            above = policy.expected()
            policy.theta[k] -= 2 * step
            found.append(float(above - policy.expected()) / (2 * step))
            policy.theta[k] += step
    return np.array(found)


def gradient(policy: TiltedPolicy, a: np.ndarray) -> np.ndarray:
    (found,) = torch.autograd.grad((torch.from_numpy(a) * policy.log_p(MEMBERS)).mean(), policy.theta)
    return found.numpy()


def sampled(phi: str, weigh: bool = True, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """The mean over groups of the estimated gradient, and its standard error."""
    policy = tilted()
    generator = outlines_phi.Generator(policy.model, FORMAT, phi=phi)
    found = rollouts(generator, [PROMPT], GROUPS * n, seed=0, max_new_tokens=5)
    scores = np.stack([gradient(policy, 4 * np.eye(4)[k]) for k in range(4)])
    log_w = [one.log_w if weigh else 0.0 for one in found]
    a = advantages([reward(one.completion_ids) for one in found], log_w, np.arange(len(found)) // n)
    each = a[:, None] * scores[[MEMBERS.index(one.completion_ids) for one in found]]
    by_group = each.reshape(GROUPS, n, -1).mean(1) * n / (n - 1)
    return by_group.mean(0), by_group.std(0, ddof=1) / math.sqrt(GROUPS)


def test_the_expected_gradient_is_that_of_finite_differences() -> None:
    policy = tilted()
    log_p = policy.log_p(MEMBERS).detach().numpy()
    truth = differences(policy)
    # All members, by the weight of each to a proposal that is uniform: no sample, so no noise.
    assert np.abs(gradient(policy, advantages(REWARDS, log_p, np.zeros(4))) - truth).max() < 1e-6
    # The power of this: another baseline, and the distribution of masking, are far off.
    assert np.abs(gradient(policy, weights(log_p, np.zeros(4)) * REWARDS) - truth).max() > 0.05
    masked = policy.log_mu(masked=True).detach().numpy()
    assert np.abs(gradient(policy, advantages(REWARDS, masked, np.zeros(4))) - truth).max() > 0.02


@pytest.mark.parametrize(("phi", "n"), [("exact", N), ("auto", N), ("local", 64)])
def test_the_sampled_gradient_is_within_its_standard_error(phi: str, n: int) -> None:
    mean, error = sampled(phi, n=n)
    assert (np.abs(mean - differences(tilted())) < 4 * error).all()


def test_masked_rollouts_have_another_gradient() -> None:
    mean, error = sampled("local", weigh=False)
    assert (np.abs(mean - differences(tilted())) / error).max() > 8


def test_training_comes_to_the_optimum_and_masked_to_another_point() -> None:
    _, best = optimum()
    found = {arm: np.array([train(arm, seed, 12, 32).expected().item() for seed in range(5)]) for arm in ARMS}
    gap = {arm: best - values.mean() for arm, values in found.items()}
    assert gap["exact"] < 0.01 and gap["weighted"] < 0.01
    assert gap["masked"] > max(0.05, 3 * found["masked"].std(ddof=1) / math.sqrt(5))


@pytest.mark.parametrize("phi", ["exact", "auto", "local", "learned"])
def test_a_step_knows_nothing_of_earlier_weights(phi: str) -> None:
    """The law of a table cannot be watched, so this is the seed's doing."""
    policy, keywords = bias_of_a(), {"max_new_tokens": 5, "seed": 1}
    generator = outlines_phi.Generator(policy.model, FORMAT, phi=phi)
    before = rollouts(generator, [PROMPT], 16, **keywords)
    with torch.no_grad():
        policy.theta.fill_(2.0)
    after = rollouts(generator, [PROMPT], 16, **keywords)
    fresh = bias_of_a()
    with torch.no_grad():
        fresh.theta.fill_(2.0)
    assert after == rollouts(outlines_phi.Generator(fresh.model, FORMAT, phi=phi), [PROMPT], 16, **keywords)
    assert [one.log_p for one in after] != [one.log_p for one in before]


def test_a_record_adds_up() -> None:
    policy = tilted()
    for phi in ("exact", "local", "fields"):  # the format is one field
        for one in rollouts(outlines_phi.Generator(policy.model, FORMAT, phi=phi), [PROMPT] * 2, 5, seed=0):
            (log_p,) = policy.log_p([one.completion_ids]).tolist()
            assert sum(one.log_p) == pytest.approx(log_p) and one.prompt_ids == PROMPT  # type: ignore[arg-type]
            assert one.value == one.draw.text and one.group in (0, 1)
            if phi != "local":
                assert set(one.log_q) == {None} and not math.isnan(one.log_w)
            else:
                assert sum(np.subtract(one.log_p, one.log_q)) == pytest.approx(one.log_w)  # type: ignore[arg-type]


def test_weights_and_advantages_are_of_a_group() -> None:
    log_w, group = [0.0, math.log(3), -math.inf, -5.0, -5.0, -math.inf], [0, 0, 0, 1, 1, 2]
    np.testing.assert_allclose(weights(log_w, group), [0.75, 2.25, 0.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(advantages([1, 0, 9, 1, 3, 5], log_w, group), [0.5625, -0.5625, 0, -1, 1, 0])
    for lists in ([1, 2], [0], [0]), ([1], [0, 0], [0]), ([1], [0], [0, 0]):
        refused("Their shapes are", advantages, *lists)
    # What cannot be judged counts in no mean.
    np.testing.assert_allclose(advantages([1, 0, 9, 1, math.nan, 5], log_w, group)[3:5], [0, math.nan])


def test_failures_are_of_weight_0() -> None:
    generator = outlines_phi.Generator(tilted().model, FORMAT, phi="local")
    keywords: dict[str, Any] = {"seed": 0, "max_new_tokens": 5, "top_p": 0.5}
    with pytest.raises(EmptyLanguageError, match="^Give phi='exact'"):
        rollouts(generator, [PROMPT], 4, **keywords)
    found = rollouts(generator, [PROMPT], 64, **keywords | {"top_p": 0.85})
    assert len(found) == 64 and 0 < sum(one.log_w == -math.inf for one in found) < 64


def test_unknown_weights_are_refused() -> None:
    generator = outlines_phi.Generator(tilted().model, outlines_phi.Thinking(FORMAT, end="?", max_tokens=3))
    with pytest.raises(UnsupportedError, match="^Give phi='exact' or 'auto', weights"):
        rollouts(generator, [PROMPT], 4, seed=0)


def test_rewards_become_advantages() -> None:
    generator = outlines_phi.Generator(tilted().model, FORMAT, phi="local")
    found, logged = rollouts(generator, [PROMPT] * 2, 8, seed=0), dict[str, float]()

    def differ(rollout: list[Rollout], **columns: Any) -> list[float | None]:
        return [None, *(reward(one.completion_ids) for one in rollout[1:])]

    given = np.array(weighted(differ)(rollout=found, log_metric=logged.__setitem__, prompts=["x"] * 16))
    assert math.isnan(given[0]) and abs(np.nansum(given[:8])) < 1e-9 and abs(given[8:].sum()) < 1e-9
    assert 0 < logged["differ/conditioned"] < 1

    async def later(**columns: Any) -> list[float]:
        return []

    for wrong in (later, "a model"):
        with pytest.raises(UnsupportedError, match="^Give weighted\\(\\) a plain function"):
            weighted(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("use_vllm", True), ("chat_template_kwargs", {"x": 1})])
def test_options_that_the_loss_does_not_see_are_refused(name: str, value: Any) -> None:
    trainer = SimpleNamespace(args=SimpleNamespace(**{name: value}))
    with pytest.raises(UnsupportedError, match=f"^Leave {name} at the default"):
        rollout_func(FORMAT)(["x"], trainer)


@pytest.mark.filterwarnings("default")  # those of other packages
class TestTRL:
    """With TRL's own trainer, where it is installed."""

    @pytest.fixture(autouse=True)
    def trl(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        return pytest.importorskip("trl", reason="needs trl: pip install outlines_phi[trl]")

    def trainer(
        self, trl: Any, folder: Any, roll_out: Any, rewards: Any = None, n: int = 128, adapter: Any = None
    ) -> Any:
        from datasets import Dataset

        model, tokenizer = bundled.load()
        if adapter is not None:
            model = peft.get_peft_model(model, adapter)
        options = {"loss_type": "dr_grpo", "scale_rewards": "none", "num_generations": n, "max_completion_length": 12}
        options |= {"max_steps": 1, "max_grad_norm": 1e9, "use_cpu": True, "bf16": False, "report_to": "none"}
        options |= {"save_strategy": "no", "disable_tqdm": True, "per_device_train_batch_size": 2 * n}
        made = trl.GRPOTrainer(
            model,
            rewards or weighted(worth),
            trl.GRPOConfig(str(folder), **options),
            Dataset.from_dict({"prompt": [ASKED] * 4}),
            processing_class=tokenizer,
            rollout_func=roll_out,
            optimizers=(torch.optim.SGD(trained(model), lr=1.0), None),
        )
        made.create_scheduler = lambda *_, **__: setattr(
            made, "lr_scheduler", torch.optim.lr_scheduler.ConstantLR(made.optimizer, 1.0)
        )
        return made

    def moved(self, trainer: Any) -> torch.Tensor:
        flat = lambda: torch.cat([each.detach().reshape(-1).clone() for each in trained(trainer.model)])  # noqa: E731
        before = flat()
        trainer.train()
        return flat() - before

    def truth(self, model: Any, tokenizer: Any) -> torch.Tensor:
        """The gradient of the expected reward, by enumeration, in the units of the loss."""
        model.eval()
        members = outlines_phi.Generator(outlines_phi.from_transformers(model, tokenizer), Role).mode(ASKED, top=4)
        ids = tokenizer(ASKED)["input_ids"]
        log_p = []
        for member in members:
            steps = model(torch.tensor([[*ids, *member.token_ids]])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
            log_p.append(steps[torch.arange(len(member.token_ids)), list(member.token_ids)].sum())
        expected = torch.stack(log_p).softmax(0) @ torch.tensor([WORTH[member.text] for member in members])
        return torch.cat([each.reshape(-1) for each in torch.autograd.grad(expected, trained(model))]) / 12

    @pytest.mark.parametrize("adapter", [None, LORA], ids=["all", "lora"])
    @pytest.mark.parametrize("arm", list(ARMS))
    def test_a_step_is_along_the_gradient(self, trl: Any, tmp_path: Any, arm: str, adapter: Any) -> None:
        phi, weigh = ARMS[arm]
        roll_out = rollout_func(Role, phi=phi)
        trainer = self.trainer(trl, tmp_path, roll_out if weigh else unweighted(roll_out), adapter=adapter)
        truth, moved = self.truth(trainer.model, trainer.processing_class), self.moved(trainer)
        distance = float((moved - truth).norm() / truth.norm())
        assert distance < 0.25 if weigh else distance > 0.5
        assert trainer.model.training

    def test_weights_that_no_reward_takes_are_refused(self, trl: Any, tmp_path: Any) -> None:
        with pytest.raises(UnsupportedError, match="^Give the trainer reward_funcs="):
            self.trainer(trl, tmp_path, rollout_func(Role), worth, n=4).train()

    def test_messages_are_conversations_and_groups_may_be_split(
        self, trl: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trainer = self.trainer(trl, tmp_path, None, n=4)
        trainer.processing_class.chat_template = "{{ messages[0]['content'] }}"
        trainer.model.train()
        monkeypatch.setattr(type(trainer.accelerator), "process_index", 1)
        asked = [{"role": "user", "content": ASKED}]
        found = rollout_func(Role, phi="exact")([ASKED] * 3 + [asked] * 3, trainer)["rollout"]
        # The second of two processes: rows 6 to 11 in groups of 4, of which one is begun by the first process.
        assert [one.group for one in found] == [0, 0, 1, 2, 2, 2]
        assert len({one.prompt_ids for one in found}) == 1


def test_the_loss_of_a_group_is_that_of_its_advantages() -> None:
    policy = tilted()
    found = rollouts(outlines_phi.Generator(policy.model, FORMAT, phi="exact"), [PROMPT], 32, seed=3, max_new_tokens=5)
    rewards = np.array([reward(one.completion_ids) for one in found])
    log_p = policy.log_p([one.completion_ids for one in found]).detach().numpy()
    assert loss_of(policy, found).item() == pytest.approx(-np.cov(rewards, log_p, ddof=0)[0, 1])
