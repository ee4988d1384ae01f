"""The oracle by itself: against Python's ``re``, words derived by hand, and the fixtures' expected results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import pytest

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.grammar.grammar import Grammar, Terminal
from outlines_phi.guides.grammar.lexing.lexer import Lexer
from outlines_phi_workbench.verification.earley import Earley
from outlines_phi_workbench.verification.lexemes import Lexemes, PatternReading
from outlines_phi_workbench.verification.lexing import START, Lexing
from outlines_phi_workbench.verification.oracle import GrammarOracle, Oracle, PatternOracle
from tests.guides.grammar.definition import Definition
from tests.guides.grammar.fixtures import BY_ID, EOS, FIXTURES, Fixture, grammar, words
from tests.guides.grammar.lexing.test_lexer import GOING_BACK

STRING = Terminal("STR", '"[^"\n]*"')
DIGITS = Terminal("NUM", r"1+(\.1+)?")
SLASHES = (
    Terminal("A", "a"),
    Terminal("SLASH", "/", literal=True),
    Terminal("STAR", r"\*", literal=True),
    Terminal("COMMENT", r"/\*(.|\n)*?\*/", ignored=True, shortest=True),
)
DOTS = Terminal("RANGE", r"\.\.", literal=True)

fixtures = pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.id)


def oracle_of(fixture: Fixture) -> GrammarOracle:
    return GrammarOracle(fixture.grammar, [token.encode() for token in fixture.tokens])


def read(lexemes: Lexemes, text: bytes) -> PatternReading | None:
    """The reading after ``text``; ``None`` if no lexeme begins so."""
    reading: PatternReading | None = lexemes.start if lexemes.start.places else None
    for byte in text:
        reading = None if reading is None else lexemes.step(reading, byte)
    return reading


def prolongs(lexing: Lexing, state: int, byte: int) -> bool:
    """Return True if the residual text goes on with ``byte``."""
    return bool(lexing._longer(lexing._residuals[state].readings, byte))


def prefixes(oracle: Oracle, texts: Iterable[bytes]) -> set[bytes]:
    """The beginnings of the members among ``texts``."""
    return {text[:end] for text in texts if oracle.is_member(text) for end in range(len(text) + 1)}


class TestLexemes:
    @pytest.mark.parametrize(
        "pattern",
        [
            "a(bc)?|[^a]",
            "(?i:se[lk])",
            r"-?(0|[1-9]\d*)(\.\d+)?",
            "(ab)*a",
            r'"([^"\\\x00-\x1F]|\\.)*"',
            "\u00e9{1,2}.",
            "a{2,}b??",
            r"[^\W\d]\w*",
            "(?:a|b){2,3}?(?s:.)",
            "",
            "(a?)*",
        ],
    )
    def test_whole_matches_are_those_of_re(self, pattern: str) -> None:
        lexemes = Lexemes(pattern)
        found = 0
        for word in words('abcsSelkK\u212a\u017f01.-"\\\u00e9x\n_', 3):
            text = "".join(word)
            reading = read(lexemes, text.encode())
            matches = reading is not None and lexemes.matches(reading)
            assert matches == bool(re.fullmatch(pattern, text)), text
            found += matches
        assert found

    @pytest.mark.parametrize("pattern", ["ab(cd|ce)?f", "(ab)*a", "a{2,3}b", "[^a]\u00e9a", "(a|b)*abb"])
    def test_what_begins_a_match(self, pattern: str) -> None:
        lexemes, alphabet = Lexemes(pattern), "abcdef\u00e9"
        matches = ["".join(word) for word in words(alphabet, 5) if re.fullmatch(pattern, "".join(word))]
        begun = {match.encode()[:end] for match in matches for end in range(len(match.encode()) + 1)}
        for word in words(alphabet, 2):
            text = "".join(word).encode()
            assert (read(lexemes, text) is not None) == (text in begun)
        assert any(len(text) > 2 for text in begun)

    @pytest.mark.parametrize(
        ("text", "begins"),
        [
            (b"\xc3", True),
            (b"\xe2\x84", True),
            (b"\xf0\x90", True),
            (b"\xc0", False),
            (b"\xe0\x80", False),
            (b"\xed\xa0", False),
            (b"\xf4\x90", False),
            (b"\xf5", False),
            (b"\x80", False),
            (b"\xc3a", False),
        ],
    )
    def test_only_characters_of_utf_8(self, text: bytes, begins: bool) -> None:
        assert (read(Lexemes(".*"), text) is not None) == begins
        assert read(Lexemes("[a-z]"), text) is None

    def test_a_cut_character_begins_what_has_it(self) -> None:
        e_acute = Lexemes("\u00e9")
        assert read(e_acute, b"\xc3") is not None and read(e_acute, b"\xc4") is None
        reading = read(e_acute, "\u00e9".encode())
        assert reading is not None and e_acute.matches(reading)

    def test_the_shortest_lexeme_is_not_prolonged(self) -> None:
        comment = Lexemes(r"/\*(?:.|\n)*?\*/", shortest=True)
        assert read(comment, b"/* * /") is not None
        assert read(comment, b"/**/") is not None and read(comment, b"/**/ */") is None

    @pytest.mark.parametrize("pattern", [r"a\b", "(?=a)a", r"(a)\1", "[a&&b]", r"\p{L}", "(", "(?>a)"])
    def test_what_is_not_read_alike_is_refused(self, pattern: str) -> None:
        with pytest.raises(UnsupportedError):
            Lexemes(pattern)


class TestLexing:
    @pytest.mark.parametrize(
        ("terminals", "text", "word", "last"),
        [
            ((*BY_ID["CALC"].grammar.terminals,), "", "", ()),
            ((*BY_ID["CALC"].grammar.terminals,), "_", "", ()),
            ((*BY_ID["CALC"].grammar.terminals,), "a", "", ("ID",)),
            ((*BY_ID["CALC"].grammar.terminals,), "a+", "ID", ("PLUS",)),
            ((*BY_ID["CALC"].grammar.terminals,), "a_aa", "ID", ("ID",)),
            ((*BY_ID["CALC"].grammar.terminals,), "a-", None, None),
            ((STRING,), '"x', "", None),
            ((STRING,), '"x"', "", ("STR",)),
            ((STRING,), '"x""', "STR", None),
            ((*BY_ID["KW"].grammar.terminals,), "if", "", ("IF",)),
            ((*BY_ID["KW"].grammar.terminals,), "iff_if_", "NAME IF", ()),
            ((DIGITS, DOTS), "1.", "", None),
            ((DIGITS, DOTS), "1..1", "NUM RANGE", ("NUM",)),
            ((DIGITS, Terminal("DOT", r"\.")), "1.", "", ("NUM", "DOT")),
            ((DIGITS, Terminal("DOT", r"\.")), "1..1", "NUM DOT DOT", ("NUM",)),
            (SLASHES, "a/*a", "A", None),
            (SLASHES, "a/*a*/*", "A", ("STAR",)),
            (tuple(replace(t, ignored=False) for t in SLASHES), "/*a", "", ("SLASH", "STAR", "A")),
            ((DIGITS, DOTS), "1.1..", "NUM", ("RANGE",)),
            ((*BY_ID["REENT"].grammar.terminals,), "ab", "", None),
            ((*BY_ID["REENT"].grammar.terminals,), "aba", "", ("T",)),
        ],
    )
    def test_examples(
        self, terminals: tuple[Terminal, ...], text: str, word: str | None, last: tuple[str, ...] | None
    ) -> None:
        lexing = Lexing(terminals)
        move = lexing.run(text.encode())
        if word is None:
            assert move is None
            return
        assert move is not None
        assert " ".join(terminals[t].name for t in move.word) == word
        flushed = lexing.flush(move.state)
        assert (None if flushed is None else tuple(terminals[t].name for t in flushed)) == last

    @pytest.mark.parametrize(
        ("terminals", "alphabet"),
        [
            (BY_ID["CALC"].grammar.terminals, "a+_x"),
            (BY_ID["KW"].grammar.terminals, "if_"),
            (BY_ID["REENT"].grammar.terminals, "ab"),
            ((DIGITS, DOTS), "1."),
            ((DIGITS, Terminal("DOT", r"\.")), "1."),
            ((Terminal("A", "a"), Terminal("AB", "(ab)+c"), Terminal("B", "b"), Terminal("BA", "ba")), "abc"),
            ((STRING, Terminal("ID", "[ab]+"), Terminal("SP", " ", ignored=True)), '"a \n'),
        ],
    )
    def test_the_definition_on_strings(self, terminals: tuple[Terminal, ...], alphabet: str) -> None:
        """Longest match of whole texts, with ``re`` over all lexemes of bounded length."""
        lexemes = {
            text: min(
                (-t.priority, not t.literal, n) for n, t in enumerate(terminals) if re.fullmatch(t.pattern, text)
            )[2]
            for text in map("".join, words(alphabet, 6))
            if any(re.fullmatch(t.pattern, text) for t in terminals)
        }

        def cut(text: str) -> tuple[int, ...] | None:
            if not text:
                return ()
            longest = next((end for end in range(len(text), 0, -1) if text[:end] in lexemes), 0)
            rest = cut(text[longest:]) if longest else None
            return None if rest is None else (lexemes[text[:longest]], *rest)

        lexing = Lexing(terminals)
        texts = ["".join(word) for word in words(alphabet, 6)]
        whole = {text: found for text in texts if (found := cut(text)) is not None}
        begun = {text[:end] for text in whole for end in range(len(text) + 1)}
        for text in texts:
            move = lexing.run(text.encode())
            last = None if move is None else lexing.flush(move.state)
            counted = tuple(t for t in whole.get(text, ()) if not terminals[t].ignored)
            assert (move is not None and last is not None) == (text in whole), text
            assert move is None or last is None or move.word + last == counted, text
            assert move is not None or text not in begun, text
            assert move is None or len(text) > 4 or text in begun, text
        assert len(whole) > 1

    def test_lexemes_without_bound_behind_a_complete_one(self) -> None:
        """A comment that may hold the beginnings of others: what follows ``/*`` has to be one, however long it is."""
        comment = Terminal("COMMENT", r"/\*([^*]|\*+[^*/])*\*+/", ignored=True)
        lexing = Lexing((*SLASHES[:3], comment))
        begun = lexing.run(b"/*a" * 2000)
        assert begun is not None and begun.word == () and lexing.flush(begun.state) is None
        assert lexing.run(b"/*a/*a*/") == lexing.run(b"/**/")
        assert Lexing((*SLASHES[1:3], comment)).run(b"/*/*/*/*") is not None
        given_up = Lexing((*SLASHES[:3], replace(comment, ignored=False)))
        begun = given_up.run(b"/*a" * 500)
        assert begun is not None and given_up.flush(begun.state) == (1, 2, 0) * 500


