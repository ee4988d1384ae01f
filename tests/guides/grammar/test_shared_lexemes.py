"""Texts that several terminals match are any of them that the rules can use, as Lark's Earley parser has it."""

import random
import warnings
from collections.abc import Iterator
from itertools import product

import pytest
from lark import Lark
from lark.exceptions import GrammarError as LarkGrammarError
from lark.exceptions import LarkError

from outlines_phi import EmptyLanguageError, Generator, GrammarError, UnsupportedError, from_transformers, limits
from outlines_phi.errors import GrammarWarning
from outlines_phi.guides import CFGGuide, read_grammar
from outlines_phi.lm import bundled
from tests.guides.grammar.fixtures import vocabulary
from tests.guides.walking import accepts

ASCII = [chr(code) for code in (10, *range(0x20, 0x7F))]
KEYS = 'start: line+\nline: KEY ":" REST "\\n"\nKEY: /[a-z]+/\nREST: /[^\\n:]+/'


def compiled(text: str, tokens: list[str] = ASCII) -> CFGGuide:
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
    guide, samples = compiled(text, [*ASCII, "\t"]), [*members, *others]
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
        compiled(TOO_MANY)
    assert accepts(compiled(TOO_MANY), "a3a7")
    assert accepts(compiled("start: " + " | ".join(f'"{number:x}q"' for number in range(1000))), "3e7q")


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
                yield text, compiled(text, [*"abc"])
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
    guide = compiled(EXAMPLES["one pattern"][0])
    assert [terminal.name for terminal in guide.grammar.terminals if terminal.of] == ["A or B"]
    assert CFGGuide.of(guide.grammar, guide.vocabulary).grammar == guide.grammar


def test_a_priority_that_takes_texts_is_warned_of() -> None:
    with pytest.warns(GrammarWarning, match="Leave the priority of KEY out.*such as 'a' from REST") as caught:
        guide = compiled(KEYS.replace("KEY:", "KEY.1:"))
    assert len(caught) == 1
    assert accepts(guide, "name:Nora 7\n") and not accepts(guide, "name:nora\n")
    compiled("start: (A | B)+\nA.1: /a/\nB: /[ab]/")  # A may stand wherever B may
    compiled('start: "if" NAME\nNAME: /[a-z]+/\n%ignore " "')  # strings come first, as everywhere


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
    with pytest.raises(EmptyLanguageError, match="write the same rules in GBNF") as caught:
        compiled(text)
    assert said in str(caught.value) and "vocabulary" not in str(caught.value)


def test_a_language_that_the_vocabulary_cannot_write_says_so() -> None:
    with pytest.raises(EmptyLanguageError, match="with this vocabulary"):
        compiled('start: "é"')


def test_what_is_ignored_shares_no_text_with_what_is_used() -> None:
    text = "start: A EOL A\nA: /a/\nEOL: /\\n/\n%ignore /[ \\n]+/"
    with pytest.raises(GrammarError, match=r"Leave texts such as '\\n' out of .*EOL.*`EOL.1: ...`.*is ignored"):
        compiled(text)
    with pytest.raises(GrammarError, match=r"a name to put it on, as in `NAMED.1: /"):
        compiled('start: "a" /#[a-z ]*/ "b"\n%ignore /#[a-z]*/')


@pytest.mark.parametrize("count", [10, 12])
def test_lexers_that_are_too_large_are_refused_before_their_tables_are_made(count: int) -> None:
    terminals = [f"T{k}: /[a-z]*c[a-z]{{{k}}}n/" for k in range(1, count + 1)]
    names = " | ".join(f"T{k}" for k in range(1, count + 1))
    with pytest.raises(UnsupportedError, match=r"limits\(states=[0-9]+\)"):
        compiled("\n".join([f"start: {names}", *terminals]))
