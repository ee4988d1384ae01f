"""Draws block by block against their law by enumeration in plain Python (theory.md, section 6.5): the fields of JSON, named groups,
parts of DSL terms, guidance's captures; and texts of ``auto``: attempts, then fields over what these have evaluated."""

import itertools
import json
import math
from abc import ABC, abstractmethod
from functools import cache, cached_property
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from outlines.types import regex

from outlines_phi import (
    AutoPhi,
    BannedPhrases,
    Draw,
    ExactPhi,
    FidelityWarning,
    FieldsPhi,
    Guarantee,
    LocalPhi,
    SamplingSettings,
    TextConstraint,
    Vocabulary,
    from_guidance,
)
from outlines_phi.errors import InterruptedDraws
from outlines_phi.guides import FSMGuide, Guide, JSONGuide, Table
from outlines_phi.sampling.rejection import auto_sampler
from tests.inner import (
    CompiledTypes,
    PhraseGuide,
    ProductGuide,
    Request,
    TableModel,
    banned,
    compile_regex,
    lookahead,
    watch,
    window_walks,
)
from tests.languages import ALPHA, VOCABULARY, Ids, ids, p_value, sample, z
from tests.refusals import refused

WRITTEN = ['{"', "a", '":', '"x', '"y', "x", "y", '"', '",', '","', "b", '["', "],", '"],"', "c", "true", "false", "}"]
BYTES = [chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in WRITTEN]
LETTERS = Vocabulary.from_tokens(["<eos>", *WRITTEN, *BYTES], 0)  # the model never writes the other bytes
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"enum": ["x", "y", "xy"]},
        "b": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2},
        "c": {"type": "boolean"},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
LISTS = [list(items) for n in (1, 2) for items in itertools.product("xy", repeat=n)]
TEXTS = [
    json.dumps({"a": a, "b": b, "c": c}, separators=(",", ":")).encode()
    for a, b, c in itertools.product(["x", "y", "xy"], LISTS, [True, False])
]


def introductions(text: bytes) -> int:
    """Return the number of values that a text has introduced: by a colon, or a comma within an array."""
    outside = b"".join(text.split(b'"')[::2])  # no string holds a quote
    return outside.count(b":") + outside.partition(b"[")[2].partition(b"]")[0].count(b",")


class Blocks(ABC):
    """The law of a random distribution that is drawn block by block, whose tokens and ends of blocks a language says."""

    prompt: Ids
    budget: int
    lm: TableModel
    table: Table

    def request(self, n: int, seed: int = 1, rows: int = 1, **options: object) -> Request:
        settings, prompts = SamplingSettings(max_new_tokens=self.budget, seed=seed), [self.prompt] * rows
        return Request(lm=self.lm, table=self.table, prompts=prompts, settings=settings, n=n, **options)  # type: ignore[arg-type]

    @abstractmethod
    def steps(self, ids: Ids) -> dict[int, float]:
        """Return the probabilities of the tokens after which a text may still be completed."""

    @abstractmethod
    def ended(self, root: Ids, ids: Ids, least: float) -> bool:
        """Return True if the block that began at ``root`` has ended."""

    @cache  # noqa: B019 - a handful of languages
    def p(self, ids: Ids) -> NDArray[np.float64]:
        logits = self.lm.next_logits((*self.prompt, *ids))
        return np.exp(logits - np.max(logits)) / np.exp(logits - np.max(logits)).sum()

    @cache  # noqa: B019
    def reach(self, root: Ids, ids: Ids, least: float) -> float:
        """The probability that the block that began at ``root`` is completed, from ``ids`` on."""
        if ids != root and self.ended(root, ids, least):
            return 1.0
        return sum(p * self.reach(root, (*ids, token), least) for token, p in self.steps(ids).items())

    @cache  # noqa: B019
    def law(self, least: float) -> tuple[dict[Ids, float], dict[Ids, int]]:
        """``q(y) = prod_i p(y_i | y_<i) 1[y_i in L_i] / Phi_i``, and the number of blocks of each member."""
        found, blocks = {}, {}
        stack: list[tuple[Ids, Ids, float, int]] = [((), (), 1.0, 1)]
        while stack:
            root, ids, q, count = stack.pop()
            for token, p in self.steps(ids).items():
                longer, share = (*ids, token), q * p / (self.reach(root, root, least) if ids == root else 1.0)
                if token == 0:
                    found[longer], blocks[longer] = share, count
                elif self.ended(root, longer, least):
                    stack.append((longer, longer, share, count + 1))
                else:
                    stack.append((root, longer, share, count))
        assert math.isclose(sum(found.values()), 1.0, rel_tol=1e-9)
        return found, blocks


