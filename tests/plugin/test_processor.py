"""The processors of a loop, and the backend of Outlines that is made of them: states of rows, masks, bans and weights."""

import importlib.metadata
import importlib.util
import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import outlines
import pytest
import torch
from outlines.models.transformers import Transformers
from outlines.types import cfg, regex
from outlines.types.dsl import JsonSchema
from pydantic import BaseModel

from outlines_phi import (
    BannedPhrases,
    Generator,
    PhiTransformers,
    SchemaWarning,
    UnsupportedError,
    Vocabulary,
    from_transformers,
    install,
    register_backend,
    uninstall,
)
from outlines_phi.errors import ModelError
from outlines_phi.guides import FSMGuide, JSONGuide, Table
from outlines_phi.plugin.install import PhiBackend
from tests.inner import DEAD, DONE, MaskLogitsProcessor, Prefix, PrefixTree, Step, bundled, compile_regex, kept_rows
from tests.leaks import leaks
from tests.plugin.instruments import A_PERSON, SUNDAY, seeded
from tests.precision import named
from tests.refusals import refused

CPU = torch.device("cpu")
CODE = regex("[a-z]{3,5}-[0-9]{2}")


class Colour(Enum):
    RED = "red"
    GREEN = "green"


def allowed(model: PhiTransformers, table: Any, state: int) -> set[int]:
    """Return the live tokens of a state of ours."""
    return set(torch.nonzero(table.bias(state, None, CPU) == 0)[:, 0].tolist())


class TestParity:
    """Seed for seed, on an identical second copy of the model."""

    def test_of_several_ends(self) -> None:
        """Stock Outlines allows the tokenizer's end of sequence, wherever it stands among those of the model."""
        (hf_model, tokenizer), other = bundled.load(), bundled.load()
        for each in (hf_model, other[0]):
            each.generation_config.eos_token_id = [tokenizer.pad_token_id, tokenizer.eos_token_id]
        wrapped, plain = from_transformers(hf_model, tokenizer), outlines.from_transformers(*other)
        assert wrapped.lm.vocabulary.eos_ids == (tokenizer.eos_token_id, tokenizer.pad_token_id)
        for seed in range(3):
            ours, theirs = (seeded(each, A_PERSON, int, seed=seed, max_new_tokens=9) for each in (wrapped, plain))
            assert ours == theirs


class TestWhereStockOutlinesFails:
    @pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True}], ids=["greedy", "sampled"])
    def test_beams(self, options: dict[str, Any], model: PhiTransformers, stock: outlines.models.Transformers) -> None:
        options = {"max_new_tokens": 20, "num_beams": 5, **options}  # more beams than there are texts
        refused("No next state found", stock, A_PERSON, Colour, **options, error=ValueError)
        assert model(A_PERSON, Colour, **options) in ("red", "green")

    def test_prompt_look_up(self, model: PhiTransformers) -> None:
        for n in range(4):
            text = model("abc-12 " * n + "abc", CODE, max_new_tokens=20, prompt_lookup_num_tokens=3)
            assert re.fullmatch(CODE.pattern, text)

    def test_tokens_that_hold_part_of_a_character(
        self, model: PhiTransformers, stock: outlines.models.Transformers
    ) -> None:
        character = next(c for c in "☃🦊ß" if len(model.hf_tokenizer.encode(c)) > 1)
        assert model(A_PERSON, regex(character), max_new_tokens=9) == character
        refused("incompatible with the regex", stock, A_PERSON, regex(character), max_new_tokens=9, error=ValueError)
        # Stock Outlines reads each such token as one whole character, U+FFFD.
        first = model.hf_tokenizer.encode(character)[0]
        index = outlines.Generator(stock, regex("[^x]")).logits_processor.index
        assert index.is_final_state(index.get_next_state(index.get_initial_state(), first))
        table = model.table(regex("[^x]"))
        state = table.guide.advance(table.start, first)
        assert table.guide.min_tokens(state) > 1
        assert model.lm.vocabulary.eos_ids[0] not in allowed(model, table, state)


