"""The token tree: bounds, laws, eviction."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from outlines_phi import BudgetError, Effort, ExactPhi, SamplingSettings, TextConstraint, Vocabulary
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import TableModel
from outlines_phi_workbench.suite.reference import count_prefixes
from tests.inner import (
    BESIDE,
    DONE,
    SHORTEST,
    USUAL,
    BoundsTree,
    Evaluator,
    ExactSampler,
    Foresight,
    RejectionAttempts,
    Request,
    TreeStore,
    best_first,
    compile_regex,
    enumerate_together,
    evaluator,
    expand_usual,
    likeliest_beside,
    log_sum,
    merged_tokens,
    probabilities,
    rank,
    usual_prefixes,
)
from tests.languages import (
    ALPHA,
    AND_OPEN,
    DRAWS,
    GRAMMARS,
    LANGUAGES,
    PROMPT,
    VOCABULARY,
    GrammarLanguage,
    Language,
    ids,
    p_value,
    sample,
    tree_of,
)
from tests.sampling.variants import WRONG

WORDS, LOOP = LANGUAGES[:2]
FAVOURITES = Language("favourites", "[abcx]{6}", 8, seed=4, scale=14.0)
"""A law that gives nearly everything to a few of many texts, as language models do."""


def planted(language: Language = WORDS) -> tuple[BoundsTree, Evaluator]:
    """Return a fresh tree and its evaluator."""
    tree = BoundsTree(language.table, language.budget)
    return tree, Evaluator(language.lm, language.settings(), [PROMPT], [tree])


def expand_all(tree: BoundsTree, evaluator: Evaluator) -> None:
    """Expand every live prefix in one call: all of them are known from the guide."""
    nodes = [tree.root]
    for node in nodes:
        moves = tree.table.moves(node.state, node.remaining)
        steps = zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True)
        nodes += (tree.child(node, token, target) for token, target in steps if target != DONE)
    evaluator.expand((tree, node) for node in nodes)


@pytest.mark.parametrize("language", AND_OPEN, ids=str)
def test_a_finite_language_ends_with_equal_bounds(language: Language) -> None:
    tree, evaluator = planted(language)
    expand_all(tree, evaluator)
    lower, upper = tuple(map(math.exp, tree.log_bounds))
    phi = math.exp(language.reference().log_phi)
    assert lower == pytest.approx(phi, rel=1e-12) and upper == pytest.approx(phi, rel=1e-12)
    assert evaluator.counts.calls == 1


def test_bounds_are_what_the_recursion_says() -> None:
    """U(y) = sum p(v|y) U(yv) over all live tokens, by brute force over the vocabulary, at every node."""
    tree, evaluator = planted()
    rng = np.random.default_rng(0)
    for _ in range(12):
        node = tree.root
        while node.distribution is not None and node.state != DONE:
            node = tree.choose(node, lambda child: 0.0, rng)
        if node.state != DONE:
            evaluator.expand([(tree, node)])
    settings = WORDS.settings()
    for node in tree.walk():
        if node.distribution is None:
            assert (math.exp(node.log_upper), math.exp(node.log_lower)) == (1.0, float(node.state == DONE))
            continue
        logits = WORDS.lm.logits(PROMPT + node.tokens())
        p = settings.log_p(torch.from_numpy(logits)[None], WORDS.table.vocabulary, ())[0].exp().numpy()
        upper = lower = 0.0
        for token in WORDS.table.moves(node.state, node.remaining).tokens.tolist():
            child = node.children.get(token)
            upper += p[token] * (1.0 if child is None else math.exp(child.log_upper))
            lower += 0.0 if child is None else p[token] * math.exp(child.log_lower)
        assert math.exp(node.log_upper) == pytest.approx(upper, rel=1e-12)
        assert math.exp(node.log_lower) == pytest.approx(lower, rel=1e-12)


def test_a_forgotten_subtree_resets_its_bounds_and_pinned_paths_survive() -> None:
    tree, evaluator = planted()
    expand_all(tree, evaluator)
    log_phi = tree.root.log_upper
    nodes = tree.nodes
    tree.evict(0)
    below = [node for node in tree.root.children.values() if node.state != DONE]
    assert all(
        (node.log_upper, node.log_lower, node.expanded, node.children) == (0.0, -math.inf, False, {}) for node in below
    )
    children = tree.root.children.values()
    assert tree.root.log_upper == pytest.approx(log_sum(child.log_step + child.log_upper for child in children))
    assert tree.root.log_upper > log_phi and tree.nodes == 1 + len(tree.root.children) < nodes
    assert tree.nodes == sum(1 for _ in tree.walk())
    assert tree.log_bounds[1] == pytest.approx(log_phi)  # what was reported once stays true
    expand_all(tree, evaluator)
    deepest = max(tree.walk(), key=lambda node: len(node.tokens()))
    tree.evict(0, pinned=[deepest])
    assert deepest in set(tree.walk())


@pytest.mark.parametrize("tolerance", [0.3, 0.03, 0.003])
@pytest.mark.parametrize("language", [*AND_OPEN, FAVOURITES], ids=str)
def test_enumeration_takes_no_more_than_it_needs(
    language: Language, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few prefixes decide; to take all that a call has room for costs tokens and saves few calls."""
    spent = {}
    for left in (best_first.LEFT, 0.0):
        monkeypatch.setattr(best_first, "LEFT", left)
        tree, evaluator = planted(language)
        assert enumerate_together([tree], evaluator, tolerance, max_tokens=10_000) == [True]
        lower, upper = tuple(map(math.exp, tree.log_bounds))
        assert upper - lower <= tolerance * lower
        assert lower <= math.exp(language.reference().log_phi) * (1 + 1e-12) <= upper * (1 + 2e-12)
        spent[left] = evaluator.counts
    few, many = spent.values()
    assert few.calls <= many.calls + 2 and few.tokens <= 1.15 * many.tokens
    assert few.tokens < many.tokens or language is not FAVOURITES