@pytest.mark.parametrize("name", GOING_BACK)
def test_what_is_committed_is_not_gone_back_behind(name: str) -> None:
    terminals, alphabet = GOING_BACK[name]
    always = tuple(replace(terminal, committed=True) for terminal in terminals)
    lexer, oracle = Lexer.of(always), Lexing(always)
    for text in map("".join, words(alphabet, 4)):
        step, move = lexer.lex(text.encode()), oracle.run(text.encode())
        assert (step is None) == (move is None), text
        if step is not None and move is not None:
            assert lexer.flush(step[0]) == oracle.flush_all(move.state), text


def derived(given: Grammar, longest: int) -> set[tuple[int, ...]]:
    """The words of at most ``longest`` terminals, by the least fixed point over sets of words."""
    first = len(given.terminals)
    of: dict[int, set[tuple[int, ...]]] = {t: {(t,)} for t in range(first)}
    of |= {first + n: set() for n in range(len(given.nonterminals))}
    while True:
        before = sum(map(len, of.values()))
        for production in given.productions:
            found: set[tuple[int, ...]] = {()}
            for symbol in production.body:
                found = {a + b for a in found for b in of[symbol] if len(a) + len(b) <= longest}
            of[production.head] |= found
        if sum(map(len, of.values())) == before:
            return of[given.start]


