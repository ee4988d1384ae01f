"""Every causal family of transformers, and what users put around it: right beside plain calls, or a typed error."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from outlines_phi import OutlinesPhiError, Vocabulary
from outlines_phi.lm import TransformersModel
from outlines_phi.testing import TreeGrowth
from tests.inner import TreeMask
from tests.lm.families import (
    ADAPTERS,
    ATTENTION,
    BORDER,
    CONTEXT,
    DTYPES,
    FAMILIES,
    LORA_FORMS,
    MASKED_ROWS,
    NOT_BUILT,
    PROMPT_KINDS,
    SIZE,
    SPECIALS,
    WIDE,
    WRAPPERS,
    adapted,
    borders,
    build,
    configuration,
    in_form,
    model_of,
    special,
    with_masked_rows,
)
from tests.precision import NATS

DEEPEST = 7  # tokens that a walk adds to a prompt
# The largest error of a log-probability, over the standard deviation of the log-probabilities (at least one).
# Rounding gives 3e-5, 0.01 and 0.06; a wrong mask or wrong positions give more than 0.1 in float32.
TOLERANCE = {torch.float32: NATS, torch.float16: 0.1, torch.bfloat16: 0.6}
# Their recurrence in chunks rounds otherwise behind padding: 6e-4 on the random weights of these tests.
CHUNKED = frozenset({"qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text"})
IMPOSSIBLE = -80.0  # in nats: below it, only that the tree says so too is asked for


@dataclass(frozen=True)
class Outcome:
    """The outcome of one walk.

    Attributes
    ----------
    error
        The largest error of a log-probability in units of their standard deviation; ``None`` when nothing was answered.
    refusal
        The typed error that ended the walk, if one did.
    fault
        The fault: an exception that is not typed, or an error beyond the tolerance. Empty when all is right.
    road
        The road that evaluated the trees.
    """

    error: float | None
    refusal: str = ""
    fault: str = ""
    road: str = ""


class Truth:
    """The log-probabilities after whole sequences: one plain call for each, without mask or cache."""

    def __init__(self, hf_model: Any) -> None:
        self.hf_model, self.known = hf_model, dict[tuple[int, ...], Tensor]()
        parameters = inspect.signature(hf_model.forward).parameters
        takes_use_cache = "use_cache" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.options = {"use_cache": False} if takes_use_cache else {}

    def __call__(self, sequence: Sequence[int]) -> Tensor:
        key = tuple(sequence)
        if key not in self.known:
            with torch.inference_mode():
                logits = self.hf_model(input_ids=torch.tensor([key]), **self.options).logits
            self.known[key] = logits[0, -1].double().log_softmax(-1)
        return self.known[key]


def draw(length: int, seed: int) -> list[int]:
    """Return ``length`` random tokens."""
    return np.random.default_rng([seed, length]).integers(3, SIZE, size=length).tolist()


def companies(length: int) -> list[list[list[int]]]:
    """Return the prompts of two walks: a prompt of ``length`` tokens alone, and in company of a short one."""
    return [[draw(length, 0)], [draw(length, 0), draw(2, 1)]]


def vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of ``size`` tokens that are bytes or pairs of them."""
    return Vocabulary.from_tokens([bytes([v]) if v < 256 else bytes(divmod(v, 256)) for v in range(size)], 2)


def grow(growth: TreeGrowth) -> None:
    """Grow trees as samplers do: from anywhere, under the last call's nodes with one repeated and one dropped, compact, and on."""
    growth.plant(5)
    after = growth.grow(4)
    for _ in range(2):
        after = growth.follow([node for node in (after[0], after[0], *after[2:]) if growth.has_room(node)])
    growth.prune([after[-1], after[0]])
    for _ in range(2):
        growth.grow(3)


def distance(laws: Tensor, truth: Tensor) -> float:
    """Return the largest error of a log-probability over the standard deviation of the true ones, at least one."""
    possible = truth > IMPOSSIBLE
    if bool((laws[~possible] > IMPOSSIBLE / 2).any()):
        return float("inf")
    return float((laws - truth)[possible].abs().max() / truth[possible].std().clamp(min=1.0))


def walk(hf_model: Any, prompts: Sequence[Sequence[int]], truth: Truth | None = None) -> Outcome:
    """Walk over the trees of ``prompts``, and compare every node that was answered with a plain call."""
    truth, road, growth, refusal, fault = truth or Truth(hf_model), "", None, "", ""
    try:
        size = hf_model.get_output_embeddings()
        size = getattr(size, "out_features", None) or hf_model.config.get_text_config(decoder=True).vocab_size
        model = TransformersModel(hf_model, vocabulary(size))
        longest = max(map(len, prompts)) + DEEPEST
        growth = TreeGrowth(model.trees(prompts), prompts, size, tokens=range(3, SIZE), max_length=longest, seed=3)
        road = model.road
        grow(growth)
    except OutlinesPhiError as problem:
        refusal = f"{type(problem).__name__}: {problem}"
    except Exception as problem:  # whatever it is, it is not typed
        fault = f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"
    if growth is None or not growth.history:
        return Outcome(None, refusal, fault, road)
    laws = torch.stack([logits.cpu().log_softmax(-1) for _, logits in growth.history])
    error = distance(laws, torch.stack([truth(sequence) for sequence, _ in growth.history]))
    chunked = hf_model.config.model_type in CHUNKED
    if not fault and not error <= TOLERANCE[hf_model.dtype] * (10 if chunked else 1):
        fault = f"off by {error:.2g}"
    return Outcome(error, refusal, fault, road)


