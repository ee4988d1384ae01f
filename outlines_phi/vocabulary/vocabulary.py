"""The exact bytes of every token, and classes of tokens that every state of a guide treats alike (theory.md, section 2)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import VocabularyError
from ..numerics.cache import Shared, kept_of_states
from ..numerics.checks import check_fits, is_count, shown
from . import tokenizers as spelling
from .special_tokens import MARK, SPELLING, id_of, reference_of
from .special_tokens import spelling as spelled_special

NEVER = 0
"""The class of ids that no state allows: without bytes, leading nowhere, or an end of sequence but not the first."""
EOS = 1  # The class of the end of sequence: the first end-of-sequence id of the vocabulary, alone


Changes = Sequence[tuple[NDArray[np.int32], int | NDArray[np.integer]]]
"""Tokens, and the class of all of them, or that of each; where tokens come twice, the later one holds."""


@final
class Partition:
    """A map from the ``V`` token ids to ``G`` classes; :data:`NEVER` and :data:`EOS` mean the same in all of them.

    ``class_of``: ``int32[V]``: the class of each id.
    ``size``: ``G``. Every class but :data:`NEVER` and :data:`EOS` has a member, or leads nowhere in the state whose partition it
        is.
    """

    def __init__(self, class_of: NDArray[np.int32], size: int) -> None:
        self._own, self.size = class_of, size
        self._base: Partition | None = None
        self._changes: Changes = ()
        self._chosen: tuple[bytes, NDArray[np.bool_]] | None = None

    @classmethod
    def changed(cls, base: Partition, changes: Changes, size: int) -> Partition:
        """Return the partition ``base`` but for some tokens; ``class_of`` is made when it is asked for."""
        found = cls.__new__(cls)
        found.size, found._base, found._changes = size, base, changes
        found._chosen = None
        return found

    @property
    def class_of(self) -> NDArray[np.int32]:
        """``int32[V]``: the class of each id."""
        return self._own if self._base is None else self._applied()

    @property
    def nbytes(self) -> int:
        """The memory of what it is made of."""
        arrays = (self._own,) if self._base is None else (part for change in self._changes for part in change)
        return sum(np.asarray(array).nbytes for array in arrays)

    @kept_of_states  # made anew from what it changes sooner than all are kept
    def _applied(self) -> NDArray[np.int32]:
        assert self._base is not None
        class_of = self._base.class_of.copy()
        for tokens, classes in self._changes:
            class_of[tokens] = classes
        return class_of

    def __reduce__(self) -> tuple[Any, ...]:
        return Partition, (self.class_of, self.size)  # a device stays where it is

    def where(self, classes: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return ``bool[V]``: for each token the entry of its class in ``classes[G]``."""
        if self._base is not None:
            chosen = self._base._where(classes[: self._base.size]).copy()
            for tokens, numbers in self._changes:
                chosen[tokens] = classes[numbers]
            return chosen
        return classes[self.class_of]

    def _where(self, classes: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return :meth:`where` of the classes, and keep the last of it: many others differ from it little."""
        key, kept = classes.tobytes(), self._chosen
        if kept is None or kept[0] != key:
            kept = self._chosen = key, self.where(classes)
        return kept[1]

    def mass(self, p: Tensor) -> Tensor:
        """Return ``mass[..., g]``, the sum of ``p[..., v]`` over the tokens ``v`` of class ``g``.

        Has the dtype and device of ``p``; half precision is summed in single. On a CPU it takes 0.08 ms per row of
        131,072 tokens (``index_add_`` on a single row takes half as long again, sums of sorted tokens longer still).
        """
        wide = p.float() if p.element_size() < 4 else p
        mass = torch.zeros((*p.shape[:-1], self.size), dtype=wide.dtype, device=p.device)
        return mass.scatter_add_(-1, self._classes(p.device).expand_as(wide), wide).to(p.dtype)

    def spread(self, x: Tensor) -> Tensor:
        """Return ``[..., V]``: for each token the entry of its class in ``x[..., G]``."""
        return x.index_select(-1, self._classes(x.device))

    def members(self, g: int) -> NDArray[np.int32]:
        """Return the ids of class ``g``, ascending."""
        return np.flatnonzero(self.class_of == g).astype(np.int32)

    @kept_of_states
    def _classes(self, device: torch.device) -> Tensor:
        """Return the classes on a device; of a changed partition, only what was changed is sent."""
        if self._base is None or not self._changes:
            return torch.from_numpy(self.class_of.astype(np.int64)).to(device)
        tokens = np.concatenate([tokens for tokens, _ in self._changes])
        classes = np.concatenate([np.broadcast_to(classes, len(tokens)) for tokens, classes in self._changes])
        tokens, last = np.unique(tokens[::-1], return_index=True)
        sent = (torch.from_numpy(array.astype(np.int64)).to(device) for array in (tokens, classes[::-1][last]))
        return self._base._classes(device).index_copy(0, *sent)


class Refinement(NamedTuple):
    """The coarsest partition finer than two others; its class ``g`` lies in ``left[g]`` and in ``right[g]``."""

    partition: Partition
    left: NDArray[np.int32]
    right: NDArray[np.int32]


def refine(a: Partition, b: Partition) -> Refinement:
    """Return the coarsest common refinement of ``a`` and ``b``; what is :data:`NEVER` in one of them is so in it."""
    return _paired(a, b, (a.class_of == NEVER) | (b.class_of == NEVER))


def common_refinement(partitions: Iterable[Partition]) -> Partition:
    """Return the coarsest partition finer than all of ``partitions``; :data:`NEVER` in it is what is so in each of them."""
    return reduce(lambda a, b: _paired(a, b, (a.class_of == NEVER) & (b.class_of == NEVER)).partition, partitions)


def _paired(a: Partition, b: Partition, is_never: NDArray[np.bool_]) -> Refinement:
    """Return the partition by the classes of both, but for what is in :data:`NEVER`."""
    first = np.array([NEVER * b.size + NEVER, EOS * b.size + EOS])
    pair = np.where(is_never, first[NEVER], a.class_of.astype(np.int64) * b.size + b.class_of)
    rest = np.setdiff1d(pair, first)
    class_of = (np.searchsorted(rest, pair) + EOS + 1).astype(np.int32)
    for kind in (NEVER, EOS):
        class_of[pair == first[kind]] = kind
    left, right = np.divmod(np.concatenate([first, rest]), b.size)
    return Refinement(Partition(class_of, len(left)), left.astype(np.int32), right.astype(np.int32))


# The number of random texts that a tokenizer must decode as its vocabulary says, and of the tokens of each
_CHECKS, _CHECK_LENGTH = 256, 8


@final
@dataclass(frozen=True, eq=False)
class Vocabulary(Shared):
    """The bytes of each token id: ``decode(ids) = tokens[ids[0]] + tokens[ids[1]] + ...``.

    Two ids may have equal bytes and stay two ids. A token may hold a part of a UTF-8 character.
    """

    # The bytes of each id, one entry per row of the model's output; `b""` for special tokens and for rows without a token. No
    # guide ever allows an id without bytes, except the end of sequence.
    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]  # The end-of-sequence ids, at least one. `eos_ids[0]` stands for the class of all of them
    real: NDArray[np.bool_]  # `bool[V]`: False on rows of the model's output that the tokenizer has no token for
    special: Mapping[str, int] = field(default_factory=dict)  # The ids of special and added tokens, by name
    plain: Vocabulary | None = None  # Of a vocabulary whose special tokens are spelled: that before it

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, tuple) or not all(isinstance(token, bytes) for token in self.tokens):
            raise VocabularyError(
                f"tokens={shown(self.tokens)} was given; a vocabulary has a tuple of bytes, one for each id. "
                "Vocabulary.from_tokens takes a list of bytes or texts, Vocabulary.from_tokenizer a tokenizer"
            )
        if not isinstance(self.eos_ids, tuple) or not all(map(is_count, self.eos_ids)):
            raise VocabularyError(f"eos_ids={shown(self.eos_ids)} was given; expected a tuple of ids, such as (0,)")
        if not isinstance(self.real, np.ndarray) or self.real.dtype != bool or self.real.ndim != 1:
            raise VocabularyError(f"real={shown(self.real)} was given; expected an array of bool, one for each id")
        if len(self.real) != len(self.tokens):
            raise VocabularyError(f"{len(self.tokens)} tokens were given, but `real` has {len(self.real)} entries")
        if not self.eos_ids:
            raise VocabularyError(
                "no end-of-sequence id is known, so a text could never end; set `tokenizer.eos_token` or "
                "`model.generation_config.eos_token_id`, or pass `eos_ids=`"
            )
        for v in self.eos_ids:
            if not 0 <= v < len(self.tokens):
                raise VocabularyError(
                    f"the end-of-sequence id {v} is not one of the {len(self.tokens)} ids; the tokenizer or the "
                    "generation config belongs to another model"
                )
            if self.tokens[v]:
                raise VocabularyError(f"the end-of-sequence id {v} writes {self.tokens[v]!r}; it must write nothing")

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        real, ends = int(self.real.sum()), list(self.eos_ids)
        return f"Vocabulary({len(self)} ids, {real} real, ends {ends}, {self.fingerprint[:8]})"

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that ``ids`` write; special tokens write nothing, but for those :meth:`with_special` spells."""
        return b"".join(map(self.tokens.__getitem__, ids))

    def with_special(self, references: Iterable[str]) -> Vocabulary:
        """Return the vocabulary in which special tokens are spelled as machines step by them, and write nothing else.

        ``references`` are names, or ids as ``<[5]>``; for none, this is the plain vocabulary.

        Raises
        ------
        VocabularyError
            There is no such special token, it ends texts, it is an ordinary token, or it is named in two ways.
        """
        plain, asked = self.plain or self, sorted(set(references))
        if not asked:
            return plain
        tokens = [b"" if MARK in token else token for token in plain.tokens]
        named = set(plain.special.values())
        for reference in asked:
            v = id_of(reference, plain.special)
            if v in plain.eos_ids:
                raise VocabularyError(
                    f"Leave {reference} out: that token ends the text, as the end of the format does by itself."
                )
            if v >= len(tokens) or not plain.real[v]:
                raise VocabularyError(f"Give an id that the tokenizer has a token for: {reference} is none.")
            if plain.tokens[v] and v not in named:
                raise VocabularyError(
                    f"Write the text {plain.tokens[v]!r} in the place of {reference}: that token is not special."
                )
            if tokens[v].startswith(MARK):
                raise VocabularyError(
                    f"Name one special token in one way: {reference_of(tokens[v])} and {reference} are the same."
                )
            tokens[v] = spelled_special(reference)
        return replace(plain, tokens=tuple(tokens), plain=plain)

    def text_of(self, token: int) -> bytes:
        """Return the text that a token writes."""
        return (self.plain or self).tokens[token]

    def shown(self, text: bytes) -> bytes:
        """Replace special tokens that machines step by with the text that the tokenizer's decoder writes of them."""
        plain = self.plain
        if plain is None or MARK not in text:
            return text
        return SPELLING.sub(lambda found: plain.tokens[id_of(reference_of(found[0]), self.special)], text)

    @cached_property
    def fingerprint(self) -> str:
        """A name for the content: equal for equal vocabularies, in any process."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (np.fromiter(map(len, self.tokens), np.int64), np.array(self.eos_ids, np.int64), self.real):
            digest.update(np.int64(len(part)).tobytes() + part.tobytes())
        digest.update(b"".join(self.tokens))
        if self.special:
            digest.update(repr(sorted(self.special.items())).encode())
        return digest.hexdigest()

    @classmethod
    def from_tokens(
        cls, tokens: Sequence[bytes | str], eos: int, *, special: Mapping[str, int] | None = None
    ) -> Vocabulary:
        """Return the vocabulary of ``tokens`` by id (``str`` is UTF-8); what stands at ``eos`` ends a text.

        ``special`` names ids that formats may ask for (:class:`outlines_phi.Special`); what stands there writes nothing.
        """
        if isinstance(tokens, str | bytes) or not isinstance(tokens, Sequence):
            raise VocabularyError(
                f"tokens={shown(tokens)} was given; expected a list of bytes or texts, one for each id"
            )
        spelled = [_spelled(token, v) for v, token in enumerate(tokens)]
        if not is_count(eos) or not eos < len(spelled):
            raise VocabularyError(f"the end-of-sequence id {shown(eos)} is not one of the {len(spelled)} ids")
        named = dict(special or {})
        for name, v in named.items():
            if not isinstance(name, str) or not is_count(v) or not v < len(spelled):
                raise VocabularyError(
                    f"special={shown(named)} was given; expected ids of the {len(spelled)} tokens by name"
                )
        for v in (eos, *named.values()):
            spelled[v] = b""
        return cls(tuple(spelled), (eos,), np.ones(len(spelled), dtype=bool), named)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, size: int | None = None, eos_ids: Sequence[int] = ()) -> Vocabulary:
        """Return the vocabulary of a Hugging Face tokenizer.

        Covers byte-level BPE, SentencePiece with byte fallback, WordPiece, and tokenizers that give bytes (tiktoken).
        An id is spelled as it is decoded after a prompt, see :func:`outlines_phi.vocabulary.tokenizers.spell`. Tokens added as
        special write nothing; other added tokens write their text. Random texts are decoded by the tokenizer itself
        to check the result.

        Parameters
        ----------
        size
            Rows of the model's output: more than the tokenizer has ids where the model is padded. By default, as many as ids.
        eos_ids
            End-of-sequence ids of the model's generation config; the tokenizer's own is added.

        Raises
        ------
        VocabularyError
            The bytes of a token cannot be known, the model has fewer rows than the tokenizer has ids, or nothing ends a text.
        """
        if not callable(getattr(tokenizer, "get_vocab", None)):
            raise VocabularyError(
                f"{shown(tokenizer)} was given; expected a Hugging Face tokenizer, as AutoTokenizer.from_pretrained(name) gives"
            )
        if size is not None and not is_count(size, 1):
            raise VocabularyError(
                f"size={shown(size)} was given; expected how many rows the model's output has, or None"
            )
        if size is not None:
            check_fits("size", size, each=4096, things="rows")
        if not isinstance(eos_ids, Sequence) or not all(isinstance(v, int | np.integer) for v in eos_ids):
            raise VocabularyError(f"eos_ids={shown(eos_ids)} was given; expected a list of ids, such as [0]")
        spelled = spelling.spell(tokenizer)
        highest = max(spelled)
        if size is not None and size <= highest:
            raise VocabularyError(
                f"the model gives probabilities to {size} ids, but the tokenizer's highest id is {highest}: they do not "
                "belong together, or the model's embeddings were not resized after tokens were added "
                "(`model.resize_token_embeddings`)"
            )
        own = tokenizer.eos_token_id  # one, or several
        ends = dict.fromkeys([*eos_ids, *([] if own is None else np.atleast_1d(own).tolist())])
        tokens = [spelled.get(v, b"") for v in range(size or highest + 1)]
        real = np.zeros(len(tokens), dtype=bool)
        real[[*spelled, *(v for v in ends if v < len(tokens))]] = True
        for v in ends:
            if 0 <= v < len(tokens):
                tokens[v] = b""
        vocabulary = cls(tuple(tokens), tuple(ends), real, spelling.names(tokenizer))
        vocabulary._check(tokenizer)
        return vocabulary

    def _check(self, tokenizer: Any) -> None:
        """Raise VocabularyError unless the tokenizer decodes random ids as this vocabulary does."""
        ids = np.flatnonzero([bool(token) for token in self.tokens])
        before, text_before = spelling.anchor(tokenizer, ids.tolist())
        random = np.random.default_rng(0)
        for chosen in random.choice(ids, size=(_CHECKS, _CHECK_LENGTH)).tolist():
            ours = text_before + self.decode(chosen).decode(errors="replace")
            theirs = spelling.decode(tokenizer, [before, *chosen])
            if ours != theirs and spelling.REPLACEMENT not in ours + theirs:
                raise VocabularyError(
                    f"the bytes of this tokenizer cannot be known: it decodes the ids {[before, *chosen]} as {theirs!r}, "
                    f"but its tokens, one after the other, as {ours!r}. Its decoder changes text across tokens; use a "
                    "tokenizer without such a decoder"
                )


def check_vocabulary(owner: str, value: object) -> None:
    """Raise VocabularyError unless ``value``, given to ``owner``, is a vocabulary."""
    if not isinstance(value, Vocabulary):
        raise VocabularyError(
            f"vocabulary={shown(value)} of type {type(value).__name__} was given to {owner}; expected a Vocabulary, as "
            "Vocabulary.from_tokenizer(tokenizer) returns"
        )


def _spelled(token: object, v: int) -> bytes:
    match token:
        case bytes():
            return token
        case bytearray() | memoryview():
            return bytes(token)
        case str() if token.isascii() or not any("\ud800" <= character <= "\udfff" for character in token):
            return token.encode()
    raise VocabularyError(f"token {v} is {shown(token)}; expected bytes, or a text that can be written in UTF-8")


BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b""], eos=256)
"""A token for each byte."""
