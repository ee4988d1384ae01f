"""The masks of grammars, against their definition; texts that several terminals match, as Lark's Earley parser has them."""

import random
import warnings
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import GrammarError as LarkGrammarError
from lark.exceptions import LarkError

from outlines_phi import (
    BannedPhrases,
    EmptyLanguageError,
    Generator,
    GrammarError,
    UnsupportedError,
    Vocabulary,
    from_transformers,
    limits,
)
from outlines_phi.errors import GrammarWarning
from outlines_phi.guides import CFGGuide, Guide, read_grammar
from outlines_phi.testing import assert_guide
from tests.guides.grammar.definition import Definition, grammars
from tests.guides.grammar.fixtures import C_LIKE, FIXTURES, LEXERS, SYMBOLS, Fixture, grammar, vocabulary
from tests.guides.walking import accepts, assert_row, assert_same, ended, is_free, members, read, states_after, walk
from tests.inner import DEAD, DONE, UNREACHABLE, Grammar, Parser, Terminal, banned, bundled, cfg_guide, grammar_text
from tests.refusals import refused

fixed = settings(derandomize=True, deadline=None, max_examples=60)
WRITABLE = [fixture for fixture in FIXTURES if not fixture.empty]


def compiled(rules: Grammar, tokens: Vocabulary) -> CFGGuide:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrammarWarning)
        return CFGGuide.of(rules, tokens)


def assert_rows(built: CFGGuide, depth: int = 3) -> None:
    for state in states_after(built, depth - 1):
        assert_row(built, state)


def assert_language(built: CFGGuide, rules: Grammar, depth: int) -> None:
    """Assert that a token is allowed if and only if it goes on to a member, and the end if and only if the text is one."""
    tokens, eos = built.vocabulary, built.vocabulary.eos_ids[0]
    definition = Definition(rules, tokens.decode(v for v in range(len(tokens)) if v != eos).decode())
    level = [(b"", built.start)]
    for _ in range(depth):
        below = []
        for text, state in level:
            assert (built.advance(state, eos) == DONE) == definition.is_member(text.decode()), text
            for token, spelled in enumerate(tokens.tokens):
                if token != eos:
                    target = built.advance(state, token)
                    assert (target != DEAD) == definition.is_prefix((text + spelled).decode()), (text, spelled)
                    below.append((text + spelled, target))
        level = [(text, state) for text, state in below if state != DEAD]


def ways_to_end(built: Guide, depth: int) -> dict[int, int]:
    """The least tokens to the end, where at most ``depth``, of the states that as many tokens reach; by ``advance`` alone."""
    levels = [{built.start}]
    for _ in range(2 * depth):
        levels.append({built.advance(s, v) for s in levels[-1] for v in range(len(built.vocabulary))} - {DEAD, DONE})
    known = {state for level in levels for state in level}
    least = {DONE: 0}
    for steps in range(1, depth + 1):
        ending = {
            s for s in known - set(least) if any(built.advance(s, v) in least for v in range(len(built.vocabulary)))
        }
        least |= dict.fromkeys(ending, steps)
    return {state: steps for state, steps in least.items() if state in set().union(*levels[: depth + 1])}


@pytest.mark.parametrize("fixture", WRITABLE, ids=lambda fixture: fixture.id)
def test_what_the_grammar_derives_and_nothing_else(fixture: Fixture) -> None:
    built = compiled(fixture.grammar, fixture.vocabulary)
    assert_language(built, fixture.grammar, depth=4)
    assert_rows(built, 4)
    assert_guide(built, limit=300, shortest=False)


@pytest.mark.parametrize("fixture", WRITABLE, ids=lambda fixture: fixture.id)
def test_the_distance_is_an_upper_bound_and_the_least_where_each_token_is_a_byte(fixture: Fixture) -> None:
    built = compiled(fixture.grammar, fixture.vocabulary)
    for state, least in ways_to_end(built, 3).items():
        assert least <= built.min_tokens(state) < UNREACHABLE, built.describe(state)
    built = compiled(fixture.grammar, vocabulary(*sorted({letter for token in fixture.tokens for letter in token})))
    for state, least in ways_to_end(built, 4).items():
        assert built.min_tokens(state) == least, built.describe(state)


