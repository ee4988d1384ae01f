"""Grammars in GBNF as llama.cpp's users write them, with texts of each; and what a rule derives, by the definition."""

import random
from collections.abc import Mapping

from outlines_phi.guides.grammar.notation.lowering import GrammarRule
from outlines_phi.regex.code_automaton import contains
from outlines_phi.regex.syntax_tree import Chars, Choice, Node, Repeat, RuleName, Sequence

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# by convention, behind every literal
ws ::= | " " | "\n" [ \t]{0,20}
"""

JSON_ARRAY = JSON.replace("root   ::= object", 'root   ::= arr\narr ::= "[\\n" ws (value (",\\n" ws value)*)? "]"')

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""

LIST = r"""
root ::= item+
# no line break of any kind in an item
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""

CHESS = r"""
root ::= (
    # two moves, numbered
    "1. " move " " move "\n"

    # and more of them
    ([1-9] [0-9]? ". " move " " move "\n")+
)
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""

ENGLISH = r"""
root ::= en-char+ ([ \t\n] en-char+)*
en-char ::= letter | digit | punctuation
letter ::= [a-zA-Z]
digit ::= [0-9]
punctuation ::= [!"#$%&'()*+,-./:;<=>?@[\\\]^_`{|}~]
"""

JAPANESE = """
root ::= jp-char+ ([ \\t\\n] jp-char+)*
jp-char ::= hiragana | katakana | punctuation | cjk
hiragana ::= [ぁ-ゟ]
katakana ::= [ァ-ヿ]
punctuation ::= [、-〾]
cjk ::= [一-鿿]
"""

C = r"""
root ::= declaration*
declaration ::= dataType identifier "(" parameter? ")" "{" statement* "}"
dataType ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= dataType identifier
statement ::=
    ( dataType identifier ws "=" ws expression ";" ) |
    ( identifier ws "=" ws expression ";" ) |
    ( identifier ws "(" argList? ")" ";" ) |
    ( "return" ws expression ";" ) |
    ( "while" "(" condition ")" "{" statement* "}" ) |
    ( "for" "(" forInit ";" ws condition ";" ws forUpdate ")" "{" statement* "}" ) |
    ( "if" "(" condition ")" "{" statement* "}" ("else" "{" statement* "}")? ) |
    ( singleLineComment ) |
    ( multiLineComment )
forInit ::= dataType identifier ws "=" ws expression | identifier ws "=" ws expression
forUpdate ::= identifier ws "=" ws expression
condition ::= expression relationOperator expression
relationOperator ::= ("<=" | "<" | "==" | "!=" | ">=" | ">")
expression ::= term (("+" | "-") term)*
term ::= factor(("*" | "/") factor)*
factor ::= identifier | number | unaryTerm | funcCall | parenExpression
unaryTerm ::= "-" factor
funcCall ::= identifier "(" argList? ")"
parenExpression ::= "(" ws expression ws ")"
argList ::= expression ("," ws expression)*
number ::= [0-9]+
singleLineComment ::= "//" [^\n]* "\n"
multiLineComment ::= "/*" ( [^*] | ("*" [^/]) )* "*/"
ws ::= ([ \t\n]+)
"""

GRAMMARS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "json": (
        JSON,
        ('{"a": [1, -2.5e3 , {"é\\u00e9": null}], "b":"x\\"y"}', "{}", '{\n\t"a":true}'),
        ("[1]", '{"a":  1}', '{"a":01}', '{"a":1', '{"a" :1}}', '{"a":"\t"}'),
    ),
    "json array": (JSON_ARRAY, ('[\n1,\n"a"]', "[\n]"), ("[1]", "[\n1,2]")),
    "arithmetic": (
        ARITHMETIC,
        ("x_1+2*(y )=7\n", "a=1\n\nb=2\n", "a \n=\t(2)\n\n"),
        ("a=1", "A=1\n", "a=1+2\n", "1a=1\n"),
    ),
    "list": (LIST, ("- a\n- b c\n", "- - \n"), ("-a\n", "- \n", "- a", "- a\u2028\n", "- a\r\n")),
    "chess": (CHESS, ("1. e4 e5\n2. Nf3 Nc6\n", "1. exd5 O-O\n12. O-O-O h8=Q#\n"), ("1. e4 e5\n", "1. e9 e5\n2. e4 e5\n")),
    "english": (ENGLISH, ("Hi, you [all]!", "a\nb"), (" a", "a  b", "é", "")),
    "japanese": (JAPANESE, ("ひらがな カタカナ。", "日本"), ("a", "日  本", "")),
    "c": (
        C,
        ("", "int f(){}", "int  main(int x){int y = x*2;while(y<=3){y = f(1, -y);}return ( g() );}", "char f(){/* a*b */}"),
        ("intf(){}", "int f(){return 1}", "int f(){x=1;}", "int f(){/* a **/}", "int 1f(){}"),
    ),
    "palindromes": ('root ::= "a" root "a" | "b" root "b" | [ab]?', ("", "a", "abba", "ababa"), ("ab", "abb", "c")),
    "left recursion": ('root ::= root "+" root | [0-9]', ("1", "1+2+3"), ("", "1+", "+1")),
    "repeats that may be empty": ('root ::= ("a"? ("(" root ")")?)*', ("", "aa", "a()(a)a"), ("(", "b")),
    "keywords are names": (
        'root ::= stmt+\nstmt ::= "if" " " name "{" stmt* "}" | name ";"\nname ::= [a-z]+',
        ("if if{if;}", "iff;", "if a{}"),
        ("if {}", "ifa{}"),
    ),
}  # fmt: skip
"""By name, a grammar, texts that it derives, and others."""


def ends(rules: Mapping[str, GrammarRule], start: str, text: str) -> set[int]:
    """Return the ends in ``text`` of the words of ``start``: the least solution of the notation's equations, place by place."""
    found: dict[tuple[str, int], set[int]] = {(rule, at): set() for rule in rules for at in range(len(text) + 1)}

    def all_of(part: Node, places: set[int]) -> set[int]:
        return {end for at in places for end in after(part, at)}

    def after(part: Node, at: int) -> set[int]:
        match part:
            case Chars(points):
                return {at + 1} if (at < len(text) and contains(points, ord(text[at]))) else set()
            case RuleName(rule):
                return set(found[rule, at])
            case Choice(alternatives):
                return {end for each in alternatives for end in after(each, at)}
            case Sequence(parts):
                places = {at}
                for each in parts:
                    places = all_of(each, places)
                return places
            case Repeat(repeated, least, most):
                places = {at}
                for _ in range(least):
                    places = all_of(repeated, places)
                reached, rounds = places, least
                while places and rounds != most:
                    places = all_of(repeated, places) - reached
                    reached, rounds = reached | places, rounds + 1
                return reached

    changed = True
    while changed:
        changed = False
        for (rule, at), known in found.items():
            new = after(rules[rule].body, at) - known
            known |= new
            changed = changed or bool(new)
    return found[start, 0]


def random_grammar(seed: int) -> str:
    """The text of a small grammar over ``a``, ``b``, ``c``, most of them recursive and ambiguous."""
    dice = random.Random(seed)
    names = ["root", "x", "y-1"][: dice.randint(1, 3)]
    pieces = ['"a"', '"b"', '"c"', "[ab]", "[^a]", '"ab"', '"ba"', '""', ".", "[a-c]", *names * 5]

    def part(depth: int) -> str:
        kind = dice.random() if depth else 0
        if kind < 0.3:
            return dice.choice(pieces)
        if kind < 0.55:
            return " ".join(part(depth - 1) for _ in range(dice.randint(1, 3)))
        if kind < 0.75:
            return f"({' | '.join(part(depth - 1) for _ in range(dice.randint(2, 3)))})"
        return f"({part(depth - 1)}){dice.choice(['*', '+', '?', '{2}', '{1,2}', '{2,}', '{0,2}'])}"

    return "\n".join(
        f"{name} ::= {' | '.join(part(dice.randint(1, 3)) for _ in range(dice.randint(1, 3)))}" for name in names
    )
