"""GBNF is read as llama.cpp reads it; the grammars that come with the package describe what their names say."""

import json
import math
import re
import sqlite3
import warnings
from contextlib import closing
from functools import cache, lru_cache
from itertools import product
from pathlib import Path

import pytest
from lark import Lark
from lark.exceptions import LarkError
from outlines import grammars

from outlines_phi import EmptyLanguageError, GrammarError, Vocabulary
from outlines_phi.errors import GrammarWarning
from outlines_phi.guides import CFGGuide, read_grammar
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.grammar.notation import reader
from outlines_phi.guides.grammar.notation.gbnf import read_gbnf
from outlines_phi.guides.grammar.shared_lexemes import told_apart_by_rules
from tests.guides.grammar.definition import Definition
from tests.guides.grammar.fixtures import vocabulary
from tests.guides.grammar.gbnf_grammars import GRAMMARS, ends, random_grammar
from tests.guides.grammar.test_cfg_guide import assert_language
from tests.guides.walking import accepts
from tests.refusals import refused

NOTATION: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "literals": (r'root ::= "a\"\\\n\t\r\[\]\-" "\x41\u00e9\U0001F600"', ('a"\\\n\t\r[]-Aé😀',), ("a",)),
    "empty literal": ('root ::= "" "a" ""', ("a",), ("",)),
    "classes": (r"root ::= [a-c\]\-x-] [^\n\-\u0100-\U0010FFFF]", ("aé", "]a", "--"[:1] + "b"), ("d1", "a\n", "aĀ", "a-")),
    "ranges that overlap": ("root ::= [a-fc-hb] [^a-fc-h]", ("hi", "az"), ("ii", "ah")),
    "any character": ("root ::= . .", ("\n😀", "a\0"), ("a", "abc")),
    "repeats": (
        'root ::= "a"* "b"+ "c"? "d"{2} "e"{1,} "f"{0,2} "g"{1,2}',
        ("bddeg", "aabbcddeeffgg"),
        ("ddeg", "bdeg", "bddefffg", "bddeggg"),
    ),
    "a repeat is of the whole literal": ('root ::= "ab"{2} "c"', ("ababc",), ("abbc",)),
    "repeats of repeats": ('root ::= "a"{2}* "b"?+', ("", "aaaab", "bbb"), ("ab",)),
    "groups": ('root ::= ("a" | "b" "c")+ (\n\n | # nothing\n "d")', ("abcd", "bc"), ("ac", "")),
    "nothing": ('root ::= | "a"\n', ("", "a"), ("aa",)),
    "lines go on": ('root ::=\n\n  "a" |\r\n # or\n "b"\n', ("a", "b"), ("ab",)),
    "names": ('root ::= a-1_B a-1_B?\n\na-1_B ::= "x" # no more\n', ("x", "xx"), ("a-1_B",)),
    "no blanks are needed": ('root::=a"b"(a)\na::="a"', ("aba",), ("ab",)),
    "blanks in bounds": ('root ::= "a"{ 1 , 2 }', ("a", "aa"), ("aaa",)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*NOTATION, *GRAMMARS])
def test_the_language(name: str) -> None:
    text, members, others = (NOTATION | GRAMMARS)[name]
    rules = read_gbnf(text, ("root",))
    definition = Definition(told_apart_by_rules(read_grammar(text, dialect="gbnf")), "")
    for sample in (*members, *others):
        assert (len(sample) in ends(rules, "root", sample)) == (sample in members), sample
        assert definition.is_member(sample) == (sample in members), sample


