"""A correction inside Hugging Face's, Outlines' and other loops: laws, weights, states, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import numpy as np
import outlines
import pytest
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, LogitsProcessorList

import outlines_phi
from outlines_phi import EmptyLanguageError, OneStepPhi, PhiLogitsProcessor, PhiTransformers, UnsupportedError
from outlines_phi.errors import ModelError
from outlines_phi.fidelity.comparison import frequencies, noise_floor, total_variation
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.lm import bundled
from outlines_phi.plugin.hosts import phi_processor, transformers
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.languages import ALPHA, p_value
from tests.precision import near_log

PROMPT = "Question: is the bakery open on Monday? Answer: "
ANSWER = Literal["yes", "no", "not now", "nobody"]
BUDGET = 12
N = 1000

LAWS: dict[str, dict[str, Any]] = {
    "cold": {"temperature": 0.7},
    "hot": {"temperature": 1.6},
    "penalty": {"temperature": 0.7, "repetition_penalty": 1.3},
}


def processor_of(model: Any, output_type: Any = ANSWER, **options: Any) -> PhiLogitsProcessor:
    return PhiLogitsProcessor(model, output_type, **{"phi": "local", "max_new_tokens": BUDGET, **options})


def inputs_of(model: PhiTransformers, *prompts: str) -> Any:
    return model.hf_tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left")


def generated(model: PhiTransformers, sequences: torch.Tensor, prompt_length: int) -> list[tuple[int, ...]]:
    """Return the tokens generated in each row, up to the end of sequence."""
    eos = model.lm.vocabulary.eos_ids[0]
    rows = sequences[:, prompt_length:].tolist()
    return [tuple(row[: row.index(eos) + 1] if eos in row else row) for row in rows]


def draws(
    model: PhiTransformers, processor: PhiLogitsProcessor, n: int = N, **options: Any
) -> tuple[list[tuple[int, ...]], NDArray[np.float64]]:
    """Return ``n`` rows of Hugging Face's own loop, and their log weights."""
    inputs = inputs_of(model, PROMPT)
    torch.manual_seed(11)
    sequences = model.model.generate(
        **inputs, logits_processor=[processor], num_return_sequences=n, **processor.host_options | options
    )
    return generated(model, sequences, inputs["input_ids"].shape[1]), processor.log_w(sequences)


def reference_of(model: PhiTransformers, **options: Any) -> Reference:
    settings = SamplingSettings(max_new_tokens=BUDGET, **options)
    return enumerate_language(model.lm, model.table(ANSWER), model._prompt_ids(PROMPT), settings, BUDGET)


