"""The trie against its definition, and its cache."""

import errno
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import Vocabulary
from outlines_phi.lm import bundled
from outlines_phi.numerics import cache
from outlines_phi.numerics.cache import CACHE_VARIABLE, Cache
from outlines_phi.vocabulary import trie as module
from outlines_phi.vocabulary.trie import Trie, fewest_tokens, merged_tokens
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
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=30), st.data())
def test_the_trie_of_any_tokens(tokens: list[bytes], data: st.DataObject) -> None:
    """Every token ends where its bytes lead; levels are depths; children and ids are those by definition, of any nodes."""
    trie = Trie.build(tuple(tokens))
    written = [spelling(trie, node) for node in range(len(trie))]
    assert sorted(written) == sorted({token[:length] for token in tokens for length in range(len(token) + 1)} | {b""})
    assert [written[node] for node in trie.node_of] == tokens
    assert {written[node] for node in np.flatnonzero(trie.is_end)} == {token for token in tokens if token}
    assert [{*map(len, written[low:high])} for low, high in pairwise(trie.levels)] == [
        {d} for d in range(len(trie.levels) - 1)
    ]
    assert trie.levels[-1] == len(trie) and (np.diff(trie.parent[1:].astype(int) * 256 + trie.byte[1:]) > 0).all()
    low = data.draw(st.integers(0, len(trie) - 1))
    span = range(low, data.draw(st.integers(low, len(trie) - 1)) + 1)
    some = data.draw(st.lists(st.integers(0, len(trie) - 1), max_size=5))
    for nodes in (
        np.array(some, dtype=np.int64),
        np.array(span),
        np.array(sorted(data.draw(st.sets(st.sampled_from(span)))), dtype=np.int64),
    ):
        below = [[n for n in range(1, len(trie)) if trie.parent[n] == node] for node in nodes]
        ids = [[v for v in range(len(tokens)) if trie.node_of[v] == node] for node in nodes]
        for (found, counts), expected in ((trie.below(nodes), below), (trie.ending(nodes), ids)):
            assert found.tolist() == sum(expected, []) and counts.tolist() == list(map(len, expected))
        if (np.diff(nodes) > 0).all():
            children, places = trie.children(nodes)
            assert children.tolist() == sum(below, []) and places.tolist() == [
                n for n, of in enumerate(below) for _ in of
            ]


@pytest.fixture
def vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vocabulary:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    forget(monkeypatch)
    return Vocabulary.from_tokens(TOKENS, 0)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty the memory."""
    monkeypatch.setattr(module, "kept_tries", Cache(module.KEPT))


def kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").glob("*"))


def is_right(vocabulary: Vocabulary) -> bool:
    """Return True if the trie of a vocabulary is the one that is built of its tokens."""
    found, built = Trie.of(vocabulary), Trie.build(vocabulary.tokens)
    return all(
        np.array_equal(getattr(found, name), getattr(built, name)) for name in ("parent", "byte", "levels", "node_of")
    )


def test_a_trie_is_built_once_and_memory_is_bounded(vocabulary: Vocabulary) -> None:
    first = Trie.of(vocabulary)
    assert first is Trie.of(Vocabulary.from_tokens(TOKENS, 0))
    for i in range(module.KEPT):
        Trie.of(Vocabulary.from_tokens(["", f"{i}"], 0))
    assert Trie.of(vocabulary) is not first


def test_a_trie_is_read_back_from_disk(vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, build = Trie.of(vocabulary), Trie.build
    assert [path.name for path in kept(tmp_path)] == [f"trie-2-{vocabulary.fingerprint}.npz"]
    forget(monkeypatch)
    monkeypatch.setattr(Trie, "build", None)
    read = Trie.of(vocabulary)
    monkeypatch.setattr(Trie, "build", build)
    assert read is not built and is_right(vocabulary)


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut", "of another vocabulary", "any bit"])
def test_a_damaged_file_is_built_again(
    vocabulary: Vocabulary, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags of the archive, its directory, headers of arrays, and numbers."""
    other = Vocabulary.from_tokens(["", "x", "yz"], 0)
    Trie.of(vocabulary)
    (path,) = kept(tmp_path)
    whole = path.read_bytes()
    if damage == "of another vocabulary":
        vocabulary, path = other, path.rename(path.with_name(f"trie-2-{other.fingerprint}.npz"))
    for place in range(0, len(whole), 7) if damage == "any bit" else ():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert cache.load_arrays(path.stem) is None and not path.exists()
    if damage in ("empty", "garbage", "cut"):
        path.write_bytes({"empty": b"", "garbage": b"not a trie", "cut": whole[:-40]}[damage])
    for _ in range(2):
        forget(monkeypatch)
        assert is_right(vocabulary)
        assert cache.load_arrays(path.stem) is not None, "the damaged file was replaced"
    assert damage == "of another vocabulary" or path.read_bytes() == whole


def no_space(*paths: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def stopped(*paths: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("refuse", [no_space, stopped])
def test_a_full_disk_leaves_nothing_behind(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: object
) -> None:
    monkeypatch.setattr("outlines_phi.numerics.cache.os.replace", refuse)
    with nullcontext() if refuse is no_space else pytest.raises(KeyboardInterrupt):
        assert is_right(vocabulary)
    assert not kept(tmp_path)


def test_where_a_trie_is_kept(vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nowhere if that is off or the folder cannot be made; by default in the folder of the platform."""
    (tmp_path / "file").write_text("")
    for folder in ("", str(tmp_path / "file")):
        monkeypatch.setenv(CACHE_VARIABLE, folder)
        forget(monkeypatch)
        assert is_right(vocabulary) and not kept(tmp_path)
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setattr(
        cache.platformdirs, "user_cache_dir", lambda name, *more, **options: str(tmp_path / "cache" / name)
    )
    forget(monkeypatch)
    assert is_right(vocabulary) and kept(tmp_path)


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


@settings(deadline=None)
@given(TEXTS, st.text("abc", max_size=10))
def test_no_spelling_is_shorter_and_merged_tokens_are_one(tokens: list[str], text: str) -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", *tokens], 0)
    found, ways = fewest_tokens(vocabulary, text.encode()), spellings(vocabulary, text.encode())
    assert found in ways and len(found) == min(map(len, ways)) and merged_tokens(vocabulary, text.encode()) in ways


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
