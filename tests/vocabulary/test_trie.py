"""The trie against its definition, and its cache."""

import errno
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.lm import bundled
from outlines_phi.numerics import cache
from outlines_phi.numerics.cache import CACHE_VARIABLE, Cache
from outlines_phi.vocabulary import trie as module
from outlines_phi.vocabulary.trie import Trie, fewest_tokens, merged_tokens
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.languages import VOCABULARY

fixed = settings(derandomize=True, deadline=None)

TOKENS = [b"", b"a", b"ab", b"a", b"b\x00", b"b", "é".encode(), b"\xc3", b"abc", b"\xff\xff\xff"]


def spelling(trie: Trie, node: int) -> bytes:
    text = b""
    while node:
        text = bytes([trie.byte[node]]) + text
        node = int(trie.parent[node])
    return text


@fixed
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=30))
def test_every_token_ends_where_its_bytes_lead(tokens: list[bytes]) -> None:
    trie = Trie.build(tuple(tokens))
    prefixes = {token[:length] for token in tokens for length in range(len(token) + 1)} | {b""}
    assert sorted(spelling(trie, node) for node in range(len(trie))) == sorted(prefixes)
    assert [spelling(trie, int(node)) for node in trie.node_of] == list(tokens)
    assert {spelling(trie, int(node)) for node in np.flatnonzero(trie.is_end)} == {token for token in tokens if token}


@fixed
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=30), st.data())
def test_children_and_ids_of_several_nodes(tokens: list[bytes], data: st.DataObject) -> None:
    trie = Trie.build(tuple(tokens))
    nodes = np.array(data.draw(st.lists(st.integers(0, len(trie) - 1), max_size=5)), dtype=np.int64)
    children, counts = trie.below(nodes)
    expected = [[n for n in range(1, len(trie)) if trie.parent[n] == node] for node in nodes]
    assert children.tolist() == sum(expected, []) and counts.tolist() == [len(below) for below in expected]
    ids, counts = trie.ending(nodes)
    expected = [[v for v in range(len(tokens)) if trie.node_of[v] == node] for node in nodes]
    assert ids.tolist() == sum(expected, []) and counts.tolist() == [len(here) for here in expected]


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=30), st.data())
@fixed
def test_children_with_the_places_of_their_parents(tokens: list[bytes], data: st.DataObject) -> None:
    """As by looking below each node, whether nodes are few or neighbours."""
    trie = Trie.build(tuple(tokens))
    low = data.draw(st.integers(0, len(trie) - 1))
    span = range(low, data.draw(st.integers(low, len(trie) - 1)) + 1)
    for nodes in (np.array(span), np.array(sorted(data.draw(st.sets(st.sampled_from(span)))), dtype=np.int64)):
        children, places = trie.children(nodes)
        expected, counts = trie.below(nodes)
        assert children.tolist() == expected.tolist()
        assert places.tolist() == np.repeat(np.arange(len(nodes)), counts).tolist()


@fixed
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=30))
def test_levels_are_depths_and_children_are_neighbours(tokens: list[bytes]) -> None:
    trie = Trie.build(tuple(tokens))
    for depth, (low, high) in enumerate(zip(trie.levels, trie.levels[1:], strict=False)):
        assert {len(spelling(trie, node)) for node in range(low, high)} == {depth}
    assert trie.levels[-1] == len(trie)
    assert (np.diff(trie.parent[1:].astype(int) * 256 + trie.byte[1:]) > 0).all()


@pytest.fixture
def vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vocabulary:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_memory", Cache(module._KEPT))
    return Vocabulary.from_tokens(TOKENS, 0)


def kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").glob("*"))


def same(a: Trie, b: Trie) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("parent", "byte", "levels", "node_of"))


def test_a_trie_is_built_once_in_a_process(vocabulary: Vocabulary) -> None:
    assert Trie.of(vocabulary) is Trie.of(Vocabulary.from_tokens(TOKENS, 0))


def test_memory_is_bounded(vocabulary: Vocabulary) -> None:
    first = Trie.of(vocabulary)
    for i in range(module._KEPT):
        Trie.of(Vocabulary.from_tokens(["", f"{i}"], 0))
    assert len(module._memory) == module._KEPT
    assert Trie.of(vocabulary) is not first


