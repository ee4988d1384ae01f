"""Evaluation by exact probabilities: a model for lm-evaluation-harness (``pip install "outlines_phi[lm-eval]"``).

    python -m outlines_phi.lm_eval --model outlines_phi --model_args pretrained=... --tasks ... --batch_size 64

is the harness's own command ``lm_eval``, which knows a model of another package only where that was imported.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeAlias

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import chunks, normalize_gen_kwargs
from outlines.types.dsl import Choice, JsonSchema, Regex
from tqdm import tqdm

from .errors import BudgetError, UnsupportedError
from .phi.tree.best_first import enumerate_together, expand_usual
from .phi.tree.evaluator import Evaluator
from .phi.tree.tree import BoundsTree
from .plugin.generator import Generator, PhiGenerator
from .plugin.hosts.transformers import from_transformers
from .sampling.ranking import greedy_tokens
from .sampling.sampler import Request
from .settings import SamplingSettings

Continuation: TypeAlias = tuple[str, str]
"""A context, and a text that may stand behind it."""

RAW = {"temperature": 1.0, "repetition_penalty": 1.0}
"""The distribution that is scored, whatever the model's ``generation_config`` says."""

MOST_PREFIXES = 100_000
"""Prefixes of the tokenizations of a continuation that are evaluated, at most."""

IDLE = (
    *("truncation", "logits_cache", "max_length", "softmax_dtype", "mixed_precision_dtype", "max_batch_size"),
    *("add_bos_token", "think_end_token"),
)
"""Arguments of the harness's own model that mean nothing here."""