class TestProcessor:
    @pytest.fixture
    def processor(self, model: PhiTransformers) -> MaskLogitsProcessor:
        return MaskLogitsProcessor(model.table(CODE))

    def mask(self, processor: MaskLogitsProcessor, rows: list[list[int]]) -> torch.Tensor:
        return processor(torch.tensor(rows), torch.zeros(len(rows), len(processor.table.vocabulary)))

    def test_a_finished_row_writes_only_the_end(self, processor: MaskLogitsProcessor, model: PhiTransformers) -> None:
        eos, tokens = model.lm.vocabulary.eos_ids[0], model.hf_tokenizer.encode("abc-12")
        rows = [[5], *([5, *tokens[:n]] for n in range(1, len(tokens) + 1)), [5, *tokens, eos], [5, *tokens, eos, eos]]
        masks = [self.mask(processor, [row])[0] for row in rows]
        assert all(torch.nonzero(mask == 0)[:, 0].tolist() == [eos] for mask in masks[-3:])

    def test_lengths_are_computed_for_limits_alone(
        self, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The mask of a host's loop, which tells no limit, allows what a far limit does."""
        table = model.table(JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}}))
        states = [table.start]
        states += (table.guide.advance(states[-1], token) for token in model.hf_tokenizer.encode('{"a": "b'))
        masks = [table.bias(state, 999, CPU) for state in states]
        kept_rows.clear()
        monkeypatch.setattr(JSONGuide, "far_from_end", Mock(side_effect=AssertionError))
        assert all(torch.equal(mask, table.bias(state, None, CPU)) for mask, state in zip(masks, states, strict=True))
        refused(None, table.bias, table.start, 999, CPU, error=AssertionError)

    def test_vocabularies_of_two_sizes_share_nothing(self) -> None:
        for size in (3, 5):
            guide = FSMGuide.from_automaton(compile_regex("a"), Vocabulary.from_tokens([*"_abcd"[:size]], 0))
            assert Table(guide).bias(guide.start, None, CPU).exp().tolist() == [0, 1, 0, 0, 0][:size]

    def test_logits_that_are_refused(self, processor: MaskLogitsProcessor) -> None:
        """Infinities of other processors are not."""
        row, last = torch.tensor([[5]]), torch.zeros(1, len(processor.table.vocabulary))
        refused("Use the generator with the model that it was made for", processor, row, torch.zeros(1, 7))
        refused("NaN", processor, row, last.index_fill(1, torch.tensor(3), torch.nan), error=ModelError)
        assert not processor(row, last - torch.inf).isnan().any()

    def test_a_generator_of_another_vocabulary_is_refused(self, model: PhiTransformers) -> None:
        other = Vocabulary.from_tokens(["a", "b", "<eos>"], 2)
        processor = MaskLogitsProcessor(Table(FSMGuide.from_automaton(compile_regex("a|b"), other)))
        for phi in ("exact", None):
            refused("another vocabulary", model.generate, A_PERSON, processor, phi=phi, max_new_tokens=5)


class TestForeignProcessors:
    """A processor is read for what it allows, or refused."""

    def test_a_processor_of_another_kind(self, model: PhiTransformers) -> None:
        class Nothing(outlines.processors.OutlinesLogitsProcessor):
            def reset(self) -> None: ...

            def process_logits(self, input_ids: Any, logits: Any) -> Any:
                return logits

        generator = outlines.Generator(model, processor=Nothing("torch"))
        refused("The language of a Nothing cannot be read", generator, A_PERSON, phi="exact")
        assert isinstance(generator(A_PERSON, phi=None, max_new_tokens=3), str)


END, A, B, C, PAD = range(5)
TABLE = Table(
    FSMGuide.from_automaton(compile_regex("(ab|c){1,3}"), Vocabulary.from_tokens(["<e>", "a", "b", "c", ""], 0))
)


def replayed(tokens: list[int]) -> int:
    state = TABLE.start
    for token in tokens:
        state = DONE if state == DONE else TABLE.guide.advance(state, token)
    return state


@pytest.fixture
def prefixes() -> PrefixTree:
    return PrefixTree(TABLE)


