"""Every guide obeys the laws and pickles into the same masks; free text; texts that are listed from small guides."""

import multiprocessing
import pickle
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, TimeoutError
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, EmptyLanguageError, Vocabulary
from outlines_phi.guides import CFGGuide, FSMGuide, Guide, Table, read_grammar
from outlines_phi.guides.grammar.lexer import Lexer
from outlines_phi.guides.json_schema.shapes import ObjectShape
from outlines_phi.testing import assert_guide, assert_spells
from tests.guides.walking import assert_row, is_free, members
from tests.inner import (
    DEAD,
    DONE,
    EOS,
    NEVER,
    QUESTIONS,
    LRTables,
    Partition,
    PhraseGuide,
    ProductGuide,
    bundled,
    compile_regex,
    free_text,
    grammar_text,
    list_texts,
    merged_tokens,
    reachable,
    smallest_conflict,
)
from tests.inner import cfg_guide as cfg_guide
from tests.languages import AND_OPEN, GRAMMARS, LANGUAGES, VOCABULARY, Language
from tests.refusals import refused


def table(rows: list[list[int]]) -> FSMGuide:
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", "b"], 0)
    partition = Partition(np.array([EOS, 2, 3], dtype=np.int32), 4)
    targets = np.array([[0] * 4, [0] * 4, *rows], dtype=np.int32)
    state, classes = np.nonzero(targets)
    offsets = np.searchsorted(state, np.arange(len(targets) + 1))
    return FSMGuide(vocabulary, partition, offsets, classes.astype(np.int32), targets[state, classes], 2)


def test_a_guide_from_a_table() -> None:
    """`a` at most once, then the end."""
    guide = table([[0, DONE, 3, 0], [0, DONE, 0, 0]])
    assert_guide(guide)
    assert_spells(guide, compile_regex("a?"))
    assert reachable(guide) == [2, 3]


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([[0, DONE, DONE, 0]], "something else than the end of sequence"),
        ([[0, DONE, 3, 0], [0, 0, 3, 0]], "dead end"),
        ([[0, DONE, 3, 0], [0, 0, 0, 0]], "dead end|nothing is allowed"),
        ([[2, DONE, 0, 0]], "no state allows NEVER"),
        ([[0, 2, 0, 0]], "only ends a text"),
    ],
    ids=["ends by a token", "endless loop", "stuck", "never is allowed", "end does not end"],
)
def test_the_laws_refuse_a_broken_guide(rows: list[list[int]], fault: str) -> None:
    refused(fault, assert_guide, table(rows), error=AssertionError)


def test_the_laws_refuse_a_dead_state_that_can_be_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FSMGuide, "min_tokens", lambda *_: 0)
    refused("state 0 must be", assert_guide, table([[0, DONE, 3, 0], [0, DONE, 0, 0]]), error=AssertionError)


@pytest.mark.parametrize("method", ["advance", "mask", "distances_after", "live_classes"])
def test_a_state_that_contradicts_its_row_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guide, right = table([[0, DONE, 3, 0], [0, DONE, 0, 0]]), getattr(FSMGuide, method)
    for state in reachable(guide):
        assert_row(guide, state)
    monkeypatch.setattr(
        FSMGuide,
        method,
        lambda *given: 1 - right(*given).astype(int) if method == "live_classes" else right(*given) + 1,
    )
    refused(None, assert_row, guide, guide.start, error=AssertionError)


@pytest.mark.parametrize("other", ["a", "a?b?", "b?", "a*"])
def test_the_laws_refuse_another_language(other: str) -> None:
    refused(None, assert_spells, table([[0, DONE, 3, 0], [0, DONE, 0, 0]]), compile_regex(other), error=AssertionError)


@pytest.mark.parametrize("language", AND_OPEN, ids=str)
@pytest.mark.parametrize("budget", [4, 6])
def test_they_are_the_texts_of_all_members(language: Language, budget: int) -> None:
    expected = {language.table.guide.text(ids) for ids in language.within(budget).reference().log_p}
    assert list_texts(language.table, language.table.start, budget, 10_000) == sorted(expected)


@pytest.mark.parametrize(("budget", "longest"), [(60, 40), (4, 6)])
def test_a_text_is_listed_once_and_a_budget_counts_its_shortest_spelling(budget: int, longest: int) -> None:
    """Of forty letters there are 165 million spellings."""
    language = Language("runs", "a{1,40}", budget, seed=0)
    assert list_texts(language.table, language.table.start, budget, 100) == [b"a" * n for n in range(1, longest + 1)]


@pytest.mark.parametrize("pattern", ["a*", "[abcx]{20}"])
def test_what_is_too_large_is_given_up(pattern: str) -> None:
    language = Language("large", pattern, 200, seed=0)
    assert list_texts(language.table, language.table.start, language.budget, 100) is None


BANNED = ProductGuide(GRAMMARS[1].table.guide, PhraseGuide(VOCABULARY, BannedPhrases(["aba", "c)"])))
GRAMMAR, DOCUMENT = "c", b"int main() { int x = 3; while (x < 10) { x = x + f(y[2], 'a'); } return 0; }\n"


