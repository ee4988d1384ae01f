"""``generate(..., custom_generate=outlines_phi.custom_generate)``: laws, shapes, what is read, kept and refused."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any, Literal

import numpy as np
import outlines
import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    MambaConfig,
    MambaForCausalLM,
    MaxTimeCriteria,
    NoBadWordsLogitsProcessor,
    TemperatureLogitsWarper,
)

import outlines_phi
from outlines_phi import BudgetError, Effort, EmptyLanguageError, ExactPhi, Guarantee, PhiTransformers, UnsupportedError
from outlines_phi.errors import ModelError, VocabularyError
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import bundled
from outlines_phi.lm.transformers.forward import CACHES
from outlines_phi.plugin.hosts.custom_generate import LOANS
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.languages import ALPHA, p_value
from tests.precision import near_log

PROMPT = "Question: is the bakery open on Monday? Answer: "
ANSWER = Literal["yes", "no", "not now", "nobody"]
TEXTS = ("yes", "no", "not now", "nobody")
BUDGET = 12
N = 3000


@pytest.fixture(scope="module")
def hf() -> tuple[Any, Any]:
    return bundled.load()


@pytest.fixture(scope="module")
def recurrent(hf: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return a model whose memory is a state alone."""
    torch.manual_seed(0)
    ends = {"eos_token_id": hf[1].eos_token_id, "pad_token_id": hf[1].pad_token_id}
    config = MambaConfig(vocab_size=len(hf[1]), hidden_size=16, num_hidden_layers=1, state_size=4, **ends)
    return MambaForCausalLM(config).eval(), hf[1]


def inputs_of(tokenizer: Any, *prompts: str) -> Any:
    return tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left")


def call(hf: tuple[Any, Any], *prompts: str, **options: Any) -> Any:
    model, tokenizer = hf
    given = {"output_type": ANSWER, "vocabulary": tokenizer, "max_new_tokens": BUDGET, **options}
    given = {name: value for name, value in given.items() if value is not ...}
    return model.generate(**inputs_of(tokenizer, *prompts), custom_generate=outlines_phi.custom_generate, **given)


def written(hf: tuple[Any, Any], sequences: torch.Tensor, *prompts: str) -> list[tuple[int, ...]]:
    """Return the tokens generated in each row, the padding left out."""
    eos = hf[1].eos_token_id
    rows = sequences[:, inputs_of(hf[1], *prompts)["input_ids"].shape[1] :].tolist()
    assert all(set(row[row.index(eos) + 1 :]) <= {hf[1].pad_token_id} for row in rows)
    return [tuple(row[: row.index(eos) + 1]) for row in rows]


def reference_of(model: PhiTransformers, **options: Any) -> Reference:
    settings = SamplingSettings(max_new_tokens=BUDGET, **options)
    return enumerate_language(model.lm, model.table(ANSWER), model._prompt_ids(PROMPT), settings, BUDGET)