ABC = (Terminal("a", "a"), Terminal("b", "b"), Terminal("c", "c"))
RULES = {
    "ambiguous": "s: s s | a | b",
    "nullable": "s: x y x c\nx: | a\ny: x x | b",
    "hidden left recursion": "s: x s a | b\nx: | c",
    "unit cycle": "s: x | a\nx: s | b s c",
    "palindromes": "s: | a s a | b s b | c",
    "empty word only": "s: x x\nx:",
    "not LR(1)": "s: x a c | y a b\nx: a | x a\ny: a | y a",
}


@pytest.mark.parametrize("rules", RULES.values(), ids=list(RULES))
class TestEarley:
    def test_derives_and_survives(self, rules: str) -> None:
        given = grammar(ABC, rules)
        members = derived(given, 9)
        earley = Earley(given)
        begun = {word[:end] for word in members for end in range(len(word) + 1)}
        for word in product(range(3), repeat=4):
            for end in range(5):
                assert earley.derives(word[:end]) == (word[:end] in members)
                assert earley.survives(word[:end]) == (word[:end] in begun or not end)
        assert members

    def test_words_that_go_on_alike(self, rules: str) -> None:
        given = grammar(ABC, rules)
        members = derived(given, 9)
        earley = Earley(given)
        futures: dict[tuple[int, ...], set[frozenset[tuple[int, ...]]]] = {}
        for length in range(5):
            for word in product(range(3), repeat=length):
                rest = frozenset(
                    member[length:] for member in members if member[:length] == word and len(member) <= length + 5
                )
                futures.setdefault(earley.canonical(word), set()).add(rest)
        assert all(len(several) == 1 for several in futures.values())
        assert len(futures) < 100

    def test_completion_with_bytes_that_are_missing(self, rules: str) -> None:
        """With all letters but one, and pairs of letters: what is completed is what some word of letters completes."""
        given = grammar(ABC, rules)
        for letters in (("a", "b", "c"), ("a", "b"), ("a", "bc"), ("ab", "b", "c"), ("aa", "c", "b")):
            oracle = GrammarOracle(given, [letter.encode() for letter in letters])
            for word in words(letters, 2):
                text = "".join(word)
                # Five letters more complete all that can be completed in these grammars.
                longer = any(oracle.is_member((text + "".join(more)).encode()) for more in words(letters, 5))
                assert oracle.is_prefix(text.encode()) == longer, (letters, text)


