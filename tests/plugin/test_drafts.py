"""The values of ``draft=``, their use in a call, and those refused before the model is asked anything."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from typing import Any, Literal
from unittest.mock import Mock

import outlines
import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from outlines_phi import (
    SMC,
    AutoPhi,
    ExactPhi,
    Generator,
    LocalPhi,
    LookaheadPhi,
    OneStepPhi,
    PhiTransformers,
    UnsupportedError,
    from_transformers,
    generate,
)
from outlines_phi.drafting import (
    AdaptedLength,
    EndingDrafter,
    FirstOf,
    ForcedDrafter,
    ModelDrafter,
    PromptLookupDrafter,
)
from outlines_phi.errors import VocabularyError
from outlines_phi.lm import TransformersModel, bundled
from outlines_phi.plugin.drafts import resolve_draft
from outlines_phi.sampling import sampler as prefetch
from tests.loaded import Person
from tests.precision import near

PROMPT = "Person: Nora is a teacher in Paris. JSON: "


@pytest.fixture(scope="module")
def generator(model: PhiTransformers) -> Any:
    return Generator(model, Person)


def small(rows: int = 1280, seed: int = 0) -> Any:
    """Return a small model with random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=rows, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def other_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer with two tokens that have changed places."""
    tokenizer = bundled.load()[1]
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = backend["model"]["vocab"]
    one, two = (next(name for name, id_ in vocabulary.items() if id_ == v) for v in (1000, 1001))
    vocabulary[one], vocabulary[two] = 1001, 1000
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(backend))
    return tokenizer


class TestDrafts:
    @pytest.mark.parametrize("phi", ["local", "exact", "auto", "learned"])
    def test_drafts_save_calls(self, phi: str, fresh: PhiTransformers) -> None:
        generator = Generator(fresh, Person, phi=phi)
        plain = generator.sample(PROMPT, 4, seed=1, draft=[])
        drafted = generator.sample(PROMPT, 4, seed=1, draft=["forced", "prompt_lookup"])
        counts = drafted.counts
        assert 0 < counts.followed <= counts.drafted
        assert counts.tokens_per_call > 2 and counts.calls < 0.7 * plain.counts.calls
        assert f"{counts.tokens_per_call:.3g} tokens per call" in repr(drafted)
        assert plain.counts.tokens_per_call == 1 and "tokens per call" not in repr(plain)

    @pytest.mark.parametrize("phi", ["exact", "auto"])
    def test_draws_of_a_seed_do_not_depend_on_the_batch(
        self, phi: str, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor where memory has no room for the drafts of all prompts: what a tree knows decides which coins are thrown."""
        monkeypatch.setattr(prefetch, "AT_ONCE", 32 * len(model.lm.vocabulary))
        generator, prompts = Generator(model, Person, phi=phi), [PROMPT] * 17
        together = generator.sample_batch(prompts, 1, seed=list(range(17)))
        alone = [generator.sample(PROMPT, 1, seed=seed) for seed in range(17)]
        assert [draws[0].token_ids for draws in together] == [draws[0].token_ids for draws in alone]

    def test_forced_text_is_guessed_behind_the_end_of_a_value_too(self, generator: Any) -> None:
        """After everything else: a list that begins with a guess would never come to what it knows."""
        at_once, both = (
            generator.sample(PROMPT, 8, phi="local", seed=1, draft=draft) for draft in (ForcedDrafter(), "forced")
        )
        assert both.texts == at_once.texts and both.counts.tokens_per_call > 1.2 * at_once.counts.tokens_per_call
        guessing = ["forced", ["forced", "tree"], ["prompt_lookup", "forced", "forced"]]
        others = [ForcedDrafter(), ["prompt_lookup", ForcedDrafter()], ["forced", EndingDrafter()]]
        guesses = [resolve_draft(given).guesses for given in guessing + others]  # type: ignore[union-attr]
        assert guesses == [(EndingDrafter(),)] * 3 + [()] * 3
        assert not any("ending" in resolve_draft(given).names for given in guessing)  # type: ignore[union-attr]

    def test_a_length_bounds_a_draft(self, generator: Any) -> None:
        one = generator.sample(PROMPT, 1, phi="local", seed=1, draft="forced", draft_length=1).counts
        many = generator.sample(PROMPT, 1, phi="local", seed=1, draft="forced").counts
        assert one.drafted <= one.turns and many.tokens_per_call > one.tokens_per_call > 1

    def test_several_are_asked_in_turn(self, model: PhiTransformers) -> None:
        """And a model draws for walks alone."""

        def drafter(draft: Any, phi: Any) -> Any:
            options = resolve_draft(draft)
            assert options is not None
            return model.drafts.drafter(options, phi)

        given = ForcedDrafter(), AdaptedLength(PromptLookupDrafter()), AdaptedLength(PromptLookupDrafter(2))
        found = drafter(["forced", "prompt_lookup", given[2]], LocalPhi())
        assert found == FirstOf((*given, AdaptedLength(EndingDrafter())))
        assert drafter("prompt_lookup", ExactPhi()) == AdaptedLength(PromptLookupDrafter())
        assert drafter(ForcedDrafter(), ExactPhi()) == ForcedDrafter()
        phis = LocalPhi(), OneStepPhi(), ExactPhi(), AutoPhi(), LookaheadPhi()
        assert [drafter(model, phi).sampled for phi in phis] == [True, True, False, False, False]


