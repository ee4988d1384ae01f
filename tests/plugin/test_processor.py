"""The processors of a loop: the states of its rows, and where a wrapped model without ``phi=`` is more than stock Outlines (it is
the same in ``types/test_backends``)."""

from __future__ import annotations

import math
import re
from enum import Enum
from typing import Any
from unittest.mock import Mock

import outlines
import pytest
import torch
from outlines.types import regex
from outlines.types.dsl import JsonSchema

from outlines_phi import PhiTransformers, Vocabulary, from_transformers
from outlines_phi.errors import ModelError, UnsupportedError
from outlines_phi.guides import FSMGuide, JSONGuide, Table
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.lm import bundled
from outlines_phi.numerics.cache import kept_rows
from outlines_phi.plugin.processor import MaskLogitsProcessor, Prefix, PrefixTree, Step
from outlines_phi.regex.patterns import compile_regex
from tests.plugin.loops import seeded

CPU = torch.device("cpu")
PROMPT = "A person as JSON: "
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
            ours, theirs = (seeded(each, PROMPT, int, seed=seed, max_new_tokens=9) for each in (wrapped, plain))
            assert ours == theirs


class TestWhereStockOutlinesFails:
    @pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True}], ids=["greedy", "sampled"])
    def test_beams(self, options: dict[str, Any], model: PhiTransformers, stock: outlines.models.Transformers) -> None:
        torch.manual_seed(0)
        options = {"max_new_tokens": 20, "num_beams": 5, **options}  # more beams than there are texts
        with pytest.raises(ValueError, match="No next state found"):
            stock(PROMPT, Colour, **options)
        assert model(PROMPT, Colour, **options) in ("red", "green")

    def test_prompt_look_up(self, model: PhiTransformers) -> None:
        for n in range(4):
            text = model("abc-12 " * n + "abc", CODE, max_new_tokens=20, prompt_lookup_num_tokens=3)
            assert re.fullmatch(CODE.pattern, text)

    def test_tokens_that_hold_part_of_a_character(
        self, model: PhiTransformers, stock: outlines.models.Transformers
    ) -> None:
        character = next(c for c in "☃🦊ß" if len(model.hf_tokenizer.encode(c)) > 1)
        assert model(PROMPT, regex(character), max_new_tokens=9) == character
        with pytest.raises(ValueError, match="incompatible with the regex"):
            stock(PROMPT, regex(character), max_new_tokens=9)
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
        for mask in masks[-3:]:
            assert torch.nonzero(mask == 0)[:, 0].tolist() == [eos]

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
        with pytest.raises(AssertionError):
            table.bias(table.start, 999, CPU)

    def test_vocabularies_of_two_sizes_share_nothing(self) -> None:
        for size in (3, 5):
            guide = FSMGuide.from_automaton(compile_regex("a"), Vocabulary.from_tokens([*"_abcd"[:size]], 0))
            assert Table(guide).bias(guide.start, None, CPU).exp().tolist() == [0, 1, 0, 0, 0][:size]

    def test_logits_that_are_refused(self, processor: MaskLogitsProcessor) -> None:
        """Infinities of other processors are not."""
        row, last = torch.tensor([[5]]), torch.zeros(1, len(processor.table.vocabulary))
        with pytest.raises(UnsupportedError, match="Use the generator with the model that it was made for"):
            processor(row, torch.zeros(1, 7))
        with pytest.raises(ModelError, match="NaN"):
            processor(row, last.index_fill(1, torch.tensor(3), torch.nan))
        assert not processor(row, last - torch.inf).isnan().any()

    def test_a_generator_of_another_vocabulary_is_refused(self, model: PhiTransformers) -> None:
        other = Vocabulary.from_tokens(["a", "b", "<eos>"], 2)
        processor = MaskLogitsProcessor(Table(FSMGuide.from_automaton(compile_regex("a|b"), other)))
        for phi in ("exact", None):
            with pytest.raises(UnsupportedError, match="another vocabulary"):
                model.generate(PROMPT, processor, phi=phi, max_new_tokens=5)


class TestForeignProcessors:
    """A processor is read for what it allows, or refused."""

    def test_a_processor_of_another_kind(self, model: PhiTransformers) -> None:
        class Nothing(outlines.processors.OutlinesLogitsProcessor):
            def reset(self) -> None: ...

            def process_logits(self, input_ids: Any, logits: Any) -> Any:
                return logits

        generator = outlines.Generator(model, processor=Nothing("torch"))
        with pytest.raises(UnsupportedError, match="The language of a Nothing cannot be read"):
            generator(PROMPT, phi="exact")
        assert isinstance(generator(PROMPT, phi=None, max_new_tokens=3), str)


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
