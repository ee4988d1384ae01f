"""Notation that is not read is refused, with line, column and caret; captures are those that guidance has."""

import pytest

from outlines_phi import EmptyLanguageError, GrammarError, UnsupportedError
from outlines_phi.guides.guidance.guidance_grammar import GuidanceGrammar
from outlines_phi.guides.guidance.guidance_rules import GuidanceRules
from tests.guides.guidance.oracle import HEADER, RECORDED

REFUSED = [
    ('start: "a', 2, 8, "this is not expected here, in llguidance's dialect"),
    ('start "a"', 2, 7, "this is not expected here"),
    ("start: (", 2, 8, "this is not expected here"),
    ('start: "a"{2,1}', 2, 12, "a repeat takes two whole numbers"),
    ('start: "a"~1.5', 2, 12, "a repeat takes two whole numbers"),
    ('start: "a"\nstart: "b"', 3, 1, "'start' is defined twice; remove one"),
    ('x: "a"', 2, 1, "there is no rule `start`"),
    ("start: x", 2, 8, "'x' is not defined; define it"),
    ("start: X", 2, 8, "'X' is not defined; define it"),
    ("start: A\nA: B\nB: A", 4, 4, "terminal 'A' uses itself"),
    ("start: A\nA: b\nb: /x/", 3, 4, "rule 'b' cannot be a part of one lexeme"),
    ('start: x\nx[lazy]: %json {"type": "null"}', 3, 16, "this cannot be a part of one lexeme"),
    ("start: A\nA[lazy]: /a/", 3, 1, "a terminal has no attributes"),
    ("start: x\nx[foo=1]: /a/", 3, 3, "the attribute 'foo' is not known; there are capture, max_tokens"),
    ("start: x\nx[max_tokens]: /a/", 3, 3, "the attribute 'max_tokens' takes a NUMBER"),
    ("start: x\nx[lazy=3]: /a/", 3, 3, "the attribute 'lazy' takes no value"),
    ("start: x\nx[stop=3]: /a/", 3, 3, "the attribute 'stop' takes a"),
    (
        "start: x\nx[max_tokens=3]: /a+/",
        3,
        3,
        'bound the regular expression, as in regex="[a-z]{0,20}", or give max_new_tokens=',
    ),
    ('start: e\ne: x | e e\nx[max_tokens=3, stop=";"]: /a+/', 4, 3, "and leave `max_tokens` out here"),
    ("start: x\nx[temperature=0.5]: /a/", 3, 3, "give temperature= to the call"),
    ('start: x\nx[stop=""]: /a/', 3, 3, "the end of sequence alone would end it"),
    ('start: x\nx[stop="a", suffix="b"]: /a/', 3, 13, "`stop` and `suffix` cannot be used together"),
    ('start: x\nx[stop_capture="a"]: /a/', 3, 3, "`stop_capture` needs `stop` or `suffix`"),
    ("start: x\nx[stop=/a+/]: /b/", 3, 3, "what ends this may be more than 1000 texts"),
    ("start: x\nx[stop=/b|ab/]: /c/", 3, 3, "'b' and 'ab' both end this"),
    ('start: x "b"\nx[stop="c"]: /[abc]*/', 3, 1, "or use suffix='c', which stays in the text"),
    ('start: x ("c" | "")\nx[stop="c"]: /[ab]*/', 3, 1, "Let what follows begin with it, as in gen(stop='c') + 'c'"),
    ('start: x* "c"\nx[stop="c"]: /a*/', 3, 1, "is taken away, and something else may follow"),
    ('start: x "ab"\nx[stop=/a|b/]: /c*/', 3, 1, "the text 'b' ends this, is taken away"),
    ("start: <[*]>", 2, 8, "Name the special tokens, or give at most"),
    ('start: X\nX: "a" <t>', 3, 8, "a special token is no part of a lexeme"),
    ("start: @other", 2, 8, "the grammar that this refers to is not here"),
    ('start: "a"\n%ignore / /', 3, 1, "`%ignore` is not read"),
    ('start: "a"\n%import common.INT', 3, 1, "`%import` is not read"),
    ('start: "a"\n%declare X', 3, 1, "`%declare` is not read"),
    ('start: "a"\n%llguidance {"allow_initial_skip": true}', 3, 13, "these options are not read"),
    ("start: %json {", 2, 15, "JSON is expected here"),
    ("start: %json [1]", 2, 14, "a JSON schema is an object"),
    ('start: %json {"x-guidance": {"item_separator": " ,"}}', 2, 14, "these separators of JSON are not read"),
    (
        'start: a b\na: %json {"x-guidance": {"whitespace_flexible": false}}\nb: %json {}',
        4,
        10,
        "have the same separators",
    ),
    ('start: A\nA: %regex {"substring": 1}', 3, 11, "`%regex` takes `substring_chunks`"),
    ('start: A\nA: %regex {"substring_chunks": [1]}', 3, 11, "is a list of texts"),
    ('start: "ab".."c"', 2, 8, "a range is between two characters"),
    (r'start: "\q"', 2, 8, "this is no string of JSON"),
    ("start: /a(/", 2, 8, "this regular expression cannot be read"),
    (r"start: /\bword/", 2, 8, "this regular expression cannot be used"),
    ("start: /a/l", 2, 8, "the flag `l` is not read"),
    ("start: %lark {\n}", 2, 8, "there is no rule `start`"),
    ('start: %lark {\na: "b"\n}', 3, 1, "there is no rule `start`"),
    ('start: e\ne: "a" | %json {"type": "null"} e', 3, 16, "JSON values beside recursion"),
    ('start: e\ne: x | "(" e ")"\nx[stop="."]: /a*/', 4, 1, "`stop` beside recursion"),
    ('start: e\ne: A | "(" e ")"\nA: /a*/', 3, 4, "A may be empty, which cannot be read beside recursion"),
]


