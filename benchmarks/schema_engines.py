"""Engines of masks for JSON schemas: ours, llguidance and xgrammar, each as it documents the standard's own language.

Objects are open where the schema says no other, and blanks between the tokens of JSON are allowed. All times are of one thread.
"""

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlines_phi.errors import EmptyLanguageError, OutlinesPhiError, SchemaWarning
from outlines_phi.guides.guide import DEAD
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.vocabulary.trie import Trie
from outlines_phi.vocabulary.vocabulary import Vocabulary

CLOSING = (b'"', b"}", b"]")
"""Tokens that a text often comes nearer to its end by."""


class Refused(Exception):
    """The engine does not take a schema."""


class SchemaEngine(ABC):
    """An engine of masks of a JSON schema over a vocabulary, which it prepares once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.eos = vocabulary, vocabulary.eos_ids[0]
        self._short = np.array([len(token) for token in vocabulary.tokens]) == 1
        self._closing = np.array([token in CLOSING for token in vocabulary.tokens])

    @abstractmethod
    def compile(self, schema: Any) -> None:
        """Read a schema and make the first mask; raise :class:`Refused` where it is not taken."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a text."""

    @abstractmethod
    def mask(self) -> None:
        """Make the mask."""

    @abstractmethod
    def allowed(self) -> NDArray[np.bool_]:
        """Return the mask that was made last, the end of sequence included."""

    def nearer(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return those of the allowed tokens that a text comes to its end by, as far as that is known."""
        return next(few for few in (allowed & self._closing, allowed & self._short, allowed) if few.any())

    @abstractmethod
    def advance(self, token: int) -> bool:
        """Go on by a token; return whether that is allowed."""

    @abstractmethod
    def is_new(self) -> bool:
        """Return True if the next mask is not at hand."""

    @abstractmethod
    def accepts(self, tokens: Sequence[int]) -> bool:
        """Return True if tokens are a text, from its beginning to its end."""


class Ours(SchemaEngine):
    """outlines_phi, with members in the order of the schema."""

    any_order = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        Trie.of(vocabulary)

    def compile(self, schema: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SchemaWarning)
                self.guide: JSONGuide | None = JSONGuide.of(schema, self.vocabulary, any_order=self.any_order)
        except EmptyLanguageError:
            self.guide = None  # no value is valid, and none is accepted
            return
        except OutlinesPhiError as error:
            raise Refused(str(error)) from error
        self.seen: set[int] = set()
        self.begin()
        self.mask()

    def begin(self) -> None:
        self.state = DEAD if self.guide is None else self.guide.start

    def mask(self) -> None:
        if self.guide is not None:
            self.bits = self.guide.mask(self.state)
            self.seen.add(self.state)

    def allowed(self) -> NDArray[np.bool_]:
        size = len(self.vocabulary)
        return np.zeros(size, dtype=bool) if self.guide is None else _unpacked(self.bits[None], size)

    def nearer(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if self.guide is None:
            return allowed
        row = self.guide.row(self.state)
        sizes = np.array([self.guide.min_tokens(target) for target in row.targets.tolist()])
        return allowed & (sizes < self.guide.min_tokens(self.state))[row.partition.class_of]

    def advance(self, token: int) -> bool:
        self.state = DEAD if self.guide is None else self.guide.advance(self.state, token)
        return self.state != DEAD

    def is_new(self) -> bool:
        return self.guide is not None and self.state not in self.seen

    def accepts(self, tokens: Sequence[int]) -> bool:
        self.begin()
        return all(map(self.advance, tokens)) and self.guide is not None and self.guide.min_tokens(self.state) == 1


class OursInAnyOrder(Ours):
    """outlines_phi, with members in any order."""

    any_order = True


class LLGuidance(SchemaEngine):
    """llguidance. Text that is forced may be spelled by any tokens, so that masks are those of all texts."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        import llguidance.numpy

        self.package = llguidance
        self.tokenizer = llguidance_tokenizer(vocabulary)
        self.bits = llguidance.numpy.allocate_token_bitmask(1, len(vocabulary))

    def compile(self, schema: Any) -> None:
        text = json.dumps(schema)
        matcher = self.package.LLMatcher
        if reason := matcher.validate_grammar(matcher.grammar_from_json_schema(text), self.tokenizer):
            raise Refused(reason)
        self.first = matcher(self.tokenizer, f'%llguidance {{"no_forcing": true}}\nstart: %json {text}')
        if self.first.is_error():
            raise Refused(self.first.get_error())
        self.begin()
        self.mask()

    def begin(self) -> None:
        self.matcher = self.first.deep_copy()

    def mask(self) -> None:
        self.package.numpy.fill_next_token_bitmask(self.matcher, self.bits, 0)

    def allowed(self) -> NDArray[np.bool_]:
        allowed = _unpacked(self.bits, len(self.vocabulary))
        allowed[self.eos] = self.matcher.is_accepting()
        return allowed

    def advance(self, token: int) -> bool:
        return bool(self.matcher.consume_token(token))

    def is_new(self) -> bool:
        return True

    def accepts(self, tokens: Sequence[int]) -> bool:
        return self.first.deep_copy().validate_tokens([*tokens, self.eos]) == len(tokens) + 1


class XGrammar(SchemaEngine):
    """xgrammar, not strict: its strict mode closes objects and arrays."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        import xgrammar

        self.package = xgrammar
        self.compiler = xgrammar.GrammarCompiler(xgrammar_tokenizer(vocabulary), max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, len(vocabulary))

    def compile(self, schema: Any) -> None:
        try:
            self.compiled = self.compiler.compile_json_schema(
                json.dumps(schema), any_whitespace=True, strict_mode=False
            )
        except (RuntimeError, ValueError) as error:
            raise Refused(str(error)) from error
        self.begin()
        self.mask()

    def begin(self) -> None:
        self.matcher = self.package.GrammarMatcher(self.compiled)

    def mask(self) -> None:
        self.matcher.fill_next_token_bitmask(self.bits)

    def allowed(self) -> NDArray[np.bool_]:
        return _unpacked(self.bits.numpy(), len(self.vocabulary))

    def advance(self, token: int) -> bool:
        return bool(self.matcher.accept_token(token))

    def is_new(self) -> bool:
        return True

    def accepts(self, tokens: Sequence[int]) -> bool:
        self.begin()
        return all(map(self.advance, tokens)) and bool(self.matcher.is_completed())


ENGINES: Mapping[str, Callable[[Vocabulary], SchemaEngine]] = {
    "ours": Ours,
    "ours, any order": OursInAnyOrder,
    "llguidance": LLGuidance,
    "xgrammar": XGrammar,
}


class _Tokens:
    """A vocabulary as llguidance asks for one; where nothing is forced, it spells nothing."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id, self.tokens = vocabulary.eos_ids[0], list(vocabulary.tokens)
        self.special_token_ids = [v for v, token in enumerate(vocabulary.tokens) if not token]
        self.ids = {token: v for v, token in enumerate(vocabulary.tokens) if len(token) == 1}

    def __call__(self, text: str) -> list[int]:
        return [self.ids[bytes([byte])] for byte in text.encode()]


def llguidance_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return a vocabulary as llguidance reads it."""
    import llguidance

    return llguidance.LLTokenizer(_Tokens(vocabulary))


def xgrammar_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return a vocabulary as xgrammar reads it."""
    import xgrammar

    return xgrammar.TokenizerInfo(
        list(vocabulary.tokens),
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=len(vocabulary),
        stop_token_ids=[vocabulary.eos_ids[0]],
        add_prefix_space=False,
    )


def _unpacked(bits: NDArray[np.integer], size: int) -> NDArray[np.bool_]:
    return np.unpackbits(bits.view(np.uint8)[0], bitorder="little", count=size).view(bool)