def test_a_compacted_cache_is_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds outlive the model's cache: paths are evaluated again, in the same call, and the result is the same."""
    small, tight = planted(LOOP)
    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "MAX_CACHED", 4)
        assert enumerate_together([small], tight, 0.0, max_tokens=100_000, width=2) == [True]
    roomy_tree, roomy = planted(LOOP)
    assert enumerate_together([roomy_tree], roomy, 0.0, max_tokens=100_000, width=2) == [True]
    assert tight.counts.tokens > roomy.counts.tokens
    assert math.exp(small.root.log_upper) == pytest.approx(math.exp(roomy_tree.root.log_upper), rel=1e-12)


def test_a_long_path_is_seldom_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds nothing in vain may double before it is looked through again: log2(48 / 4) times, not 48."""
    language = Language("deep", "a{48}", 49, seed=2)
    tree, deep = planted(language)
    monkeypatch.setattr(evaluator, "MAX_CACHED", 4)
    compact, sizes = deep.branches.trees.compact, list[int]()

    def counted(keep: Sequence[int]) -> None:
        sizes.append(len(keep))
        compact(keep)

    monkeypatch.setattr(deep.branches.trees, "compact", counted)
    node = tree.root
    for _ in range(47):
        deep.expand([(tree, node)])
        node = tree.child(node, 1, language.table.advance(node.state, 1, node.remaining))
    assert 2 <= len(sizes) <= math.log2(48)
    assert deep.counts.tokens == 46


@pytest.mark.parametrize("tokens", [1, 3, 6])
def test_enumeration_spends_the_tokens_it_was_given(tokens: int) -> None:
    tree, evaluator = planted(LOOP)
    evaluator.expand([(tree, tree.root)])
    assert enumerate_together([tree], evaluator, 0.0, max_tokens=tokens, width=1) == [False]
    assert tree.expansions == 1 + tokens == 1 + evaluator.counts.tokens


def test_a_store_keeps_trees_under_its_bound() -> None:
    store, law = TreeStore(max_bytes=400_000), (WORDS.lm, WORDS.settings(), WORDS.table)
    for i in range(12):
        with store.lend(*law, [(1, 2, i)], [WORDS.budget]) as (tree,):
            expand_all(tree, Evaluator(WORDS.lm, WORDS.settings(), [(1, 2, i % 5 + 1)], [tree]))
        assert store.bytes <= store.max_bytes
    assert 0 < len(store) < 12
    with store.lend(*law, [(1, 2, 11)], [WORDS.budget]) as (again,):
        assert again is tree
    store.clear()
    assert len(store) == 0


TEXTS = Language("texts", "abab|abba|baab|aabb|ccab", 7, seed=2)
"""Of 5 texts, 11 prefixes of their usual tokenizations, and 46 live prefixes, under a law to which all tokenizations are alike."""

WHOLE = count_prefixes(TEXTS.table, TEXTS.budget, 512) or 0


def ready(language: Language = TEXTS) -> tuple[BoundsTree, Evaluator, Foresight]:
    tree = BoundsTree(language.table, language.budget)
    evaluator = Evaluator(language.lm, language.settings(), [PROMPT], [tree])
    expand_usual([tree], evaluator, USUAL, SHORTEST)
    return tree, evaluator, likeliest_beside


def usual(language: Language = TEXTS) -> set[tuple[int, ...]]:
    """Return the prefixes that walks have expanded with the prompt, the empty one included."""
    return {(), *(usual_prefixes(BoundsTree(language.table, language.budget), first_bytes=True) or ())}


def expanded(tree: BoundsTree) -> set[tuple[int, ...]]:
    return {node.tokens() for node in tree.walk() if node.distribution is not None}


def open_prefixes(tree: BoundsTree) -> dict[tuple[int, ...], float]:
    """Return every open prefix below an expanded node, with its ``log p``."""
    found = {}
    for node in list(tree.walk()):
        if node.distribution is not None:
            for token, target in zip(node.distribution.moves.tokens, node.distribution.moves.targets, strict=True):
                child = tree.child(node, int(token), int(target))
                if target != DONE and child.distribution is None:
                    found[child.tokens()] = child.log_p
    return found


def test_usual_tokenizations_come_with_the_prompt() -> None:
    tree, evaluator, beside = ready()
    assert expanded(tree) == usual() and len(usual()) < 16 < WHOLE and evaluator.counts.calls == 1
    evaluator.expand([], beside)
    assert evaluator.counts.calls == 1


@pytest.mark.parametrize("limit, first, lengths", [(9, 0, []), (9, 1, []), (9, 8, [0, 1]), (512, 1, [0, 1, 2, 3, 4])])
def test_of_many_the_shortest_come_with_the_prompt(limit: int, first: int, lengths: list[int]) -> None:
    """All of a length or none: a prefix has no probability before those that it begins with are expanded."""
    tree = BoundsTree(TEXTS.table, TEXTS.budget)
    expand_usual([tree], Evaluator(TEXTS.lm, TEXTS.settings(), [PROMPT], [tree]), limit, first)
    assert expanded(tree) == {tokens for tokens in usual() if len(tokens) in lengths}


def test_the_likeliest_open_prefixes_are_read_beside_another_one() -> None:
    """They and no more, in one call; the walk's own is the least likely here."""
    tree, evaluator, beside = ready()
    waiting = sorted(open_prefixes(tree).items(), key=lambda pair: -pair[1])
    tokens = waiting[-1][0]
    node = next(node for node in tree.walk() if node.tokens() == tokens)
    evaluator.expand([(tree, node)], beside)
    assert len(waiting) > BESIDE
    assert expanded(tree) == usual() | {tokens} | {tokens for tokens, _ in waiting[:BESIDE]}
    assert evaluator.counts.calls == 2


