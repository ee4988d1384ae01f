"""The grammar that the second reader makes of a text, over the numbers that the engine gave to the same terminals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple, final

from outlines_phi.guides.grammar.grammar import Grammar, Production, Terminal

from .second_patterns import for_the_oracle, match_the_same, tree
from .second_reader import (
    Alternatives,
    LarkDefinitions,
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

_MOST_OPTIONAL = 3  # Of how many optional parts of a sequence all variants are written out
_MOST_PRODUCTIONS = 100_000

_NOTHING = r"[^\x00-\U0010ffff]"  # Matches no text


class SecondReading(NamedTuple):
    """The grammar that an oracle stands on.

    ``shared`` says why that is the engine's own reading, empty where it is a second one; ``differences`` are terminals of which the
    two readings say different things.
    """

    grammar: Grammar
    shared: str = ""
    differences: tuple[str, ...] = ()


def read_again(text: str, engine: Grammar) -> SecondReading:
    """Read a text in Lark's dialect by a second reader.

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

    def __init__(self, definitions: LarkDefinitions) -> None:
        self._named = definitions.named
        self.found: dict[Symbol, list[tuple[Symbol, ...]]] = {}
        self.terminals: dict[Symbol, Terminal] = {}
        self._written: dict[str, LiteralText | WrittenPattern] = {}
        self._same = {repr(self._terminal(name)): name for name in self._named if is_terminal(name)}
        self._waiting: list[tuple[Symbol, Alternatives]] = []
        for place, choices in enumerate(definitions.ignored):
            self._ignore(place, choices)
        self.start = self._rule("start", ())
        while self._waiting:
            head, body = self._waiting.pop()
            self._add(head, self._variants(body))

    def _ignore(self, place: int, choices: Alternatives) -> None:
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
                dialect="python",
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
            case Alternatives(((one,),)):
                return self._pattern(one, around)
            case Alternatives(alternatives):
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
            assert isinstance(body, Alternatives)
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

    def _variants(self, choices: Alternatives) -> list[tuple[Symbol, ...]]:
        return [body for parts in choices.alternatives for body in self._bodies(parts)]

    def _bodies(self, parts: Sequence[Part]) -> Iterator[tuple[Symbol, ...]]:
        optional = sum(isinstance(each, Repeats) and not each.least for each in parts)
        ways = [self._ways(each, optional <= _MOST_OPTIONAL) for each in parts]
        return (tuple(symbol for way in chosen for symbol in way) for chosen in product(*ways))

    def _ways(self, part: Part, written_out: bool) -> list[tuple[Symbol, ...]]:
        """Return the bodies of a part of a rule: several bodies only if it may be left out."""
        match part:
            case SymbolName(name) if is_terminal(name):
                return [(self._keep(name, self._terminal(name), True),)]
            case SymbolName(name):
                return [(self._rule(name, ()),)]
            case TemplateUse(name, arguments):
                return [(self._rule(name, arguments),)]
            case LiteralText() | WrittenPattern():
                named = self._same.get(repr(part))
                return [(self._keep(named or repr(part), part, named is not None),)]
            case Alternatives(alternatives) if (
                len(alternatives) == 1 and len(ways := list(self._bodies(alternatives[0]))) == 1
            ):
                return ways
            case Alternatives():
                head, is_new = self._helper("group", part)
                if is_new:
                    self._add(head, self._variants(part))
                return [(head,)]
        assert isinstance(part, Repeats)
        bodies: list[tuple[Symbol, ...]] = [()] if not part.least else []
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
        return (
            self._ways(part, True)
            if not isinstance(part, Alternatives) or len(part.alternatives) > 1
            else self._variants(part)
        )

    def _many(self, part: Part) -> list[tuple[Symbol, ...]]:
        head, is_new = self._helper("many", part)
        if is_new:
            once = self._once(part)
            self._add(head, [*once, *((head, *way) for way in once if way)])
        return [(head,)]

    def _counted(self, part: Repeats) -> list[tuple[Symbol, ...]]:
        """Return ``least`` of them, and behind these a chain of others, each of which may end it."""
        once: Part = Alternatives(((part.part,),))
        rest: tuple[Part, ...] = ()
        if part.most is None or part.most < part.least:
            raise SharedReading(f"it has repeats of {part.least} to {part.most}")
        for _ in range(part.most - part.least):
            rest = (Repeats(Alternatives(((once, *rest),)), 0, 1),)
        return list(self._bodies((*(once,) * part.least, *rest)))


