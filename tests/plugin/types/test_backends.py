"""``backend="llguidance"`` and ``"xgrammar"`` beside everything that this package adds."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Literal

import outlines
import pytest
from outlines.types import CFG, JsonSchema, regex

import outlines_phi
from outlines_phi.errors import GrammarError, UnsupportedError
from outlines_phi.guides.engines.guide import ENGINES, BannedEngineGuide, EngineGuide
from tests.languages import ALPHA, p_value

ANSWER = Literal["yes", "no", "maybe"]
TREE = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
        "kids": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["n", "kids"],
    "additionalProperties": False,
}
BRACKETS = {
    "llguidance": 'start: "(" start ")" | "x"\n',
    "xgrammar": 'root ::= "(" root ")" | "x"\n',
}

engines = pytest.mark.parametrize("backend", ENGINES)


@pytest.fixture(autouse=True)
def _there(request: pytest.FixtureRequest) -> None:
    if "backend" in request.fixturenames:
        pytest.importorskip(request.getfixturevalue("backend"))


@engines
@pytest.mark.parametrize("phi", ["exact", "auto", "local", "rollout", "lookahead1", "learned"])
def test_every_estimator(backend: str, phi: str, model: outlines_phi.PhiTransformers) -> None:
    assert model("Answer:", ANSWER, backend, phi=phi, max_new_tokens=8, seed=2) in ("yes", "no", "maybe")


@engines
@pytest.mark.parametrize("phi", ["onestep", "dp-frozen", "dp-bigram"])
def test_estimators_that_look_at_shared_states(backend: str, phi: str, model: outlines_phi.PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match="each prefix has a state of its own"):
        model("Answer:", ANSWER, backend, phi=phi, max_new_tokens=8, seed=2)


@engines
def test_draws_are_those_of_our_own_guide(backend: str, model: outlines_phi.PhiTransformers) -> None:
    """The same conditioned law, whoever says what is allowed: certified probabilities, and draws that follow them."""
    ours = outlines_phi.Generator(model, ANSWER, phi="exact")
    theirs = outlines_phi.Generator(model, ANSWER, phi="exact", backend=backend)
    law, other = (g.probabilities("Answer:", tolerance=0.0, max_new_tokens=8) for g in (ours, theirs))
    expected = {answer: law[answer].p for answer in ("yes", "no", "maybe")}
    for answer, p in expected.items():
        assert other[answer].p == pytest.approx(p, rel=1e-6)
    draws = theirs.sample("Answer:", 400, seed=4, max_new_tokens=8)
    assert p_value(draws.texts, expected) > ALPHA
    masked = outlines_phi.Generator(model, ANSWER, phi="local", backend=backend).sample(
        "Answer:", 400, seed=4, max_new_tokens=8
    )
    assert p_value(masked.texts, expected) < ALPHA  # the control
    assert theirs.mode("Answer:", max_new_tokens=8)[0].text == max(expected, key=expected.__getitem__)


@engines
@pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
@pytest.mark.parametrize("phi", ["local", "auto"])
def test_a_recursive_schema_fits_its_budget(backend: str, phi: str, model: outlines_phi.PhiTransformers) -> None:
    """A schema that no regular expression is."""
    schema = JsonSchema(json.dumps(TREE))
    for seed in range(3):
        tree = json.loads(model("A tree:", schema, backend, phi=phi, max_new_tokens=24, seed=seed))
        assert set(tree) == {"n", "kids"}


@engines
def test_recursion_has_no_depth(backend: str, model: outlines_phi.PhiTransformers) -> None:
    """As deep as a text goes, in engines as here."""
    text = '{"n":1,"kids":[' * 9 + "]}" * 9
    accepted = []
    for guide in (model.table(JsonSchema(json.dumps(TREE)), backend=name).guide for name in (backend, None)):
        state = guide.start
        for token in model.hf_tokenizer.encode(text, add_special_tokens=False):
            state = guide.advance(state, token)
        accepted.append(guide.min_tokens(state))
    assert accepted == [1, 1]


@engines
def test_a_grammar(backend: str, model: outlines_phi.PhiTransformers) -> None:
    generator = outlines_phi.Generator(model, CFG(BRACKETS[backend]), phi="exact", backend=backend)
    draws = generator.sample("f", 20, seed=1, max_new_tokens=9)
    assert all(text == "(" * text.count("(") + "x" + ")" * text.count("(") for text in draws.texts)
    assert len(draws) == 20


@engines
@pytest.mark.parametrize("phi", ["exact", "lookahead", None])
def test_banned_phrases(backend: str, phi: str | None, model: outlines_phi.PhiTransformers) -> None:
    language = regex("[a-z ]{1,30}")
    generator = outlines_phi.Generator(model, language, phi=phi, banned_phrases=["e", "th"], backend=backend)
    assert isinstance(generator.logits_processor.table.guide, BannedEngineGuide)
    for seed in range(5):
        text = generator("Once", max_new_tokens=12, **({} if phi is None else {"seed": seed}))
        assert text and "e" not in text and "th" not in text
    called = model("Once", language, backend, phi=phi, banned_phrases=["e", "th"], max_new_tokens=12)
    assert "e" not in called
    without = generator.banning(None)
    assert isinstance(without.logits_processor.table.guide, EngineGuide)


@engines
def test_particles_and_drafts(backend: str, model: outlines_phi.PhiTransformers) -> None:
    smc = outlines_phi.Generator(
        model, ANSWER, phi="local", backend=backend, sampler=outlines_phi.SMC(particles=4)
    ).sample("Answer:", 20, seed=3, max_new_tokens=8)
    assert Counter(smc.texts).keys() <= {"yes", "no", "maybe"}
    draft = outlines_phi.Generator(model, ANSWER, phi="exact", backend=backend, draft="forced")
    assert draft("Answer:", max_new_tokens=8, seed=1) in ("yes", "no", "maybe")


@engines
def test_tables_are_kept(backend: str, fresh: outlines_phi.PhiTransformers) -> None:
    first = fresh.table(ANSWER, backend=backend)
    assert fresh.table(ANSWER, backend=backend) is first is not fresh.table(ANSWER)
    assert isinstance(first.guide, EngineGuide)
    assert fresh.table(ANSWER, backend="outlines_core") is fresh.table(ANSWER)
    fresh.clear_cache()
    assert fresh.table(ANSWER, backend=backend) is not first


@engines
def test_the_installed_generator(backend: str, stock: outlines.models.Transformers) -> None:
    outlines_phi.install()
    try:
        generator = outlines.Generator(stock, ANSWER, backend, phi="exact")
        assert isinstance(generator.logits_processor.table.guide, EngineGuide)
        assert generator("Answer:", max_new_tokens=8, seed=1) in ("yes", "no", "maybe")
    finally:
        outlines_phi.uninstall()


@engines
@pytest.mark.parametrize(
    ("output_type", "error", "message"),
    [
        (JsonSchema('{"type": "string"}', whitespace_pattern=" "), UnsupportedError, "has no whitespace_pattern"),
        (CFG('start: "x'), GrammarError, "refuses the grammar"),
        (JsonSchema('{"type": "array", "items": {"$ref": "#/nowhere"}}'), GrammarError, "refuses the JSON schema"),
    ],
    ids=["whitespace", "grammar", "schema"],
)
def test_errors(
    backend: str, output_type: Any, error: type[Exception], message: str, model: outlines_phi.PhiTransformers
) -> None:
    with pytest.raises(error, match=message):
        model("x", output_type, backend, phi="local", max_new_tokens=8)
    with pytest.raises(UnsupportedError, match="expected one of outlines_core, llguidance, xgrammar, or None"):
        outlines_phi.Generator(model, ANSWER, backend="regex")
