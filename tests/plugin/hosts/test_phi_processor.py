"""A correction inside Hugging Face's, Outlines' and other loops: laws, weights, states, and what is refused."""

import math
import re
from typing import Any, Literal

import numpy as np
import outlines
import pytest
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig

from outlines_phi import (
    EmptyLanguageError,
    ExactPhi,
    OneStepPhi,
    PhiLogitsProcessor,
    PhiTransformers,
    UnsupportedError,
    from_transformers,
)
from outlines_phi.errors import ModelError
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.plugin.hosts import phi_processor, transformers
from outlines_phi_workbench.suite.reference import Reference
from tests.inner import DEAD, DONE, bundled, compile_regex, frequencies, noise_floor, total_variation
from tests.languages import ALPHA, p_value
from tests.plugin.instruments import ANSWER, MONDAY, generate, inputs_of, pair, reference, seeded, texts, written
from tests.precision import near_log
from tests.refusals import refused

BUDGET, N = 12, 1000

LAWS: dict[str, dict[str, Any]] = {
    "cold": {"temperature": 0.7},
    "hot": {"temperature": 1.6},
    "penalty": {"temperature": 0.7, "repetition_penalty": 1.3},
}


def processor_of(model: Any, output_type: Any = ANSWER, **options: Any) -> PhiLogitsProcessor:
    return PhiLogitsProcessor(model, output_type, **{"phi": "local", "max_new_tokens": BUDGET, **options})


def run(model: PhiTransformers, processor: PhiLogitsProcessor, *prompts: str, **options: Any) -> Any:
    """Return the sequences of Hugging Face's own loop."""
    options = {**processor.host_options, **options}
    return generate(pair(model), *(prompts or (MONDAY,)), logits_processor=[processor], **options)


def draws(
    model: PhiTransformers, processor: PhiLogitsProcessor, n: int = N, seed: int = 11, **options: Any
) -> tuple[list[tuple[int, ...]], NDArray[np.float64]]:
    """Return ``n`` rows of Hugging Face's own loop, and their log weights."""
    sequences = seeded(run, model, processor, seed=seed, num_return_sequences=n, **options)
    return written(pair(model), sequences, MONDAY), processor.log_w(sequences)


def one_of(model: PhiTransformers, sequences: Any, *prompts: str) -> str:
    """Return the text of the one row, an answer."""
    (text,) = texts(pair(model), sequences, *(prompts or (MONDAY,)))
    assert text in ("yes", "no", "not now", "nobody")
    return text


