"""An Earley recogniser, word by word, and random grammars: what the parser is compared with."""

from functools import cached_property

from hypothesis import strategies as st

from outlines_phi.guides.grammar.grammar import Grammar, Production, Terminal
from tests.guides.grammar.fixtures import grammar as of_terminals

Entry = tuple[int, tuple[int, ...], int, int]  # head, body, dot, origin
Sets = tuple[frozenset[Entry], ...]


def grammar(rules: str) -> Grammar:
    """A grammar from lines ``S: a S b | ``; lower case and signs are terminals, what begins with a capital is not."""
    names = dict.fromkeys(rules.replace(":", " ").replace("|", " ").split())
    return of_terminals(tuple(Terminal(name, name, literal=True) for name in names if not name[0].isupper()), rules)


class Earley:
    """Earley sets of a grammar, without any of the usual economies: each set is closed by going round until it stands."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        productive: set[int] = set(range(len(grammar.terminals)))
        while new := {p.head for p in grammar.productions if all(s in productive for s in p.body)} - productive:
            productive |= new
        self.rules = [(p.head, p.body) for p in grammar.productions if all(s in productive for s in p.body)]

    @cached_property
    def start(self) -> Sets:
        return (self._close((), {(head, body, 0, 0) for head, body in self.rules if head == self.grammar.start}),)

    def read(self, sets: Sets, terminal: int) -> Sets | None:
        """The sets after one more terminal; ``None`` where no member goes on with it (the rules are all productive)."""
        moved = {(h, body, dot + 1, origin) for h, body, dot, origin in sets[-1] if body[dot : dot + 1] == (terminal,)}
        return (*sets, self._close(sets, moved)) if moved else None

    def accepts(self, sets: Sets) -> bool:
        return any(h == self.grammar.start and dot == len(body) and origin == 0 for h, body, dot, origin in sets[-1])

    def _close(self, before: Sets, seeds: set[Entry]) -> frozenset[Entry]:
        here, size = set(seeds), -1
        while len(here) != size:
            size = len(here)
            for head, body, dot, origin in list(here):
                if dot == len(body):
                    source = before[origin] if origin < len(before) else here
                    here |= {(h, b, d + 1, o) for h, b, d, o in source if b[d : d + 1] == (head,)}
                else:
                    here |= {(h, b, 0, len(before)) for h, b in self.rules if h == body[dot]}
        return frozenset(here)


@st.composite
def grammars(draw: st.DrawFn, terminals: int = 2, nonterminals: int = 3, productions: int = 7) -> Grammar:
    """Small grammars of every kind: ambiguous, with empty rules, cycles, recursion of all sorts, useless symbols."""
    body = st.lists(st.integers(0, terminals + nonterminals - 1), max_size=4).map(tuple)
    head = st.integers(terminals, terminals + nonterminals - 1)
    rules = draw(st.lists(st.tuples(head, body), min_size=1, max_size=productions, unique=True))
    return Grammar(
        tuple(Terminal(name, name) for name in "abcd"[:terminals]),
        tuple("SABCD"[:nonterminals]),
        tuple(Production(*rule) for rule in rules),
        terminals,
    )
