"""The texts of a guidance grammar are those of llguidance; captures; special tokens in grammars."""

import itertools
import re

import llguidance
import numpy as np
import pytest
from llguidance.hf import from_tokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from outlines_phi import EmptyLanguageError, GrammarError, Vocabulary
from outlines_phi.errors import VocabularyError
from outlines_phi.guides import CFGGuide, Guide, read_grammar
from outlines_phi.guides.guidance.guidance_rules import GuidanceRules
from tests.guides.guidance.oracle import BYTES, HEADER, RECORDED, accepted, random_grammar
from tests.guides.walking import ended
from tests.inner import ByteAutomaton, GuidanceGrammar, bundled, compile_regex
from tests.refusals import refused

ABC = b"abc"

REGULAR = [
    'start: A "b"\nA: /[ab]+/',
    'start: A "c"\nA: /[ab]*/',
    'start: ("a" | "ab") "b"',
    'start: A "b"\nA: "a" | "ab"',
    'start: x "b"\nx[lazy]: /[ab]*c/',
    'start: x "b"\nx[lazy]: /a*/',
    'start: x "c"\nx[stop="c"]: /[abc]*/',
    'start: x "cb"\nx[stop="c"]: /[abc]*/',
    'start: x\nx[stop="c"]: /[abc]*/',
    "start: x\nx[stop=/b|c/]: /[abc]*/",
    'start: x "b"\nx[suffix="c"]: /[abc]*/',
    'start: x "b"\nx[suffix=/[cb]/]: /a*/',
    'start: (x | "ab") "c"\nx[lazy]: /a/',
    'start: (x | A) "c"\nx[lazy]: /ab/\nA: /[ab]+/',
    'start: (A "b" | B "c")\nA: /a+/\nB: /a/',
    "start: A*\nA: /a?/",
    'start: "a" |',
    'start: A{2,3} "b"\nA: /a/',
    'start: A{2,3} "b"\nA: /a+/',
    'start: A? "a" "b"\nA: /a/',
    'start: (A | B) "b"\nA: /a/\nB: /ac/',
    "start: A B\nA: /a(bc)?/\nB: /b+/",
    'start: "a" | %lark {\nstart: B+\nB: "b"\n} "c"',
    'start: A\nA: %regex {"substring_chunks": ["a", "bc", "a"]}',
    'start: "A"i "b".."c" [ "c" ] A~2 | ""\nA: ("a" "b"){,1} "c"',
]
RECURSIVE = [
    'start: e\ne: "a" e "b" | "c"',
    'start: e\ne: A | e "b" A\nA: /a+/',
    'start: e\ne: A | "b" e "c"\nA: /a(aa)?/',
    'start: e\ne: x | "a" e "b"\nx[suffix="c"]: /c*b/',
    'start: e\ne: f | "a" | "b" e\nf: e',
    "start: e\ne: A | B e\nA: /[ab]/\nB: /[bc]/",
    'start: e\ne: x | y e "c"\nx[lazy]: /[ab]/\ny[lazy]: /b/',
]


def texts_of(grammar: str, longest: int) -> set[tuple[int, ...]]:
    try:
        return ended(GuidanceGrammar(grammar).guide(BYTES), longest, tokens=ABC)
    except EmptyLanguageError:
        return set()


@pytest.mark.parametrize("rules", REGULAR + RECURSIVE)
def test_texts_are_those_of_llguidance(rules: str) -> None:
    pytest.importorskip("llguidance")
    assert texts_of(HEADER + rules, 5) == accepted(HEADER + rules, ABC, 5)


@pytest.mark.parametrize(
    "rules",
    [
        'start: "a" %json {"type": "integer", "minimum": 1, "maximum": 20} "b"',
        'start: ("a" j)+ "b"?\nj: %json {"enum": [1, 12, [2]], "x-guidance": {"whitespace_flexible": false}}',
        'start: j | A "," j\nj: %json {"const": [1], "x-guidance": {"whitespace_flexible": false}}\nA: /[ab]+/',
    ],
)
def test_texts_around_json_values_are_those_of_llguidance(rules: str) -> None:
    pytest.importorskip("llguidance")
    found = ended(GuidanceGrammar(HEADER + rules).guide(BYTES), 5, tokens=b"ab12[],")
    assert found == accepted(HEADER + rules, b"ab12[],", 5) and found