CUT: dict[str, tuple[tuple[Terminal, ...], tuple[str | bytes, ...]]] = {
    **{name: (terminals, tuple(alphabet)) for name, (terminals, alphabet, _) in LEXERS.items()},
    "SYMBOLS": (SYMBOLS, ("→", "∀x", "let ", "é", "in", "\n", "=", b"\xe2", b"\x86\x92", b"\x88", b"\x80y", "л→")),
    "C_LIKE": (C_LIKE, ("if", "->", "1.", ".", "..1", "e", "-", "/*", "*/", "/**/", " x", "intx", "1e-", "*", "\n ")),
}
"""Terminals, and pieces of which tokens are that cut lexemes anywhere, and characters."""


@pytest.mark.parametrize("name", CUT)
def test_tokens_that_cut_lexemes_anywhere(name: str) -> None:
    """Rows beside single steps, and any cut of a text leads to the same state."""
    terminals, pieces = CUT[name]
    spelled = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
    bytes_ = dict.fromkeys(bytes([byte]) for piece in spelled for byte in piece)
    tokens = [*bytes_, *[b"".join(some) for n in (1, 2, 3) for some in product(spelled, repeat=n)][:200]]
    rules = "\n".join(f"s: {t.name} s | s s | {t.name}" for t in terminals if not t.ignored)
    built = compiled(
        grammar(terminals, f"{rules}\ns: "), Vocabulary.from_tokens(["<eos>", *tokens, *tokens[-9:], b""], 0)
    )
    place = {token: number for number, token in enumerate(built.vocabulary.tokens) if token}
    cuts = [(place[one], place[two], place[one + two]) for one, two in product(place, repeat=2) if one + two in place]
    states, alive = set[int](), 0
    for seed in range(8):
        for state, targets in walk(built, random.Random(seed), 6):
            found = [(built.advance(built.advance(state, one), two), int(targets[both])) for one, two, both in cuts]
            assert [end for end, _ in found] == [end for _, end in found], built.describe(state)
            states, alive = states | {state}, alive + sum(end != DEAD for end, _ in found)
    assert alive > 20 and len(states) > 1


TEXTS = {
    "arithmetic": ["(1+2*(3/-(4-5)))*6", "((((((((7))))))))", "1+2*3-4/5+--6"],
    "json": ['{"a": [1, {"b": [[[true]]]}, []], "c": null}', "[[[[[[[[0]]]]]]], {}]"],
    "c": [
        "int f(int a) { if (a) { while (b) { c = ((d + e[f(g, h)]) * 2 == 3) && k; } } else return (1); }",
        "void m() { a = b = c ? d[e[f[g]]] : (((((h))))); { { { ; } } } }",
    ],
    "sql": ["SELECT a.b, c FROM d JOIN e ON ((a.b = 1 AND (c < 2 OR d >= 'x'))) WHERE (((a = b))) ORDER BY c;"],
    # Right recursion, which is taken apart as a whole at its end, and a grammar that is not LALR(1).
    'start: "a" start | "b" "a" | "(" start ")"': ["aaaaaaa(aa(aaaba)"],
    'start: start "+" start | "a" | "(" start ")"': ["a+a+(a+(a+a)+a)"],
}
PIECES = [
    ")", "))", ");", "]", "]]", "}", "}}", "],", "+(", "*", " = ", " AND ", ") OR (", "(((", "(a", "a", "aa", "aaa", "1", "{", ", ",
]  # fmt: skip
PRINTED = Vocabulary.from_tokens(["<eos>", *dict.fromkeys([*map(chr, range(32, 127)), "\n", *PIECES])], 0)


def of_library(name: str) -> CFGGuide:
    return CFGGuide.of(read_grammar(name if name.startswith("start") else grammar_text(name)), PRINTED)


