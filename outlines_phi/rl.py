"""Roll-outs for reinforcement learning that follow the model conditioned on a format, exactly at the level of sequences.

With ``p`` the model at a temperature, ``L`` the format and ``Phi = sum_{y in L} p(y)``, the policy is ``mu* = p 1_L / Phi``, its
expected reward ``J = E_mu*[R]``. From ``grad log mu* = grad log p - grad log Phi`` and ``grad log Phi = E_mu*[grad log p]``::

    grad J = Cov_mu*(R, grad log p) = E_mu*[(R - J) grad log p],     E_mu*[(R - b) grad log p] = grad J + (J - b) grad log Phi

So nothing of ``Phi`` has to be differentiated where the baseline is ``J``, but no other baseline will do: ``b = 0`` climbs
``E_p[R 1_L]``, the reward of the model left free. For a group of ``n`` draws and its mean reward the expectation is
``(1 - 1/n) grad J``: the loss of GRPO on ``log p`` is unbiased up to a constant, with sums over tokens (``loss_type="dr_grpo"``)
and rewards as they are (``scale_rewards="none"``). Draws of a proposal ``q`` enter with ``w = p / q`` of the sequence, normalised
over the group::

    A_i = n w_i (R_i - sum_j w_j R_j),     sum_i w_i = 1,     E[mean_i A_i grad log p(y_i)] = grad J + O(1 / n)

which ratios by token, each clipped, are not. After updates ``mu*_new / mu*_old = (p_new / p_old) (Phi_old / Phi_new)``, and the
last factor is common to a group: the ratio of GRPO is between the model's own probabilities, then and now, never ``log_q``.

Masked roll-outs follow ``mu_proj(y) = p(y) / prod_t S(y_t)``. Unweighted they estimate ``Cov_mu_proj(R, grad log p)``, which is not
the gradient of ``E_mu_proj[R]`` either: that has the terms ``grad log S(y_t)`` too, and they do not cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from inspect import iscoroutinefunction
from itertools import count, groupby
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from outlines.inputs import Chat

from .errors import EmptyLanguageError, UnsupportedError
from .plugin.generator import Generator, PhiGenerator
from .plugin.hosts.transformers import from_transformers
from .sampling.draws import Draw, Draws, Guarantee
from .sampling.phi_options import ExactPhi

Numbers = NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One draw after a prompt, as trainers take it: logs of probabilities by token, in nats.

    Attributes
    ----------
    group
        The number of the prompt in its call, whose roll-outs are compared with one another.
    prompt_ids, completion_ids
        Token ids; the end of sequence is the last of the completion.
    log_p
        Of each token under the model and the settings, before the format: the old probabilities of a loss, which add up to that of
        the sequence. Where a model has several ends of sequence, that of the last token is of any of them.
    log_q
        Of each token under the proposal; ``None`` where texts are accepted whole, as exact ones are.
    log_w
        ``log p(y) - log q(y)`` of the sequence, up to a constant of the group: equal for exact draws, ``-inf`` for a trajectory
        that found no allowed token, which has the ids of another one. See :func:`weights`.
    draw
        The draw that it comes from, with its text, guarantee and accounts.
    """

    group: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    log_p: tuple[float | None, ...]
    log_q: tuple[float | None, ...]
    log_w: float
    draw: Draw

    @property
    def value(self) -> Any:
        """The typed value; errors as :attr:`Draw.value`."""
        return self.draw.value


def rollouts(generator: PhiGenerator, prompts: list[Any], n: int = 8, **keywords: Any) -> list[Rollout]:
    """Return ``n`` roll-outs after each prompt, group by group, of the model as it is now.

    Give a ``seed`` for every step: nothing that was learned of earlier weights is then used, by contract and not by detection
    (``docs/settings.md``, seeds).

    Parameters
    ----------
    generator
        With ``phi="exact"``, ``"auto"``, ``"local"`` or another whose draws have weights.
    prompts
        As for ``sample_batch``.
    n
        Roll-outs of each group.
    **keywords
        Those of ``generator.sample``.

    Raises
    ------
    UnsupportedError
        The draws have no known weight to the conditioned policy.
    EmptyLanguageError
        No trajectory of a group was completed.
    """
    results = generator.sample_batch(prompts, n, tokens=True, **keywords)
    ids = generator.model.prompt_ids(prompts, thinking=generator.table.guide.thoughts is not None)
    return [
        _record(group, prompt, draw)
        for group, (prompt, draws) in enumerate(zip(ids, results, strict=True))
        for draw in _complete(draws)
    ]


