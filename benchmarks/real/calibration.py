"""Calibration of the probability that a field is right: marginals of the conditioned distribution beside usual confidences.

    python -m benchmarks.real --what calibration

Each text of the two labelled sets is answered in several ways, at T = 1; each gives every field a value and its confidence. *Token
probability* is what is usual: greedy decoding, and the mean probability under the mask of the tokens that write the value. *Masked
share* is the commonest value of masked draws. The others take the likeliest value of marginals: *marginals* those of labels by
``generator.marginals``, which enumerates, and of records by the weights of the same masked draws; *by fields* those of draws by
fields. The Brier score is the mean of ``(confidence - right)^2``, the calibration error the mean over bins of ``|confidence -
share right|``, by the answers in a bin. Intervals of 95 % resample the texts.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import outlines
import torch
from rich.progress import track

import outlines_phi
from benchmarks.real.accuracy import SETS, TOKENS, questions
from benchmarks.real.rows import Row, kept_rows, say
from outlines_phi.errors import FidelityWarning

DRAWS = 20
"""Of each text."""

METHODS = "token probability", "masked share", "marginals", "by fields"
BINS = np.linspace(0, 1, 6)
RESAMPLES = 4_000

Answers = dict[str, tuple[Any, float]]
"""The value of each field, and the confidence in it; a label is the field ``""``."""


class Recorder:
    """A logits processor of Outlines that remembers the likeliest token after each mask, and its probability."""

    def __init__(self, processor: Any) -> None:
        self.processor, self.steps = processor, list[tuple[int, float]]()

    def reset(self) -> None:
        self.processor.reset()
        self.steps.clear()

    def __call__(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        masked = self.processor(ids, logits)
        p, token = masked[0].softmax(-1).max(-1)
        self.steps.append((int(token), float(p)))
        return masked


def spans(text: str, keys: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the place of the value of each key in the JSON of a flat object, without quotes; a key that has none is left out."""
    for key in keys:
        if found := re.search(rf'"{key}"\s*:\s*(?:"((?:[^"\\]|\\.)*)"|([^",}}\s]+)\s*[,}}])', text):
            yield key, *found.span(found.lastindex or 0)


class Ways:
    """The ways to answer, their generators made once for an output type."""

    def __init__(self, loaded: tuple[Any, Any]) -> None:
        stock, ours = outlines.from_transformers(*loaded), outlines_phi.wrap(outlines.from_transformers(*loaded))
        self.tokenizer = loaded[1]
        self.stock = cache(lambda output_type: outlines.Generator(stock, output_type))
        self.ours = cache(lambda output_type: outlines_phi.Generator(ours, output_type, phi="local"))

    def answers(self, prompt: str, output_type: Any, seed: int) -> dict[str, Answers]:
        """Return the answers of each way to a prompt."""
        generator, settings = self.ours(output_type), {"max_new_tokens": TOKENS}
        masked = generator.sample(prompt, DRAWS, seed=seed, **settings)
        plain = replace(masked, items=tuple(replace(draw, log_w=0.0) for draw in masked))
        laws = {"masked share": plain.marginals(), "marginals": masked.marginals()}
        if isinstance(output_type, type):
            laws["by fields"] = generator.sample(prompt, DRAWS, seed=seed, phi="fields", **settings).marginals()
        else:
            laws["marginals"] = generator.marginals(prompt, **settings)
        likeliest = {
            way: {path: (field.entries[0].value, field.entries[0].p) for path, field in law.items()}
            for way, law in laws.items()
        }
        return {"token probability": self.greedy(prompt, output_type), **likeliest}

    def greedy(self, prompt: str, output_type: Any) -> Answers:
        """Return the values that greedy decoding writes under the mask, and the mean probability of their tokens."""
        generator = self.stock(output_type)
        if not isinstance(generator.logits_processor, Recorder):
            generator.logits_processor = Recorder(generator.logits_processor)
        text = generator(prompt, max_new_tokens=TOKENS, do_sample=False)
        ids, p = zip(*generator.logits_processor.steps, strict=True)
        ends = [len(self.tokenizer.decode(ids[:i])) for i in range(len(ids) + 1)]
        keys = list(output_type.model_fields) if isinstance(output_type, type) else []
        return {
            key: (text[low:high], float(np.mean([p[i] for i in range(len(p)) if ends[i] < high and ends[i + 1] > low])))
            for key, low, high in (spans(text, keys) if keys else [("", 0, len(text))])
        }


def measure(ways: Ways, name: str) -> None:
    """Make the trials of a set that are missing: one a text."""
    rows = {
        way: Row.of("calibration", name, way, set=name, method=way, draws=DRAWS)
        for way in METHODS
        if name == "records" or way != "by fields"
    }
    for i, (prompt, output_type, right) in track(list(enumerate(questions(name))), description=name.ljust(24)):
        if all(i in row for row in rows.values()):
            continue
        rights = right if isinstance(right, dict) else {"": right}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FidelityWarning)
            found = ways.answers(prompt, output_type, i)
        for way, row in rows.items():
            scored = {
                key: [str(value), p, str(value).strip().casefold() == str(rights[key]).casefold()]
                for key, (value, p) in found[way].items()
            }
            row.add(i, scored)


def pairs(trials: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return ``[answers, 2]``: the confidence of each answer, and whether it is right."""
    return np.array([(p, right) for trial in trials for _, p, right in trial.values()], dtype=float).reshape(-1, 2)


def reliability(found: np.ndarray) -> list[tuple[int, float, float]]:
    """Return the answers in each bin of confidence that has some: how many, their mean confidence, and the share that is right."""
    bins = np.digitize(found[:, 0], BINS[1:-1])
    return [(len(inside), *inside.mean(axis=0)) for inside in (found[bins == i] for i in np.unique(bins))]


def scores(found: np.ndarray) -> tuple[float, float]:
    """Return Brier score and calibration error."""
    errors = [n * abs(p - right) for n, p, right in reliability(found)]
    return float(np.square(found[:, 0] - found[:, 1]).mean()), float(np.sum(errors) / len(found))


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    trials, rng = list(row["trials"].values()), np.random.default_rng(0)
    found = pairs(trials)
    again = [
        scores(pairs([trials[i] for i in picked]))
        for picked in rng.integers(len(trials), size=(RESAMPLES, len(trials)))
    ]
    ends = np.quantile(again, [0.025, 0.975], axis=0).T
    said = [f"{value:.2f} ({low:.2f} to {high:.2f})" for value, (low, high) in zip(scores(found), ends, strict=True)]
    return {
        "set": row["about"]["set"],
        "confidence": row["about"]["method"],
        "answers": len(found),
        "right": f"{found[:, 1].mean():.2f}",
        "mean confidence": f"{found[:, 0].mean():.2f}",
        "Brier": said[0],
        "calibration error": said[1],
    }


def run(loaded: tuple[Any, Any]) -> None:
    """Measure the missing trials, and say each row."""
    ways = Ways(loaded)
    for name in SETS:
        measure(ways, name)
    for line in map(summary, kept_rows("calibration")):
        say("  " + ", ".join(map(str, line.values())))
