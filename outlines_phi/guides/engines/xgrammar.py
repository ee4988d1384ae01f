"""The engine of xgrammar: a pushdown automaton over bytes, without a lexer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ...errors import GrammarError, UnsupportedError
from ...vocabulary.vocabulary import Vocabulary
from .engine import Engine, Kind, Matcher, Source, unpack

_ORIGIN = re.compile(r"\[[\d:]+\] \S+:\d+: ")
"""What stands before a message: a time, and a line of the engine's own source."""


@final
class XGrammar(Engine):
    """xgrammar over the bytes of a vocabulary. A grammar is written in its EBNF, with a rule ``root``; JSON may have any blanks."""

    package = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        tokens = self._module.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_type=self._module.VocabType.RAW,
            vocab_size=len(vocabulary),
            stop_token_ids=[vocabulary.eos_ids[0]],
            add_prefix_space=False,
        )
        self._compiler = self._module.GrammarCompiler(tokens)

    def matcher(self, source: Source) -> Matcher:
        """See :meth:`Engine.matcher`."""
        try:
            matcher = self._module.GrammarMatcher(self._compiler.compile_grammar(self._grammar(source)))
        except (RuntimeError, ValueError) as error:
            reason = _ORIGIN.sub("", str(error)).strip()
            raise GrammarError(
                f"xgrammar refuses the {source.kind.value}: {reason}\nIt is {source.text:.200}"
            ) from error
        return _XGrammarMatcher(matcher, self._module.allocate_token_bitmask(1, len(self.vocabulary)), self.vocabulary)

    def _grammar(self, source: Source) -> Any:
        """Return the grammar of ``source``, with a first rule that no rule goes back to.

        The masks of 0.2.8 leave out tokens that write more than the end of an inner text of the first rule.
        """
        grammar = self._module.Grammar
        match source.kind:
            case Kind.REGEX:
                return grammar.from_regex(source.text)
            case Kind.JSON_SCHEMA:
                text = str(grammar.from_json_schema(source.text))
            case Kind.GRAMMAR:
                text = source.text
                grammar.from_ebnf(text)  # errors are of what was given
        first = "whole_text"
        while first in text:
            first += "_"
        return grammar.from_ebnf(f"{text}\n{first} ::= root\n", root_rule_name=first)


@final
class _XGrammarMatcher(Matcher):
    def __init__(self, matcher: Any, bits: Any, vocabulary: Vocabulary) -> None:
        self._matcher, self._bits, self._tokens = matcher, bits, vocabulary.tokens
        self._size, self._eos = len(vocabulary), vocabulary.eos_ids[0]

    def read(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise UnsupportedError(
                f"xgrammar refuses a token that its own mask allowed, id {token}, so a text cannot be gone on with. Use another "
                "backend."
            )

    def back(self, count: int) -> None:
        self._matcher.rollback(count)

    def allowed(self) -> NDArray[np.bool_]:
        self._matcher.fill_next_token_bitmask(self._bits, 0)
        allowed = unpack(self._bits.numpy().view(np.uint8)[0], self._size)
        allowed[self._eos] = self._matcher.is_completed()
        return allowed

    def ends_after(self, tokens: Sequence[int], more: Sequence[int]) -> list[bool]:
        matcher, rest = self._matcher, b"".join(self._tokens[token] for token in more)
        ends = []
        for token in tokens:
            text = self._tokens[token] + rest
            if whole := matcher.accept_string(text):  # one step, however long
                whole = matcher.is_completed()
                matcher.rollback(1)
            ends.append(bool(whole))
        return ends