@pytest.mark.parametrize("recursive", [False, True])
def test_texts_of_random_grammars_are_those_of_llguidance(recursive: bool) -> None:
    pytest.importorskip("llguidance")
    compared = written = 0
    for seed in range(250):
        grammar = random_grammar(seed, recursive=recursive)
        try:
            found = texts_of(grammar, 4)
        except GrammarError:
            assert recursive
            continue
        assert found == accepted(grammar, ABC, 4), grammar
        compared, written = compared + 1, written + bool(found)
    assert compared > (120 if recursive else 249) and written > 100


def test_a_regular_expression_of_the_same_parts_has_other_texts() -> None:
    """The power of the comparison: parts that are put together without regard to the longest lexeme."""
    pytest.importorskip("llguidance")
    for rules, pattern in [(REGULAR[0], "[ab]+b"), (REGULAR[2], "(a|ab)b"), (REGULAR[17], "a+a+(a+)?b")]:
        assert {text for text in texts_of(HEADER + f"start: A\nA: /{pattern}/", 5)} > accepted(HEADER + rules, ABC, 5)


@pytest.mark.parametrize("seed", range(40))
def test_what_reads_a_text_agrees_with_what_guides_it(seed: int) -> None:
    for recursive in (False, True):
        grammar = random_grammar(seed, recursive=recursive)
        try:
            guided = texts_of(grammar, 4)
            read = GuidanceGrammar(grammar) if guided else None
        except GrammarError:
            continue
        every = [bytes(text).decode() for text in texts_of(HEADER + "start: A\nA: /[abc]*/", 4)]
        assert {text for text in every if read and read.holds(text)} == {bytes(text).decode() for text in guided}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ('start: e\ne: A | "(" e ")" | e B\nA: /a+/\nB: /aab/', "A and B may go on, or end within, 'aa'"),
        ("start: e\ne: x | B e\nx[lazy]: /[ab]/\nB: /[bc]/", "B and x both match 'b'"),
        ('start: e\ne: A | e "."\nA: /[0-9]+(\\.[0-9]+)?/', "A may go on, or end within, '0.'"),
        ('start: e\ne: x | "bc" e\nx[lazy]: /b/', 'x and "bc"'),
    ],
)
def test_recursion_beside_lexemes_that_engines_cut_differently_is_refused(rules: str, message: str) -> None:
    assert refused(re.escape(message), GuidanceGrammar, HEADER + rules, error=GrammarError).value.position is not None


def test_what_never_ends_is_said_and_lexemes_that_are_written_alike_are_one() -> None:
    refused(
        "Let the parts of the grammar differ in their characters",
        GuidanceGrammar,
        HEADER + 'start: A "s"\nA: /[a-z]+/',
        error=EmptyLanguageError,
    )
    refused("derives no text", GuidanceGrammar, HEADER + 'start: e\ne: "a" e', error=EmptyLanguageError)
    assert len(GuidanceRules(HEADER + 'start: "a" A "a" B\nA: /a/\nB: "a"').lexemes) == 1
    assert len(GuidanceRules(HEADER + 'start: "a" x\nx[lazy]: "a"').lexemes) == 2


def places(automaton: ByteAutomaton, texts: list[bytes]) -> list[int]:
    assert automaton.positions is not None
    return [int(automaton.positions[automaton.advance(automaton.start, text)]) for text in texts]


