"""The most probable members, against enumeration."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outlines_phi import BudgetError, Effort, EmptyLanguageError, ExactPhi, SamplingSettings, Vocabulary
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import TableModel
from outlines_phi.sampling import Ranking, ranking
from outlines_phi_workbench.suite.reference import count_prefixes
from tests.inner import (
    DONE,
    BoundsTree,
    Evaluator,
    ExactSampler,
    Frontier,
    ModeSearch,
    TreeStore,
    best_first,
    compile_regex,
    grow_trees,
    rank,
)
from tests.inner import tree as tree_module
from tests.languages import AND_OPEN, JSON, LANGUAGES, PROMPT, TREE, VOCABULARY, Language
from tests.refusals import refused

PATTERNS = ("(ab|ba|c){1,3}x?", "(ab|c)*x", r"(\(\)|\(a\)){1,2}", "[abc]{2}x{2}", "a*(b|cc?)", "[abcx]{0,3}")
LAWS = [
    Language(f"{pattern} {seed} {scale}", pattern, 6, seed=seed, scale=scale)
    for pattern in PATTERNS
    for seed, scale in [(0, 0.3), (1, 1.5), (2, 3.0), (3, 6.0)]
]


def search(
    language: Language, top: int = 1, *, tokens: int = 100_000, tree: BoundsTree | None = None, **options: Any
) -> tuple[ModeSearch, BoundsTree]:
    """Search a tree, by default a fresh one, without expanding a small language whole first."""
    limits = {name: options.pop(name) for name in ("tolerance", "max_bytes") if name in options}
    tree = tree or BoundsTree(language.table, language.budget)
    found = ModeSearch(tree, top, max_tokens=tokens, **limits)
    grow_trees([found], Evaluator(language.lm, language.settings(**options), [PROMPT], [tree]))
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
        found, _ = search(flat, 5, tree=search(flat, tokens=tokens)[1] if tokens else None)
        assert [node.tokens() for node in found.members] == [ids for ids, _ in expected]


@pytest.mark.parametrize(
    "spoil", [lambda tree: tree.drop_distributions(0), lambda tree: tree.evict(0)], ids=["laws", "subtrees"]
)
def test_a_tree_that_was_evicted_is_as_good(spoil: Callable[[BoundsTree], None]) -> None:
    for language in LAWS[::4]:
        _, tree = search(language, 2, tokens=20)
        spoil(tree)
        found, _ = search(language, 4, tree=tree)
        assert [node.tokens() for node in found.members] == [ids for ids, _ in best(language, 4)]


def test_laws_are_dropped_under_a_memory_bound_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "NODE_BYTES", 0)
    language = Language("wide", "[abcx]{4,5}", 7, seed=4, scale=0.5)
    roomy, tree = search(language, 3)
    assert tree.expansions > 100
    found, tight = search(language, 3, max_bytes=tree.bytes // 2)
    assert found.finished and [node.tokens() for node in found.members] == [node.tokens() for node in roomy.members]
    assert tight.distribution_bytes < tree.distribution_bytes // 2
    assert tight.expansions == tree.expansions  # what was dropped was not needed again


def test_a_tolerance_bounds_what_may_be_missing() -> None:
    fewer = 0
    for language in LAWS:
        found, tree = search(language, tolerance=1.0)
        assert found.members[0].log_p >= best(language, 1)[0][1] - math.log(2) - 1e-12
        assert found.bound <= found.members[0].log_p + math.log(2) + 1e-12
        fewer += tree.expansions < search(language)[1].expansions
    assert fewer


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


EFFORT = Effort(tokens=100_000)
LARGE = Language("large", "[abcx]{3,5}", 7, seed=31, scale=2.0)


def ranked(language: Language, top: int, store: TreeStore | None = None, **options: object) -> Ranking:
    limits = {name: options.pop(name) for name in ("effort", "tolerance", "reader") if name in options}
    request = language.request(1, None, **options)  # type: ignore[arg-type]
    return rank(request, top, store or TreeStore(), **{"effort": EFFORT, **limits})[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("language", [*AND_OPEN, *JSON, TREE, LARGE], ids=str)
@pytest.mark.parametrize("top", [1, 5])
def test_it_is_the_top_of_the_enumeration(language: Language, top: int) -> None:
    result, expected = ranked(language, top), best(language, top + 1)
    assert [member.token_ids for member in result] == [ids for ids, _ in expected[:top]]
    assert [member.log_p for member in result] == pytest.approx([log_p for _, log_p in expected[:top]])
    assert result.texts == [language.table.guide.text(ids).decode() for ids, _ in expected[:top]]
    assert (result.gap, result.certified, result.asked, result.budget) == (0.0, top, top, language.budget)
    assert expected[top][1] <= result.log_p_bound + 1e-12
    low, high = result.log_z_bounds
    assert low - 1e-9 <= language.reference().log_phi <= high + 1e-9


def test_calls_and_tokens_are_few_and_more_than_there_are_says_that_these_are_all() -> None:
    """Of languages of up to 491 prefixes, and of a large one."""
    small = [ranked(language, 3).counts for language in LANGUAGES]
    assert all(counts.calls <= 7 and counts.tokens <= 50 for counts in small)
    assert count_prefixes(LARGE.table, LARGE.budget, 512) is None
    counts = ranked(LARGE, 1).counts
    assert counts.calls <= 20 and counts.tokens < 200
    language = LANGUAGES[2]
    result = ranked(language, 10_000)
    assert len(result) == len(language.reference().log_p) < result.asked
    assert result.complete and result.log_p_bound == -math.inf and result.gap == 0.0
    assert "\nthese are all\nlog Phi -3.806" in str(result)
    assert not ranked(language, 2).complete and "at most, all others\n" in str(ranked(language, 2))


def test_what_draws_have_found_is_not_asked_again() -> None:
    store, request = TreeStore(), LANGUAGES[1].request(20, None)
    ExactSampler(ExactPhi(), store).sample(request)
    assert ranked(LANGUAGES[1], 3, store).counts.calls == 0
    first = ranked(LARGE, 2, store)
    again = ranked(LARGE, 2, store)
    assert again == Ranking(**{**vars(first), "counts": again.counts}) and again.counts.tokens == 0
    seeded = rank(LARGE.request(1, 7), 2, store, effort=EFFORT)[0]
    assert seeded.items == first.items and seeded.counts == first.counts


def test_prompts_share_calls_and_have_the_rankings_of_each_alone() -> None:
    prompts, store = [PROMPT, (1, 3), (5, 5, 5), (2,), PROMPT], TreeStore()
    request = replace(LARGE.request(1, None), prompts=prompts)
    together = rank(request, 2, store, effort=EFFORT)
    alone = [rank(replace(request, prompts=[prompt]), 2, TreeStore(), effort=EFFORT)[0] for prompt in prompts]
    assert len(store) == 4 and [each.items for each in together] == [each.items for each in alone]
    assert together[0].counts.calls == max(each.counts.calls for each in alone)


def test_an_interrupted_search_leaves_no_tree_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TreeStore()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ranking, "grow_trees", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ranked(LARGE, 1, store)
    assert len(store) == 0


def test_values_are_read_when_asked_for() -> None:
    def refuse(text: str) -> int:
        raise ValueError(text)

    result = ranked(LANGUAGES[0], 2, reader=len)
    assert result.values == [len(text) for text in result.texts]
    with pytest.raises(ValueError, match=ranked(LANGUAGES[0], 1).texts[0]):
        _ = ranked(LANGUAGES[0], 1, reader=refuse)[0].value
    assert [member.text for member in result[:1]] == result.texts[:1]


@pytest.mark.parametrize("tokens", [1, 10, 20])
def test_too_little_effort_carries_the_best_and_the_bound(tokens: int) -> None:
    caught = refused(
        r"the search used its .* model tokens.* what is missing has at most",
        ranked,
        LARGE,
        3,
        effort=Effort(tokens=tokens),
        error=BudgetError,
    )
    (partial,) = caught.value.partial
    assert partial.gap > 0 and partial.certified < 3 and caught.value.log_z_bounds == partial.log_z_bounds
    listed = set(partial.texts)
    missing = [log_p for ids, log_p in best(LARGE, 10_000) if VOCABULARY.decode(ids).decode() not in listed]
    assert missing[0] <= partial.log_p_bound


def test_an_empty_law_names_the_truncation() -> None:
    refused("Prompt 0: .* under top_k=1", ranked, LANGUAGES[2], 1, top_k=1, error=EmptyLanguageError)


SPELLED = Language("spelled", "(a|b){5}", 9, seed=53, scale=8.0)
"""Usual spellings of 46 prefixes, under a law that may give little to them."""


@pytest.mark.parametrize("tokens", [1, 2, 4, 8, 16, 24, 32, 48, 64])
def test_whatever_the_effort_nothing_false_is_proven(tokens: int) -> None:
    """Prefixes that the effort does not pay for are no part of the tree."""
    for seed in range(tokens % 7, 20, 2):
        language = replace(SPELLED, seed=seed)
        ((first, log_p),) = best(language, 1)
        store = TreeStore()
        try:
            assert ranked(language, 1, store, effort=Effort(tokens=tokens))[0].token_ids == first
        except BudgetError as error:
            (known,) = error.partial
            assert known.log_p_bound >= log_p - 1e-9 or known[0].token_ids == first
        assert ranked(language, 1, store)[0].token_ids == first, "a kept tree holds what was proven of it"


@pytest.mark.parametrize("top", [1, 10_000])
def test_a_store_without_room(top: int) -> None:
    """The store may drop laws as soon as the search is over."""
    for seed in range(4):
        language = Language("crowded", "[abc]{2,4}x{0,2}", 9, seed=seed, scale=3.0)
        for tokens in (5, 10**5):
            try:
                found = ranked(language, top, TreeStore(20_000), effort=Effort(tokens=tokens))
                assert found[0].token_ids == best(language, 1)[0][0]
            except BudgetError:
                pass