def walks(hf_model: Any, lengths: Sequence[int]) -> dict[str, Outcome]:
    """Return the outcome of a walk for each length of the first prompt, alone and in company."""
    truth = Truth(hf_model)
    return {
        f"{length}{' in company' if len(prompts) > 1 else ''}": walk(hf_model, prompts, truth)
        for length in lengths
        for prompts in companies(length)
    }


pytestmark = pytest.mark.filterwarnings("ignore")  # what libraries say of tiny models and of one another

# Of each kind of architecture one: positions that are added, turned and slopes; windows, chunks, selections, latent
# attention, experts; states that take the place of keys and values, alone and between attention layers.
REPRESENTATIVE = (
    "bloom",
    "deepseek_v32",
    "gemma3_text",
    "gpt2",
    "gpt_neo",
    "llama4_text",
    "mamba",
    "minimax",
    "moshi",
    "opt",
    "qwen3_next",
    "zamba2",
)
# Families that may be refused: they see what follows, or more than text, or cannot run by themselves as they are built.
MAY_BE_REFUSED = {
    *("cpmant", "prophetnet", "reformer", "xlm", "xlnet"),  # not causal, or in chunks of a whole prompt
    *("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    *("fuyu", "gemma3", "gemma4", "gemma4_unified", "git", "got_ocr2", "moss_transcribe_diarize", "phi4_multimodal"),
    *("aria_text", "emu3", "llama4", "mllama", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    *("blt", "xlstm"),  # their own cached call fails on a configuration that is small
}
ROWS: list[tuple[str, str, Outcome]] = []


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the outcomes of all walks, in the long form."""
    yield
    report = request.config.pluginmanager.getplugin("terminalreporter")
    if report is not None and len({name for name, _, _ in ROWS}) > 2 * len(SPECIALS):
        report.write_line("")
        for name, length, outcome in ROWS:
            error = "" if outcome.error is None else f"{outcome.error:.1e}"
            words = outcome.fault or outcome.refusal
            report.write_line(f"{name:40} {length:14} {error:8} {outcome.road:20} {words[:80]}")


def faults(name: str, hf_model: Any, lengths: Sequence[int]) -> list[str]:
    outcomes = walks(hf_model, lengths)
    ROWS.extend((name, length, outcome) for length, outcome in outcomes.items())
    return [f"{length}: {outcome.fault}" for length, outcome in outcomes.items() if outcome.fault]


def answered(name: str) -> bool:
    """Return True if at least one node of every walk of ``name`` was answered."""
    return all(outcome.error is not None for other, _, outcome in ROWS if other == name)


def around(hf_model: Any, short: bool = False) -> list[int]:
    """Return lengths of prompts whose walks cross the borders of a model, and its context."""
    steps = (-2,) if short else (-2, -1, 0, 2)
    return sorted({border + step for border in borders(hf_model.config) for step in steps} | {CONTEXT - DEEPEST})


# Of each way to adapt one: matrices beside weights, rotations, scales, norms, shared and sparse ones, tokens.
USUAL = {
    "LORA",
    "BOFT",
    "IA3",
    "LILY",
    "LN_TUNING",
    "LOKR",
    "ROAD",
    "SHIRA",
    "TRAINABLE_TOKENS",
    "VERA",
    *PROMPT_KINDS,
    *LORA_FORMS,
}


SHORT, EVERYWHERE = [BORDER], [2, BORDER - 2, BORDER + 2, CONTEXT - DEEPEST]
BORDERLINE = [BORDER - 2, BORDER, CONTEXT - DEEPEST]
CASES: dict[str, tuple[Callable[[], Any], list[int] | None]] = {
    **{f"family {name}": (partial(build, name), BORDERLINE) for name in REPRESENTATIVE},
    **{f"special {name}": (partial(special, name), None) for name in SPECIALS},
    **{
        f"{family}, rows at {name}": (partial(with_masked_rows, family, value), SHORT)
        for family, (name, value) in product(["gpt_neo", "llama", "llama4_text"], MASKED_ROWS.items())
    },
    **{f"adapter {name}": (partial(adapted, name), SHORT) for name in ADAPTERS if name in USUAL},
    **{f"wrapper {name}": (made, SHORT) for name, made in WRAPPERS.items() if name != "forward compiled"},
    **{
        f"{family}, {attention}, {dtype}": (partial(in_form, family, attention, dtype), [BORDER, CONTEXT - DEEPEST])
        for i, (family, attention, dtype) in enumerate(product(["gemma3_text", "gpt2"], ATTENTION, DTYPES))
        if i % 2 == 0
    },
}
"""Each with the lengths of prompts whose walks cross the borders of a model, and its context; ``None`` for its own."""

AT_EVERY_LENGTH = {
    **{f"special {name}": CASES[f"special {name}"] for name in SPECIALS},
    **{f"adapter {name}": (partial(adapted, name), EVERYWHERE) for name in ADAPTERS},
    **{f"wrapper {name}": (made, EVERYWHERE) for name, made in WRAPPERS.items()},
    **{
        f"{family}, {attention}, {dtype}": (partial(in_form, family, attention, dtype), BORDERLINE)
        for family, attention, dtype in product(["gemma3_text", "gpt2"], ATTENTION, DTYPES)
    },
}
UNANSWERED = {f"adapter {name}" for name in (*PROMPT_KINDS, "LILY")}
"""Adapters that may be refused; LILY's layers see what follows."""


@pytest.mark.in_turn
@pytest.mark.parametrize("name", CASES)
def test_walks_are_right_or_a_typed_error(name: str) -> None:
    made, lengths = CASES[name]
    with torch._dynamo.config.patch(recompile_limit=2):  # for other shapes, what is compiled falls back to what is not
        hf_model = made()
        assert not faults(name, hf_model, lengths or around(hf_model, short=True))
    assert answered(name) or name in UNANSWERED


@pytest.mark.full
@pytest.mark.parametrize("name", AT_EVERY_LENGTH)
def test_walks_of_every_length(name: str) -> None:
    made, lengths = AT_EVERY_LENGTH[name]
    with torch._dynamo.config.patch(recompile_limit=2):
        hf_model = made()
        assert not faults(f"{name}, all", hf_model, lengths or around(hf_model))


@pytest.mark.full
@pytest.mark.parametrize("border", [BORDER, WIDE])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, border: int) -> None:
    hf_model, name = model_of(configuration(family, border)), f"{family}, borders at {border}"
    assert not faults(name, hf_model, [5, border - 2, border, border + 2, CONTEXT - DEEPEST])
    if family not in MAY_BE_REFUSED:
        assert answered(name)
        assert moved(hf_model) > 10 * TOLERANCE[torch.float32]


def moved(hf_model: Any) -> float:
    """Return the change of the law with the token before the last one: the error that a wrong mask would show."""
    truth, sequence = Truth(hf_model), draw(BORDER, 0)
    changed = [*sequence[:-2], 3 if sequence[-2] != 3 else 4, sequence[-1]]
    return float((truth(sequence) - truth(changed)).abs().max())


def test_every_family_is_tried_or_named() -> None:
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) == {*FAMILIES, *NOT_BUILT}
    assert set(FAMILIES) >= {*REPRESENTATIVE, *MAY_BE_REFUSED}


