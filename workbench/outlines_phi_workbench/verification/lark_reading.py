"""A grammar as Lark itself reads it, over the engine's numbers of its terminals: what the oracle stands on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import NamedTuple

from lark import Lark
from lark.exceptions import LarkError
from lark.lexer import PatternStr

from outlines_phi import UnsupportedError
from outlines_phi.guides.grammar.grammar import Grammar, Production, Terminal

from .lexemes import Lexemes

_NOTHING = r"[^\x00-\U0010ffff]"  # Matches no text
_EXACT = ("name", "pattern", "priority", "literal", "ignored")  # What both readings have to say alike of a terminal

Rules = list[tuple[str, tuple[str, ...]]]


class SecondReading(NamedTuple):
    """The grammar of the oracle.

    ``shared`` says why that is the engine's own reading, empty where it is Lark's; ``differences`` are terminals of which the two
    readings say different things.
    """

    grammar: Grammar
    shared: str = ""
    differences: tuple[str, ...] = ()


def read_again(text: str, engine: Grammar) -> SecondReading:
    """Return Lark's own reading of a text, of which the package reads terminals and rules by itself.

    Its terminals have the numbers of those of ``engine`` with the same names, or without names with the same patterns; those that
    only one reading has are differences. Rules need not correspond, and are numbered behind all terminals.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lark = Lark(text, parser="earley", maybe_placeholders=False)
        own = {
            each.name: Terminal(
                each.name if not each.name.startswith("__") else each.pattern.raw or f"/{each.pattern.to_regexp()}/",
                each.pattern.to_regexp(),
                each.priority,
                isinstance(each.pattern, PatternStr),
                each.name in lark.ignore_tokens,
                dialect="python",
            )
            for each in lark.terminals
        }
        for terminal in own.values():
            Lexemes.of(terminal)
        rules = [(rule.origin.name, tuple(symbol.name for symbol in rule.expansion)) for rule in lark.rules]
        return _numbered(own, rules, engine)
    except (LarkError, OSError, ValueError, AssertionError, UnsupportedError, RecursionError) as error:
        return SecondReading(engine, " ".join(str(error).split())[:200])


def _numbered(own: dict[str, Terminal], rules: Rules, engine: Grammar) -> SecondReading:
    used = _useful(rules, own)
    terminals, differences = list(engine.terminals), list[str]()
    free = {place: each for place, each in enumerate(engine.terminals) if not each.of}
    number: dict[str, int] = {}
    for name, mine in own.items():
        if not (mine.ignored or name in used):
            continue
        same = (place for place, each in free.items() if each.name == mine.name or each.pattern == mine.pattern)
        place = min(same, key=lambda place: free[place].name != mine.name, default=None)
        if place is None:
            number[name] = len(terminals)
            terminals.append(mine)
            differences.append(f"the engine has no terminal {mine.name!r}")
            continue
        number[name], terminals[place], other = place, mine, free.pop(place)
        for what in _EXACT:
            if (said := getattr(other, what)) != (should := getattr(mine, what)):
                differences.append(f"{what} of {mine.name!r} is {said} for the engine, and {should}")
    for place, each in free.items():
        differences.append(f"the engine alone has a terminal {each.name!r}")
        terminals[place] = Terminal(each.name, _NOTHING, ignored=each.ignored)
    heads = list(dict.fromkeys(head for head, _ in rules if head in used))
    number |= {head: len(terminals) + place for place, head in enumerate(heads)}
    # A lexeme of several terminals is read as any of them: where the rules have one, it may stand as well.
    shared = [place for place, terminal in enumerate(engine.terminals) if terminal.of]
    parts = sorted({t for place in shared for t in engine.terminals[place].of})
    choice = {t: len(terminals) + len(heads) + place for place, t in enumerate(parts)}
    productions = [
        Production(number[head], tuple(choice.get(number[symbol], number[symbol]) for symbol in body))
        for head, body in dict.fromkeys(rules)
        if used.issuperset((head, *body))
    ]
    for t, head in choice.items():
        productions += [Production(head, (way,)) for way in (t, *shared) if way == t or t in terminals[way].of]
    names = (*heads, *(terminals[t].name for t in parts))
    grammar = Grammar(tuple(terminals), names, tuple(productions), number["start"])
    return SecondReading(grammar, "", tuple(differences))


def _useful(rules: Rules, terminals: Iterable[str]) -> set[str]:
    """Return the symbols that derive a word, and occur in what the start rule derives."""
    ends, used = set(terminals), {"start"}
    while more := {head for head, body in rules if ends.issuperset(body)} - ends:
        ends |= more
    while more := {s for head, body in rules if head in used and ends.issuperset(body) for s in body} - used:
        used |= more
    if "start" not in ends:
        raise UnsupportedError("its start rule derives no text")
    return used & ends
