"""The weights of every estimator, by summation; backward induction beside naive recursion; predicates on texts."""

import ast
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outlines_phi
from benchmarks.estimators import dp_frozen
from benchmarks.estimators.dp_frozen import FrozenDPPhi
from outlines_phi import BigramDPPhi, LearnedPhi, LocalPhi, OneStepPhi, TextConstraint, UnsupportedError, Vocabulary
from outlines_phi.automata.byte_machine import ByteMachine
from outlines_phi.guides import Guide, MachineGuide, Table
from outlines_phi.guides import table as tables
from outlines_phi.lm import TableModel
from outlines_phi.phi import ProposalPhi, StepPhi, dp_bigram
from outlines_phi.phi.constraint import all_of
from tests.inner import DEAD, DONE, SETTLED, Branch, Branches, KeptValues, Layers, Request, branches
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language, ids, sample
from tests.phi.walks import (
    LookingPhi,
    ManyPartitions,
    forest_of,
    law_after,
    mean_weight,
    no_floor,
    paths,
    run_of,
    states_of,
    steps,
    true_phi,
    with_part,
)
from tests.refusals import refused

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


def kept(language: Language, **options: Any) -> LearnedPhi:
    """Return the estimator learned from some unseeded draws, which stands still during a call."""
    values = KeptValues()
    torch.manual_seed(0)
    sample(LearnedPhi(values), language.request(64, seed=None, **options))
    assert len(values.of(language.lm, language.table, language.settings(**options))) > 1
    return LearnedPhi(values)


PROPOSALS: dict[str, Callable[..., ProposalPhi]] = {
    "looking": lambda *_, **__: LookingPhi(),
    "looking at one": lambda *_, **__: LookingPhi(most=1, floor=1e-3),
    "looking at all": lambda *_, **__: LookingPhi(most=99),
    "bigram": lambda *_, **__: BigramDPPhi(),
    "bigram, cut": lambda *_, **__: BigramDPPhi(tokens=2, states=3, max_bytes=200),
    "bigram of the first state": lambda *_, **__: BigramDPPhi(states=1),
    "frozen": lambda *_, **__: FrozenDPPhi(horizon=2, states=2),
    "learned": kept,
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", PROPOSALS)
@languages
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"temperature": 0.5}], ids=str)
def test_the_mean_weight_is_phi(name: str, options: dict[str, Any], language: Language) -> None:
    """``sum_y q(y) w(y) = Phi`` over all paths, and each weight is ``p / q``."""
    found = paths(language, PROPOSALS[name](language, **options), seed=None, **options)
    assert mean_weight(found) == pytest.approx(math.exp(language.reference(**options).log_phi), rel=1e-9)
    assert all(path.log_w == pytest.approx(path.log_p - path.log_q, abs=1e-9) for path in found)


class Nested(ByteMachine[tuple[int, bool]]):
    """``a^n b^n``: as many places as bytes may come."""

    start = (0, False)

    def step(self, place: tuple[int, bool], byte: int) -> tuple[int, bool] | None:
        depth, closing = place
        if byte == ord("a") and not closing:
            return depth + 1, False
        return (depth - 1, True) if byte == ord("b") and depth else None

    def ends(self, place: tuple[int, bool]) -> bool:
        return place == (0, True)


def test_states_are_explored_as_far_as_the_budget_goes() -> None:
    found = [len(dp_bigram.explore(MachineGuide(Nested(), VOCABULARY), 2_048, depth)) for depth in (1, 3, 5)]
    assert found[0] == 1 and found == sorted(found) and found[-1] < 30


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_refused(value: float) -> None:
    flat = {"log_h": lambda _, log_p, table, state, left: log_p.new_full((table.partition(state).size,), value)}
    request = LANGUAGES[0].request(4, seed=1)
    for asked in (request, replace(request, constraint=TextConstraint(bool).over(VOCABULARY))):
        refused("log_h.*NaN or .inf", sample, type("Flat", (StepPhi,), flat)(), asked, error=UnsupportedError)


def test_without_a_floor_mass_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power control: with top_k = 5 a surrogate rules out members that the law allows."""
    monkeypatch.setattr(dp_bigram, "floored", no_floor)
    language, options = LANGUAGES[0], {"top_k": 5}
    found = mean_weight(paths(language, BigramDPPhi(), **options))
    assert found < 0.999 * math.exp(language.reference(**options).log_phi)


def test_what_was_looked_at_in_vain_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it changes no draw: the walks stand on what is kept."""
    language, phi, kept = LANGUAGES[0], LookingPhi(), []
    (usual,) = sample(phi, language.request(60, seed=2))
    monkeypatch.setattr(branches, "WASTE", 3)
    compact = Branches.compact

    def counting(self: Branches, nodes: Iterable[int]) -> None:
        compact(self, nodes)
        forest = forest_of(self)
        kept.append(int(forest.alive[: len(forest)].sum()) / len(forest))

    monkeypatch.setattr(Branches, "compact", counting)
    (draws,) = sample(phi, language.request(60, seed=2))
    assert (ids(draws), draws.counts.tokens) == (ids(usual), usual.counts.tokens)
    assert len(kept) > 1 and min(kept) < 0.6


