"""The engine of llguidance: an Earley parser over a lexer of derivatives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ...errors import GrammarError, UnsupportedError
from ...vocabulary.vocabulary import Vocabulary
from .engine import Engine, Kind, Matcher, Source, unpack

_ANY_SPELLING = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, llguidance allows its canonical spelling alone unless it is told not to."""

_DEAD_END = "NoExtensionBias"
"""What it calls a text that no token can go on with."""


@final
class LLGuidance(Engine):
    """llguidance over the bytes of a vocabulary.

    Text that is forced may be spelled by any tokens here, as all other text; in the loop of Outlines' own backend llguidance
    allows its canonical spelling alone.
    """

    package = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._tokenizer = self._module.LLTokenizer(_Tokens(vocabulary))

    def matcher(self, source: Source) -> Matcher:
        """See :meth:`Engine.matcher`: the first reading of a grammar that it takes, GBNF or Lark's dialect."""
        reasons = []
        for grammar in self._readings(source):
            matcher = self._module.LLMatcher(self._tokenizer, grammar)
            if not matcher.is_error():
                return _LLGuidanceMatcher(matcher, self.vocabulary)
            reasons.append(_first_part(matcher.get_error()))
        raise GrammarError(f"llguidance refuses the {source.kind.value}: {reasons[-1]}\nIt is {source.text:.200}")

    def _readings(self, source: Source) -> list[str]:
        """Return the grammars that ``source`` may stand for, in the order in which Outlines tries them."""
        match source.kind:
            case Kind.REGEX:
                (grammar,) = json.loads(self._module.LLMatcher.grammar_from_regex(source.text))["grammars"]
                return [_ANY_SPELLING + grammar["lark_grammar"]]
            case Kind.JSON_SCHEMA:
                return [f"{_ANY_SPELLING}start: %json {source.text}"]
        try:
            read = self._module.grammar_from("grammar", source.text)
        except ValueError:
            return [_ANY_SPELLING + source.text]
        return [_ANY_SPELLING + read]


class _Tokens:
    """A vocabulary as llguidance asks for one."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.tokens = list(vocabulary.tokens)
        # What writes nothing cannot be a part of a text.
        self.special_token_ids = [v for v, token in enumerate(vocabulary.tokens) if not token]

    def __call__(self, text: str) -> list[int]:
        """Refuse to spell ``text``: only a grammar that forces spellings needs that."""
        raise UnsupportedError(
            f"llguidance asked for the canonical spelling of {text!r}, which it needs where a grammar forces spellings; leave out "
            "no_forcing and what names tokens."
        )


@final
class _LLGuidanceMatcher(Matcher):
    def __init__(self, matcher: Any, vocabulary: Vocabulary) -> None:
        # One for each token that was read: after its own rollback, the masks of 1.9.1 may be of another text. A copy takes 1 us.
        self._matchers = [matcher]
        self._size, self._eos = len(vocabulary), vocabulary.eos_ids[0]

    @property
    def _matcher(self) -> Any:
        return self._matchers[-1]

    def read(self, token: int) -> None:
        self._matchers.append(self._matcher.deep_copy())
        self._matcher.consume_token(token)
        self._check()

    def back(self, count: int) -> None:
        del self._matchers[-count:]

    def allowed(self) -> NDArray[np.bool_]:
        ends = self._matcher.is_accepting()
        allowed = unpack(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), self._size)
        self._check()
        # Where nothing can follow, the mask has the end of sequence, a member or not.
        allowed[self._eos] = ends
        return allowed

    def ends_after(self, tokens: Sequence[int], more: Sequence[int]) -> list[bool]:
        validate, rest = self._matcher.validate_tokens, [*more, self._eos]
        whole = 1 + len(rest)
        return [validate([token, *rest]) == whole for token in tokens]

    def _check(self) -> None:
        # It raises nothing; once in error, it stays there.
        if self._matcher.is_error() and _first_part(self._matcher.get_error()) != _DEAD_END:
            raise UnsupportedError(
                f"llguidance gave up in the middle of a text: {_first_part(self._matcher.get_error())}. Simplify the grammar, or "
                "use another backend."
            )


def _first_part(message: str) -> str:
    """Return what went wrong, without the dump of the engine's state."""
    return message.split("\n<", 1)[0].strip()
