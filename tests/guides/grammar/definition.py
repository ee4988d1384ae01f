"""Texts of a grammar by their definition: longest match by ``re``, words by Earley's sets; a recogniser; random grammars."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

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


DEPTH = 4
"""Pending texts are one state where texts of at most so many letters make the same of them: enough for small terminals."""

Word = tuple[int, ...]
Nodes = NDArray[np.bool_]


def in_python(pattern: str) -> str:
    """The pattern with escapes of code points as Python writes them: ``\\x{41}`` is another one there."""
    return re.sub(
        r"\\x\{([0-9A-Fa-f]+)\}|\\.", lambda found: f"\\U{int(found[1], 16):08x}" if found[1] else found[0], pattern
    )


class LongestMatch:
    """Longest match with going back, over texts of an alphabet, ignored terminals left out unless ``every`` one is wanted.

    ``commits`` names (complete, longer) terminals between which the lexer does not go back; ``strict`` never goes back
    (grammar-theory.md, section 2.2).
    """

    def __init__(
        self,
        terminals: Sequence[Terminal],
        alphabet: Iterable[str],
        *,
        depth: int = DEPTH,
        every: bool = False,
        commits: Collection[tuple[str, str]] = (),
        strict: bool = False,
    ) -> None:
        self.terminals, self.alphabet = terminals, sorted(set(alphabet))
        self.every, self.commits, self.strict = every, commits, strict
        self._compiled = [re.compile(in_python(terminal.pattern)) for terminal in terminals]
        self._futures = ["".join(word) for n in range(depth + 1) for word in product(self.alphabet, repeat=n)]
        self._first: dict[tuple[Word | None, ...], str] = {}
        self._state: dict[str, str] = {}
        self._steps: dict[tuple[str, str], tuple[Word, str] | None] = {}
        self.label, self.begun = cache(self._label), cache(self._begun)

    def _label(self, text: str) -> int | None:
        """The terminal that ``text`` is a lexeme of."""
        found = {t for t, each in enumerate(self.terminals) if text and not each.of and self._is_lexeme(t, text)}
        found |= {t for t, each in enumerate(self.terminals) if each.of and found.issuperset(each.of)}
        return min(found, key=self._place, default=None)

    def _begun(self, text: str) -> set[int]:
        """The terminals of the lexemes that ``text`` begins."""
        return {label for more in self._futures if (label := self.label(text + more)) is not None}

    def cut(self, text: str) -> tuple[Word, str] | None:
        """The terminals that are certain after ``text``, and what is pending; ``None`` where it cannot be cut."""
        word: Word = ()
        while text and not self.begun(text):
            if not (size := self._longest(text)):
                return None
            word, text = (*word, *self._counted(text[:size])), text[size:]
        return word, text

    def whole(self, text: str) -> Word | None:
        """The terminals of ``text`` as a whole."""
        word: Word = ()
        while text:
            if not (size := self._longest(text)):
                return None
            word, text = (*word, *self._counted(text[:size])), text[size:]
        return word

    def step(self, state: str, letter: str) -> tuple[Word, str] | None:
        """The terminals that are certain after one more letter, and the state then."""
        if (state, letter) not in self._steps:
            found = self.cut(state + letter)
            self._steps[state, letter] = None if found is None else (found[0], self.state(found[1]))
        return self._steps[state, letter]

    def run(self, text: str) -> tuple[Word, str] | None:
        """The same of all letters of a text."""
        word, state = (), self.state("")
        for letter in text:
            found = self.step(state, letter)
            if found is None:
                return None
            word, state = word + found[0], found[1]
        return word, state

    def state(self, pending: str) -> str:
        """The first pending text that was seen of those with the same futures."""
        if pending not in self._state:
            key = tuple(self.whole(pending + more) for more in self._futures)
            self._state[pending] = self._first.setdefault(key, pending)
        return self._state[pending]

    def _is_lexeme(self, terminal: int, text: str) -> bool:
        ends = range(1, len(text)) if self.terminals[terminal].shortest else ()
        matches = self._compiled[terminal].fullmatch
        return bool(matches(text)) and not any(matches(text[:end]) for end in ends)

    def _longest(self, text: str) -> int:
        """Return the length of the first lexeme, 0 where there is none or the lexer does not go back to it."""
        furthest = max((n for n in range(1, len(text) + 1) if self.begun(text[:n])), default=0)
        size = max((n for n in range(1, furthest + 1) if self.label(text[:n]) is not None), default=0)
        if not size or size == furthest:
            return size
        names = [self.terminals[t].name for t in (self.label(text[:size]), *self.begun(text[: size + 1]))]  # type: ignore[index]
        return (
            0
            if self.strict or self.commits and all((names[0], longer) in self.commits for longer in names[1:])
            else size
        )

    def _counted(self, lexeme: str) -> Word:
        label = self.label(lexeme)
        return () if label is None or (self.terminals[label].ignored and not self.every) else (label,)

    def _place(self, number: int) -> tuple[int, ...]:
        terminal = self.terminals[number]
        return -terminal.priority, not terminal.literal, -len(terminal.of), number


class Step(NamedTuple):
    """A node of the automaton of words that are still to come: ``word``, and then those from a pending text (``None``: no more)."""

    word: Word
    pending: str | None


class Automaton(NamedTuple):
    """The nodes that steps without output, and each symbol, lead from and to."""

    number: dict[Step, int]
    silent: NDArray[np.bool_]
    derived: NDArray[np.bool_]


class Definition:
    """The members of a grammar and their beginnings, over texts of an alphabet (grammar-theory.md, section 1).

    Whether a text begins a member is decided exactly: the words that it may still become are a regular language, which is
    intersected with what completes the word so far (Bar-Hillel, Perles and Shamir, 1961).
    """

    def __init__(self, grammar: Grammar, alphabet: Iterable[str], *, depth: int = DEPTH) -> None:
        self.grammar, self.lexing = grammar, LongestMatch(grammar.terminals, alphabet, depth=depth)
        self._earley = Earley(grammar)
        self._sets: dict[Word, Sets | None] = {(): self._earley.start}
        self._contexts: dict[Word, dict[int, Nodes]] = {}
        self._completable: dict[Word, Nodes] = {}

    def is_member(self, text: str) -> bool:
        word = self.lexing.whole(text)
        sets = None if word is None else self._read(word)
        return sets is not None and self._earley.accepts(sets)

    def is_prefix(self, text: str) -> bool:
        found = self.lexing.run(text)
        if found is None or self._read(found[0]) is None:
            return False
        return bool(self._completed(found[0])[self._automaton.number[Step((), found[1])]])

    def _read(self, word: Word) -> Sets | None:
        if word not in self._sets:
            before = self._read(word[:-1])
            self._sets[word] = None if before is None else self._earley.read(before, word[-1])
        return self._sets[word]

    def _completed(self, word: Word) -> Nodes:
        """Return the nodes from which ``word`` is completed to a derived one."""
        if word not in self._completable:
            sets, contexts = self._read(word), self._context(word)
            assert sets is not None
            self._completable[word] = np.any(
                [
                    self._before(body[dot:], self._outer(word, contexts, head, origin))
                    for head, body, dot, origin in sets[-1]
                ],
                axis=0,
            )
        return self._completable[word]

    def _context(self, word: Word) -> dict[int, Nodes]:
        """Per nonterminal begun behind ``word``, from where the whole is completed once it is."""
        if word not in self._contexts:
            number, silent, _ = self._automaton
            sets, found = self._read(word), defaultdict(lambda: np.zeros(len(number), dtype=bool))
            assert sets is not None
            if not word:
                found[self.grammar.start] = silent[:, number[Step((), None)]]
            size = -1
            while size != (size := sum(int(nodes.sum()) for nodes in found.values())):
                for head, body, dot, origin in sets[-1]:
                    if dot < len(body):
                        outer = self._outer(word, found, head, origin)
                        found[body[dot]] = found[body[dot]] | self._before(body[dot + 1 :], outer)
            self._contexts[word] = found
        return self._contexts[word]

    def _outer(self, word: Word, here: dict[int, Nodes], head: int, origin: int) -> Nodes:
        return here[head] if origin == len(word) else self._context(word[:origin])[head]

    def _before(self, symbols: Word, nodes: Nodes) -> Nodes:
        for symbol in reversed(symbols):
            nodes = self._automaton.derived[symbol] @ nodes
        return nodes

    @cached_property
    def _automaton(self) -> Automaton:
        """The automaton of words to come, with the least fixed point of what symbols derive along it."""
        moves, reads = self._edges()
        steps = [*moves, *((here, there) for here, _, there in reads)]
        number = {
            node: n
            for n, node in enumerate(dict.fromkeys(node for step in [(Step((), None),), *steps] for node in step))
        }
        silent = np.eye(len(number), dtype=bool)
        for here, there in moves:
            silent[number[here], number[there]] = True
        while not np.array_equal(silent, squared := silent @ silent):
            silent = squared
        terminals = len(self.grammar.terminals)
        derived = np.zeros((terminals + len(self.grammar.nonterminals), *silent.shape), dtype=bool)
        for here, terminal, there in reads:
            derived[terminal, number[here], number[there]] = True
        derived[:terminals] = silent @ derived[:terminals] @ silent
        before = -1
        while before != (before := int(derived.sum())):
            for production in self.grammar.productions:
                led = silent
                for symbol in production.body:
                    led = led @ derived[symbol]
                derived[production.head] |= led
        return Automaton(number, silent, derived)

    def _edges(self) -> tuple[list[tuple[Step, Step]], list[tuple[Step, int, Step]]]:
        """The steps without output, and those that read a terminal."""
        states, silent, reads = [self.lexing.state("")], [], []
        for state in states:
            ends = self.lexing.whole(state)
            moves: list[tuple[Word, str | None]] = [(ends, None)] if ends is not None else []
            for letter in self.lexing.alphabet:
                found = self.lexing.step(state, letter)
                moves += [found] if found is not None else []
            states += dict.fromkeys(there for _, there in moves if there is not None and there not in states)
            for word, there in moves:
                silent.append((Step((), state), Step(word, there)))
                reads += [(Step(word[n:], there), word[n], Step(word[n + 1 :], there)) for n in range(len(word))]
        return silent, reads
