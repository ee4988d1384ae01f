"""Every causal family of transformers, and what users put around it: right beside plain calls, or a typed error."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from outlines_phi.lm import TransformersModel
from tests.inner import TreeMask
from tests.lm.families import (
    BORDER,
    CONTEXT,
    FAMILIES,
    MASKED_ROWS,
    NOT_BUILT,
    SIZE,
    SPECIALS,
    WIDE,
    borders,
    build,
    configuration,
    model_of,
    special,
    with_masked_rows,
)
from tests.lm.walks import DEEPEST, TOLERANCE, Outcome, Truth, draw, vocabulary, walk, walks
from tests.lm.wrappers import ADAPTERS, ATTENTION, DTYPES, LORA_FORMS, PROMPT_KINDS, WRAPPERS, adapted, in_form

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


@pytest.mark.parametrize("family", REPRESENTATIVE)
def test_representative_families(family: str) -> None:
    assert not faults(family, build(family), [BORDER - 2, BORDER, CONTEXT - DEEPEST])
    assert answered(family)


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


@pytest.mark.parametrize("name", SPECIALS)
def test_special_configurations(name: str) -> None:
    hf_model = special(name)
    assert not faults(name, hf_model, around(hf_model, short=True))
    assert answered(name)


@pytest.mark.full
@pytest.mark.parametrize("name", SPECIALS)
def test_special_configurations_at_every_border(name: str) -> None:
    hf_model = special(name)
    assert not faults(f"{name}, all", hf_model, around(hf_model))


@pytest.mark.parametrize("value", MASKED_ROWS.values(), ids=MASKED_ROWS.keys())
@pytest.mark.parametrize("family", ["gpt_neo", "llama", "llama4_text"])
def test_rows_that_belong_to_no_token(family: str, value: float) -> None:
    name = f"{family}, rows at {value:.2g}"
    assert not faults(name, with_masked_rows(family, value), [BORDER])
    assert answered(name)


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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in USUAL else pytest.mark.full) for name in ADAPTERS]
)
def test_adapters(name: str) -> None:
    assert not faults(name, adapted(name), [BORDER])
    if name not in {*PROMPT_KINDS, "LILY"}:  # LILY's layers see what follows
        assert answered(name)


@pytest.mark.full
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_at_every_length(name: str) -> None:
    assert not faults(f"{name}, all", adapted(name), [2, BORDER - 2, BORDER + 2, CONTEXT - DEEPEST])


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers(name: str) -> None:
    with torch._dynamo.config.patch(recompile_limit=2):  # for other shapes, what is compiled falls back to what is not
        assert not faults(name, WRAPPERS[name](), [BORDER])
    assert answered(name)


@pytest.mark.full
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_at_every_length(name: str) -> None:
    assert not faults(f"{name}, all", WRAPPERS[name](), [2, BORDER - 2, BORDER + 2, CONTEXT - DEEPEST])


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", ["gemma3_text", "gpt2"])
def test_dtypes_and_attention(family: str, attention: str, dtype: str) -> None:
    name = f"{family}, {attention}, {dtype}"
    assert not faults(name, in_form(family, attention, dtype), [BORDER, CONTEXT - DEEPEST])
    assert answered(name)


@pytest.mark.full
def test_flexible_attention() -> None:
    """In a process of its own, since a dense mask makes the compiled kernel of a CPU abort."""
    code = (
        "from tests.lm.walks import draw, walk\n"
        "from tests.lm.wrappers import in_form\n"
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
