"""An estimator that looks ahead of the walk, in the trees that both grow."""

import math
from collections.abc import Iterable

import pytest

from outlines_phi.phi import branches
from outlines_phi.phi.branches import Branches
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.sampler import Request
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, Language
from tests.phi.looking import LookingPhi
from tests.phi.walks import mean_weight, paths

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


@pytest.mark.in_turn
@languages
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"temperature": 0.5}], ids=str)
@pytest.mark.parametrize(
    "phi", [LookingPhi(), LookingPhi(most=1, floor=1e-3), LookingPhi(most=99)], ids=["2", "1", "all"]
)
def test_the_mean_weight_is_phi(phi: LookingPhi, options: dict[str, object], language: Language) -> None:
    """``sum_y q(y) w(y) = Phi`` over all paths, and each weight is ``p / q``."""
    found = paths(language, phi, **options)
    assert mean_weight(found) == pytest.approx(math.exp(language.reference(**options).log_phi), rel=1e-9)
    assert all(path.log_w == pytest.approx(path.log_p - path.log_q, abs=1e-9) for path in found)


def test_a_row_does_not_depend_on_the_others() -> None:
    language, others = LANGUAGES[0], [PROMPT, (3,), (4, 5)]
    request = Request(lm=language.lm, table=language.table, prompts=others, settings=language.settings(5), n=8)
    together = AncestralSampler(LookingPhi()).sample(request)[0]
    alone = AncestralSampler(LookingPhi()).sample(language.request(8, seed=5))[0]
    assert [draw.token_ids for draw in together] == [draw.token_ids for draw in alone]
    assert together.log_w == pytest.approx(alone.log_w, abs=1e-12)


def test_what_was_looked_at_in_vain_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it changes no draw: the walks stand on what is kept."""
    language, phi, kept = LANGUAGES[0], LookingPhi(), []
    usual = AncestralSampler(phi).sample(language.request(60, seed=2))[0]
    monkeypatch.setattr(branches, "WASTE", 3)
    compact = Branches.compact

    def counting(self: Branches, nodes: Iterable[int]) -> None:
        compact(self, nodes)
        forest = self.trees._forest  # type: ignore[attr-defined]
        kept.append(int(forest.alive[: len(forest)].sum()) / len(forest))

    monkeypatch.setattr(Branches, "compact", counting)
    draws = AncestralSampler(phi).sample(language.request(60, seed=2))[0]
    assert [draw.token_ids for draw in draws] == [draw.token_ids for draw in usual]
    assert draws.counts.tokens == usual.counts.tokens
    assert len(kept) > 1 and min(kept) < 0.6