@pytest.mark.parametrize(("rules", "line", "column", "message"), REFUSED, ids=lambda value: repr(value)[:40])
def test_refusals_point_at_what_is_not_read(rules: str, line: int, column: int, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        GuidanceGrammar(HEADER + rules)
    assert message in str(caught.value)
    assert f"line {line}, column {column}" in str(caught.value)


def test_sizes_are_bounded() -> None:
    chunks = ", ".join(f'"word{number} "' for number in range(300))
    with pytest.raises(GrammarError, match="Give a shorter text, or longer chunks"):
        GuidanceRules(HEADER + f'start: A\nA: %regex {{"substring_chunks": [{chunks}]}}')
    doubled = "\n".join(f"r{number}: r{number - 1} r{number - 1}" for number in range(1, 20))
    with pytest.raises(UnsupportedError, match="Write parts of the grammar as one lexeme"):
        GuidanceGrammar(HEADER + f'start: r19\nr0: "a" | "b"\n{doubled}')
    with pytest.raises(UnsupportedError, match="Repeat a part of the output type fewer times"):
        GuidanceGrammar(HEADER + 'start: "a"{2000}')


def test_a_schema_that_is_true_of_nothing() -> None:
    with pytest.raises(EmptyLanguageError):
        GuidanceGrammar(HEADER + 'start: %json {"type": "string", "enum": [1]}')


def test_comments_and_layout() -> None:
    text = (
        HEADER
        + '# first\nstart: /a/ // "not" read\n\n  | "b"i  # %json {\n\n  |  %lark {\n %llguidance {}\n  start: "c"\n }\n'
    )
    grammar = GuidanceGrammar(text)
    assert all(map(grammar.holds, ("a", "b", "B", "c"))) and not grammar.holds("d")


@pytest.mark.parametrize("name", RECORDED)
def test_texts_and_captures_are_those_of_guidance(name: str) -> None:
    grammar = GuidanceGrammar(RECORDED[name]["grammar"])
    for text, captures in RECORDED[name]["captures"].items():
        assert grammar.holds(text) == (captures is not None), text
        assert captures is None or grammar.captures(text) == captures, text


@pytest.mark.parametrize(
    ("rules", "text", "captures"),
    [
        # The first alternative as written, and what comes first is as long as it can be.
        ('start: a | b\na[capture]: "x" "y"\nb[capture]: "xy" | "x" "y"', "xy", {"b": "xy"}),
        ('start: a | b\na[capture]: c c\nb[capture]: c c\nc: "x"', "xx", {"a": "xx"}),
        ('start: a b\na[capture]: c*\nb[capture]: c*\nc: "x"', "xxx", {"a": "xxx", "b": ""}),
        ('start: e\ne[capture="__LIST_APPEND:e"]: "x" | e "+" e', "x+x+x", {"e": ["x", "x", "x+x", "x", "x+x+x"]}),
        # What ends a text is no part of its capture, and of those around it where it stays.
        ('start: o\no[capture]: x "!"\nx[capture, suffix=";"]: /[a-z]*/', "ab;!", {"x": "ab", "o": "ab;!"}),
        (
            'start: o\no[capture]: x ";!"\nx[capture, stop=";", stop_capture="s"]: /[a-z]*/',
            "ab;!",
            {"x": "ab", "s": ";", "o": "ab;!"},
        ),
        ('start: x\nx[capture, stop=/;|!/, stop_capture="s"]: /[a-z]*/', "ab!", {"x": "ab", "s": "!"}),
        ('start: "é" x\nx[capture, lazy]: /.*?é/', "é日本é", {"x": "日本é"}),
        ('start: (x ",")*\nx[capture="__LIST_APPEND:a"]: y?\ny[capture="a"]: "b"', "b,,", {"a": ["b", ""]}),
        ('start: "" x?\nx[capture]: "a"', "", {}),
    ],
)
def test_which_derivation_is_captured(rules: str, text: str, captures: dict[str, object]) -> None:
    assert GuidanceGrammar(HEADER + rules).captures(text) == captures


def test_long_texts_and_deep_ones() -> None:
    many = GuidanceGrammar(HEADER + 'start: x+\nx[capture="__LIST_APPEND:x"]: /[a-z]/')
    assert many.captures("ab" * 500) == {"x": ["a", "b"] * 500}
    deep = GuidanceGrammar(HEADER + 'start: e\ne: x | "(" e ")"\nx[capture]: /[0-9]+/')
    assert deep.captures("(" * 1500 + "7" + ")" * 1500) == {"x": "7"}


def test_a_rule_that_derives_itself_through_what_may_be_empty() -> None:
    assert GuidanceGrammar(HEADER + 'start: ((x?)* "b"?)*\nx[capture]: "a"').captures("aab") == {"x": "a"}


def test_rules_that_derive_themselves() -> None:
    grammar = GuidanceGrammar(HEADER + 'start: e\ne: f | x e?\nf: e\nx[capture]: "a" | "b"')
    assert grammar.captures("ab") == {"x": "b"}


def test_a_text_that_is_none_has_no_captures() -> None:
    with pytest.raises(ValueError, match="'no' is not in the format"):
        GuidanceGrammar(HEADER + 'start: "yes"').captures("no")
