"""Canonical tokenization: exact on finished texts, never too strict on unfinished ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.lm import bundled
from outlines_phi.vocabulary.canonical import CanonicalTokenization

_, TOKENIZER = bundled.load()
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER)
CANONICAL = CanonicalTokenization(TOKENIZER, VOCABULARY)
WRITTEN = st.one_of(st.text(max_size=25), st.text(alphabet="{}\":, \n\t09aeé1'st", max_size=40))


@given(WRITTEN)
@settings(max_examples=300)
def test_every_beginning_of_a_canonical_sequence_is_allowed(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    if VOCABULARY.decode(ids) != text.encode():
        return  # the name of a special token
    assert CANONICAL.allows(ids, finished=True)
    for end in range(len(ids) + 1):
        assert CANONICAL.allows(ids[:end], finished=False), (text, ids[:end])


@given(WRITTEN.filter(lambda text: len(text) > 1), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_a_finished_sequence_is_allowed_where_it_is_its_own_encoding(text: str, random) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    if VOCABULARY.decode(ids) != text.encode():
        return
    split = [i for i, token in enumerate(ids) if len(VOCABULARY.tokens[token]) > 1]
    if not split:
        return
    at = random.choice(split)
    letters = [VOCABULARY.tokens.index(bytes([byte])) for byte in VOCABULARY.tokens[ids[at]]]
    other = [*ids[:at], *letters, *ids[at + 1 :]]
    assert not CANONICAL.allows(other, finished=True)


def test_what_can_no_longer_be_canonical_is_given_up_early() -> None:
    ids = TOKENIZER.encode('{"name": "Aria"', add_special_tokens=False)
    at = next(i for i, token in enumerate(ids) if len(VOCABULARY.tokens[token]) > 1)
    letters = [VOCABULARY.tokens.index(bytes([byte])) for byte in VOCABULARY.tokens[ids[at]]]
    other = [*ids[:at], *letters, *ids[at + 1 :]]
    allowed = [CANONICAL.allows(other[:end], finished=False) for end in range(len(other) + 1)]
    assert allowed[at + 1] and not allowed[-1]
    assert allowed == sorted(allowed, reverse=True)  # once given up, always given up


def metaspace() -> PreTrainedTokenizerFast:
    """Return a tokenizer in the manner of SentencePiece: a space is put before every text."""
    letters = {
        "<eos>": 0,
        "<unk>": 1,
        "▁": 2,
        "a": 3,
        "b": 4,
        "c": 5,
        "▁a": 6,
        "ab": 7,
        "▁ab": 8,
        "bc": 9,
        "{": 10,
        '"': 11,
    }
    letters |= {":": 12, "1": 13, "}": 14, "\n": 15}
    merges = [("▁", "a"), ("a", "b"), ("▁", "ab"), ("b", "c")]
    tokenizer = Tokenizer(models.BPE(letters, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")


def test_a_tokenizer_that_begins_texts_with_a_space() -> None:
    tokenizer = metaspace()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    canonical = CanonicalTokenization(tokenizer, vocabulary)
    ids = {written: token for token, written in enumerate(vocabulary.tokens)}
    assert canonical.allows([ids[b"ab"], ids[b"c"]], finished=True)
    assert not canonical.allows([ids[b"a"], ids[b"bc"]], finished=True)
    assert not canonical.allows([ids[b"a"], ids[b"b"]], finished=True)
    assert canonical.allows(
        [ids[b"a"], ids[b"b"]], finished=False
    )  # nothing is split: only finished texts are compared


def right_to_left() -> PreTrainedTokenizerFast:
    """Return a tokenizer that groups the digits of a number from the right: what follows moves every group."""
    tokenizer = Tokenizer(models.BPE())
    grouping = pre_tokenizers.Split(Regex(r"\d{1,3}(?=(?:\d{3})*\b)"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([grouping, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([str(number) for number in range(1000)] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


@pytest.mark.parametrize("tried", [True, False], ids=["right", "untried"])
def test_a_splitting_that_looks_far_ahead_gives_nothing_up_early(tried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the trial texts, beginnings of canonical numbers are given up."""
    tokenizer = right_to_left()
    if not tried:
        monkeypatch.setattr("outlines_phi.vocabulary.canonical.TRIALS", ())
    canonical = CanonicalTokenization(tokenizer, Vocabulary.from_tokenizer(tokenizer))
    allowed = []
    for number in range(10**6, 10**7, 54_321):
        ids = tokenizer.encode(f"{number}{number}", add_special_tokens=False)
        assert canonical.allows(ids, finished=True)
        allowed += [canonical.allows(ids[:end], finished=False) for end in range(len(ids))]
    assert all(allowed) == tried


class Lossy:
    """A tokenizer that does not give back what it was given."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] if text else []


def test_a_tokenizer_that_changes_texts_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Lossy does not give its text back byte for byte"):
        CanonicalTokenization(Lossy(), VOCABULARY)
