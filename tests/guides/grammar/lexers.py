"""Lexing by strings: what the lexing transducer must agree with. Python's ``re`` on whole lexemes, nothing else."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import product

from outlines_phi.guides.grammar.grammar import Terminal


def words(alphabet: Sequence[str], length: int) -> Iterator[str]:
    """All words of at most ``length`` letters, shortest first."""
    for n in range(length + 1):
        yield from map("".join, product(alphabet, repeat=n))


class StringLexer:
    """Longest match with going back, over the words of an alphabet.

    ``longest`` bounds the lexemes that are looked at; ``commits`` names (complete, longer) terminals between which the lexer does
    not go back; ``strict`` never goes back (grammar-theory.md, section 2.2).
    """

    def __init__(
        self,
        terminals: Sequence[Terminal],
        alphabet: Sequence[str],
        longest: int,
        *,
        commits: Collection[tuple[str, str]] = (),
        strict: bool = False,
    ) -> None:
        self.terminals, self.commits, self.strict = terminals, commits, strict
        self._lexemes: dict[str, int] = {}
        self.begun: dict[str, set[int]] = {}
        compiled = [re.compile(terminal.pattern) for terminal in terminals]
        for text in words(alphabet, longest):
            matched = [t for t in range(len(terminals)) if compiled[t].fullmatch(text)]
            matched = [
                t
                for t in matched
                if not terminals[t].shortest or not any(compiled[t].fullmatch(text[:n]) for n in range(len(text)))
            ]
            if matched:
                label = max(matched, key=lambda t: (terminals[t].priority, terminals[t].literal))
                self._lexemes[text] = label
                for n in range(1, len(text) + 1):
                    self.begun.setdefault(text[:n], set()).add(label)

    def label(self, text: str) -> int | None:
        return self._lexemes.get(text)

    def lex(self, text: str) -> tuple[tuple[int, ...], str] | None:
        """The terminals that are certain after ``text``, and the bytes that are pending."""
        emitted: list[int] = []
        while text and text not in self.begun:
            found = self._first(text)
            if found is None:
                return None
            emitted.append(found[0])
            text = text[found[1] :]
        return tuple(emitted), text

    def end(self, text: str) -> tuple[int, ...] | None:
        """The terminals of ``text`` as a whole."""
        emitted: list[int] = []
        while text:
            found = self._first(text)
            if found is None:
                return None
            emitted.append(found[0])
            text = text[found[1] :]
        return tuple(emitted)

    def _first(self, text: str) -> tuple[int, int] | None:
        furthest = max((n for n in range(1, len(text) + 1) if text[:n] in self.begun), default=0)
        size = max((n for n in range(1, furthest + 1) if text[:n] in self._lexemes), default=0)
        if not size or (self.strict and size < furthest):
            return None
        short = self._lexemes[text[:size]]
        if size < furthest:
            longer = {self.terminals[t].name for t in self.begun[text[: size + 1]]}
            if all((self.terminals[short].name, name) in self.commits for name in longer):
                return None
        return short, size
