"""Wrong arguments beside banned phrases are refused with the remedy, and the error names the phrases where they are the cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import outlines
import pytest

import outlines_phi
from outlines_phi import BannedPhrases, ExactPhi, LookaheadPhi, PhiTransformers, generate
from outlines_phi.errors import EmptyLanguageError, UnsupportedError
from outlines_phi.lm import bundled
from outlines_phi.plugin.call import Correction

PROMPT = "Question: is the bakery open on Sunday? Answer: "
ANSWER = Literal["yes", "no", "not now"]
MISTYPED = ("banned_phrase", "ban_phrases", "banned_phases", "banned_words")


@pytest.mark.parametrize(
    ("phi", "level", "said"),
    [
        (
            LookaheadPhi(weights=True),
            "lookahead",
            r"phi=LookaheadPhi\(weights=True.* was given .* stands for LookaheadPhi\(weights=False",
        ),
        (
            LookaheadPhi(),
            "weighted",
            r"phi=LookaheadPhi\(weights=False.* was given .* stands for LookaheadPhi\(weights=True",
        ),
        ("lookahead", "exact", r"phi=LookaheadPhi\(.* was given .* which stands for ExactPhi\("),
        (
            ExactPhi(tolerance=0.1),
            "exact",
            r"tolerance=0\.1.* was given .* stands for ExactPhi\(",
        ),
        ("exact", "mask", r"phi=ExactPhi\(.* was given .* level='mask', which stands for LocalPhi\(\)"),
        (None, "weighted", "phi=None was given"),
    ],
)
def test_a_conflict_names_what_conflicts(phi: Any, level: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        Correction().replaced_by(phi, BannedPhrases(["a"], level=level))


@pytest.mark.parametrize("name", MISTYPED)
def test_a_mistyped_keyword_goes_nowhere(name: str, model: PhiTransformers) -> None:
    given: dict[str, Any] = {name: ["it is"], "max_new_tokens": 8}
    typed, free = outlines_phi.Generator(model, ANSWER), outlines_phi.Generator(model, None, banned_phrases=["zzz"])
    calls: dict[str, Callable[[], Any]] = {
        "model": lambda: model(PROMPT, **given),
        "typed": lambda: model(PROMPT, ANSWER, **given),
        "masked": lambda: model(PROMPT, ANSWER, phi=None, **given),
        "batch": lambda: model.batch([PROMPT], **given),
        "stream": lambda: list(model.stream(PROMPT, **given)),
        "classic": lambda: generate.text(model)(PROMPT, 8, **{name: ["it is"]}),
        "audit": lambda: outlines_phi.audit((model, ANSWER), [PROMPT], **given),
        **{
            f"{kind}, {door}": call
            for kind, each in (("type", typed), ("text", free))
            for door, call in doors(each, given)
        },
    }
    for door, call in calls.items():
        with pytest.raises(UnsupportedError, match=rf"{name} cannot be used here.*banned_phrases=") as caught:
            call()
        assert str(caught.value), door


def doors(generator: Any, given: dict[str, Any]) -> list[tuple[str, Callable[[], Any]]]:
    return [
        ("call", lambda: generator(PROMPT, **given)),
        ("batch", lambda: generator.batch([PROMPT], **given)),
        ("stream", lambda: list(generator.stream(PROMPT, **given))),
        ("sample", lambda: generator.sample(PROMPT, **given)),
        ("masked", lambda: generator(PROMPT, phi=None, **given)),
    ]


def test_options_of_transformers_are_no_mistakes(model: PhiTransformers) -> None:
    _, tokenizer = bundled.load()
    spelled = tokenizer(["it"], add_special_tokens=False)["input_ids"]
    assert "it" not in model(PROMPT, phi=None, bad_words_ids=spelled, max_new_tokens=1, do_sample=False)


def test_ban_says_where_phrases_go(stock: outlines.models.Transformers) -> None:
    for name in ("banned_phrases", "banned_phrase", "ban_phrases"):
        with pytest.raises(UnsupportedError, match=r"the phrases are the second argument, ban\(thing, phrases\)"):
            outlines_phi.ban(stock, ["a"], **{name: ["b"]})


@pytest.mark.parametrize("level", ["mask", "lookahead", "weighted", "exact"])
@pytest.mark.parametrize(
    ("output_type", "phrases"), [(None, ["yes", "no"]), (ANSWER, ["yes", "zzz"])], ids=["free text", "choice"]
)
def test_what_truncation_leaves_nothing_of_names_the_ban(
    output_type: Any, phrases: list[str], level: str, model: PhiTransformers
) -> None:
    ban = BannedPhrases(phrases, level=level)
    generator = outlines_phi.Generator(model, output_type, banned_phrases=ban)
    calls: list[Callable[[], Any]] = [
        lambda: generator(PROMPT, top_k=1, seed=0, max_new_tokens=8),
        lambda: generator.batch([PROMPT] * 2, top_k=1, seed=0, max_new_tokens=8),
        lambda: list(generator.stream(PROMPT, top_k=1, seed=0, max_new_tokens=8)),
    ]
    for call in calls:
        with pytest.raises(EmptyLanguageError, match=rf"top_k=1.*without the banned phrases {ban.listed}") as caught:
            call()
        assert "ban less" in str(caught.value)


def test_without_a_ban_nothing_is_said_of_one(model: PhiTransformers) -> None:
    with pytest.raises(EmptyLanguageError) as caught:
        outlines_phi.Generator(model, Literal["zz", "qq"], phi="exact")(PROMPT, top_k=1, seed=0)
    assert "ban" not in str(caught.value)