def _regexp(pattern: LiteralText | WrittenPattern) -> str:
    value = re.escape(pattern.value) if isinstance(pattern, LiteralText) else pattern.value
    return f"(?{pattern.flags}:{value})" if pattern.flags else value


def _numbered(rules: _Rules, engine: Grammar) -> SecondReading:
    terminals = list(engine.terminals)
    used = _useful(rules)
    kept = [symbol for symbol, terminal in rules.terminals.items() if terminal.ignored or symbol in used]
    number: dict[Symbol, int] = {}
    differences: list[str] = []
    for symbol, place in _pairs([(symbol, rules.terminals[symbol]) for symbol in kept], terminals):
        mine = rules.terminals[symbol]
        number[symbol] = len(terminals) if place is None else place
        name = terminals[place].name if place is not None else mine.name or mine.pattern
        pattern, shortest = for_the_oracle(mine.pattern)
        if pattern is None:
            raise SharedReading(f"the pattern of {name!r} is not read by the oracle")
        if place is None:
            differences.append(f"the engine has no terminal {name!r}")
            terminals.append(mine)
        else:
            differences += _told_apart(name, terminals[place], mine)
        terminals[number[symbol]] = Terminal(name, pattern, mine.priority, mine.literal, mine.ignored, shortest)
    shared = [place for place, terminal in enumerate(engine.terminals) if terminal.of]
    for place in set(range(len(engine.terminals))) - set(number.values()) - set(shared):
        differences.append(f"the engine alone has a terminal {terminals[place].name!r}")
        terminals[place] = Terminal(terminals[place].name, _NOTHING, ignored=terminals[place].ignored)
    heads = [head for head in rules.found if head in used]
    number |= {head: len(terminals) + place for place, head in enumerate(heads)}
    # A lexeme of several terminals is read as any of them: where the rules have one, it may stand as well.
    parts = sorted({t for place in shared for t in terminals[place].of})
    choice = {t: len(terminals) + len(heads) + place for place, t in enumerate(parts)}
    productions = [
        Production(number[head], tuple(choice.get(number[symbol], number[symbol]) for symbol in body))
        for head in heads
        for body in rules.found[head]
        if used.issuperset(body)
    ]
    for t, head in choice.items():
        productions += [Production(head, (way,)) for way in (t, *shared) if way == t or t in terminals[way].of]
    names = (*(" ".join(head[1:]) for head in heads), *(terminals[t].name for t in parts))
    found = Grammar(tuple(terminals), names, tuple(productions), number[rules.start])
    return SecondReading(found, "", tuple(differences))


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
    free = {terminal.name: place for place, terminal in enumerate(engine) if not terminal.of}
    nameless = []
    for symbol, terminal in mine:
        if terminal.name:
            yield symbol, free.pop(terminal.name, None)
        else:
            nameless.append((symbol, terminal))
    left = list(free.values())
    trees: Mapping[int, str] = {place: tree(engine[place].pattern) for place in left}
    for symbol, terminal in nameless:
        parsed = tree(terminal.pattern)
        found = next((place for place in left if trees[place] == parsed), None)
        if found is None and not terminal.literal:
            found = next((place for place in left if match_the_same(terminal, engine[place])), None)
        if found is not None:
            left.remove(found)
        yield symbol, found
