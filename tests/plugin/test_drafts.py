"""``phi=``, ``sampler=`` and ``draft=`` at every door: their values, their use in a call, and those refused."""

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal
from unittest.mock import Mock

import outlines
import pytest
import torch
from outlines.types import Regex
from pydantic import BaseModel
from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import outlines_phi
from benchmarks.estimators.dp_frozen import FrozenDPPhi
from outlines_phi import (
    SMC,
    AutoPhi,
    BigramDPPhi,
    Draws,
    ExactPhi,
    FieldsPhi,
    Generator,
    Guarantee,
    LocalPhi,
    LookaheadPhi,
    OneStepPhi,
    PhiLogitsProcessor,
    PhiTransformers,
    UnsupportedError,
    from_transformers,
)
from outlines_phi import generate as classic
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
from outlines_phi_workbench.suite.reference import Reference
from tests.inner import Phi, resolve_draft, resolve_phi
from tests.inner import sampler as prefetch
from tests.loaded import Person
from tests.plugin.instruments import ANSWER, MONDAY, SUNDAY, custom, generate, pair, reference, seeded, written
from tests.precision import near, near_log
from tests.refusals import refusals, refused

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
        drafting, plain = Generator(model, answer, draft="forced"), Generator(model, answer)
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
    refused(
        IN_STREAMS.get(name, words) if door == "stream" else words,
        CALLS[door],
        silent,
        options,
        error=(UnsupportedError, VocabularyError),
    )


def recurrent() -> Any:
    """A model whose token trees cannot be packed."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 1280, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}
    config = MambaConfig(eos_token_id=0, pad_token_id=1, **sizes)
    return from_transformers(MambaForCausalLM(config).eval(), bundled.load()[1])


def strange() -> Any:
    """A model whose tokenizer is another one."""
    return outlines.from_transformers(small(), other_tokenizer())


test_and_elsewhere = refusals(
    [
        (lambda m: m(PROMPT, Person, draft="forced"), "phi='local' beside draft="),
        (lambda m: classic.text(m, draft="prompt_lookup"), "phi='local' beside draft="),
        (lambda m: Generator(m, Person, draft=strange()), "writes 2 tokens otherwise .*: 1000 as b"),
        (lambda m: Generator(m, Person)(PROMPT, draft=["forced", strange()]), "writes 2 tokens otherwise"),
        (
            lambda m: Generator(recurrent(), Literal["yes", "no"], draft="forced"),
            "draft='forced' was given for a model whose token trees cannot be packed",
        ),
        (lambda m: Generator(m, Person).mode(PROMPT, draft="forced"), r"Leave draft out of mode\(\)"),
        (lambda m: Generator(m, Person).audit(PROMPT, 2, draft="forced"), "Leave draft= out of an audit"),
    ],
    fixture="silent",
    error=(UnsupportedError, VocabularyError),
)

TEXTS = {"yes", "no", "not now", "nobody"}
BUDGET, N = 12, 400

NAMES: dict[str, Phi] = {"dp": BigramDPPhi(), "dp-bigram": BigramDPPhi()}
GIVEN: list[tuple[str | Phi, Phi]] = [*NAMES.items(), (FrozenDPPhi(), FrozenDPPhi())]
"""The arguments of calls, and the estimator that each means: names, and one of the application's own."""

given = pytest.mark.parametrize(("phi", "meant"), GIVEN, ids=[*NAMES, "own"])


def law_of(model: PhiTransformers, phi: Phi, **options: Any) -> Reference:
    return reference(model, ANSWER, MONDAY, BUDGET, estimators={phi.name: phi}, **options)


def agree(ids: Iterable[tuple[int, ...]], log_w: Iterable[float], phi: Phi, reference: Reference) -> bool:
    """Return True if every draw is a member with the weight ``p / q`` that the enumeration has for it."""
    weights = dict(zip(ids, log_w, strict=True))
    assert set(weights) <= set(reference.log_p)
    expected = {ids: reference.log_p[ids] - reference.log_q[phi.name][ids] for ids in weights}
    return all(abs(weights[ids] - expected[ids]) < 2e-3 for ids in weights)


