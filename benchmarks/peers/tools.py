"""The tool that a model chooses, by this package and by masks of xgrammar, beside the exact distribution.

    python -m benchmarks.peers.tools  # half a minute of processor time

A model by hand of single bytes and a few longer tokens calls for tea, mostly for a large one, or for mail; the tool takes small tea
only. So the choice of the tool decides what the model can still write as it means to. Both sides have the format of Llama 3, of
which xgrammar builds its structural tag. The results are kept in ``peers_tools.json``, and shown by ``benchmarks.peers``.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import torch
import xgrammar
from xgrammar.builtin_structural_tag import get_model_structural_tag

import outlines_phi
from benchmarks.report import Report
from outlines_phi.fidelity.findings import frequencies, noise_floor, total_variation
from outlines_phi.lm import TableModel
from outlines_phi_workbench.suite.reference import Reference, enumerate_language

PIECES = {
    "": {'{"name": "': 0.9, "Well": 0.1},
    '{"name": "': {'tea", "parameters": ': 0.6, 'mail", "parameters": ': 0.4},
    'tea", "parameters": ': {'{"size":': 1.0},
    'mail", "parameters": ': {'{"to":': 1.0},
    '{"size":': {'"small"': 0.05, '"large"': 0.95},
    '{"to":': {'"Ann"': 0.5, '"Bob"': 0.5},
    '"small"': {"}": 1.0},
    '"large"': {"}": 1.0},
    '"Ann"': {"}": 1.0},
    '"Bob"': {"}": 1.0},
    "}": {"}": 0.5, "": 0.5},
    "Well": {"": 1.0},
}
"""The distribution of the next piece after a piece; the empty one begins and ends."""

ODD = {"required": 1e-5, "auto": 0.0}
"""The probability of all single bytes together, after each piece: none where text is free, which could not be enumerated."""

PROMPT = (0,)
BUDGET = 8

COLUMNS = ["method", "choice", "draws", "TV", "floor", "P(tea)", "P(no call)"]


def piecewise(pieces: dict[str, dict[str, float]], odd: float) -> TableModel:
    """Return a model of pieces, and of single bytes that have the probability ``odd`` together."""
    texts = [*pieces, *{text for row in pieces.values() for text in row if text not in pieces}]
    tokens = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in texts)]
    end = 256 + texts.index("")

    def next_logits(context: tuple[int, ...]) -> np.ndarray[Any, Any]:
        last = texts[context[-1] - 256] if context[-1] >= 256 else ""
        p = np.where(np.arange(len(tokens)) < 256, odd / 256, 0.0)
        for text, share in (pieces[last] if last or len(context) == 1 else {"": 1.0}).items():
            p[256 + texts.index(text)] = share
        with np.errstate(divide="ignore"):
            return np.log(p / p.sum())

    return TableModel(outlines_phi.Vocabulary.from_tokens(tokens, end), next_logits)


def tea(size: Literal["small"]) -> None:
    """Make tea."""


def mail(to: Literal["Ann", "Bob"]) -> None:
    """Send mail."""


@cache
def tools(choice: str) -> outlines_phi.Tools:
    """Return the output type."""
    return outlines_phi.Tools([tea, mail], choice, "llama3", parallel=False)


def generator(lm: TableModel, choice: str) -> Any:
    """Return this package's generator of the output type, after :data:`PROMPT`."""
    return outlines_phi.Generator(outlines_phi.from_language_model(lm, lambda _: PROMPT), tools(choice))


def reference(lm: TableModel, choice: str) -> Reference:
    """Return every member of the output type, with its probability."""
    settings = outlines_phi.SamplingSettings(max_new_tokens=BUDGET)
    return enumerate_language(lm, generator(lm, choice).table, PROMPT, settings, BUDGET)


def chosen(text: str) -> str | None:
    """Return the name of the tool that a text calls, ``None`` where it calls none."""
    return next((call.name for call in tools("auto").read(text).calls), None)


def by_tool(lm: TableModel, law: dict[tuple[int, ...], float]) -> dict[str | None, float]:
    """Return the distribution of the chosen tool."""
    found = Counter[str | None]()
    for ids, p in law.items():
        found[chosen(lm.vocabulary.decode(ids).decode())] += p  # type: ignore[assignment]
    return dict(found)


PHI = {"ours, exact": "exact", "ours, auto": "auto", "ours, mask": "local"}


def drawn(lm: TableModel, choice: str, method: str, n: int) -> list[str]:
    """Return texts by a method: a key of :data:`PHI`, or xgrammar."""
    if method == "xgrammar":
        return list(masked(lm, choice, n))
    return generator(lm, choice).sample("", n, phi=PHI[method], seed=0, max_new_tokens=BUDGET).texts


def masked(lm: TableModel, choice: str, n: int, seed: int = 0) -> Iterator[str]:
    """Yield texts under masks of xgrammar."""
    vocabulary, rng = lm.vocabulary, np.random.default_rng(seed)
    info = xgrammar.TokenizerInfo(
        list(vocabulary.tokens), vocab_type=xgrammar.VocabType.RAW, stop_token_ids=list(vocabulary.eos_ids)
    )
    tag = get_model_structural_tag("llama", tools(choice).schemas, choice, "disabled", parallel_tool_calls=False)
    compiled = xgrammar.GrammarCompiler(info).compile_structural_tag(tag)
    mask = xgrammar.allocate_token_bitmask(1, len(vocabulary))
    for _ in range(n):
        matcher, ids = xgrammar.GrammarMatcher(compiled), list[int]()
        while not ids or ids[-1] not in vocabulary.eos_ids:
            logits = torch.tensor(lm.next_logits((*PROMPT, *ids)))[None].float()
            matcher.fill_next_token_bitmask(mask)
            xgrammar.apply_token_bitmask_inplace(logits, mask)
            ids.append(int(rng.choice(len(vocabulary), p=np.asarray(torch.softmax(logits[0].double(), 0)))))
            matcher.accept_token(ids[-1])
        yield vocabulary.decode(ids).decode()


def main(n: int = 2000) -> None:
    """Measure, and write the result."""
    report = Report("peers_tools", "The tool that is chosen: total variation to the exact distribution", COLUMNS)
    for choice, odd in ODD.items():
        lm = piecewise(PIECES, odd)
        mu = by_tool(lm, reference(lm, choice).mu)
        floor = noise_floor(mu, n)
        for method in (*PHI, "xgrammar"):
            law = frequencies(list(map(chosen, drawn(lm, choice, method, n))))
            report.add(method, choice, n, total_variation(mu, law), floor, law.get("tea", 0.0), law.get(None, 0.0))
        report.add("exact distribution", choice, "", "", "", mu["tea"], mu.get(None, 0.0))
    report.write(draws=n, xgrammar=version("xgrammar"))


if __name__ == "__main__":
    main()
