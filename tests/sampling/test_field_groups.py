"""Draws group by group against their law by enumeration in plain Python: named groups, parts of DSL terms, guidance's captures."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
from outlines.types import regex

from outlines_phi import (
    BannedPhrases,
    Draw,
    ExactPhi,
    FieldsPhi,
    Guarantee,
    LocalPhi,
    SamplingSettings,
    Vocabulary,
    from_guidance,
)
from outlines_phi.guides import FSMGuide, Guide, Table
from outlines_phi.lm import TableModel
from outlines_phi.plugin.types.tables import CompiledTypes
from tests.inner import PhraseGuide, ProductGuide, Request, TreeStore, banned, sampler_for
from tests.languages import ALPHA, VOCABULARY, p_value
from tests.sampling.records import Blocks

Ids = tuple[int, ...]

PARTS = (("",), ("a", "b", "aa", "ab", "ba", "aba"), ("cc",), ("a", "x", "ab", "xab"), ("c",))
"""The texts before each group and of the group, in turn, and the rest."""

FIRST, SECOND = ("|".join(PARTS[1]), "|".join(PARTS[3]))
PATTERN = f"(?P<first>{FIRST})cc(?P<second>{SECOND})c"
TYPES = {
    "named groups": regex(PATTERN),
    "DSL": regex(FIRST) + "cc" + regex(SECOND) + "c",
    "guidance": from_guidance(
        f'%llguidance {{}}\nstart: x rest\nrest: "cc" y "c"\nx[capture]: /{FIRST}/\ny[capture]: /{SECOND}/'
    ),
}
BAN = BannedPhrases(["bc", "ccab"], across_prompt=False)


@cache
def texts(first: int, last: int) -> tuple[str, ...]:
    return tuple("".join(text) for text in itertools.product(*PARTS[first:last]))


def position(text: str) -> int:
    """``2 k`` before and in group ``k``, ``2 k + 1`` behind it, as far as the text before the next one is not complete."""
    groups = range(len(PARTS) // 2)
    k = next((k for k in groups if any(each.startswith(text) for each in texts(0, 2 * k + 2))), None)
    if k is None:
        return 2 * len(groups) - 1
    begun = any(text.startswith(before) for before in texts(0, 2 * k + 1))
    return 2 * k if k == 0 or begun else 2 * k - 1


class Groups(Blocks):
    """A random distribution over the texts of two groups, without those that hold a banned phrase."""

    prompt, budget = (3, 4), 20

    def __init__(self, guide: Guide, seed: int, phrases: tuple[str, ...] = ()) -> None:
        self.members = [text for text in texts(0, len(PARTS)) if not any(phrase in text for phrase in phrases)]
        self.table = Table(guide)
        self.lm = TableModel.random(VOCABULARY, seed=seed, scale=1.5)

    def draw(self, phi: Any, n: int) -> list[Draw]:
        settings = SamplingSettings(max_new_tokens=self.budget, seed=1)
        request = Request(lm=self.lm, table=self.table, prompts=[self.prompt], settings=settings, n=n)
        return list(sampler_for(phi, TreeStore()).sample(request)[0])

    def text(self, ids: Ids) -> str:
        return b"".join(VOCABULARY.tokens[token] for token in ids).decode()

    @cache  # noqa: B019
    def steps(self, ids: Ids) -> dict[int, float]:
        """The probabilities of the tokens after which a text may still be completed."""
        text, found = self.text(ids), {}
        for token, spelled in enumerate(VOCABULARY.tokens):
            longer = text + spelled.decode()
            if text in self.members if token == 0 else any(member.startswith(longer) for member in self.members):
                found[token] = float(self.p(ids)[token])
        return found

    @cache  # noqa: B019
    def ended(self, root: Ids, ids: Ids, least: float) -> bool:
        """Return True if the block that began at ``root`` has ended."""
        before, here = position(self.text(root)), position(self.text(ids))
        if ids[-1:] == (0,) or here // 2 > before // 2:
            return True
        return ids != root and here % 2 > before % 2 and sum(self.steps(ids).values()) < least


def guide_of(name: str) -> Guide:
    return CompiledTypes(VOCABULARY).of_type(TYPES[name]).guide


def product() -> Guide:
    return ProductGuide(guide_of("named groups"), PhraseGuide(VOCABULARY, BAN))


PHRASES = ("bc", "ccab")
CASES = {name: Groups(guide_of(name), seed=2) for name in TYPES}
CASES["banned"] = Groups(banned(guide_of("named groups"), BAN), 3, PHRASES)
CASES["banned, step by step"] = Groups(product(), 3, PHRASES)
N = 1_000


def ids(draws: list[Draw]) -> list[Ids]:
    return [draw.token_ids for draw in draws]


RULES = [
    ("named groups", 0.0),
    ("named groups", 0.5),
    ("banned", 0.0),
    ("banned", 0.5),
    *((name, 0.1) for name in CASES),
]


@pytest.mark.parametrize(("name", "least"), RULES)
def test_each_group_has_the_distribution_of_the_model(name: str, least: float) -> None:
    case = CASES[name]
    law, blocks = case.law(least)
    draws = case.draw(FieldsPhi(least=least, attempts=10_000), N)
    assert p_value(ids(draws), law) > ALPHA
    assert all(draw.blocks == blocks[draw.token_ids] for draw in draws)
    assert {draw.guarantee for draw in draws} == {Guarantee.FIELDWISE}


@pytest.mark.parametrize("name", ["named groups", "banned"])
def test_masking_and_the_conditioned_distribution_are_others(name: str) -> None:
    law, _ = CASES[name].law(0.1)
    assert p_value(ids(CASES[name].draw(LocalPhi(), N)), law) < ALPHA
    assert p_value(ids(CASES[name].draw(ExactPhi(), N)), law) < ALPHA


def test_where_blocks_end_is_of_account() -> None:
    """The law knows one rule from another."""
    laws = [CASES["named groups"].law(least) for least in (0.0, 0.5)]
    assert set(laws[0][1].values()) == {2}
    assert set(laws[1][1].values()) > {2}
    draws = ids(CASES["named groups"].draw(FieldsPhi(least=0.0, attempts=10_000), N))
    assert p_value(draws, laws[1][0]) < ALPHA


def test_without_named_groups_a_pattern_is_one_block() -> None:
    plain = CompiledTypes(VOCABULARY).of_type(regex(PATTERN.replace("?P<first>", "").replace("?P<second>", ""))).guide
    draws = Groups(plain, seed=2).draw(FieldsPhi(), 100)
    assert {(draw.guarantee, draw.blocks) for draw in draws if not draw.picked} == {(Guarantee.EXACT, 1)}


@pytest.mark.parametrize(("output_type", "last"), [(tuple[bool, bool], 3), (list[bool], 3), (bool, None)])
def test_each_item_of_a_tuple_is_a_block_and_the_first_of_a_list(output_type: Any, last: int | None) -> None:
    guide = CompiledTypes(Vocabulary.from_tokens(["<eos>", *map(chr, range(0x20, 0x7F))], 0)).of_type(output_type).guide
    assert isinstance(guide, FSMGuide)
    assert guide.automaton is not None
    position = guide.automaton.position
    assert (None if position is None else int(position.max())) == last


def test_groups_that_are_named_already_stay_so() -> None:
    """Parts of a sequence get names that no group has."""
    named = regex("(?P<_0>a|b)(?P<__2>a)") + "cc" + regex("x")
    guide = CompiledTypes(VOCABULARY).of_type(named).guide
    assert isinstance(guide, FSMGuide)
    assert guide.automaton is not None
    assert guide.automaton.position is not None
    assert guide.automaton.position.max() == 2
    assert sorted(guide.automaton.members()) == [b"aaccx", b"baccx"]
