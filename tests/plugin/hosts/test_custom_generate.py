"""``generate(..., custom_generate=outlines_phi.custom_generate)``: laws, shapes, what is read, kept and refused."""

import gc
import math
import weakref
from functools import partial
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

from outlines_phi import (
    BudgetError,
    Effort,
    EmptyLanguageError,
    ExactPhi,
    Guarantee,
    PhiTransformers,
    UnsupportedError,
    Vocabulary,
    custom_generate,
    from_transformers,
)
from outlines_phi.errors import ModelError, VocabularyError
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.plugin.hosts.custom_generate import LOANS
from outlines_phi_workbench.suite.reference import Reference
from tests.inner import CACHES, bundled, compile_regex
from tests.languages import ALPHA, p_value
from tests.plugin.instruments import (
    ANSWER,
    MONDAY,
    by_text,
    custom,
    inputs_of,
    reference,
    seeded,
    texts,
    trees,
    written,
)
from tests.precision import named, near_log
from tests.refusals import refused

TEXTS = ("yes", "no", "not now", "nobody")
BUDGET, N = 12, 3000


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


def call(hf: tuple[Any, Any], *prompts: str, **options: Any) -> Any:
    return custom(hf, *prompts, **{"output_type": ANSWER, "max_new_tokens": BUDGET, **options})


def rows_of(hf: tuple[Any, Any], *prompts: str, **options: Any) -> list[tuple[int, ...]]:
    """Return the tokens of each row of a call."""
    return written(hf, call(hf, *prompts, **options), *prompts)


def law_of(model: PhiTransformers, **options: Any) -> Reference:
    return reference(model, ANSWER, MONDAY, BUDGET, **options)


