"""guidance: its models are wrapped, and in its own environment its grammars are those that were recorded."""

import subprocess
import sys
import types
from typing import Any

import pytest
from outlines.types import CFG

from outlines_phi import Generator, PhiTransformers, from_guidance, from_transformers, wrap
from outlines_phi.lm import bundled
from tests.refusals import refused

QUESTION = "Question: is the bakery open on Sunday? Answer: "


class Engine:
    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model_obj, self._orig_tokenizer = model, tokenizer


class Standing:
    """The parts of ``guidance.models.Transformers``, where guidance is not installed."""

    def __init__(self, engine: Any, text: str = "", **said: Any) -> None:
        self._interpreter = types.SimpleNamespace(engine=engine)
        self.sampling_params, self._text = said, text

    def __str__(self) -> str:
        return self._text


def named(name: str, module: str) -> type[Standing]:
    return type(name, (Standing,), {"__module__": module})


TRANSFORMERS = named("Transformers", "guidance.models._transformers")


def test_the_weights_of_a_model_of_guidance_are_wrapped() -> None:
    model, tokenizer = bundled.load()
    wrapped = wrap(TRANSFORMERS(Engine(model, tokenizer), top_p=None), phi="exact")
    assert type(wrapped) is PhiTransformers and wrapped.model is model and wrapped.phi is not None
    generator = Generator(TRANSFORMERS(Engine(model, tokenizer)), from_guidance('%llguidance {}\nstart: "yes" | "no"'))
    assert generator(QUESTION, seed=0) in ("yes", "no")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (TRANSFORMERS(Engine(1, 2), "Once"), "give its text as the prompt, str\\(lm\\). This one holds 'Once'"),
        (TRANSFORMERS(Engine(1, 2), top_p=0.5), "Wrap the model without sampling_params"),
        (TRANSFORMERS(None), "Give outlines_phi.from_transformers\\(hf_model, hf_tokenizer\\) the two"),
        (
            named("OpenAI", "guidance.models._openai")(None),
            "guidance.models.OpenAI is none of those that wrap\\(model\\) takes",
        ),
        (named("LlamaCpp", "guidance.models._llama_cpp")(None), "wrap outlines.from_llamacpp\\(llama\\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_models_of_guidance_are_refused(given: Any, message: str) -> None:
    refused(message, wrap, given)


def test_guidance_is_not_imported() -> None:
    code = "import sys, outlines_phi; outlines_phi.from_guidance, outlines_phi.wrap; print('guidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


class TestWithGuidance:
    """In the environment that ``make test-guidance`` makes."""

    @pytest.fixture(autouse=True)
    def guidance(self) -> Any:
        return pytest.importorskip("guidance")

    def test_what_was_recorded_is_what_guidance_makes(self) -> None:
        from tests.guides.guidance.oracle import RECORDED
        from tests.hosts.guidance_programs import recorded

        assert recorded() == RECORDED

    def test_a_model_that_guidance_made(self, guidance: Any) -> None:
        lm = guidance.models.Transformers(*bundled.load(), echo=False)
        answer = guidance.select(["yes", "no"], name="answer")
        draws = Generator(wrap(lm), from_guidance(answer)).sample(QUESTION, n=50, seed=0, phi="exact")
        elsewhere = Generator(from_transformers(*bundled.load()), from_guidance(answer))
        assert draws.texts == elsewhere.sample(QUESTION, n=50, seed=0, phi="exact").texts
        assert {draw.value["answer"] for draw in draws} == {"yes", "no"}

    def test_a_model_with_text_or_settings_is_refused(self, guidance: Any) -> None:
        lm = guidance.models.Transformers(*bundled.load(), echo=False)
        refused("give its text as the prompt", wrap, lm + "Once upon a time")
        refused("Wrap the model without sampling_params", wrap, lm.with_sampling_params({"top_p": 0.5}))

    def test_what_is_no_grammar(self, guidance: Any) -> None:
        @guidance.guidance(stateless=True, dedent=False)
        def answer(lm: Any) -> Any:
            return lm + guidance.select(["yes", "no"])

        assert from_guidance(answer()) == CFG(answer().ll_grammar())
        refused("Call the function", from_guidance, answer)
        refused(
            "outlines_phi.wrap\\(model\\) takes a model of guidance", from_guidance, guidance.models.Mock(b"<s>yes")
        )