@pytest.mark.parametrize("seed", [1, 2])
def test_draws_have_their_law_in_few_calls(seed: int) -> None:
    """A model that cares nothing for usual tokenizations has most walks leave them."""
    reference = TEXTS.reference()
    (draws,) = sample(ExactPhi(), TEXTS.request(DRAWS, seed))
    assert p_value(ids(draws), reference.mu) > ALPHA > p_value(ids(draws), reference.mask)
    assert 2 < draws.counts.calls <= 8 and draws.counts.tokens < WHOLE


@pytest.mark.parametrize("coin", [True, False], ids=["right", "no thinning coin"])
def test_cold_trees_have_the_law(coin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes read beside a walk depend on its place, and bias neither it nor the others of its tree."""
    if not coin:
        monkeypatch.setattr(RejectionAttempts, *WRONG["no thinning coin"])
    results = sample(ExactPhi(), TEXTS.request(1, 1, rows=1500))
    assert (p_value(ids(*results), TEXTS.reference().mu) > ALPHA) == coin


def favouring(texts: list[str], share: float) -> tuple[TableModel, Table]:
    """Return a model with a token for each piece of some texts, that gives usual tokenizations this share of every step."""
    pieces = {text[a:b] for text in texts for a in range(len(text)) for b in range(a + 1, len(text) + 1)}
    vocabulary = Vocabulary.from_tokens(["<eos>", *sorted(pieces, key=lambda piece: (len(piece), piece))], 0)
    written = [merged_tokens(vocabulary, text.encode()) for text in texts]
    after = {tokens[:end]: (*tokens, 0)[end] for tokens in written for end in range(len(tokens) + 1)}
    rest = TableModel.random(vocabulary, seed=1, scale=2.0)

    def log_p(tokens: tuple[int, ...]) -> np.ndarray:
        odd = rest.logits(tokens)
        p = (1 - share) * np.exp(odd - np.logaddexp.reduce(odd))
        for prefix, token in after.items():
            if tokens[len(PROMPT) :] == prefix:
                p[token] += share / 2
        return np.log(p)

    return TableModel(vocabulary, log_p), Table(FSMGuide.from_automaton(compile_regex("|".join(texts)), vocabulary))


@pytest.mark.parametrize(
    "texts, most", [(["positive", "negative"], 15), (["Lisbon", "Paris", "Oslo", "Rio de Janeiro"], 40)]
)
@pytest.mark.parametrize("share", [0.7, 0.9, 0.999])
def test_hundreds_of_odd_tokenizations_cost_next_to_nothing(texts: list[str], most: int, share: float) -> None:
    lm, table = favouring(texts, share)
    assert (count_prefixes(table, 20, 100_000) or 0) > 250
    for seed in range(50):
        request = Request(lm=lm, table=table, prompts=[PROMPT], settings=SamplingSettings(seed=seed, max_new_tokens=20))
        assert sample(ExactPhi(), request)[0].counts.tokens <= most


def test_an_enumeration_begins_with_usual_tokenizations() -> None:
    """They are enough for a coarse tolerance."""
    phi = math.exp(TEXTS.reference().log_phi)
    law = Counter[str]()
    for tokens, p in TEXTS.reference().mu.items():
        law[VOCABULARY.decode(tokens).decode()] += p  # type: ignore[assignment]
    for tolerance, calls, spent in ((1e4, 1, len(usual()) - 1), (1e-3, 6, WHOLE - 1), (0.0, 6, WHOLE - 1)):
        tree = BoundsTree(TEXTS.table, TEXTS.budget)
        (found,) = probabilities(TEXTS.lm, TEXTS.settings(), [PROMPT], [tree], tolerance=tolerance, max_tokens=1000)
        assert found.counts.calls <= calls and found.counts.tokens <= spent
        lower, upper = tuple(map(math.exp, tree.log_bounds))
        assert lower <= phi * (1 + 1e-12) and phi <= upper * (1 + 1e-12) and upper - lower <= tolerance * lower + 1e-12
        for text, p in law.items():
            assert found[text].lo - 1e-12 <= p <= found[text].hi + 1e-12


@pytest.mark.parametrize("effort", [1, 5, 10, 12, 20, 40])
def test_an_effort_of_few_tokens_reads_no_more(effort: int) -> None:
    """The cost of usual tokenizations is part of it."""
    tree = BoundsTree(TEXTS.table, TEXTS.budget)
    with pytest.raises(BudgetError):
        probabilities(TEXTS.lm, TEXTS.settings(), [PROMPT], [tree], tolerance=0.0, max_tokens=effort)
    assert tree.expansions <= effort + 1
    store, request = TreeStore(), TEXTS.request(1, None)
    kept = tree_of(store, request)
    with pytest.raises(BudgetError):
        rank(request, 10_000, store, effort=Effort(tokens=effort))
    assert 0 < kept.expansions <= effort + 16, "give or take one call"


def test_laws_that_were_dropped() -> None:
    """To learn a law again is no reason to learn others."""
    tree, evaluator, beside = ready()
    known, nodes = tree.log_bounds, tree.nodes
    tree.drop_distributions(0)
    dropped = [node for node in tree.walk() if node.expanded and node.distribution is None and node.state > 1]
    evaluator.expand([(tree, dropped[0])], beside)
    assert dropped[0].distribution is not None and len(expanded(tree)) == 2
    assert (tree.log_bounds, tree.nodes) == (known, nodes)


def test_a_tree_that_is_known_is_not_read_again() -> None:
    sampler = ExactSampler(ExactPhi(tolerance=1e-12))
    first, second = (sampler.sample(TEXTS.request(400, None))[0] for _ in range(2))
    assert 1 < first.counts.calls <= 6 and second.counts.calls == 0


def test_usual_tokenizations_are_those_of_budget_constraint_guide_and_start() -> None:
    tree, *_ = ready(TEXTS.within(3))
    assert {len(tokens) for tokens in expanded(tree)} == {0, 1, 2}
    ruled_out = TextConstraint(lambda text: not text.startswith("cc")).over(VOCABULARY)
    tree = BoundsTree(TEXTS.table, TEXTS.budget, ruled_out)
    expand_usual([tree], Evaluator(TEXTS.lm, TEXTS.settings(), [PROMPT], [tree]), USUAL, SHORTEST)
    written = {VOCABULARY.decode(tokens) for tokens in expanded(tree)}
    assert written and not any(text.startswith(b"cc") for text in written)
    grammar = GrammarLanguage("pets", 'start: ("a" | "ab") ("cc" | "x")', 6, seed=1)
    found = usual_prefixes(BoundsTree(grammar.table, 6)) or ()
    assert {merged_tokens(VOCABULARY, text) for text in (b"acc", b"abcc", b"ax", b"abx")} <= set(found)
    within = TEXTS.table.guide.advance(TEXTS.table.start, 5)
    written = merged_tokens(VOCABULARY, b"cab")
    prefixes = tuple(written[:end] for end in range(1, len(written) + 1))
    assert usual_prefixes(BoundsTree(TEXTS.table, 6, start=within)) == prefixes
    for language in (LANGUAGES[1].within(60), GRAMMARS[0].within(60)):
        tree, evaluator, _ = ready(language)
        assert usual_prefixes(tree) is None and evaluator.counts.calls == 0 and not tree.root.expanded
