"""The spelling of each id of a Hugging Face tokenizer, in bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from ..errors import VocabularyError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # The decoders' character for bytes that are not UTF-8

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTE_METHODS = (
    # tiktoken.Encoding, under the names that tokenizers with remote code give it.
    "model.decode_single_token_bytes",
    "tokenizer.decode_single_token_bytes",
    "encoding.decode_single_token_bytes",
    # transformers' wrapper of mistral-common.
    "tokenizer.instruct_tokenizer.tokenizer.id_to_byte_piece",
)


def spell(tokenizer: Any) -> dict[int, bytes]:
    """Return the bytes of each id of ``tokenizer``; special tokens write ``b""``.

    The generated part of a text follows a prompt, so an id is spelled as the decoder writes it *after another token*.
    Where a decoder drops the space in front of the very first token (SentencePiece) or of the very first word
    (WordPiece), the spelling has that space.

    Raises :class:`VocabularyError`: the bytes of an id cannot be known.
    """
    ids, added = sorted(_ids(tokenizer)), _added(tokenizer).items()
    special = set(tokenizer.all_special_ids).union(v for v, token in added if token.special)
    read = _reader(tokenizer, [v for v in ids if v not in special])
    return {v: b"" if v in special else read(v) for v in ids}


def decode(tokenizer: Any, ids: Iterable[int]) -> str:
    """Return the text of ``ids`` by the tokenizer's own decoder, special tokens left out and nothing cleaned up."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def anchor(tokenizer: Any, ids: Iterable[int]) -> tuple[int, str]:
    """Return an id that writes letters only, and its text: what comes before the spelling in question."""
    for v in ids:
        text = decode(tokenizer, [v])
        # A run of byte tokens is decoded as a whole, so one of them would change with what follows.
        plain = text.isascii() and text.isalpha() and not _BYTE_TOKEN.fullmatch(tokenizer.convert_ids_to_tokens(v))
        if plain and decode(tokenizer, [v, v]).startswith(text):
            return v, text
    raise VocabularyError(
        "no token of the tokenizer writes letters only, so what its decoder does cannot be observed; "
        "build the vocabulary with Vocabulary.from_tokens instead"
    )


def byte_characters() -> dict[str, int]:
    """Return the byte that each character of a byte-level BPE token stands for.

    Printable Latin-1 characters stand for themselves; the other 68 bytes are the characters from U+0100 on (GPT-2).
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _ids(tokenizer: Any) -> set[int]:
    ids = set(tokenizer.get_vocab().values())
    # A vocabulary by name loses ids that share a name, which only happens without a backend.
    if hasattr(tokenizer, "backend_tokenizer"):
        return ids
    return ids | set(range(max(len(tokenizer), tokenizer.vocab_size)))


def names(tokenizer: Any) -> dict[str, int]:
    """Return the ids of special and added tokens, by name."""
    special = dict(zip(getattr(tokenizer, "all_special_tokens", ()), tokenizer.all_special_ids, strict=False))
    return {token.content: v for v, token in _added(tokenizer).items()} | special


def _added(tokenizer: Any) -> dict[int, Any]:
    added: Any = getattr(tokenizer, "added_tokens_decoder", None)
    return added if isinstance(added, dict) else {}  # mistral-common has no added tokens, and a method of this name


def _reader(tokenizer: Any, ids: list[int]) -> Callable[[int], bytes]:
    """Return the function from an id to its bytes: the one place that knows kinds of tokenizers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _by_decoding(tokenizer, ids)
    specification = json.loads(backend.to_str())["decoder"] or {"type": None}
    steps = {step["type"] for step in specification.get("decoders", [specification])}
    return _byte_level(backend.id_to_token) if "ByteLevel" in steps else _by_decoding(tokenizer, ids)


def _byte_method(tokenizer: Any) -> Callable[[int], bytes] | None:
    """Return the tokenizer's own method that gives a token's bytes, where it has one that we know."""
    for path in _BYTE_METHODS:
        try:
            return attrgetter(path)(tokenizer)
        except AttributeError:
            continue
    return None


def _byte_level(piece_of: Callable[[int], str | None]) -> Callable[[int], bytes]:
    byte_of = byte_characters()

    def read(v: int) -> bytes:
        piece = piece_of(v) or ""
        # The decoder writes a piece with any other character, a token added by hand, as it is.
        return bytes(map(byte_of.__getitem__, piece)) if byte_of.keys() >= set(piece) else piece.encode()

    return read


def _by_decoding(tokenizer: Any, ids: list[int]) -> Callable[[int], bytes]:
    """Return a reader that decodes each id after another one; pieces that stand for a byte are read as that byte."""
    before, text_before = anchor(tokenizer, ids)
    byte_of, method = byte_characters(), _byte_method(tokenizer)
    # Where no two ids share a name, a name with the replacement character is a token for that very character.
    exact_names = len(tokenizer.get_vocab()) == len(_ids(tokenizer))

    def read(v: int) -> bytes:
        piece = tokenizer.convert_ids_to_tokens(v)
        if isinstance(piece, bytes):
            return piece
        text = decode(tokenizer, [before, v])
        if text.startswith(text_before):
            text = text[len(text_before) :]
            byte = _BYTE_TOKEN.fullmatch(piece)
            if byte and text != piece:
                return bytes([int(byte[1], 16)])
            if REPLACEMENT not in text or (exact_names and REPLACEMENT in piece):
                return text.encode()
            if method is not None:
                return method(v)
            if byte_of.keys() >= set(piece):
                return bytes(map(byte_of.__getitem__, piece))
        raise VocabularyError(
            f"the bytes of token {v}, {piece!r}, cannot be known: after {text_before!r} the tokenizer decodes it as "
            f"{text!r}. Use the fast version of this tokenizer, or build the vocabulary with Vocabulary.from_tokens"
        )

    return read
