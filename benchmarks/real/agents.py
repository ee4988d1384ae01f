"""Calls of tools and thoughts on the real model: what they cost, what comes of them, and transcripts.

    python -m benchmarks.real --what agents

*Tools*: ten requests, two functions told of in the prompt, one call in the format of Hermes. ``local`` is a masked draw; P(tool) is
that of ``tool_probabilities`` to 1e-3. *Thoughts*: reviews with three labels, a thought of at most 40 tokens up to the words
``Final answer:``, then the label; ``none`` is the label without a thought. A draw each from a cold tree, T = 1 for calls
and 0.5 for reviews. The transcripts are written to ``benchmarks/results/real/agents.md``.
"""

import statistics
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import outlines
from rich.progress import track

import outlines_phi
from benchmarks.peers.meter import Meter
from benchmarks.real.accuracy import LABELS
from benchmarks.real.rows import Row, folder, kept_rows, say
from benchmarks.real.tasks import ITEMS, data
from outlines_phi.errors import FidelityWarning, OutlinesPhiError

TELL = (
    "You may call get_weather(city, unit), unit being celsius or fahrenheit, or web_search(query). Answer the request with one "
    'call, as <tool_call>\n{{"name": "web_search", "arguments": {{"query": ...}}}}\n</tool_call>\n\nRequest: {}'
)
ASK = "Is this review positive, negative or neutral? {}\n\nReview: {}"
FIRST = "Think in one short sentence. Then write 'Final answer:' and the word alone."
END, MOST, ROOM, COOL = "Final answer:", 40, 32, 0.5
METHODS = "local", "fields", "auto"


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> None:
    """Tell the weather in a city."""


def web_search(query: str) -> None:
    """Search the web."""


TOOLS = outlines_phi.Tools([get_weather, web_search], "required", family="hermes", parallel=False)


def expected(request: str) -> str:
    """Return the tool that a request of the set is for: by the words that are about weather."""
    words = ("warm", "raining", "weather", "coat", "temperature")
    return "get_weather" if any(word in request.lower() for word in words) else "web_search"


def run(loaded: tuple[Any, Any], texts: int) -> None:
    """Measure the rows that are missing, and write the transcripts."""
    model, meter = outlines_phi.wrap(outlines.from_transformers(*loaded)), Meter(loaded[0])

    def timed(row: Row, trial: int, call: Any) -> None:
        if trial in row:
            return
        model.clear_cache()
        (calls, tokens, _), start = meter.read(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FidelityWarning)
            try:
                found = call()
            except OutlinesPhiError as error:
                found = {"failed": type(error).__name__, "why": str(error)[:300]}
        seconds, after = time.process_time() - start, meter.read()
        row.add(trial, {"calls": after[0] - calls, "tokens": after[1] - tokens, "seconds": seconds, **found})

    for phi in METHODS:
        generator = outlines_phi.Generator(model, TOOLS, phi=phi)
        row = Row.of("agents", "tools", phi, what="tools", phi=phi)
        for trial, request in enumerate(track(ITEMS["tool call"], description=f"tools, {phi:8}")):
            timed(row, trial, lambda: _called(generator, request, trial))  # noqa: B023
    row = Row.of("agents", "tools", "probabilities", what="P(tool)", phi="probabilities")
    generator = outlines_phi.Generator(model, TOOLS)
    for trial, request in enumerate(track(ITEMS["tool call"], description="P(tool)")):
        timed(row, trial, lambda: _likely(generator, request))  # noqa: B023
    reviews = data("reviews")[::2][:texts]
    for name, output_type, how in _answers():
        row = Row.of("agents", "thoughts", name, what="thoughts", phi=name)
        generator = outlines_phi.Generator(model, output_type, phi="local" if name == "masked" else "exact")
        for trial, review in enumerate(track(reviews, description=f"thoughts, {name}")):
            timed(row, trial, lambda: _labelled(generator, ASK.format(how, review["text"]), review, trial))  # noqa: B023
    write()


