"""The grammar that the second reader makes of a text, over the numbers that the engine gave to the same terminals."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple, final

from ..errors import UnsupportedError
from ..guides.grammar.grammar import Grammar, Production, Terminal
from .lexemes import Lexemes
from .second_reader import (
    Choices,
    Definitions,
    LiteralText,
    Part,
    Repeats,
    SharedReading,
    SymbolName,
    TemplateUse,
    WrittenPattern,
    is_terminal,
    read_definitions,
    substituted,
)

_PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_MOST_OPTIONAL = 3  # Of how many optional parts of a sequence all variants are written out
_MOST_PRODUCTIONS = 100_000
_MOST_PAIRS = 2_000  # Of how many pairs of readings it is looked at whether two patterns match the same

_NOTHING = r"[^\x00-\U0010ffff]"  # Matches no text


class SecondReading(NamedTuple):
    """What the oracle of a grammar stands on.

    ``shared`` says why that is the engine's own reading, empty where it is a second one; ``differences`` are terminals of which the
    two readings say different things, ``patterns`` the names of those whose patterns are the engine's nevertheless.
    """

    grammar: Grammar
    shared: str = ""
    differences: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


def read_again(text: str, engine: Grammar) -> SecondReading:
    """Return what a second reader makes of a text in Lark's dialect.

    Its terminals have the numbers of those of ``engine`` with the same names, or without names with the same patterns; those that
    only one reading has are differences. Rules need not correspond, and are numbered behind all terminals.
    """
    try:
        return _numbered(_Rules(read_definitions(text)), engine)
    except SharedReading as reason:
        return SecondReading(engine, str(reason))


Symbol = tuple[str, ...]  # ("terminal", key) or ("rule", key)


@final
class _Rules:
    """Productions out of definitions: ``found`` by head, ``terminals`` by key; a key is a name, or a literal as it is written."""

    def __init__(self, definitions: Definitions) -> None:
        self._named = definitions.named
        self.found: dict[Symbol, list[tuple[Symbol, ...]]] = {}
        self.terminals: dict[Symbol, Terminal] = {}
        self._written: dict[str, LiteralText | WrittenPattern] = {}
        self._same = {self._terminal(name): name for name in self._named if is_terminal(name)}
        self._waiting: list[tuple[Symbol, Choices]] = []
        for place, choices in enumerate(definitions.ignored):
            self._ignore(place, choices)
        self.start = self._rule("start", ())
        while self._waiting:
            head, body = self._waiting.pop()
            self._add(head, self._variants(body))

    def _ignore(self, place: int, choices: Choices) -> None:
        match choices.alternatives:
            case ((SymbolName(name),),):
                key, pattern = name, self._terminal(name)
            case _:
                key, pattern = f"%ignore {place}", self._pattern(choices, ())
        self._keep(key, pattern, key in self._named, ignored=True)

    def _keep(
        self, key: str, pattern: LiteralText | WrittenPattern, is_named: bool, *, ignored: bool = False
    ) -> Symbol:
        symbol = ("terminal", key)
        if symbol not in self.terminals:
            self.terminals[symbol] = Terminal(
                key if is_named else "",
                _regexp(pattern),
                self._named[key].priority if is_named else 0,
                isinstance(pattern, LiteralText),
                ignored,
            )
        return symbol

    def _terminal(self, name: str, around: tuple[str, ...] = ()) -> LiteralText | WrittenPattern:
        if name not in self._written:
            if name in around or name not in self._named:
                raise SharedReading(f"terminal {name!r} has no pattern")
            self._written[name] = self._pattern(self._named[name].body, (*around, name))
        return self._written[name]

    def _pattern(self, part: Part, around: tuple[str, ...]) -> LiteralText | WrittenPattern:
        """Return the pattern of a part of a terminal.

        As in Lark, the texts of regular expressions are written one after the other as they are.
        """
        match part:
            case LiteralText() | WrittenPattern():
                return part
            case SymbolName(name) if is_terminal(name):
                return self._terminal(name, around)
            case Choices(((one,),)):
                return self._pattern(one, around)
            case Choices(alternatives):
                written = ["".join(_regexp(self._pattern(each, around)) for each in parts) for parts in alternatives]
                return WrittenPattern(written[0] if len(written) == 1 else f"(?:{'|'.join(written)})")
            case Repeats(inner, least, most):
                bounds = f"{{{least},{'' if most is None else most}}}"
                return WrittenPattern(f"(?:{_regexp(self._pattern(inner, around))}){bounds}")
        raise SharedReading(f"a terminal has {part!r:.60} in it")

    def _rule(self, name: str, arguments: tuple[Part, ...]) -> Symbol:
        definition = self._named.get(name)
        if definition is None or len(definition.parameters) != len(arguments):
            raise SharedReading(f"there is no rule {name!r} with {len(arguments)} parameters")
        head = ("rule", name, *map(repr, arguments))
        if head not in self.found:
            self.found[head] = []
            values = dict(zip(definition.parameters, arguments, strict=True))
            body = substituted(definition.body, values) if values else definition.body
            assert isinstance(body, Choices)
            self._waiting.append((head, body))
        return head

    def _helper(self, kind: str, inside: object) -> tuple[Symbol, bool]:
        head = ("rule", kind, repr(inside))
        is_new = head not in self.found
        if is_new:
            self.found[head] = []
        return head, is_new

    def _add(self, head: Symbol, bodies: Iterator[tuple[Symbol, ...]] | Sequence[tuple[Symbol, ...]]) -> None:
        self.found[head] = list(dict.fromkeys(bodies))
        if sum(map(len, self.found.values())) > _MOST_PRODUCTIONS:
            raise SharedReading(f"it has more than {_MOST_PRODUCTIONS:,} productions")

    def _variants(self, choices: Choices) -> list[tuple[Symbol, ...]]:
        return [body for parts in choices.alternatives for body in self._bodies(parts)]

    def _bodies(self, parts: Sequence[Part]) -> Iterator[tuple[Symbol, ...]]:
        optional = sum(isinstance(each, Repeats) and not each.least for each in parts)
        ways = [self._ways(each, optional <= _MOST_OPTIONAL) for each in parts]
        return (tuple(symbol for way in chosen for symbol in way) for chosen in product(*ways))

    def _ways(self, part: Part, written_out: bool) -> list[tuple[Symbol, ...]]:
        """Return what a part of a rule is: several bodies only if it may be left out."""
        match part:
            case SymbolName(name) if is_terminal(name):
                return [(self._keep(name, self._terminal(name), True),)]
            case SymbolName(name):
                return [(self._rule(name, ()),)]
            case TemplateUse(name, arguments):
                return [(self._rule(name, arguments),)]
            case LiteralText() | WrittenPattern():
                named = self._same.get(part)
                return [(self._keep(named or repr(part), part, named is not None),)]
            case Choices(alternatives) if len(alternatives) == 1 and len(ways := list(self._bodies(alternatives[0]))) == 1:
                return ways
            case Choices():
                head, is_new = self._helper("group", part)
                if is_new:
                    self._add(head, self._variants(part))
                return [(head,)]
        assert isinstance(part, Repeats)
        bodies = [()] if not part.least else []
        if part.most == 0:
            return [()]
        if (part.least, part.most) in ((0, 1), (0, None), (1, None)):
            bodies += self._once(part.part) if part.most else self._many(part.part)
        else:
            bodies = self._counted(part)
        if not part.least and not written_out:
            head, is_new = self._helper("optional", part)
            if is_new:
                self._add(head, bodies)
            return [(head,)]
        return bodies

    def _once(self, part: Part) -> list[tuple[Symbol, ...]]:
        return self._ways(part, True) if not isinstance(part, Choices) or len(part.alternatives) > 1 else self._variants(part)

    def _many(self, part: Part) -> list[tuple[Symbol, ...]]:
        head, is_new = self._helper("many", part)
        if is_new:
            once = self._once(part)
            self._add(head, [*once, *((head, *way) for way in once)])
        return [(head,)]

    def _counted(self, part: Repeats) -> list[tuple[Symbol, ...]]:
        """Return ``least`` of them, and behind these a chain of others, each of which may end it."""
        once: Part = Choices(((part.part,),))
        rest: tuple[Part, ...] = ()
        if part.most is None or part.most < part.least:
            raise SharedReading(f"it has repeats of {part.least} to {part.most}")
        for _ in range(part.most - part.least):
            rest = (Repeats(Choices(((once, *rest),)), 0, 1),)
        return list(self._bodies((*(once,) * part.least, *rest)))


def _regexp(pattern: LiteralText | WrittenPattern) -> str:
    value = re.escape(pattern.value) if isinstance(pattern, LiteralText) else pattern.value
    return f"(?{pattern.flags}:{value})" if pattern.flags else value


def _numbered(rules: _Rules, engine: Grammar) -> SecondReading:
    terminals = list(engine.terminals)
    used = _useful(rules)
    kept = [symbol for symbol, terminal in rules.terminals.items() if terminal.ignored or symbol in used]
    number: dict[Symbol, int] = {}
    differences, patterns = [], []
    for symbol, place in _pairs([(symbol, rules.terminals[symbol]) for symbol in kept], terminals):
        mine = rules.terminals[symbol]
        number[symbol] = len(terminals) if place is None else place
        name = terminals[place].name if place is not None else mine.name or mine.pattern
        pattern, shortest = _for_the_oracle(mine.pattern)
        if pattern is None:
            if place is None:
                raise SharedReading(f"the pattern of {name!r} is not read by the oracle")
            patterns.append(name)
            pattern, shortest = terminals[place].pattern, terminals[place].shortest
        if place is None:
            differences.append(f"the engine has no terminal {name!r}")
            terminals.append(mine)
        else:
            differences += _told_apart(name, terminals[place], mine)
        terminals[number[symbol]] = Terminal(name, pattern, mine.priority, mine.literal, mine.ignored, shortest)
    for place in set(range(len(engine.terminals))) - set(number.values()):
        differences.append(f"the engine alone has a terminal {terminals[place].name!r}")
        terminals[place] = Terminal(terminals[place].name, _NOTHING, ignored=terminals[place].ignored)
    heads = [head for head in rules.found if head in used]
    number |= {head: len(terminals) + place for place, head in enumerate(heads)}
    productions = tuple(
        Production(number[head], tuple(number[symbol] for symbol in body))
        for head in heads
        for body in rules.found[head]
        if used.issuperset(body)
    )
    found = Grammar(tuple(terminals), tuple(" ".join(head[1:]) for head in heads), productions, number[rules.start])
    return SecondReading(found, "", tuple(differences), tuple(patterns))


def _useful(rules: _Rules) -> set[Symbol]:
    """Return the symbols that derive a word, and occur in what the start rule derives."""
    ends: set[Symbol] = set(rules.terminals)
    changed = True
    while changed:
        new = {head for head, bodies in rules.found.items() if any(map(ends.issuperset, bodies))} - ends
        ends |= new
        changed = bool(new)
    if rules.start not in ends:
        raise SharedReading("its start rule derives no text")
    used, pending = {rules.start}, [rules.start]
    while pending:
        bodies = filter(ends.issuperset, rules.found.get(pending.pop(), ()))
        new = {symbol for body in bodies for symbol in body} - used
        used |= new
        pending += new
    return used


def _told_apart(name: str, engine: Terminal, mine: Terminal) -> Iterator[str]:
    for what in ("priority", "literal", "ignored"):
        if (said := getattr(engine, what)) != (should := getattr(mine, what)):
            yield f"{what} of {name!r} is {said} for the engine, and {should}"


def _pairs(mine: Sequence[tuple[Symbol, Terminal]], engine: Sequence[Terminal]) -> Iterator[tuple[Symbol, int | None]]:
    """Yield each terminal with the place of the engine's that is the same: of its name, or else without a name of its pattern."""
    free = {terminal.name: place for place, terminal in enumerate(engine)}
    nameless = []
    for symbol, terminal in mine:
        if terminal.name and terminal.name in free:
            yield symbol, free.pop(terminal.name)
        else:
            nameless.append((symbol, terminal))
    left = list(free.values())
    trees: Mapping[int, str] = {place: _tree(engine[place].pattern) for place in left}
    for symbol, terminal in nameless:
        tree = _tree(terminal.pattern)
        found = next((place for place in left if trees[place] == tree), None)
        if found is None and not terminal.name and not terminal.literal:
            found = next((place for place in left if _match_the_same(terminal.pattern, engine[place].pattern)), None)
        if found is not None:
            left.remove(found)
        yield symbol, found