class TestLaws:
    @pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 20}], ids=["plain", "warped"])
    def test_exact(self, hf: tuple[Any, Any], model: PhiTransformers, options: dict[str, Any]) -> None:
        reference = reference_of(model, **options)
        drawn = written(hf, call(hf, PROMPT, phi="exact", seed=3, num_return_sequences=N, **options), PROMPT)
        assert len(drawn) == N
        assert p_value(drawn, reference.mu) > ALPHA

    def test_of_a_recurrent_model(self, recurrent: tuple[Any, Any]) -> None:
        reference = reference_of(outlines_phi.from_transformers(*recurrent))
        drawn = written(recurrent, call(recurrent, PROMPT, phi="exact", seed=3, num_return_sequences=N), PROMPT)
        assert p_value(drawn, reference.mu) > ALPHA

    def test_plain_masking_fails_the_same_test(self, hf: tuple[Any, Any], model: PhiTransformers) -> None:
        reference = reference_of(model)
        drawn = written(hf, call(hf, PROMPT, phi="local", seed=3, num_return_sequences=N), PROMPT)
        assert p_value(drawn, reference.mask) > ALPHA
        assert p_value(drawn, reference.mu) < ALPHA

    @pytest.mark.parametrize("phi", ["local", "onestep"])
    def test_weights(self, hf: tuple[Any, Any], model: PhiTransformers, phi: str) -> None:
        options = {"temperature": 0.7}
        reference = reference_of(model, **options)
        result = call(hf, PROMPT, phi=phi, seed=3, num_return_sequences=N, return_dict_in_generate=True, **options)
        drawn = written(hf, result.sequences, PROMPT)
        for ids, log_p in zip(drawn, result.log_p.tolist(), strict=True):
            assert log_p == near_log(reference.log_p[ids])
        w = np.exp(result.log_w.numpy())
        assert abs(w.mean() - math.exp(reference.log_phi)) < 4 * w.std() / math.sqrt(N) + 1e-6
        assert result.draws[0].guarantee is Guarantee.WEIGHTED

    def test_rows_of_one_prompt_in_a_padded_batch(self, hf: tuple[Any, Any], model: PhiTransformers) -> None:
        """Equal prompts share a tree and stay i.i.d.; padding and neighbours change nothing."""
        prompts = [PROMPT, "no", PROMPT + PROMPT, PROMPT] * 100
        drawn = []
        for seed in range(4):
            rows = written(hf, call(hf, *prompts, seed=seed, num_return_sequences=2), *prompts)
            drawn += [ids for i, ids in enumerate(rows) if prompts[i // 2] == PROMPT]
        assert len(drawn) == 1600
        assert p_value(drawn, reference_of(model).mu) > ALPHA

    def test_through_stock_outlines(self, stock: outlines.models.Transformers, model: PhiTransformers) -> None:
        """Stock Outlines, stock transformers: the language is that of Outlines' own processor."""
        options = {"custom_generate": outlines_phi.custom_generate, "max_new_tokens": BUDGET, "phi": "exact"}
        texts = stock(PROMPT, Literal["yes", "no"], num_return_sequences=N, seed=1, **options)
        table = model.table(outlines.Generator(stock, Literal["yes", "no"]).logits_processor)
        settings = SamplingSettings(max_new_tokens=BUDGET)
        reference = enumerate_language(model.lm, table, model._prompt_ids(PROMPT), settings, BUDGET)
        decode = model.lm.vocabulary.decode
        law = {text: 0.0 for text in ("yes", "no")}
        for ids, p in reference.mu.items():
            law[decode(ids).decode()] += p
        assert p_value(texts, law) > ALPHA
        masked = stock(PROMPT, Literal["yes", "no"], num_return_sequences=N, seed=1, **options | {"phi": "local"})
        assert p_value(masked, law) < ALPHA
        generator = outlines.Generator(stock, ANSWER)
        assert set(generator.batch([PROMPT, "hello"], **options)) <= set(TEXTS)

    def test_auto_and_objects(self, hf: tuple[Any, Any]) -> None:
        for phi in ("auto", ExactPhi(tolerance=0.1)):
            (ids,) = written(hf, call(hf, PROMPT, phi=phi, seed=1), PROMPT)
            assert hf[1].decode(ids, skip_special_tokens=True) in TEXTS


class TestShapes:
    def test_rows_begin_with_their_prompts(self, hf: tuple[Any, Any]) -> None:
        prompts = (PROMPT, "no")
        ids = inputs_of(hf[1], *prompts)["input_ids"]
        out = call(hf, *prompts, num_return_sequences=3, seed=1)
        assert out.dtype == torch.long and len(out) == 6
        assert torch.equal(out[:, : ids.shape[1]], ids.repeat_interleave(3, 0))
        assert set(hf[1].batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)) <= set(TEXTS)

    def test_without_a_mask(self, hf: tuple[Any, Any]) -> None:
        model, tokenizer = hf
        ids = inputs_of(tokenizer, PROMPT)["input_ids"]
        out = model.generate(
            ids,
            custom_generate=outlines_phi.custom_generate,
            output_type=ANSWER,
            vocabulary=tokenizer,
            max_new_tokens=BUDGET,
            seed=4,
        )
        assert torch.equal(out, call(hf, PROMPT, seed=4))

    def test_a_dict(self, hf: tuple[Any, Any]) -> None:
        result = call(hf, PROMPT, "no", PROMPT, seed=2, return_dict_in_generate=True)
        assert torch.equal(result["sequences"], call(hf, PROMPT, "no", PROMPT, seed=2))
        assert result.log_w.shape == result.log_p.shape == (3,)
        assert [len(draws) for draws in result.draws] == [2, 2]
        assert [draws.guarantee for draws in result.draws] == [Guarantee.EXACT] * 2

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_generation_config(self, hf: tuple[Any, Any], number: int) -> None:
        """transformers repeats the rows for a config's num_return_sequences before it calls; a keyword comes to us."""
        config = GenerationConfig(
            max_new_tokens=BUDGET,
            temperature=0.5,
            num_return_sequences=number,
            do_sample=True,
            pad_token_id=1,
            eos_token_id=0,
            top_k=0,
        )
        out = call(hf, PROMPT, generation_config=config, max_new_tokens=..., seed=7)
        assert torch.equal(out, call(hf, PROMPT, temperature=0.5, num_return_sequences=number, seed=7))


class TestMode:
    def test_the_most_probable_members(self, hf: tuple[Any, Any], model: PhiTransformers) -> None:
        best = sorted(reference_of(model).log_p.items(), key=lambda item: -item[1])
        prompts = (PROMPT, "no", PROMPT)
        assert written(hf, call(hf, *prompts, do_sample=False), *prompts)[::2] == [best[0][0]] * 2
        result = call(hf, PROMPT, do_sample=False, num_return_sequences=3, return_dict_in_generate=True)
        assert written(hf, result.sequences, PROMPT) == [ids for ids, _ in best[:3]]
        assert result.log_p.tolist() == near_log([log_p for _, log_p in best[:3]])
        assert result.log_w is None
        config = GenerationConfig(do_sample=False, max_new_tokens=BUDGET)
        assert written(hf, call(hf, PROMPT, generation_config=config, max_new_tokens=...), PROMPT) == [best[0][0]]


class TestSeeds:
    def test_a_seed(self, hf: tuple[Any, Any]) -> None:
        one, two, three = (call(hf, PROMPT, num_return_sequences=40, seed=seed) for seed in (5, 5, 6))
        assert torch.equal(one, two)
        assert one.shape != three.shape or not torch.equal(one, three)

    def test_without_one_torch_decides(self, hf: tuple[Any, Any]) -> None:
        results = []
        for _ in range(2):
            torch.manual_seed(8)
            results.append(call(hf, PROMPT, num_return_sequences=40, phi="local"))
        assert torch.equal(*results)


class TestOptions:
    """Values of the call are used; those of the checkpoint as far as every call with ``phi=`` uses them."""

    @pytest.fixture
    def own(self) -> tuple[Any, Any]:
        return bundled.load()

    def log_p(self, hf: tuple[Any, Any], **options: Any) -> dict[tuple[int, ...], float]:
        result = call(hf, PROMPT, phi="local", seed=1, num_return_sequences=60, return_dict_in_generate=True, **options)
        return dict(zip(written(hf, result.sequences, PROMPT), result.log_p.tolist(), strict=True))

    def expect(self, found: dict[tuple[int, ...], float], reference: Reference) -> None:
        assert all(log_p == near_log(reference.log_p[ids]) for ids, log_p in found.items())

    def test_the_checkpoint_has_temperature_and_penalty_but_no_truncation(
        self, own: tuple[Any, Any], model: PhiTransformers
    ) -> None:
        config = own[0].generation_config
        config.temperature, config.repetition_penalty, config.top_k, config.top_p = 0.7, 1.2, 3, 0.5
        self.expect(self.log_p(own), reference_of(model, temperature=0.7, repetition_penalty=1.2))
        self.expect(self.log_p(own, temperature=1.1), reference_of(model, temperature=1.1, repetition_penalty=1.2))

    def test_the_call_has_truncation(self, own: tuple[Any, Any], model: PhiTransformers) -> None:
        own[0].generation_config.top_k = None  # transformers then fills in 50
        self.expect(self.log_p(own), reference_of(model))
        self.expect(self.log_p(own, top_k=50, output_type=Literal["yes", "no"]), reference_of(model, top_k=50))
        by_config = GenerationConfig(top_p=0.99, max_new_tokens=BUDGET, do_sample=True)
        found = self.log_p(own, generation_config=by_config, max_new_tokens=..., output_type=Literal["yes", "no"])
        self.expect(found, reference_of(model, top_p=0.99))

    def test_the_budget_of_the_checkpoint(self, own: tuple[Any, Any]) -> None:
        own[0].generation_config.max_new_tokens = 7
        result = call(own, PROMPT, max_new_tokens=..., return_dict_in_generate=True)
        assert result.draws[0].budget == 7

    @pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
    def test_without_a_budget(self, own: tuple[Any, Any]) -> None:
        result = call(own, PROMPT, max_new_tokens=..., return_dict_in_generate=True)
        assert result.draws[0].budget == 256


class TestKept:
    def test_trees_serve_later_calls(self) -> None:
        hf = bundled.load()
        counts = []
        for _ in range(3):
            result = call(hf, PROMPT, return_dict_in_generate=True)
            counts.append(result.draws[0].counts.calls)
        assert counts[0] > 0 and counts[1:] == [0, 0]

    def test_trees_serve_later_stock_calls(self) -> None:
        """Stock Outlines builds its index anew at every call; equal ones are the same language to us."""
        stock = outlines.from_transformers(*bundled.load())
        for _ in range(2):
            stock(PROMPT, ANSWER, custom_generate=outlines_phi.custom_generate, max_new_tokens=BUDGET)
        (kept,) = LOANS._kept[stock.model].values()
        assert len(kept._trees) == 1

    def test_weights_that_change_leave_trees_behind(self) -> None:
        hf = bundled.load()
        call(hf, PROMPT)
        with torch.no_grad():
            hf[0].lm_head.weight.mul_(1.01)
        result = call(hf, PROMPT, return_dict_in_generate=True)
        assert result.draws[0].counts.calls > 0

    def test_a_model_is_not_kept_alive(self) -> None:
        hf = bundled.load()
        call(hf, PROMPT)
        call(hf, PROMPT, phi="local")
        model, before = weakref.ref(hf[0]), len(LOANS._kept)
        del hf
        gc.collect()
        assert model() is None
        assert len(LOANS._kept) < before

    def test_tokenizers_are_not_kept_alive(self) -> None:
        model, tokenizer = bundled.load()
        for _ in range(3):
            _, fresh = bundled.load()
            call((model, fresh), PROMPT)
        seen = weakref.ref(fresh)
        del fresh
        gc.collect()
        assert seen() is None
        assert len(LOANS._kept[model]) == 1, "one vocabulary, whoever loads it"
        call((model, tokenizer), PROMPT)
        assert len(LOANS._read[model]) == 1

    def test_a_guide_and_a_table_bring_their_vocabulary(self, hf: tuple[Any, Any], model: PhiTransformers) -> None:
        guide = FSMGuide.from_automaton(compile_regex("yes|no"), model.lm.vocabulary)
        for language in (guide, Table(guide)):
            (ids,) = written(hf, call(hf, PROMPT, output_type=language, vocabulary=...), PROMPT)
            assert hf[1].decode(ids, skip_special_tokens=True) in ("yes", "no")


class Nothing(LogitsProcessor):
    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"output_type": None}, "free text has nothing to correct"),
    "no vocabulary": ({"vocabulary": ...}, "Give vocabulary=tokenizer"),
    "no phi": ({"phi": None}, "leave custom_generate out for plain masking"),
    "unknown phi": ({"phi": "nonsense"}, "phi='nonsense' was given"),
    "beams": ({"num_beams": 3}, "num_beams cannot be used here .beam search"),
    "the mode of a proposal": ({"do_sample": False, "phi": "local"}, "Give phi='exact' with do_sample=False"),
    "more than there are": (
        {"do_sample": False, "num_return_sequences": 5, "output_type": outlines.types.regex("@")},
        "at most num_return_sequences=1",
    ),
    "a length with the prompt": ({"max_length": 40, "max_new_tokens": ...}, "max_length cannot be used"),
    "a length in a config": (
        {"generation_config": GenerationConfig(max_length=60), "max_new_tokens": ...},
        "max_length cannot be used",
    ),
    "n-grams": ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size cannot be used"),
    "bans": ({"bad_words_ids": [[5]]}, "bad_words_ids"),
    "typical": ({"typical_p": 0.5}, "typical_p cannot be used"),
    "typical in a config": ({"generation_config": GenerationConfig(typical_p=0.5)}, "typical_p cannot be used"),
    "drafts": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens cannot be used"),
    "scores": ({"output_scores": True}, "output_scores cannot be used"),
    "another end": ({"eos_token_id": 20}, "eos_token_id cannot be used"),
    "a processor": ({"logits_processor": [Nothing()]}, "Leave the logits processor Nothing out"),
    "a processor of theirs": (
        {"logits_processor": [NoBadWordsLogitsProcessor([[5]], eos_token_id=0)]},
        "Leave the logits processor NoBadWordsLogitsProcessor out",
    ),
    "a warper of theirs": (
        {"logits_processor": [TemperatureLogitsWarper(0.3)]},
        "Leave the logits processor TemperatureLogitsWarper out",
    ),
    "a prefix function": (
        {"prefix_allowed_tokens_fn": lambda batch, ids: [5]},
        "Leave the logits processor PrefixConstrainedLogitsProcessor out",
    ),
    "a stopping criterion": ({"stopping_criteria": [MaxTimeCriteria(1.0)]}, "The stopping criterion MaxTimeCriteria"),
    "a time limit": ({"max_time": 1.0}, "max_time cannot be used"),
    "positions": ({"position_ids": torch.tensor([[7] * 12])}, "position_ids that do not count"),
    "a wrong temperature": ({"temperature": -1.0}, "temperature=-1.0"),
    "a wrong number": ({"num_return_sequences": 0}, "num_return_sequences=0"),
    "a wrong seed": ({"seed": -4}, "seed=-4"),
    "no tokenizer": ({"vocabulary": {}}, "dict was given as tokenizer"),
}


