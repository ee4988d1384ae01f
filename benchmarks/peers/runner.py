"""genlm-control's side of ``benchmarks.control``; runs in an environment of its own (``requirements.txt``).

    genlm/bin/python benchmarks/peers/runner.py MODEL_FOLDER < requests > answers

One JSON object per line in and out. A request names a prompt (token ids), a regular expression, a budget, the particles of a
run, after how many runs the meters are read, and a seed; the answer has the population of every run and the meters. Both caches
of genlm-control are on: keys and values of the prompt, and the distributions after all prefixes asked for. They are empty at
the beginning of a request and, where it is ``cold``, of each run; the meters then tell of each run alone. Batches are as large
as the population and wait for late-comers for a millisecond (its default is twenty).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from genlm.backend.llm import AsyncTransformer
from genlm.control import AWRS, BoolFSA, PromptedLLM
from meter import Meter
from transformers import AutoModelForCausalLM, AutoTokenizer

ESS_THRESHOLD = 0.5
"""Resample below this share of the particles, as the examples of genlm-control do."""


class Peer:
    """A model under genlm-control.

    Parameters
    ----------
    folder
        Where model and tokenizer are.
    """

    def __init__(self, folder: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.meter = Meter(self.model)
        self._conditions: dict[str, Any] = {}

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make the runs of one request, from empty caches."""
        np.random.seed(request["seed"])  # resampling draws from there
        torch.manual_seed(request["seed"])
        lm = AsyncTransformer(self.model, self.tokenizer, batch_size=request["particles"], timeout=0.001)
        potential = PromptedLLM(lm, prompt_ids=request["prompt"])
        sampler = AWRS(potential, self._condition(request["pattern"], potential), seed=request["seed"])
        before, start = self.meter.read(), time.perf_counter()
        lm.cache_kv(request["prompt"])
        runs, meters = [], []
        for number in range(1, max(request["checkpoints"]) + 1):
            if request["cold"] and number > 1:
                lm.clear_cache()
                before, start = self.meter.read(), time.perf_counter()
                lm.cache_kv(request["prompt"])
            found = await sampler.smc(
                n_particles=request["particles"], ess_threshold=ESS_THRESHOLD, max_tokens=request["budget"]
            )
            runs.append([[ids(context), float(log_w)] for context, log_w in found if log_w > -np.inf])
            if request["cold"] or number in request["checkpoints"]:
                now = (after - first for after, first in zip(self.meter.read(), before, strict=True))
                meters.append([number, *now, time.perf_counter() - start])
        return {"runs": runs, "meters": meters}

    def _condition(self, pattern: str, potential: PromptedLLM) -> Any:
        """Return the pattern over the model's tokens, built once."""
        if pattern not in self._conditions:
            self._conditions[pattern] = BoolFSA.from_regex(pattern).coerce(potential, f=b"".join)
        return self._conditions[pattern]


def ids(context: list[Any]) -> list[int]:
    """Return the token ids of a context, without its end of sequence."""
    return [token.token_id for token in context if hasattr(token, "token_id")]


def main() -> None:
    """Say which versions these are, then answer requests until there are none."""
    torch.set_num_threads(1)
    peer = Peer(sys.argv[1])
    print(json.dumps({name: version(name) for name in ("genlm-control", "torch", "transformers")}), flush=True)
    for line in sys.stdin:
        print(json.dumps(asyncio.run(peer.answer(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