def told(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a law for the processor; the penalty comes before it."""
    return {name: value for name, value in options.items() if name != "repetition_penalty"}


def corrects(drawn: list[tuple[int, ...]], log_w: NDArray[np.float64], reference: Reference) -> bool:
    """Return True if ``E[w] = Phi`` within four standard errors and the weighted draws have the law ``mu*``."""
    w = np.exp(log_w)
    unbiased = abs(w.mean() - math.exp(reference.log_phi)) < 4 * w.std() / math.sqrt(len(w)) + 1e-6
    distance = total_variation(frequencies(drawn, w / w.sum()), reference.mu)
    ess = int(w.sum() ** 2 / (w**2).sum())
    print(f"TV {distance:.4f}, floor {noise_floor(reference.mu, ess):.4f}, ESS {ess} of {len(w)}")
    return unbiased and distance < 3 * noise_floor(reference.mu, ess) + 0.005


class TestLaws:
    @pytest.mark.parametrize("options", [LAWS["cold"], LAWS["penalty"]], ids=["cold", "penalty"])
    def test_masking_in_their_loop_is_the_masked_law(self, model: PhiTransformers, options: dict[str, Any]) -> None:
        reference = reference_of(model, **options)
        drawn, log_w = draws(model, processor_of(model, **told(options)), **options)
        assert p_value(drawn, reference.mask) > ALPHA
        assert p_value(drawn, reference.mu) < ALPHA, "power: masking is not mu*"
        for ids, weight in zip(drawn, log_w, strict=True):
            assert weight == near_log(reference.log_p[ids] - reference.log_mask[ids])

    @pytest.mark.parametrize(
        ("phi", "options"),
        [
            ("local", LAWS["cold"]),
            ("onestep", LAWS["cold"]),
            ("onestep", LAWS["penalty"]),
            (OneStepPhi(floor=0.1), LAWS["hot"]),
        ],
        ids=str,
    )
    def test_weights_are_unbiased_and_correct_the_proposal(
        self, model: PhiTransformers, phi: str | OneStepPhi, options: dict[str, Any]
    ) -> None:
        reference = reference_of(model, **options)
        drawn, log_w = draws(model, processor_of(model, phi=phi, **told(options)), **options)
        assert corrects(drawn, log_w, reference)
        equal = np.zeros(len(drawn)) + reference.log_phi
        assert not corrects(drawn, equal, reference), "power: without their weights the draws are not mu*"

    def test_the_weights_are_those_of_our_own_sampler(self, model: PhiTransformers) -> None:
        """Step for step the same proposal: the same sequence has the same weight on both roads."""
        generator = outlines_phi.Generator(model, ANSWER, phi="onestep")
        ours = generator.sample(PROMPT, 500, seed=1, max_new_tokens=BUDGET, temperature=0.7)
        known = {draw.token_ids: draw.log_w for draw in ours}
        drawn, log_w = draws(model, processor_of(model, phi="onestep", temperature=0.7), 500)
        both = [(known[ids], weight) for ids, weight in zip(drawn, log_w, strict=True) if ids in known]
        assert len(both) > 400
        assert all(ours == near_log(theirs) for ours, theirs in both)

    def test_the_factor_is_needed(self, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
        """Power: ``log p + log h`` without the factor T is tempered twice, and fails both tests."""
        reference = reference_of(model, temperature=0.7)
        scores = PhiLogitsProcessor._scores
        monkeypatch.setattr(PhiLogitsProcessor, "_scores", lambda self, *a: scores(self, *a) / 0.7)
        drawn, log_w = draws(model, processor_of(model, temperature=0.7), 2 * N)
        assert p_value(drawn, reference.mask) < ALPHA
        assert not corrects(drawn, log_w, reference)

    @pytest.mark.parametrize("phi", ["local", "onestep"])
    def test_the_tempered_law_is_needed(self, model: PhiTransformers, phi: str) -> None:
        """Power: ``h`` and the weight under the law at T = 1, in a loop at T = 0.7, are not unbiased."""
        processor = processor_of(model, phi=phi, temperature=1.0)
        drawn, log_w = draws(model, processor, temperature=0.7)
        assert not corrects(drawn, log_w, reference_of(model, temperature=0.7))

    @pytest.mark.parametrize("host_top_k", [0, 20], ids=["none", "equal"])
    def test_top_k_of_the_loop_changes_nothing(
        self, model: PhiTransformers, host_top_k: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``p`` itself is truncated. A language that keeps its mass under top-k, so that no row runs empty."""
        monkeypatch.setitem(globals(), "ANSWER", Literal["yes", "no"])
        options = {"temperature": 0.7, "top_k": 20}
        reference = reference_of(model, **options)
        drawn, log_w = draws(
            model, processor_of(model, Literal["yes", "no"], phi="onestep", **options), top_k=host_top_k
        )
        assert corrects(drawn, log_w, reference)

    def test_several_ends(self) -> None:
        """All ends are one event, whose mass the first one holds."""
        hf_model, tokenizer = bundled.load()
        hf_model.generation_config.eos_token_id = [tokenizer.eos_token_id, 20]
        model = outlines_phi.from_transformers(hf_model, tokenizer)
        reference = reference_of(model, temperature=0.7)
        drawn, log_w = draws(model, processor_of(model, temperature=0.7))
        assert p_value(drawn, reference.mask) > ALPHA
        assert corrects(drawn, log_w, reference)


class FromScratch:
    """The processor with every state replayed from the first token: no memory at all."""

    def __init__(self, processor: PhiLogitsProcessor, prompt_length: int) -> None:
        self.table, self.phi, self.settings = processor.table, processor.phi, processor.settings
        self.budget, self.prompt_length = processor.budget, prompt_length

    def __call__(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(logits, -torch.inf)
        for i, row in enumerate(input_ids[:, self.prompt_length :].tolist()):
            state, left = self.table.start, self.budget - len(row)
            for token in row:
                state = DONE if state == DONE else self.table.guide.advance(state, token)
            if state == DONE:
                out[i, self.table.vocabulary.eos_ids[0]] = 0.0
            elif state != DEAD and self.table.guide.min_tokens(state) <= left:
                log_p = self.settings.log_p(logits[[i]], self.table.vocabulary, ())
                scores = self.phi.scores(log_p, self.table, [state], [left])
                out[i] = self.settings.temperature * scores[0]
        return out


LOOPS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"temperature": 0.7},
    "several": {"num_return_sequences": 4},
    "beams": {"num_beams": 3, "do_sample": False},
    "sampled beams": {"num_beams": 3, "num_return_sequences": 2},
}
CODE = outlines.types.regex("[a-z]{3,5}-[0-9]{2}")