@given
def test_a_generator_draws_with_weights(phi: str | Phi, meant: Phi, model: PhiTransformers) -> None:
    """Also beside prompts that are padded or make it padded."""
    assert resolve_phi(phi) == meant
    generator, law = outlines_phi.Generator(model, ANSWER, phi=phi), law_of(model, meant)
    alone = generator.sample(MONDAY, n=N, seed=1, max_new_tokens=BUDGET)
    _, padded, _ = generator.sample_batch(["no", MONDAY, MONDAY + MONDAY], N, seed=4, max_new_tokens=BUDGET)
    for draws in (alone, padded):
        assert set(draws.texts) <= TEXTS and draws.guarantee is Guarantee.WEIGHTED
        assert agree((draw.token_ids for draw in draws), draws.log_w, meant, law)
    assert generator(MONDAY, seed=2, max_new_tokens=BUDGET) in TEXTS
    assert "".join(generator.stream(MONDAY, seed=2, max_new_tokens=BUDGET)) in TEXTS


@given
def test_custom_generate_takes_it(phi: str | Phi, meant: Phi, model: PhiTransformers) -> None:
    options = {"output_type": ANSWER, "temperature": 0.7, "max_new_tokens": BUDGET, "num_return_sequences": N}
    result = custom(pair(model), MONDAY, phi=phi, seed=3, return_dict_in_generate=True, **options)
    (draws,) = result.draws
    assert result.log_w.tolist() == near_log(draws.log_w.tolist())
    assert agree((draw.token_ids for draw in draws), draws.log_w, meant, law_of(model, meant, temperature=0.7))


def test_a_logits_processor_runs_an_estimator_of_the_application(model: PhiTransformers) -> None:
    phi, hf = FrozenDPPhi(horizon=3, states=10), pair(model)
    processor = PhiLogitsProcessor(model, ANSWER, phi=phi, temperature=0.7, max_new_tokens=BUDGET)
    options = processor.host_options | {"num_return_sequences": N, "logits_processor": [processor]}
    sequences = seeded(generate, hf, MONDAY, **options)
    ids, law = written(hf, sequences, MONDAY), law_of(model, processor.phi, temperature=0.7)
    assert len(set(ids)) > 1 and agree(ids, processor.log_w(sequences), processor.phi, law)


PERSON = "Person: Nora is a teacher. JSON: "
GROUPS = Regex(r"(?P<name>[a-z]{1,4}) (?P<age>\d{1,3})")


class Drawn(BaseModel):
    name: str
    age: int
    city: Literal["Paris", "Rome", "Lisbon"]


def test_a_stream_keeps_the_model_alive_that_nobody_else_holds() -> None:
    def pieces() -> Iterator[str]:
        return outlines_phi.from_transformers(*bundled.load()).stream(PERSON, Drawn, phi="fields", max_new_tokens=60)

    assert json.loads("".join(pieces()))


def test_forced_text_is_drafted_and_changes_no_draw(model: PhiTransformers) -> None:
    draws = Generator(model, Drawn, phi="fields").sample(PERSON, 4, seed=5, max_new_tokens=60)
    assert draws.counts.followed > 0
    lookup = Generator(model, Drawn, phi="fields", draft="prompt_lookup").sample(PERSON, 4, seed=5, max_new_tokens=60)
    assert lookup.texts == draws.texts


def test_weights_come_where_they_are_asked_for(model: PhiTransformers) -> None:
    draws = Generator(model, Drawn).sample(PERSON, 4, phi=FieldsPhi(weights=True), seed=1, max_new_tokens=60)
    assert {draw.guarantee for draw in draws} == {Guarantee.WEIGHTED} and draws.log_z < 0


@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
def test_truncation_is_left_to_candidates_by_auto(model: PhiTransformers) -> None:
    texts = Generator(model, Drawn)(PERSON, top_k=4, num_return_sequences=4, seed=1, max_new_tokens=60)
    assert all(Drawn.model_validate_json(text) for text in texts)