def law_of(model: PhiTransformers, output_type: Any = ANSWER, **options: Any) -> Reference:
    return reference(model, output_type, MONDAY, BUDGET, **options)


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
        law = law_of(model, **options)
        drawn, log_w = draws(model, processor_of(model, **told(options)), **options)
        assert p_value(drawn, law.mask) > ALPHA > p_value(drawn, law.mu), "power: masking is not mu*"
        assert log_w.tolist() == near_log([law.log_p[ids] - law.log_mask[ids] for ids in drawn])

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
        law = law_of(model, **options)
        drawn, log_w = draws(model, processor_of(model, phi=phi, **told(options)), **options)
        assert corrects(drawn, log_w, law)
        equal = np.zeros(len(drawn)) + law.log_phi
        assert not corrects(drawn, equal, law), "power: without their weights the draws are not mu*"

    @pytest.mark.parametrize(
        ("phi", "known", "used"), [("local", 1.0, 0.7), ("onestep", 1.0, 0.7), ("local", 0.7, 0.49)]
    )
    def test_the_tempered_law_is_needed(self, phi: str, known: float, used: float, model: PhiTransformers) -> None:
        """Power: a loop whose temperature the processor does not know, and one that tempers ``log p + log h`` twice."""
        law = law_of(model, temperature=0.7)
        drawn, log_w = draws(model, processor_of(model, phi=phi, temperature=known), 2 * N, temperature=used)
        assert not corrects(drawn, log_w, law)
        assert known == 1.0 or p_value(drawn, law.mask) < ALPHA

    @pytest.mark.parametrize("host_top_k", [0, 20], ids=["none", "equal"])
    def test_top_k_of_the_loop_changes_nothing(self, model: PhiTransformers, host_top_k: int) -> None:
        """``p`` itself is truncated. A language that keeps its mass under top-k, so that no row runs empty."""
        options, short = {"temperature": 0.7, "top_k": 20}, Literal["yes", "no"]
        drawn, log_w = draws(model, processor_of(model, short, phi="onestep", **options), top_k=host_top_k)
        assert corrects(drawn, log_w, law_of(model, short, **options))

    def test_several_ends(self) -> None:
        """All ends are one event, whose mass the first one holds."""
        hf_model, tokenizer = bundled.load()
        hf_model.generation_config.eos_token_id = [tokenizer.eos_token_id, 20]
        model = from_transformers(hf_model, tokenizer)
        law = law_of(model, temperature=0.7)
        drawn, log_w = draws(model, processor_of(model, temperature=0.7))
        assert p_value(drawn, law.mask) > ALPHA and corrects(drawn, log_w, law)


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
                out[i] = self.settings.temperature * self.phi.scores(log_p, self.table, [state], [left])[0]
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
        prompts = "Code: abc-12. Code: ", "hi"
        scratch = FromScratch(processor, inputs_of(model.hf_tokenizer, *prompts)["input_ids"].shape[1])
        results = [
            seeded(generate, pair(model), *prompts, logits_processor=[each], **{"max_new_tokens": BUDGET, **options})
            for each in (processor, scratch)
        ]
        assert torch.equal(*results)
        assert all(re.fullmatch(CODE.pattern, text) for text in texts(pair(model), results[0], *prompts))

    @pytest.mark.parametrize("budget", [4, 6, 30])
    def test_nothing_is_cut_short(self, model: PhiTransformers, budget: int) -> None:
        """A word of up to 30 letters within the budget, whatever the model would rather write."""
        processor = processor_of(model, outlines.types.regex("[a-z]{3,30}!"), max_new_tokens=budget)
        prompts = "so", "long a prompt"
        sequences = run(model, processor, *prompts, num_return_sequences=8)
        rows = written(pair(model), sequences, *prompts)
        assert all(model.lm.vocabulary.decode(row).endswith(b"!") and len(row) <= budget for row in rows)
        assert np.isfinite(processor.log_w(sequences)).all()

    def test_a_row_that_the_loop_cuts_short_weighs_nothing(self, model: PhiTransformers) -> None:
        processor = processor_of(model, outlines.types.regex("[a-z]{9}!"))
        assert processor.log_w(run(model, processor, max_new_tokens=2)).tolist() == [-math.inf]

    @pytest.mark.parametrize("drafts", ["prompt look-up", "an assistant"])
    def test_drafts_keep_the_weights(self, drafts: str, model: PhiTransformers) -> None:
        """Prompt look-up asks about drafts, also with logits of its own making, and goes back."""
        law, processor, assistant = law_of(model), processor_of(model), bundled.load()[0]
        assistant.lm_head.weight.data *= 1.1
        lookup: dict[str, Any] = {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 1}
        options = lookup if drafts == "prompt look-up" else {"assistant_model": assistant}
        seen = set()
        for seed in range(20):
            (ids,), log_w = draws(model, processor, 1, seed=seed, **options)
            assert log_w[0] == near_log(law.log_p[ids] - law.log_mask[ids])
            seen.add(ids)
        assert len(seen) > 1

    def test_one_processor_for_many_generations(self, model: PhiTransformers) -> None:
        """The same prompt, another one, a shorter one, and a conversation that goes on after what was written."""
        processor, said = processor_of(model), ""
        for prompt in (MONDAY, MONDAY, "hello there, ", "x", "x{}\n" + MONDAY, "x{}\n" + MONDAY + "{}\n" + MONDAY):
            prompt = prompt.replace("{}", said)
            sequences = run(model, processor, prompt)
            said = one_of(model, sequences, prompt)
            assert math.isfinite(processor.log_w(sequences)[0])

    def test_stock_outlines(self, model: PhiTransformers, stock: outlines.models.Transformers) -> None:
        """Texts come back without ids; the weights of the last call stand in the same order."""
        law, processor = law_of(model, temperature=0.7), processor_of(stock, temperature=0.7)
        generator = outlines.Generator(stock, processor=processor)
        drawn = seeded(generator, MONDAY, num_return_sequences=40, **processor.host_options)
        pairs = set(zip(drawn, processor.log_w().round(3), strict=True))
        spell = model.lm.vocabulary.decode
        possible = {(spell(ids).decode(), round(log_p - law.log_mask[ids], 3)) for ids, log_p in law.log_p.items()}
        assert len(pairs) > 1 and pairs <= possible

    def test_a_wrapped_model_runs_it_or_reads_its_language(self, model: PhiTransformers) -> None:
        processor = processor_of(model, phi="onestep", temperature=0.7)
        generator = outlines.Generator(model, processor=processor)
        drawn = [generator(MONDAY, phi="exact"), *generator(MONDAY, num_return_sequences=3, **processor.host_options)]
        assert set(drawn) <= {"yes", "no", "not now", "nobody"} and processor.log_w().shape == (3,)

    def test_numpy_rows(self, model: PhiTransformers) -> None:
        """As llama-cpp-python calls: one-dimensional arrays, one row at a time, the buffer of ids written in place."""
        torch_, numpy_ = (
            processor_of(model, phi="onestep", temperature=0.7, tensor_library_name=name) for name in ("torch", "numpy")
        )
        rng, size, end = np.random.default_rng(0), len(model.lm.vocabulary), model.lm.vocabulary.eos_ids[0]
        buffer, length = np.array([5, 6, 7] + [0] * 37, dtype=np.intc), 3
        while length < 3 + BUDGET and buffer[length - 1] != end:
            logits = rng.normal(size=size).astype(np.float32)
            logits.flags.writeable = False
            ours = numpy_(buffer[:length], logits)
            rows = torch.tensor(buffer[:length].tolist())[None]
            assert isinstance(ours, np.ndarray) and ours.shape == (size,) and ours.dtype == np.float32
            assert np.array_equal(ours, torch_(rows, torch.tensor(logits)[None])[0].numpy())
            buffer[length] = int(ours.argmax())
            length += 1
        assert np.isfinite(numpy_.log_w(buffer[None, :length])).all()
        text = model.lm.vocabulary.decode(buffer[3 : length - 1].tolist()).decode()
        assert text in ("yes", "no", "not now", "nobody")

    def test_half_precision_logits_keep_their_type(self, model: PhiTransformers) -> None:
        out = processor_of(model)(torch.tensor([[5]]), torch.zeros(1, len(model.lm.vocabulary), dtype=torch.bfloat16))
        assert out.dtype == torch.bfloat16


