"""The exact laws of the bundled model: of output types by all their tokens, of free text by Hugging Face's own calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from scipy import stats

from outlines_phi import PhiTransformers, SamplingSettings
from outlines_phi_workbench.suite.reference import Reference, enumerate_language


def reference(
    model: PhiTransformers, output_type: object, prompt: str, budget: int, *, estimators: Any = None, **options: Any
) -> Reference:
    """Return the exact laws of an output type after a prompt, under the sampling settings ``options``."""
    table, ids = model.table(output_type), tuple(model.hf_tokenizer(prompt)["input_ids"])
    settings = SamplingSettings(max_new_tokens=budget, **options)
    return enumerate_language(model.lm, table, ids, settings, budget, estimators=estimators)


def by_text(model: PhiTransformers, law: Mapping[tuple[int, ...], float]) -> dict[str, float]:
    """Return the probability of each text, the sum over its spellings."""
    found: Counter[str] = Counter()
    for ids, p in law.items():
        found[model.lm.vocabulary.decode(ids).decode()] += p  # type: ignore[assignment]
    return dict(found)


def free_texts(
    model: PhiTransformers,
    prompt: str,
    *,
    k: int,
    budget: int,
    allowed: Callable[[str], bool] | None = None,
) -> dict[str, float]:
    """Return P(text) of free text of at most ``budget`` tokens, each one of the ``k`` likeliest.

    Where ``allowed`` is given, tokens after which it refuses the text are masked before the ``k`` are chosen, as by a logits
    processor.
    """
    tokenizer, eos = model.hf_tokenizer, set(model.lm.vocabulary.eos_ids)
    start = tuple(tokenizer(prompt)["input_ids"])
    law: Counter[str] = Counter()
    level = {(): 1.0}
    for _ in range(budget):
        paths = list(level)
        ids = torch.tensor([start + path for path in paths])
        with torch.no_grad():
            logits = torch.cat([model.model(part).logits[:, -1].double() for part in ids.split(256)])
        below: dict[tuple[int, ...], float] = {}
        for path, row in zip(paths, logits, strict=True):
            ranked = row.argsort(descending=True).tolist()
            live = (v for v in ranked if allowed is None or v in eos or allowed(_written(tokenizer, (*path, v))))
            top = list(islice(live, k))
            for token, p in zip(top, row[top].softmax(-1).tolist(), strict=True):
                if token in eos:
                    law[_written(tokenizer, path)] += level[path] * p  # type: ignore[assignment]
                else:
                    below[(*path, token)] = level[path] * p
        level = {path: p for path, p in below.items() if p > 1e-9}
    for path, p in level.items():
        law[_written(tokenizer, path)] += p  # type: ignore[assignment]
    return dict(law)


def without(law: dict[str, float], phrases: Sequence[str], prompt: str) -> dict[str, float]:
    """Return a law conditioned on no phrase being in prompt and text, apart from what the prompt holds by itself."""
    assert not any(phrase in prompt for phrase in phrases)
    kept = {text: p for text, p in law.items() if not any(phrase in prompt + text for phrase in phrases)}
    return {text: p / sum(kept.values()) for text, p in kept.items()}


def p_value(texts: Sequence[str], law: dict[str, float]) -> float:
    """Return the p-value of "the texts are draws of this law", rare texts pooled; 0 where a text is not in it at all."""
    n = len(texts)
    found, common = Counter(texts), [text for text in law if n * law[text] >= 5]
    observed = [found[text] for text in common] + [n - sum(found[text] for text in common)]
    expected = [n * law[text] for text in common] + [n * max(0.0, 1 - sum(law[text] for text in common))]
    if set(texts) - set(law) and expected[-1] < 1e-6 * n:
        return 0.0
    cells = [(o, e) for o, e in zip(observed, expected, strict=True) if e >= 1]
    return float(stats.chi2.sf(sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1))


def same_law(one: Sequence[str], other: Sequence[str]) -> float:
    """Return the p-value of "both are draws of one law", rare texts pooled."""
    counts = Counter(one), Counter(other)
    common = [text for text, n in counts[1].most_common() if n * len(one) >= 5 * len(other)]
    table = [[found[text] for text in common] for found in counts]
    rest = [len(one) - sum(table[0]), len(other) - sum(table[1])]
    rows = [[*row, n] for row, n in zip(table, rest, strict=True)] if sum(rest) else table
    return float(stats.chi2_contingency(rows).pvalue)


def _written(tokenizer: object, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=True)  # type: ignore[attr-defined]
