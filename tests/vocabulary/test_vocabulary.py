"""The vocabulary's one law: what ids write is what the tokenizer's own decoder writes after a prompt."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from outlines_phi import Vocabulary
from outlines_phi.errors import VocabularyError
from outlines_phi.vocabulary import tokenizers as spelling

TEXT = [
    "the quick brown fox, jumps over 12 lazy dogs.\n",
    "ça coûte 5 €, naïve façade 東京 日本語 🙂🙃\n",
    "don't stop",
] * 20


def fast(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2, Llama 3, Qwen: bytes as characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(["<|end|>", "<|user|>"])
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])
    return fast(tokenizer, eos_token="<|end|>")


def sentencepiece_bpe() -> PreTrainedTokenizerFast:
    """Llama 2, Mistral 7B, Gemma: `▁` for the space and `<0xE9>` for bytes that no piece covers."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        *"▁abcdefghé",
        "▁a",
        "▁ab",
        "ab",
        "cd",
        "▁▁",
    ]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("c", "d"), ("▁", "▁")]
    tokenizer = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return fast(tokenizer, eos_token="</s>", unk_token="<unk>", bos_token="<s>")


def unigram() -> PreTrainedTokenizerFast:
    """T5, XLNet: SentencePiece unigram behind a metaspace."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((f"<0x{b:02X}>", -9.0) for b in range(256))]
    pieces += [(p, -2.0) for p in ("▁", "a", "b", "▁ab", "c", "é", "日")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return fast(tokenizer, eos_token="</s>", unk_token="<unk>")


def wordpiece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"]))
    tokenizer.add_tokens(["<tool>"])
    return fast(tokenizer, eos_token="[SEP]", unk_token="[UNK]")


class Encoding:
    """The two methods of ``tiktoken.Encoding`` that tokenizers with remote code use."""

    tokens = [
        *(bytes([b]) for b in range(256)),
        b"ab",
        "é".encode(),
        b" ab",
        b"\xe6\x97",
        "日".encode(),
        b"ab",
        b"<end>",
    ]

    def decode_single_token_bytes(self, token: int) -> bytes:
        return self.tokens[token]


class TiktokenTokenizer(PreTrainedTokenizer):
    """A tiktoken encoding inside a Python tokenizer, as Kimi ships it; token names are Latin-1 readings of the bytes."""

    def __init__(self, **special: Any) -> None:
        self.model = Encoding()
        super().__init__(**special)

    @property
    def vocab_size(self) -> int:
        return len(self.model.tokens)

    def get_vocab(self) -> dict[str, int]:
        return {self._convert_id_to_token(v): v for v in range(self.vocab_size)}

    def _convert_id_to_token(self, index: int) -> str:
        return self.model.decode_single_token_bytes(index).decode("latin-1")

    def _convert_token_to_id(self, token: str) -> int:
        return self.model.tokens.index(token.encode("latin-1"))

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).encode("latin-1").decode(errors="replace")


def tiktoken_style() -> TiktokenTokenizer:
    return TiktokenTokenizer(eos_token="<end>")


KINDS: tuple[Callable[[], Any], ...] = (byte_level, sentencepiece_bpe, unigram, wordpiece, tiktoken_style)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_every_text_is_decoded_as_its_tokenizer_does(tokenizer: Any) -> None:
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    spelled = [v for v, token in enumerate(vocabulary.tokens) if token]
    before, text = spelling.anchor(tokenizer, spelled)
    compared = 0
    for chosen in np.random.default_rng(1).choice(spelled, size=(1000, 4)).tolist():
        with suppress(UnicodeDecodeError):
            assert spelling.decode(tokenizer, [before, *chosen]) == text + vocabulary.decode(chosen).decode()
            compared += 1
    assert compared >= 20


def test_every_token_is_spelled(tokenizer: Any) -> None:
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    special = set(tokenizer.all_special_ids) | {
        v for v, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    assert [v for v, token in enumerate(vocabulary.tokens) if not token] == sorted(special)
    assert vocabulary.eos_ids == (tokenizer.eos_token_id,)
    assert vocabulary.real.all() and len(vocabulary) == max(len(tokenizer), tokenizer.vocab_size)


@pytest.mark.parametrize(
    ("kind", "piece", "spelled"),
    [
        (byte_level, "Ġquick", b" quick"),
        (byte_level, "Ã", b"\xc3"),
        (byte_level, "<tool call>", b"<tool call>"),
        (sentencepiece_bpe, "▁ab", b" ab"),
        (sentencepiece_bpe, "<0xC3>", b"\xc3"),
        (sentencepiece_bpe, "<0x41>", b"A"),
        (sentencepiece_bpe, "é", "é".encode()),
        (unigram, "▁ab", b" ab"),
        (unigram, "<0x0A>", b"\n"),
        (wordpiece, "fox", b" fox"),
        (wordpiece, "##o", b"o"),
        (wordpiece, ",", b","),
        (wordpiece, "<tool>", b" <tool>"),
        (tiktoken_style, "æ\x97", b"\xe6\x97"),
    ],
)
def test_pieces(kind: Callable[[], Any], piece: str, spelled: bytes) -> None:
    tokenizer = kind()
    assert Vocabulary.from_tokenizer(tokenizer).tokens[tokenizer.convert_tokens_to_ids(piece)] == spelled


def test_equal_spellings_stay_two_ids() -> None:
    vocabulary = Vocabulary.from_tokenizer(sentencepiece_bpe())
    assert [v for v, token in enumerate(vocabulary.tokens) if token == b"a"] == [3 + 0x61, 260]


def test_padded_rows_are_not_real() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, size=len(tokenizer) + 5)
    assert len(vocabulary) == len(tokenizer) + 5
    assert vocabulary.real[:-5].all() and not vocabulary.real[-5:].any()
    assert vocabulary.tokens[-5:] == (b"",) * 5


def test_several_ends() -> None:
    tokenizer = byte_level()
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_ids=[user, tokenizer.eos_token_id])
    assert vocabulary.eos_ids == (user, tokenizer.eos_token_id)
    padded = Vocabulary.from_tokenizer(tokenizer, size=len(tokenizer) + 2, eos_ids=[len(tokenizer)])
    assert padded.real[len(tokenizer)], "an id that ends texts is inside the model's law"


def test_an_end_that_is_not_special_still_writes_nothing() -> None:
    tokenizer = byte_level()
    tool = tokenizer.convert_tokens_to_ids("<tool call>")
    assert Vocabulary.from_tokenizer(tokenizer, eos_ids=[tool]).tokens[tool] == b""


@pytest.mark.parametrize(
    ("options", "end", "words"),
    [
        ({"size": 10}, "<|end|>", "resize_token_embeddings"),
        ({"eos_ids": [10_000]}, "<|end|>", "another model"),
        ({}, None, "tokenizer.eos_token"),
    ],
)
def test_tokenizers_that_do_not_fit_their_model(options: dict[str, Any], end: str | None, words: str) -> None:
    tokenizer = byte_level()
    tokenizer.eos_token = end
    with pytest.raises(VocabularyError, match=words):
        Vocabulary.from_tokenizer(tokenizer, **options)


def test_decoder_that_changes_text_across_tokens() -> None:
    """A decoder that joins the letters of two tokens cannot be spelled token by token."""
    tokenizer = Tokenizer(models.WordLevel({p: i for i, p in enumerate(["a", "b", "c", "<end>"])}, unk_token="<end>"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("bc", "X")])
    with pytest.raises(VocabularyError, match=r"decodes the ids .* as 'a?.*X.*'"):
        Vocabulary.from_tokenizer(fast(tokenizer, eos_token="<end>"))


def test_bytes_that_cannot_be_known() -> None:
    class Opaque(TiktokenTokenizer):
        """The same tokens, but neither their names nor a method tells their bytes."""

        def __init__(self, **special: Any) -> None:
            self.hidden = Encoding()
            PreTrainedTokenizer.__init__(self, **special)

        @property
        def vocab_size(self) -> int:
            return len(self.hidden.tokens)

        def _convert_id_to_token(self, index: int) -> str:
            return f"token {index}"

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return b"".join(self.hidden.tokens[int(name.split()[1])] for name in tokens).decode(errors="replace")

    with pytest.raises(VocabularyError, match="bytes of token 128"):
        Vocabulary.from_tokenizer(Opaque(eos_token="token 262"))


def test_from_tokens() -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", "é", b"\xc3", "é"], 0)
    assert vocabulary.tokens == (b"", b"\xc3\xa9", b"\xc3", b"\xc3\xa9")
    assert vocabulary.decode([1, 2, 0]) == b"\xc3\xa9\xc3"
    with pytest.raises(VocabularyError, match="not one of the 1 ids"):
        Vocabulary.from_tokens(["a"], 1)


def test_fingerprint_tells_content() -> None:
    tokens = ["<eos>", "ab", "c"]
    base = Vocabulary.from_tokens(tokens, 0)
    assert base.fingerprint == Vocabulary.from_tokens(tokens, 0).fingerprint
    others = [
        Vocabulary.from_tokens(["<eos>", "a", "bc"], 0),
        Vocabulary(base.tokens, (0,), np.array([True, True, False])),
        Vocabulary((*base.tokens, b""), (0, 3), np.ones(4, dtype=bool)),
        Vocabulary((*base.tokens, b""), (3, 0), np.ones(4, dtype=bool)),
    ]
    assert len({v.fingerprint for v in [base, *others]}) == 5


@pytest.mark.parametrize(
    ("tokens", "eos", "real"), [((b"a",), (), 1), ((b"a",), (0,), 1), ((b"",), (0,), 2), ((b"",), (-1,), 1)]
)
def test_contradictions_are_refused(tokens: tuple[bytes, ...], eos: tuple[int, ...], real: int) -> None:
    with pytest.raises(VocabularyError):
        Vocabulary(tokens, eos, np.ones(real, dtype=bool))