def _tree(pattern: str) -> str:
    try:
        return str(_parsed(re.sub(r"\\x\{([0-9A-Fa-f]{1,6})\}", lambda found: f"\\U{int(found[1], 16):08x}", pattern)))
    except (re.error, Warning):
        return pattern


def _match_the_same(one: str, other: str) -> bool:
    try:
        lexemes = [Lexemes(*each) for each in (_for_the_oracle(one), (other, False)) if each[0] is not None]
    except UnsupportedError:
        return False
    if len(lexemes) < 2:
        return False
    first, second = lexemes
    found = {(first.start, second.start)}
    pending = list(found)
    while pending and len(found) < _MOST_PAIRS:
        here, there = pending.pop()
        if first.matches(here) != second.matches(there):
            return False
        for byte in range(256):
            after, beside = first.step(here, byte), second.step(there, byte)
            if (after is None) != (beside is None):
                return False
            if after is not None and beside is not None and (after, beside) not in found:
                found.add((after, beside))
                pending.append((after, beside))
    return not pending


def _parsed(pattern: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return _PARSER.parse(pattern)


def _for_the_oracle(pattern: str) -> tuple[str | None, bool]:
    """Return a pattern that :class:`Lexemes` reads, and whether its lexemes end where they first match; ``None`` if there is none."""
    try:
        pattern = _spelled_out(pattern) if re.search(r"\\[dswDSW]", pattern) else pattern
        shortest = _ends_first(_parsed(pattern))
        Lexemes(pattern, bool(shortest))
    except (UnsupportedError, re.error, Warning, OverflowError, RecursionError):
        return None, False
    return (None, False) if shortest is None else (pattern, shortest)


def _ends_first(parsed: Any) -> bool | None:
    """Return whether a lazy quantifier ends the lexemes where they first match; ``None`` where it is not clear which these are."""
    if "MIN_REPEAT" not in str(parsed):
        return False
    nodes = list(parsed)
    if len(nodes) == 1 and str(nodes[0][0]) == "SUBPATTERN":
        return _ends_first(nodes[0][1][3])
    lazy = [place for place, (kind, _) in enumerate(nodes) if str(kind) == "MIN_REPEAT"]
    if len(lazy) != 1 or str(parsed).count("MIN_REPEAT") != 1:
        return None
    for rest in (nodes[: lazy[0]], nodes[lazy[0] + 1 :]):
        least, most = _PARSER.SubPattern(parsed.state, rest).getwidth()
        if least != most:
            return None
    return True


@lru_cache(maxsize=8)
def _members(category: str) -> str:
    """Return the characters of a category of Python's as the items of a class."""
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    runs = re.finditer(f"{category}+", every)
    return "".join(f"\\U{ord(run[0][0]):08x}-\\U{ord(run[0][-1]):08x}" for run in runs)


def _spelled_out(pattern: str) -> str:
    """Return a pattern with the categories of Python's written out: :class:`Lexemes` has those of the engine's dialect."""
    written, inside, at = [], False, 0
    piece = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL), re.compile(r"\\.|.", re.DOTALL)
    while at < len(pattern):
        found = piece[inside].match(pattern, at)
        assert found is not None
        at, text = found.end(), found[0]
        if text in (r"\d", r"\s", r"\w", r"\D", r"\S", r"\W"):
            text = _members(text) if inside else f"[{_members(text)}]"
        elif not inside:
            inside = text[0] == "["
        elif text == "]":
            inside = False
        written.append(text)
    return "".join(written)