@pytest.fixture
def prepared() -> CFGGuide:
    return CFGGuide.of(read_grammar(grammar_text(GRAMMAR)), Vocabulary.from_tokenizer(bundled.load()[1]))


def states_along(guide: Guide, text: bytes) -> list[int]:
    """Return the states along a member of the language, without that of its end."""
    states = [*accumulate(merged_tokens(guide.vocabulary, text), guide.advance, initial=guide.start)]
    assert guide.advance(states[-1], guide.vocabulary.eos_ids[0]) == DONE
    return states


def masks(guide: Guide, states: list[int]) -> list[tuple[Any, ...]]:
    """Return the mask of each state, token by token, and the distances to the end."""
    rows = [(guide.row(state), guide.distances_after(state)) for state in states]
    return [tuple(x[row.partition.class_of].tolist() for x in (row.targets, distances)) for row, distances in rows]


def test_a_shape_of_another_process_is_found_among_its_equals() -> None:
    shape, equal = (ObjectShape(required=frozenset({"a"})) for _ in range(2))
    vars(shape)["_hash"] = hash(shape) + 1  # as texts hash there
    assert pickle.loads(pickle.dumps(shape)) in {equal} and shape not in {equal}


def test_tables_are_pickled_without_what_a_device_holds() -> None:
    table = pickle.loads(pickle.dumps(Table(LANGUAGES[1].table.guide)))
    assert table.moves(table.start, 9).tokens.tolist()
    partition = LANGUAGES[0].table.partition(2)
    empty = len(pickle.dumps(partition))
    partition.mass(torch.ones(len(VOCABULARY)))
    assert len(pickle.dumps(partition)) == empty


def test_states_that_were_met_keep_their_numbers(prepared: CFGGuide) -> None:
    states = states_along(prepared, DOCUMENT)
    again: CFGGuide = pickle.loads(pickle.dumps(prepared))
    fresh = CFGGuide.of(prepared.grammar, prepared.vocabulary)
    states_along(fresh, b"char c = 'c';")
    assert masks(again, states) == masks(prepared, states) and states_along(again, DOCUMENT) == states
    # Control: states are numbered as they are met, so a guide that has met others calls these otherwise.
    assert states_along(fresh, DOCUMENT) != states


def test_another_process_sees_the_same_masks(prepared: CFGGuide) -> None:
    states, product = np.array(states_along(prepared, DOCUMENT)), BANNED
    asked = (
        (prepared.min_tokens_of, states),
        (prepared.distances_after, states[9]),
        (product.distances_after, product.start),
    )
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        theirs = [pool.submit(*call) for call in asked]
        assert all(np.array_equal(found.result(), of(given)) for found, (of, given) in zip(theirs, asked, strict=True))