class TestCallsAndGenerators:
    def test_a_call_replaces_what_the_generator_has(self, model: PhiTransformers) -> None:
        generator = Generator(model, Person, phi="local", draft="forced", draft_length=2)
        own = generator.sample(PROMPT, 1, seed=1).counts
        assert 0 < own.drafted <= 2 * own.turns
        assert generator.sample(PROMPT, 1, seed=1, draft_length=8).counts.turns < own.turns
        assert generator.sample(PROMPT, 1, seed=1, draft=[]).counts.turns == 0
        assert generator.sample(PROMPT, 1, seed=1, draft="tree").counts.drafted == 0

    def test_its_drafts_are_for_draws_alone(self, model: PhiTransformers) -> None:
        answer = Literal["yes", "no", "not now"]
        drafting = Generator(model, answer, draft="forced")
        plain = Generator(model, answer)
        question = "Question: is the bakery open on Sunday? Answer: "
        assert drafting(question, do_sample=False) == plain(question, do_sample=False)
        assert drafting.mode(question).texts == plain.mode(question).texts
        assert drafting.probabilities(question)["yes"].p == near(plain.probabilities(question)["yes"].p)

    def test_a_constraint_goes_with_a_tree(self, model: PhiTransformers) -> None:
        generator = Generator(model, Person, phi="exact", draft="forced")
        draws = generator.sample(PROMPT, 5, seed=0, constraint=lambda text: "4" not in text)
        assert len(draws) == 5 and not any("4" in text for text in draws.texts)
        spelled = generator.sample(PROMPT, 5, seed=0, tokenization="canonical")
        assert all(model.hf_tokenizer.encode(draw.text) == list(draw.token_ids[:-1]) for draw in spelled)


class TestModels:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: small(),
            lambda: small(1300),
            lambda: outlines.from_transformers(small(), bundled.load()[1]),
            lambda: from_transformers(small(), bundled.load()[1]),
            lambda: TransformersModel.with_tokenizer(small(), bundled.load()[1]),
            lambda: ModelDrafter(TransformersModel.with_tokenizer(small(), bundled.load()[1]), greedy=True),
        ],
    )
    def test_whatever_loads_them(self, make: Callable[[], Any], generator: Any) -> None:
        draws = generator.sample(PROMPT, 3, phi="local", seed=1, draft=["forced", make()])
        assert len(draws) == 3 and draws.counts.drafted > draws.counts.followed > 0

    def test_models_are_read_once_and_not_kept_alive(self, fresh: PhiTransformers) -> None:
        drafting = small()
        one, other = (fresh.drafts.drafter(resolve_draft(drafting), LocalPhi()) for _ in range(2))
        assert one == other != fresh.drafts.drafter(resolve_draft(small()), LocalPhi())
        Generator(fresh, Person, phi="local")(PROMPT, draft=drafting, seed=1)
        gone = weakref.ref(drafting)
        del drafting, one, other
        gc.collect()
        assert gone() is None

    def test_a_generator_holds_its_own(self, fresh: PhiTransformers) -> None:
        """And a model that drafts for itself is nearly always right."""
        generator = Generator(fresh, Person, phi="local", draft=bundled.load()[0])
        gc.collect()
        assert generator.sample(PROMPT, 10, seed=1).counts.draft_acceptance > 0.99


@pytest.fixture(scope="module")
def probed() -> PhiTransformers:
    """A model whose road is known, so that nothing is left to ask it."""
    model = from_transformers(*bundled.load())
    assert model.lm.road == "packed"
    return model


