"""A guidance grammar: its text, what guides it, and what its texts capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple, final

from ...automata.automaton import DEAD, ByteAutomaton
from ...errors import EmptyLanguageError, GrammarError
from ...numerics.cache import kept
from ...vocabulary.special_tokens import SPELLING
from ...vocabulary.vocabulary import Vocabulary
from ..fsm import FSMGuide
from ..grammar.cfg_guide import CFGGuide
from ..grammar.grammar import Grammar
from ..grammar.lexeme_automaton import bytes_behind, joint_of
from ..guide import Guide
from ..json_schema.json_guide import JSONGuide
from ..json_schema.machine.machine import Machine
from ..json_schema.reading.schema import END, Template
from .guidance_rules import GuidanceRules, JSONValue, Lexeme, Productions
from .longest_match import LexemeMatch, between_values, blocks_of, template_of


class Item(NamedTuple):
    """Item of the chart: a production, as far as it is read, that began before piece ``origin``."""

    head: int
    body: tuple[int, ...]
    dot: int
    origin: int


class Piece(NamedTuple):
    """A lexeme of a text, of all ``kinds`` that match it, from one byte to another; ``cut`` bytes that follow it end it."""

    kinds: frozenset[int]
    begin: int
    end: int
    cut: int = 0


class Derived(NamedTuple):
    """A symbol that derives the pieces from ``begin`` to ``end``."""

    symbol: int
    begin: int
    end: int


@final
class TextReading:
    """A text, cut into pieces, and what these are derived from: by where it begins, each nonterminal, and where it ends.

    It is read as llguidance reads it. At each place the rules (Earley 1970) say which lexemes may come; the longest text that any
    of these matches is the next one, of all kinds that match it, unless a lazy one matches before. So a text is cut in one way.
    """

    def __init__(self, productions: Productions, text: bytes) -> None:
        self._grammar, self._kinds, self._rules, self._text = (
            productions.grammar,
            productions.kinds,
            productions.rules,
            text,
        )
        self.pieces: list[Piece] = []
        self._completed: list[dict[int, set[int]]] = []
        self.holds = self._read()

    def _read(self) -> bool:
        """Cut the text; return whether it is one of the grammar."""
        items = self._closed([Item(self._grammar.start, body, 0, 0) for body in self._bodies(self._grammar.start)], [])
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
        return len(self._completed) - 1 in self._completed[0].get(self._grammar.start, ())

    def _is_kind(self, symbol: int) -> bool:
        return symbol < len(self._kinds)

    def _bodies(self, head: int) -> list[tuple[int, ...]]:
        return [self._grammar.productions[number].body for number in self._grammar.by_head[head]]

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
            if self._is_kind(symbol):
                empty = self._kinds[symbol].is_nullable
            else:
                for body in self._bodies(symbol):
                    add(Item(symbol, body, 0, here))
                empty = here in self._completed[here].get(symbol, ())
            if empty:
                add(item._replace(dot=item.dot + 1))
        return list(found)

    def _next(self, symbols: set[int], at: int) -> Piece | None:
        """Return the piece that begins at a byte."""
        kinds = {symbol: self._kinds[symbol] for symbol in symbols if self._is_kind(symbol)}
        lexemes = {symbol: one for symbol, one in kinds.items() if isinstance(one, Lexeme)}
        states = {symbol: one.automaton.start for symbol, one in lexemes.items()}
        end, ended = at, frozenset[int]()
        while end < len(self._text):
            byte = self._text[end]
            moved = {
                s: after for s, state in states.items() if (after := lexemes[s].automaton.step(state, byte)) is not None
            }
            if not moved:
                break
            states, end = moved, end + 1
            ended = frozenset(s for s, state in states.items() if lexemes[s].automaton.accepting[state])
            lazy = frozenset(s for s in ended if lexemes[s].lazy)
            if lazy:
                hidden = [len(lexemes[s].ending(self._text[at:end])) for s in lazy if lexemes[s].hidden]
                return Piece(lazy, at, end - max(hidden, default=0), max(hidden, default=0))
        if end > at:
            return Piece(ended, at, end) if ended else None
        values = {symbol: one.machine for symbol, one in kinds.items() if isinstance(one, JSONValue)}
        ends = {symbol: max(one.prefixes(self._text, at), default=at) for symbol, one in values.items()}
        longest = max(ends.values(), default=at)
        return Piece(frozenset(s for s, end in ends.items() if end == longest), at, longest) if longest > at else None

    @cached_property
    def captures(self) -> dict[str, str | list[str]]:
        """The texts of captures, by name; of several of one name the last, or all where they become a list.

        Of several derivations this is the one whose first alternative, as written, comes first, and whose parts are longest from
        the left.
        """
        found: dict[str, str | list[str]] = {}
        stack: list[tuple[Derived, bool]] = [(Derived(self._grammar.start, 0, len(self.pieces)), False)]
        while stack:
            node, is_read = stack.pop()
            if self._is_kind(node.symbol):
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
        rule = self._rules.get(node.symbol)
        if rule is None:
            return
        if node.begin == node.end:
            begin = end = self.pieces[node.begin].begin if node.begin < len(self.pieces) else len(self._text)
        else:
            begin, end = self.pieces[node.begin].begin, self.pieces[node.end - 1].end
        ending = b""
        if isinstance(rule.body, Lexeme) and rule.body.endings:
            whole = end + (self.pieces[node.end - 1].cut if node.end > node.begin else 0)
            ending = rule.body.ending(self._text[begin:whole])
            end = whole - len(ending)
        for capture, text in ((rule.capture, self._text[begin:end]), (rule.ending, ending)):
            if capture is not None:
                before, new = found.get(capture.name), SPELLING.sub(b"", text).decode(errors="replace")
                found[capture.name] = [*(before if isinstance(before, list) else ()), new] if capture.listed else new

    def _children(self, node: Derived, around: frozenset[Derived]) -> list[Derived] | None:
        """Return the parts of a nonterminal; ``None`` if only of one of those ``around`` it."""
        for body in self._bodies(node.symbol):
            for children in self._splits(body, node.begin, node.end):
                same = [child for child in children if not self._is_kind(child.symbol) and child[1:] == node[1:]]
                inside = around | {node}
                if all(child not in inside and self._children(child, inside) is not None for child in same):
                    return children
        return None

    def _splits(self, body: tuple[int, ...], begin: int, end: int) -> Iterator[list[Derived]]:
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
            nodes = [*before, Derived(body[len(before)], before[-1].end if before else begin, to)]
            if len(nodes) == len(body):
                if to == end:
                    yield nodes
            elif (len(nodes), to) not in dead:
                following = [place for place in self._ends(body[len(nodes)], to, end)]
                if not following:
                    dead.add((len(nodes), to))
                ways.append((nodes, iter(following)))

    def _ends(self, symbol: int, begin: int, end: int) -> list[int]:
        """Return the possible ends of a symbol that begins before a piece, the last place first."""
        if not self._is_kind(symbol):
            return sorted((to for to in self._completed[begin].get(symbol, ()) if to <= end), reverse=True)
        found = [begin + 1] if begin < end and symbol in self.pieces[begin].kinds else []
        return found + ([begin] if self._kinds[symbol].is_nullable else [])


def grammar_of(rules: GuidanceRules, productions: Productions) -> Grammar:
    """Return the grammar of some rules, which have recursion, for an engine that cuts every text into the same lexemes.

    llguidance lets a lexeme be as long as *those that the rules allow in its place* can make it; the engine lets it be as long as
    any can, and falls back where a longer one fails. Both cut a text alike if none of these holds (``b`` may be the first byte
    after a lexeme of ``L``):

    - two kinds match one text, one of which ends where it first matches, and the other does not;
    - a text of ``L``, and it with ``b`` behind it, begin one of another kind;
    - a text of ``L`` with ``b`` behind it begins a longer one of ``L``, and is none;
    - a text of ``L`` that ends where it first matches begins one of another kind.

    Raises
    ------
    GrammarError
        It has JSON values, a lexeme that may be empty, or ends with what is taken away, or lexemes for which one of these holds,
        with a shortest such text.
    """
    for value in rules.values:
        raise rules.error("JSON values beside recursion cannot be read. Write the values out as rules", value.at)
    lexemes = rules.lexemes
    for one in lexemes:
        if one.hidden:
            raise rules.error("`stop` beside recursion cannot be read. Use suffix=, which stays in the text", one.at)
        if one.is_nullable:
            raise rules.error(
                f"{one.name} may be empty, which cannot be read beside recursion. Ask for at least one character (`+` for `*`), "
                'and make it optional, as in select([..., ""])',
                one.at,
            )
    _check_apart(rules, productions.grammar)
    return productions.grammar.reduced()


def _check_apart(rules: GuidanceRules, grammar: Grammar) -> None:
    lexemes, (joint, matched) = rules.lexemes, joint_of(grammar.terminals)
    alive = joint.places[joint.targets] != DEAD  # [S, C, T]
    behind = bytes_behind(joint, grammar.productions) | [[one.lazy] for one in lexemes]  # [T, C]

    for one, other in combinations(range(len(lexemes)), 2):
        if lexemes[one].lazy == lexemes[other].lazy:
            continue  # a text is of both, and the rules tell which
        both = ByteAutomaton(joint.targets, joint.byte_class, 1, matched[:, one] & matched[:, other])
        if not both.is_empty:
            raise _refused(rules, lexemes[one], lexemes[other], both.shortest(), "both match")
    for one, other in product(range(len(lexemes)), repeat=2):
        goes_on = alive[:, :, other] & matched[:, one, None] & behind[one]  # [S, C]
        if one == other:
            goes_on &= ~matched[joint.targets, one]
        complete = ByteAutomaton(joint.targets, joint.byte_class, 1, goes_on.any(axis=1))
        if not complete.is_empty:
            text = complete.shortest()
            byte = int(goes_on[complete.advance(1, text), joint.byte_class].argmax())
            raise _refused(rules, lexemes[one], lexemes[other], text + bytes([byte]), "may go on, or end within,")


def _refused(rules: GuidanceRules, one: Lexeme, other: Lexeme, text: bytes, how: str) -> GrammarError:
    names = one.name if one is other else f"{one.name} and {other.name}"
    return rules.error(
        f"{names} {how} {text.decode(errors='backslashreplace')!r}, which a grammar with recursion may read in another way than "
        "llguidance here. Let them differ in their characters, or put a text between them that is in neither; alternatives in one "
        "place may be one lexeme: a select of texts, or one regular expression",
        other.at,
    )


@final
class GuidanceGrammar:
    """The language of a text in llguidance's dialect of Lark, as llguidance reads it.

    Without recursion it is a regular language, or one over JSON values; with recursion it goes to the engine of grammars, where
    that cuts every text into the same lexemes.

    Raises
    ------
    GrammarError, UnsupportedError
        The text cannot be read, or has what cannot be honoured.
    EmptyLanguageError
        It derives no text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._rules = GuidanceRules(text)
        self._productions = Productions.of(self._rules)
        if self._rules.cycle:
            _ = self._grammar
        elif self._rules.values:
            # Which bytes are of a value and which are not must be told from one another.
            _ = Machine(self._template, blanks=self._rules.values[0].blanks)
        elif self._automaton.is_empty:
            raise EmptyLanguageError(
                "Let the parts of the grammar differ in their characters. It derives no text: a lexeme is as long as it can be, so "
                'what comes after it has to begin with what it cannot go on with, as in gen(regex="[a-z]+") + "." and not + "s".'
            )

    @property
    def has_captures(self) -> bool:
        """True if a rule captures its text."""
        return any(rule.capture or rule.ending for rule in self._rules.rules.values())

    @property
    def has_special(self) -> bool:
        """True if texts have special tokens."""
        return bool(self._rules.special)

    @property
    def automaton_alone(self) -> ByteAutomaton | None:
        """The automaton, if the grammar is regular and of texts alone."""
        return None if self._rules.cycle or self._rules.values or self._rules.special else self._automaton

    @cached_property
    def _automaton(self) -> ByteAutomaton:
        """The texts of a grammar without recursion and values."""
        start = self._match.start
        return self._match.automaton(start.row, END, *self._match.explored([start]), blocks_of(self._rules))

    @cached_property
    def _grammar(self) -> Grammar:
        return grammar_of(self._rules, self._productions)

    @cached_property
    def _match(self) -> LexemeMatch:
        return LexemeMatch(template_of(self._rules), self._rules.lexemes, self.text)

    @cached_property
    def _template(self) -> Template:
        return between_values(self._match)

    def guide(self, vocabulary: Vocabulary) -> Guide:
        """Return the guide over the tokens of a vocabulary."""
        if self._rules.cycle:
            return CFGGuide.of(self._grammar, vocabulary)
        vocabulary = vocabulary.with_special(self._rules.special)
        if self._rules.values:
            return JSONGuide.of_template(self._template, vocabulary, blanks=self._rules.values[0].blanks)
        return FSMGuide.from_automaton(self._automaton, vocabulary)

    def holds(self, text: str) -> bool:
        """Return True if the grammar derives a text."""
        return TextReading(self._productions, text.encode()).holds

    def captures(self, text: str) -> dict[str, str | list[str]]:
        """Return the captures of a text of the grammar, by name.

        Special tokens are read as machines step by them, ``surrogateescape``; in captures they show nothing.
        """
        reading = TextReading(self._productions, text.encode(errors="surrogateescape"))
        if not reading.holds:
            hint = " Take the value of a draw of sample(), which knows its special tokens." if self.has_special else ""
            raise ValueError(f"{text!r:.80} is not in the format.{hint}")
        return reading.captures


@kept
def read(text: str) -> GuidanceGrammar:
    """Return the grammar that a text is; errors as of :class:`GuidanceGrammar`."""
    return GuidanceGrammar(text)
