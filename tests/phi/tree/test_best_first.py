"""The most probable members, against enumeration."""

import math
from collections.abc import Callable

import pytest

from outlines_phi import SamplingSettings, Vocabulary
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import TableModel
from outlines_phi.phi.tree.best_first import Frontier, ModeSearch
from tests.inner import DONE, BoundsTree, Evaluator, best_first, compile_regex, grow_trees
from tests.inner import tree as tree_module
from tests.languages import AND_OPEN, PROMPT, Language

PATTERNS = ("(ab|ba|c){1,3}x?", "(ab|c)*x", r"(\(\)|\(a\)){1,2}", "[abc]{2}x{2}", "a*(b|cc?)", "[abcx]{0,3}")
LAWS = [
    Language(f"{pattern} {seed} {scale}", pattern, 6, seed=seed, scale=scale)
    for pattern in PATTERNS
    for seed, scale in [(0, 0.3), (1, 1.5), (2, 3.0), (3, 6.0)]
]


def search(
    language: Language, top: int = 1, *, tokens: int = 100_000, **options: object
) -> tuple[ModeSearch, BoundsTree]:
    """Search a fresh tree, without expanding a small language whole first."""
    tree = BoundsTree(language.table, language.budget)
    evaluator = Evaluator(language.lm, language.settings(**options), [PROMPT], [tree])
    found = ModeSearch(tree, top, max_tokens=tokens)
    grow_trees([found], evaluator)
    return found, tree


def best(language: Language, top: int, **options: object) -> list[tuple[tuple[int, ...], float]]:
    """The ``top`` most probable members, by enumeration; ties by token ids."""
    return sorted(language.reference(**options).log_p.items(), key=lambda item: (-item[1], item[0]))[:top]


def greedy(language: Language) -> tuple[int, ...]:
    """The step-by-step argmax over what is allowed."""
    ids, state, remaining = (), language.table.start, language.budget
    while state != DONE:
        moves = language.table.moves(state, remaining)
        i = int(language.lm.logits(PROMPT + ids)[moves.tokens].argmax())
        ids, state, remaining = (*ids, int(moves.tokens[i])), int(moves.targets[i]), remaining - 1
    return ids


@pytest.mark.parametrize("language", LAWS, ids=str)
@pytest.mark.parametrize("top", [1, 2, 7, 10_000])
def test_the_best_members_are_those_of_enumeration(language: Language, top: int) -> None:
    found, _ = search(language, top)
    expected = best(language, top)
    assert found.finished and (len(found.members) == top) == (found.bound > -math.inf)
    assert [node.tokens() for node in found.members] == [ids for ids, _ in expected]
    assert [node.log_p for node in found.members] == pytest.approx([log_p for _, log_p in expected])