@pytest.fixture
def silent(probed: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> PhiTransformers:
    """A model that must not be asked."""
    monkeypatch.setattr(type(probed.model), "forward", Mock(side_effect=AssertionError("the model was asked")))
    return probed


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelled name": ({"draft": "force"}, r"did you mean 'forced'\?\); expected 'forced'"),
    "another spelling": ({"draft": "Prompt-Lookup"}, r"did you mean 'prompt_lookup'\?"),
    "an unknown name": ({"draft": "xyzzy"}, "draft='xyzzy' was given; expected 'forced', 'prompt_lookup'"),
    "one of a list": ({"draft": ["forced", "look up"]}, "draft='look up'"),
    "a class": ({"draft": ForcedDrafter}, r"did you mean ForcedDrafter\(\)\?"),
    "a class of models": ({"draft": Qwen3ForCausalLM}, "a class: load a model"),
    "a number": ({"draft": 5}, "draft=5 was given; expected"),
    "True": ({"draft": True}, "draft=True was given; expected"),
    "a length of nothing": ({"draft": [], "draft_length": 3}, "Leave draft_length out"),
    "no length": ({"draft": "forced", "draft_length": 0}, "draft length of 0 .* at least 1"),
    "a negative length": ({"draft": "forced", "draft_length": -3}, "draft length of -3"),
    "a fraction": ({"draft": "forced", "draft_length": 2.5}, "draft length of 2.5"),
    "a truth value": ({"draft": "forced", "draft_length": True}, "draft length of True"),
    "a length alone": ({"draft_length": 4}, "Give draft='forced' beside draft_length=4"),
    "particles": ({"draft": "forced", "phi": "local", "sampler": SMC(particles=3)}, "with sampler=SMC"),
    "a constraint": ({"draft": "forced", "phi": "local", "constraint": lambda text: True}, "beside a draft;"),
    "a tokenization": ({"draft": "forced", "phi": "onestep", "tokenization": "canonical"}, "beside a draft;"),
    "no correction": ({"draft": "forced", "phi": None}, "draft= was given without phi="),
    "a search": ({"draft": "forced", "phi": "exact", "do_sample": False}, "draft= was given with do_sample=False"),
    "a model with fewer rows": ({"draft": small(1200), "phi": "local"}, r"has no row for 80 tokens .*: 1200 \(b"),
}
IN_STREAMS = {"a search": "do_sample=False was given for a stream"}
IN_STREAMS |= dict.fromkeys(("a constraint", "a tokenization"), "under a step estimator or a look-ahead")
CALLS: dict[str, Callable[[PhiTransformers, dict[str, Any]], object]] = {
    "call": lambda model, options: model(PROMPT, Person, **{"phi": "exact", **options}),
    "batch": lambda model, options: model.batch([PROMPT], Person, **{"phi": "exact", **options}),
    "stream": lambda model, options: list(model.stream(PROMPT, Person, **{"phi": "exact", **options})),
    "generator": lambda model, options: Generator(model, Person)(PROMPT, **options),
}


@pytest.mark.parametrize("door", CALLS)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_before_the_model_is_asked(name: str, door: str, silent: PhiTransformers) -> None:
    options, words = WRONG[name]
    with pytest.raises(
        (UnsupportedError, VocabularyError), match=IN_STREAMS.get(name, words) if door == "stream" else words
    ):
        CALLS[door](silent, options)


def recurrent() -> Any:
    """A model whose token trees cannot be packed."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 1280, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}
    config = MambaConfig(eos_token_id=0, pad_token_id=1, **sizes)
    return from_transformers(MambaForCausalLM(config).eval(), bundled.load()[1])


def strange() -> Any:
    """A model whose tokenizer is another one."""
    return outlines.from_transformers(small(), other_tokenizer())


ELSEWHERE: list[tuple[Callable[[PhiTransformers], Any], str]] = [
    (lambda m: m(PROMPT, Person, draft="forced"), "phi='local' beside draft="),
    (lambda m: generate.text(m, draft="prompt_lookup"), "phi='local' beside draft="),
    (lambda m: Generator(m, Person, draft=strange()), "writes 2 tokens otherwise .*: 1000 as b"),
    (lambda m: Generator(m, Person)(PROMPT, draft=["forced", strange()]), "writes 2 tokens otherwise"),
    (
        lambda m: Generator(recurrent(), Literal["yes", "no"], draft="forced"),
        "draft='forced' was given for a model whose token trees cannot be packed",
    ),
    (lambda m: Generator(m, Person).mode(PROMPT, draft="forced"), r"Leave draft out of mode\(\)"),
    (lambda m: Generator(m, Person).audit(PROMPT, 2, draft="forced"), "Leave draft= out of an audit"),
]


@pytest.mark.parametrize(("call", "words"), ELSEWHERE, ids=[words for _, words in ELSEWHERE])
def test_and_elsewhere(call: Callable[[PhiTransformers], Any], words: str, silent: PhiTransformers) -> None:
    with pytest.raises((UnsupportedError, VocabularyError), match=words):
        call(silent)