class Record(Blocks):
    """A random distribution over the texts of an object, without those that hold a banned phrase.

    ``fit`` is added to the logits of tokens after which a text may still be completed.
    """

    prompt = (3, 4)
    budget = 60

    def __init__(self, seed: int, phrase: bytes = b"", fit: float = 0.0) -> None:
        self.texts = [text for text in TEXTS if not phrase or phrase not in text]
        guide = JSONGuide.of(SCHEMA, LETTERS, blanks="")
        self.table = Table(banned(guide, BannedPhrases([phrase.decode()])) if phrase else guide)
        written = np.arange(len(LETTERS)) <= len(WRITTEN)
        noise = TableModel.random(LETTERS, seed=seed, scale=1.5)
        after = len(self.prompt)

        def logits(ids: Ids) -> NDArray[np.float64]:
            return np.where(written, noise.next_logits(ids), -np.inf) + fit * self.live(ids[after:])

        self.lm = TableModel(LETTERS, logits)

    def text(self, ids: Ids) -> bytes:
        return b"".join(LETTERS.tokens[token] for token in ids)

    @cached_property
    def beginnings(self) -> set[bytes]:
        return {text[:end] for text in self.texts for end in range(len(text) + 1)}

    @cache  # noqa: B019
    def live(self, ids: Ids) -> NDArray[np.bool_]:
        """Return the mask of the tokens after which a text may still be completed."""
        text = self.text(ids)
        allowed = (
            text in self.texts if token == 0 else bool(spelled) and text + spelled in self.beginnings
            for token, spelled in enumerate(LETTERS.tokens)
        )
        return np.array(list(allowed))

    @cache  # noqa: B019
    def steps(self, ids: Ids) -> dict[int, float]:
        """The probabilities of the tokens after which a text may still be completed."""
        p = self.p(ids)
        return {token: float(p[token]) for token in np.flatnonzero(self.live(ids)).tolist() if p[token] > 0}

    def between(self, text: bytes) -> bool:
        """Return True if a text is behind a value, and behind the comma if one may come."""
        outside = b"".join(b"s" if i % 2 else part for i, part in enumerate(text.split(b'"')))
        if outside.endswith((b",", b",s")) and b"[" not in outside.rpartition(b"]")[2]:
            return True  # at the name of the next member
        value = text.endswith((b'"', b"]", b"true", b"false", b"}")) and not outside.endswith(
            (b"{s", b",s", b"{", b"[s")
        )
        named = text.endswith((b'"a"', b'"b"', b'"c"'))
        ended = text.endswith(b'"') and text.count(b'"') % 2 == 0 and not named
        return (value and not text.endswith(b'"') or ended) and not self.may_have_comma(text)

    def may_have_comma(self, text: bytes) -> bool:
        return any(member.startswith(text + b",") for member in (text for text in TEXTS))

    @cache  # noqa: B019
    def ended(self, root: Ids, ids: Ids, least: float) -> bool:
        """Return True if the block that began at ``root`` has ended."""
        before, text = self.text(root), self.text(ids)
        if ids[-1:] == (0,) or introductions(text) > introductions(before):
            return True
        late = self.between(text) and not self.between(before)
        return ids != root and late and 0 < sum(self.steps(ids).values()) < least

    @cached_property
    def members(self) -> dict[Ids, float]:
        """``p(y)`` of each member."""
        found, stack = {}, [((), 1.0)]
        while stack:
            written, q = stack.pop()
            for token, p in self.steps(written).items():
                (found.__setitem__ if token == 0 else lambda *member: stack.append(member))((*written, token), q * p)
        return found


pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")

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
PHRASES = ("bc", "ccab")
BAN = BannedPhrases(PHRASES, across_prompt=False)


@cache
def texts(first: int, last: int) -> tuple[str, ...]:
    return tuple("".join(text) for text in itertools.product(*PARTS[first:last]))


def position(text: str) -> int:
    """``2 k`` before and in group ``k``, ``2 k + 1`` behind it, as far as the text before the next one is not complete."""
    groups = range(len(PARTS) // 2)
    k = next((k for k in groups if any(each.startswith(text) for each in texts(0, 2 * k + 2))), None)
    if k is None:
        return 2 * len(groups) - 1
    return 2 * k if k == 0 or any(text.startswith(before) for before in texts(0, 2 * k + 1)) else 2 * k - 1


class Groups(Blocks):
    """A random distribution over the texts of two groups, without those that hold a banned phrase."""

    prompt, budget = (3, 4), 20

    def __init__(self, guide: Guide, seed: int, phrases: tuple[str, ...] = ()) -> None:
        self.members = [text for text in texts(0, len(PARTS)) if not any(phrase in text for phrase in phrases)]
        self.table = Table(guide)
        self.lm = TableModel.random(VOCABULARY, seed=seed, scale=1.5)

    @cache  # noqa: B019
    def steps(self, ids: Ids) -> dict[int, float]:
        text, found = VOCABULARY.decode(ids).decode(), {}
        for token, spelled in enumerate(VOCABULARY.tokens):
            longer = text + spelled.decode()
            if text in self.members if token == 0 else any(member.startswith(longer) for member in self.members):
                found[token] = float(self.p(ids)[token])
        return found

    @cache  # noqa: B019
    def ended(self, root: Ids, ids: Ids, least: float) -> bool:
        before, here = (position(VOCABULARY.decode(each).decode()) for each in (root, ids))
        if ids[-1:] == (0,) or here // 2 > before // 2:
            return True
        return ids != root and here % 2 > before % 2 and sum(self.steps(ids).values()) < least


def guide_of(output_type: Any) -> Any:
    return CompiledTypes(VOCABULARY).of(output_type).guide


NAMED = guide_of(TYPES["named groups"])
FREE, BANNED = Record(4), Record(5, phrase=b'x","y')
CASES: dict[str, Blocks] = {
    "fields": FREE,
    "fields, banned": BANNED,
    **{name: Groups(guide_of(output_type), seed=2) for name, output_type in TYPES.items()},
    "banned": Groups(banned(NAMED, BAN), 3, PHRASES),
    "banned, step by step": Groups(ProductGuide(NAMED, PhraseGuide(VOCABULARY, BAN)), 3, PHRASES),
}
RULES = [
    *((name, 0.1) for name in CASES if name != "fields"),
    *(("fields", 0.0), ("fields, banned", 0.9), ("named groups", 0.5)),
    *(pytest.param("fields", least, marks=pytest.mark.full) for least in (0.1, 0.9)),
    pytest.param("fields, banned", 0.0, marks=pytest.mark.full),
    pytest.param("named groups", 0.0, marks=pytest.mark.full),
    *(pytest.param("banned", least, marks=pytest.mark.full) for least in (0.0, 0.5)),
]


def drawn(case: Blocks, phi: object, n: int | None = None, seed: int = 1, **options: Any) -> list[Draw]:
    n = n or (400 if isinstance(case, Record) else 700)
    return [draw for draws in sample(phi, case.request(n, seed, **options)) for draw in draws]


@pytest.mark.parametrize(("name", "least"), RULES)
def test_each_block_has_the_distribution_of_the_model(name: str, least: float) -> None:
    law, blocks = CASES[name].law(least)
    draws = drawn(CASES[name], FieldsPhi(least=least, attempts=10_000))
    assert p_value(ids(draws), law) > ALPHA
    for draw in draws:
        assert (draw.blocks, draw.guarantee, draw.picked) == (blocks[draw.token_ids], Guarantee.FIELDWISE, 0)
        assert math.isnan(draw.log_w)


@pytest.mark.parametrize("name", ["fields", "fields, banned", "named groups", "banned"])
@pytest.mark.parametrize("phi", [LocalPhi(), ExactPhi()], ids=["masking", "exact"])
def test_masking_and_the_conditioned_distribution_are_others(name: str, phi: object) -> None:
    assert p_value(ids(drawn(CASES[name], phi)), CASES[name].law(0.1)[0]) < ALPHA


def test_where_blocks_end_is_of_account() -> None:
    """The law knows one rule from another."""
    case = CASES["named groups"]
    (_, whole), (law, finer) = (case.law(least) for least in (0.0, 0.5))
    assert set(whole.values()) == {2} and set(finer.values()) > {2}
    assert p_value(ids(drawn(case, FieldsPhi(least=0.0, attempts=10_000))), law) < ALPHA


@pytest.mark.in_turn
@pytest.mark.parametrize("record", [FREE, BANNED], ids=["free", "banned"])
@pytest.mark.parametrize("attempts", [1, 10_000])
def test_weights_have_the_mean_of_future_validity(record: Record, attempts: int) -> None:
    """The mean is right for blocks that are accepted and, after one failed attempt, picked by weight; for a statistic, too."""
    draws = drawn(record, FieldsPhi(weights=True, attempts=attempts), 700)
    w = np.exp([draw.log_w for draw in draws])
    true = np.array([b"true" in record.text(draw.token_ids) for draw in draws])
    mean = sum(p for y, p in record.members.items() if b"true" in record.text(y))
    for values, expected in ((w, sum(record.members.values())), (w * true, mean)):
        assert abs(z(np.append(values, np.zeros(700 - len(w))), expected)) < 4
    assert {draw.guarantee for draw in draws} == {Guarantee.WEIGHTED}
    assert any(draw.picked for draw in draws) == (attempts == 1)


def test_a_block_that_runs_out_of_attempts_is_picked_and_says_so() -> None:
    draws = drawn(FREE, FieldsPhi(attempts=8), 200)
    assert {(draw.picked > 0, draw.guarantee) for draw in draws} == {
        (True, Guarantee.APPROXIMATE),
        (False, Guarantee.FIELDWISE),
    }
    assert all(FREE.text(draw.token_ids[:-1]) in TEXTS for draw in draws)


def test_a_format_without_blocks_is_one_block_and_exact() -> None:
    record = Record(6)
    record.texts = [b"xy", b"true", b"x"]
    record.table = Table(FSMGuide.from_automaton(compile_regex("xy|true|x"), LETTERS))
    draws = drawn(record, FieldsPhi(attempts=10_000), seed=2)
    assert p_value(ids(draws), record.law(0.0)[0]) > ALPHA
    plain = Groups(guide_of(regex(PATTERN.replace("?P<first>", "").replace("?P<second>", ""))), seed=2)
    draws += [draw for draw in drawn(plain, FieldsPhi(), 100) if not draw.picked]
    assert {(draw.guarantee, draw.blocks) for draw in draws} == {(Guarantee.EXACT, 1)}


def test_a_text_of_one_block_is_labelled_as_others_and_predicates_on_whole_texts_are_refused() -> None:
    record = Record(3)
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "additionalProperties": False}
    record.table = Table(JSONGuide.of(schema, LETTERS, blanks=""))
    record.lm = TableModel(LETTERS, lambda ids: np.zeros(len(LETTERS)))
    draws = drawn(record, FieldsPhi(attempts=100_000, least=0.0), 60)
    assert ({draw.guarantee for draw in draws}, {draw.blocks for draw in draws}) == ({Guarantee.FIELDWISE}, {1, 2})
    constraint = TextConstraint(complete=lambda text: True).over(LETTERS)
    refused("phi='fields'", drawn, FREE, FieldsPhi(), 1, constraint=constraint)