def _complete(draws: Draws) -> Iterator[Draw]:
    """Yield the draws of a group, and for each failure one of weight 0."""
    items = list(draws)
    if draws.guarantee is Guarantee.EXACT and not draws.weighed:  # one field, whose mass nobody asked for
        items = [replace(draw, log_w=0.0) for draw in draws]
    elif not draws.weighed or draws.guarantee < Guarantee.WEIGHTED:
        raise UnsupportedError(
            "Give phi='exact' or 'auto', weights (FieldsPhi(weights=True), LookaheadPhi(weights=True)) or "
            f"Thinking(..., scope='joint'). The weights of these draws ({draws.guarantee}) to the conditioned policy are not known."
        )
    if not draws.items:
        raise EmptyLanguageError(
            f"Give phi='exact', or more roll-outs. None of the {draws.failures} trajectories after a prompt found an allowed token."
        )
    yield from items
    yield from [replace(draws[0], log_w=-math.inf)] * draws.failures


def _record(group: int, prompt: tuple[int, ...], draw: Draw) -> Rollout:
    log_p, log_q = (tuple(getattr(token, name) for token in draw.tokens) for name in ("log_p", "log_q"))
    return Rollout(
        group=group,
        prompt_ids=prompt,
        completion_ids=draw.token_ids,
        log_p=log_p,
        log_q=log_q,
        log_w=draw.log_w,
        draw=draw,
    )


def weights(log_w: ArrayLike, group: ArrayLike) -> Numbers:
    """Return the weights, normalised to a mean of 1 in each group, shape ``[n]``; zeros where all of a group are zero."""
    _check_shapes(log_w, group)
    _, index = np.unique(group, return_inverse=True)
    log_w = np.asarray(log_w, dtype=np.float64)
    top = np.full(index.max(initial=-1) + 1, -math.inf)
    np.maximum.at(top, index, log_w)
    w = np.exp(log_w - np.where(top > -math.inf, top, 0.0)[index])
    total = np.bincount(index, w)
    mean: Numbers = np.where(total > 0, total, 1.0) / np.bincount(index)
    return w / mean[index]


def _check_shapes(*arrays: ArrayLike) -> None:
    if len(shapes := {np.shape(array): None for array in arrays}) > 1:
        raise UnsupportedError(
            f"Give a number, a log weight and a group for each roll-out. Their shapes are {' and '.join(map(str, shapes))}."
        )


def advantages(rewards: ArrayLike, log_w: ArrayLike, group: ArrayLike) -> Numbers:
    """Return ``A_i = n w_i (R_i - sum_j w_j R_j)`` of the group of each roll-out, shape ``[n]``.

    Their mean over a group is 0, so that a trainer's own baseline changes nothing. ``nan`` is the reward of a roll-out that cannot
    be judged: it counts in no mean.
    """
    _check_shapes(rewards, log_w, group)
    rewards = np.asarray(rewards, dtype=np.float64)
    unknown = np.isnan(rewards)
    w = weights(np.where(unknown, -math.inf, log_w), group)
    _, index = np.unique(group, return_inverse=True)
    baseline = np.bincount(index, w * np.where(unknown, 0.0, rewards)) / np.bincount(index)
    return w * (rewards - baseline[index])


def weighted(reward: Callable[..., Sequence[float | None]]) -> Callable[..., list[float]]:
    """Return a reward function of TRL that gives the :func:`advantages` of a reward function.

    Its rewards have mean 0, and the expected reward of the conditioned policy is logged as ``<name>/conditioned``.

    Raises
    ------
    UnsupportedError
        A reward model or an asynchronous function.
    """
    if not hasattr(reward, "__name__") or iscoroutinefunction(reward):
        raise UnsupportedError(
            f"Give weighted() a plain function that returns a list of rewards; call a model inside it. {reward!r:.80} was given."
        )

    @wraps(reward)
    def weigh(*, rollout: list[Rollout], log_metric: Callable[[str, float], None], **columns: Any) -> list[float]:
        given = reward(rollout=rollout, log_metric=log_metric, **columns)
        rewards = np.array([math.nan if each is None else each for each in given], dtype=np.float64)
        log_w, group = [one.log_w for one in rollout], [one.group for one in rollout]
        _check_shapes(rewards, log_w)
        known = ~np.isnan(rewards)
        if known.any():
            w = weights(np.array(log_w)[known], np.array(group)[known])
            log_metric(f"{reward.__name__}/conditioned", float(np.mean(w * rewards[known])))
        return advantages(rewards, log_w, group).tolist()

    weigh.weighs = True  # type: ignore[attr-defined]
    return weigh


NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "generation_kwargs": None,
    "use_vllm": False,
    "chat_template_kwargs": None,
    "tools": None,
    "is_fsdp_enabled": False,
}
"""The options of a ``GRPOTrainer`` by which its loss would score another model, distribution or prompt than roll-outs have."""


def rollout_func(output_type: Any, **options: Any) -> Callable[[list[Any], Any], dict[str, Any]]:
    """Return the ``rollout_func`` of a ``trl.GRPOTrainer``: roll-outs of its own model, at its temperature and length.

    Reward functions get the column ``rollout``, a list of :class:`Rollout`. ``logprobs`` are those of the model, so that the ratio
    of every loss is 1 before the first update. Without ``phi="exact"`` every reward function has to be :func:`weighted`. Each call
    has a seed of its own, from that of the trainer, and keeps nothing for the next: neither trees nor learned values.

    Parameters
    ----------
    output_type, **options
        As for :func:`outlines_phi.Generator`: ``phi=``, ``banned_phrases=``, ... Under ``phi="exact"`` a ``BudgetError`` ends the
        training; ``"auto"``, the default, goes on with weights.

    Raises
    ------
    UnsupportedError
        From the function returned: options of the trainer that its loss does not see, or weights that no reward function takes.
    """
    calls = count()

    @lru_cache(maxsize=1)
    def generator_of(model: Any, tokenizer: Any) -> PhiGenerator:
        host = from_transformers(model, tokenizer)
        host.type_adapter.has_chat_template = False  # texts are prompts as they stand, messages are conversations
        return Generator(host, output_type, **options)

    def roll_out(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        _check_options(trainer)
        rank = trainer.accelerator.process_index
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        numbered = enumerate(prompts, rank * len(prompts))
        groups = [[prompt for _, prompt in rows] for _, rows in groupby(numbered, lambda row: (row[0] // size, row[1]))]
        key = [trainer.args.seed, trainer.state.global_step, rank, next(calls)]
        with _evaluated(trainer) as model:
            generator = generator_of(model, trainer.processing_class)
            if not isinstance(generator.phi, ExactPhi) and not all(
                getattr(each, "weighs", False) for each in trainer.reward_funcs
            ):
                raise UnsupportedError(
                    "Give the trainer reward_funcs=[outlines_phi.rl.weighted(reward)], or phi='exact' to rollout_func. These "
                    "roll-outs have weights, which TRL itself leaves out."
                )
            n = max(map(len, groups))  # one process may have a part of a group alone
            found = rollouts(
                generator,
                [prompt if isinstance(prompt, str) else Chat(prompt) for prompt, *_ in groups],
                n,
                temperature=trainer.temperature,
                repetition_penalty=1.0,
                max_new_tokens=trainer.max_completion_length,
                seed=int(np.random.SeedSequence(key).generate_state(1)[0]),
            )
        rolled = [one for k, group in enumerate(groups) for one in found[k * n : k * n + len(group)]]
        return {
            "prompt_ids": [list(one.prompt_ids) for one in rolled],
            "completion_ids": [list(one.completion_ids) for one in rolled],
            "logprobs": [list(one.log_p) for one in rolled],
            "rollout": rolled,
        }

    return roll_out


def _check_options(trainer: Any) -> None:
    """Refuse options of a trainer by which the policy of its loss would be another one."""
    given = {name: getattr(trainer.args, name, getattr(trainer, name, None)) for name in NEUTRAL}
    wrong = {name: value for name, value in given.items() if value and value != NEUTRAL[name]}
    if wrong:
        raise UnsupportedError(
            f"Leave {', '.join(wrong)} at the default. {wrong} was given to the trainer, whose loss scores the model at its "
            "temperature, by weights that are here, after prompts without tools."
        )


@contextmanager
def _evaluated(trainer: Any) -> Iterator[Any]:
    """Lend the model of a trainer in evaluation mode."""
    from trl.models.utils import unwrap_model_for_generation

    gather = trainer.args.ds3_gather_for_generation
    with unwrap_model_for_generation(
        trainer.model_wrapped, trainer.accelerator, gather_deepspeed3_params=gather
    ) as model:
        training = model.training
        model.eval()
        try:
            yield model
        finally:
            model.train(training)
