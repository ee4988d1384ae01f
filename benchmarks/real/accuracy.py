"""The rate of right answers, by the two labelled sets in ``data``: 60 reviews, and 40 texts with a record each.

    python -m benchmarks.real --what accuracy --phi local,fields,auto --temperatures 1,0.3

``local`` is masking; ``mode`` the most probable member of the format; ``greedy`` stock Outlines without sampling. Faithful is not
more correct: a draw is as right as the model is at its temperature. Each text is a trial, of several draws for labels; the
interval of 95 % resamples the texts. *Right* is every field of a record, *fields* the share of them; case does not count.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import outlines
from rich.progress import track

import outlines_phi
from benchmarks.real.rows import Limit, OutOfTime, Row, kept_rows, say, share_interval
from benchmarks.real.tasks import CLASSIFY, EXTRACT, RECORDS, data
from outlines_phi.errors import BudgetError, FidelityWarning, ValueReadError

LABELS = "negative", "neutral", "positive"
SETS: dict[str, int] = {"reviews": 4, "records": 1}
"""The sets, and the draws of each text."""

TOKENS = 96

SECONDS = 20.0
"""CPU seconds after which an answer is broken off; none counts as wrong."""


def questions(name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield prompt, output type and right answer of each text of a set."""
    for row in data(name):
        if name == "reviews":
            yield CLASSIFY.format(labels=", ".join(LABELS), text=row["text"]), Literal[LABELS], row["label"]
        else:
            output_type, keys = RECORDS[row["kind"]]
            yield EXTRACT.format(keys=keys, text=row["text"]), output_type, row["record"]


def score(answer: Any, right: Any) -> float:
    """Return the share of fields that are right."""
    said = answer if isinstance(answer, str) else answer.model_dump(mode="json")
    pairs = [(said[key], right[key]) for key in right] if isinstance(right, dict) else [(said, right)]
    return float(np.mean([str(a).strip().casefold() == str(b).casefold() for a, b in pairs]))


Answer = Callable[[str, int, int], list[Any]]
"""Answers to a prompt, by a seed and a number; none where there was no draw."""


class Answers:
    """The ways to answer, each made once for an output type."""

    def __init__(self, loaded: tuple[Any, Any], seconds: float) -> None:
        self.stock = outlines.from_transformers(*loaded)
        self.ours, self.seconds = outlines_phi.wrap(outlines.from_transformers(*loaded)), seconds
        self.made: dict[tuple[str, float, Any], Answer] = {}

    def way(self, method: str, temperature: float, output_type: Any) -> Answer:
        """Return the way to answer by a method."""
        key = (method, temperature, output_type)
        if key not in self.made:
            make = {"greedy": self._greedy, "mode": self._mode}.get(method, self._draws)
            self.made[key] = make(method, temperature, output_type)
        return self.made[key]

    def _greedy(self, method: str, temperature: float, output_type: Any) -> Answer:
        generator = outlines.Generator(self.stock, output_type)

        def answer(prompt: str, seed: int, n: int) -> list[Any]:
            text = generator(prompt, max_new_tokens=TOKENS, do_sample=False)
            try:
                return [output_type.model_validate_json(text) if isinstance(output_type, type) else text]
            except ValueError:  # cut off by the budget
                return []

        return answer

    def _mode(self, method: str, temperature: float, output_type: Any) -> Answer:
        generator = outlines_phi.Generator(self.ours, output_type)
        settings = {"max_new_tokens": TOKENS, "temperature": temperature}

        def answer(prompt: str, seed: int, n: int) -> list[Any]:
            try:
                return generator.mode(prompt, progress=Limit(self.seconds), **settings).values[:1]
            except (BudgetError, OutOfTime):
                return []

        return answer

    def _draws(self, method: str, temperature: float, output_type: Any) -> Answer:
        generator = outlines_phi.Generator(self.ours, output_type, phi=method)
        settings = {"max_new_tokens": TOKENS, "temperature": temperature}

        def answer(prompt: str, seed: int, n: int) -> list[Any]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FidelityWarning)
                try:
                    draws = generator.sample(prompt, n, seed=seed, progress=Limit(self.seconds), **settings)
                except (BudgetError, OutOfTime):
                    return []
            found = []
            for draw in draws:
                with suppress(ValueReadError):  # the 30th of February
                    found.append(draw.value)
            return found

        return answer