def visit(prefixes: PrefixTree, *rows: list[int]) -> list[Prefix]:
    return prefixes.visit(torch.tensor(rows))


def check(prefixes: PrefixTree, prompt: list[int], *rows: list[int]) -> None:
    found = visit(prefixes, *([*prompt, *row] for row in rows))
    assert [(node.state, node.length) for node in found] == [(replayed(row), len(row)) for row in rows]


ORDERS: dict[str, list[list[list[int]]]] = {
    "one after the other": [
        [[], []],
        [[A], [C]],
        [[A, B], [C, C]],
        [[A, B, END], [C, C, A]],
        [[A, B, END, PAD], [C, C, A, B]],
    ],
    "reordered": [[[], []], [[A], [C]], [[C, A], [A, B]], [[C, A, B], [C, A, C]]],
    "drafts go forth and back": [[row] for row in ([], [A], [A, B], [A], [A, B], [A, B, C], [A, B, A], [A, B, A, B])],
    "several tokens at once": [[[], []], [[A, B, C], [C, END, PAD]], [[A], [C]]],
}
"""Rows of calls in turn; some loops do not ask between tokens that they know already."""


@pytest.mark.parametrize("order", ORDERS)
def test_states_are_those_of_a_replay(order: str, prefixes: PrefixTree) -> None:
    for rows in ORDERS[order]:
        check(prefixes, [7, 8, 9], *rows)
    assert prefixes.in_order == (order == "one after the other")
    again = visit(prefixes, [7, 8, 9, A], [7, 8, 9, A])
    assert again[0] is again[1]


@pytest.mark.parametrize(
    "second",
    [[7, 8], [1, 2], [9], [7, 8, A, B, END, 7, 8], [7, 8, A, B, 9, 9, 9], [7, 8, A, B, END, PAD, PAD]],
    ids=str,
)
def test_a_new_generation_is_told_by_its_rows(prefixes: PrefixTree, second: list[int]) -> None:
    first = visit(prefixes, [7, 8])[0]
    for row in ([A], [A, B]):
        check(prefixes, [7, 8], row)
    (node,) = visit(prefixes, second)
    assert node is not first and (node.state, node.length) == (TABLE.start, 0)
    check(prefixes, second, [C])


def test_what_nothing_tells_apart_takes_a_reset(prefixes: PrefixTree) -> None:
    visit(prefixes, [7, 8])
    check(prefixes, [7, 8], [A])
    assert visit(prefixes, [7, 8, A, 9])[0].state == DEAD
    prefixes.forget()
    check(prefixes, [7, 8, A, 9], [])


def test_rows_that_are_written_over(prefixes: PrefixTree) -> None:
    """Hosts may pass views of one buffer."""
    buffer = torch.tensor([[7, A, B, C]])
    for n in (1, 2, 3):
        prefixes.visit(buffer[:, :n])
    buffer[0, 1:] = torch.tensor([C, C, A])
    (node,) = prefixes.visit(buffer)
    assert node.state == replayed([C, C, A])


def test_weights_add_up_and_the_last_law_counts(prefixes: PrefixTree) -> None:
    def law(log_s: float) -> Step:
        return Step(log_s, torch.tensor([0.0, -0.5, -1.0, -0.25, -math.inf]))

    (root,) = visit(prefixes, [7])
    assert root.log_w == 0.0
    root.step = law(-9.0)  # a trial run's
    visit(prefixes, [7, A])
    (root,) = visit(prefixes, [7])
    root.step = law(-1.0)
    (a,) = visit(prefixes, [7, A])
    assert a.log_w == pytest.approx(-0.5)
    a.step = law(-2.0)
    (ab,) = visit(prefixes, [7, A, B])
    assert ab.log_w == pytest.approx(-1.5)
    (beyond,) = visit(prefixes, [7, A, B, C])
    assert math.isnan(beyond.log_w), "nobody asked for the law after ab"
    assert a.step.log_w(PAD) == -math.inf


ROOT = Path(__file__).parents[2]
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 16}
STOCK = outlines.backends._get_backend
WORDS = Literal["yes", "no", "not on Sunday"]


