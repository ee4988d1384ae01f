"""Draws by a vLLM server, processor and client, over an engine that does what vLLM's does; nothing here needs vLLM."""

import asyncio
import gc
import importlib
import json
import math
import re
import time
from collections.abc import Iterator
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import Mock

import outlines
import pytest
import torch
from outlines.models.vllm import VLLM, AsyncVLLM
from outlines.types import CFG, cfg, json_schema, regex
from outlines.types.dsl import JsonSchema
from pydantic import BaseModel

import outlines_phi
from outlines_phi import (
    BannedPhrases,
    BudgetError,
    Effort,
    EmptyLanguageError,
    ExactPhi,
    Generator,
    GrammarError,
    Guarantee,
    SamplingSettings,
    Special,
    UnsupportedError,
)
from outlines_phi.errors import ModelError, VocabularyError
from outlines_phi.guides.grammar import cfg_guide
from outlines_phi.guides.table import Table
from outlines_phi.guides.thinking import Stops
from outlines_phi.plugin.hosts.vllm_server import phi_vllm, served_walks
from outlines_phi.plugin.hosts.vllm_server.phi_vllm import PhiVLLM
from outlines_phi.plugin.hosts.vllm_server.served_call import (
    ARGUMENT,
    BYTES,
    FORM,
    LIMITS,
    MARK,
    ServedCall,
    WalkEnd,
    reading,
)
from outlines_phi.plugin.types.output_types import to_language
from outlines_phi.plugin.types.tables import CompiledTypes
from tests.hosts.fake_engine import FakeClient, client_of, configuration, vllm_or_stand_ins, without_coin
from tests.hosts.test_hosts import FEATURES
from tests.languages import GRAMMARS, LANGUAGES, VOCABULARY, Language, p_value, pooled_p_value
from tests.leaks import leaks
from tests.precision import NATS, named, near_log
from tests.refusals import refused

ALPHA = 1e-3
QUESTION = "Question: is the bakery open on Sunday? Answer: "
LETTERS = {token.decode(): id for id, token in enumerate(VOCABULARY.tokens) if len(token) == 1}
MAKES = LANGUAGES[0]
SHORT = Language("short", "[abcx()]{0,5}", 6, seed=2, scale=0.5)  # which many attempts come to


@pytest.fixture(scope="module")
def vllm() -> Iterator[SimpleNamespace]:
    with vllm_or_stand_ins() as found:
        yield found


@pytest.fixture
def runner() -> str:
    """The model runner of the engines, but where a test is of both."""
    return "V1"


@pytest.fixture
def serve(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, runner: str) -> Any:
    """Return the maker of clients of a server of a language model."""

    return partial(client_of, vllm, monkeypatch, runner=runner)


@pytest.fixture
def small(serve: Any) -> Any:
    """A client of a server of a small random law, whose prompts are letters."""
    return lambda language, **options: serve(
        language.lm, VOCABULARY, lambda text: [LETTERS[letter] for letter in text], **options
    )


@pytest.fixture
def client(serve: Any, elsewhere: Any) -> FakeClient:
    """A client of a server of the bundled model."""
    return serve(elsewhere.lm, elsewhere.lm.vocabulary, elsewhere.hf_tokenizer.encode, context=256, room=16)


def asynchronous(create: Any) -> Any:
    """Wrap an asynchronous client that answers by ``create``."""
    completions = SimpleNamespace(completions=SimpleNamespace(create=create))
    return outlines_phi.wrap(AsyncVLLM(SimpleNamespace(chat=completions), "m"))


def wrap(client: Any, **options: Any) -> Any:
    return outlines_phi.wrap(VLLM(client, "m"), **options)


def drawn(client: FakeClient, language: Language, n: int, **options: Any) -> outlines_phi.Draws:
    """Draw by a generator that is made once for a client and a language."""
    made: dict[str, Any] = vars(client).setdefault("generators", {})
    if language.pattern not in made:
        made[language.pattern] = Generator(vars(client).setdefault("model", wrap(client)), regex(language.pattern))
    return made[language.pattern].sample("ab", n=n, max_new_tokens=language.budget, **{"phi": "exact", **options})


def afresh(client: Any, language: Language, n: int) -> outlines_phi.Draws:
    """Draw from a tree that begins without knowledge."""
    client.engine.processor.served.trees.clear()
    return drawn(client, language, n)


def ids(draws: Any) -> list[tuple[int, ...]]:
    return [draw.token_ids for draw in draws]


BOTH = pytest.mark.parametrize("runner", ["V1", "V2"])