@pytest.mark.full
def test_flexible_attention() -> None:
    """In a process of its own, since a dense mask makes the compiled kernel of a CPU abort."""
    code = (
        "from tests.lm.families import in_form\n"
        "from tests.lm.test_families import draw, walk\n"
        "outcome = walk(in_form('llama', 'flex_attention', 'float32'), [draw(8, 0)])\n"
        "raise SystemExit(outcome.fault or 0)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_wrong_positions_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a walk on the road that was found right is off by far once positions are wrong."""
    hf_model, prompts = model_of(configuration("llama")), [draw(BORDER, 0)]
    right = walk(hf_model, prompts)
    assert right.road == "packed" and not right.fault
    positions = TreeMask.positions
    monkeypatch.setattr(TreeMask, "positions", lambda mask, layout: positions(mask, layout) + 1)
    wrong = walk(hf_model, prompts)
    assert wrong.error is not None and wrong.error > 1000 * TOLERANCE[torch.float32]
    assert wrong.fault.startswith("off by")


def siblings(extend: Callable) -> Callable:
    """Make children of one node children of its sibling."""
    return lambda trees, parents, tokens: extend(trees, [max(parents)] * len(parents), tokens)


def broken(extend: Callable) -> Callable:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("size of tensor a must match")

    return fail


@pytest.mark.parametrize(("fault", "words"), [(siblings, "off by"), (broken, "RuntimeError")])
@pytest.mark.parametrize("family", ["llama", "mamba"])
def test_faults_are_seen(monkeypatch: pytest.MonkeyPatch, family: str, fault: Callable, words: str) -> None:
    """Control: wrong parents, and errors without a type of this package."""
    hf_model, prompts = build(family), [draw(BORDER, 0)]
    kind = type(TransformersModel(hf_model, vocabulary(SIZE)).trees(prompts))
    monkeypatch.setattr(kind, "extend", fault(kind.extend))
    assert walk(hf_model, prompts).fault.startswith(words)