class Record(BaseModel, extra="forbid"):
    name: Literal["Ada", "Bob"]
    age: Literal[1, 2, 33]


@pytest.fixture(autouse=True)
def _taken_back() -> Iterator[None]:
    yield
    uninstall()
    assert outlines.backends._get_backend is STOCK


@pytest.mark.parametrize("output_type", [WORDS, regex("[a-z]é{2}"), Record, cfg('start: "(" start? ")"')], ids=named)
def test_its_masks_are_those_of_this_package(output_type: Any, stock: Transformers, model: PhiTransformers) -> None:
    register_backend()
    generator = outlines.Generator(stock, output_type, backend="outlines_phi")
    texts = seeded(generator, SUNDAY, num_return_sequences=8, **SAMPLED)
    assert texts == seeded(Generator(model, output_type, phi=None), SUNDAY, num_return_sequences=8, **SAMPLED)
    assert texts == seeded(stock, SUNDAY, output_type, "outlines_phi", num_return_sequences=8, **SAMPLED)
    assert isinstance(generator.logits_processor, MaskLogitsProcessor)


def test_what_is_banned_is_never_written(stock: Transformers) -> None:
    form, ban = regex("[a-z]{1,4}( [a-z]{1,4}){0,2}"), BannedPhrases(["e", "no"])
    register_backend("without", banned_phrases=ban, max_new_tokens=16)
    register_backend()
    written = {
        name: seeded(outlines.Generator(stock, form, name), SUNDAY, num_return_sequences=60, **SAMPLED)
        for name in ("without", "outlines_phi")
    }
    found = {name: [leak for text in texts for leak in leaks(ban, text.encode())] for name, texts in written.items()}
    assert not found["without"] and found["outlines_phi"]


def test_weights_lead_to_the_conditioned_distribution(stock: Transformers, model: PhiTransformers) -> None:
    """Phi is the mean weight, and shares by weight are the probabilities; those of masked texts by themselves are not."""
    register_backend("weighted", phi="local", max_new_tokens=8, top_k=0)
    generator = outlines.Generator(stock, WORDS, backend="weighted")
    law = Generator(model, WORDS).probabilities(SUNDAY, tolerance=1e-6, max_new_tokens=8)
    texts = seeded(generator, SUNDAY, num_return_sequences=600, **generator.logits_processor.host_options)
    weights = np.exp(generator.logits_processor.log_w())
    assert weights.mean() == pytest.approx(np.exp(law.log_z_bounds[0]), abs=4 * (weights.std() / len(weights) ** 0.5))
    exact = {value: found.p for value, found in law.items()}
    shares = Counter[str]()
    for text, weight in zip(texts, weights, strict=True):
        shares[text] += weight
    far = {text: abs(texts.count(text) / len(texts) - p) for text, p in exact.items()}
    near = {text: abs(shares[text] / shares.total() - p) for text, p in exact.items()}
    assert max(near.values()) < 0.05 < 0.1 < max(far.values())


def test_models_of_this_package_take_it_in_every_call(model: PhiTransformers) -> None:
    register_backend("short", banned_phrases=["not on"], max_new_tokens=16)
    generator = outlines.Generator(model, WORDS, backend="short")
    many = {"phi": "exact", "seed": 1, "num_return_sequences": 30}
    texts = model(SUNDAY, WORDS, backend="short", **many)
    assert texts == generator(SUNDAY, **many) and set(texts) == {"yes", "no"}
    assert seeded(model, SUNDAY, WORDS, backend="short", **SAMPLED) == seeded(generator, SUNDAY, **SAMPLED)
    assert model.batch([SUNDAY], WORDS, backend="short", **many) == [texts]
    refused(
        "expected one of outlines_core, llguidance, xgrammar, short, or None", model, SUNDAY, WORDS, backend="shorter"
    )


def test_a_schema_that_is_not_honoured_is_warned_of(stock: Transformers) -> None:
    register_backend()
    with pytest.warns(SchemaWarning, match="format"):
        outlines.Generator(stock, outlines.types.json_schema({"type": "string", "format": "x"}), "outlines_phi")


