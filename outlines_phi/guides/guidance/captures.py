"""What a text of a guidance grammar was made of: its lexemes, a derivation, and the captures in it.

Texts are read as llguidance reads them. At each place the rules (Earley 1970) say which lexemes may come; the longest text that
any of these matches is the next one, of all kinds that match it, unless a lazy one matches before. So every text is cut in one way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, final

from ...automata.automaton import DEAD
from ..json_schema.machine.machine import Machine
from ..json_schema.machine.states import Configuration
from .guidance_rules import Capture
from .lexeme_kinds import JSONValue, Lexeme
from .productions import Body, Productions, Symbol


class Item(NamedTuple):
    """How far a production is read that began before piece ``origin``."""

    head: int
    body: Body
    dot: int
    origin: int


class Piece(NamedTuple):
    """A lexeme of a text, of all ``kinds`` that match it, from one byte to another; ``cut`` bytes that follow it end it."""

    kinds: frozenset[Symbol]
    begin: int
    end: int
    cut: int = 0


class Derived(NamedTuple):
    """A symbol that derives the pieces from ``begin`` to ``end``."""

    symbol: Symbol
    begin: int
    end: int


@final
class TextReading:
    """A text, cut into pieces, and what these are derived from: by where it begins, each nonterminal, and where it ends."""

    def __init__(self, productions: Productions, text: bytes, machines: dict[JSONValue, Machine]) -> None:
        self._productions, self._text, self._machines = productions, text, machines
        self.pieces: list[Piece] = []
        self._completed: list[dict[int, set[int]]] = []
        self.holds = self._read()

    def _read(self) -> bool:
        """Cut the text; return whether it is one of the grammar."""
        items = self._closed([Item(0, body, 0, 0) for body in self._productions.bodies[0]], [])
        rows, at = [items], 0
        while at < len(self._text):
            piece = self._next({item.body[item.dot] for item in items if item.dot < len(item.body)}, at)
            if piece is None:
                return False
            self.pieces.append(piece)
            scanned = [
                item._replace(dot=item.dot + 1)
                for item in items
                if item.dot < len(item.body) and item.body[item.dot] in piece.kinds
            ]
            items = self._closed(scanned, rows)
            rows.append(items)
            at = piece.end
            if piece.cut and at + piece.cut == len(self._text) and self._is_whole:
                at += piece.cut  # what ends the last lexeme ends the text
        return self._is_whole

    @property
    def _is_whole(self) -> bool:
        return len(self._completed) - 1 in self._completed[0].get(0, ())

    def _closed(self, items: list[Item], rows: Sequence[Sequence[Item]]) -> list[Item]:
        """Return the items before the next piece, and note what is complete there."""
        here = len(self._completed)
        self._completed.append({})
        found = dict.fromkeys(items)
        waiting = list(found)

        def add(item: Item) -> None:
            if item not in found:
                found[item] = None
                waiting.append(item)

        while waiting:
            item = waiting.pop()
            if item.dot == len(item.body):
                self._completed[item.origin].setdefault(item.head, set()).add(here)
                before = list(found) if item.origin == here else rows[item.origin]
                for other in before:
                    if other.dot < len(other.body) and other.body[other.dot] == item.head:
                        add(other._replace(dot=other.dot + 1))
                continue
            symbol = item.body[item.dot]
            if isinstance(symbol, int):
                for body in self._productions.bodies[symbol]:
                    add(Item(symbol, body, 0, here))
                if here in self._completed[here].get(symbol, ()):
                    add(item._replace(dot=item.dot + 1))
            elif isinstance(symbol, Lexeme) and symbol.is_nullable:
                add(item._replace(dot=item.dot + 1))
        return list(found)

    def _next(self, symbols: set[Symbol], at: int) -> Piece | None:
        """Return the piece that begins at a byte."""
        states = {symbol: symbol.automaton.start for symbol in symbols if isinstance(symbol, Lexeme)}
        end = at
        while end < len(self._text):
            byte = self._text[end]
            moved = {one: after for one, state in states.items() if (after := one.automaton.step(state, byte)) != DEAD}
            if not moved:
                break
            states, end = moved, end + 1
            lazy = frozenset(one for one, state in states.items() if one.lazy and one.automaton.accepting[state])
            if lazy:
                hidden = [len(one.ending(self._text[at:end])) for one in lazy if one.hidden]
                return Piece(lazy, at, end - max(hidden, default=0), max(hidden, default=0))
        if end > at:
            kinds = frozenset(one for one, state in states.items() if one.automaton.accepting[state])
            return Piece(kinds, at, end) if kinds else None
        ends = {symbol: self._end(symbol, at) for symbol in symbols if isinstance(symbol, JSONValue)}
        longest = max(ends.values(), default=at)
        return (
            Piece(frozenset(one for one, end in ends.items() if end == longest), at, longest) if longest > at else None
        )

    def _end(self, value: JSONValue, at: int) -> int:
        """Return where the longest JSON value that begins at a byte ends; ``at`` if none does."""
        if value not in self._machines:
            self._machines[value] = Machine(value.template, blanks=value.blanks)
        machine, longest = self._machines[value], at
        place: Configuration | None = machine.start
        for end in range(at, len(self._text)):
            assert place is not None
            place = machine.advance(place, self._text[end])
            if place is None:
                break
            if machine.size(place) == 0:
                longest = end + 1
        return longest

    @cached_property
    def captures(self) -> dict[str, str | list[str]]:
        """The texts of captures, by name; of several of one name the last, or all where they become a list.

        Of several derivations this is the one whose first alternative, as written, comes first, and whose parts are longest from
        the left.
        """
        found: dict[str, str | list[str]] = {}
        stack: list[tuple[Derived, bool]] = [(Derived(0, 0, len(self.pieces)), False)]
        while stack:
            node, is_read = stack.pop()
            if not isinstance(node.symbol, int):
                continue
            if is_read:
                self._note(node, found)
                continue
            children = self._children(node, frozenset())
            assert children is not None
            stack.append((node, True))
            stack += [(child, False) for child in reversed(children)]
        return found

    def _note(self, node: Derived, found: dict[str, str | list[str]]) -> None:
        assert isinstance(node.symbol, int)
        rule = self._productions.rules.get(node.symbol)
        if rule is None:
            return
        begin, end = self._span(node)
        ending = b""
        if isinstance(rule.body, Lexeme) and rule.body.endings:
            whole = end + (self.pieces[node.end - 1].cut if node.end > node.begin else 0)
            ending = rule.body.ending(self._text[begin:whole])
            end = whole - len(ending)
        for capture, text in ((rule.capture, self._text[begin:end]), (rule.ending, ending)):
            if capture is not None:
                _add(found, capture, text.decode(errors="replace"))

    def _span(self, node: Derived) -> tuple[int, int]:
        if node.begin == node.end:
            at = self.pieces[node.begin].begin if node.begin < len(self.pieces) else len(self._text)
            return at, at
        return self.pieces[node.begin].begin, self.pieces[node.end - 1].end

    def _children(self, node: Derived, around: frozenset[Derived]) -> list[Derived] | None:
        """Return what a nonterminal is made of; ``None`` if only of one of those ``around`` it."""
        assert isinstance(node.symbol, int)
        for body in self._productions.bodies[node.symbol]:
            for children in self._splits(body, node.begin, node.end):
                same = [child for child in children if isinstance(child.symbol, int) and child[1:] == node[1:]]
                inside = around | {node}
                if all(child not in inside and self._children(child, inside) is not None for child in same):
                    return children
        return None

    def _splits(self, body: Body, begin: int, end: int) -> Iterator[list[Derived]]:
        """Yield the ways in which a body derives some pieces, longer parts first from the left."""
        ways = [(list[Derived](), iter(self._ends(body[0], begin, end)))] if body else []
        if not body and begin == end:
            yield []
        dead: set[tuple[int, int]] = set()
        while ways:
            before, ends = ways[-1]
            to = next(ends, None)
            if to is None:
                ways.pop()
                continue
            since = before[-1].end if before else begin
            nodes = [*before, Derived(body[len(before)], since, to)]
            if len(nodes) == len(body):
                if to == end:
                    yield nodes
            elif (len(nodes), to) not in dead:
                following = [place for place in self._ends(body[len(nodes)], to, end)]
                if not following:
                    dead.add((len(nodes), to))
                ways.append((nodes, iter(following)))

    def _ends(self, symbol: Symbol, begin: int, end: int) -> list[int]:
        """Return where a symbol that begins before a piece may end, the last place first."""
        if isinstance(symbol, int):
            return sorted((to for to in self._completed[begin].get(symbol, ()) if to <= end), reverse=True)
        found = [begin + 1] if begin < end and symbol in self.pieces[begin].kinds else []
        return found + ([begin] if isinstance(symbol, Lexeme) and symbol.is_nullable else [])


def _add(found: dict[str, str | list[str]], capture: Capture, text: str) -> None:
    if not capture.listed:
        found[capture.name] = text
        return
    kept = found.get(capture.name)
    found[capture.name] = [*kept, text] if isinstance(kept, list) else [text]
