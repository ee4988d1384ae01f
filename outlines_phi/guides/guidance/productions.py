"""A guidance grammar as plain productions: repeats and choices inside rules become rules of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from .guidance_rules import START, GuidanceRules, Rule, Tree
from .lexeme_kinds import JSONValue, Lexeme
from .written_parts import EitherOf, InTurn, NamedPart, RepeatedPart

Symbol: TypeAlias = int | Lexeme | JSONValue
"""A nonterminal, by its number, or what is one piece of text."""

Body: TypeAlias = tuple[Symbol, ...]


@final
@dataclass(frozen=True, eq=False)
class Productions:
    """The bodies of each nonterminal, in the order in which they are written; number 0 derives whole texts.

    ``rules`` has the rules among the nonterminals, by number; ``names`` what to call each.
    """

    bodies: list[list[Body]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    rules: dict[int, Rule] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: GuidanceRules) -> Productions:
        """Return the productions of some rules."""
        found = cls()
        numbers: dict[str, int] = {}
        waiting = [START]
        while waiting:
            name = waiting.pop()
            if name in numbers and numbers[name] in found.rules:
                continue
            number = found._number(name, numbers)
            found.rules[number] = rules.rules[name]
            found.bodies[number] = found._alternatives(rules.rules[name].body, numbers, waiting, name)
        return found

    def _number(self, name: str, numbers: dict[str, int]) -> int:
        if name not in numbers:
            numbers[name] = self._new(name)
        return numbers[name]

    def _new(self, name: str) -> int:
        self.bodies.append([])
        self.names.append(name)
        return len(self.bodies) - 1

    def _alternatives(self, tree: Tree, numbers: dict[str, int], waiting: list[str], owner: str) -> list[Body]:
        parts = tree.parts if isinstance(tree, EitherOf) else (tree,)
        return [self._body(part, numbers, waiting, owner) for part in parts]

    def _body(self, tree: Any, numbers: dict[str, int], waiting: list[str], owner: str) -> Body:
        match tree:
            case InTurn():
                return tuple(symbol for part in tree.parts for symbol in self._body(part, numbers, waiting, owner))
            case NamedPart():
                waiting.append(tree.name)
                return (self._number(tree.name, numbers),)
            case EitherOf():
                number = self._new(f"__{owner}")
                self.bodies[number] = self._alternatives(tree, numbers, waiting, owner)
                return (number,)
            case RepeatedPart():
                (once,) = self._alternatives(InTurn((tree.part,)), numbers, waiting, owner)
                more: Body = ()
                if tree.most is None:
                    number = self._new(f"__{owner}")
                    self.bodies[number] = [(number, *once), ()]
                    more = (number,)
                for _ in range(0 if tree.most is None else tree.most - tree.least):
                    number = self._new(f"__{owner}")
                    self.bodies[number] = [(*once, *more), ()]
                    more = (number,)
                # A repeat without bounds reads from the left, so it comes first.
                needed = once * tree.least
                return (*more, *needed) if tree.most is None else (*needed, *more)
        return (tree,)
