"""The grammars that come with the package describe what their names say, and every one is LALR(1)."""

import json
import math
import re
import sqlite3
import warnings
from contextlib import closing
from functools import lru_cache
from itertools import product
from pathlib import Path

import pytest
from lark import Lark
from lark.exceptions import LarkError
from outlines import grammars

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.guides import CFGGuide, read_grammar
from outlines_phi.guides.grammar.notation import reader
from tests.guides.walking import accepts

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
    with pytest.raises(UnsupportedError, match=words):
        reader.grammar_text(name)
