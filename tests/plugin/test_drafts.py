"""The values of ``draft=``, their use in a call, and those refused before the model is asked anything."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import outlines
import pytest
import torch
from pydantic import BaseModel, Field
from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import outlines_phi
from outlines_phi import (
    SMC,
    BannedPhrases,
    ExactPhi,
    LocalPhi,
    PhiTransformers,
    UnsupportedError,
    generate,
    samplers,
)
from outlines_phi.drafting import (
    AdaptedLength,
    Draft,
    Drafter,
    Drafting,
    DraftRun,
    EndingDrafter,
    FirstOf,
    ForcedDrafter,
    ModelDrafter,
    PromptLookupDrafter,
    Site,
)
from outlines_phi.errors import DraftError, VocabularyError
from outlines_phi.lm import TransformersModel, bundled
from outlines_phi.plugin.drafts import resolve_draft
from outlines_phi.sampling import prefetch
from tests.precision import near, near_log

PROMPT = "Person: Nora is a teacher in Paris. JSON: "
NAMES = ["forced", "prompt_lookup", "tree"]


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)


@pytest.fixture(scope="module")
def generator(model: PhiTransformers) -> Any:
    return outlines_phi.Generator(model, Person)


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
    @pytest.mark.in_turn
    @pytest.mark.parametrize("phi", ["local", "onestep"])
    @pytest.mark.parametrize(
        "draft", [None, *NAMES, NAMES, ForcedDrafter(), EndingDrafter(), [PromptLookupDrafter(ngram=2), "forced"]]
    )
    def test_a_deterministic_draft_changes_no_token_of_a_walk(self, phi: str, draft: Any, generator: Any) -> None:
        plain = generator.sample(PROMPT, 5, phi=phi, seed=1, draft=[])
        drafted = generator.sample(PROMPT, 5, phi=phi, seed=1, draft=draft)
        assert [draw.token_ids for draw in drafted] == [draw.token_ids for draw in plain]
        assert drafted.log_w == near_log(plain.log_w)
        assert plain.counts.turns == 0 and drafted.counts.turns > 0

    @pytest.mark.parametrize("phi", ["local", "exact", "auto", "learned"])
    def test_drafts_save_calls(self, phi: str, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, Person, phi=phi)
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
        generator, prompts = outlines_phi.Generator(model, Person, phi=phi), [PROMPT] * 17
        together = generator.sample_batch(prompts, 1, seed=list(range(17)))
        alone = [generator.sample(PROMPT, 1, seed=seed) for seed in range(17)]
        assert [draws[0].token_ids for draws in together] == [draws[0].token_ids for draws in alone]

    def test_forced_text_is_guessed_behind_the_end_of_a_value_too(self, generator: Any) -> None:
        """After everything else: a list that begins with a guess would never come to what it knows."""
        at_once = generator.sample(PROMPT, 8, phi="local", seed=1, draft=ForcedDrafter())
        both = generator.sample(PROMPT, 8, phi="local", seed=1, draft="forced")
        assert both.texts == at_once.texts and both.counts.tokens_per_call > 1.2 * at_once.counts.tokens_per_call
        for given in ("forced", ["forced", "tree"], ["prompt_lookup", "forced", "forced"]):
            options = resolve_draft(given)
            assert options is not None and options.guesses == (EndingDrafter(),) and "ending" not in options.names
        for given in (ForcedDrafter(), ["prompt_lookup", ForcedDrafter()], ["forced", EndingDrafter()]):
            options = resolve_draft(given)
            assert options is not None and options.guesses == ()

    def test_a_length_bounds_a_draft(self, generator: Any) -> None:
        one = generator.sample(PROMPT, 1, phi="local", seed=1, draft="forced", draft_length=1).counts
        many = generator.sample(PROMPT, 1, phi="local", seed=1, draft="forced").counts
        assert one.drafted <= one.turns and many.tokens_per_call > one.tokens_per_call > 1

    def test_the_tree_of_earlier_calls(self) -> None:
        """Laws that were given up for want of memory: their paths are still known."""
        model = outlines_phi.from_transformers(*bundled.load(), max_tree_bytes=2**16)
        generator = outlines_phi.Generator(model, Person, phi="exact", draft="tree")
        torch.manual_seed(0)
        generator.sample(PROMPT, 5)
        assert generator.sample(PROMPT, 50).counts.followed > 0

    def test_several_are_asked_in_turn(self, model: PhiTransformers) -> None:
        options = resolve_draft(["forced", "prompt_lookup", AdaptedLength(PromptLookupDrafter(2), 0.5)])
        assert options is not None
        found = model.drafts.drafter(options, LocalPhi())
        given = ForcedDrafter(), AdaptedLength(PromptLookupDrafter()), AdaptedLength(PromptLookupDrafter(2), 0.5)
        assert found == FirstOf((*given, AdaptedLength(EndingDrafter())))
        alone = resolve_draft("prompt_lookup")
        assert alone is not None and model.drafts.drafter(alone, ExactPhi()) == AdaptedLength(PromptLookupDrafter())
        certain = resolve_draft(ForcedDrafter())
        assert certain is not None and model.drafts.drafter(certain, ExactPhi()) == ForcedDrafter()

    def test_a_model_draws_for_walks_alone(self, model: PhiTransformers) -> None:
        options = resolve_draft(model)
        assert options is not None
        phis = LocalPhi(), outlines_phi.OneStepPhi(), ExactPhi(), outlines_phi.AutoPhi(), outlines_phi.LookaheadPhi()
        assert [model.drafts.drafter(options, phi).sampled for phi in phis] == [True, True, False, False, False]


class TestCallsAndGenerators:
    def test_a_call_replaces_what_the_generator_has(self, model: PhiTransformers) -> None:
        generator = outlines_phi.Generator(model, Person, phi="local", draft="forced", draft_length=2)
        own = generator.sample(PROMPT, 1, seed=1).counts
        assert 0 < own.drafted <= 2 * own.turns
        assert generator.sample(PROMPT, 1, seed=1, draft_length=8).counts.turns < own.turns
        assert generator.sample(PROMPT, 1, seed=1, draft=[]).counts.turns == 0
        assert generator.sample(PROMPT, 1, seed=1, draft="tree").counts.drafted == 0

    def test_its_drafts_are_for_draws_alone(self, model: PhiTransformers) -> None:
        answer = Literal["yes", "no", "not now"]
        drafting = outlines_phi.Generator(model, answer, draft="forced")
        plain = outlines_phi.Generator(model, answer)
        question = "Question: is the bakery open on Sunday? Answer: "
        assert drafting(question, do_sample=False) == plain(question, do_sample=False)
        assert drafting.mode(question).texts == plain.mode(question).texts
        assert drafting.probabilities(question)["yes"].p == near(plain.probabilities(question)["yes"].p)

    @pytest.mark.in_turn
    @pytest.mark.parametrize("phi", ["local", "onestep", "learned", "exact", "auto"])
    @pytest.mark.parametrize("draft", ["forced", "tree", "model"])
    def test_a_stream_is_its_call(self, phi: str, draft: Any, fresh: PhiTransformers) -> None:
        draft = small() if draft == "model" else draft
        generator = outlines_phi.Generator(fresh, Person, phi=phi, draft=draft)
        pieces = list(generator.stream(PROMPT, seed=4))
        assert "".join(pieces) == generator(PROMPT, seed=4) and len(pieces) > 1

    def test_a_stream_of_a_look_ahead_is_its_call(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, None, banned_phrases=["Nora"], draft="prompt_lookup")
        options = {"seed": 4, "max_new_tokens": 30}
        assert "".join(generator.stream(PROMPT, **options)) == generator(PROMPT, **options)

    def test_the_classic_api(self, model: PhiTransformers) -> None:
        plain = generate.json(model, Person, samplers.multinomial(3), phi="local")(PROMPT, seed=1)
        drafted = generate.json(model, Person, samplers.multinomial(3), phi="local", draft="forced", draft_length=3)
        assert drafted(PROMPT, seed=1) == plain
        assert generate.regex(model, "[0-9]{4}-[0-9]{2}", phi="local", draft="forced")(PROMPT, draft=None)
        assert generate.choice(model, ["yes", "no"], draft="forced")(PROMPT, draft="tree") in ("yes", "no")
        assert isinstance(generate.format(model, int, draft="forced")(PROMPT), int)

    def test_a_constraint_goes_with_a_tree(self, model: PhiTransformers) -> None:
        generator = outlines_phi.Generator(
            model, Person, phi="exact", draft="forced", constraint=lambda text: "4" not in text
        )
        draws = generator.sample(PROMPT, 5, seed=0)
        assert len(draws) == 5 and not any("4" in text for text in draws.texts)
        tokenizer = model.hf_tokenizer
        for draw in outlines_phi.Generator(model, Person, phi="exact", draft="forced", tokenization="canonical").sample(
            PROMPT, 5, seed=0
        ):
            assert tokenizer.encode(draw.text) == list(draw.token_ids[:-1])


class TestModels:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: small(),
            lambda: small(1300),
            lambda: outlines.from_transformers(small(), bundled.load()[1]),
            lambda: outlines_phi.from_transformers(small(), bundled.load()[1]),
            lambda: TransformersModel.with_tokenizer(small(), bundled.load()[1]),
            lambda: ModelDrafter(TransformersModel.with_tokenizer(small(), bundled.load()[1]), greedy=True),
        ],
    )
    def test_whatever_loads_them(self, make: Callable[[], Any], generator: Any) -> None:
        draws = generator.sample(PROMPT, 3, phi="local", seed=1, draft=["forced", make()])
        assert len(draws) == 3 and draws.counts.drafted > draws.counts.followed > 0

    def test_a_model_that_drafts_for_itself_is_nearly_always_right(self, generator: Any) -> None:
        counts = generator.sample(PROMPT, 10, phi="local", seed=1, draft=bundled.load()[0]).counts
        assert counts.draft_acceptance > 0.99

    def test_models_are_read_once_and_not_kept_alive(self, fresh: PhiTransformers) -> None:
        generator, drafting = outlines_phi.Generator(fresh, Person, phi="local"), small()
        generator(PROMPT, draft=drafting, seed=1)
        (read,) = fresh.drafts._models.values()
        generator(PROMPT, draft=drafting, seed=2)
        assert list(fresh.drafts._models.values()) == [read]
        gone = weakref.ref(drafting)
        del drafting, read
        gc.collect()
        assert gone() is None and not len(fresh.drafts._models)

    def test_a_generator_holds_its_own(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, Person, phi="local", draft=small())
        gc.collect()
        assert generator.sample(PROMPT, 1).counts.drafted


class Broken(Drafter, Drafting):
    """Raises, or proposes what is no draft."""

    name: ClassVar[str] = "broken"

    def __init__(self, answer: Callable[[], Draft]) -> None:
        self.answer = answer

    def begin(self, run: DraftRun) -> Drafting:
        return self

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [self.answer() for _ in sites]


@pytest.fixture(scope="module")
def probed() -> PhiTransformers:
    """A model whose road is known, so that nothing is left to ask it."""
    model = outlines_phi.from_transformers(*bundled.load())
    assert model.lm.road == "packed"
    return model


@pytest.fixture
def silent(probed: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> PhiTransformers:
    """A model that must not be asked."""

    def forward(*args: Any, **keywords: Any) -> None:
        raise AssertionError("the model was asked")

    monkeypatch.setattr(type(probed.model), "forward", forward)
    return probed


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelled name": (
        {"draft": "force"},
        r"draft='force' was given \(did you mean 'forced'\?\); expected 'forced'",
    ),
    "another spelling": ({"draft": "Prompt-Lookup"}, r"did you mean 'prompt_lookup'\?"),
    "an unknown name": ({"draft": "xyzzy"}, r"draft='xyzzy' was given; expected 'forced', 'prompt_lookup'"),
    "one of a list": ({"draft": ["forced", "look up"]}, r"draft='look up' was given"),
    "a class": ({"draft": ForcedDrafter}, r"a class \(did you mean ForcedDrafter\(\)\?\)"),
    "a class of models": ({"draft": Qwen3ForCausalLM}, r"a class: load a model"),
    "a number": ({"draft": 5}, r"draft=5 was given; expected"),
    "True": ({"draft": True}, r"draft=True was given; expected"),
    "a length of nothing": ({"draft": [], "draft_length": 3}, r"Leave draft_length out"),
    "no length": ({"draft": "forced", "draft_length": 0}, r"draft length of 0 .* at least 1"),
    "a negative length": ({"draft": "forced", "draft_length": -3}, r"draft length of -3"),
    "a fraction": ({"draft": "forced", "draft_length": 2.5}, r"draft length of 2.5"),
    "a truth value": ({"draft": "forced", "draft_length": True}, r"draft length of True"),
    "a length alone": ({"draft_length": 4}, r"Give draft='forced' beside draft_length=4"),
    "particles": (
        {"draft": "forced", "phi": "local", "sampler": SMC(particles=3)},
        r"A draft was given with sampler=SMC",
    ),
    "a constraint": (
        {"draft": "forced", "phi": "local", "constraint": lambda text: True},
        r"given beside a draft;",
    ),
    "a tokenization": (
        {"draft": "forced", "phi": "onestep", "tokenization": "canonical"},
        r"tokenization='canonical' was given beside a draft;",
    ),
    "no correction": (
        {"draft": "forced", "phi": None},
        "draft= was given without phi=",
    ),
    "a search": ({"draft": "forced", "phi": "exact", "do_sample": False}, r"draft= was given with do_sample=False"),
    "a model with fewer rows": ({"draft": small(1200), "phi": "local"}, r"has no row for 80 tokens .*: 1200 \(b"),
}
IN_STREAMS = {
    WRONG["a search"][1]: "do_sample=False was given for a stream",
    WRONG["a constraint"][1]: "under a step estimator or a look-ahead",
    WRONG["a tokenization"][1]: "under a step estimator or a look-ahead",
}
CALLS: dict[str, Callable[[PhiTransformers, dict[str, Any]], object]] = {
    "call": lambda model, options: model(PROMPT, Person, **{"phi": "exact", **options}),
    "batch": lambda model, options: model.batch([PROMPT], Person, **{"phi": "exact", **options}),
    "stream": lambda model, options: list(model.stream(PROMPT, Person, **{"phi": "exact", **options})),
    "generator": lambda model, options: outlines_phi.Generator(model, Person)(PROMPT, **options),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_before_the_model_is_asked(
    options: dict[str, Any], message: str, call: Callable[..., object], silent: PhiTransformers
) -> None:
    if call is CALLS["stream"]:
        message = IN_STREAMS.get(message, message)
    with pytest.raises((UnsupportedError, VocabularyError), match=message):
        call(silent, options)


MADE = [name for name in WRONG if name not in ("particles", "a chain", "a constraint", "a tokenization", "a search")]


@pytest.mark.parametrize("name", MADE)
def test_and_when_a_generator_is_made(name: str, silent: PhiTransformers) -> None:
    options, message = WRONG[name]
    with pytest.raises((UnsupportedError, VocabularyError), match=message):
        outlines_phi.Generator(silent, Person, **options)
    with pytest.raises((UnsupportedError, VocabularyError), match=message):
        generate.json(silent, Person, **options)


class TestRefused:
    def test_without_phi_a_call_is_plain_outlines(self, silent: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="phi='local' beside draft="):
            silent(PROMPT, Person, draft="forced")
        with pytest.raises(UnsupportedError, match="phi='local' beside draft="):
            generate.text(silent, draft="prompt_lookup")

    def test_other_tokens(self, silent: PhiTransformers) -> None:
        drafting = outlines.from_transformers(small(), other_tokenizer())
        with pytest.raises(VocabularyError, match=r"writes 2 tokens otherwise .*: 1000 as b"):
            outlines_phi.Generator(silent, Person, draft=drafting)
        with pytest.raises(VocabularyError, match=r"writes 2 tokens otherwise"):
            outlines_phi.Generator(silent, Person)(PROMPT, draft=["forced", drafting])

    def test_a_model_on_a_fall_back_road(self) -> None:
        torch.manual_seed(0)
        config = MambaConfig(
            vocab_size=1280, hidden_size=32, num_hidden_layers=1, state_size=4, eos_token_id=0, pad_token_id=1
        )
        recurrent = outlines_phi.from_transformers(MambaForCausalLM(config).eval(), bundled.load()[1])
        with pytest.raises(
            UnsupportedError, match=r"draft='forced' was given for a model whose token trees cannot be packed"
        ):
            outlines_phi.Generator(recurrent, Literal["yes", "no"], draft="forced")

    def test_searches_and_audits_draw_nothing_of_the_kind(self, generator: Any) -> None:
        with pytest.raises(UnsupportedError, match=r"Leave draft out of mode\(\)"):
            generator.mode(PROMPT, draft="forced")
        with pytest.raises(UnsupportedError, match="Leave draft= out of an audit"):
            generator.audit(PROMPT, 2, draft="forced")

    @pytest.mark.parametrize("phi", ["local", "exact", "auto"])
    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (lambda: 1 / 0, "raised ZeroDivisionError in propose"),
            (lambda: Draft((5000,)), "proposed the token 5000; expected ids of the vocabulary, 0 to 1279"),
            (lambda: (1, 2), "expected a Draft"),
            (lambda: Draft((5,), torch.zeros(1, 1280)), "set sampled = True"),
        ],
    )
    def test_a_broken_drafter(self, phi: str, answer: Any, message: str, generator: Any) -> None:
        with pytest.raises(DraftError, match=message):
            generator.sample(PROMPT, 2, phi=phi, seed=1, draft=Broken(answer))
        assert generator.sample(PROMPT, 2, phi=phi, seed=1).texts, "the next call is not troubled"

    def test_dead_tokens_only_slow_things_down(self, generator: Any) -> None:
        dead = Broken(lambda: Draft((7, 7, 7)))
        plain, drafted = (generator.sample(PROMPT, 3, phi="local", seed=1, draft=draft) for draft in ([], dead))
        assert drafted.texts == plain.texts and drafted.counts.followed == 0

    def test_installed_without_phi(self, stock: outlines.models.Transformers) -> None:
        outlines_phi.install()
        try:
            with pytest.raises(UnsupportedError, match="draft cannot be used here.* Give phi='auto'"):
                outlines.Generator(stock, Person, draft="forced")
        finally:
            outlines_phi.uninstall()

    def test_levels_of_a_ban_go_with_drafts(self, model: PhiTransformers) -> None:
        for level in ("mask", "lookahead", "weighted", "exact"):
            ban = BannedPhrases(["it is"], level=level)
            generator = outlines_phi.Generator(model, None, banned_phrases=ban, draft="prompt_lookup")
            draws = generator.sample("Answer: ", 3, max_new_tokens=12, seed=1)
            assert len(draws) == 3 and draws.counts.turns, level
