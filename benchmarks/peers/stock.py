"""Peers that live beside this package: Outlines' backends, assisted decoding of transformers, and plain rejection."""

import copy
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import outlines
import torch
from transformers import LogitsProcessorList

from outlines_phi.lm import bundled

from .client import Cost
from .languages import Language
from .meter import Meter

BACKENDS = ("outlines_core", "llguidance", "xgrammar")
ROWS = 256
"""Texts that are written side by side where only their distribution is wanted."""


class Pool(NamedTuple):
    """Independent texts, ``None`` for an attempt that failed, what one of them costs alone, and how long compiling took."""

    texts: list[str | None]
    cost: Cost
    compile: float = 0.0


class Stock:
    """The bundled model without this package, with the meter on it."""

    def __init__(self) -> None:
        self.model, self.tokenizer = bundled.load()
        self._assistant = copy.deepcopy(self.model)
        self.outlines = outlines.from_transformers(self.model, self.tokenizer)
        self.meter = Meter(self.model)

    def processor(self, pattern: str, backend: str) -> tuple[Any, float]:
        """Return Outlines' logits processor of a pattern, and the processor seconds that it took."""
        outlines.Generator(self.outlines, outlines.regex("x"), backend=backend)  # imports, and reads the vocabulary
        start = time.process_time()
        processor = outlines.Generator(self.outlines, outlines.regex(pattern), backend=backend).logits_processor
        return processor, time.process_time() - start

    def masked(self, language: Language, backend: str, n: int, single: int) -> Pool:
        """Return ``n`` texts of stock Outlines; the cost is the mean of ``single`` calls for one text each."""
        processor, seconds = self.processor(language.pattern, backend)

        def write(rows: int) -> list[str]:
            processor.reset()
            return [
                text for text, _ in self._written(language, rows, logits_processor=LogitsProcessorList([processor]))
            ]

        with quiet():
            write(1)
            cost = self._alone(language, single, lambda: write(1))
            texts: list[str | None] = [text for rows in parts(n) for text in write(rows)]
        return Pool(texts, cost, seconds)

    def rejected(self, language: Language, n: int, single: int) -> Pool:
        """Return ``n`` attempts of plain rejection: free texts, of which those outside the language are ``None``."""
        inside = re.compile(language.pattern).fullmatch
        self._written(language, 1)
        cost = self._alone(language, single, lambda: self._written(language, 1))
        found = [written for rows in parts(n) for written in self._written(language, rows)]
        return Pool([text if over and inside(text) else None for text, over in found], cost)

    def assisted(self, language: Language, allowed: Callable[[int, Any], list[int]], n: int) -> Pool:
        """Return ``n`` texts of assisted decoding under ``prefix_allowed_tokens_fn``, one at a time.

        The assistant is a copy of the model, so that as much of its drafts is kept as can be; what it costs is not counted.
        """
        options = {"assistant_model": self._assistant, "prefix_allowed_tokens_fn": allowed}
        texts: list[str | None] = []
        with quiet():
            self._written(language, 1, **options)
            cost = self._alone(
                language, n, lambda: texts.extend(text for text, _ in self._written(language, 1, **options))
            )
        return Pool(texts, cost)

    def assisted_backend(self, language: Language, backend: str, n: int) -> str:
        """Return the result of assisted decoding with Outlines' own logits processor: how many of ``n`` texts fit, or the error."""
        processor, _ = self.processor(language.pattern, backend)
        inside, fitting, errors = re.compile(language.pattern).fullmatch, 0, 0
        with quiet():
            for _ in range(n):
                processor.reset()
                options = {"logits_processor": LogitsProcessorList([processor]), "assistant_model": self._assistant}
                try:
                    ((text, over),) = self._written(language, 1, **options)
                except (ValueError, RuntimeError):
                    errors += 1
                else:
                    fitting += bool(over and inside(text))
        return f"{fitting} of {n} texts fit, {errors} calls end in an error"

    def _written(self, language: Language, rows: int, **options: Any) -> list[tuple[str, bool]]:
        """Return so many texts, and whether each has come to its end."""
        prompt = torch.tensor([self.tokenizer.encode(language.prompt)] * rows)
        mask = torch.ones_like(prompt)
        found = self.model.generate(
            prompt, attention_mask=mask, max_new_tokens=language.budget, do_sample=True, **options
        )
        eos = self.tokenizer.eos_token_id
        written = []
        for ids in found[:, prompt.shape[1] :].tolist():
            over = eos in ids
            written.append((self.tokenizer.decode(ids[: ids.index(eos)] if over else ids), over))
        return written

    def _alone(self, language: Language, calls: int, call: Callable[[], object]) -> Cost:
        """Return the mean cost of a call for one text, without the prompt's tokens."""
        prompt, costs = len(self.tokenizer.encode(language.prompt)), []
        for _ in range(calls):
            before, start, busy = self.meter.read(), time.perf_counter(), time.process_time()
            call()
            seconds, processor = time.perf_counter() - start, time.process_time() - busy
            counts, tokens, sequences = (b - a for a, b in zip(before, self.meter.read(), strict=True))
            costs.append(Cost(counts, tokens - prompt, sequences, seconds, processor))
        return Cost(*(statistics.mean(column) for column in zip(*costs, strict=True)))


def parts(n: int) -> Iterator[int]:
    """Yield the sizes of the batches that ``n`` texts are written in."""
    for first in range(0, n, ROWS):
        yield min(ROWS, n - first)


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what backends warn of rows that have ended, which go on in a batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