@pytest.mark.parametrize(
    "options", [{"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 6}, {"top_p": 0.95}], ids=str
)
def test_settings_define_the_law_whose_mode_it_is(options: dict[str, float]) -> None:
    modes = set()
    for language in LAWS[:8]:
        expected = best(language, 3, **options)
        found, _ = search(language, 3, **options)
        assert [node.tokens() for node in found.members] == [ids for ids, _ in expected]
        modes.add(expected[:1] == best(language, 1))
    assert False in modes  # the setting matters somewhere


def test_the_step_by_step_argmax_is_another_member() -> None:
    """Power: how often random laws make greedy wrong."""
    assert sum(greedy(language) != best(language, 1)[0][0] for language in LAWS) > len(LAWS) // 4


@pytest.mark.parametrize("beam", [1, 8])
def test_a_search_without_the_certificate_is_caught(beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping at the first members that the beam completes gives other ones."""
    monkeypatch.setattr(best_first, "BEAM", beam)
    monkeypatch.setattr(ModeSearch, "finished", property(lambda self: bool(self._found)))
    assert any([search(language)[0].members[0].tokens() != best(language, 1)[0][0] for language in LAWS])


def test_every_prefix_above_the_result_is_expanded_and_none_far_below() -> None:
    """The certificate, by hand; and the work is that of the certificate but for the beam and one call."""
    for language in LAWS:
        found, tree = search(language, 2)
        last = found.members[-1].log_p
        needed = 0
        for node in tree.walk():
            if node.state != DONE:
                assert node.expanded or node.log_p < last
                needed += node.expanded and node.log_p >= last
            assert (
                node.distribution is None
                or not (node.distribution.log_free > -math.inf).any()
                or (node.log_p + node.distribution.log_scale + float(node.distribution.log_free.max()) < last)
            )
        assert tree.expansions <= 1.25 * needed + best_first.BEAM * language.budget + best_first.LEAST_WIDTH * 2


@pytest.mark.parametrize("language", [*LAWS[::5], *AND_OPEN], ids=str)
def test_bounds_hold_wherever_the_search_stops(language: Language) -> None:
    """Nothing that is missing is above the bound, and what is proven holds its place."""
    ranked = best(language, 10_000)
    stops, certified = 0, []
    for tokens in [1, 2, 4, 8, 16, 32, 64, 128]:
        found, _ = search(language, 3, tokens=tokens)
        listed = {node.tokens(): node.log_p for node in found.members}
        assert max([log_p for ids, log_p in ranked if ids not in listed], default=-math.inf) <= found.bound + 1e-12
        proven = [ids for ids, log_p in listed.items() if log_p > found.bound + 1e-12]
        assert proven == [ids for ids, _ in ranked[: len(proven)]]
        stops += not found.finished
        certified.append(found.finished)
    assert stops and sorted(certified) == certified


def test_ties_are_in_the_order_of_token_ids_whatever_the_road() -> None:
    """The uniform law, where everything of one length ties; from fresh trees and from trees that know something."""
    flat = Language("flat", "[abc]{2}", 4, seed=0, scale=0.0)
    expected = best(flat, 5)
    for tokens in (0, 1, 3, 9):
        tree = BoundsTree(flat.table, flat.budget)
        evaluator = Evaluator(flat.lm, flat.settings(), [PROMPT], [tree])
        if tokens:
            grow_trees([ModeSearch(tree, 1, max_tokens=tokens)], evaluator)
        found = ModeSearch(tree, 5, max_tokens=1000)
        grow_trees([found], evaluator)
        assert [node.tokens() for node in found.members] == [ids for ids, _ in expected]


@pytest.mark.parametrize(
    "spoil", [lambda tree: tree.drop_distributions(0), lambda tree: tree.evict(0)], ids=["laws", "subtrees"]
)
def test_a_tree_that_was_evicted_is_as_good(spoil: Callable[[BoundsTree], None]) -> None:
    for language in LAWS[::4]:
        tree = BoundsTree(language.table, language.budget)
        settings = language.settings()
        grow_trees([ModeSearch(tree, 2, max_tokens=20)], Evaluator(language.lm, settings, [PROMPT], [tree]))
        spoil(tree)
        found = ModeSearch(tree, 4, max_tokens=100_000)
        grow_trees([found], Evaluator(language.lm, settings, [PROMPT], [tree]))
        assert [node.tokens() for node in found.members] == [ids for ids, _ in best(language, 4)]


def test_laws_are_dropped_under_a_memory_bound_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "NODE_BYTES", 0)
    language = Language("wide", "[abcx]{4,5}", 7, seed=4, scale=0.5)
    roomy, tree = search(language, 3)
    assert tree.expansions > 100
    tight = BoundsTree(language.table, language.budget)
    found = ModeSearch(tight, 3, max_tokens=100_000, max_bytes=tree.bytes // 2)
    grow_trees([found], Evaluator(language.lm, language.settings(), [PROMPT], [tight]))
    assert found.finished
    assert [node.tokens() for node in found.members] == [node.tokens() for node in roomy.members]
    assert tight.distribution_bytes < tree.distribution_bytes // 2
    assert tight.expansions == tree.expansions  # what was dropped was not needed again


def test_a_tolerance_bounds_what_may_be_missing() -> None:
    fewer = 0
    for language in LAWS:
        tree = BoundsTree(language.table, language.budget)
        found = ModeSearch(tree, 1, tolerance=1.0, max_tokens=100_000)
        grow_trees([found], Evaluator(language.lm, language.settings(), [PROMPT], [tree]))
        assert found.members[0].log_p >= best(language, 1)[0][1] - math.log(2) - 1e-12
        assert found.bound <= found.members[0].log_p + math.log(2) + 1e-12
        fewer += tree.expansions < search(language)[1].expansions
    assert fewer


def test_many_prompts_share_calls() -> None:
    language = LAWS[2]
    prompts = [PROMPT, (1, 3), (5, 5, 5), (2,)]
    trees = [BoundsTree(language.table, language.budget) for _ in prompts]
    evaluator = Evaluator(language.lm, language.settings(), prompts, trees)
    rows = [ModeSearch(tree, 1, max_tokens=100_000) for tree in trees]
    grow_trees(rows, evaluator)
    alone = []
    for prompt, row in zip(prompts, rows, strict=True):
        tree = BoundsTree(language.table, language.budget)
        single = Evaluator(language.lm, language.settings(), [prompt], [tree])
        found = ModeSearch(tree, 1, max_tokens=100_000)
        grow_trees([found], single)
        assert found.members[0].tokens() == row.members[0].tokens()
        alone.append(single.counts.calls)
    assert evaluator.counts.calls == max(alone)


LETTERS = [chr(0x4E00 + i) for i in range(900)]
WIDE = Vocabulary.from_tokens(["<eos>", *LETTERS], 0)


@pytest.fixture(params=[1.0, 6.0], ids=["flat", "peaked"])
def root(request: pytest.FixtureRequest) -> BoundsTree:
    """A tree of two letters out of 900, whose root and likeliest child are expanded."""
    tree = BoundsTree(Table(FSMGuide.from_automaton(compile_regex(f"[{LETTERS[0]}-{LETTERS[-1]}]{{2}}"), WIDE)), 3)
    evaluator = Evaluator(TableModel.random(WIDE, seed=1, scale=request.param), SamplingSettings(), [(1,)], [tree])
    evaluator.expand([(tree, tree.root)])
    assert tree.root.distribution is not None
    token = int(tree.root.distribution.moves.tokens[tree.root.distribution.log_free.argmax()])
    evaluator.expand([(tree, tree.child(tree.root, token, tree.root.distribution.moves.target(token)))])
    return tree


def open_prefixes(tree: BoundsTree) -> list[float]:
    """``log p`` of every prefix that could be expanded next, by brute force."""
    found = []
    for node in tree.walk():
        if node.distribution is not None:
            log_free = node.distribution.log_free[node.distribution.log_free > -math.inf].tolist()
            found += [node.log_p + node.distribution.log_scale + log_p for log_p in log_free]
        elif not node.expanded:
            found.append(node.log_p)
    return sorted(found, reverse=True)


def drained(frontier: Frontier) -> list[float]:
    found = []
    while (node := frontier.pop()) is not None:
        assert not node.expanded
        found.append(node.log_p)
    return found


@pytest.mark.parametrize(("short", "share"), [(256, 1e-3), (3, 0.5), (256, 1.0)])
def test_every_open_prefix_comes_once_and_in_order(
    root: BoundsTree, short: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best_first, "SHORT_LIST", short)
    monkeypatch.setattr(best_first, "NEXT", share)
    expected = open_prefixes(root)
    frontier = Frontier(root)
    assert frontier.log_p == pytest.approx(expected[0], abs=1e-12)
    assert drained(frontier) == pytest.approx(expected, abs=1e-12)
    assert frontier.log_p == -math.inf and frontier.pop() is None


def test_what_others_have_taken_is_left_out(root: BoundsTree) -> None:
    frontier = Frontier(root)
    taken = [frontier.pop() for _ in range(5)]
    law = root.root.distribution
    assert law is not None
    best = int(law.moves.tokens[law.log_free.argmax()])
    other = root.child(root.root, best, law.moves.target(best))  # a walk makes a node of it
    rest = drained(frontier)
    assert other.log_p not in rest and all(node is not None and node.log_p not in rest for node in taken)
    frontier.offer(other)
    assert frontier.pop() is other


def test_nodes_can_be_made_of_all_that_matters(root: BoundsTree) -> None:
    expected = open_prefixes(root)
    frontier = Frontier(root)
    frontier.make_nodes(expected[40])
    root.drop_distributions(0)
    assert sum(node.distribution is not None for node in root.walk()) == 1  # the root keeps its own
    assert frontier.log_p == pytest.approx(expected[0], abs=1e-12)
    assert drained(frontier) == pytest.approx(expected[:41], abs=1e-12)
    assert frontier.log_p == pytest.approx(expected[41], abs=1e-12)  # given up, and still a bound
