"""The true next law of the likeliest children, against direct sums."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.guide import DONE
from outlines_phi.phi import branches
from outlines_phi.phi.branches import Branches
from outlines_phi.phi.estimators import candidates
from outlines_phi.phi.estimators.candidates import Candidates
from outlines_phi.phi.estimators.lookahead1 import Lookahead1Phi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.sampler import Request
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language
from tests.phi.walks import Step, children, law_after, mean_weight, no_floor, paths, run_of, steps, true_phi

LEAST = 1e-250
EVERYTHING = Lookahead1Phi(candidates=len(VOCABULARY), share=1.0, floor=LEAST)

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


def live_mass(language: Language, step: Step, token: int, target: int, **options: object) -> float:
    """``sum_w p(w | yv) 1[w live after yv]``, token by token."""
    if target == DONE:
        return 1.0
    guide, law = language.table.guide, law_after(language, language.settings(**options), (*step.ids, token))
    return sum(p for w, p in enumerate(law) if guide.min_tokens(guide.advance(target, w)) <= step.remaining - 2)


@languages
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"repetition_penalty": 1.7}], ids=str)
def test_values_are_those_of_direct_sums(language: Language, options: dict[str, object]) -> None:
    run, seen = run_of(language, **options), 0
    for step in steps(run, EVERYTHING.begin(run)):
        for token, target in children(run.table, step):
            expected = live_mass(language, step, token, target, **options)
            if expected > 0:  # else the floor decides
                assert math.exp(step.log_h[token]) == pytest.approx(expected, rel=1e-6)
                seen += 1
    assert seen >= 1 or options == {"top_k": 5}


@languages
@pytest.mark.parametrize(("most", "share"), [(1, 1.0), (2, 1.0), (8, 0.5), (8, 0.9)])
def test_the_rest_has_the_mean_of_what_was_looked_at(language: Language, most: int, share: float) -> None:
    """Of the same target, else of all; by mass."""
    run, rest = run_of(language), 0
    for step in steps(run, Lookahead1Phi(candidates=most, share=share, floor=LEAST).begin(run)):
        inner = [(token, target) for token, target in children(run.table, step) if target != DONE]
        inner.sort(key=lambda child: -step.log_p[child[0]])
        mass = [math.exp(step.log_p[token]) for token, _ in inner]
        looked = [i for i in range(len(inner)) if i < most and sum(mass[:i]) < share * sum(mass)]
        h = [live_mass(language, step, *inner[i]) for i in looked]
        for i, (token, target) in enumerate(inner):
            among = [j for j in looked if inner[j][1] == target] or looked
            mean = sum(mass[j] * h[j] for j in among) / sum(mass[j] for j in among)
            expected = h[i] if i in looked else mean
            rest += i not in looked
            if expected > 0:
                assert math.exp(step.log_h[token]) == pytest.approx(expected, rel=1e-6)
    assert rest > 0 or language.name == "nested"  # which has no more than two ways on


@pytest.mark.parametrize("pattern", ["a|b|cc", "[abcx]"])
def test_it_is_exact_where_validity_is_decided_in_one_step(pattern: str) -> None:
    """One token and the end: every draw has the weight Phi, as under no other cheap estimator."""
    language = Language(pattern, pattern, 2, seed=6)
    phi = true_phi(language)((), language.table.start, language.budget)
    found = paths(language, EVERYTHING)
    assert len(found) > 2
    assert all(math.exp(path.log_w) == pytest.approx(phi, rel=1e-9) for path in found)
    control = paths(language, Lookahead1Phi(floor=1.0))  # plain masking
    assert any(abs(math.exp(path.log_w) / phi - 1) > 0.1 for path in control)


@languages
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"temperature": 0.5}], ids=str)
@pytest.mark.parametrize("phi", [Lookahead1Phi(), Lookahead1Phi(candidates=1), EVERYTHING], ids=["8", "1", "all"])
def test_the_mean_weight_is_phi(phi: Lookahead1Phi, options: dict[str, object], language: Language) -> None:
    """``sum_y q(y) w(y) = Phi`` over all paths, and each weight is ``p / q``."""
    found = paths(language, phi, **options)
    assert mean_weight(found) == pytest.approx(math.exp(language.reference(**options).log_phi), rel=1e-9)
    assert all(path.log_w == pytest.approx(path.log_p - path.log_q, abs=1e-9) for path in found)


def test_without_a_floor_mass_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power control: with top_k = 5 the child that was looked at is dead, and the others answer for it."""
    monkeypatch.setattr(candidates, "floored", no_floor)
    options = {"top_k": 5}
    lost = [
        mean_weight(paths(language, Lookahead1Phi(candidates=1), **options))
        < 0.999 * math.exp(language.reference(**options).log_phi)
        for language in LANGUAGES
    ]
    assert any(lost)