@pytest.mark.parametrize(
    ("rules", "pattern"),
    [
        ('start: "a" x ",b" y "."\nx[capture]: /[bc]+/\ny[capture]: /c{2}/', "a(?P<x>[bc]+),b(?P<y>c{2})[.]"),
        ('start: two "," two\ntwo: x y\nx[capture]: "a"\ny[capture]: /b+/', "(?P<a>a)(?P<b>b+),(?P<c>a)(?P<d>b+)"),
        ('start: x\nx[capture]: y ("," y)*\ny[capture]: /[ab]+/', ""),
        ('start: x | y\nx[capture]: "a"\ny[capture]: "b"', ""),
        ('start: "a" x "b"?\nx[capture, suffix=";"]: /b*/', "a(?P<x>b*)(?:;b?)"),
        ('start: x ",a" y\nx[capture]: /[ab]*/\ny[capture]: /b+/', "(?P<x>[ab]*),a(?P<y>b+)"),
        ('start: x ",a" /,+/ y\nx[capture, stop=","]: /[ab]*/\ny[capture]: /b?/', "(?P<x>[ab]*),a,+(?P<y>b?)"),
    ],
)
def test_captures_in_turn_are_positions(rules: str, pattern: str) -> None:
    """As those of the named groups that say the same, where a text can be read in one way."""
    found = GuidanceGrammar(HEADER + rules).automaton_alone
    assert found is not None
    if not pattern:
        assert found.positions is None
        return
    named = compile_regex(pattern)
    assert found.witness(named) is None
    letters = itertools.chain(*(itertools.product(b"abc,.;", repeat=n) for n in range(7)))
    texts = [text for text in map(bytes, letters) if named.advance(named.start, text)]
    if "suffix" in rules:  # it ends the capture
        assert places(found, [b"abb", b"abb;", b"abb;b"]) == [0, 1, 1]
    assert places(found, texts) == places(named, texts)


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
    caught = refused(re.escape(message), GuidanceGrammar, HEADER + rules, error=GrammarError)
    assert f"line {line}, column {column}" in str(caught.value)


def test_sizes_are_bounded() -> None:
    chunks = ", ".join(f'"word{number} "' for number in range(300))
    refused(
        "Give a shorter text, or longer chunks",
        GuidanceRules,
        HEADER + f'start: A\nA: %regex {{"substring_chunks": [{chunks}]}}',
        error=GrammarError,
    )
    doubled = "\n".join(f"r{number}: r{number - 1} r{number - 1}" for number in range(1, 20))
    refused(
        "Write parts of the grammar as one lexeme", GuidanceGrammar, HEADER + f'start: r19\nr0: "a" | "b"\n{doubled}'
    )
    refused("Repeat a part of the output type fewer times", GuidanceGrammar, HEADER + 'start: "a"{2000}')


def test_a_schema_of_nothing_comments_and_layout_are_read() -> None:
    refused(None, GuidanceGrammar, HEADER + 'start: %json {"type": "string", "enum": [1]}', error=EmptyLanguageError)
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


def test_long_and_deep_texts_and_rules_that_derive_themselves_have_captures() -> None:
    many = GuidanceGrammar(HEADER + 'start: x+\nx[capture="__LIST_APPEND:x"]: /[a-z]/')
    assert many.captures("ab" * 500) == {"x": ["a", "b"] * 500}
    deep = GuidanceGrammar(HEADER + 'start: e\ne: x | "(" e ")"\nx[capture]: /[0-9]+/')
    assert deep.captures("(" * 1500 + "7" + ")" * 1500) == {"x": "7"}
    assert GuidanceGrammar(HEADER + 'start: ((x?)* "b"?)*\nx[capture]: "a"').captures("aab") == {"x": "a"}
    assert GuidanceGrammar(HEADER + 'start: e\ne: f | x e?\nf: e\nx[capture]: "a" | "b"').captures("ab") == {"x": "b"}
    refused("'no' is not in the format", GuidanceGrammar(HEADER + 'start: "yes"').captures, "no", error=ValueError)


WORDS = Vocabulary.from_tokens(["<eos>", "a", "b", "<t>", "<t>", "<s>"], 0, special={"<t>": 4, "<s>": 5})


def test_names_and_ids_in_rules_templates_and_imports(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "parts.lark").write_text('item: <t> "a"  // <s>\n')
    (tmp_path / "all.lark").write_text('start: pair{item} <[5]>?\npair{x}: x x | "<t>"\n%import .parts (item)')
    guide = CFGGuide.of(read_grammar(tmp_path / "all.lark"), WORDS)
    for tokens in ([4, 1, 4, 1, 0], [3, 5, 0]):
        state = guide.start
        for token in tokens:
            state = guide.advance(state, token)
            assert state
    assert not guide.advance(guide.start, 5) and guide.text([4, 1, 3]) == b"a<t>"


