"""Wrong arguments beside banned phrases are refused with the remedy, and the error names the phrases where they are the cause."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest

from outlines_phi import (
    BannedPhrases,
    EmptyLanguageError,
    ExactPhi,
    Generator,
    LookaheadPhi,
    PhiTransformers,
    UnsupportedError,
    audit,
    generate,
)
from outlines_phi.lm import bundled
from outlines_phi.plugin.call import Correction

PROMPT = "Question: is the bakery open on Sunday? Answer: "
ANSWER = Literal["yes", "no", "not now"]
MISTYPED = ("banned_phrase", "ban_phrases", "banned_phases", "banned_words")


@pytest.mark.parametrize(
    ("phi", "level", "words"),
    [
        (
            LookaheadPhi(weights=True),
            "lookahead",
            r"LookaheadPhi\(weights=True.* stands for LookaheadPhi\(weights=False",
        ),
        (LookaheadPhi(), "weighted", r"LookaheadPhi\(weights=False.* stands for LookaheadPhi\(weights=True"),
        ("lookahead", "exact", r"phi=LookaheadPhi\(.* which stands for ExactPhi\("),
        (ExactPhi(tolerance=0.1), "exact", r"tolerance=0\.1.* stands for ExactPhi\("),
        ("exact", "mask", r"phi=ExactPhi\(.* level='mask', which stands for LocalPhi\(\)"),
        (None, "weighted", "phi=None was given"),
    ],
)
def test_a_conflict_names_what_conflicts(phi: Any, level: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        Correction().replaced_by(phi, BannedPhrases(["a"], level=level))


@pytest.mark.parametrize("name", MISTYPED)
def test_a_mistyped_keyword_goes_nowhere(name: str, model: PhiTransformers) -> None:
    given: dict[str, Any] = {name: ["it is"], "max_new_tokens": 8}
    generators = Generator(model, ANSWER), Generator(model, None, banned_phrases=["zzz"])
    calls: list[Callable[[], Any]] = [
        lambda: model(PROMPT, **given),
        lambda: model(PROMPT, ANSWER, **given),
        lambda: model(PROMPT, ANSWER, phi=None, **given),
        lambda: model.batch([PROMPT], **given),
        lambda: list(model.stream(PROMPT, **given)),
        lambda: generate.text(model)(PROMPT, 8, **{name: ["it is"]}),
        lambda: audit((model, ANSWER), [PROMPT], **given),
        *(partial(each, PROMPT, **given) for each in generators),
        *(partial(each, PROMPT, phi=None, **given) for each in generators),
        *(partial(each.batch, [PROMPT], **given) for each in generators),
        *(partial(each.sample, PROMPT, **given) for each in generators),
        *(lambda each=each: list(each.stream(PROMPT, **given)) for each in generators),
    ]
    for call in calls:
        with pytest.raises(UnsupportedError, match=rf"{name} cannot be used here.*banned_phrases="):
            call()


def test_options_of_transformers_are_no_mistakes(model: PhiTransformers) -> None:
    _, tokenizer = bundled.load()
    spelled = tokenizer(["it"], add_special_tokens=False)["input_ids"]
    assert "it" not in model(PROMPT, phi=None, bad_words_ids=spelled, max_new_tokens=1, do_sample=False)


@pytest.mark.parametrize("level", ["mask", "lookahead", "weighted", "exact"])
@pytest.mark.parametrize(
    ("output_type", "phrases"), [(None, ["yes", "no"]), (ANSWER, ["yes", "zzz"])], ids=["free text", "choice"]
)
def test_what_truncation_leaves_nothing_of_names_the_ban(
    output_type: Any, phrases: list[str], level: str, model: PhiTransformers
) -> None:
    ban = BannedPhrases(phrases, level=level)
    generator = Generator(model, output_type, banned_phrases=ban)
    calls: list[Callable[[], Any]] = [
        lambda: generator(PROMPT, top_k=1, seed=0, max_new_tokens=8),
        lambda: generator.batch([PROMPT] * 2, top_k=1, seed=0, max_new_tokens=8),
        lambda: list(generator.stream(PROMPT, top_k=1, seed=0, max_new_tokens=8)),
    ]
    for call in calls:
        with pytest.raises(EmptyLanguageError, match=rf"top_k=1.*without the banned phrases {ban.listed}") as caught:
            call()
        assert "ban less" in str(caught.value)
    with pytest.raises(EmptyLanguageError, match="(?s)^(?!.*ban)"):
        Generator(model, Literal["zz", "qq"], phi="exact")(PROMPT, top_k=1, seed=0)
