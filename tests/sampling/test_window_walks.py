"""One window: its attempts, the estimate of what it leaves out, and what is kept in memory meanwhile."""

from __future__ import annotations

import gc
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from outlines_phi.guides.table import Table
from outlines_phi.lm.forest import Forest
from outlines_phi.lm.model import Evaluation, LanguageModel, ModelCounts, TokenTrees
from outlines_phi.numerics.transfers import Rows
from outlines_phi.phi.branches import Branch
from outlines_phi.phi.tree.tree import BoundsTree
from outlines_phi.phi.tree.window import PhraseWindows, Renewal
from outlines_phi.sampling import window_walks as windows
from outlines_phi.sampling.lookahead import LookaheadSampler
from outlines_phi.sampling.phi_options import Effort, LookaheadPhi
from outlines_phi.sampling.sampler import Request
from outlines_phi.sampling.window_walks import WASTE, NormalizerWalk, WindowAttempts, WindowTree
from outlines_phi.settings import SamplingSettings
from tests.sampling.banning import NESTED, SHORT, VOCABULARY, WHOLE, Banned, SlowGuide

cases = pytest.mark.parametrize("case", [SHORT, NESTED], ids=str)
LONG = 2_000


def run(ground: WindowTree, walks: WindowAttempts | NormalizerWalk, case: Banned) -> None:
    """Take walks to their ends."""
    handle = 1
    while nodes := ground.grow(walks):
        for node in nodes:
            text = ground.text_of(node)
            text.node, text.answer, handle = handle, np.log(case.p(node.tokens())), handle + 1


def ground(case: Banned) -> WindowTree:
    windows_of = PhraseWindows(case.table, Renewal(16))
    return WindowTree(windows_of, case.table.start, case.budget, Branch(-1, -1, 0, np.log(case.p(()))), 0)