@pytest.mark.parametrize("options", [{}, {"open_at": "[^0-9]"}])
def test_texts_that_begin_with_a_member_are_one_block(model: PhiTransformers, options: dict[str, str]) -> None:
    draws = Generator(model, GROUPS, phi="fields", ends="open", **options).sample(PERSON, 3, seed=1)
    assert {draw.blocks for draw in draws} == {1}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda generator: generator.fit([]), "Give fit.. at least one prompt"),
        (lambda generator: generator.marginals(PERSON, n=0), "n=0 was given to marginals"),
        (lambda generator: generator(PERSON, ends="open", open_at=3), "Give open_at= a regular expression as a str"),
    ],
)
def test_bad_input_of_what_is_beside_draws(ask: Callable[..., object], message: str, model: PhiTransformers) -> None:
    refused(message, ask, Generator(model, Literal["yes", "no"]), error=outlines_phi.UnsupportedError)


YES_NO = Literal["yes", "no"]
OPTIONS = SMC(particles=8)

Model = outlines_phi.PhiTransformers


def by_generate(model: Model, **keywords: Any) -> list[str]:
    options = {"output_type": YES_NO, "max_new_tokens": 20, "return_dict_in_generate": True, **keywords}
    (draws,) = custom(pair(model), SUNDAY, **options).draws
    assert draws.populations and draws.guarantee <= Guarantee.WEIGHTED
    return draws.texts


DOORS: dict[str, Callable[..., Any]] = {
    "model": lambda model, **keywords: model(SUNDAY, YES_NO, **keywords),
    "model.batch": lambda model, **keywords: model.batch([SUNDAY], YES_NO, **keywords)[0],
    "model.stream": lambda model, **keywords: "".join(model.stream(SUNDAY, YES_NO, **keywords)),
    "model.agenerate": lambda model, **keywords: asyncio.run(model.agenerate(SUNDAY, YES_NO, **keywords)),
    "Generator": lambda model, **keywords: outlines_phi.Generator(model, YES_NO)(SUNDAY, **keywords),
    "Generator.batch": lambda model, **keywords: outlines_phi.Generator(model, YES_NO).batch([SUNDAY], **keywords)[0],
    "Generator.stream": lambda model, **keywords: "".join(
        outlines_phi.Generator(model, YES_NO).stream(SUNDAY, **keywords)
    ),
    "Generator.sample": lambda model, **keywords: (
        outlines_phi.Generator(model, YES_NO).sample(SUNDAY, **keywords)[0].text
    ),
    "custom_generate": lambda model, **keywords: by_generate(model, **keywords)[0],
    "generate.choice": lambda model, *, sampler, seed, **keywords: outlines_phi.generate.choice(
        model, ["yes", "no"], sampler=OPTIONS, **keywords
    )(SUNDAY, seed=seed),
}
doors = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)


@doors
def test_every_door_takes_a_sampler(door: Callable[..., Any], model: Model, drawn: list[Draws]) -> None:
    """Without phi, particles follow plain masking; the same as with phi="local", and the same text at every door."""
    expected = outlines_phi.Generator(model, YES_NO).sample(SUNDAY, sampler=OPTIONS, seed=5)
    assert door(model, sampler=OPTIONS, seed=5) == expected[0].text
    assert door(model, sampler=OPTIONS, seed=5, phi="local") == expected[0].text
    assert all(len(draws.populations) == len(draws) == 1 for draws in drawn)
    assert {draws.guarantee for draws in drawn} == {expected.guarantee}
    assert door(model, sampler=OPTIONS, seed=5, phi="onestep") in ("yes", "no")


@doors
@pytest.mark.parametrize("phi", ["exact", "auto", LookaheadPhi(weights=True), ExactPhi()], ids=str)
def test_an_estimator_that_draws_by_itself_is_refused(door: Callable[..., Any], phi: Any, model: Model) -> None:
    name = phi if isinstance(phi, str) else phi.name
    refused(
        rf"phi='local'.*sampler=SMC\(...\) was given with phi='{name}'", door, model, sampler=OPTIONS, seed=1, phi=phi
    )


def test_the_default_of_a_generator_and_of_a_model(model: Model) -> None:
    """A generator's own default gives way to masking; what somebody chose does not."""
    given, exact = outlines_phi.Generator(model, YES_NO, phi="exact"), outlines_phi.wrap(model, phi=ExactPhi())
    for call in (given, partial(exact, output_type=YES_NO), outlines_phi.Generator(exact, YES_NO)):
        refused("phi='exact'", call, SUNDAY, sampler=OPTIONS)
    assert given(SUNDAY, sampler=OPTIONS, phi=LocalPhi(), seed=1) in ("yes", "no")
    assert outlines_phi.Generator(model, YES_NO).sample(SUNDAY, sampler=None, seed=1).guarantee is Guarantee.EXACT