@register_model("outlines_phi")
class ExactLM(HFLM):
    """A model of Transformers of which continuations are scored over all their tokenizations.

    With ``y`` what the model writes after a context, the score of a continuation ``c`` is, by ``ends``::

        "open":  log P(y begins with c)         "text":  log P(y = c)

    summed over all token sequences that spell it. The harness's own score is the term of one of them in the first sum. Blanks at
    the end of a context belong to the continuation, as there.

    Parameters
    ----------
    pretrained, **arguments
        As for ``--model hf``, which loads the model, and knows its chat template.
    ends, open_at
        As for :func:`outlines_phi.Generator`.
    tolerance
        The most by which a score may lie below the logarithm of the exact probability, in nats.
    phi, regex, json_schema
        The estimator and the format of texts that are generated; a task's ``generation_kwargs`` may give another format.

    Raises
    ------
    UnsupportedError
        An argument of ``--model hf`` that means nothing here; says which.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        ends: str = "open",
        open_at: str | None = None,
        tolerance: float = 1e-3,
        phi: Any = "auto",
        regex: str | None = None,
        json_schema: Any = None,
        **arguments: Any,
    ) -> None:
        idle = [name for name in IDLE if arguments.get(name) is not None]
        if idle or not str(arguments.get("batch_size", 1)).isdigit():
            raise UnsupportedError(
                f"Leave out {', '.join(idle) or 'batch_size=auto'}, and give batch_size= as a number of prompts. Contexts are read "
                "whole, with the special tokens that the tokenizer puts before them."
            )
        super().__init__(pretrained, **arguments)
        self.exact = from_transformers(self.model, self.tokenizer)
        self.exact.type_adapter.has_chat_template = False  # contexts come out of it
        self.ends, self.open_at, self.tolerance, self.phi = ends, open_at, tolerance, phi
        self.formats = {"regex": regex, "json_schema": json_schema}

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the score of each continuation, and whether what greedy decoding writes begins with it, or is it."""
        pairs = [blanks_moved(*request.args) for request in requests]
        log_p: dict[Continuation, float] = {}
        lines: dict[str, tuple[bytes, bool]] = {}
        for some in tqdm([*chunks(sorted(set(pairs)), self.batch_size)], disable=disable_tqdm, desc="Scoring"):
            for pair, tree in zip(some, self._trees(some), strict=True):
                log_p[pair] = tree.root.log_lower
                if tree.beginnings is not None:
                    lines.setdefault(pair[0], (tree.beginnings.tokens[0].text.encode(), False))
        self._go_on(lines, pairs)
        found = [(log_p[pair], self._begins(*lines[pair[0]], pair[1])) for pair in pairs]
        for request, score in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, score)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> NoReturn:
        raise UnsupportedError(
            "Give --model hf for perplexities (loglikelihood_rolling). A document has more tokenizations than can be summed over, "
            "and the probability of a single one is what that model computes."
        )

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a text of the task's format for each request: a draw, or the likeliest one where the task does not sample."""
        groups = defaultdict[str, list[int]](list)
        for at, request in enumerate(requests):
            groups[json.dumps(request.args[1], sort_keys=True)].append(at)
        written: dict[int, str] = {}
        for given, places in groups.items():
            generator, keywords = self._generation(json.loads(given))
            for some in tqdm([*chunks(places, self.batch_size)], disable=disable_tqdm, desc="Generating"):
                prompts = [self._prompt(requests[at].args[0]) for at in some]
                seed = int(torch.randint(2**31, ()))  # of the harness's torch_random_seed
                written |= zip(some, generator.batch(prompts, seed=seed, **keywords), strict=True)
        for at, text in written.items():
            self.cache_hook.add_partial("generate_until", requests[at].args, text)
        return [written[at] for at in range(len(requests))]

    def _generation(self, given: dict[str, Any]) -> tuple[PhiGenerator, dict[str, Any]]:
        """Return the generator of a task, and the keywords of its calls."""
        own = {name: given.pop(name) for name in self.formats if name in given} or self.formats
        form = {name: value for name, value in own.items() if value is not None}
        if len(form) != 1:
            raise UnsupportedError(
                "Give one of regex= and json_schema=, in the task's generation_kwargs or in --model_args, or --model hf for free "
                f"text. {' and '.join(form) or 'Neither'} was given."
            )
        keywords: dict[str, Any] = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        keywords |= {"stop": keywords.pop("until"), "max_new_tokens": keywords.pop("max_gen_toks")}
        if not keywords["do_sample"]:
            keywords.pop("temperature", None)
        output_type = Regex(form["regex"]) if "regex" in form else JsonSchema(form["json_schema"])
        return Generator(self.exact, output_type, phi=self.phi), RAW | keywords

    def _prompt(self, context: str) -> str:
        """Return the text that a context is read from: it begins with one token of the beginning, where that is known."""
        begin, before = self.tokenizer.decode(self.prefix_token_id), self.tokenizer("")["input_ids"]
        return context.removeprefix(begin) if before[:1] == [self.prefix_token_id] else context or begin

    def _ask(self, contexts: Sequence[str], answer: str) -> Request:
        """Return the request of texts that begin with an answer, or are it, after contexts."""
        table = Generator(self.exact, Choice([answer]), ends=self.ends, open_at=self.open_at).table
        prompts = [tuple(self.tok_encode(context) if context else [self.prefix_token_id]) for context in contexts]
        settings = SamplingSettings(max_new_tokens=len(answer.encode()) + 2)  # a token a byte, and what ends it
        return Request(lm=self.exact.lm, table=table, prompts=prompts, settings=settings)

    def _trees(self, pairs: Sequence[Continuation]) -> list[BoundsTree]:
        """Return the tree of each answer, enumerated to the tolerance: an answer is a format, of which a score is ``log Phi``."""
        asked = [self._ask([context], answer) for context, answer in pairs]
        trees = [BoundsTree(one.table, one.budgets[0], start=one.starts[0]) for one in asked]
        evaluator = Evaluator(self.exact.lm, SamplingSettings(), [one.prompts[0] for one in asked], trees)
        expand_usual(trees, evaluator)
        reached = enumerate_together(trees, evaluator, self.tolerance, MOST_PREFIXES)
        if not all(reached):
            (_, answer), tree = pairs[reached.index(False)], trees[reached.index(False)]
            low, high = tree.log_bounds
            raise BudgetError.of(
                "Give a larger tolerance= in --model_args",
                f"{MOST_PREFIXES:,} prefixes left the score of {answer!r:.80} between {low:.4g} and {high:.4g}",
                log_z_bounds=tree.log_bounds,
            )
        return trees

    def _begins(self, text: bytes, ended: bool, answer: str) -> bool:
        """Return True if a text, or the beginning of one that has not ended, is for certain a case of an answer."""
        written = answer.encode()
        after = text[len(written) :].decode(errors="ignore")
        if self.ends == "text" or not text.startswith(written):
            return ended and text == written
        return self.open_at is None or (bool(re.match(self.open_at, after)) if after else ended)

    def _go_on(self, lines: dict[str, tuple[bytes, bool]], pairs: Iterable[Continuation]) -> None:
        """Write ``lines``, of greedy decoding by context, and whether the text ends there, on as far as the answers ask."""
        vocabulary, answers = self.exact.lm.vocabulary, defaultdict[str, list[str]](list)
        for context, answer in pairs:
            answers[context].append(answer)

        def is_open(context: str, text: bytes) -> bool:
            """True where one of the answers may still be begun."""
            going = (answer for answer in answers[context] if answer.encode().startswith(text))
            return any(not self._begins(text, False, answer) for answer in going)

        first = {context: lines.setdefault(context, (b"", False))[0] for context in answers}
        asked = [context for context, text in first.items() if "\ufffd".encode() in text or is_open(context, text)]
        for batch in chunks(asked, self.batch_size):

            def goes_on(row: int, ids: Sequence[int], batch: Sequence[str] = batch) -> bool:
                return bool(vocabulary.tokens[ids[-1]]) and is_open(batch[row], vocabulary.decode(ids))

            written = greedy_tokens(self._ask(batch, answers[batch[0]][0]), goes_on)
            lines |= {
                context: (vocabulary.decode(ids), ids[-1] in vocabulary.eos_ids)
                for context, ids in zip(batch, written, strict=True)
            }


def blanks_moved(context: str, continuation: str) -> Continuation:
    """Return context and continuation with the blanks at the context's end before the continuation."""
    stem = context.rstrip()
    return stem, context[len(stem) :] + continuation


if __name__ == "__main__":
    cli_evaluate()