NO_IDS: list[Any] = [["yes", "no"], "yes", [[1, 2], [1]], [], np.ones((1, 2)), torch.zeros(1, 1, 1, dtype=torch.int64)]


class TestWeights:
    def test_memory_is_bounded(self, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(phi_processor, "MAX_STEP_BYTES", 300)
        processor = processor_of(model, CODE, temperature=0.7)
        sequences = run(model, processor, num_return_sequences=20)
        assert len(processor._stepped) <= 2 * 20
        assert np.isfinite(processor.log_w(sequences)).all(), "those of the last two calls are kept"

    def test_sequences_of_another_generation(self, model: PhiTransformers) -> None:
        processor = processor_of(model)
        refused("nothing has been generated", processor.log_w)
        sequences = run(model, processor)
        strange = torch.cat([inputs_of(model.hf_tokenizer, MONDAY)["input_ids"], torch.full((1, 3), 77)], dim=1)
        for rows, words in ((sequences[:, 1:], "these rows have another prompt"), (strange, "not known")):
            refused(words, processor.log_w, rows)
        processor.reset()
        for rows, words in (([sequences], "another prompt"), ([], "nothing has been generated")):
            refused(words, processor.log_w, *rows)

    @pytest.mark.parametrize("sequences", NO_IDS, ids=repr)
    def test_what_is_no_token_ids(self, model: PhiTransformers, sequences: Any) -> None:
        refused(
            "expected the token ids that the loop returned, .* without sequences", processor_of(model).log_w, sequences
        )

    def test_beams_need_the_sequences(self, model: PhiTransformers) -> None:
        processor = processor_of(model, CODE)
        generate(pair(model), MONDAY, logits_processor=[processor], num_beams=3, max_new_tokens=BUDGET)
        refused("Give what the loop returned", processor.log_w)


def test_every_way_to_name_whose_tokens_and_the_language(
    model: PhiTransformers, stock: outlines.models.Transformers
) -> None:
    ways = (
        processor_of(model),
        processor_of(stock),
        processor_of(model.model, tokenizer=model.hf_tokenizer),
        processor_of(model.lm.vocabulary, top_k=0),
    )
    assert {each.table.vocabulary.fingerprint for each in ways} == {model.lm.vocabulary.fingerprint}
    assert processor_of(stock).table is ways[1].table, "compiled once for a model, and kept while it lives"
    assert processor_of(model.hf_tokenizer).table.vocabulary.tokens == model.lm.vocabulary.tokens
    refused("Add tokenizer=tokenizer", processor_of, model.model)
    guide = FSMGuide.from_automaton(compile_regex("yes|no"), model.lm.vocabulary)
    stock_processor = outlines.Generator(stock, Literal["yes", "no"]).logits_processor
    for language in (guide, Table(guide), stock_processor, Literal["yes", "no"]):
        assert one_of(model, run(model, processor_of(model, language))) in ("yes", "no")


NEEDS_MODEL = "custom_generate.* or outlines_phi.Generator.*needs the model"
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"phi": phi}, NEEDS_MODEL) for phi in ("exact", "auto", ExactPhi(tolerance=0.1), "dp", "dp-bigram")),
    ({"phi": None}, "Give phi='local' for plain masking"),
    ({"phi": "nonsense"}, "phi='nonsense' was given"),
    ({"top_p": 0.9}, "custom_generate.* to p \\* h instead of p"),
    ({"min_p": 0.1}, "custom_generate.* to p \\* h instead of p"),
    *(({"max_new_tokens": budget}, "max_new_tokens=.* expected") for budget in (0, -3, 2.5, True, "9", None)),
    *(({"temperature": temperature}, "temperature=") for temperature in (0, -1.0, math.nan, "warm")),
    ({"output_type": None}, "free text has nothing to correct"),
    ({"model": {}}, "A dict was given as model"),
    ({"tensor_library_name": "mlx"}, "expected one of torch, numpy"),
]
ROW = torch.zeros(1, 1280)
LOGITS: list[tuple[torch.Tensor, type[Exception], str]] = [
    (ROW.index_fill(1, torch.tensor(3), math.nan), ModelError, "NaN"),
    (ROW.index_fill(1, torch.tensor(3), math.inf), ModelError, "infinity"),
    (torch.zeros(1, 7), UnsupportedError, "gives 7 logits per token and the guide was built for"),
    (ROW - math.inf, EmptyLanguageError, "Loosen what stands before"),
]