class TestLaws:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        ("coin", "calls", "runner"), [(True, 6, "V2"), (True, 1, "V1"), (False, 6, "V1"), (True, 6, "V1")]
    )
    def test_exact_draws_have_the_conditioned_distribution(
        self, coin: bool, calls: int, small: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of one call, and of calls with a tree of their own each, which begin without knowledge; not so without the coin."""
        if not coin:
            monkeypatch.setattr(served_walks, "descend", without_coin)
        samples = []
        for language in LANGUAGES:
            client = small(language, room=5, preempted=0.05 if coin else 0.0, seed=language.seed if coin else 0)
            found = [each for _ in range(calls) for each in ids(afresh(client, language, 600 // calls))]
            assert not coin or (client.engine.moves > 10 and client.engine.returns > 10)
            samples.append((found, language.reference().mu))
        fit = pooled_p_value(samples)
        assert fit > ALPHA if coin else fit < 1e-9

    def test_read_as_they_finish_they_have_not(self, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        read = phi_vllm.read

        def shortest_first(choice: Any) -> Any:
            answer = read(choice)
            return answer and type(answer)(**{**vars(answer), "launch": len(answer.tokens)})

        monkeypatch.setattr(phi_vllm, "read", shortest_first)
        client = small(SHORT, room=64)
        assert p_value([each for _ in range(40) for each in ids(afresh(client, SHORT, 8))], SHORT.reference().mu) < 1e-6

    @BOTH
    def test_masked_draws_and_their_weights(self, small: Any) -> None:
        for language in LANGUAGES:
            reference = language.reference()
            draws = drawn(small(language, room=9, preempted=0.05), language, 500, phi="local", seed=4)
            assert p_value(ids(draws), reference.mask) > ALPHA > p_value(ids(draws), reference.mu)
            assert draws.guarantee is Guarantee.WEIGHTED
            for draw in draws:
                assert draw.log_p == near_log(reference.log_p[draw.token_ids])
                assert draw.log_w == near_log(draw.log_p - reference.log_mask[draw.token_ids])

    def test_the_numbers_of_exact_draws(self, small: Any) -> None:
        reference = MAKES.reference()
        draws = drawn(small(MAKES), MAKES, 400, seed=1)
        low, high = draws.log_z_bounds
        assert low - NATS <= reference.log_phi <= high + NATS and high - low < 0.2
        assert draws.guarantee is Guarantee.EXACT and draws.budget == MAKES.budget
        assert draws.counts.accepted == 400 <= draws.counts.attempts and draws.counts.tokens > 400
        for draw in draws:
            assert draw.log_p == near_log(reference.log_p[draw.token_ids])
            assert draw.log_w == pytest.approx(draws.log_z)

    @pytest.mark.parametrize("options", [{"temperature": 0.5}, {"top_k": 6}, {"repetition_penalty": 5.0}], ids=named)
    def test_settings_define_the_distribution(self, options: dict[str, Any], small: Any) -> None:
        found = ids(drawn(small(MAKES), MAKES, 1_000, **options))
        assert p_value(found, MAKES.reference(**options).mu) > ALPHA > p_value(found, MAKES.reference().mu)

    @BOTH
    def test_texts_do_not_depend_on_what_else_the_engine_does(self, small: Any) -> None:
        """Every row is that of its request, whichever place it has."""
        language = LANGUAGES[1]
        alone = drawn(small(language, room=64), language, 40, phi="local", seed=9)
        crowded = drawn(small(language, room=3, preempted=0.2, seed=5), language, 40, phi="local", seed=9)
        assert ids(alone) == ids(crowded)


ANSWER = Literal["yes", "no"]


class Record(BaseModel):
    name: Literal["Ada", "Bob"]
    age: Literal[1, 2, 33]


FORMATS = [
    Literal["yes", "no", "not on Sunday"],
    regex("[a-z]{2,6}( [a-z]+)?"),
    Record,
    JsonSchema('{"type": "boolean"}', whitespace_pattern=" ?"),
    list[Literal[1, 2]],
    cfg('start: "(" start? ")"'),
    outlines.types.either(json_schema('{"type": "null"}'), regex("a+")),
    FEATURES["structural tag"][0],
]


class TestWithTheBundledModel:
    @pytest.mark.parametrize("output_type", FORMATS, ids=named)
    def test_of_every_format(self, output_type: Any, client: FakeClient, elsewhere: Any) -> None:
        """Seeded masked texts are those of transformers, and exact ones in the format."""
        generators = [Generator(each, output_type) for each in (wrap(client), elsewhere)]
        here, there = (each.sample(QUESTION, n=20, seed=3, phi="local", max_new_tokens=40) for each in generators)
        assert here.texts == there.texts and ids(here) == ids(there) and here.values == there.values
        assert here.log_w == near_log(there.log_w)
        assert len(generators[0].sample(QUESTION, n=5, phi="exact", max_new_tokens=40).values) == 5

    @pytest.mark.parametrize("name", ["stop", "stop_strings"])
    def test_stop_strings(self, name: str, client: FakeClient, elsewhere: Any) -> None:
        strings = {name: [",", " o", "\n"]}
        generators = [Generator(each, ANSWER, **strings) for each in (wrap(client), elsewhere)]
        here, there = (each.sample(QUESTION, n=30, seed=3, phi="local", max_new_tokens=8) for each in generators)
        assert here.texts == there.texts and ids(here) == ids(there) and here.values == there.values
        assert set(here.values) <= {"yes", "no"} and here.log_w == near_log(there.log_w)
        assert (set(here.texts) <= {"yes", "no"}) == (name == "stop")
        assert set(generators[0].sample(QUESTION, n=5, phi="exact", max_new_tokens=8).values) <= {"yes", "no"}
        free = wrap(client)(QUESTION, phi="exact", num_return_sequences=20, max_new_tokens=8, **strings)
        assert not any("," in text.removesuffix(",") for text in free)

    @BOTH
    def test_a_seed_names_the_texts(self, client: FakeClient) -> None:
        model = wrap(client)
        client.engine.preempted = 0.1
        texts = [model(QUESTION, FORMATS[1], phi="exact", seed=4, num_return_sequences=9) for _ in range(2)]
        assert texts[0] == texts[1] != model(QUESTION, FORMATS[1], phi="exact", seed=5, num_return_sequences=9)

    @pytest.mark.parametrize("phi", ["exact", "local"])
    @pytest.mark.parametrize(
        "ban",
        [["es", "a"], BannedPhrases(["Open"], ignore_case=True), BannedPhrases([re.compile("o[a-z]{1,3}")])],
        ids=["texts", "case", "pattern"],
    )
    def test_nothing_banned_is_written(self, ban: Any, phi: str, client: FakeClient) -> None:
        banned = ban if isinstance(ban, BannedPhrases) else BannedPhrases(ban)
        model = wrap(client)
        free = model(QUESTION, phi=phi, banned_phrases=ban, max_new_tokens=12, num_return_sequences=30)
        typed = model(QUESTION, FORMATS[1], phi=phi, banned_phrases=ban, num_return_sequences=30)
        assert len(free) == len(typed) == 30
        assert [leak for text in [*free, *typed] for leak in leaks(banned, text.encode(), QUESTION.encode())] == []

    def test_free_text_ends_at_its_limit(self, client: FakeClient) -> None:
        generator = Generator(wrap(client), None, phi="exact", banned_phrases=["q"])
        draws = generator.sample(QUESTION, n=20, max_new_tokens=5)
        assert {len(draw.token_ids) for draw in draws if draw.token_ids[-1] != 0} == {5} and draws.budget == 5

    def test_every_door(self, client: FakeClient) -> None:
        model = wrap(client, phi="local")
        texts = [
            model(QUESTION, ANSWER, seed=1),
            *model.batch([QUESTION], ANSWER, seed=1),
            Generator(model, ANSWER)(QUESTION, seed=1),
            outlines.Generator(model, ANSWER)(QUESTION, seed=1),
            Generator(model, ANSWER).sample(QUESTION, seed=1).texts[0],
        ]
        assert texts == texts[:1] * 5
        batch = model.batch([QUESTION, "x", "y"], ANSWER, seed=2)
        assert batch == model.batch([QUESTION, "x", "y"], ANSWER, seed=2) and len(batch) == 3
        again = outlines_phi.wrap(model, phi="exact")
        assert type(again) is PhiVLLM and again is not model and again.client is client
        assert again(QUESTION, ANSWER) in ("yes", "no")

    def test_asynchronous(self, client: FakeClient) -> None:
        async def create(**request: Any) -> Any:
            await asyncio.sleep(0)
            return client.create(**request)

        model = asynchronous(create)
        generator = Generator(model, ANSWER, phi="local")

        async def called() -> list[Any]:
            return [
                await model(QUESTION, ANSWER, phi="local", seed=1),
                *await model.batch([QUESTION], ANSWER, phi="local", seed=1),
                await generator(QUESTION, seed=1),
                await outlines.Generator(model, ANSWER)(QUESTION, phi="local", seed=1),
                (await generator.asample(QUESTION, n=3, seed=1)).texts[0],
                (await asyncio.gather(*(generator.agenerate(QUESTION, seed=seed) for seed in (1, 2))))[0],
                await model(QUESTION),
            ]

        *texts, plain = asyncio.run(called())
        assert texts == [wrap(client)(QUESTION, ANSWER, phi="local", seed=1)] * 6 and plain
        refused("^Await the call", generator.sample, QUESTION)

    def test_an_asynchronous_call_that_is_cancelled(self, client: FakeClient) -> None:
        cancelled = []

        async def create(**request: Any) -> Any:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(request)
                raise

        model = asynchronous(create)

        async def called() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(model(QUESTION, Literal["yes"], phi="exact"), 0.2)
            await asyncio.sleep(0.05)

        asyncio.run(called())
        assert len(cancelled) == 1

    def test_calls_without_phi_are_those_of_outlines(self, client: FakeClient) -> None:
        for model in (VLLM(client, "m"), wrap(client)):
            model(QUESTION, Literal["yes", "no"], max_tokens=3, extra_body={"top_k": 5})
        assert client.requests[0] == client.requests[1]
        assert client.requests[1]["extra_body"]["structured_outputs"] == {"regex": "(yes|no)"}
        refused(None, wrap(client).batch, [QUESTION], Literal["yes", "no"], error=NotImplementedError)


GOOD = json.loads(ServedCall(road="exact", language="a", settings=SamplingSettings(seed=1)).text())
FINE: dict[str, Any] = {"seed": 0, "logprobs": 6, "temperature": 1.0}


@pytest.fixture
def arrives(vllm: SimpleNamespace) -> Any:
    """Return the check of a request when it arrives; an argument that is a dict replaces parts of a good one."""

    def check(argument: Any, **given: Any) -> None:
        text = json.dumps({**GOOD, **argument}) if isinstance(argument, dict) else argument
        extra = {} if argument is None else {"extra_args": {ARGUMENT: text}}
        vllm.PhiAttempts.validate_params(vllm.SamplingParams(**{**FINE, **given}, **extra))

    return check


WRONG: list[tuple[Any, str]] = [
    ("{", "cannot be read"),
    ("[]", "cannot be read"),
    (3, "cannot be read"),
    (json.dumps({"form": 7}), "Install the same version"),
    ({"unknown": 1}, "cannot be read"),
    ({"road": "smc"}, "Give a road"),
    ({"row": -1}, "Give a road"),
    ({"settings": {"temperature": 0, "seed": 1}}, "temperature"),
    ({"settings": {"seed": None}}, "Give a road"),
    ({"settings": {"seed": 1, "beams": 2}}, "cannot be read"),
    ({"language": {"lark": "x"}}, "cannot be read"),
    ({"language": "a("}, "regular expression|parenthes|group"),
    ({"language": {"json": ["json", "{", None, False]}}, "not JSON"),
    ({"language": {"grammar": "start: x"}}, "x"),
    ({"ban": {"phrases": [""]}}, "empty"),
]
TURNING: list[dict[str, Any]] = [
    {"temperature": 0.5}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1},
    {"presence_penalty": 0.1}, {"frequency_penalty": 0.1}, {"min_tokens": 2}, {"ignore_eos": True}, {"stop": ["a"]},
    {"logit_bias": {3: 1.0}}, {"bad_words": ["a"]}, {"allowed_token_ids": [1]}, {"seed": None}, {"logprobs": 2},
]  # fmt: skip
"""The settings of an engine that would turn draws."""


class TestTheArgument:
    @pytest.mark.parametrize("output_type", [*FORMATS, None], ids=named)
    def test_it_is_read_as_it_was_written(self, output_type: Any) -> None:
        call = ServedCall(
            road="exact",
            language=output_type and to_language(output_type),
            ban=BannedPhrases(["a", re.compile("b{1,3}", re.I)], whole_word=True),
            settings=SamplingSettings(temperature=0.3, seed=2**61),
            row=3,
            alone=True,
            stops=Stops(("\n", "é"), ("<[5]>",), kept=True),
        )
        with reading():
            read = ServedCall.read(call.text())
        assert read.text() == call.text() and (read.language, read.settings) == (call.language, call.settings)
        assert read.stops == call.stops
        assert read.ban is not None and read.ban.phrases == call.ban.phrases  # type: ignore[union-attr]

    @pytest.mark.parametrize(("argument", "words"), WRONG, ids=named)
    def test_what_cannot_be_drawn_is_refused_when_the_request_arrives(
        self, argument: Any, words: str, arrives: Any
    ) -> None:
        refused(words, arrives, argument, error=ValueError)

    @pytest.mark.parametrize("given", TURNING, ids=named)
    def test_what_the_engine_would_do_to_a_draw_is_refused(self, given: dict[str, Any], arrives: Any) -> None:
        arrives({})
        arrives(None, **given)  # of other clients
        refused(next(iter(given)), arrives, {}, **given, error=ValueError)

    def test_what_a_table_was_compiled_from(self) -> None:
        compiled, ban = CompiledTypes(BYTES), BannedPhrases(["b"])
        table = compiled.of(regex("[ab]"))
        stops = Stops(("x",), kept=True)
        assert compiled.written(table) in (("([ab])", None, None), ("[ab]", None, None))
        assert compiled.written(compiled.without(table, ban)) == (compiled.written(table)[0], ban, None)
        assert compiled.written(compiled.without(None, ban)) == (None, ban, None)
        assert compiled.of_written(*compiled.written(table)) is table
        for own, banned in ((table, None), (table, ban), (None, ban), (None, None)):
            stopped = compiled.stopped(own, banned, stops)
            assert compiled.written(stopped) == (own and compiled.written(own)[0], banned, stops)
            assert compiled.of_written(*compiled.written(stopped)) is stopped
        refused("Give an output type", compiled.written, CompiledTypes(BYTES).of(regex("[ab]c")))


def asked(client: FakeClient, n: int) -> list[Any]:
    """Attempts that the engine is asked for, and nobody waits for."""
    text = ServedCall(road="exact", language=MAKES.pattern, settings=SamplingSettings(seed=1)).text()
    extra = {"vllm_xargs": {ARGUMENT: text}, "top_k": 0}
    children = client.children("ab", n=n, seed=0, logprobs=True, top_logprobs=6, extra_body=extra, temperature=1.0)
    assert client.engine is not None
    client.engine.waiting += children
    return children


FOREIGN = Language("foreign", MAKES.pattern, MAKES.budget, seed=71, scale=3.0)  # the law of another adapter


@pytest.mark.in_turn
@pytest.mark.parametrize("what", ["lora_config", "is_multimodal_model", "enable_prompt_embeds", None])
def test_no_client_turns_the_draws_of_others(what: str | None, small: Any) -> None:
    """Requests of the same tokens, name and settings with another distribution, which an engine of tokens alone has not."""
    client = small(MAKES, configured={what: True} if what else None)
    own = client.engine.logits
    client.engine.logits = lambda contexts: FOREIGN.lm.trees(contexts).roots().logits.clone()
    for _ in range(3):
        drawn(client, MAKES, 200)
    client.engine.logits = own
    assert (p_value(ids(drawn(client, MAKES, 600)), MAKES.reference().mu) < 1e-9) == (what is None)


def test_what_tokens_tell_is_shared_whatever_clients_call_it(small: Any) -> None:
    client = small(MAKES)
    for name in ("m", "another"):
        Generator(outlines_phi.wrap(VLLM(client, name)), regex(MAKES.pattern)).sample("ab", phi="exact")
    assert len(client.engine.processor.served.trees) == 1


NESTED: Any = reduce(lambda part, _: ["then", part, "b"], range(900), "a")
WORK: dict[str, dict[str, Any]] = {
    "a long phrase": {"ban": {"phrases": ["x" * 10**6]}},
    "a phrase that is deep": {"ban": {"phrases": ["x" * 5_000]}},
    "nested joins": {"language": {"json": NESTED}},
    "deep JSON": {"language": {"json": ["json", "[" * 30_000, None, False]}},
    "a deep schema": {"language": {"json": ["json", '{"not":' * 300 + "{}" + "}" * 300, None, False]}},
    "a long text": {"language": "a" * 10**6},
    "groups": {"language": "(" * 60 + "a" + ")" * 60},
    "states": {"language": "(a|b)*a(a|b){16}"},
    "a huge bound": {"language": "a{" + "9" * 5_000 + "}"},
    "groups of a grammar": {"language": {"grammar": "start: " + "(" * 60 + '"a"' + ")" * 60}},
}
"""Requests of a few thousand bytes or a megabyte that take long, or more memory or stack than there is."""


@pytest.mark.parametrize("given", WORK.values(), ids=WORK.keys())
def test_what_takes_long_is_refused_when_the_request_arrives(given: dict[str, Any], arrives: Any) -> None:
    started = time.process_time()
    refused(None, arrives, given, error=(UnsupportedError, GrammarError))
    assert time.process_time() - started < 3


def test_a_server_may_take_more(arrives: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ServedCall(road="exact", ban=BannedPhrases(["x" * 5_000]), settings=SamplingSettings(seed=1)).text()
    refused("banned phrases is 5,000, more than 4,096", arrives, call)
    monkeypatch.setenv(LIMITS, '{"phrases": 6000, "states": 9000}')
    arrives(call)
    monkeypatch.setenv(LIMITS, '{"phrase": 6000}')
    refused("'phrase' is not a limit", arrives, call)


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"enable_chunked_prefill": True}, "parts of prompts"),
    ({"long_prefill_token_threshold": 8}, "parts of prompts"),
    ({"logprobs_mode": "raw_logprobs"}, "raw_logprobs"),
    ({"max_logprobs": 5}, "max_logprobs=5"),
    ({"speculative_config": object()}, "speculative_config"),
    ({"enable_batch_sharded_sampling": True}, "enable_batch_sharded_sampling"),
    ({"additional_config": {"outlines_phi_max_tree_bytes": "1 GiB"}}, "'1 GiB' is none"),
    ({"runner_type": "pooling"}, "generative model"),
    ({"is_encoder_decoder": True}, "without an encoder"),
    ({"is_diffusion": True}, "or diffusion"),
    ({"__version__": "0.33.0"}, r"vLLM 0\.33\.0 is here, whose engine was not tested"),
]


class TestEngines:
    @pytest.mark.parametrize(("change", "words"), UNFIT, ids=named)
    def test_one_that_no_walk_could_follow_does_not_start(
        self, change: dict[str, Any], words: str, vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        version, changes = change.get("__version__", "0.32.0"), {k: v for k, v in change.items() if k != "__version__"}
        monkeypatch.setattr(importlib.import_module("vllm"), "__version__", version)
        refused(words, vllm.PhiAttempts, configuration(12, 0, 64, **changes), torch.device("cpu"), False)

    @BOTH
    def test_it_says_what_draws(self, runner: str, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        monkeypatch.setattr(served_walks.LOG, "info", lambda words, *given: said.append(words % given))
        small(MAKES)
        assert f"model m, model runner {runner}, arguments of form {FORM}" in said[0] and len(said) == 1

    def test_a_server_is_asked_once_whether_it_has_the_processor(self, small: Any) -> None:
        client = small(MAKES)
        for _ in range(3):
            drawn(client, MAKES, 1)
        assert sum("max_tokens" in request for request in client.requests) == 1
        without = small(MAKES)
        without.validate = lambda params: params.extra_args and params.extra_args.clear()
        refused("outlines-phi serve MODEL", drawn, without, MAKES, 1)
        assert [request["max_tokens"] for request in without.requests] == [1]

    def test_parts_of_prompts_and_logits_without_numbers_are_found_out(self, small: Any) -> None:
        client = small(MAKES)
        drawn(client, MAKES, 1)
        logits = client.engine.logits
        for name, value in (("partial", 1), ("logits", lambda contexts: torch.full((len(contexts), 12), math.nan))):
            setattr(client.engine, name, value)
            refused(
                "log of the server",
                client.generators[MAKES.pattern].sample,
                "ba",
                n=3,
                phi="exact",
                seed=1,
                error=ModelError,
            )
            client.engine.logits = logits
            drawn(client, MAKES, 3, seed=1)

    def test_a_text_that_the_engine_cuts(self, small: Any) -> None:
        client = small(MAKES)
        create = client.create
        client.chat.completions.create = lambda **request: create(**{"max_tokens": 2, **request})
        refused(None, drawn, client, LANGUAGES[3], 5, error=(ModelError, EmptyLanguageError))

    def test_a_request_that_is_cancelled_leaves_nothing_behind(self, small: Any) -> None:
        client = small(MAKES, room=4)
        drawn(client, MAKES, 2)
        served = client.engine.processor.served
        children = asked(client, n=9)
        client.engine.step()
        assert len(served.walks) > 0
        for child in children:
            child.cancelled = True
        client.engine.step()
        del children, child
        gc.collect()
        assert len(served.walks) == 0 and client.engine.processor.kept == {}
        drawn(client, MAKES, 2)

    @BOTH
    def test_an_error_is_that_of_one_request(self, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        client = small(MAKES)
        drawn(client, MAKES, 1)
        advance = served_walks.ExactWalk.advance

        def broken(walks: Any, log_p: Any) -> None:
            if any(walk.attempt.number == 1 for walk in walks):
                raise RuntimeError("of one walk")
            advance(walks, log_p)

        monkeypatch.setattr(served_walks.ExactWalk, "advance", staticmethod(broken))
        children = asked(client, n=5)
        while not all(child.finish for child in children):
            client.engine.step()
        ends = [int(child.shown[-1].logprob - MARK) for child in children]
        assert ends[1] == WalkEnd.BROKEN and {ends[0], *ends[2:]} <= {WalkEnd.MEMBER, WalkEnd.FAILED}
        refused("other requests are not concerned", drawn, client, MAKES, 3, error=ModelError)
        monkeypatch.setattr(served_walks.ExactWalk, "advance", staticmethod(advance))
        drawn(client, MAKES, 3)

    def test_trees_are_bounded_in_number_and_in_memory(self, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(served_walks, "TREES", 3)
        client = small(SHORT, configured={"additional_config": {"outlines_phi_max_tree_bytes": 4 * 6_000}})
        found = [each for seed in range(6) for each in ids(drawn(client, SHORT, 50, seed=seed))]
        served = client.engine.processor.served
        assert len(served.trees) <= 3 and all(tree.nodes < tree.expansions / 4 for tree in served.trees.values())
        assert p_value(found, SHORT.reference().mu) > ALPHA

    def test_trees_that_grow_side_by_side_keep_their_bound(self, small: Any) -> None:
        client, most = small(SHORT, configured={"additional_config": {"outlines_phi_max_tree_bytes": 800_000}}), 800_000
        drawn(client, SHORT, 1)
        generator, trees = client.generators[SHORT.pattern], client.engine.processor.served.trees
        prompts = ["a", "b", "ab", "ba", "aa", "bb", "aab", "abb"]
        for n in (1, 12):
            generator.sample_batch(prompts, n=n, max_new_tokens=SHORT.budget, phi="exact")
        assert most / 4 < sum(tree.bytes for tree in trees.values()) <= most

    def test_guides_that_are_full_are_replaced(self, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cfg_guide, "MOST_STACKS", 25)
        client = small(GRAMMARS[0])
        vars(client)["generators"] = {GRAMMARS[0].pattern: Generator(wrap(client), CFG(GRAMMARS[0].pattern))}
        found, tables = list[tuple[int, ...]](), set[Table]()
        for seed in range(5):
            found += ids(drawn(client, GRAMMARS[0], 10, seed=seed))
            tables |= {tree.table for tree in client.engine.processor.served.trees.values()}
        assert len(tables) > 1 and sum(not table.guide.full for table in tables) <= 1
        assert p_value(found, GRAMMARS[0].reference().mu) > ALPHA

    def test_other_requests_are_left_alone(self, small: Any) -> None:
        client = small(MAKES)
        other = client.children("ab", temperature=1.0, max_tokens=4)[0]
        client.engine.waiting.append(other)
        row = client.engine.logits([(1, 2)])
        client.engine.step()
        assert torch.equal(client.engine.processor.apply(row.clone()), row) and len(other.outputs) == 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"phi": "auto"}, "Give phi='exact' or phi='local'"),
    ({"phi": "onestep"}, "vLLM offline"),
    ({"phi": "learned"}, "vLLM offline"),
    ({"phi": ExactPhi(tolerance=0.1)}, "vLLM offline"),
    ({"phi": ExactPhi(normalizers=3)}, "vLLM offline"),
    ({"phi": "local", "sampler": outlines_phi.SMC(particles=3)}, "Leave sampler out"),
    ({"draft": "forced"}, "Leave draft out"),
    ({"constraint": lambda text: True}, "Leave constraint out"),
    ({"tokenization": "canonical"}, "Leave tokenization out"),
    ({"progress": print}, "Leave progress out"),
    ({"stop": Special("<|pad|>")}, "as in a client of a server"),
    ({"do_sample": False}, "Draw with phi='exact'"),
    ({"max_tokens": 3}, "max_new_tokens"),
    ({"stop_at": ["x"]}, "stop_at"),
    ({"phi": None, "stop_strings": ["x"]}, "Give stop=, as the server has it"),
    ({"temperature": 0}, "temperature"),
    ({"unknown": 1}, "unknown"),
    ({"phi": ..., "banned_phrases": ["a"], "output_type": None}, "Give phi='exact' or phi='local'"),
    ({"phi": None, "backend": "xgrammar"}, "Leave backend"),
    *(({"model_input": prompt}, "cannot be read") for prompt in (3, None, {"a": 1})),
    ({"output_type": regex("a(")}, "\\^"),
    ({"output_type": FEATURES["thought"][0]}, "Draw thought and answer in two calls"),
    ({"output_type": FEATURES["special token"][0]}, "as in a client of a server"),
    ({"output_type": FEATURES["tools"][0]}, "Give Tools to a model whose tokenizer is at hand"),
    ({"output_type": Literal["ab"], "banned_phrases": ["b"]}, "leave nothing"),
]
WITHOUT: list[Any] = [
    lambda model: Generator(model, ANSWER).probabilities(QUESTION),
    lambda model: Generator(model, ANSWER).mode(QUESTION),
    lambda model: Generator(model, ANSWER).audit(QUESTION),
    lambda model: outlines_phi.audit((model, ANSWER), QUESTION),
    lambda model: list(Generator(model, ANSWER, phi="exact").stream(QUESTION)),
    lambda model: list(model.stream(QUESTION, ANSWER, phi="local")),
]
"""Calls that need distributions."""


class TestBadInput:
    @pytest.mark.parametrize(("given", "words"), REFUSED, ids=named)
    def test_what_is_told_before_the_server_is_asked(
        self, given: dict[str, Any], words: str, client: FakeClient
    ) -> None:
        asked = {"model_input": QUESTION, "output_type": Literal["yes"], "phi": "exact", **given}
        asked = {name: value for name, value in asked.items() if value is not ...}
        refused(
            words,
            wrap(client),
            asked.pop("model_input"),
            asked.pop("output_type"),
            **asked,
            error=(UnsupportedError, GrammarError, EmptyLanguageError, VocabularyError),
        )
        assert client.requests == []

    def test_what_needs_distributions(self, client: FakeClient) -> None:
        for ask in WITHOUT:
            refused("a server does not give them", ask, wrap(client))
        refused(r"outlines\.Generator", Generator(wrap(client), ANSWER, phi="exact"), QUESTION, phi=None)

    @pytest.mark.parametrize(
        ("prompt", "pattern", "budget", "error", "words"),
        [
            (QUESTION, "[a-z]{40}", 3, EmptyLanguageError, "Give max_new_tokens="),
            (QUESTION, "[0-9]{300}", None, ModelError, "--max-model-len"),
            (QUESTION * 60, "yes", None, ModelError, "context length"),
        ],
    )
    def test_limits_that_are_too_small(
        self, prompt: str, pattern: str, budget: int | None, error: type[Exception], words: str, client: FakeClient
    ) -> None:
        refused(words, wrap(client), prompt, regex(pattern), phi="exact", max_new_tokens=budget, error=error)

    def test_truncation_that_leaves_nothing(self, small: Any) -> None:
        language = LANGUAGES[3]
        refused("under top_k=1", drawn, small(language), language, 3, top_k=1, error=EmptyLanguageError)
        assert drawn(small(language), language, 3, top_k=1, phi="local").failures == 3

    def test_the_effort(self, small: Any) -> None:
        """That of one prompt leaves the draws of the others."""
        language = LANGUAGES[3]
        for effort in (Effort(attempts=1), Effort(tokens=1), Effort(seconds=1e-9)):
            caught = refused(
                "Draw with weights",
                drawn,
                small(language),
                language,
                30,
                phi=ExactPhi(effort=effort),
                seed=1,
                error=BudgetError,
            )
            (made,) = caught.value.draws
            assert len(made) < 30 and made.guarantee is Guarantee.EXACT
        generator = Generator(wrap(small(language)), regex(language.pattern), phi=ExactPhi(effort=Effort(attempts=4)))
        caught = refused(
            "exact draws", generator.sample_batch, ["ab", "ba", "c"], n=9, max_new_tokens=6, seed=0, error=BudgetError
        )
        sizes = [len(draws) for draws in caught.value.draws]
        assert len(sizes) == 3 and 0 < min(sizes) and max(sizes) < 9
        assert generator.sample_batch([]) == []

    @pytest.mark.parametrize("error", [ConnectionError("gone"), TimeoutError("late")], ids=named)
    def test_a_server_that_dies(self, error: Exception, client: FakeClient) -> None:
        wrap(client)(QUESTION, ANSWER, phi="exact")
        client.chat.completions.create = Mock(side_effect=error)
        refused(None, wrap(client), QUESTION, ANSWER, phi="exact", error=type(error))
