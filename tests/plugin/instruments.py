"""Instruments of the tests of doors: a gate in front of a model, Hugging Face's own loop, and exact laws of the bundled model."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from scipy import stats

from outlines_phi import PhiTransformers, SamplingSettings, custom_generate
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.languages import pushed
from tests.loaded import A_PERSON, ANSWER, ARIA, MONDAY, SUNDAY  # noqa: F401 - for tests of doors

PATIENCE = 20.0
"""Seconds after which a held-up call gives up, so that a test that should fail does not hang."""


def workers() -> set[threading.Thread]:
    """Return the threads that still run of those that this package has started for one call; not those that models keep."""
    names = {thread: thread.name for thread in threading.enumerate()}
    return {thread for thread, name in names.items() if name.startswith("outlines_phi") and "async" not in name}


def trees(model: Any) -> list[Any]:
    """Return the trees that a model keeps, the longest unused one first."""
    return list(model._trees)


def forget_trees(model: Any) -> None:
    """Forget the trees of all calls; languages stay compiled."""
    model._trees.clear()


def compiled(model: Any) -> tuple[int, int]:
    """Return the number of languages and of tables that a model keeps."""
    return len(model.compiled._languages), len(model.compiled._tables)


def is_free(model: Any) -> bool:
    """Return True if no call holds the lock under which a model draws."""
    lock = model._drawing
    return bool(lock.acquire(blocking=False)) and not lock.release()


def together(*works: Callable[[], Any]) -> list[Any]:
    """Return the results of ``works``, each done in a thread of its own and all begun at once; an error is its result."""
    results: list[Any] = [None] * len(works)
    start = threading.Barrier(len(works))

    def work(index: int) -> None:
        start.wait()
        try:
            results[index] = works[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Gate:
    """Counts the forward calls of a Hugging Face model; the calls from number ``closed_from`` on wait until it is opened."""

    def __init__(self, hf_model: Any, *, closed_from: int | None = None, error: BaseException | None = None) -> None:
        self.calls = 0
        self.closed_from, self.error = closed_from, error
        self.reached, self._open = threading.Event(), threading.Event()
        self._hook = hf_model.register_forward_pre_hook(self._pass)

    def _pass(self, *_: Any) -> None:
        self.calls += 1
        if self.closed_from is None or self.calls < self.closed_from:
            return
        if self.error is not None:
            raise self.error
        self.reached.set()
        if not self._open.wait(PATIENCE):
            raise TimeoutError("nobody opened the gate")

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: Any) -> None:
        self.open()
        self._hook.remove()


def seeded(call: Callable[..., Any], *arguments: Any, seed: int = 5, **keywords: Any) -> Any:
    """Call under torch's seed; a stream is read to its end."""
    torch.manual_seed(seed)
    result = call(*arguments, **keywords)
    return list(result) if isinstance(result, Iterator) else result


def pair(model: PhiTransformers) -> tuple[Any, Any]:
    return model.model, model.hf_tokenizer


def inputs_of(tokenizer: Any, *prompts: str) -> Any:
    return tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left")


def generate(hf: tuple[Any, Any], *prompts: str, **options: Any) -> Any:
    """Return the answer of ``generate`` of a Hugging Face model to prompts."""
    model, tokenizer = hf
    return model.generate(**inputs_of(tokenizer, *prompts), **options)


def custom(hf: tuple[Any, Any], *prompts: str, **options: Any) -> Any:
    """As :func:`generate` by ``custom_generate``; an option of ``...`` is left out."""
    given = {"custom_generate": custom_generate, "vocabulary": hf[1], **options}
    return generate(hf, *prompts, **{name: value for name, value in given.items() if value is not ...})


def written(hf: tuple[Any, Any], output: Any, *prompts: str) -> list[tuple[int, ...]]:
    """Return the tokens of each row up to its end of sequence, behind which is nothing but padding."""
    _, tokenizer = hf
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    rows = sequences[:, inputs_of(tokenizer, *prompts)["input_ids"].shape[1] :].tolist()
    ends = [row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row) for row in rows]
    assert all(set(row[end:]) <= {tokenizer.pad_token_id} for row, end in zip(rows, ends, strict=True))
    return [tuple(row[:end]) for row, end in zip(rows, ends, strict=True)]


def texts(hf: tuple[Any, Any], output: Any, *prompts: str) -> list[str]:
    return hf[1].batch_decode(written(hf, output, *prompts), skip_special_tokens=True)


def reference(
    model: PhiTransformers, output_type: object, prompt: str, budget: int, *, estimators: Any = None, **options: Any
) -> Reference:
    """Return the exact laws of an output type after a prompt, under the sampling settings ``options``."""
    table, ids = model.table(output_type), tuple(model.hf_tokenizer(prompt)["input_ids"])
    settings = SamplingSettings(max_new_tokens=budget, **options)
    return enumerate_language(model.lm, table, ids, settings, budget, estimators=estimators)


def by_text(model: PhiTransformers, law: Mapping[tuple[int, ...], float]) -> dict[str, float]:
    """Return the probability of each text, the sum over its spellings."""
    return dict(pushed(law, lambda ids: model.lm.vocabulary.decode(ids).decode()))


def free_texts(
    model: PhiTransformers, prompt: str, *, k: int, budget: int, allowed: Callable[[str], bool] | None = None
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