REFUSED = {
    "no rule": ("# nothing\n", "there is no rule 'root'", 1, 1),
    "another start": ('rot ::= "a"', "did you mean 'rot'", 1, 1),
    "not defined": ('root ::= "a" itm\nitem ::= "b"', "rule 'itm' is not defined; did you mean 'item'", 1, 14),
    "defined twice": ('root ::= "a"\nroot ::= "b"', "defined twice", 2, 1),
    "no name": ('root ::= "a"\n::= "b"', "name of a rule is expected", 2, 1),
    "Lark": ('root: "a"', "`::=` is expected", 1, 5),
    "a line that ends": ('root ::= "a"\n  "b"', "name of a rule is expected", 2, 3),
    "what follows a rule": ('root ::= "a" ) "b"', "a rule ends here", 1, 14),
    "open group": ('root ::= ("a" | ("b")', "group is not closed", 1, 10),
    "group": ('root ::= ("a" = "b")', r"`\)` is expected", 1, 15),
    "open string": ('root ::= "a', 'string is not closed; add `"`', 1, 10),
    "open class": ("root ::= [a-", "class of characters is not closed; add `]`", 1, 10),
    "unknown escape": (r'root ::= "a\d"', "escape is not known", 1, 12),
    "short escape": (r'root ::= "\x4"', "escape is not known", 1, 11),
    "no code point": (r'root ::= "\U00110000"', "no character of this code point", 1, 11),
    "a surrogate": (r'root ::= "\uD800"', "lone surrogate", 1, 11),
    "empty class": ("root ::= []", "class has no character", 1, 10),
    "class of nothing": (r"root ::= [^\x00-\U0010FFFF]", "class has no character", 1, 10),
    "a range upside down": ("root ::= [az-b]", "range is empty", 1, 12),
    "nothing to repeat": ('root ::= | * "a"', "nothing to repeat", 1, 12),
    "bounds": ('root ::= "a"{,2}', "repeats are written", 1, 13),
    "bounds upside down": ('root ::= "a"{3,2}', "at least 3 and at most 2", 1, 13),
    "a wrong number": ('root ::= "a"\nx ::= <[1000-]>', "Name the special tokens", 2, 7),
    "an open token": ("root ::= <think .*", "a special token is written `<name>`", 1, 10),
    "not a token": ("root ::= !<[7]>*", "a negated token would be any other token", 1, 10),
    "zero": ('root ::= "\0"', r"written `\\x00`", 1, 11),
    "too deep": (f"root ::= {'(' * 200}{')' * 200}", "groups are inside each other", 1, 160),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_pointed_at(name: str) -> None:
    text, message, line, column = REFUSED[name]
    caught = refused(message, read_grammar, text, dialect="gbnf", error=GrammarError)
    assert caught.value.position is not None
    before = caught.value.source[: caught.value.position]
    assert (before.count("\n") + 1, len(before) - before.rfind("\n")) == (line, column)
    assert f"line {line}" in str(caught.value)


def test_rules_that_are_too_large() -> None:
    refused(
        r"more than 50,000 symbols.*'root' in line 2",
        read_grammar,
        '\nroot ::= ("(" root ")"){60000}',
        dialect="gbnf",
        error=GrammarError,
    )
    chain = "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(3000))
    refused(
        "nested too deeply", read_grammar, f'root ::= r0\n{chain}\nr3000 ::= "a"', dialect="gbnf", error=GrammarError
    )


def test_rules_of_no_use() -> None:
    with pytest.warns(GrammarWarning, match="'root' does not need are left out: 'x', 'y'"):
        read_grammar('root ::= "a"\nx ::= y\ny ::= x', dialect="gbnf")
    with pytest.warns(GrammarWarning, match="rules that never end are left out.*'x'"):
        read_grammar('root ::= "a" | x\nx ::= "b" x', dialect="gbnf")
    refused("'root' derives no text", read_grammar, 'root ::= "a" root', dialect="gbnf", error=EmptyLanguageError)


def test_another_start_and_several() -> None:
    text = 'a ::= "a" b?\nb ::= "b"'
    for start, members in {("a",): ["a", "ab"], ("a", "b"): ["a", "ab", "b"]}.items():
        definition = Definition(read_grammar(text, start, dialect="gbnf"), "")
        assert [sample for sample in ("", "a", "ab", "b", "bb") if definition.is_member(sample)] == members
    refused("no rule 'c'", read_grammar, text, ("a", "c"), dialect="gbnf", error=GrammarError)


def test_files_and_dialects(tmp_path: Path) -> None:
    gbnf, lark = tmp_path / "list.gbnf", tmp_path / "list.lark"
    gbnf.write_text('root ::= "a"', encoding="utf-8")
    lark.write_text('start: "a"', encoding="utf-8")
    assert read_grammar(gbnf) == read_grammar('root ::= "a"', dialect="gbnf")
    assert read_grammar(lark) == read_grammar(lark.read_text(), dialect="lark")
    refused("are GBNF, the dialect of llama.cpp", read_grammar, gbnf, dialect="lark", error=GrammarError)
    refused("there is no dialect 'ebnf'", read_grammar, 'root ::= "a"', dialect="ebnf")
    refused("cannot be read", read_grammar, tmp_path / "none.gbnf")
    gbnf.write_bytes(b'root ::= "\xe9"')
    refused("Save it as UTF-8", read_grammar, gbnf)


LETTERS = vocabulary(*"abc")
WORDS = ["".join(word) for length in range(5) for word in product("abc", repeat=length)]


def random_grammars(first: int, last: int) -> dict[str, Grammar]:
    found = {}
    for seed in range(first, last):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GrammarWarning)
            try:
                text = random_grammar(seed)
                found[text] = read_grammar(text, dialect="gbnf")
            except EmptyLanguageError:
                pass
    return {text: grammar for text, grammar in found.items() if grammar.terminals}


