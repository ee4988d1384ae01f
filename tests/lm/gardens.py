"""Tiny random models of many architectures, and trees to grow on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from outlines_phi.lm.model import TokenTrees
from outlines_phi.vocabulary.vocabulary import Vocabulary

SIZE = 64
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": SIZE,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # logits of standard deviation about 1.7: a wrong mask is seen
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 8.0, 16.0, 32.0],
    "original_max_position_embeddings": 10,
}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {**GPT2, "vocab_size": SIZE, "initializer_range": 0.3}),
    "llama": ("LlamaConfig", LLAMA),
    "qwen3": ("Qwen3Config", {**LLAMA, "head_dim": 8}),
    "qwen3 mixed": ("Qwen3Config", {**LLAMA, **MIXED, "use_sliding_window": True}),
    "mistral": ("MistralConfig", {**LLAMA, "sliding_window": 6}),
    "longrope": ("Phi3Config", {**LLAMA, "rope_parameters": LONGROPE, "original_max_position_embeddings": 10}),
    "gemma2": ("Gemma2Config", {**LLAMA, **MIXED}),
    "gemma3": ("Gemma3TextConfig", {**LLAMA, **MIXED}),
    "mamba": (
        "MambaConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": SIZE, "state_size": 8, "initializer_range": 0.3},
    ),
}


@cache
def build(name: str, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
    """Return the tiny model ``name``; its float32 and bfloat16 versions have the same (bfloat16) weights."""
    config_name, options = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.to(torch.bfloat16).to(dtype).eval()


def evaluate(model: Any, sequence: Sequence[int]) -> Tensor:
    """Return the ``[V]`` logits after ``sequence``, by one plain call without mask or cache."""
    with torch.inference_mode():
        return model(torch.tensor([list(sequence)])).logits[0, -1].double()


@dataclass
class Gardener:
    """Grows random trees and remembers every node's whole sequence and its logits."""

    trees: TokenTrees
    prompts: Sequence[Sequence[int]]
    seed: int = 0
    size: int = SIZE
    sequences: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of live nodes
    parents: dict[int, int] = field(default_factory=dict)
    history: list[tuple[tuple[int, ...], Tensor]] = field(default_factory=list)  # of all nodes: sequence, logits

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def plant(self, count: int = 0) -> None:
        """Evaluate the prompts, and ``count`` first nodes with them."""
        self.sequences = {node: tuple(prompt) for node, prompt in enumerate(self.prompts)}
        parents = self._random_parents(count)
        tokens = self._random_tokens(parents)
        evaluation = self.trees.roots(parents, tokens)
        assert evaluation.nodes == range(len(self.prompts) + count)
        assert evaluation.logits.shape == (len(evaluation.nodes), self.size)
        self.history += [(self.sequences[node], evaluation.logits[node].double()) for node in self.sequences]
        self._remember(
            range(len(self.prompts), self.trees.next_node), parents, tokens, evaluation.logits[len(self.prompts) :]
        )

    def grow(self, count: int) -> range:
        """Add ``count`` nodes under random live nodes or earlier nodes of the same call."""
        return self.follow(self._random_parents(count))

    def follow(self, parents: Sequence[int]) -> range:
        """Add one random child under each of ``parents``, in one call."""
        first = self.trees.next_node
        tokens = self._random_tokens(parents)
        evaluation = self.trees.extend(parents, tokens)
        assert evaluation.nodes == range(first, first + len(parents))
        assert self.trees.next_node == first + len(parents)
        assert evaluation.logits.shape == (len(parents), self.size)
        self._remember(evaluation.nodes, parents, tokens, evaluation.logits)
        return evaluation.nodes

    def _random_parents(self, count: int) -> list[int]:
        pool, parents = list(self.sequences), []
        for node in range(self.trees.next_node, self.trees.next_node + count):
            parents.append(int(self.random.choice(pool)))
            pool.append(node)
        return parents

    def _random_tokens(self, parents: Sequence[int]) -> list[int]:
        return self.random.integers(3, self.size, size=len(parents)).tolist()

    def _remember(self, nodes: range, parents: Sequence[int], tokens: Sequence[int], logits: Tensor) -> None:
        for node, parent, token, answer in zip(nodes, parents, tokens, logits, strict=True):
            self.parents[node] = parent
            self.sequences[node] = (*self.sequences[parent], token)
            self.history.append((self.sequences[node], answer.double()))

    def prune(self, keep: Sequence[int]) -> None:
        """Compact, and forget the nodes that are given back."""
        self.trees.compact(keep)
        live = set(range(len(self.prompts)))
        for node in keep:
            while node not in live:
                live.add(node)
                node = self.parents[node]
        self.sequences = {node: self.sequences[node] for node in sorted(live)}

    def live(self) -> None:
        """Grow in several calls, the prompts' own among them, with parents of the same call, compact, and grow on."""
        self.plant(6)
        for count in (7, 30, 1, 12):
            self.grow(count)
        self.prune(self.random.choice(list(self.sequences), size=6, replace=False).tolist())
        self.grow(9)
        self.prune(list(self.sequences)[-5:])
        self.follow(list(self.sequences)[-4:])
        self.follow(list(self.sequences)[-4:])
        self.grow(5)

    def errors(self, law: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
        """Return ``[nodes, V]`` what was answered minus ``law`` of each whole sequence."""
        return torch.stack([logits - law(sequence) for sequence, logits in self.history])


VOCABULARY = Vocabulary.from_tokens([bytes([index]) for index in range(SIZE)], 2)