class TestLaws:
    @pytest.mark.parametrize(
        ("pair", "phi", "options"),
        [
            ("hf", "exact", {}),
            ("hf", "exact", {"temperature": 0.7, "top_k": 20}),
            ("recurrent", "exact", {}),
            ("hf", "local", {}),
        ],
    )
    def test_exact_rows_have_the_law_and_masked_ones_fail_the_same_test(
        self, pair: str, phi: str, options: dict[str, Any], request: pytest.FixtureRequest
    ) -> None:
        hf = request.getfixturevalue(pair)
        law = law_of(from_transformers(*hf), **options)
        drawn = rows_of(hf, MONDAY, phi=phi, seed=3, num_return_sequences=N, **options)
        assert len(drawn) == N and p_value(drawn, law.mu if phi == "exact" else law.mask) > ALPHA
        assert phi == "exact" or p_value(drawn, law.mu) < ALPHA

    @pytest.mark.parametrize("phi", ["local", "onestep"])
    def test_weights(self, hf: tuple[Any, Any], model: PhiTransformers, phi: str) -> None:
        law = law_of(model, temperature=0.7)
        options = {"temperature": 0.7, "num_return_sequences": N, "return_dict_in_generate": True}
        result = call(hf, MONDAY, phi=phi, seed=3, **options)
        for ids, log_p in zip(written(hf, result, MONDAY), result.log_p.tolist(), strict=True):
            assert log_p == near_log(law.log_p[ids])
        w = np.exp(result.log_w.numpy())
        assert abs(w.mean() - math.exp(law.log_phi)) < 4 * w.std() / math.sqrt(N) + 1e-6
        assert result.draws[0].guarantee is Guarantee.WEIGHTED

    def test_rows_of_one_prompt_in_a_padded_batch(self, hf: tuple[Any, Any], model: PhiTransformers) -> None:
        """Equal prompts share a tree and stay i.i.d.; padding and neighbours change nothing."""
        prompts = [MONDAY, "no", MONDAY + MONDAY, MONDAY] * 100
        drawn = []
        for seed in range(4):
            rows = rows_of(hf, *prompts, seed=seed, num_return_sequences=2)
            drawn += [ids for i, ids in enumerate(rows) if prompts[i // 2] == MONDAY]
        assert len(drawn) == 1600 and p_value(drawn, law_of(model).mu) > ALPHA

    def test_through_stock_outlines(self, stock: outlines.models.Transformers, model: PhiTransformers) -> None:
        """Stock Outlines, stock transformers: the language is that of Outlines' own processor."""
        options = {"custom_generate": custom_generate, "max_new_tokens": BUDGET}
        processor = outlines.Generator(stock, Literal["yes", "no"]).logits_processor
        law = by_text(model, reference(model, processor, MONDAY, BUDGET).mu)
        drawn, masked = (
            stock(MONDAY, Literal["yes", "no"], num_return_sequences=N, seed=1, phi=phi, **options)
            for phi in ("exact", "local")
        )
        assert p_value(drawn, law) > ALPHA > p_value(masked, law)
        assert set(outlines.Generator(stock, ANSWER).batch([MONDAY, "hello"], phi="exact", **options)) <= set(TEXTS)


class TestShapes:
    def test_rows_begin_with_their_prompts(self, hf: tuple[Any, Any]) -> None:
        prompts = (MONDAY, "no")
        ids = inputs_of(hf[1], *prompts)["input_ids"]
        out = call(hf, *prompts, num_return_sequences=3, seed=1)
        assert out.dtype == torch.long and len(out) == 6
        assert torch.equal(out[:, : ids.shape[1]], ids.repeat_interleave(3, 0))
        assert set(texts(hf, out, *prompts)) <= set(TEXTS)

    def test_without_a_mask(self, hf: tuple[Any, Any]) -> None:
        road = {"custom_generate": custom_generate, "vocabulary": hf[1], "output_type": ANSWER}
        out = hf[0].generate(inputs_of(hf[1], MONDAY)["input_ids"], max_new_tokens=BUDGET, seed=4, **road)
        assert torch.equal(out, call(hf, MONDAY, seed=4))

    def test_a_dict(self, hf: tuple[Any, Any]) -> None:
        result = call(hf, MONDAY, "no", MONDAY, seed=2, return_dict_in_generate=True)
        assert torch.equal(result["sequences"], call(hf, MONDAY, "no", MONDAY, seed=2))
        assert result.log_w.shape == result.log_p.shape == (3,)
        assert [(len(draws), draws.guarantee) for draws in result.draws] == [(2, Guarantee.EXACT)] * 2

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_generation_config(self, hf: tuple[Any, Any], number: int) -> None:
        """transformers repeats the rows for a config's num_return_sequences before it calls; a keyword comes to us."""
        law = {"temperature": 0.5, "num_return_sequences": number}
        config = GenerationConfig(max_new_tokens=BUDGET, do_sample=True, pad_token_id=1, eos_token_id=0, top_k=0, **law)
        out = call(hf, MONDAY, generation_config=config, max_new_tokens=..., seed=7)
        assert torch.equal(out, call(hf, MONDAY, seed=7, **law))


def test_the_most_probable_members(hf: tuple[Any, Any], model: PhiTransformers) -> None:
    best = sorted(law_of(model).log_p.items(), key=lambda item: -item[1])
    assert rows_of(hf, MONDAY, "no", MONDAY, do_sample=False)[::2] == [best[0][0]] * 2
    result = call(hf, MONDAY, do_sample=False, num_return_sequences=3, return_dict_in_generate=True)
    assert written(hf, result, MONDAY) == [ids for ids, _ in best[:3]]
    assert result.log_p.tolist() == near_log([log_p for _, log_p in best[:3]]) and result.log_w is None
    config = GenerationConfig(do_sample=False, max_new_tokens=BUDGET)
    assert rows_of(hf, MONDAY, generation_config=config, max_new_tokens=...) == [best[0][0]]


def test_a_seed_and_without_one_torch_decides(hf: tuple[Any, Any]) -> None:
    draw = partial(call, hf, MONDAY, num_return_sequences=40)
    one, two, three = (draw(seed=seed) for seed in (5, 5, 6))
    assert torch.equal(one, two) and not torch.equal(one, three)
    assert torch.equal(*(seeded(draw, phi="local") for _ in range(2)))


class TestOptions:
    """Values of the call are used; those of the checkpoint as far as every call with ``phi=`` uses them."""

    @pytest.fixture
    def own(self) -> tuple[Any, Any]:
        return bundled.load()

    def follows(self, hf: tuple[Any, Any], law: Reference, **options: Any) -> bool:
        options = {"phi": "local", "seed": 1, "num_return_sequences": 60, "return_dict_in_generate": True, **options}
        result = call(hf, MONDAY, **options)
        return result.log_p.tolist() == near_log([law.log_p[ids] for ids in written(hf, result, MONDAY)])

    def test_the_checkpoint_has_temperature_and_penalty_but_no_truncation(
        self, own: tuple[Any, Any], model: PhiTransformers
    ) -> None:
        config = own[0].generation_config
        config.temperature, config.repetition_penalty, config.top_k, config.top_p = 0.7, 1.2, 3, 0.5
        assert self.follows(own, law_of(model, temperature=0.7, repetition_penalty=1.2))
        assert self.follows(own, law_of(model, temperature=1.1, repetition_penalty=1.2), temperature=1.1)
        assert not self.follows(own, law_of(model))

    def test_the_call_has_truncation(self, own: tuple[Any, Any], model: PhiTransformers) -> None:
        own[0].generation_config.top_k = None  # transformers then fills in 50
        short: dict[str, Any] = {"output_type": Literal["yes", "no"]}
        by_config = GenerationConfig(top_p=0.99, max_new_tokens=BUDGET, do_sample=True)
        assert self.follows(own, law_of(model)) and self.follows(own, law_of(model, top_k=50), top_k=50, **short)
        assert self.follows(own, law_of(model, top_p=0.99), generation_config=by_config, max_new_tokens=..., **short)

    @pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
    @pytest.mark.parametrize("of_checkpoint", [7, None])
    def test_the_budget_of_the_checkpoint(self, own: tuple[Any, Any], of_checkpoint: int | None) -> None:
        if of_checkpoint is not None:
            own[0].generation_config.max_new_tokens = of_checkpoint
        result = call(own, MONDAY, max_new_tokens=..., return_dict_in_generate=True)
        assert result.draws[0].budget == (of_checkpoint or 256)


def calls_of(hf: tuple[Any, Any]) -> int:
    """Return the model calls that a call takes."""
    return call(hf, MONDAY, return_dict_in_generate=True).draws[0].counts.calls


class TestKept:
    def test_trees_serve_later_calls_until_weights_change(self) -> None:
        hf = bundled.load()
        counts = [calls_of(hf) for _ in range(3)]
        assert counts[0] > 0 and counts[1:] == [0, 0]
        with torch.no_grad():
            hf[0].lm_head.weight.mul_(1.01)
        assert calls_of(hf) > 0

    def test_trees_serve_later_stock_calls(self) -> None:
        """Stock Outlines builds its index anew at every call; equal ones are the same language to us."""
        stock = outlines.from_transformers(*bundled.load())
        for _ in range(2):
            stock(MONDAY, ANSWER, custom_generate=custom_generate, max_new_tokens=BUDGET)
        assert len(trees(LOANS.without_tokenizer(stock.model, [stock.hf_tokenizer.eos_token_id]))) == 1

    def test_neither_a_model_nor_tokenizers_are_kept_alive(self) -> None:
        hf = bundled.load()
        for _ in range(3):
            _, other = bundled.load()
            call((hf[0], other), MONDAY)
        tokenizer = weakref.ref(other)
        del other
        gc.collect()
        assert tokenizer() is None
        assert calls_of(hf) == 0, "one vocabulary, whoever loads it"
        call(hf, MONDAY, phi="local")
        model = weakref.ref(hf[0])
        del hf
        gc.collect()
        assert model() is None

    def test_a_guide_and_a_table_bring_their_vocabulary(self, hf: tuple[Any, Any], model: PhiTransformers) -> None:
        guide = FSMGuide.from_automaton(compile_regex("yes|no"), model.lm.vocabulary)
        for language in (guide, Table(guide)):
            assert texts(hf, call(hf, MONDAY, output_type=language, vocabulary=...), MONDAY)[0] in ("yes", "no")


class Nothing(LogitsProcessor):
    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


OTHER = Vocabulary.from_tokens(["yes", "no", "<eos>"], 2)
ENDLESS = ExactPhi(effort=Effort(attempts=1, tokens=1), width=1)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"output_type": None}, "free text has nothing to correct"),
    ({"vocabulary": ...}, "Give vocabulary=tokenizer"),
    ({"phi": None}, "leave custom_generate out for plain masking"),
    ({"phi": "nonsense"}, "phi='nonsense' was given"),
    ({"num_beams": 3}, "num_beams cannot be used here .beam search"),
    ({"do_sample": False, "phi": "local"}, "Give phi='exact' with do_sample=False"),
    (
        {"do_sample": False, "num_return_sequences": 5, "output_type": outlines.types.regex("@")},
        "at most num_return_sequences=1",
    ),
    ({"max_length": 40, "max_new_tokens": ...}, "max_length"),
    ({"generation_config": GenerationConfig(max_length=60), "max_new_tokens": ...}, "max_length"),
    ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
    ({"bad_words_ids": [[5]]}, "bad_words_ids"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"generation_config": GenerationConfig(typical_p=0.5)}, "typical_p"),
    ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
    ({"output_scores": True}, "output_scores"),
    ({"eos_token_id": 20}, "eos_token_id"),
    ({"logits_processor": [Nothing()]}, "Leave the logits processor Nothing out"),
    ({"logits_processor": [NoBadWordsLogitsProcessor([[5]], eos_token_id=0)]}, "NoBadWordsLogitsProcessor out"),
    ({"logits_processor": [TemperatureLogitsWarper(0.3)]}, "TemperatureLogitsWarper out"),
    ({"prefix_allowed_tokens_fn": lambda batch, ids: [5]}, "PrefixConstrainedLogitsProcessor out"),
    ({"stopping_criteria": [MaxTimeCriteria(1.0)]}, "The stopping criterion MaxTimeCriteria"),
    ({"max_time": 1.0}, "max_time"),
    ({"position_ids": torch.tensor([[7] * 12])}, "position_ids that do not count"),
    ({"temperature": -1.0}, "temperature=-1.0"),
    ({"num_return_sequences": 0}, "num_return_sequences=0"),
    ({"seed": -4}, "seed=-4"),
    ({"vocabulary": {}}, "dict was given as tokenizer"),
    ({"vocabulary": OTHER}, "output has 1280 rows but the vocabulary has 3"),
    ({"max_new_tokens": 1}, "max_new_tokens=1 is too small"),
    ({"phi": "local", "top_k": 1, "output_type": outlines.types.regex("[@#]{3}")}, "top_k=1 leaves no allowed token"),
]
OF_TRANSFORMERS = [{"max_new_tokens": -1}, {"max_new_tokens": 0}, {"max_new_tokens": "9"}, {"fidelity": "high"}]
"""Values that transformers itself refuses, which reads them first."""