def members(grammar: Grammar) -> list[str]:
    guide = CFGGuide.of(grammar, LETTERS)
    return [word for word in WORDS if accepts(guide, word)]


@cache
def derived(text: str) -> list[str]:
    rules = read_gbnf(text, ("root",))
    return [word for word in WORDS if len(word) in ends(rules, "root", word)]


def test_random_grammars_derive_what_they_say() -> None:
    grammars = random_grammars(0, 40)
    for text, grammar in grammars.items():
        assert members(grammar) == derived(text), text
    assert len(grammars) > 20


def test_pieces_may_share_texts_and_rules_without_recursion_are_one_regular_expression() -> None:
    text = 'root ::= root x root | root y | "c"\nx ::= "ab" | "bb"\ny ::= "ab" | "aa"'
    assert members(read_grammar(text, dialect="gbnf")) == derived(text)
    assert read_grammar('root ::= x{2} "c"\nx ::= [ab]', dialect="gbnf").alone is not None
    assert read_grammar("root ::= x{2}\nx ::= [ab]?", dialect="gbnf").alone is not None
    assert read_grammar('root ::= "(" root ")" | "a"', dialect="gbnf").alone is None
    assert read_grammar('start: "a" B\nB: "b"').alone is None
    assert read_grammar('start: A?\nA: "b"+\n%ignore " "').alone is None
    grammar = read_grammar('root ::= "(" x ")"\n\nx ::= "a" root | "b"', dialect="gbnf")
    assert {grammar.name(p.head): p.line for p in grammar.productions} == {"root": 1, "x": 3}


def test_masks_of_random_grammars() -> None:
    tokens = vocabulary(*"abc", "ab", "ba", "cab", "bcb")
    for grammar in random_grammars(60, 72).values():
        guide = CFGGuide.of(grammar, tokens)
        assert_language(guide, guide.grammar, 2)


SINGLE = Vocabulary.from_tokens(["<eos>", *(bytes([byte]) for byte in range(256))], 0)
ALL = (*reader.NAMES, "dyck-1", "dyck-3", "dyck-10")


@lru_cache
def oracle(name: str) -> Lark:
    """Lark's own parser, which refuses what is not LALR(1) and terminals that collide."""
    return Lark(reader.grammar_text(name), parser="lalr", lexer="basic", strict=True)


def is_member(name: str, text: str) -> bool:
    try:
        oracle(name).parse(text)
    except LarkError:
        return False
    return True