def test_several_texts_are_several_runs(model: Model) -> None:
    texts = model(SUNDAY, YES_NO, sampler=OPTIONS, num_return_sequences=4, seed=2)
    draws = outlines_phi.Generator(model, YES_NO).sample(SUNDAY, 4, sampler=OPTIONS, seed=2)
    assert texts == draws.texts and len(draws.populations) == 4
    classic = outlines_phi.generate.choice(model, ["yes", "no"], outlines_phi.samplers.particles(OPTIONS, samples=4))
    assert classic(SUNDAY, seed=2) == texts
    one, two = outlines_phi.Generator(model, YES_NO).sample_batch([SUNDAY, SUNDAY], 4, sampler=OPTIONS, seed=2)
    assert one.texts == texts
    assert two.populations[0].read_by(len).values[0] in (2, 3)


test_what_cannot_have_a_sampler_says_so = refusals(
    [
        (lambda model: model(SUNDAY, YES_NO, sampler=OPTIONS, phi=None), "was given without phi="),
        (lambda model: model(SUNDAY, sampler=OPTIONS), "phi='local' beside sampler="),
        (lambda model: model.stream(SUNDAY, YES_NO, sampler=OPTIONS, phi=None), "was given without phi="),
        (lambda model: model(SUNDAY, YES_NO, sampler="smc"), "sampler='smc' was given; expected SMC"),
        (lambda model: model(SUNDAY, YES_NO, sampler=SMC), "expected SMC"),
        (lambda model: model(SUNDAY, YES_NO, sampler=OPTIONS, do_sample=False), "is searched for"),
        (lambda model: outlines_phi.Generator(model, YES_NO).mode(SUNDAY, sampler=OPTIONS), "draws nothing"),
        (lambda model: outlines_phi.Generator(model, YES_NO).probabilities(SUNDAY, sampler=OPTIONS), "draws nothing"),
        (lambda model: outlines_phi.Generator(model, YES_NO).audit(SUNDAY, sampler=OPTIONS), "plain masking"),
        (lambda model: by_generate(model, sampler=OPTIONS, do_sample=False), "is searched for"),
        (lambda model: outlines_phi.generate.choice(model, ["a"], OPTIONS, phi=None)(SUNDAY), "without phi="),
        (lambda model: outlines_phi.generate.text(model, OPTIONS)(SUNDAY, max_tokens=3), "without phi="),
        (lambda model: outlines_phi.generate.choice(model, ["a"], 50), r"or SMC\(...\)"),
        (lambda model: outlines_phi.samplers.particles(50), "expected SMC"),  # type: ignore[arg-type]
        (lambda model: outlines_phi.samplers.particles(OPTIONS, samples=0), "samples=0"),
        (lambda model: outlines_phi.samplers.particles(OPTIONS, temperature=0.0), "temperature"),
        (lambda model: outlines_phi.Generator(model, YES_NO, sampler=5), "sampler=5 was given; expected SMC"),
        (
            lambda model: model(SUNDAY, Literal["zzz"], sampler=OPTIONS, top_k=1),
            "populations of particles met a step where top_k=1",
        ),
    ],
    error=(UnsupportedError, outlines_phi.EmptyLanguageError),
)


def test_a_generator_keeps_its_sampler(model: Model) -> None:
    """The sampler of a generator holds for every call that says nothing else."""
    made = outlines_phi.Generator(model, YES_NO, phi="onestep", sampler=OPTIONS)
    given = outlines_phi.Generator(model, YES_NO, phi="onestep")
    assert made.sample(SUNDAY, 3, seed=4).items == given.sample(SUNDAY, 3, seed=4, sampler=OPTIONS).items
    assert made(SUNDAY, seed=4) == given(SUNDAY, seed=4, sampler=OPTIONS)
    assert made.sample(SUNDAY, 3, seed=4, sampler=None).populations == ()
