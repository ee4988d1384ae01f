"""Multiple choice in lm-evaluation-harness: scores of one tokenization, as usual, beside those of all of them.

    python -m benchmarks.real --what choices

Sixty questions of general knowledge with four answers of different lengths, some of which begin another, in two forms: as a user's
message, and as a text to complete. *One tokenization* is the harness's own model for Transformers; *begins with* and *is* are
``outlines_phi.lm_eval`` with ``ends="open"`` and ``"text"``. The best answer is by the log probability (``acc``), or by that over
the number of characters (``acc_norm``). Intervals of 95 % are Wilson's, over the questions.
"""

import statistics
from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.peers.meter import Meter
from benchmarks.real.rows import Row, kept_rows, say, share_interval
from benchmarks.real.tasks import data

FORMS = "message", "completion"
USUAL = "one tokenization"
SCORES: dict[str, dict[str, Any] | None] = {
    USUAL: None,
    "begins with": {"ends": "open", "tolerance": 0.01},
    "is": {"ends": "text", "tolerance": 0.01},
}
"""The arguments of ``outlines_phi.lm_eval``, by the name of a score; ``None`` for the harness's own model."""

AT_ONCE = 10
"""Questions of a call of the harness."""


def requests(lm: Any, form: str, question: Mapping[str, Any]) -> list[Any]:
    """Return the requests that the harness makes of a question."""
    if form == "message":
        context, delimiter = lm.apply_chat_template([{"role": "user", "content": question["question"]}]), ""
    else:
        context, delimiter = f"Question: {question['question']}\nAnswer:", " "
    make = import_module("lm_eval.api.instance").Instance
    return [make("loglikelihood", {}, (context, delimiter + choice), i) for i, choice in enumerate(question["choices"])]


def measure(loaded: tuple[Any, Any], form: str, score: str) -> None:
    """Make the trials of a row that are missing: one a question."""
    row = Row.of("choices", form, score, task=form, method=score)
    missing = [(i, question) for i, question in enumerate(data("choices")) if i not in row]
    if not missing:
        return
    model, tokenizer = loaded
    arguments = SCORES[score]
    kind = (
        import_module("lm_eval.models.huggingface").HFLM
        if arguments is None
        else import_module("outlines_phi.lm_eval").ExactLM
    )
    lm, meter = kind(model, tokenizer=tokenizer, batch_size=4 * AT_ONCE, **(arguments or {})), Meter(model)
    for at in track(range(0, len(missing), AT_ONCE), description=f"{form} {score}".ljust(24)):
        some, before = missing[at : at + AT_ONCE], meter.tokens
        asked = [requests(lm, form, question) for _, question in some]
        log_p = [found[0] for found in lm.loglikelihood([*chain.from_iterable(asked)], disable_tqdm=True)]
        for (i, _), each in zip(some, asked, strict=True):
            found, log_p = log_p[: len(each)], log_p[len(each) :]
            row.add(i, {"log_p": found, "tokens": (meter.tokens - before) / len(some)})


def best(question: Mapping[str, Any], trial: Mapping[str, Any]) -> tuple[int, int]:
    """Return the best answers by log probability, and by that over the length."""
    log_p, lengths = np.array(trial["log_p"]), [len(choice) for choice in question["choices"]]
    return int(log_p.argmax()), int((log_p / lengths).argmax())


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    about, trials, questions = row["about"], row["trials"], dict(enumerate(data("choices")))
    usual = next((kept["trials"] for kept in kept_rows("choices") if kept["about"] == about | {"method": USUAL}), {})
    chosen = {i: best(questions[int(i)], trial) for i, trial in trials.items()}
    right = [[k == questions[int(i)]["answer"] for k in both] for i, both in chosen.items()]
    shares = [
        "{:.2f} ({:.2f} to {:.2f})".format(n / len(right), *share_interval(n, len(right)))
        for n in map(sum, zip(*right, strict=True))
    ]
    pairs = [(chosen[i], best(questions[int(i)], usual[i])) for i in trials if i in usual]
    others = [sum(one[k] != other[k] for one, other in pairs) for k in (0, 1)]
    gains = [a - b for i in trials if i in usual for a, b in zip(trials[i]["log_p"], usual[i]["log_p"], strict=True)]
    same = about["method"] == USUAL
    return {
        "form": about["task"],
        "score": about["method"],
        "questions": len(trials),
        "acc": shares[0],
        "acc_norm": shares[1],
        "other answers, acc": "" if same else others[0],
        "other answers, acc_norm": "" if same else others[1],
        "log p over one tokenization": ""
        if same
        else f"{statistics.median(gains):+.3f} ({min(gains):+.2f} to {max(gains):+.2f})",
        "tokens a question": statistics.mean(trial["tokens"] for trial in trials.values()),
    }


def run(loaded: tuple[Any, Any]) -> None:
    """Measure the missing trials, and say each row."""
    for form in FORMS:
        for score in SCORES:
            measure(loaded, form, score)
    for line in map(summary, kept_rows("choices")):
        say("  " + ", ".join(map(str, line.values())))