@cases
@pytest.mark.parametrize("coarseness", [0.05, 0.25, 1.0])
def test_the_estimate_of_a_window_is_unbiased(case: Banned, coarseness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate is that of a walk launched always or by chance, whatever the attempts before it have found."""
    monkeypatch.setattr(windows, "COARSENESS", coarseness)
    psi, estimates = case.reach(WHOLE, (), ()), []
    rng = np.random.default_rng(0)
    for _ in range(2000):
        here = ground(case)
        attempts = WindowAttempts(here.tree, rng, width=4, effort=Effort(), diagnostics=rng)
        run(here, attempts, case)
        assert attempts.satisfied
        weighing = NormalizerWalk(here, rng)
        run(here, weighing, case)
        assert (1 - max(coarseness, math.exp(here.tree.root.log_gap))) * math.exp(here.tree.root.log_lower) <= math.exp(
            weighing.log_estimate
        ) + 1e-12
        estimates.append(math.exp(weighing.log_estimate))
    assert abs(np.mean(estimates) - psi) < 4 * np.std(estimates) / math.sqrt(len(estimates))


def test_a_walk_is_rare_where_little_is_undecided() -> None:
    """The undecided mass over the coarseness is the chance of a walk."""
    case = Banned((b"bc",), 3, seed=1)
    rng, launched = np.random.default_rng(0), []
    log_p = np.log([0.9, 0.0495, 0.001, 0.0005, 0.0, 0.049], where=[True] * 4 + [False, True], out=np.full(6, -np.inf))
    for _ in range(2000):
        here = WindowTree(PhraseWindows(case.table, Renewal(16)), 2, 3, Branch(-1, -1, 0, log_p), 0)
        here.grow(WindowAttempts(here.tree, rng, width=1, effort=Effort(), diagnostics=rng))
        launched.append(bool(here.grow(NormalizerWalk(here, rng))))
    assert math.exp(here.tree.root.log_gap) == pytest.approx(0.0015)
    assert abs(np.mean(launched) - 0.006) < 4 * math.sqrt(0.006 / 2000)


def test_as_many_attempts_go_at_once_as_have_failed() -> None:
    """All but a millionth of the texts run into one of eight phrases."""
    phrases = tuple(bytes(letters) for letters in itertools.product(b"ab", repeat=3))
    p = np.array([0, 0.25, 0.25, 0.25, 0.25, 1e-6])
    eight = PhraseWindows(Table(SlowGuide(VOCABULARY, phrases)), Renewal(16))
    with np.errstate(divide="ignore"):
        here = WindowTree(eight, 2, 5, Branch(-1, -1, 0, np.log(p / p.sum())), 0)
    attempts, flight = (
        WindowAttempts(
            here.tree, np.random.default_rng(0), width=3, effort=Effort(), diagnostics=np.random.default_rng(1)
        ),
        [],
    )
    while waiting := here.grow(attempts):
        flight.append((len(attempts.failed), len(waiting)))
        for node in waiting:
            here.text_of(node).node, here.text_of(node).answer = 1, here.text.answer
    assert all(count <= max(1, min(3, failed)) for failed, count in flight)
    assert max(count for _, count in flight) == 3


class Gibberish(LanguageModel):
    """A law that reads the last token only, at a cost that does not grow with the text."""

    def __init__(self, logits: np.ndarray) -> None:
        self.vocabulary, self.max_length, self.device = VOCABULARY, None, torch.device("cpu")
        self.logits = torch.from_numpy(logits)

    def trees(self, prompts: object) -> GibberishTrees:
        self.latest = GibberishTrees(self, prompts)
        return self.latest


class GibberishTrees(TokenTrees):
    def __init__(self, model: Gibberish, prompts: object) -> None:
        self.model, self.counts = model, ModelCounts()
        self.forest = Forest(prompts, len(VOCABULARY), None)  # type: ignore[arg-type]

    def roots(self, parents: object = (), tokens: object = ()) -> Evaluation:
        nodes = self.forest.plant()
        return Evaluation(nodes, Rows.all(self.model.logits[[1] * len(nodes)]))

    def extend(self, parents: object, tokens: object) -> Evaluation:
        nodes = self.forest.add(parents, tokens)  # type: ignore[arg-type]
        self.counts.tokens += len(nodes)
        return Evaluation(nodes, Rows.all(self.model.logits[self.forest.token[nodes.start : nodes.stop]]))

    @property
    def next_node(self) -> int:
        return len(self.forest)

    def compact(self, keep: object) -> None:
        self.forest.retain(keep)  # type: ignore[arg-type]


def alive(kind: type) -> int:
    return Counter(map(type, gc.get_objects()))[kind]


@pytest.mark.parametrize("phi", [LookaheadPhi(weights=True), LookaheadPhi(release="early")], ids=["window", "early"])
def test_memory_is_flat_over_a_long_text(phi: LookaheadPhi) -> None:
    """2,000 tokens, a third of them beginning a phrase: what is held is the text and the window under way."""
    logits = np.random.default_rng(3).standard_normal((6, 6))
    logits[:, 0] = -50.0  # never ends
    model = Gibberish(logits)
    table = Table(SlowGuide(VOCABULARY, (b"abc", b"bb", b"caa")))
    settings = SamplingSettings(max_new_tokens=LONG, seed=0)
    request = Request(lm=model, table=table, prompts=[(1,)], settings=settings)
    gc.collect()
    before = alive(Branch), alive(BoundsTree)
    checked = 0
    for (walk,) in LookaheadSampler(phi).steps(request):
        written = len(walk.tokens)
        if written // 500 > checked:
            checked = written // 500
            kept = int(model.latest.forest.alive[: model.latest.next_node].sum())
            assert kept <= 2 * written + 2 * WASTE
            assert alive(Branch) - before[0] < 40 and alive(BoundsTree) - before[1] < 8
            assert table.bytes < 2**20
    text = b"".join(VOCABULARY.tokens[token] for token in walk.tokens)
    assert checked == 4 and written == LONG and not any(phrase in text for phrase in (b"abc", b"bb", b"caa"))
    rejected = model.latest.counts.tokens - written
    assert rejected > 100  # evaluated in vain, and given back