@pytest.mark.parametrize("name", ALL)
def test_a_grammar_is_lalr_and_has_nothing_useless(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grammar = read_grammar(reader.grammar_text(name))
    assert grammar.reduced() == grammar
    assert oracle(name).rules


def test_every_file_has_a_name() -> None:
    folder = Path(reader.__file__).parents[1] / "library"
    assert sorted(path.stem for path in folder.glob("*.lark")) == sorted(reader.NAMES)


MEMBERS = {
    "arithmetic": ["1", "1+2*-3", "( 1.5 - .5 ) / 2e3", "--1"],
    "c": [
        "",
        "int x;",
        "int main() { return 0; }",
        "const char *s = \"a\\n\", t[3] = {'a', '\\0'};",
        "struct p { int x; struct p *next; };",
        "void f(int a, float *b) { for (int i = 0; i < 10; i++) { a += b[i] * 2; } while (a) --a; }",
        "int f(void *p) { if (p) if (!p) return 1; else return 2; do ; while (0); return (int)*p + sizeof(int*); }",
        "int f() { x = y ? a.b->c(1, 2)[3] : ~d << 2 & 7; /* comment * / */ // more\n break; continue; }",
        "int i = 0x1F, iffy = ifx, intx;",
    ],
    "lean": [
        "theorem t : 1 + 1 = 2 := by\n  rfl\n",
        "theorem and_comm' {p q : Prop} (h : p ∧ q) : q ∧ p := by\n"
        "  obtain ⟨hp, hq⟩ := h\n  constructor\n  · exact hq\n  · exact hp\n",
        "lemma add_zero (n : ℕ) : n + 0 = n := Nat.add_zero n\n"
        "example : ∀ x : ℕ, ∃ y, x ≤ y := by\n  intro x\n  use x\n",
        "theorem t (n : Nat) : 0 + n = n := by\n  induction n with\n"
        "  | zero => rfl\n  | succ k ih => rw [← Nat.add_succ, ih] at ⊢\n",
        "example (p : Prop) : ¬¬p → p := fun h => by_cases' h\n",
        "theorem t : a → b ↔ c := by\n  have h : x = y := by simp [foo, ← bar] at h₁ h₂ <;> omega\n",
        "\ntheorem introduction (exactly : p) : p := by\n  exact exactly\n\n",
    ],
    "sql": [
        "SELECT * FROM t",
        "select a, b as c, t.a, t.* from t where a = 1;",
        "SELECT DISTINCT count(*), count(DISTINCT u.a), max(v.a, 1) FROM t AS u LEFT OUTER JOIN s AS v ON u.a = v.a CROSS JOIN t",
        "SELECT t.a FROM t INNER JOIN s ON t.a = s.a WHERE t.b > 1 AND NOT t.b IN (1, 2)",
        "SELECT a FROM t WHERE t.b IN (1) OR t.b BETWEEN 1 AND 2 + 3 AND t.a IS NOT NULL",
        "SELECT a, count(*) FROM t WHERE b LIKE 'x%''y' GROUP BY a, b "
        "HAVING count(*) > 2 ORDER BY a DESC, b ASC, a + b LIMIT 3 OFFSET 2",
        "SELECT x.a FROM (SELECT a FROM t UNION ALL SELECT b FROM s) AS x",
        "SELECT CASE WHEN a <> 1 THEN 'one' WHEN a <= 2 THEN 2.5 ELSE -a END, (SELECT max(a) FROM s), \"a\" FROM t",
        "SELECT a FROM t WHERE EXISTS (SELECT * FROM s WHERE s.a NOT IN (SELECT b FROM t)) AND b NOT BETWEEN 1 AND 2",
        "SELECT a || 'x' || b, -a * (b + 2) % 3 / 4 FROM t WHERE a NOT LIKE 'b'",
        "INSERT INTO t VALUES (1, 'a'), (NULL, TRUE)",
        "insert into t (a, b) values (1 + 2, 'b')",
        "INSERT INTO t (a, b) SELECT a, b FROM s",
        "UPDATE t SET a = a + 1, b = 'x' WHERE a >= 1 OR b = 'y'",
        "DELETE FROM t WHERE a IN (1, 2)",
        "DELETE FROM t;",
    ],
}
OTHERS = {
    "arithmetic": ["", "1+", "(1", "1 2", "a", "1\n+2"],
    "c": [
        "int",
        "int x",
        "int int;",
        "int f() { return }",
        "int f() { if (x) else y; }",
        "int f(",
        "/* open",
        "x = 1;",
    ],
    "lean": [
        "",
        "theorem t : 1 = 1 := by\n",
        "theorem t : 1 = 1 := by\n  rfl",
        "theorem t := by\n  rfl\n",
        "theorem theorem : p := by\n  rfl\n",
        "theorem t : p := by\n  exact exact\n",
        "theorem t : p := by rfl\n",
        "theorem t : p := by\n  cases h with\n",
    ],
    "sql": [
        "",
        "SELECT",
        "SELECT FROM t",
        "SELECT a FROM",
        "SELECT a,, b FROM t",
        "SELECT a FROM t WHERE",
        "SELECT a FROM t ORDER a",
        "SELECT select FROM t",
        "INSERT INTO t",
        "INSERT t VALUES (1)",
        "UPDATE t SET a",
        "UPDATE SET a = 1",
        "DELETE t",
        "SELECT a FROM t JOIN",
        "SELECT (a FROM t",
        "SELECT 'a FROM t",
        "SELECT a FROM t; SELECT b FROM t",
    ],
}


def is_sql(text: str) -> bool:
    """Return True if SQLite can prepare the statement."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript("CREATE TABLE t (a, b); CREATE TABLE s (a, b);")
        try:
            return bool(database.execute(f"EXPLAIN {text}"))
        except (sqlite3.Error, sqlite3.Warning):
            return False


@pytest.mark.parametrize("name", MEMBERS)
def test_members_and_others(name: str) -> None:
    """A database says the same of SQL, and a guide over single bytes of all."""
    texts, expected = [*MEMBERS[name], *OTHERS[name]], [True] * len(MEMBERS[name]) + [False] * len(OTHERS[name])
    assert [is_member(name, text) for text in texts] == expected
    assert name != "sql" or list(map(is_sql, texts)) == expected
    guide = CFGGuide.of(read_grammar(reader.grammar_text(name)), SINGLE)
    assert [accepts(guide, text.encode()) for text in texts] == expected


def test_lean_names_are_not_keywords_and_unicode_is_read() -> None:
    lexed = list(oracle("lean").lex("exact exactly at at₁ ∀ ←"))
    assert [str(token) for token in lexed] == ["exact", "exactly", "at", "at₁", "∀", "←"]
    assert [token.type for token in lexed if token.type.isalpha()] == ["EXACT", "NAME", "AT", "NAME"]


PIECES = ["{", "}", "[", "]", ",", ":", '"a"', "1", "null"]


def test_json_is_what_json_readers_read() -> None:
    """All words of five pieces; and numbers and strings at their edges."""
    edges = [
        "-0", "01", "1.", ".5", "+1", "1e5", "1E+05", "-", '"\\u00e9"', '"\\u12"', '"\\x"', '"\\/"', '"\t"', '"\x7f"', '"',
        '"é"', " 1\n", "\f1",
    ]  # fmt: skip
    words = ["".join(word) for length in range(6) for word in product(PIECES, repeat=length)]
    found = 0
    for text in [*edges, *words]:
        try:
            json.loads(text)
            expected = True
        except ValueError:
            expected = False
        assert is_member("json", text) is expected, text
        found += expected
    assert found > 30


def test_json_and_arithmetic_have_the_rules_of_outlines() -> None:
    def productions(text: str) -> set[str]:
        grammar = read_grammar(text)
        names = {"ESCAPED_STRING": "STRING", "SIGNED_NUMBER": "NUMBER"}
        described = (grammar.describe(production).split(" ") for production in grammar.productions)
        return {" ".join(names.get(symbol, symbol) for symbol in symbols) for symbols in described}

    assert productions(reader.grammar_text("json")) == productions(grammars.json)
    assert read_grammar(reader.grammar_text("arithmetic")).terminals == read_grammar(grammars.arithmetic).terminals
    assert productions(reader.grammar_text("arithmetic")) == productions(grammars.arithmetic)


def is_balanced(word: str, pairs: tuple[str, ...]) -> bool:
    pattern = "|".join(map(re.escape, pairs))
    while word != (word := re.sub(pattern, "", word)):
        pass
    return not word


@pytest.mark.parametrize(("kinds", "longest"), [(1, 10), (2, 6), (3, 4)])
def test_dyck_words(kinds: int, longest: int) -> None:
    """As many as Catalan numbers say."""
    pairs = reader.BRACKETS[:kinds]
    for length in range(longest + 1):
        words = ["".join(word) for word in product("".join(pairs), repeat=length)]
        members = [word for word in words if is_member(f"dyck-{kinds}", word)]
        assert members == [word for word in words if is_balanced(word, pairs)]
        half = length // 2
        assert len(members) == (0 if length % 2 else kinds**half * math.comb(2 * half, half) // (half + 1))


@pytest.mark.parametrize(
    ("name", "words"),
    [("jsn", "did you mean 'json'"), ("x", "There are arithmetic"), ("dyck-0", "1 to 10"), ("dyck-11", "1 to 10")],
)
def test_a_grammar_that_is_not_there(name: str, words: str) -> None:
    refused(words, reader.grammar_text, name)