@fixtures
class TestFixtures:
    def test_members(self, fixture: Fixture) -> None:
        oracle = oracle_of(fixture)
        assert [text for text in fixture.members if not oracle.is_member(text.encode())] == []
        assert [text for text in fixture.others if oracle.is_member(text.encode())] == []

    def test_prefixes_are_those_of_members(self, fixture: Fixture) -> None:
        oracle = oracle_of(fixture)
        texts = {"".join(word).encode() for word in words(fixture.tokens, 2)}
        longer = prefixes(oracle, ("".join(word).encode() for word in words(fixture.tokens, 6)))
        assert {text for text in texts if oracle.is_prefix(text)} == texts & longer
        letters = sorted(set("".join(fixture.tokens)))
        oracle, definition = (
            GrammarOracle(fixture.grammar, map(str.encode, letters)),
            Definition(fixture.grammar, letters),
        )
        assert all(definition.is_prefix(text.decode()) == oracle.is_prefix(text) for text in texts)
        assert bool(longer) != fixture.empty

    def test_traps_of_masks_that_only_survive(self, fixture: Fixture) -> None:
        """The masks of the paper, with *head* and without exact realizability, against the beginnings of members."""
        oracle = oracle_of(fixture)
        allowed = list(survivors(oracle, fixture.tokens, 3))
        traps = [word for word in allowed if word and not oracle.is_prefix("".join(word).encode())]
        assert len(traps) == fixture.traps
        assert {word for word in fixture.refused if word[-1] != EOS} <= {*traps, ("b",)}
        everything = [word for word in words(fixture.tokens, 3) if oracle.is_prefix("".join(word).encode())]
        assert set(everything) <= {(), *allowed}, "head is complete"

    def test_single_producible_terminals_miss_words(self, fixture: Fixture) -> None:
        oracle = oracle_of(fixture)
        allowed = set(survivors(oracle, fixture.tokens, 3, single=True))
        missed = [
            w for w in words(fixture.tokens, 3) if w and w not in allowed and oracle.is_prefix("".join(w).encode())
        ]
        assert len(missed) == fixture.missed

    def test_refused(self, fixture: Fixture) -> None:
        oracle = oracle_of(fixture)
        for word in fixture.refused:
            text = "".join(token for token in word if token != EOS).encode()
            assert not (oracle.is_member(text) if word[-1] == EOS else oracle.is_prefix(text))


def survivors(
    oracle: GrammarOracle, tokens: tuple[str, ...], longest: int, *, single: bool = False
) -> Iterator[tuple[str, ...]]:
    """The words that the weaker mask allows (grammar-theory.md, section 7.6), each step by a producible terminal that survives."""
    level: list[tuple[str, ...]] = [()]
    for _ in range(longest):
        level = [
            (*word, token) for word in level for token in tokens if allows(oracle, "".join((*word, token)), single)
        ]
        yield from level


def allows(oracle: GrammarOracle, text: str, single: bool = False) -> bool:
    point = oracle.advance(oracle.start, text.encode())
    if point is None:
        return False
    heads = producible(oracle, point.state, single)
    return any(oracle.earley.survives((*point.word, *head)) for head in heads)


