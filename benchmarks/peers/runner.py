"""genlm-control's side of ``benchmarks.control`` and ``benchmarks.peers``; runs in an environment of its own.

    genlm/bin/python benchmarks/peers/runner.py MODEL_FOLDER < requests > answers

One JSON object per line in and out. A request names a prompt (token ids), a regular expression, a budget, the particles of a
run, after how many runs the meters are read, and a seed; the answer has the population of every run and the meters. Both caches
of genlm-control are on: keys and values of the prompt, and the distributions after all prefixes asked for. They are empty at
the beginning of a request and, where it is ``cold``, of each run; the meters then tell of each run alone. Batches are as large
as the population and wait for late-comers for a millisecond (its default is twenty).

A request with a ``table`` has no model and no pattern: the table holds the distribution after every prefix, and phrases are banned.
Its runs begin with empty caches; their meter is the number of distinct prefixes whose distribution was asked for.
"""

import asyncio
import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from genlm.backend.llm import AsyncTransformer
from genlm.control import AWRS, BoolFSA, PromptedLLM, direct_token_sampler
from meter import Meter
from table_potentials import Ban, TablePotential
from transformers import AutoModelForCausalLM, AutoTokenizer

ESS_THRESHOLD = 0.5
"""Resample below this share of the particles, as the examples of genlm-control do."""


class Peer:
    """A model under genlm-control.

    Parameters
    ----------
    folder
        The folder of model and tokenizer.
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
        compiling = time.process_time()
        condition = self._condition(request["pattern"], potential)
        compiling = time.process_time() - compiling
        sampler = AWRS(potential, condition, seed=request["seed"])
        before, start, busy = self.meter.read(), time.perf_counter(), time.process_time()
        lm.cache_kv(request["prompt"])
        runs, meters = [], []
        for number in range(1, max(request["checkpoints"]) + 1):
            if request["cold"] and number > 1:
                lm.clear_cache()
                before, start, busy = self.meter.read(), time.perf_counter(), time.process_time()
                lm.cache_kv(request["prompt"])
            found = await sampler.smc(
                n_particles=request["particles"], ess_threshold=ESS_THRESHOLD, max_tokens=request["budget"]
            )
            runs.append([[ids(context), float(log_w)] for context, log_w in found if log_w > -np.inf])
            if request["cold"] or number in request["checkpoints"]:
                now = (after - first for after, first in zip(self.meter.read(), before, strict=True))
                meters.append([number, *now, time.perf_counter() - start, time.process_time() - busy])
        return {"runs": runs, "meters": meters, "compile": compiling}

    async def banned(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make the runs of a request with a table: adaptive rejection or, as its critic alone, plain sampling of whole texts."""
        np.random.seed(request["seed"])
        torch.manual_seed(request["seed"])
        tokens = [bytes.fromhex(token) for token in request["tokens"]]
        ban = Ban(tokens, [bytes.fromhex(phrase) for phrase in request["phrases"]])
        table, runs, meters = TablePotential(tokens, request["table"]), [], []
        if request["critic"]:
            sampler, options = direct_token_sampler(table), {"critic": ban}
        else:
            sampler, options = AWRS(table, ban, seed=request["seed"]), {}
        for number in range(request["runs"]):
            table.asked.clear()
            start, busy = time.perf_counter(), time.process_time()
            found = await sampler.smc(
                n_particles=request["particles"],
                ess_threshold=ESS_THRESHOLD,
                max_tokens=request["budget"] + 1,  # the end of the budget is an end of the text
                **options,
            )
            runs.append([[table.ids(context), float(log_w)] for context, log_w in found if log_w > -np.inf])
            used = time.perf_counter() - start, time.process_time() - busy
            meters.append([number, 0, len(table.asked) - 1, request["particles"], *used])
        await sampler.cleanup()
        return {"runs": runs, "meters": meters, "compile": 0.0}

    def _condition(self, pattern: str, potential: PromptedLLM) -> Any:
        """Return the pattern over the model's tokens, built once."""
        if pattern not in self._conditions:
            self._conditions[pattern] = BoolFSA.from_regex(pattern).coerce(potential, f=b"".join)
        return self._conditions[pattern]


def ids(context: list[Any]) -> list[int]:
    """Return the token ids of a context, without its end of sequence."""
    return [token.token_id for token in context if hasattr(token, "token_id")]


def main() -> None:
    """Print the versions, then answer requests until there are none."""
    torch.set_num_threads(1)
    peer = Peer(sys.argv[1])
    print(json.dumps({name: version(name) for name in ("genlm-control", "torch", "transformers")}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(asyncio.run(peer.banned(request) if "table" in request else peer.answer(request))), flush=True)


if __name__ == "__main__":
    main()