@pytest.mark.parametrize("kept", [None, 1])
@pytest.mark.parametrize("name", TEXTS)
def test_rows_and_distances_along_deep_texts(name: str, kept: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances from tops of stacks are those of tokens read from the whole stack, also where little is kept of it."""
    if kept is not None:
        monkeypatch.setattr(cfg_guide, "_TOP", kept)
        monkeypatch.setattr(cfg_guide, "_KEPT_TOPS", kept)
    built = of_library(name)
    for text in TEXTS[name]:
        states = [read(built, text[:place]) for place in range(0, len(text) + 1, 3)]
        assert DEAD not in states, text
        for state in states:
            assert_row(built, state)
        met = of_library(name)  # a guide that has met nothing is as far from the end
        assert met.min_tokens(read(met, text)) == built.min_tokens(read(built, text))


@pytest.mark.parametrize(
    ("name", "opening", "middle", "closing"), [("arithmetic", "(1+2*", "1", "-3)"), ("json", '[{"a":', "0", "}]")]
)
def test_a_deeper_stack_is_not_parsed_again(
    name: str, opening: str, middle: str, closing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, calls, shift = of_library(name), list[int](), Parser.shift
    shallow, deep = (opening * n + middle + closing * n for n in (8, 60))
    for place in range(len(shallow)):
        built.distances_after(read(built, shallow[:place]))
    states = [read(built, deep[:place]) for place in range(len(deep))]
    monkeypatch.setattr(Parser, "shift", lambda *given: calls.append(1) or shift(*given))
    for state in states:
        built.distances_after(state)
    assert not calls


TERMINALS = (
    (Terminal("A", "a"), Terminal("B", "b")),
    (Terminal("A", "a+"), Terminal("B", "b")),
    (Terminal("A", "a+"), Terminal("B", "ab")),
    (Terminal("A", "[ab]+"), Terminal("B", "b", literal=True)),
    (Terminal("A", "a+"), Terminal("B", "b"), Terminal("S", "_+", ignored=True)),
    (Terminal("A", "a(ba)?"), Terminal("B", "b"), Terminal("S", "_", ignored=True)),
)


@st.composite
def lexed(draw: st.DrawFn) -> Grammar:
    """Random grammars over terminals that overlap, that cannot stand side by side, that are cut by going back."""
    terminals, rules = draw(st.sampled_from(TERMINALS)), draw(grammars())
    shift = len(terminals) - 2
    moved = tuple(
        type(p)(p.head + shift, tuple(s if s < 2 else s + shift for s in p.body), p.line) for p in rules.productions
    )
    return Grammar(terminals, rules.nonterminals, moved, rules.start + shift)


tokens = st.lists(st.text("ab_", min_size=2, max_size=3), max_size=3, unique=True).map(
    lambda longer: vocabulary("a", "b", "_", *longer)
)


@fixed
@given(lexed(), tokens)
def test_any_grammar_over_any_vocabulary(rules: Grammar, letters: Vocabulary) -> None:
    try:
        built = compiled(rules, letters)
    except (EmptyLanguageError, GrammarError):
        definition = Definition(rules, "ab_")
        texts = ("".join(word) for n in range(1, 5) for word in product("ab_", repeat=n))
        assert not any(map(definition.is_member, texts))
        return
    assert_language(built, built.grammar, depth=4)
    assert_rows(built)
    assert_guide(built, limit=60, shortest=False)


def test_a_longer_lexeme_that_fails_on_the_only_way_to_the_end() -> None:
    """After ``a`` the lexer waits for ``abc``; that it is ``a`` and ``b`` only shows with the ``d``."""
    terminals = (Terminal("A", "a"), Terminal("ABC", "abc"), Terminal("B", "b"), Terminal("D", "d"))
    found = grammar(terminals, "s: A B D | s ABC A")
    built = compiled(found, vocabulary("a", "b", "c", "d", "bd"))
    assert_language(built, found, depth=6)
    assert built.min_tokens(built.start) == 4


@pytest.mark.parametrize("rules", ["value: NUM | LP NUM NUM RP | LP", "value: NUM | NUM RP"])
def test_the_definition_finds_what_is_left_open_or_out(rules: str) -> None:
    """The control: masks of another language are told apart, and dead ends that are left open."""
    dead = next(fixture for fixture in FIXTURES if fixture.id == "DEAD")
    built = compiled(grammar(dead.grammar.terminals, rules), dead.vocabulary)
    refused(None, assert_language, built, dead.grammar, depth=2, error=AssertionError)


def test_what_the_vocabulary_cannot_write_is_refused() -> None:
    empty = next(fixture for fixture in FIXTURES if fixture.empty)
    refused("no text of this output type", compiled, empty.grammar, empty.vocabulary, error=EmptyLanguageError)
    refused("with this vocabulary", lexemes_of, 'start: "é"', error=EmptyLanguageError)


def test_phrases_are_banned_from_a_grammar() -> None:
    calc, phrases = FIXTURES[0], BannedPhrases(["a+a", "aaa"])
    built, definition = banned(compiled(calc.grammar, calc.vocabulary), phrases), Definition(calc.grammar, "")
    free = is_free(phrases)
    expected = members(calc.vocabulary, 4, lambda text: free(text) and definition.is_member(text.decode()))
    assert_same(ended(built, 4), expected)
    assert any(b"+" in calc.vocabulary.decode(ids) for ids in expected)


ASCII = [chr(code) for code in (10, *range(0x20, 0x7F))]
KEYS = 'start: line+\nline: KEY ":" REST "\\n"\nKEY: /[a-z]+/\nREST: /[^\\n:]+/'


def lexemes_of(text: str, tokens: list[str] = ASCII) -> CFGGuide:
    return CFGGuide.of(read_grammar(text), vocabulary(*tokens))


def lark_accepts(lark: Lark, text: str) -> bool:
    try:
        lark.parse(text)
    except LarkError:
        return False
    return True


EXAMPLES = {
    "keys and values": (KEYS, ["name:nora\n", "name:Nora 7\n", "a:b\nc:D e\n"], ["Name:nora\n", "name:\n", "a:b"]),
    "one pattern": ('start: A "=" B\nA: /[a-z]+/\nB: /[a-z]+/', ["a=b", "ab=ab"], ["=b", "a=", "a=b=c"]),
    "crossing": (
        'start: A ":" B | B ";" C | C "." A\nA: /[ab]+/\nB: /[bc]+/\nC: /[ac]+|b/',
        ["b:b", "a:b", "b;b", "cb;ac", "b.b", "ac.ab"],
        ["a;b", "c:b", "ab:ab", "bb.a"],
    ),
    "csv": (
        "table: heading EOL row+\nheading: HASH GAP? (WORD GAP?)+\nrow: (cell GAP?)+ EOL\ncell: INT | WORD | OTHER | DECIMAL\n"
        'start: table\nHASH: "#"\nWORD: /[a-zA-Z]+/\nOTHER: /[a-zA-Z.;\\/]+/\nINT: /[0-9]+/\nDECIMAL: /[0-9]+\\.[0-9]+/\n'
        'GAP: / +/ | ","\nEOL: /\\n+/',
        ["# name age\nNora 34\n", "#a,b\nx.y,1.5\nz,2\n", "# a\nb/c d;e 3\n\n"],
        ["name age\nNora 34\n", "# a.b\nc\n", "# a\n", "# a\nb"],
    ),
    "sections": (
        'start: section+\nsection: "[" WORD "]" NL (setting | NL)*\nsetting: WORD "=" VALUE? NL\nWORD: /[a-z][a-z0-9]*/\n'
        "VALUE: /[^\\n=\\[\\] ]+/\nNL: /\\n/\n%ignore / +/",
        ["[a]\nb = c\n\nd=7.5\n", "[a]\nb=\n[c]\n", "[a]\nb=B\n"],
        ["b=c\n", "[A]\n", "[a]\nB=c\n", "[a]\nb=c"],
    ),
    "storage": (
        'start: (row | "{" GAP? pair ("," GAP? pair)* "}" EOL)+\npair: WORD ":" GAP? value\nvalue: WORD | NUM\n'
        "row: cell (BLANK cell)* EOL\ncell: WORD | LETTERS | NUM\nWORD: /[a-z]+/\nLETTERS: /[a-zA-Z.]+/\nNUM: /[0-9]+/\n"
        "BLANK: / +|\\t/\nGAP: /[ \\n]+/\nEOL: /\\n/",
        ["a b.C 1\n", "{a:  1, b:c}\n", "{ \na:b}\na\tb\n"],
        ["a\n\nb\n", "{a.b:1}\n", "{a:\t1}\n"],
    ),
    "comments": (
        'start: "module" NAME ";" statement* "endmodule"\nstatement: "assign" NAME "=" sum ";"\nsum: NAME ("&" NAME)*\n'
        "NAME: /[a-z_]+/\nLINE: /\\/\\/[^\\n]*/\nBLOCK: /\\/\\*([^*]|\\*+[^*\\/])*\\*+\\//\n%ignore LINE\n"
        "%ignore BLOCK\n%ignore /[ \\n]+/",
        ["module m; endmodule", "module m; // assign\nassign a = b & c; /* ** / */ endmodule"],
        ["module m endmodule", "module m; /* endmodule", "module m; assign a = b / c; endmodule"],
    ),
    "sql": (
        'start: "SELECT" [expr ","]* expr "FROM" NAME ["WHERE" expr "IN" "(" [expr ","]* expr ")"]\nexpr: NAME | INT | QUOTED\n'
        "NAME: /[a-z]+/\nINT: /[0-9]+/\nQUOTED: /'[^'\\n]*'/\n%ignore / +/",
        ["SELECT a FROM t", "SELECT a, 1, 'x y' FROM t WHERE a IN (1, 'b', c)", "SELECT a FROM t WHERE 1 IN (2)"],
        ["SELECT FROM t", "SELECT a, FROM t", "SELECT a FROM t WHERE a IN ()"],
    ),
}


REPEATS = {
    "an optional list": ('start: "(" [NUM ","]* NUM ")"\nNUM: /[0-9]/', ["(1)", "(1,2)"], ["()", "(1,)"]),
    "a repeat of what may be empty": ("start: (NUM?)+\nNUM: /[0-9]/", ["", "12"], ["a"]),
    "optional parts": ('start: (["a"] ["b"])*', ["", "ab", "bba"], ["c"]),
    "empty items": ('start: item*\nitem: "a"?', ["", "aa"], ["b"]),
    "a repeat of a repeat": ('start: ("a"*)*', ["", "aaa"], ["b"]),
    "equal parts": ('start: [a] [a]\na: "x"', ["", "x", "xx"], ["xxx"]),
    "rules that derive each other": ('start: a\na: b | "x"\nb: a | "y"', ["x", "y"], ["", "xy"]),
    "a rule that derives itself": ('start: start | "a" | start n\nn: "y"?', ["a", "ay", "ayy"], ["", "y", "aa"]),
}


TOO_MANY = "start: " + " ".join(f'["a{number}"]' for number in range(30))


@pytest.mark.parametrize("name", [*EXAMPLES, *REPEATS])
def test_examples(name: str) -> None:
    """Lark's Earley parser reads the first ones as well."""
    text, members, others = (EXAMPLES | REPEATS)[name]
    guide, samples = lexemes_of(text, [*ASCII, "\t"]), [*members, *others]
    expected = [sample in members for sample in samples]
    assert [accepts(guide, sample) for sample in samples] == expected
    if name in EXAMPLES:
        lark = Lark(text, parser="earley")
        assert [lark_accepts(lark, sample) for sample in samples] == expected


def test_limits() -> None:
    """A thousand strings are within them."""
    with limits(source=100), pytest.raises(UnsupportedError, match="source=1"):
        read_grammar('start: "a"' + " " * 100)
    with limits(states=100), pytest.raises(UnsupportedError, match="Write a smaller format"):
        lexemes_of(TOO_MANY)
    assert accepts(lexemes_of(TOO_MANY), "a3a7")
    assert accepts(lexemes_of("start: " + " | ".join(f'"{number:x}q"' for number in range(1000))), "3e7q")


CLASSES = ("[ab]", "[bc]", "b", "[abc]", "[ac]", "c")


def random_text(rng: random.Random) -> str:
    """A grammar whose terminals match single letters, so that lexers differ in nothing but which terminal a letter is."""
    names = [f"T{number}" for number in range(rng.randrange(2, 5))]
    symbols = [*names, "start", "x", "y"]

    def part() -> str:
        symbol = rng.choice(symbols if rng.random() < 0.5 else names)
        return rng.choice(["{}", "{}", "{}", "{}?", "({})?", "({})*", "{}+"]).format(symbol)

    def body() -> str:
        return " | ".join(" ".join(part() for _ in range(rng.randrange(1, 4))) for _ in range(rng.randrange(1, 4)))

    rules = [f"{head}: {body()}" for head in ("start", "x", "y")]
    rules[1] += f" | {rng.choice(names)}"
    return "\n".join([*rules, *(f"{name}: /{rng.choice(CLASSES)}/" for name in names)])


def random_grammars(count: int) -> Iterator[tuple[str, CFGGuide]]:
    rng = random.Random(39)
    while count:
        text = random_text(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GrammarWarning)
            try:
                yield text, lexemes_of(text, [*"abc"])
            except (EmptyLanguageError, GrammarError):  # no text, or the empty one alone
                continue
        count -= 1


def test_random_grammars_are_those_of_lark() -> None:
    words = ["".join(word) for length in range(4) for word in product("abc", repeat=length)]
    shared = lalr = taken = 0
    for text, guide in random_grammars(25):
        ours = {word for word in words if accepts(guide, word)}
        earley = Lark(text, parser="earley", maybe_placeholders=False)
        assert ours == {word for word in words if lark_accepts(earley, word)}, text
        shared += any(terminal.of for terminal in guide.grammar.terminals)
        taken += 0 < len(ours) < len(words)
        try:
            contextual = Lark(text, parser="lalr", maybe_placeholders=False)
        except LarkGrammarError:  # conflicts
            continue
        lalr += 1
        assert ours >= {word for word in words if lark_accepts(contextual, word)}, text
    assert shared > 12 and taken > 12 and lalr > 1


def test_joint_terminals_are_made_once_and_have_names() -> None:
    guide = lexemes_of(EXAMPLES["one pattern"][0])
    assert [terminal.name for terminal in guide.grammar.terminals if terminal.of] == ["A or B"]
    assert CFGGuide.of(guide.grammar, guide.vocabulary).grammar == guide.grammar


def test_a_priority_that_takes_texts_is_warned_of() -> None:
    with pytest.warns(GrammarWarning, match="Leave the priority of KEY out.*such as 'a' from REST") as caught:
        guide = lexemes_of(KEYS.replace("KEY:", "KEY.1:"))
    assert len(caught) == 1
    assert accepts(guide, "name:Nora 7\n") and not accepts(guide, "name:nora\n")
    lexemes_of("start: (A | B)+\nA.1: /a/\nB: /[ab]/")  # A may stand wherever B may
    lexemes_of('start: "if" NAME\nNAME: /[a-z]+/\n%ignore " "')  # strings come first, as everywhere


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('start: KEY "=" VALUE | "x"\nKEY: /[a-z]+/\nVALUE: /[^\\n]+/', "start: KEY EQUAL VALUE"),
        ('start: value | "x"\nvalue: KEY "=" VALUE\nKEY: /[a-z]+/\nVALUE: /[^\\n]+/', "value: KEY EQUAL VALUE"),
        ('start: "(" N inner* ")"\ninner: N | "+" N\nN: /[0-9]+/', None),  # some of it may come
        ('start: "if" NAME?\nNAME: /[a-z]+/\n%ignore " "', None),
        (KEYS, None),
    ],
)
def test_an_alternative_that_no_text_has_is_warned_of(text: str, said: str | None) -> None:
    """The lexer never emits two of its terminals side by side, and other alternatives are left."""
    model = from_transformers(*bundled.load())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Generator(model, read_grammar(text), phi="local")
    assert [said in str(one.message) for one in caught] == ([] if said is None else [True])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (KEYS.replace("REST:", "REST.1:"), "REST has all texts of KEY, and comes first"),
        (KEYS.replace("[^\\n:]", "[^\\n]"), "REST"),
        ('start: "(" N N ")"\nN: /[0-9]+/', "N cannot stand behind N, for the text of both is read as N"),
    ],
)
def test_an_empty_language_names_the_terminals(text: str, said: str) -> None:
    caught = refused("write the same rules in GBNF", lexemes_of, text, error=EmptyLanguageError)
    assert said in str(caught.value) and "vocabulary" not in str(caught.value)


def test_what_is_ignored_shares_no_text_with_what_is_used() -> None:
    text = "start: A EOL A\nA: /a/\nEOL: /\\n/\n%ignore /[ \\n]+/"
    refused(r"Leave texts such as '\\n' out of .*EOL.*`EOL.1: ...`.*is ignored", lexemes_of, text, error=GrammarError)
    refused(
        r"a name to put it on, as in `NAMED.1: /",
        lexemes_of,
        'start: "a" /#[a-z ]*/ "b"\n%ignore /#[a-z]*/',
        error=GrammarError,
    )


@pytest.mark.parametrize("count", [10, 12])
def test_lexers_that_are_too_large_are_refused_before_their_tables_are_made(count: int) -> None:
    terminals = [f"T{k}: /[a-z]*c[a-z]{{{k}}}n/" for k in range(1, count + 1)]
    names = " | ".join(f"T{k}" for k in range(1, count + 1))
    refused(r"limits\(states=[0-9]+\)", lexemes_of, "\n".join([f"start: {names}", *terminals]))