def producible(oracle: GrammarOracle, state: int, single: bool = False) -> set[tuple[int, ...]]:
    """The terminals that may come first from ``state``, or alone; () for an ignored one, and for the end at the start."""
    lexing, found = oracle.lexing, set[tuple[int, ...]]()
    visited, pending = {state}, [state]
    while pending:
        here = pending.pop()
        letters = {byte for letter in oracle._letters for byte in letter}
        moves = [(byte, move) for byte in letters if (move := lexing.move(here, byte)) is not None]
        label = lexing.matched(here)[:1]
        restarts = any(not prolongs(lexing, here, byte) for byte, _ in moves)
        if label and (restarts or not single):
            found.add(() if lexing.terminals[label[0]].ignored else (label[0],))
        if here == START:
            found.add(())
        stay = [move.state for byte, move in moves if prolongs(lexing, here, byte)]
        new = set(stay) - visited
        visited |= new
        pending += new
    return found


class TestNamedResults:
    """The results of grammar-theory.md, section 8.3, on single fixtures."""

    @pytest.mark.parametrize(
        ("text", "allowed"),
        [("()", "( (( () _ <eos>"), ("(()", "( (( () ) )( _")],
    )
    def test_dyck_after_a_closing_bracket(self, text: str, allowed: str) -> None:
        fixture, oracle = BY_ID["DYCK"], oracle_of(BY_ID["DYCK"])
        found = {token for token in fixture.tokens if oracle.is_prefix((text + token).encode())}
        assert found | ({EOS} if oracle.is_member(text.encode()) else set()) == set(allowed.split())

    def test_keywords(self) -> None:
        oracle = oracle_of(BY_ID["KW"])
        names = {
            text: {oracle.grammar.name(t) for head in producible(oracle, oracle.lexing.run(text).state) for t in head}
            for text in (b"i", b"if", b"iff")
        }
        assert names == {b"i": {"IF", "NAME"}, b"if": {"IF", "NAME"}, b"iff": {"NAME"}}
        assert not oracle.is_member(b"if") and oracle.is_prefix(b"if")

    def test_dead_is_the_language_of_ones(self) -> None:
        oracle = oracle_of(BY_ID["DEAD"])
        members = {"".join(word) for word in words(BY_ID["DEAD"].tokens, 4) if oracle.is_member("".join(word).encode())}
        assert members == {"1", "11", "111", "1111"}

    def test_a_grammar_that_is_not_reduced(self) -> None:
        fixture = BY_ID["NOPRUNE"]
        oracle = oracle_of(fixture)
        assert oracle.survives(oracle.advance(oracle.start, b"a+")) and not oracle.is_prefix(b"a+")

    def test_realizable_sequences_of_calc(self) -> None:
        """``Re`` where ignored terminals are put out like others and the end is a token: 31 sequences."""
        fixture = BY_ID["CALC"]
        lexing = Lexing([Terminal(t.name, t.pattern) for t in fixture.grammar.terminals])
        end = len(lexing.terminals)
        states = {START, *(lexing.run(text).state for text in (b"a", b"+", b"_"))}
        found = set()
        for state in states:
            for token in fixture.tokens:
                move = lexing.run(token.encode(), state)
                if move is not None:
                    found |= {(*move.word, t) for t in lexing.matched(move.state)}
            last = lexing.flush(state)
            found |= {(*last, end, head) for head in range(end + 1)} if last is not None else set()
        assert len(found) == 31


class TestPatternOracle:
    @pytest.mark.parametrize("pattern", ["(ab)*a?", "a{2,4}", "[ab]b[ab]", "", "a|ab|bbb"])
    @pytest.mark.parametrize("letters", [("a", "b"), ("aa", "b"), ("ab", "b"), ("a",)])
    def test_against_all_words(self, pattern: str, letters: tuple[str, ...]) -> None:
        oracle = PatternOracle(pattern, [letter.encode() for letter in letters])
        for word in words(letters, 3):
            text = "".join(word)
            assert oracle.is_member(text.encode()) == bool(re.fullmatch(pattern, text))
            longer = any(re.fullmatch(pattern, "".join((*word, *more))) for more in words(letters, 6))
            assert oracle.is_prefix(text.encode()) == longer

    def test_bytes_complete_what_begins(self) -> None:
        oracle = PatternOracle("\u00e9+")
        assert oracle.is_prefix(b"\xc3") and not oracle.is_member(b"\xc3") and not oracle.is_prefix(b"\xc3\xa8")