class TestRefusals:
    @pytest.mark.parametrize(("options", "words"), REFUSED, ids=str)
    def test_what_it_cannot_be_made_of(self, model: PhiTransformers, options: dict[str, Any], words: str) -> None:
        given = {"model": model, **options}
        refused(words, processor_of, given.pop("model"), given.pop("output_type", ANSWER), **given)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("top_p", 0.9), ("min_p", 0.1), ("typical_p", 0.5), ("epsilon_cutoff", 1e-3), ("top_h", 0.5)],
    )
    def test_truncation_of_the_generation_config(self, field: str, value: float) -> None:
        hf_model, tokenizer = bundled.load()
        setattr(hf_model.generation_config, field, value)
        refused(f"{field}={value} in the model's generation_config", processor_of, hf_model, tokenizer=tokenizer)
        if field == "top_p":  # a neutral call
            assert processor_of(hf_model, tokenizer=tokenizer, top_p=1.0).host_options["top_p"] == 1.0

    @pytest.mark.parametrize(("of_config", "cut"), [(None, transformers.HOST_TOP_K), (7, 7)])
    def test_top_k_that_nobody_asked_for(self, of_config: int | None, cut: int) -> None:
        """The loop has a top-k of its own; it is not taken over, and not passed over in silence."""
        hf_model, tokenizer = bundled.load()
        hf_model.generation_config.top_k = of_config
        refused(
            f"top_k={cut} likeliest tokens unless it is told otherwise", processor_of, hf_model, tokenizer=tokenizer
        )
        assert processor_of(hf_model, tokenizer=tokenizer, top_k=0).settings.top_k is None
        assert processor_of(hf_model, tokenizer=tokenizer, top_k=cut).settings.top_k == cut

    def test_the_default_of_the_loop_is_as_stated(self, model: PhiTransformers) -> None:
        assert GenerationConfig._get_default_generation_params()["top_k"] == transformers.HOST_TOP_K

    def test_the_temperature_of_the_config_holds(self) -> None:
        hf_model, tokenizer = bundled.load()
        hf_model.generation_config.temperature = 0.6
        assert processor_of(hf_model, tokenizer=tokenizer).settings.temperature == 0.6
        assert processor_of(hf_model, tokenizer=tokenizer, temperature=2.0).settings.temperature == 2.0

    def test_a_budget(self, model: PhiTransformers) -> None:
        refused("max_new_tokens", PhiLogitsProcessor, model, ANSWER, error=TypeError)  # type: ignore[call-arg]
        caught = refused(
            "Give max_new_tokens=2 or more", processor_of, model, max_new_tokens=1, error=EmptyLanguageError
        )
        assert caught.value.least_budget == 2

    @pytest.mark.parametrize(("logits", "error", "words"), LOGITS, ids=[words for _, _, words in LOGITS])
    def test_logits(self, model: PhiTransformers, logits: torch.Tensor, error: type[Exception], words: str) -> None:
        refused(words, processor_of(model), torch.tensor([[5]]), logits, error=error)

    def test_a_row_without_any_mass(self, model: PhiTransformers) -> None:
        """Top-k may leave nothing; the loop would draw from NaN."""
        refused(
            "Loosen top_k=1.*after 0 tokens",
            run,
            model,
            processor_of(model, outlines.types.regex("[@#]{3}"), top_k=1),
            error=EmptyLanguageError,
        )