def measure(answers: Answers, name: str, method: str, temperature: float, texts: int) -> None:
    """Make the trials of a row that are missing: one a text."""
    n = SETS[name] if method not in ("greedy", "mode") else 1
    about = {"set": name, "method": method, "temperature": temperature, "draws": n, "limit": answers.seconds}
    row = Row.of("accuracy", name, method, f"{temperature:g}", **about)
    asked = list(enumerate(questions(name)))[:: max(1, len(data(name)) // texts)]
    for i, (prompt, output_type, right) in track(asked, description=f"{name} {method} {temperature:g}".ljust(24)):
        if i in row:
            continue
        answer = answers.way(method, temperature, output_type)
        start = time.process_time()
        found = answer(prompt, i, n)
        shares = [score(one, right) for one in found] + [0.0] * (n - len(found))
        row.add(i, {"scores": shares, "unanswered": n - len(found), "seconds": time.process_time() - start})


def shares(row: Mapping[str, Any]) -> np.ndarray:
    """Return ``[texts, draws]``: the share of fields that each draw has right."""
    return np.array([trial["scores"] for _, trial in sorted(row["trials"].items())])


def interval(of_texts: np.ndarray) -> tuple[float, float]:
    """Return the interval of 95 % of a mean over texts: resampled, or Wilson's where all are the same."""
    if of_texts.min() == of_texts.max():
        return share_interval(round(of_texts.sum()), len(of_texts))
    low, high = np.quantile(
        np.random.default_rng(0).choice(of_texts, (4_000, len(of_texts))).mean(axis=1), [0.025, 0.975]
    )
    return float(low), float(high)


def over_masking(row: Mapping[str, Any]) -> str:
    """Return the interval of the difference of the share of fields to that of masking, text by text."""
    about = row["about"] | {"method": "local"}
    masked = [shares(kept).mean(axis=1) for kept in kept_rows("accuracy") if kept["about"] == about != row["about"]]
    if not masked or len(masked[0]) != len(row["trials"]):
        return ""
    return "{:+.2f} to {:+.2f}".format(*interval(shares(row).mean(axis=1) - masked[0]))


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    about, trials, scores = row["about"], row["trials"].values(), shares(row)
    right = (scores == 1).mean(axis=1)
    missing = sum(trial["unanswered"] for trial in trials)
    return {
        "set": about["set"],
        "method": "masking" if about["method"] == "local" else about["method"],
        "T": "" if about["method"] == "greedy" else f"{about['temperature']:g}",
        "right": "{:.2f} ({:.2f} to {:.2f})".format(right.mean(), *interval(right)),
        "fields": f"{scores.mean():.2f}" if about["set"] == "records" else "",
        "over masking": over_masking(row),
        "no answer": f"{missing} of {scores.size}" if missing else "",
        "CPU s a text": float(np.median([trial["seconds"] for trial in trials])),
    }


def run(loaded: tuple[Any, Any], sets: str, phi: str, temperatures: str, texts: int) -> None:
    """Measure the missing trials, and say each row."""
    answers, heats = Answers(loaded, SECONDS), [float(heat) for heat in temperatures.split(",")]
    for name in sets.split(","):
        rows = [("greedy", 1.0), ("mode", 1.0), *((method, heat) for heat in heats for method in phi.split(","))]
        for method, heat in rows:
            measure(answers, name, method, heat, texts)
        for line in (summary(row) for row in kept_rows("accuracy") if row["about"]["set"] == name):
            say(f"  {line['method']:8} {line['T']:4} right {line['right']} {line['fields']} {line['no answer']}")