def _answers() -> Iterator[tuple[str, Any, str]]:
    """Yield the ways to label a review: their names, output types and instructions."""
    label = outlines.types.regex(f" ({'|'.join(LABELS)})")
    yield "none", Literal[LABELS], "Answer with the word alone."
    yield "answer", outlines_phi.Thinking(label, end=END, max_tokens=MOST), FIRST
    yield "masked", outlines_phi.Thinking(label, end=END, max_tokens=MOST, scope="joint"), FIRST


def _called(generator: Any, request: str, seed: int) -> dict[str, Any]:
    (draw,) = generator.sample(TELL.format(request), seed=seed, max_new_tokens=96)
    (call,) = draw.calls
    return {
        "text": draw.text,
        "tool": call.name,
        "right": call.name == expected(request),
        "guarantee": str(draw.guarantee),
    }


def _likely(generator: Any, request: str) -> dict[str, Any]:
    found = generator.tool_probabilities(TELL.format(request), max_new_tokens=96)
    return {
        "p": {str(name): entry.p for name, entry in found.items()},
        "right": max(found, key=lambda name: found[name].p) == expected(request),
        "width": max(entry.hi - entry.lo for entry in found.values()),
    }


def _labelled(generator: Any, prompt: str, review: Mapping[str, Any], seed: int) -> dict[str, Any]:
    (draw,) = generator.sample(prompt, seed=seed, max_new_tokens=MOST + ROOM, temperature=COOL)
    thought = draw.thought if hasattr(generator.output_type, "end") else None
    said = {} if thought is None else {"thought": thought.text, "forced": thought.forced}
    return {
        "text": draw.value,
        "right": draw.value.strip() == review["label"],
        "guarantee": str(draw.guarantee),
        **said,
    }


def summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table: medians over the trials, and how many were right."""
    trials = [trial for trial in row["trials"].values() if "failed" not in trial]
    labels = [trial.get("guarantee", "") for trial in trials]
    counted = ", ".join(f"{label} {labels.count(label)}" for label in sorted({*labels} - {""}))
    forced = sum(trial.get("forced", False) for trial in trials)
    cost = [statistics.median([trial[name] for trial in trials] or [0]) for name in ("calls", "tokens", "seconds")]
    return {
        "what": row["about"]["what"],
        "how": row["about"]["phi"],
        "calls / tokens / s": f"{cost[0]:.0f}/{cost[1]:.0f}/{cost[2]:.2f}",
        "right": f"{sum(trial['right'] for trial in trials)} of {len(row['trials'])}",
        "result": counted + f"; {forced} forced" * bool(forced),
    }


def write() -> None:
    """Write the table and the transcripts from the kept rows."""
    rows = kept_rows("agents")
    lines = [summary(row) for row in rows]
    text = [
        "# Tools and thoughts on the real model",
        "",
        "`python -m benchmarks.real --what agents` writes this page.",
        "",
    ]
    text += ["|" + "|".join(lines[0]) + "|", "|---" * len(lines[0]) + "|"]
    text += ["|" + "|".join(line.values()) + "|" for line in lines]
    for row in rows:
        about = row["about"]
        asked = (
            ITEMS["tool call"] if about["what"] != "thoughts" else [review["text"] for review in data("reviews")[::2]]
        )
        text += ["", f"## {about['what']}, {about['phi']}", ""]
        for trial, found in row["trials"].items():
            if "failed" in found:
                said = f"{found['failed']}: {found['why']}"
            elif "p" in found:
                said = ", ".join(f"{name} {p:.4f}" for name, p in found["p"].items())
            else:
                said = " | ".join(filter(None, [found.get("thought"), found["text"]]))
            mark = "" if found.get("right") else " (not right)"
            text.append(f"- {asked[int(trial)]!r}: `{said!r}`{mark}")
    path = folder("agents").with_suffix(".md")
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    say(f"written: {path.name}")