@pytest.mark.parametrize("most", [1, 3])
@languages
def test_what_is_looked_at_and_chosen_is_evaluated_once(most: int, language: Language) -> None:
    """Model tokens are the distinct prefixes that were walked or looked at; calls are two per step at most."""
    draws = AncestralSampler(Lookahead1Phi(candidates=most, share=1.0)).sample(language.request(40, seed=2))[0]
    walked = {draw.token_ids[:n] for draw in draws for n in range(len(draw.token_ids))}
    looked = set()
    settings, table = language.settings(), language.table
    for ids in walked:
        state, law = table.start, torch.tensor(law_after(language, settings, ids))
        for token in ids:
            state = table.guide.advance(state, token)
        among = Candidates(table, state, language.budget - len(ids), law.log(), most=most, share=1.0)
        looked |= {(*ids, token) for token in among.tokens}
    assert draws.counts.tokens == len((walked | looked) - {()})
    assert draws.counts.calls <= 2 * max(len(draw.token_ids) for draw in draws)
    assert len(walked & looked) > 1


def test_a_row_does_not_depend_on_the_others() -> None:
    language, others = LANGUAGES[0], [PROMPT, (3,), (4, 5)]
    request = Request(lm=language.lm, table=language.table, prompts=others, settings=language.settings(5), n=8)
    together = AncestralSampler(Lookahead1Phi()).sample(request)[0]
    alone = AncestralSampler(Lookahead1Phi()).sample(language.request(8, seed=5))[0]
    assert [draw.token_ids for draw in together] == [draw.token_ids for draw in alone]
    assert together.log_w == pytest.approx(alone.log_w, abs=1e-12)


@pytest.mark.parametrize("pattern", ["a?", "ab|ba", "(ab|c)*x"])
def test_the_least_budget(pattern: str) -> None:
    least = Language(pattern, pattern, 99, seed=3)
    budget = least.table.guide.min_tokens(least.table.start)
    language = Language(pattern, pattern, budget, seed=3)
    draws = AncestralSampler(Lookahead1Phi()).sample(language.request(50, seed=1))[0]
    assert len(draws) == 50 and {draw.token_ids for draw in draws} <= set(language.reference().mu)


@pytest.mark.parametrize(("option", "value"), [("candidates", 0), ("candidates", 1.5), ("share", 0), ("floor", 2)])
def test_bad_options(option: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=f"{option}={value!r} was given to Lookahead1Phi; expected a "):
        Lookahead1Phi(**{option: value})  # type: ignore[arg-type]


def test_what_was_looked_at_in_vain_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it changes no draw: the walks stand on what is kept."""
    language, phi, kept = LANGUAGES[0], Lookahead1Phi(share=1.0), []
    usual = AncestralSampler(phi).sample(language.request(60, seed=2))[0]
    monkeypatch.setattr(branches, "WASTE", 10)
    compact = Branches.compact

    def counting(self: Branches, nodes: Iterable[int]) -> None:
        compact(self, nodes)
        forest = self.trees._forest  # type: ignore[attr-defined]
        kept.append(int(forest.alive[: len(forest)].sum()) / len(forest))

    monkeypatch.setattr(Branches, "compact", counting)
    draws = AncestralSampler(phi).sample(language.request(60, seed=2))[0]
    assert [draw.token_ids for draw in draws] == [draw.token_ids for draw in usual]
    assert draws.counts.tokens == usual.counts.tokens
    assert len(kept) > 2 and min(kept[:-1]) < 0.6


def test_what_waits_holds_no_memory_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of logits is a part of the answer about all that was looked at; what is kept of it is a row."""
    language, held = LANGUAGES[0], []
    prune = Branches.prune

    def counting(self: Branches, nodes: Iterable[int], wanted: Iterable[tuple[int, int]] = ()) -> None:
        prune(self, nodes, wanted)
        storages = {logits.untyped_storage().data_ptr(): logits.untyped_storage() for _, logits in self._seen.values()}
        rows = sum(logits.nbytes for _, logits in self._seen.values())
        held.append((sum(storage.nbytes() for storage in storages.values()), rows))

    monkeypatch.setattr(Branches, "prune", counting)
    AncestralSampler(Lookahead1Phi(share=1.0)).sample(language.request(4, seed=2))
    assert max(rows for _, rows in held) > 0
    assert all(storage == rows for storage, rows in held)