class TestRefusals:
    @pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
    @pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=list(REFUSED))
    def test_with_a_sentence(self, hf: tuple[Any, Any], options: dict[str, Any], message: str) -> None:
        with pytest.raises(UnsupportedError, match=message):
            call(hf, PROMPT, **options)

    def test_two_languages(self, hf: tuple[Any, Any], stock: outlines.models.Transformers) -> None:
        processors = [outlines.Generator(stock, ANSWER).logits_processor for _ in range(2)]
        with pytest.raises(UnsupportedError, match="each says what may be written"):
            call(hf, PROMPT, logits_processor=processors[:1])
        with pytest.raises(UnsupportedError, match="2 processors that say"):
            call(hf, PROMPT, output_type=None, logits_processor=processors)

    def test_a_language_that_cannot_be_read(self, stock: outlines.models.Transformers) -> None:
        generator = outlines.Generator(stock, ANSWER, backend="llguidance")
        with pytest.raises(UnsupportedError, match="The language of a LLGuidance.* cannot be read"):
            generator(PROMPT, custom_generate=outlines_phi.custom_generate, max_new_tokens=BUDGET)

    def test_a_filled_cache(self, hf: tuple[Any, Any]) -> None:
        ids = inputs_of(hf[1], PROMPT)["input_ids"]
        output = hf[0](ids[:, :-1], use_cache=True)
        name = next(name for name in CACHES if name in output)
        with pytest.raises(UnsupportedError, match=f"Leave out {name} with a prompt in it"):
            call(hf, PROMPT, **{name: output[name]})

    def test_a_filled_state(self, recurrent: Any) -> None:
        ids = inputs_of(recurrent[1], PROMPT)["input_ids"]
        output = recurrent[0](ids[:, :-1], use_cache=True)
        name = next(name for name in CACHES if name in output)
        with pytest.raises(UnsupportedError, match=f"Leave out {name} with a prompt in it"):
            call(recurrent, PROMPT, **{name: output[name]})

    def test_a_vocabulary_of_another_model(self, hf: tuple[Any, Any]) -> None:
        other = outlines_phi.Vocabulary.from_tokens(["yes", "no", "<eos>"], 2)
        with pytest.raises(VocabularyError, match="output has 1280 rows but the vocabulary has 3"):
            call(hf, PROMPT, vocabulary=other)

    @pytest.mark.parametrize("budget", [-1, 0, "9"])
    def test_a_budget_that_is_no_number(self, hf: tuple[Any, Any], budget: Any) -> None:
        with pytest.raises((ValueError, TypeError)):  # of transformers itself, which reads it first
            call(hf, PROMPT, max_new_tokens=budget)

    def test_a_budget_too_small(self, hf: tuple[Any, Any]) -> None:
        with pytest.raises(EmptyLanguageError, match="max_new_tokens=1 is too small"):
            call(hf, PROMPT, max_new_tokens=1)

    def test_rows_that_truncation_empties(self, hf: tuple[Any, Any]) -> None:
        with pytest.raises(EmptyLanguageError, match="top_k=1 leaves no allowed token"):
            call(hf, PROMPT, phi="local", top_k=1, output_type=outlines.types.regex("[@#]{3}"))

    def test_effort_that_runs_out(self, hf: tuple[Any, Any]) -> None:
        """The draws made so far come with the error."""
        hasty = ExactPhi(effort=Effort(attempts=1, tokens=1), width=1)
        with pytest.raises(BudgetError) as caught:
            call(hf, "so ", phi=hasty, output_type=outlines.types.regex("[a-z ]{20}!"), max_new_tokens=60)
        assert len(caught.value.draws) == 1

    def test_a_model_in_training(self) -> None:
        hf = bundled.load()
        hf[0].train()
        with pytest.raises(UnsupportedError, match="training mode"):
            call(hf, PROMPT)

    def test_logits_that_are_nan(self) -> None:
        hf = bundled.load()
        call(hf, PROMPT)
        with torch.no_grad():
            hf[0].lm_head.weight[3] = math.nan
        with pytest.raises(ModelError, match="NaN"):
            call(hf, PROMPT)

    def test_an_unknown_keyword_is_refused_by_transformers(self, hf: tuple[Any, Any]) -> None:
        with pytest.raises(ValueError, match="not used by the model"):
            call(hf, PROMPT, fidelity="high")