class TestRefusals:
    @pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
    @pytest.mark.parametrize(("options", "words"), REFUSED, ids=named)
    def test_with_a_sentence(self, hf: tuple[Any, Any], options: dict[str, Any], words: str) -> None:
        refused(words, call, hf, MONDAY, **options, error=(UnsupportedError, VocabularyError, EmptyLanguageError))

    def test_of_no_rows(self, hf: tuple[Any, Any]) -> None:
        refused(
            "a row or more",
            hf[0].generate,
            torch.zeros((0, 3), dtype=torch.long),
            custom_generate=custom_generate,
            vocabulary=hf[1],
            output_type=ANSWER,
            max_new_tokens=BUDGET,
        )

    @pytest.mark.parametrize("options", OF_TRANSFORMERS, ids=named)
    def test_by_transformers(self, hf: tuple[Any, Any], options: dict[str, Any]) -> None:
        refused(
            "not used by the model" if "fidelity" in options else None,
            call,
            hf,
            MONDAY,
            **options,
            error=(ValueError, TypeError),
        )

    def test_languages_of_processors(self, hf: tuple[Any, Any], stock: outlines.models.Transformers) -> None:
        two = [outlines.Generator(stock, ANSWER).logits_processor for _ in range(2)]
        unread = [outlines.Generator(stock, ANSWER, backend="llguidance").logits_processor]
        for processors, output_type, words in (
            (two[:1], ANSWER, "each says what may be written"),
            (two, None, "2 processors that say"),
            (unread, None, "The language of a LLGuidance.* cannot be read"),
        ):
            refused(words, call, hf, MONDAY, output_type=output_type, logits_processor=processors)

    @pytest.mark.parametrize("pair", ["hf", "recurrent"])
    def test_a_filled_cache(self, pair: str, request: pytest.FixtureRequest) -> None:
        hf = request.getfixturevalue(pair)
        output = hf[0](inputs_of(hf[1], MONDAY)["input_ids"][:, :-1], use_cache=True)
        name = next(name for name in CACHES if name in output)
        refused(f"Leave out {name} with a prompt in it", call, hf, MONDAY, **{name: output[name]})

    def test_effort_that_runs_out(self, hf: tuple[Any, Any]) -> None:
        """The draws made so far come with the error."""
        options = {"phi": ENDLESS, "output_type": outlines.types.regex("[a-z ]{20}!"), "max_new_tokens": 60}
        assert len(refused(None, call, hf, "so ", **options, error=BudgetError).value.draws) == 1

    def test_a_model_in_training_and_one_with_nan(self) -> None:
        hf = bundled.load()
        hf[0].train()
        refused("training mode", call, hf, MONDAY)
        hf[0].eval()
        call(hf, MONDAY)
        with torch.no_grad():
            hf[0].lm_head.weight[3] = math.nan
        refused("NaN", call, hf, MONDAY, error=ModelError)
