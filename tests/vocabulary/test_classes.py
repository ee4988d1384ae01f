"""Masses and spreads of classes, and canonical tokenization, against what they are defined by."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.lm import bundled
from outlines_phi.vocabulary.canonical import CanonicalTokenization
from outlines_phi.vocabulary.vocabulary import EOS, NEVER, Partition, common_refinement, refine

fixed = settings(derandomize=True, deadline=None)

CLASSES = Partition(np.array([EOS, 2, NEVER, 3, 2, 4, NEVER], dtype=np.int32), 5)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_mass_is_the_sum_over_each_class_and_spread_gives_each_token_that_of_its_own(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    p = torch.rand((*shape, 7), generator=torch.Generator().manual_seed(0)).to(dtype)
    mass = CLASSES.mass(p)
    assert mass.dtype == dtype and mass.shape == (*shape, 5)
    torch.testing.assert_close(mass, torch.stack([p[..., CLASSES.members(g)].sum(-1) for g in range(5)], dim=-1))
    assert torch.equal(CLASSES.spread(mass), mass[..., torch.from_numpy(CLASSES.class_of.astype(np.int64))])


def test_half_precision_is_not_summed_in_half_precision() -> None:
    """In bfloat16 a running sum of 1e-3 stops growing at 0.5."""
    mass = Partition(np.full(2_000, 2, dtype=np.int32), 3).mass(torch.full((2_000,), 1e-3, dtype=torch.bfloat16))
    torch.testing.assert_close(mass[2].float(), torch.tensor(2.0), rtol=0.01, atol=0)


def test_members() -> None:
    assert [CLASSES.members(g).tolist() for g in range(5)] == [[2, 6], [0], [1, 4], [3], [5]]


CHANGES = [(np.array([3, 1], dtype=np.int32), 4), (np.array([6, 3], dtype=np.int32), np.array([5, 6]))]
"""Tokens that move to other classes; one of them twice."""


@pytest.mark.parametrize("first", ["class_of", "where", "spread"])
def test_a_changed_partition_is_that_of_its_classes(first: str) -> None:
    """The order of questions does not matter, nor another partition between."""
    whole = Partition(np.array([EOS, 4, NEVER, 6, 2, 4, 5], dtype=np.int32), 7)
    between = Partition.changed(CLASSES, CHANGES[:1], 5)
    for changed in (Partition.changed(CLASSES, CHANGES, 7), Partition.changed(between, CHANGES[1:], 7)):
        if first == "class_of":
            assert changed.class_of.tolist() == whole.class_of.tolist()
        if first == "where":
            for classes in np.eye(7, dtype=bool):
                assert changed.where(classes).tolist() == classes[whole.class_of].tolist()
        x = torch.arange(7.0)
        assert torch.equal(changed.spread(x), whole.spread(x))
        assert changed.class_of.tolist() == whole.class_of.tolist()
    assert CLASSES.class_of.tolist() == [EOS, 2, NEVER, 3, 2, 4, NEVER]


def test_what_was_chosen_of_a_partition_is_not_given_away() -> None:
    flags = np.array([False, True, True, False, True, True, True])
    one, other = (Partition.changed(CLASSES, CHANGES[:n], 7) for n in (1, 2))
    one.where(flags)[:] = True
    assert other.where(flags).tolist() == flags[other.class_of].tolist()


partitions = st.lists(st.integers(2, 5), min_size=6, max_size=6).map(lambda classes: [EOS, *classes])


def number(classes: list[int], never: list[bool]) -> Partition:
    found = {
        g: i + 2
        for i, g in enumerate(dict.fromkeys(g for g, out in zip(classes, never, strict=True) if g > 1 and not out))
    }
    numbers = [NEVER if out else found.get(g, g) for g, out in zip(classes, never, strict=True)]
    return Partition(np.array(numbers, dtype=np.int32), len(found) + 2)


@fixed
@given(partitions, partitions, *[st.lists(st.booleans(), min_size=6, max_size=6)] * 2)
def test_refinement_tells_tokens_apart_as_either_does(
    a: list[int], b: list[int], a_never: list[bool], b_never: list[bool]
) -> None:
    left, right = number(a, [False, *a_never]), number(b, [False, *b_never])
    refined, to_left, to_right = refine(left, right)
    assert refined.class_of[0] == EOS and refined.size == len(to_left) == len(to_right)
    for v in range(7):
        g = refined.class_of[v]
        never = NEVER in (left.class_of[v], right.class_of[v])
        assert (g == NEVER) == never
        if not never:
            assert (to_left[g], to_right[g]) == (left.class_of[v], right.class_of[v])
    pairs = {(left.class_of[v], right.class_of[v]) for v in range(1, 7) if refined.class_of[v] != NEVER}
    assert refined.size == len(pairs) + 2, "no finer than needed"


@fixed
@given(st.lists(st.tuples(partitions, st.lists(st.booleans(), min_size=6, max_size=6)), min_size=1, max_size=4))
def test_a_common_refinement_keeps_what_some_partition_allows(given: list[tuple[list[int], list[bool]]]) -> None:
    several = [number(classes, [False, *never]) for classes, never in given]
    common = common_refinement(several)
    columns = [tuple(int(each.class_of[v]) for each in several) for v in range(7)]
    assert common.class_of[0] == EOS
    assert all((common.class_of[v] == NEVER) == (set(columns[v]) == {NEVER}) for v in range(1, 7))
    for u in range(7):
        for v in range(7):
            assert (common.class_of[u] == common.class_of[v]) == (columns[u] == columns[v])
    assert common.size == max(2, 1 + common.class_of.max())


_, TOKENIZER = bundled.load()
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER)
CANONICAL = CanonicalTokenization(TOKENIZER, VOCABULARY)
WRITTEN = st.one_of(st.text(max_size=25), st.text(alphabet="{}\":, \n\t09aeé1'st", max_size=40))


def split_at(ids: list[int], at: int) -> list[int]:
    """Return the ids with one token spelled byte by byte."""
    return [*ids[:at], *(VOCABULARY.tokens.index(bytes([byte])) for byte in VOCABULARY.tokens[ids[at]]), *ids[at + 1 :]]


@given(WRITTEN, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_beginnings_of_a_canonical_sequence_are_allowed_and_other_sequences_are_not(text: str, random) -> None:
    """Once given up, a beginning is given up for good."""
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    if VOCABULARY.decode(ids) != text.encode():
        return  # the name of a special token
    assert CANONICAL.allows(ids, finished=True)
    assert all(CANONICAL.allows(ids[:end], finished=False) for end in range(len(ids) + 1)), text
    if places := [i for i, token in enumerate(ids) if len(VOCABULARY.tokens[token]) > 1]:
        other = split_at(ids, random.choice(places))
        assert not CANONICAL.allows(other, finished=True)
        allowed = [CANONICAL.allows(other[:end], finished=False) for end in range(len(other) + 1)]
        assert allowed == sorted(allowed, reverse=True)


def test_what_can_no_longer_be_canonical_is_given_up_early() -> None:
    ids = TOKENIZER.encode('{"name": "Aria"', add_special_tokens=False)
    at = next(i for i, token in enumerate(ids) if len(VOCABULARY.tokens[token]) > 1)
    other = split_at(ids, at)
    assert CANONICAL.allows(other[: at + 1], finished=False) and not CANONICAL.allows(other, finished=False)


def metaspace() -> PreTrainedTokenizerFast:
    """Return a tokenizer in the manner of SentencePiece: a space is put before every text."""
    pieces = ["<eos>", "<unk>", *"▁abc", "▁a", "ab", "▁ab", "bc", *'{":1}\n']
    letters = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(letters, [("▁", "a"), ("a", "b"), ("▁", "ab"), ("b", "c")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")


def test_a_tokenizer_that_begins_texts_with_a_space() -> None:
    tokenizer = metaspace()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    canonical = CanonicalTokenization(tokenizer, vocabulary)
    ids = {written: token for token, written in enumerate(vocabulary.tokens)}
    sequences = [[b"ab", b"c"], [b"a", b"bc"], [b"a", b"b"]]
    assert [canonical.allows([ids[t] for t in one], finished=True) for one in sequences] == [True, False, False]
    # Nothing is split: only finished texts are compared.
    assert all(canonical.allows([ids[t] for t in one], finished=False) for one in sequences)


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
