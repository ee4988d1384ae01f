"""Paths of token trees: the likeliest of what is known, in the order of the exact law; prompt look-up against a naive oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import LocalPhi, SamplingSettings, UnsupportedError, Vocabulary
from outlines_phi.drafting import DraftRun, PromptLookupDrafter, TreeDrafter, earlier_texts
from tests.drafting.runs import propose, run_of, site_of, table_of
from tests.inner import DEAD, DONE, BoundsTree, Node, Prefetch, Proposer, TreeStore, sampler_for
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language


def expand(tree: BoundsTree, language: Language, node: Node) -> None:
    logits = language.lm.logits((*PROMPT, *node.tokens()))
    tree.expand(node, logits - np.logaddexp.reduce(logits))
    tree.propagate([node])


def grown(language: Language, depth: int) -> BoundsTree:
    """Return a tree in which every live prefix of less than ``depth`` tokens is expanded."""
    tree = BoundsTree(language.table, language.budget)
    level = [tree.root]
    for _ in range(depth):
        for node in level:
            expand(tree, language, node)
        moves = [(node, language.table.moves(node.state, node.remaining)) for node in level]
        below = [
            tree.child(node, int(v), int(t))
            for node, live in moves
            for v, t in zip(live.tokens, live.targets, strict=True)
        ]
        level = [node for node in below if not node.expanded]
    return tree


def best(language: Language, tokens: tuple[int, ...], law: dict[tuple[int, ...], float]) -> int:
    """Return the token of the highest probability under the conditioned law, by enumeration."""
    shares: dict[int, float] = {}
    for member, p in law.items():
        if member[: len(tokens)] == tokens:
            shares[member[len(tokens)]] = shares.get(member[len(tokens)], 0.0) + p
    return max(shares, key=shares.__getitem__)


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_a_whole_tree_gives_the_step_by_step_mode(language: Language) -> None:
    tree, mu = grown(language, language.budget), language.reference().mu
    run = run_of(language.table, trees=[tree])
    expected: tuple[int, ...] = ()
    while len(expected) < language.budget - 1 and (token := best(language, expected, mu)) != 0:
        expected += (token,)
    site = site_of(run, budget=language.budget)
    assert propose(TreeDrafter(), run, [site], language.budget)[0].tokens == expected
    for start in range(len(expected)):
        site = site_of(run, expected[:start], budget=language.budget)
        assert propose(TreeDrafter(), run, [site], 2)[0].tokens == expected[start : start + 2]


def test_where_nothing_is_known_nothing_is_proposed() -> None:
    language = LANGUAGES[1]
    tree = BoundsTree(language.table, language.budget)
    run = run_of(language.table, trees=[tree])
    sites = [site_of(run, budget=6), site_of(run, (3,), budget=6)]
    assert [draft.tokens for draft in propose(TreeDrafter(), run, sites)] == [(), ()]
    expand(tree, language, tree.root)
    (first, second) = propose(TreeDrafter(), run, sites)
    assert len(first.tokens) == 1 and second.tokens == ()  # a token without a node of its own


def test_evicted_laws_leave_the_children() -> None:
    language = LANGUAGES[1]
    tree = grown(language, 3)
    run = run_of(language.table, trees=[tree])
    before = propose(TreeDrafter(), run, [site_of(run, budget=6)], 5)[0].tokens
    for node in tree.walk():
        node.distribution = None
    after = propose(TreeDrafter(), run, [site_of(run, budget=6)], 5)[0].tokens
    assert after == before[: len(after)] and len(after) >= 2


def test_dead_ends_are_not_drafted() -> None:
    """The likeliest token leads to a subtree that has turned out to hold nothing."""
    language = LANGUAGES[3]
    tree = grown(language, language.budget)
    token = best(language, (), language.reference().mu)
    tree.root.children[token].rule_out()
    tree.propagate([tree.root])
    run = run_of(language.table, trees=[tree])
    (draft,) = propose(TreeDrafter(), run, [site_of(run, budget=language.budget)], 5)
    assert draft.tokens and draft.tokens[0] != token


EOS, A, B, AB, BA, C, CC, X = range(8)
TEXTS = st.lists(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=5).map(tuple), max_size=8)


def drafts(
    run: DraftRun, *rounds: Sequence[tuple[int, ...]], length: int = 4, row: int = 0
) -> list[list[tuple[int, ...]]]:
    """Return the proposals in each round of a call, for texts of one prompt."""
    proposer = Proposer(TreeDrafter(), run)
    streams = [np.random.default_rng(0)] * 9
    found = []
    for texts in rounds:
        sites = [site_of(run, tokens, row=row) for tokens in texts]
        found.append([d.tokens for d in proposer.propose(sites, [length] * len(sites), streams[: len(sites)])])
    return found


def run(seed: int | None = 0, **options: object) -> DraftRun:
    return run_of(table_of("[abcx]{0,12}"), settings=SamplingSettings(seed=seed), **options)


def test_who_lags_behind_follows_who_is_ahead() -> None:
    assert drafts(run(), [(), (A, B, C)]) == [[(A, B, C), ()]]
    assert drafts(run(), [(A, B), (A, C), (A, C)], [(A,), (C,), (A, C, C)]) == [[(), (), ()], [(C, C), (), ()]]


@given(TEXTS, st.lists(st.sampled_from([A, B, C]), max_size=4), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_the_way_that_was_taken_most_often(texts: list[tuple[int, ...]], start: list[int], length: int) -> None:
    """Against counting, for texts that are all different: a site that several walks share is asked about once."""
    known = earlier_texts.History()
    for text in texts:
        known.take_note(text)
    found = known.after(start, length)
    here = tuple(start)
    for token in found:
        below = Counter(text[len(here)] for text in texts if text[: len(here)] == here and len(text) > len(here))
        assert below[token] == max(below.values())
        here += (token,)
    assert len(found) == length or not any(text[: len(here)] == here and len(text) > len(here) for text in texts)


def test_a_prompt_knows_of_its_own_texts_alone() -> None:
    both = run(prompts=[(1, 2), (1, 2)])
    proposer = Proposer(TreeDrafter(), both)
    sites = [site_of(both, (A, B), row=0), site_of(both, row=1)]
    assert [draft.tokens for draft in proposer.propose(sites, [4, 4], [np.random.default_rng(0)] * 2)] == [(), ()]


def test_later_calls_without_a_seed_know_what_was_written() -> None:
    table = table_of("[abcx]{0,12}")

    def asked(seed: int | None, prompt: tuple[int, ...], *texts: tuple[int, ...]) -> list[tuple[int, ...]]:
        (found,) = drafts(run_of(table, settings=SamplingSettings(seed=seed), prompts=[prompt]), texts)
        return found

    assert asked(None, (1, 2), (), (A, B)) == [(A, B), ()]
    assert asked(None, (1, 2), ()) == [(A, B)]
    assert asked(0, (1, 2), ()) == asked(None, (2, 1), ()) == [()]
    asked(0, (3,), (C,))
    assert asked(None, (3,), ()) == [()]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_texts, "PLACES", 3)
    monkeypatch.setattr(earlier_texts, "PROMPTS", 2)
    kept, _ = earlier_texts.histories()
    first = kept.of((1,), earlier_texts.History)
    first.take_note((A, B))
    first.take_note((C, A, B))
    assert first.after((), 9) in {(A, B), (C,)} and first.after((C,), 9) == ()
    kept.of((2,), earlier_texts.History)
    assert kept.of((1,), earlier_texts.History) is first
    kept.of((3,), earlier_texts.History)
    assert (1,) in kept and len(kept) == 2


def test_walks_take_fewer_turns_and_write_the_same() -> None:
    """A call that is made again: all but the last round of its text is known."""
    language = replace(LANGUAGES[1])
    turns: dict[str, list[int]] = {}
    for name, drafter in {"tree": TreeDrafter(), "prompt_lookup": PromptLookupDrafter()}.items():
        sampler, texts = sampler_for(LocalPhi(), TreeStore(), draft=Prefetch(drafter, 4)), []
        for _ in range(3):
            torch.manual_seed(3)
            (draws,) = sampler.sample(language.request(1, None))
            texts.append(draws[0].token_ids)
            turns.setdefault(name, []).append(draws.counts.turns)
        assert texts[0] == texts[1] == texts[2] and len(texts[0]) > 4
    assert turns["tree"][0] == len(texts[0]) > turns["tree"][1] >= turns["tree"][2]
    assert len(set(turns["prompt_lookup"])) == 1  # control: what remembers nothing gains nothing


FREE = table_of("[abcx]*")
BOUND = table_of("(ab|c)*x?")
TOKENS = st.lists(st.sampled_from([A, B, C, X]), max_size=12)


def naive(text: list[int], ngram: int, allowed: set[int]) -> int | None:
    """Return the place of the continuation: longest agreement first, then the latest place."""
    for n in range(min(ngram, len(text) - 1), 0, -1):
        for place in range(len(text) - 1, n - 1, -1):
            if text[place - n : place] == text[-n:] and text[place] in allowed:
                return place
    return None


@given(TOKENS.map(lambda tokens: [A, *tokens]), TOKENS, st.integers(1, 5), st.integers(1, 6))
@settings(max_examples=400, deadline=None)
def test_free_text(prompt: list[int], written: list[int], ngram: int, length: int) -> None:
    run = run_of(FREE, prompts=[tuple(prompt)])
    (draft,) = propose(PromptLookupDrafter(ngram), run, [site_of(run, written, budget=40)], length)
    text = prompt + written
    place = naive(text, ngram, {A, B, C, X})
    assert draft.tokens == (() if place is None else tuple(text[place : place + length]))


@given(TOKENS.map(lambda tokens: [A, *tokens]), st.lists(st.sampled_from([(A, B), (AB,), (C,)]), max_size=5))
@settings(max_examples=300, deadline=None)
def test_places_that_the_guide_does_not_let_go_on_are_passed_over(
    prompt: list[int], parts: list[tuple[int, ...]]
) -> None:
    written = [token for part in parts for token in part]
    run = run_of(BOUND, prompts=[tuple(prompt)])
    site = site_of(run, written, budget=40)
    allowed = {v for v in range(1, len(VOCABULARY)) if site.after(v, run.table).state not in (DEAD, DONE)}
    text = prompt + written
    place = naive(text, 3, allowed)
    (draft,) = propose(PromptLookupDrafter(3), run, [site], 3)
    expected: list[int] = []
    for token in text[place : place + 3] if place is not None else ():
        site = site.after(token, run.table)
        if site.state in (DEAD, DONE):
            break
        expected.append(token)
    assert draft.tokens == tuple(expected)
    assert (place is None) == (not draft.tokens)


def test_the_latest_of_the_longest() -> None:
    run = run_of(FREE, prompts=[(C, A, B, X, B, A, C, A, B)])
    drafts = {ngram: propose(PromptLookupDrafter(ngram), run, [site_of(run)], 2)[0].tokens for ngram in (1, 2, 3)}
    assert drafts == {1: (A, C), 2: (X, B), 3: (X, B)}


def test_a_prompt_may_hold_what_cannot_be_written() -> None:
    run = run_of(FREE, prompts=[(A, 99, A, EOS, A)])
    assert propose(PromptLookupDrafter(), run, [site_of(run)])[0].tokens == ()
    run = run_of(FREE, prompts=[(A, B, A, 99, A, EOS, A)])
    assert propose(PromptLookupDrafter(), run, [site_of(run)], 2)[0].tokens == (B, A)


@pytest.mark.parametrize("ngram", [0, -1, 2.0, True, "3", None])
def test_bad_options(ngram: object) -> None:
    with pytest.raises(UnsupportedError, match="whole number of at least 1"):
        PromptLookupDrafter(ngram)  # type: ignore[arg-type]


SPELLED = ("", '"', "green", " green", " tea", " for", ".", " caf\u00e9", "tea", "x", " ", "5", " 7", "12")
BLANKS = table_of('[a-z\u00e9 .0-9]*"', Vocabulary.from_tokens(SPELLED, 0))


@pytest.mark.parametrize(
    ("prompt", "written", "drafted"),
    [
        # A word that begins a value has no blank before it, and is another token than in the sentence that it stands in.
        (["x", " green", " tea", " for"], ["green"], [" tea", " for"]),
        (["green", " caf\u00e9", "."], [" green"], [" caf\u00e9"]),
        ([" green", " tea"], ["x"], []),
        # What stands around the phrase does not come with it.
        ([" green", " tea", ".", " for"], ["green"], [" tea"]),
        ([" green", " tea", ".", " for"], ["green", " tea"], []),
        ([" green", " tea", ".", " for"], [" green", " tea"], [".", " for"]),
        # Blanks alone and special tokens are words of their own.
        (["x", " ", " tea", "x", ""], ["x", " "], [" tea", "x"]),
        (["", " tea"], [" "], []),
        # What agrees has to have a word in it, or two digits.
        (["x", ".", " tea"], ["green", "."], []),
        (["x", ".", " tea"], ["x", "."], [" tea", "x"]),
        (["5", "."], ["5"], []),
        (["."], ["5", "5"], []),
        ([" 7", "5", "x"], [" 7", "5"], ["x", " 7"]),
        (["5", ".", "x"], ["5", "."], []),
        (["12", "."], ["12"], [".", "12"]),
    ],
)
def test_words_with_a_blank_and_without(prompt: list[str], written: list[str], drafted: list[str]) -> None:
    run = run_of(BLANKS, prompts=[tuple(map(SPELLED.index, prompt))])
    (draft,) = propose(PromptLookupDrafter(), run, [site_of(run, tuple(map(SPELLED.index, written)))], 2)
    assert [SPELLED[token] for token in draft.tokens] == drafted