def test_names_are_replaced_and_taken_back(stock: Transformers) -> None:
    install()
    register_backend("b", banned_phrases=["yes"])
    register_backend("b", banned_phrases=["no"])
    assert outlines.Generator(stock, WORDS, backend="b").logits_processor.ban == BannedPhrases(["no"])
    assert outlines.Generator(stock, WORDS, backend="outlines_core").logits_processor.index
    uninstall()
    refused("Backend b not supported", outlines.Generator, stock, WORDS, backend="b", error=ValueError)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(({"name": name}, "name of its own") for name in ("outlines_core", "", 3)),
        ({"temperature": 0.5}, "temperature cannot be used here.*give phi='local' beside it"),
        ({"phi": "local", "max_new_tokens": 9, "top_p": 0.5}, "top_p=0.5"),
        ({"phi": "local"}, "max_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"phi": "exact", "max_new_tokens": 9}, "Draw with a sampler"),
        ({"banned_phrases": BannedPhrases(["a"], level="exact")}, "level='exact' was given to register_backend"),
        (
            {"banned_phrases": BannedPhrases(["a"], whole_word=True)},
            r"Give register_backend\(\.\.\., max_new_tokens=N\)",
        ),
    ],
    ids=named,
)
def test_refused(given: dict[str, Any], words: str, stock: Transformers) -> None:
    with pytest.raises(UnsupportedError, match=words):
        register_backend(**given)
        outlines.Generator(stock, WORDS, backend="outlines_phi")


def test_loops_that_go_on_without_a_mask_are_refused() -> None:
    refused(
        r"Give outlines_phi\.wrap\(model\) in its place. .* stock SimpleModel",
        PhiBackend,
        type("SimpleModel", (), {})(),
    )


def test_another_version_and_another_patch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlines.backends, "_get_backend", len)
    refused(r"Undo what put outlines\._get_backend there, which register_backend", register_backend)
    monkeypatch.undo()
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.0")
    refused(r"register_backend\(\) knows outlines 1\.3.*whose _get_backend takes", register_backend)


class TestTheProposal:
    """``docs/proposals/outlines-backends.patch``: an entry-point group for backends, in Outlines itself."""

    @pytest.fixture
    def patched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        """The module of Outlines, patched in a copy of the folder of backends."""
        patch = ROOT / "docs/proposals/outlines-backends.patch"
        assert len(patch.read_text().splitlines()) <= 100
        shutil.copytree(Path(outlines.backends.__file__).parent, tmp_path / "outlines/backends")
        subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
        path = tmp_path / "outlines/backends/__init__.py"
        spec = importlib.util.spec_from_file_location("outlines.backends", path, submodule_search_locations=[])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "outlines.backends", module)
        spec.loader.exec_module(module)
        return module

    def test_its_own_test_passes(self, patched: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(tmp_path / "tests/backends"))
        module = importlib.import_module("test_entry_points")
        (tmp_path / "metadata").mkdir()
        module.other_package.__wrapped__(tmp_path / "metadata", monkeypatch)
        module.test_backend_of_another_package(None)
        module.test_unknown_backend(None)
        with pytest.raises(ValueError, match="not supported"):  # the control: Outlines as it is
            STOCK("other", None)

    def test_it_finds_the_backend_of_this_package(
        self, patched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stock: Transformers
    ) -> None:
        group = f'[project.entry-points."{patched.ENTRY_POINT_GROUP}"]'
        declared = (ROOT / "pyproject.toml").read_text().split(group)[1].split("[")[0].replace('"', "")
        metadata = tmp_path / "declared-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Name: declared\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{patched.ENTRY_POINT_GROUP}]{declared}")
        monkeypatch.syspath_prepend(str(tmp_path))
        processor = patched.get_regex_logits_processor("outlines_phi", stock, "[0-9]{2}")
        assert re.fullmatch("[0-9]{2}", seeded(outlines.Generator(stock, processor=processor), SUNDAY, **SAMPLED))