@pytest.mark.parametrize(
    ("grammar", "error", "said"),
    [
        ('start: A\nA: "a" <t>', GrammarError, "a special token is no part of a lexeme"),
        ("start: <u>", VocabularyError, "Those like it|It has"),
        ("start: <[1]>", VocabularyError, "Write the text b'a'"),
        ("start: <[^4]>", GrammarError, "Name the special tokens"),
        ("start: <🙂>", GrammarError, "not expected here"),
        ('start: "\U000f0041"', GrammarError, "private character"),
    ],
)
def test_what_is_refused(grammar: str, error: type[Exception], said: str) -> None:
    refused(said, lambda: CFGGuide.of(read_grammar(grammar), WORDS), error=error)


def test_a_terminal_has_none_in_llguidance_either() -> None:
    oracle = from_tokenizer(bundled.load()[1])
    for text in ('start: A\nA: "a" <[5]>', "start: A\nA: /a/ | <[5]>"):
        said = llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(text), oracle)
        assert "cannot be used in terminals" in said
        for reads in (read_grammar, lambda text: GuidanceGrammar(f"%llguidance {{}}\n{text}")):
            refused("a special token is no part of a lexeme", reads, text, error=GrammarError)


def test_captures_beside_special_tokens() -> None:
    """They are read by the tokens, which tell what the text does not, and show nothing of them."""
    grammar = GuidanceGrammar(
        "%llguidance {}\nstart: x | y\nx[capture]: <t> z\nz[capture]: /[ab]+/\ny[capture]: <s> /[ab]+/"
    )
    guide = grammar.guide(WORDS)
    texts = [guide.member(tokens).decode(errors="surrogateescape") for tokens in ([4, 1, 2], [5, 1, 2])]
    assert [grammar.captures(text) for text in texts] == [{"x": "ab", "z": "ab"}, {"y": "ab"}]
    refused("Take the value of a draw of sample", grammar.captures, "ab", error=ValueError)


def test_a_guidance_grammar_names_tokens_that_there_are() -> None:
    refused("Those like it: '<t>'", GuidanceGrammar("%llguidance {}\nstart: <u>").guide, WORDS, error=VocabularyError)


@pytest.mark.parametrize(
    ("text", "gbnf"),
    [
        ('start: WORD? </think> ("YES" | "NO")\nWORD: /[a-z ]+/', 'root ::= [a-z ]* </think> ("YES" | "NO")'),
        ('start: e </think>\ne: <|x|> e "b" | "a"', 'root ::= e </think>\ne ::= <|x|> e "b" | "a"'),
        ("start: (<|x|> | </think>)* /[0-9]+/", "root ::= (<|x|> | </think>)* [0-9]+"),
    ],
)
def test_masks_are_those_of_llguidance(text: str, gbnf: str) -> None:
    _, tokenizer = bundled.load()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>", "<|x|>"]})
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    guides: list[Guide] = [
        CFGGuide.of(read_grammar(text), vocabulary),
        CFGGuide.of(read_grammar(gbnf, dialect="gbnf"), vocabulary),
        GuidanceGrammar(f"%llguidance {{}}\n{text}").guide(vocabulary),
    ]
    oracle, rng = from_tokenizer(tokenizer), np.random.default_rng(0)
    bits = allocate_token_bitmask(1, oracle.vocab_size)
    special = list(vocabulary.special.values())
    for _ in range(4):
        matcher, states = (
            llguidance.LLMatcher(oracle, llguidance.LLMatcher.grammar_from_lark(text)),
            [g.start for g in guides],
        )
        for _ in range(8):
            fill_next_token_bitmask(matcher, bits)
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(vocabulary)]
            for guide, state in zip(guides, states, strict=True):
                ours = np.unpackbits(guide.mask(state).view(np.uint8), bitorder="little")[: len(vocabulary)]
                differ = np.flatnonzero(ours != allowed).tolist()
                assert not differ, [tokenizer.convert_ids_to_tokens(one) for one in differ[:5]]
            live = np.flatnonzero(allowed)
            likely = np.intersect1d(live, special)
            token = int(rng.choice(likely if len(likely) and rng.random() < 0.4 else live))
            if token in vocabulary.eos_ids:
                break
            assert matcher.consume_token(token)
            states = [guide.advance(state, token) for guide, state in zip(guides, states, strict=True)]