@pytest.mark.parametrize(("output_type", "last"), [(tuple[bool, bool], 3), (list[bool], 3), (bool, None)])
def test_each_item_of_a_tuple_is_a_block_and_the_first_of_a_list(output_type: Any, last: int | None) -> None:
    printable = Vocabulary.from_tokens(["<eos>", *map(chr, range(0x20, 0x7F))], 0)
    position = CompiledTypes(printable).of(output_type).guide.automaton.positions  # type: ignore[attr-defined]
    assert (None if position is None else int(position.max())) == last


def test_groups_that_are_named_already_stay_so() -> None:
    """Parts of a sequence get names that no group has."""
    automaton = guide_of(regex("(?P<_0>a|b)(?P<__2>a)") + "cc" + regex("x")).automaton
    assert (automaton.positions.max(), sorted(automaton.members())) == (2, [b"aaccx", b"baccx"])


class TestAuto:
    """So few attempts that both kinds of draws come about."""

    RECORD = Record(4, fit=5.2)

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(auto_sampler, "MOST_FAILED", 5)

    def test_texts_have_the_distribution_that_they_are_labelled_with(self) -> None:
        """Exact ones mu*, the others that of fields; neither has the other's."""
        phi = AutoPhi(width=4)
        draws = [d for seed in range(20) for d in drawn(self.RECORD, phi, 1, seed, rows=40, weighted=False)]
        total = sum(self.RECORD.members.values())
        laws = {
            Guarantee.EXACT: {y: p / total for y, p in self.RECORD.members.items()},
            Guarantee.FIELDWISE: self.RECORD.law(FieldsPhi().least)[0],
        }
        for kind, other in itertools.permutations(laws):
            some = ids([draw for draw in draws if draw.guarantee == kind])
            assert len(some) > 60 and p_value(some, laws[kind]) > ALPHA > p_value(some, laws[other])

    def test_more_draws_than_go_at_once_find_what_was_evaluated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lookahead, "TOGETHER", 5)
        monkeypatch.setattr(window_walks, "WASTE", 20)
        draws = drawn(self.RECORD, AutoPhi(width=2), 3, rows=12, weighted=False)
        assert len(draws) == 36 and {draw.guarantee for draw in draws} == {Guarantee.EXACT, Guarantee.FIELDWISE}

    def test_weights_are_drawn_by_candidates_and_a_warning_says_what_texts_are(self) -> None:
        with pytest.warns(FidelityWarning, match="model's own distribution of that field"):
            drawn(self.RECORD, AutoPhi(width=2, share=0.01), 20, weighted=False)
        kinds = {draw.guarantee for draw in drawn(self.RECORD, AutoPhi(width=2, share=0.01), 4)}
        assert kinds <= {Guarantee.WEIGHTED, Guarantee.EXACT}

    def test_what_was_drawn_is_handed_over_where_fields_are_interrupted(self) -> None:
        phi, seen = AutoPhi(width=4), []
        stopped = mock.patch.object(lookahead.WindowedDraws, "steps", side_effect=KeyboardInterrupt)
        with stopped, pytest.raises(InterruptedDraws) as caught:
            drawn(self.RECORD, phi, 1, rows=40, weighted=False)
        made = [draw for draws in caught.value.draws for draw in draws]
        assert 0 < len(made) < 40 and {draw.guarantee for draw in made} == {Guarantee.EXACT}
        with watch.watching(lambda at: seen.append(at.progress())):
            drawn(self.RECORD, phi, 1, seed=2, rows=40, weighted=False)
        assert [each.draws for each in seen] == sorted(each.draws for each in seen)
        assert {each.wanted for each in seen} == {40}