LM = TableModel.random(VOCABULARY, seed=4)
PROMPTS = [(1, 2), (3,)]


def law(*tokens: int, row: int = 0) -> torch.Tensor:
    return torch.from_numpy(LM.logits((*PROMPTS[row], *tokens)))


def test_chains_are_evaluated_with_the_prompts_in_one_call() -> None:
    branches, root = Branches(LM, PROMPTS), Branch(-1, -1, 0)
    chain = [*root.along((5, 6, 7))][1:] + [Branch(-1, -1, 1).child(5)]
    logits = branches.reach(chain)
    assert [prefix.node for prefix in chain] == [2, 3, 4, 5] and branches.trees.counts.calls == 1
    assert torch.equal(logits.whole(), torch.stack([law(5), law(5, 6), law(5, 6, 7), law(5, row=1)]))
    assert torch.equal(branches.plant().whole(), torch.stack([law(), law(row=1)]))
    assert branches.trees.counts.calls == 1


def test_what_was_drafted_is_not_evaluated_again() -> None:
    """By a chain that another walk did not follow."""
    branches, root = Branches(LM, PROMPTS), Branch(-1, -1, 0)
    chain = [*root.along((5, 6, 7))]
    for prefix, answer in zip(chain, branches.reach(chain).each(), strict=True):
        prefix.answer = answer
    assert branches.trees.counts.tokens == 3
    logits = branches.reach(chain[2:])
    assert branches.trees.counts.tokens == 3
    assert torch.equal(logits.whole(), torch.stack([law(5, 6), law(5, 6, 7)]))


def test_nothing_asked_for_costs_the_prompts_and_what_no_walk_wants_is_forgotten() -> None:
    branches = Branches(LM, PROMPTS)
    for _ in range(2):
        assert (branches.reach([]).whole().shape, branches.trees.counts.calls) == ((0, len(VOCABULARY)), 1)
    branches, root = Branches(LM, PROMPTS), Branch(-1, -1, 0)
    chain = [*root.along((5, 6, 7))][1:]
    chain[1].answer = branches.reach(chain).each()[1]
    branches.reach(chain[1:])
    assert branches.trees.counts.tokens == 4  # the second below a chain that was given up


def scores(language: Language, phi: StepPhi) -> torch.Tensor:
    """``log p + log h`` at every state and budget of a language, from a table of its own."""
    table = Table(language.table.guide)
    states = [(state, left) for state in states_of(table.guide, language.budget) for left in range(1, 6)]
    reachable = [(state, left) for state, left in states if table.guide.min_tokens(state) <= left]
    generator = torch.Generator().manual_seed(3)
    log_p = torch.log_softmax(
        torch.randn(len(reachable), len(VOCABULARY), generator=generator, dtype=torch.float64), -1
    )
    return phi.scores(log_p, table, [state for state, _ in reachable], [left for _, left in reachable])