def test_a_trie_is_read_back_from_disk(vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Trie.of(vocabulary)
    assert [path.name for path in kept(tmp_path)] == [f"trie-2-{vocabulary.fingerprint}.npz"]
    module._memory.clear()
    monkeypatch.setattr(Trie, "build", None)
    assert same(Trie.of(vocabulary), built)


@pytest.mark.parametrize("damage", [b"", b"not a trie", None], ids=["empty", "garbage", "cut"])
def test_a_damaged_file_is_built_again(vocabulary: Vocabulary, tmp_path: Path, damage: bytes | None) -> None:
    built = Trie.of(vocabulary)
    (path,) = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    module._memory.clear()
    assert same(Trie.of(vocabulary), built)
    module._memory.clear()
    assert cache.load_arrays(path.stem) is not None, "the damaged file was replaced"


def test_any_bit_that_was_changed_is_found(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """Flags of the archive, its directory, headers of arrays, and numbers."""
    built = Trie.of(vocabulary)
    (path,) = kept(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert cache.load_arrays(path.stem) is None and not path.exists()
    module._memory.clear()
    assert same(Trie.of(vocabulary), built) and path.read_bytes() == whole


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
def test_a_full_disk_leaves_nothing_behind(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refuse(*paths: object) -> None:
        raise error

    monkeypatch.setattr("outlines_phi.numerics.cache.os.replace", refuse)
    with nullcontext() if isinstance(error, OSError) else pytest.raises(KeyboardInterrupt):
        assert same(Trie.of(vocabulary), Trie.build(vocabulary.tokens))
    assert not kept(tmp_path)


def test_a_file_for_another_vocabulary_is_not_used(vocabulary: Vocabulary, tmp_path: Path) -> None:
    Trie.of(vocabulary)
    (path,) = kept(tmp_path)
    other = Vocabulary.from_tokens(["", "x", "yz"], 0)
    path.rename(path.with_name(f"trie-2-{other.fingerprint}.npz"))
    assert same(Trie.of(other), Trie.build(other.tokens))


def test_the_cache_can_be_turned_off(vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "")
    Trie.of(vocabulary)
    assert not kept(tmp_path)


def test_a_folder_that_cannot_be_made_is_no_error(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    assert same(Trie.of(vocabulary), Trie.build(vocabulary.tokens))


def test_the_platform_folder_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    folder = cache._folder()
    assert folder is not None and folder.name == "outlines_phi"


TEXTS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


def spellings(vocabulary: Vocabulary, text: bytes) -> list[tuple[int, ...]]:
    """Return all ways to write ``text`` or, where there is none, the longest beginning of it that can be written."""
    ways: dict[bytes, list[tuple[int, ...]]] = {b"": [()]}
    for end in range(1, len(text) + 1):
        ways[text[:end]] = [
            (*before, token)
            for token, written in enumerate(vocabulary.tokens)
            if written and text[:end].endswith(written)
            for before in ways.get(text[: end - len(written)], [])
        ]
    return ways[max((written for written, found in ways.items() if found), key=len)]


@given(TEXTS, st.text("abc", max_size=10))
def test_no_spelling_is_shorter(tokens: list[str], text: str) -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", *tokens], 0)
    found, all_of_them = fewest_tokens(vocabulary, text.encode()), spellings(vocabulary, text.encode())
    assert found in all_of_them and len(found) == min(map(len, all_of_them))


@given(TEXTS, st.text("abc", max_size=10))
def test_merged_tokens_write_what_can_be_written(tokens: list[str], text: str) -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", *tokens], 0)
    assert merged_tokens(vocabulary, text.encode()) in spellings(vocabulary, text.encode())


def test_merged_tokens_are_those_of_a_tokenizer() -> None:
    """Of every phrase; the fewest tokens are not."""
    tokenizer = bundled.load()[1]
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    phrases = [
        "positive",
        "very negative",
        "San Francisco",
        "Rio de Janeiro",
        "2026-05-22",
        "technical issue",
        "Barcelona",
        '{"a": true}',
    ]
    written = [tuple(tokenizer.encode(phrase, add_special_tokens=False)) for phrase in phrases]
    assert [merged_tokens(vocabulary, phrase.encode()) for phrase in phrases] == written
    assert [fewest_tokens(vocabulary, phrase.encode()) for phrase in phrases] != written
    assert merged_tokens(vocabulary, b"") == ()


def test_the_first_tokens_are_long() -> None:
    tokens = [VOCABULARY.tokens.index(text) for text in (b"aa", b"ba", b"b")]
    assert fewest_tokens(VOCABULARY, b"aabab?") == tuple(tokens)
    assert fewest_tokens(VOCABULARY, b"") == fewest_tokens(VOCABULARY, b"?") == ()


def test_long_texts_take_no_more_than_their_length() -> None:
    assert (
        fewest_tokens(VOCABULARY, b"cca" * 2000)
        == (VOCABULARY.tokens.index(b"cc"), VOCABULARY.tokens.index(b"a")) * 2000
    )