class TestLoops:
    @pytest.mark.parametrize("phi", ["local", "onestep"])
    @pytest.mark.parametrize("options", LOOPS.values(), ids=list(LOOPS))
    def test_states_are_those_of_a_replay(self, model: PhiTransformers, options: dict[str, Any], phi: str) -> None:
        processor = processor_of(model, CODE, phi=phi, temperature=options.get("temperature", 1.0))
        inputs = inputs_of(model, "Code: abc-12. Code: ", "hi")
        scratch = FromScratch(processor, inputs["input_ids"].shape[1])
        options = {"max_new_tokens": BUDGET, **options}
        results = []
        for each in (processor, scratch):
            torch.manual_seed(3)
            results.append(model.model.generate(**inputs, logits_processor=LogitsProcessorList([each]), **options))
        assert torch.equal(*results)
        texts = model.hf_tokenizer.batch_decode(results[0][:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert all(re.fullmatch(CODE.pattern, text) for text in texts)

    @pytest.mark.parametrize("budget", [4, 6, 30])
    def test_nothing_is_cut_short(self, model: PhiTransformers, budget: int) -> None:
        """A word of up to 30 letters within the budget, whatever the model would rather write."""
        processor = processor_of(model, outlines.types.regex("[a-z]{3,30}!"), max_new_tokens=budget)
        inputs = inputs_of(model, "so", "long a prompt")
        sequences = model.model.generate(
            **inputs, logits_processor=[processor], num_return_sequences=8, **processor.host_options
        )
        rows = generated(model, sequences, inputs["input_ids"].shape[1])
        assert all(model.lm.vocabulary.decode(row).endswith(b"!") and len(row) <= budget for row in rows)
        assert np.isfinite(processor.log_w(sequences)).all()

    def test_a_row_that_the_loop_cuts_short_weighs_nothing(self, model: PhiTransformers) -> None:
        processor = processor_of(model, outlines.types.regex("[a-z]{9}!"))
        inputs = inputs_of(model, PROMPT)
        sequences = model.model.generate(
            **inputs, logits_processor=[processor], **processor.host_options | {"max_new_tokens": 2}
        )
        assert processor.log_w(sequences).tolist() == [-math.inf]

    def test_drafts_keep_the_weights(self, model: PhiTransformers) -> None:
        """Prompt look-up asks about drafts, also with logits of its own making, and goes back."""
        reference, inputs = reference_of(model), inputs_of(model, PROMPT)
        processor = processor_of(model)
        seen = set()
        for seed in range(25):
            torch.manual_seed(seed)
            options = {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 1}
            sequences = model.model.generate(
                **inputs, logits_processor=[processor], **processor.host_options, **options
            )
            (ids,) = generated(model, sequences, inputs["input_ids"].shape[1])
            seen.add(ids)
            expected = reference.log_p[ids] - reference.log_mask[ids]
            assert processor.log_w(sequences)[0] == near_log(expected)
        assert len(seen) > 1

    def test_an_assistant_keeps_the_weights(self, model: PhiTransformers) -> None:
        reference, inputs = reference_of(model), inputs_of(model, PROMPT)
        assistant, _ = bundled.load()
        assistant.lm_head.weight.data *= 1.1
        processor = processor_of(model)
        for seed in range(10):
            torch.manual_seed(seed)
            sequences = model.model.generate(
                **inputs, logits_processor=[processor], assistant_model=assistant, **processor.host_options
            )
            (ids,) = generated(model, sequences, inputs["input_ids"].shape[1])
            expected = reference.log_p[ids] - reference.log_mask[ids]
            assert processor.log_w(sequences)[0] == near_log(expected)

    def test_one_processor_for_many_generations(self, model: PhiTransformers) -> None:
        """The same prompt, another one, a shorter one, and a conversation that goes on after what was written."""
        processor = processor_of(model)
        written = ""
        for prompt in (PROMPT, PROMPT, "hello there, ", "x", "x{}\n" + PROMPT, "x{}\n" + PROMPT + "{}\n" + PROMPT):
            inputs = inputs_of(model, prompt.replace("{}", written))
            sequences = model.model.generate(**inputs, logits_processor=[processor], **processor.host_options)
            (ids,) = generated(model, sequences, inputs["input_ids"].shape[1])
            written = model.lm.vocabulary.decode(ids).decode()
            assert written in ("yes", "no", "not now", "nobody")
            assert math.isfinite(processor.log_w(sequences)[0])

    def test_stock_outlines(self, model: PhiTransformers, stock: outlines.models.Transformers) -> None:
        """Texts come back without ids; the weights of the last call stand in the same order."""
        reference = reference_of(model, temperature=0.7)
        processor = processor_of(stock, temperature=0.7)
        torch.manual_seed(2)
        texts = outlines.Generator(stock, processor=processor)(
            PROMPT, num_return_sequences=40, **processor.host_options
        )
        possible: dict[str, set[float]] = {}
        for ids, log_p in reference.log_p.items():
            text = model.lm.vocabulary.decode(ids).decode()
            possible.setdefault(text, set()).add(round(log_p - reference.log_mask[ids], 3))
        pairs = list(zip(texts, processor.log_w().round(3), strict=True))
        assert len(set(pairs)) > 1
        assert all(weight in possible[text] for text, weight in pairs)

    def test_a_wrapped_model_runs_it_or_reads_its_language(self, model: PhiTransformers) -> None:
        processor = processor_of(model, phi="onestep", temperature=0.7)
        generator = outlines.Generator(model, processor=processor)
        assert generator(PROMPT, phi="exact") in ("yes", "no", "not now", "nobody")
        texts = generator(PROMPT, num_return_sequences=3, **processor.host_options)
        assert set(texts) <= {"yes", "no", "not now", "nobody"}
        assert processor.log_w().shape == (3,)

    def test_numpy_rows(self, model: PhiTransformers) -> None:
        """As llama-cpp-python calls: one-dimensional arrays, one row at a time, the buffer of ids written in place."""
        torch_, numpy_ = (
            processor_of(model, phi="onestep", temperature=0.7, tensor_library_name=name) for name in ("torch", "numpy")
        )
        rng, size = np.random.default_rng(0), len(model.lm.vocabulary)
        buffer = np.zeros(40, dtype=np.intc)
        buffer[:3] = [5, 6, 7]
        length = 3
        for _ in range(BUDGET):
            logits = rng.normal(size=size).astype(np.float32)
            logits.flags.writeable = False
            ours = numpy_(buffer[:length], logits)
            rows = torch.tensor(buffer[:length].tolist())[None]
            assert isinstance(ours, np.ndarray) and ours.shape == (size,) and ours.dtype == np.float32
            assert np.array_equal(ours, torch_(rows, torch.tensor(logits)[None])[0].numpy())
            buffer[length] = int(ours.argmax())
            length += 1
            if buffer[length - 1] == model.lm.vocabulary.eos_ids[0]:
                break
        assert np.isfinite(numpy_.log_w(buffer[None, :length])).all()
        assert model.lm.vocabulary.decode(buffer[3 : length - 1].tolist()).decode() in (
            "yes",
            "no",
            "not now",
            "nobody",
        )

    def test_half_precision_logits_keep_their_type(self, model: PhiTransformers) -> None:
        out = processor_of(model)(torch.tensor([[5]]), torch.zeros(1, len(model.lm.vocabulary), dtype=torch.bfloat16))
        assert out.dtype == torch.bfloat16


class TestWeights:
    def test_memory_is_bounded(self, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(phi_processor, "MAX_STEP_BYTES", 300)
        processor = processor_of(model, CODE, temperature=0.7)
        inputs = inputs_of(model, PROMPT)
        sequences = model.model.generate(
            **inputs, logits_processor=[processor], num_return_sequences=20, **processor.host_options
        )
        assert len(processor._stepped) <= 2 * 20
        assert np.isfinite(processor.log_w(sequences)).all(), "those of the last two calls are kept"

    def test_sequences_of_another_generation(self, model: PhiTransformers) -> None:
        processor, inputs = processor_of(model), inputs_of(model, PROMPT)
        sequences = model.model.generate(**inputs, logits_processor=[processor], **processor.host_options)
        with pytest.raises(UnsupportedError, match="these rows have another prompt"):
            processor.log_w(sequences[:, 1:])
        with pytest.raises(UnsupportedError, match="not known"):
            processor.log_w(torch.cat([inputs["input_ids"], torch.full((1, 3), 77)], dim=1))
        processor.reset()
        with pytest.raises(UnsupportedError, match="another prompt"):
            processor.log_w(sequences)

    @pytest.mark.parametrize(
        "sequences", [["yes", "no"], "yes", [[1, 2], [1]], [], np.ones((1, 2)), torch.zeros(1, 1, 1, dtype=torch.int64)]
    )
    def test_what_is_no_token_ids(self, model: PhiTransformers, sequences: Any) -> None:
        with pytest.raises(
            UnsupportedError, match="expected the token ids that the loop returned, .* without sequences"
        ):
            processor_of(model).log_w(sequences)

    def test_weights_before_any_generation(self, model: PhiTransformers) -> None:
        processor = processor_of(model)
        with pytest.raises(UnsupportedError, match="nothing has been generated"):
            processor.log_w()
        draws(model, processor, 1)
        processor.reset()
        with pytest.raises(UnsupportedError, match="nothing has been generated"):
            processor.log_w()

    def test_beams_need_the_sequences(self, model: PhiTransformers) -> None:
        processor = processor_of(model, CODE)
        model.model.generate(
            **inputs_of(model, PROMPT), logits_processor=[processor], num_beams=3, max_new_tokens=BUDGET
        )
        with pytest.raises(UnsupportedError, match="Give what the loop returned"):
            processor.log_w()


class TestWhoseTokens:
    def test_every_way_to_name_them(self, model: PhiTransformers, stock: outlines.models.Transformers) -> None:
        ways = (
            processor_of(model),
            processor_of(stock),
            processor_of(model.model, tokenizer=model.hf_tokenizer),
            processor_of(model.lm.vocabulary, top_k=0),
        )
        prints = {each.table.vocabulary.fingerprint for each in ways}
        assert prints == {model.lm.vocabulary.fingerprint}
        assert processor_of(stock).table is ways[1].table, "compiled once for a model, and kept while it lives"
        bare = processor_of(model.hf_tokenizer)
        assert bare.table.vocabulary.tokens == model.lm.vocabulary.tokens

    def test_every_way_to_name_the_language(self, model: PhiTransformers, stock: outlines.models.Transformers) -> None:
        guide = FSMGuide.from_automaton(compile_regex("yes|no"), model.lm.vocabulary)
        stock_processor = outlines.Generator(stock, Literal["yes", "no"]).logits_processor
        for language in (guide, Table(guide), stock_processor, Literal["yes", "no"]):
            processor = processor_of(model, language)
            inputs = inputs_of(model, PROMPT)
            sequences = model.model.generate(**inputs, logits_processor=[processor], **processor.host_options)
            (ids,) = generated(model, sequences, inputs["input_ids"].shape[1])
            assert model.lm.vocabulary.decode(ids) in (b"yes", b"no")


class TestRefusals:
    @pytest.mark.parametrize("phi", ["exact", "auto", outlines_phi.ExactPhi(tolerance=0.1)], ids=str)
    def test_estimators_that_need_the_model(self, model: PhiTransformers, phi: Any) -> None:
        with pytest.raises(UnsupportedError, match="custom_generate.* or outlines_phi.Generator.*needs the model"):
            processor_of(model, phi=phi)

    def test_no_estimator(self, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="Give phi='local' for plain masking"):
            processor_of(model, phi=None)
        with pytest.raises(UnsupportedError, match="phi='nonsense' was given"):
            processor_of(model, phi="nonsense")

    @pytest.mark.parametrize("option", [{"top_p": 0.9}, {"min_p": 0.1}], ids=str)
    def test_truncation_that_is_not_idempotent(self, model: PhiTransformers, option: dict[str, float]) -> None:
        with pytest.raises(UnsupportedError, match="custom_generate.* to p \\* h instead of p"):
            processor_of(model, **option)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("top_p", 0.9), ("min_p", 0.1), ("typical_p", 0.5), ("epsilon_cutoff", 1e-3), ("top_h", 0.5)],
    )
    def test_truncation_of_the_generation_config(self, field: str, value: float) -> None:
        hf_model, tokenizer = bundled.load()
        setattr(hf_model.generation_config, field, value)
        with pytest.raises(UnsupportedError, match=f"{field}={value} in the model's generation_config"):
            processor_of(hf_model, tokenizer=tokenizer)

    def test_a_neutral_call_over_a_truncating_config(self) -> None:
        hf_model, tokenizer = bundled.load()
        hf_model.generation_config.top_p = 0.9
        assert processor_of(hf_model, tokenizer=tokenizer, top_p=1.0).host_options["top_p"] == 1.0

    @pytest.mark.parametrize(("of_config", "cut"), [(None, transformers.HOST_TOP_K), (7, 7)])
    def test_top_k_that_nobody_asked_for(self, of_config: int | None, cut: int) -> None:
        """The loop has a top-k of its own; it is not taken over, and not passed over in silence."""
        hf_model, tokenizer = bundled.load()
        hf_model.generation_config.top_k = of_config
        with pytest.raises(UnsupportedError, match=f"top_k={cut} likeliest tokens unless it is told otherwise"):
            processor_of(hf_model, tokenizer=tokenizer)
        assert processor_of(hf_model, tokenizer=tokenizer, top_k=0).settings.top_k is None
        assert processor_of(hf_model, tokenizer=tokenizer, top_k=cut).settings.top_k == cut

    def test_the_default_of_the_loop_is_as_stated(self, model: PhiTransformers) -> None:
        assert GenerationConfig._get_default_generation_params()["top_k"] == transformers.HOST_TOP_K

    def test_the_temperature_of_the_config_holds(self) -> None:
        hf_model, tokenizer = bundled.load()
        hf_model.generation_config.temperature = 0.6
        assert processor_of(hf_model, tokenizer=tokenizer).settings.temperature == 0.6
        assert processor_of(hf_model, tokenizer=tokenizer, temperature=2.0).settings.temperature == 2.0

    @pytest.mark.parametrize("value", [0, -3, 2.5, True, "9"], ids=repr)
    def test_a_budget_that_is_no_number(self, model: PhiTransformers, value: Any) -> None:
        with pytest.raises(UnsupportedError, match="max_new_tokens="):
            processor_of(model, max_new_tokens=value)

    def test_no_budget(self, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="max_new_tokens=None was given to PhiLogitsProcessor; expected"):
            processor_of(model, max_new_tokens=None)
        with pytest.raises(TypeError, match="max_new_tokens"):
            PhiLogitsProcessor(model, ANSWER)  # type: ignore[call-arg]

    def test_a_budget_too_small(self, model: PhiTransformers) -> None:
        with pytest.raises(EmptyLanguageError, match="Give max_new_tokens=2 or more") as caught:
            processor_of(model, max_new_tokens=1)
        assert caught.value.least_budget == 2

    @pytest.mark.parametrize("temperature", [0, -1.0, math.nan, "warm"], ids=repr)
    def test_temperatures(self, model: PhiTransformers, temperature: Any) -> None:
        with pytest.raises(UnsupportedError, match="temperature="):
            processor_of(model, temperature=temperature)

    def test_nothing_to_condition_on(self, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="free text has nothing to correct"):
            processor_of(model, None)

    def test_unknown_models_and_libraries(self, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="A dict was given as model"):
            processor_of({})
        with pytest.raises(UnsupportedError, match="Add tokenizer=tokenizer"):
            processor_of(model.model)
        with pytest.raises(UnsupportedError, match="expected one of torch, numpy"):
            processor_of(model, tensor_library_name="mlx")

    def test_logits_that_give_no_law(self, model: PhiTransformers) -> None:
        logits = torch.zeros(1, len(model.lm.vocabulary))
        for value, name in ((math.nan, "NaN"), (math.inf, "infinity")):
            logits[0, 3] = value
            with pytest.raises(ModelError, match=name):
                processor_of(model)(torch.tensor([[5]]), logits)

    def test_logits_of_another_model(self, model: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="gives 7 logits per token and the guide was built for"):
            processor_of(model)(torch.tensor([[5]]), torch.zeros(1, 7))

    def test_a_row_without_any_mass(self, model: PhiTransformers) -> None:
        """Top-k may leave nothing; the loop would draw from NaN."""
        processor = processor_of(model, outlines.types.regex("[@#]{3}"), top_k=1)
        with pytest.raises(EmptyLanguageError, match="Loosen top_k=1.*after 0 tokens"):
            draws(model, processor, 1)
        processor = processor_of(model)
        with pytest.raises(EmptyLanguageError, match="Loosen what stands before"):
            processor(torch.tensor([[5]]), torch.full((1, len(model.lm.vocabulary)), -torch.inf))