def test_nothing_is_prepared_again_and_rows_take_no_room(prepared: CFGGuide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data as large as the vocabulary for each state is left out."""
    states = states_along(prepared, DOCUMENT)
    expected = masks(prepared, states)

    def prepare(*_: object) -> None:
        raise AssertionError("tables were prepared")

    for kind in (Lexer, LRTables):
        monkeypatch.setattr(kind, "of", prepare)
    refused("prepared", CFGGuide.of, prepared.grammar, prepared.vocabulary, error=AssertionError)
    pickled = pickle.dumps(prepared)
    assert b"Partition" not in pickled and masks(pickle.loads(pickled), states) == expected


def test_other_threads_wait_while_a_guide_is_pickled() -> None:
    guide = CFGGuide.of(read_grammar(GRAMMARS[0].pattern), VOCABULARY)
    with ThreadPoolExecutor(1) as pool:
        with guide._lock:
            pickled = pool.submit(pickle.dumps, guide)
            refused(None, pickled.result, timeout=0.1, error=TimeoutError)
        assert np.array_equal(pickle.loads(pickled.result()).mask(guide.start), guide.mask(guide.start))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(GRAMMARS[0].table.guide)
    monkeypatch.setattr(cfg_guide, "__version__", "99.0")
    refused(r"unpickled by outlines_phi 99\.0.*make it anew", pickle.loads, pickled)


BYTES = Vocabulary.from_tokens(["<eos>", *(bytes((byte,)) for byte in range(256)), "ab", b" \xc3", "é", "🙂"], 0)
PIECES = ["a", b"a\xc3", "é", b"\xc3", b"\xa9", b"\xa9a", b"\xff", "è", b"\xa8", "aé", "éa"]


def written(vocabulary: Vocabulary, phrases: list[str]) -> set[tuple[int, ...]]:
    """Sequences of some tokens that write whole characters and no phrase, as Python sees them."""

    def is_text(text: bytes) -> bool:
        own = text.decode(errors="surrogateescape")
        return bool(own) and not re.search("[\udc80-\udcff]", own) and not any(phrase in own for phrase in phrases)

    return members(vocabulary, 4, is_text)


def test_a_list_is_refused_where_no_text_is_left() -> None:
    seen: Counter[str] = Counter()

    @settings(derandomize=True, deadline=None, max_examples=150)
    @given(
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=4, unique=True),
        st.lists(st.sampled_from(["a", "é", "è", "aa", "éa"]), min_size=1, max_size=4, unique=True),
    )
    def check(pieces: list[str | bytes], phrases: list[str]) -> None:
        vocabulary = Vocabulary.from_tokens(["<eos>", *pieces], 0)
        if not written(vocabulary, []):
            return  # of lone bytes alone: nothing that is banned makes a difference
        left = written(vocabulary, phrases)
        broken = any(not any(phrase.encode() in token for phrase in phrases) for token in vocabulary.tokens[1:])
        seen["text" if left else "broken" if broken else "nothing"] += 1
        if left:
            assert free_text(vocabulary, BannedPhrases(phrases)).min_tokens(2) == 0
            return
        error = refused(None, free_text, vocabulary, BannedPhrases(phrases), error=EmptyLanguageError)
        named = [phrase for phrase in phrases if repr(phrase) in str(error.value)]
        assert named and not written(vocabulary, named)
        assert all(written(vocabulary, [other for other in named if other != phrase]) for phrase in named)

    check()
    assert all(seen[kind] > 5 for kind in ("text", "broken", "nothing")), seen


@pytest.mark.parametrize(
    ("phrases", "ignore_case", "named"),
    [
        ([re.compile("(?s:.)"), "abc"], False, "re.compile('(?s:.)')"),
        ([re.compile("[^a]"), "zz", "a"], False, "re.compile('[^a]'), 'a'"),
        ([re.compile("[^é]"), "É"], True, "re.compile('[^é]'), 'É'"),
        (
            [*map(chr, range(128)), re.compile("[^\0-\x7f]")],
            False,
            "'\\x00', '\\x01', '\\x02', '\\x03', '\\x04' and 124 more",
        ),
    ],
)
def test_lone_bytes_are_no_text(phrases: list[str | re.Pattern[str]], ignore_case: bool, named: str) -> None:
    error = refused(
        "write no character.*Ban less of them",
        free_text,
        BYTES,
        BannedPhrases(phrases, ignore_case=ignore_case),
        error=EmptyLanguageError,
    )
    assert f"without {named}. " in str(error.value)


@pytest.mark.parametrize(
    "phrases", [[re.compile("[^a]")], [re.compile("[^é]")], [re.compile("(?s:.){2}")], [*map(chr, range(0x80, 0x800))]]
)
def test_one_character_is_text(phrases: list[str | re.Pattern[str]]) -> None:
    assert free_text(BYTES, BannedPhrases(phrases)).min_tokens(2) == 0


def test_a_character_that_tokens_cannot_finish_is_no_text_and_a_long_list_takes_few_questions() -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", b"\xc3", b"\xff"], 0)
    refused("no character without 'a'", free_text, vocabulary, BannedPhrases(["b", "a"]), error=EmptyLanguageError)
    asked, phrases = list[BannedPhrases](), BannedPhrases([f"{i} " for i in range(1000)])
    assert smallest_conflict(phrases, lambda some: asked.append(some) or len(some) == 1000) == phrases
    assert len(asked) == QUESTIONS


LETTERS = Vocabulary.from_tokens(["<eos>", "a", "b"], 0)
WAITING = BannedPhrases(["a", "ba"], whole_word=True)
"""Phrases of which a text that ends with one waits for a letter."""


def walked(table: Table, budget: int) -> set[tuple[int, ...]]:
    """Return the members that the moves of a table lead to, the end of sequence included where one is written."""
    found, level, device = set(), [((), table.start)], torch.device("cpu")
    for left in range(budget, 0, -1):
        below = []
        for ids, state in level:
            moves, to, step = (
                of(state, left)
                for of in (
                    table.moves,
                    partial(table.class_targets, device=device),
                    partial(table.one_step, device=device),
                )
            )
            classes = to.partition.class_of[moves.tokens]
            assert (to.states[to.places.numpy()[classes]] == moves.targets).all(), "what estimators read"
            assert ((moves.targets == DONE) == step.ends.numpy()[classes]).all() and not step.live[NEVER]
            for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
                assert target == table.advance(state, token, left) != DEAD
                (found.add((*ids, token)) if target == DONE else below.append(((*ids, token), target)))
        level = below
    return found


@pytest.mark.parametrize("phrases", [BannedPhrases(["aa"]), WAITING], ids=str)
@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_a_text_ends_where_it_says_so_or_where_the_budget_does(phrases: BannedPhrases, budget: int) -> None:
    expected = {ids if len(ids) == budget else (*ids, 0) for ids in members(LETTERS, budget, is_free(phrases))}
    assert walked(Table(free_text(LETTERS, phrases)), budget) == expected and expected


def test_the_end_of_the_budget_is_no_end_of_a_text_that_waits() -> None:
    assert {(1,), (2, 1)}.isdisjoint(walked(Table(free_text(LETTERS, WAITING)), 2)) and (1, 2, 1) in walked(
        Table(free_text(LETTERS, WAITING)), 3
    )
