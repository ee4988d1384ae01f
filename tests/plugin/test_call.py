"""``phi=`` and ``banned_phrases=`` of a model, a generator and a call: what is nearer to the call counts."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import outlines_phi
from outlines_phi import BannedPhrases, ExactPhi, LocalPhi, PhiTransformers, generate
from outlines_phi.guides.phrases.phrase_guide import BanningGuide
from outlines_phi.plugin.call import Call, Correction
from outlines_phi.plugin.choices import MISFITS, OPTIONS, refuse_misfits
from outlines_phi.plugin.processor import MaskLogitsProcessor
from outlines_phi.sampling.phi_options import AutoPhi, LookaheadPhi
from outlines_phi.sampling.smc import SMC

EXACT = BannedPhrases(["now"], level="exact")
LEVELLESS = BannedPhrases(["now"])
WORDS = Literal["open now", "closed", "open"]


class TestCorrections:
    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            ([], AutoPhi()),
            ([{"phi": None}], None),
            ([{"phi": "local"}], LocalPhi()),
            ([{"banned_phrases": EXACT}], ExactPhi()),
            ([{"phi": ExactPhi(width=7), "banned_phrases": EXACT}], ExactPhi(width=7)),
            ([{"phi": "local"}, {"banned_phrases": EXACT}], ExactPhi()),
            ([{"banned_phrases": EXACT}, {"phi": "local"}], LocalPhi()),
            ([{"phi": "local"}, {"banned_phrases": LEVELLESS}], LocalPhi()),
            ([{"phi": "local"}, {"banned_phrases": EXACT}, {"banned_phrases": None}], LocalPhi()),
        ],
    )
    def test_the_nearer_counts(self, said: list[dict[str, Any]], expected: Any) -> None:
        correction = Correction()
        for each in said:
            correction = correction.replaced_by(**each)
        assert correction.estimator() == expected

    def test_nothing_said_is_the_same_correction(self) -> None:
        correction = Correction().replaced_by("exact", ["now"])
        assert correction.replaced_by() is correction

    def test_what_nobody_chose_depends_on_what_is_drawn(self) -> None:
        unsaid = Correction()
        assert unsaid.estimator() == AutoPhi()
        assert unsaid.estimator(free=True) == LookaheadPhi()
        assert unsaid.estimator(SMC(particles=5), free=True) == LocalPhi()
        assert unsaid.estimator(usual=None) is None
        assert unsaid.replaced_by("exact").estimator(SMC(particles=5), free=True) == ExactPhi()


class TestCalls:
    def test_free_text_has_nothing_to_correct(self) -> None:
        assert Call.of(Correction(), None, {}).phi is None
        assert Call.of(Correction(ExactPhi(), inherited=True), None, {}).phi is None
        assert Call.of(Correction(ExactPhi()), None, {}).phi == ExactPhi(), "a wish that is refused later"
        assert Call.of(Correction(ban=LEVELLESS), None, {}).phi == LookaheadPhi()

    def test_a_look_ahead_is_told_what_is_pending(self, model: PhiTransformers) -> None:
        masking = MaskLogitsProcessor(model.table(WORDS, LEVELLESS), ban=LEVELLESS)
        assert not isinstance(masking.table.guide, BanningGuide)
        call = Call.of(Correction(LookaheadPhi()), masking, {})
        assert isinstance(call.table(model.compiled).guide, BanningGuide)
        assert call.banned == LEVELLESS
        assert Call.of(Correction(LocalPhi()), masking, {}).table(model.compiled) is masking.table


def test_a_generator_keeps_the_options_of_the_model_beside_a_level(model: PhiTransformers) -> None:
    chosen = ExactPhi(width=7)
    assert outlines_phi.Generator(outlines_phi.wrap(model, phi=chosen, banned_phrases=EXACT), WORDS).phi == chosen


def test_a_classic_generator_with_a_phi_of_its_own_keeps_the_ban_of_the_model(model: PhiTransformers) -> None:
    banning = outlines_phi.wrap(model, banned_phrases=EXACT)
    words = generate.choice(banning, ["open now", "closed", "open"], phi="local")
    assert words.phi == LocalPhi()
    assert {words("Is it open? ", seed=seed) for seed in range(8)} <= {"open", "closed"}


@pytest.mark.parametrize("door", MISFITS)
def test_what_asks_for_nothing_fits_everywhere(door: str) -> None:
    said = {"n": 2, "roads": "or another way"}
    for misfit in MISFITS[door]:
        for name in misfit.names:
            idle = OPTIONS[name].idle if name in OPTIONS else (None,)
            if not misfit.strict:
                for value in idle:
                    refuse_misfits(door, {name: value}, **said)
            with pytest.raises(outlines_phi.UnsupportedError, match=r"^[^{]*\.$") as refused:
                refuse_misfits(door, {name: "something"}, **said)
            assert name in str(refused.value) or door in str(refused.value)