@pytest.mark.parametrize("phi", [LocalPhi, OneStepPhi, LearnedPhi], ids=lambda phi: phi.name)
@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_few_live_tokens_are_picked_and_nothing_changes(
    phi: type[StepPhi], language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FEW", 10**9)
    whole = scores(language, phi())
    monkeypatch.setattr(tables, "FEW", 0)
    picked = scores(language, phi())
    assert len(whole) > 10 and (whole > -torch.inf).any(-1).all() and (whole == -torch.inf).any()
    assert torch.equal(whole == -torch.inf, picked == -torch.inf)
    assert torch.allclose(whole, picked, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("phi", [LocalPhi, OneStepPhi, LearnedPhi], ids=lambda phi: phi.name)
@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_rows_of_one_state_together_are_as_each_alone(phi: type[StepPhi], language: Language) -> None:
    table = Table(language.table.guide)
    log_p = torch.randn(5, len(VOCABULARY), generator=torch.Generator().manual_seed(5)).log_softmax(-1)
    state, left = table.start, language.budget
    other = next(
        found for found in states_of(table.guide, left) if found != state and table.guide.min_tokens(found) < left
    )
    states, remaining = [state, state, state, other, state], [left, left, left, left - 1, left]
    before = log_p.clone()
    together = phi().scores(log_p, table, states, remaining)
    apart = [phi().scores(log_p[[i]], table, [states[i]], [remaining[i]]) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(apart))
    assert torch.equal(log_p, before)


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_logits_do_as_well_as_log_probabilities(language: Language) -> None:
    phi = OneStepPhi()
    logits = 3 * torch.randn(len(VOCABULARY), generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 50
    table, left = language.table, 6
    of_logits = phi.log_h(logits[None], table, table.start, left)
    assert torch.allclose(
        of_logits, phi.log_h(logits.log_softmax(-1)[None], table, table.start, left), rtol=1e-6, atol=1e-6
    )


def test_it_imports_public_names_alone() -> None:
    source = ast.parse(Path(dp_frozen.__file__).read_text(encoding="utf-8"))
    ours = [
        node for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and "outlines_phi" in str(node.module)
    ]
    assert len(ours) == 2
    for node in ours:
        assert (node.module or "").removeprefix("outlines_phi.") in outlines_phi.__all__
        assert {alias.name for alias in node.names} <= set(importlib.import_module(str(node.module)).__all__)


LEAST = 1e-250
"""A floor that holds nothing back."""

EOS_ID = VOCABULARY.eos_ids[0]


def values_by_recursion(guide: Guide, law: Callable[[int], Sequence[float]]) -> Callable[[int, int, int], float]:
    """Return ``h``, by naive recursion, of a state, the token before it, after which there is a law, and the tokens left."""

    @cache
    def h(state: int, u: int, left: int) -> float:
        if state == DONE:
            return 1.0
        if state == DEAD or left == 0:
            return 0.0
        return sum(p * h(guide.advance(state, v), v, left - 1) for v, p in enumerate(law(u)))

    return h


class TestBigram:
    @languages
    @pytest.mark.parametrize("wrap", [lambda guide: guide, ManyPartitions], ids=["one partition", "two partitions"])
    def test_values_are_those_of_naive_recursion(self, language: Language, wrap: Callable[[Guide], Guide]) -> None:
        """With all tokens, at every prefix, under a law that depends on everything."""
        language = with_part(language, "table", Table(wrap(language.table.guide)))
        guide, settings = language.table.guide, language.settings()
        after = {u: law_after(language, settings, (u,)) for u in range(1, len(VOCABULARY))}

        h = values_by_recursion(guide, after.__getitem__)
        run = run_of(language)
        seen = 0
        for step in steps(run, BigramDPPhi(floor=LEAST).begin(run)):
            expected = [
                h(guide.advance(step.state, v), v, step.remaining - 1) if v else float(step.log_h[v] == 0)
                for v in range(len(VOCABULARY))
            ]
            assert step.log_h.exp().tolist() == pytest.approx(expected, rel=10 * SETTLED, abs=1e-240)
            seen += 1
        assert seen > 5

    @pytest.mark.parametrize("limit", [1, 3, 5, 7])
    def test_other_tokens_have_the_law_of_their_class(self, limit: int) -> None:
        """The likeliest of each class first; the mean over the evaluated of a class, or over all, stands for the rest."""
        language = LANGUAGES[0]
        table, settings = language.table, language.settings()
        guide, class_of = table.guide, table.partition(table.start).class_of
        used = [v for v in range(1, len(VOCABULARY)) if any(guide.advance(s, v) != DEAD for s in states_of(guide, 8))]
        root = law_after(language, settings, ())
        order = sorted(used, key=lambda v: -root[v])
        leading = [v for i, v in enumerate(order) if class_of[v] not in {class_of[u] for u in order[:i]}]
        chosen = (leading + [v for v in order if v not in leading])[:limit]
        assert len(chosen) == min(limit, len(used))
        after = {u: np.array(law_after(language, settings, (u,))) for u in chosen}

        def law(u: int) -> np.ndarray:
            if u in after:
                return after[u]
            among = [v for v in chosen if class_of[v] == class_of[u]] or chosen
            return sum(root[v] * after[v] for v in among) / sum(root[v] for v in among)

        h = values_by_recursion(guide, law)
        run = run_of(language)
        for step in steps(run, BigramDPPhi(tokens=limit, floor=LEAST).begin(run)):
            for v in used:
                if (target := guide.advance(step.state, v)) != DEAD and guide.min_tokens(target) < step.remaining:
                    assert math.exp(step.log_h[v]) == pytest.approx(h(target, v, step.remaining - 1), rel=1e-9)

    @languages
    def test_it_is_exact_where_the_law_looks_at_the_last_token_only(self, language: Language) -> None:
        """Every draw has the weight Phi, where one step by the current law does not."""
        markov = with_part(language, "lm", TableModel.random(VOCABULARY, seed=language.seed, order=1, scale=1.5))
        phi = true_phi(markov)((), markov.table.start, markov.budget)
        found = paths(markov, BigramDPPhi(floor=LEAST))
        assert all(math.exp(path.log_w) == pytest.approx(phi, rel=1e-9) for path in found)
        assert any(abs(math.exp(path.log_w) / phi - 1) > 0.1 for path in paths(markov, OneStepPhi(floor=LEAST)))

    def test_tiny_values_keep_their_proportions(self) -> None:
        """Phi of 1e-600, which no float64 holds, is followed exactly: all in log space."""
        language = Language("long", "(a|b){40}x", 42, seed=2)
        law = TableModel.random(VOCABULARY, seed=2, order=1, scale=1.0)
        steep = np.array([-35.0 * len(token) * (set(token) <= set(b"ab")) for token in VOCABULARY.tokens])
        language = with_part(language, "lm", TableModel(VOCABULARY, lambda ids: law.next_logits(ids) + steep))
        (draws,) = sample(BigramDPPhi(floor=LEAST), language.request(20, seed=1))
        assert draws.log_w == pytest.approx(draws.log_w[0], abs=1e-7) and draws.log_w[0] < math.log(1e-300) - 690

    def test_its_calls_are_those_of_the_run(self) -> None:
        """One batch for all prompts: each token once, below its prompt; equal prompts share theirs."""
        language = LANGUAGES[0]
        guide, members = language.table.guide, range(1, len(VOCABULARY))
        used = sum(any(guide.advance(state, v) != DEAD for state in states_of(guide, 8)) for v in members)
        prompts = [PROMPT, (3,), PROMPT]
        request = Request(lm=language.lm, table=language.table, prompts=prompts, settings=language.settings(1), n=1)
        for limit in (3, 256):
            draws = sample(BigramDPPhi(tokens=limit), request)
            written = [draw.token_ids for each in draws for draw in each]
            assert draws[0].counts.tokens == 2 * min(limit, used) + sum(len(ids) - 1 for ids in written)
            assert draws[0].counts.calls == 2 + max(map(len, written)) - 1
            assert draws[0].counts.prompt_tokens == sum(map(len, set(prompts)))

    def test_a_budget_of_one_token_asks_for_nothing(self) -> None:
        (draws,) = sample(BigramDPPhi(), Language("empty", "a?", 1, seed=3).request(3, seed=1))
        assert ids(draws) == [(EOS_ID,)] * 3 and draws.counts.tokens == 0


class TestLayers:
    """``x_{t+1} = 0.5 x_t + 0.25`` from 0, in log space: it tends to 0.5."""

    @staticmethod
    def step(values: np.ndarray) -> np.ndarray:
        return np.log(0.5 * np.exp(values) + 0.25)

    def layers(self, budget: int, max_bytes: int = 10**6) -> Layers:
        return Layers(np.array([-np.inf, -np.inf]), self.step, budget, max_bytes)

    def test_it_stops_where_values_settle_and_not_in_a_silent_stretch(self) -> None:
        layers = self.layers(10**9)
        assert layers.top < 40 and math.exp(layers.at(10**8)[0]) == pytest.approx(0.5, rel=4 * SETTLED)
        # A value that moves on while the others rest: the last to be reached lies 20 steps away.
        size = 21
        first = np.full(size, -np.inf)
        first[0] = 0.0
        layers = Layers(first, lambda values: np.append(0.0, values[:-1]), 100, 10**6)
        assert (layers.top, layers.at(100).tolist()) == (size - 1, [0.0] * size)

    @pytest.mark.parametrize("kept", [2, 3, 5])
    def test_memory_is_bounded_by_sharing_larger_budgets(self, kept: int) -> None:
        layers, all_of_them = self.layers(18, max_bytes=kept * 16), self.layers(18)
        assert len(layers) <= kept + 1
        for t in range(19):
            assert any(np.array_equal(layers.at(t), all_of_them.at(u)) for u in range(t, 19))
        assert np.array_equal(layers.at(18), all_of_them.at(18))


EURO = "€".encode()
BYTES = Vocabulary.from_tokens(["<eos>", "a", EURO[:1], EURO[1:], "b", "é"], 0)


class Asked:
    """A predicate that remembers what it was asked."""

    def __init__(self, without: str = "-") -> None:
        self.refused, self.texts = without, list[str]()

    def __call__(self, text: str) -> bool:
        self.texts.append(text)
        return self.refused not in text

    def method(self, text: str) -> bool:
        return self(text)


def test_whole_characters_beginnings_and_whole_texts_are_asked_about() -> None:
    asked = Asked("€")
    constraint = TextConstraint(asked).over(BYTES)
    assert constraint.allows([1, 2], finished=False) and not constraint.allows([1, 2, 3], finished=False)
    assert constraint.allows([5, 1], finished=False) and constraint.allows([2], finished=False)
    assert asked.texts == ["a", "a€", "éa"] and constraint.allows([], finished=True) and asked.texts[-1] == ""
    prefix, complete = Asked("b"), Asked("a")
    constraint = TextConstraint(prefix, complete=complete).over(BYTES)
    assert constraint.allows([1], finished=False) and not constraint.allows([1], finished=True)
    assert not constraint.allows([4], finished=False) and not constraint.allows([4], finished=True)
    assert prefix.texts == ["a", "b"] and complete.texts == ["a"]  # what prefix refuses, complete is not asked about
    assert TextConstraint(complete=complete).over(BYTES).allows([1], finished=False)
    constraint = TextConstraint(lambda text: np.bool_(text != "b")).over(BYTES)
    assert constraint.allows([1], finished=False) is True and constraint.allows([4], finished=False) is False


def test_verdicts_are_kept_within_a_bound() -> None:
    asked = Asked()
    constraint = TextConstraint(asked, memory=3).over(BYTES)
    for tokens in ([1], [1], [4], [1, 1], [1], [1, 4], [1]):
        constraint.allows(tokens, finished=False)
    assert asked.texts == ["a", "b", "aa", "ab", "a"]
    assert 0 < constraint.bytes < 1000
    full = constraint.bytes
    for length in range(20):
        constraint.allows([4] * (length % 3 + 1), finished=False)
    assert constraint.bytes <= full + 10


def test_threads_may_share_a_constraint() -> None:
    """Threads evict what others have just looked up; each gets the answer all the same, and the bound holds."""
    constraint = TextConstraint(lambda text: len(text) % 2 == 0, memory=2).over(BYTES)

    def work(first: int) -> bool:
        lengths = ((first + 7 * i) % 5 + 1 for i in range(4000))
        return all(constraint.allows([1] * n, finished=False) is (n % 2 == 0) for n in lengths)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert constraint.bytes <= 2 * 200


def test_identity_of_the_callable_tells_constraints_apart() -> None:
    @dataclass
    class Equal:
        """Callables that are equal to one another, and cannot be hashed."""

        def __call__(self, text: str) -> bool:
            return True

    one, other = Equal(), Equal()
    assert TextConstraint(one) == TextConstraint(one) and hash(TextConstraint(one)) == hash(TextConstraint(one))
    assert TextConstraint(one) != TextConstraint(other) and one == other
    assert TextConstraint(one) != TextConstraint(complete=one) != TextConstraint(one, further=1)
    asked = Asked()
    assert TextConstraint(asked.method) == TextConstraint(asked.method) != TextConstraint(Asked().method)
    assert TextConstraint(one).over(BYTES) == TextConstraint(one).over(BYTES)
    elsewhere = Vocabulary.from_tokens(["<eos>", "a"], 0)
    assert TextConstraint(one).over(BYTES) != TextConstraint(one).over(elsewhere)


def test_several_constraints_are_one_and_messages_call_it_by_its_predicate() -> None:
    no_a, no_b = (TextConstraint(Asked(letter), further=n).over(BYTES) for letter, n in (("a", 3), ("b", 2)))
    both = all_of(no_a, None, no_b)
    assert both is not None and all_of(None) is None and all_of(no_a, None) is no_a
    assert [both.allows([token], finished=False) for token in (1, 4, 5)] == [False, False, True]
    assert both.further == 2 and both.bytes == no_a.bytes + no_b.bytes
    assert both == all_of(no_a, no_b) and hash(both) == hash(all_of(no_a, no_b)) and both != all_of(no_b, no_a)

    def checked(text: str) -> bool:
        return True

    assert str(TextConstraint(checked)).endswith(".checked")
    assert str(TextConstraint(complete=checked)).startswith("TextConstraint(complete=test_several")
    assert str(TextConstraint(checked).over(BYTES)).startswith("constraint=test_several")
    blank = Vocabulary((b"",) * 4, (0,), np.ones(4, dtype=bool))
    with pytest.raises(UnsupportedError, match="give the tokenizer too: vocabulary=tokenizer"):
        TextConstraint(str.isalpha).over(blank)
