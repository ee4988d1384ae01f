"""All machines in one table, beside single steps; finite guides, lifted from automata, read from indexes, and made."""

import copy
import pickle
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from operator import and_
from typing import Any

import interegular
import numpy as np
import pytest
from outlines.types import CFG, JsonSchema, Regex
from outlines.types.dsl import Term, either, exactly
from outlines_core import Index
from outlines_core import Vocabulary as CoreVocabulary

from outlines_phi import BannedPhrases, EmptyLanguageError, Special, Vocabulary, from_transformers, generate
from outlines_phi.automata.lift import lift
from outlines_phi.errors import VocabularyError
from outlines_phi.guides import CFGGuide, FSMGuide, Guide, JSONGuide, MachineGuide, machine_guide, read_grammar
from outlines_phi.testing import assert_guide, assert_spells
from tests.guides.json_schema.schemas import SMALL
from tests.guides.walking import Ids, assert_row, ended, read
from tests.inner import (
    DEAD,
    DONE,
    EOS,
    NEVER,
    UNREACHABLE,
    Both,
    ByteAutomaton,
    ByteMachine,
    CharacterFSM,
    GuidanceGrammar,
    JSONText,
    PhraseGuide,
    ProductGuide,
    WithoutPhrases,
    banned,
    bundled,
    compile_regex,
    encoded,
    free_text,
    reachable,
    to_language,
)
from tests.refusals import refused

LETTERS = Vocabulary.from_tokens(
    ["<eos>", *"abc0123+*() ,;=x[].-_S", "ab", "bc", "abc", "1+", "(1", "2)", ", ", "a,b", b"\xc3", b"\x9f", "ß", "ab"],
    0,
)
"""Tokens that overlap and straddle, parts of a character, and an equal spelling twice."""

PARTIAL = Vocabulary(
    (
        b"a",
        b"\xc3",
        b"\xa9",
        "é".encode(),
        b"a\xc3",
        b"\xa9a",
        "東".encode()[:2],
        "東".encode()[2:],
        b"",
        b"",
        b"",
        b"b",
    ),
    (9, 8),
    np.array([True] * 10 + [False, True]),
)
"""Parts of UTF-8 characters, two ends, a padded row."""

SPECIAL = Vocabulary.from_tokens(
    [
        *(token if token else "<eos>" for token in SMALL.tokens),
        "</t>",
        "<t>",
        "<e>",
        "<e>",
        b"\xff",
        b"a\xff",
        "</",
        "t>",
    ],
    SMALL.eos_ids[0],
    special={"</t>": len(SMALL), "<t>": len(SMALL) + 1, "<e>": len(SMALL) + 3},
)
"""Those of ``SMALL``, special tokens, one of whose names ordinary tokens write too, and a byte that no text has."""

COARSE = Vocabulary.from_tokens(["<eos>", "aa", "aaa", "b", "ab", "cd"], 0)
"""Not every byte is a token, so some texts cannot be written."""

RECORD = {
    "type": "object",
    "properties": {"a": {"enum": [1, 12]}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
    "required": ["a"],
    "additionalProperties": False,
}
SUM = 'start: e\ne: t | e "+" t\nt: NUMBER | "(" e ")"\nNUMBER: /[1-3]+/\nWS: " "\n%ignore WS'
BANS = {
    "plain": BannedPhrases(["ab", "bca"]),
    "ignoring case": BannedPhrases(["ab", "ss"], ignore_case=True),
    "whole words": BannedPhrases(["ab", "b_"], whole_word=True),
    "patterns": BannedPhrases([re.compile("a[bc]{1,2}"), "1+", re.compile("ß")]),
}


def regex(pattern: str, vocabulary: Vocabulary = LETTERS) -> FSMGuide:
    return FSMGuide.from_automaton(compile_regex(pattern), vocabulary)


def schema(document: Any) -> JSONGuide:
    return JSONGuide.of(document, SMALL)


def lark(text: str, **given: Any) -> CFGGuide:
    return CFGGuide.of(read_grammar(text, **given), LETTERS)


def composed(term: Term) -> Guide:
    return JSONText(to_language(term).part).guide(SPECIAL)  # type: ignore[union-attr]


def guidance(text: str, vocabulary: Vocabulary) -> Guide:
    return GuidanceGrammar(f"%llguidance {{}}\n{text}").guide(vocabulary)


def product_of(left: Guide | str, phrases: BannedPhrases) -> ProductGuide:
    left = regex(left) if isinstance(left, str) else left
    return ProductGuide(left, PhraseGuide(left.vocabulary, phrases))


SPECIAL_GUIDANCE = {
    "guidance": 'start: /[ab]*/ </t> (<t> | "1")',
    "values": 'start: /[ab]*/ </t> v <t>\nv: %json {"enum": [1, 12]}',
    "recursive": 'start: e </t>\ne: <t> e "b" | "a"',
}
PATTERNS = [
    "abc", "(ab|bc|ca){1,3}", "a|ab|abc", "a(bc)*", r"-?(0|[1-3][0-9]*)(\.[0-9]+)?", "[a-z]{2,5}", "(a|b)*a(a|b){3}", ".*",
    "(?s:.)*", "", "ß|a", "(?P<x>a+),(?P<y>[bc]{1,2});?",
]  # fmt: skip
GUIDANCE = {
    "automaton": ('start: x "," y\nx[capture, stop=","]: /[ab]*/\ny[capture]: /b+/', LETTERS),
    "recursive": ('start: e\ne: "a" e "b" | "c"', LETTERS),
    "value": ('start: "a" v "b"\nv: %json {"enum": [1, 12]}', SMALL),
}
LARK = 'start: T? </t> (A <[{e}]> | "b")\nT: /(.|\\n)+/\nA: "1"'.replace("{e}", str(len(SMALL) + 3))
NESTED = CFG('start: "a" start "b" | <t>')
ONE = JsonSchema({"enum": [1, 12]})
COMPOSED: dict[str, Term] = {
    "regular": Regex("[ab]{0,2}") + Special("</t>") + Regex("(a|</t>)?"),
    "optional": (Special("<t>") + Regex("a*") + Special("</t>")).optional() + Regex("a"),
    "nothing": exactly(0, NESTED + Special("</t>")),
    "in JSON": Regex("[ab]*") + Special("</t>") + ONE,
    "list": (either(Special("<t>"), "a") + ONE).at_most(2) + Special(len(SMALL) + 3),
    "grammar": Regex("a*") + NESTED + Regex("b*1"),
    "grammar and JSON": either(ONE, Regex("[ab]*") + CFG('start: "a" start "b" | "a"') + ONE + Special("</t>")),
}
GUIDES: dict[str, Callable[[], Guide]] = {
    **{f"regex {pattern}": partial(regex, pattern) for pattern in PATTERNS},
    **{f"partial {pattern}": partial(regex, pattern, PARTIAL) for pattern in ("é", "aé?a*", "[^b]*", "(東|é)+b")},
    **{f"coarse {pattern}": partial(regex, pattern, COARSE) for pattern in ("a*", "a{2,4}b?", "(a{5}|c|b)*")},
    "intersection": lambda: regex("[a-c]*") & regex(".{2,4}"),
    "intersection of alternatives": lambda: regex("a|ab|abc") & regex("a[a-z]*"),
    "record": lambda: schema(RECORD),
    "nested": lambda: schema({"type": "array", "items": {"type": "array", "items": {"const": 1}}, "maxItems": 2}),
    "lark": lambda: lark(SUM),
    "gbnf": lambda: lark('root ::= item ("," item)*\nitem ::= [ab] | "(" root ")"', dialect="gbnf"),
    **{f"guidance, {name}": partial(guidance, *given) for name, given in GUIDANCE.items()},
    "special, lark": lambda: CFGGuide.of(read_grammar(LARK), SPECIAL),
    **{f"special, {name}": partial(guidance, text, SPECIAL) for name, text in SPECIAL_GUIDANCE.items()},
    **{f"composed, {name}": partial(composed, term) for name, term in COMPOSED.items()},
    "composed without": lambda: product_of(composed(COMPOSED["list"]), BannedPhrases(["1a", "a12"])),
    **{f"free, {name}": partial(free_text, LETTERS, ban) for name, ban in BANS.items()},
    **{f"regex without {name}": partial(product_of, "[abcS_ ]{1,4}|1[+]1,", ban) for name, ban in BANS.items()},
    "multiplied": lambda: banned(regex("[abc]{1,4}"), BANS["plain"]),
    "sums without": lambda: product_of(lark(SUM), BannedPhrases(["1+", "2)"])),
    "record without": lambda: product_of(schema(RECORD), BannedPhrases(["12", "ru"])),
}

BOUNDED = {
    "special, lark",
    "special, recursive",
    "composed, in JSON",
    "composed, list",
    "composed, grammar",
    "composed, grammar and JSON",
    "composed without",
    "record",
    "nested",
    "lark",
    "gbnf",
    "guidance, recursive",
    "sums without",
    "record without",
}
"""Their ``min_tokens`` is an upper bound."""


def machine_of(guide: Guide) -> ByteMachine[Any]:
    """Return the machine of a guide; of one without phrases, and of the rest, the product."""
    if isinstance(guide, ProductGuide):
        return Both(machine_of(guide.left), machine_of(guide.right))
    if isinstance(guide, PhraseGuide):
        return WithoutPhrases(guide.phrases.matcher, guide.phrases.matcher.start)
    machine = guide.automaton if isinstance(guide, FSMGuide) else guide.machine  # type: ignore[attr-defined]
    assert machine is not None
    return machine


@pytest.mark.in_turn
@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_is_its_machine_times_the_vocabulary(name: str) -> None:
    """And so is a copy, whose states may have other numbers."""
    guide = GUIDES[name]()
    assert_guide(guide, limit=60, shortest=name not in BOUNDED)
    assert_spells(guide, machine_of(guide), limit=60, shortest=name not in BOUNDED)
    for copied in (pickle.loads(pickle.dumps(guide)), copy.deepcopy(guide)):
        assert_spells(copied, guide, limit=60)


@pytest.mark.parametrize(
    "name", [name for name in GUIDES if "?P<" in name or "record" in name or name in ("nested", "guidance, automaton")]
)
def test_blocks_begin_where_the_machine_comes_to_the_next_one(name: str) -> None:
    """A guide may miss one behind a block that the same token writes whole."""
    guide, rng, seen = GUIDES[name](), random.Random(0), set()
    machine, tokens = machine_of(guide), guide.vocabulary.tokens
    for _ in range(12):
        state, place = guide.start, machine.start
        for _ in range(8):
            assert guide.between_blocks(state) == machine.position(place).between
            targets = guide.row(state).targets[guide.row(state).partition.class_of]
            live = [token for token in np.flatnonzero(targets > DONE).tolist() if tokens[token]]
            for token, begins in zip(live, guide.begins_block(state, np.array(live, dtype=int)).tolist(), strict=True):
                places = [
                    place,
                    *(machine.read(tokens[token][:end], place) for end in range(1, len(tokens[token]) + 1)),
                ]
                blocks = [machine.position(one).block for one in places if one is not None]
                came, whole = sum(b > a for a, b in pairwise(blocks)), len(tokens[token]) > 1
                assert begins <= (came > 0) and (begins or not came or whole)
                seen.add((came > 0, begins))
            if not live:
                break
            token = rng.choice(live)
            state, place = int(targets[token]), machine.read(tokens[token], place)
    assert {(False, False), (True, True)} <= seen


@pytest.mark.parametrize("name", GUIDES)
def test_shortest_texts_lead_to_ends_and_only_an_end_leads_out(name: str) -> None:
    machine = machine_of(GUIDES[name]())
    rng, place = np.random.default_rng(0), machine.start
    for _ in range(12):
        if not machine.is_live(place):
            break
        text = machine.shortest(place)
        end = machine.read(text, place)
        assert end is not None and machine.ends(end) and machine.is_live(end) and machine.shortest(end) == b""
        assert machine.ends(place) == (text == b"") and machine.describe(place)
        after = machine.steps(place, range(256))
        assert after == [machine.step(place, byte) for byte in range(256)]
        live = [one for one in after if one is not None]
        assert machine.ends(place) or live
        if not live:
            break
        place = live[int(rng.integers(len(live)))]


def test_what_no_text_ends_is_told_by_every_machine() -> None:
    never = compile_regex("a") & compile_regex("b")
    both = Both(compile_regex("[ab]"), WithoutPhrases(BannedPhrases(["a", "b"]).matcher, 0))
    for machine in (never, both):
        assert not machine.is_live(machine.start) and not machine.accepts(b"a")  # type: ignore[attr-defined]
        refused("nothing|no text", machine.shortest, error=ValueError)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["regex a(bc)*", "record", "lark", "free, whole words", "sums without"])
@pytest.mark.parametrize("fault", ["ends", "step"])
def test_a_guide_of_another_machine_is_refused(name: str, fault: str) -> None:
    """The control."""
    guide = GUIDES[name]()

    class Wrong(Both[Any, Any]):  # type: ignore[misc]
        def ends(self, place: Any) -> bool:
            return super().ends(place) != (fault == "ends")

        def steps(self, place: Any, bytes: Any) -> Any:
            found = super().steps(place, bytes)
            return [None if fault == "step" and byte in b"ac1" else one for byte, one in zip(bytes, found, strict=True)]

    everything = ByteAutomaton(
        np.array([[0], [1]], dtype=np.int32), np.zeros(256, np.uint8), 1, np.array([False, True])
    )
    wrong = Wrong(machine_of(guide), everything)
    refused(None, assert_spells, guide, wrong, limit=60, shortest=False, error=AssertionError)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_guide_of_a_machine_begins_full_memories_anew(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the walk is not compiled."""
    monkeypatch.setattr(machine_guide, "MOST_STEPPED", 2)
    monkeypatch.setattr(machine_guide, "MOST_COMPLETED", 2)
    if not compiled:
        monkeypatch.setattr(machine_guide, "library", lambda: None)
    guide = composed(COMPOSED["grammar"])
    assert_guide(guide, limit=20, shortest=False)
    assert_spells(guide, machine_of(guide), limit=20, shortest=False)


def test_a_vocabulary_that_cannot_write_a_text_of_a_machine_is_refused() -> None:
    refused("a token for each byte", MachineGuide, compile_regex("c"), COARSE)
    refused("no text at all", MachineGuide, compile_regex("a") & compile_regex("b"), LETTERS, error=EmptyLanguageError)


VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c"], 0)


def guide_of(pattern: str, vocabulary: Vocabulary = VOCABULARY) -> FSMGuide:
    return FSMGuide.from_automaton(compile_regex(pattern), vocabulary)


def test_every_spelling_of_every_member_with_one_end_and_nothing_else() -> None:
    assert ended(guide_of("ab|c"), 4) == {(1, 2), (3,), (5,)}
    assert ended(guide_of("aba"), 4) == {(1, 2, 1), (1, 4), (3, 1)}
    assert ended(guide_of("[abc]{2,3}") & guide_of("(ab|c)*") & guide_of(".*c"), 4) == {
        (3, 5),
        (1, 2, 5),
        (5, 5),
        (5, 5, 5),
    }
    guide = guide_of("abab|c")
    assert [guide.min_tokens(state) for state in (guide.start, read(guide, "a"), DONE, DEAD)] == [2, 3, 0, UNREACHABLE]
    # Without a token `c` alone, `a` and then `c` can only be `ac`.
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", "ac", "d"], 0)
    assert ended(guide_of("ac|ad", vocabulary), 3) == {(2,), (1, 3)}
    stuck = guide_of("ac|d", vocabulary)
    assert stuck.advance(stuck.start, 1) == DEAD
    assert stuck.partition.class_of[1] == NEVER, "a token that is dead everywhere joins the class of such tokens"
    guide = guide_of("a?", Vocabulary((b"a", b"", b""), (2, 1), np.ones(3, dtype=bool)))
    assert [guide.advance(guide.start, end) for end in (2, 1)] == [DONE, DEAD]


@pytest.mark.parametrize("pattern", ["(a|b|c)*a(a|b|c){4}", "(ab|ba|c){1,3}x?"])
def test_transformations_that_differ_have_different_names(pattern: str) -> None:
    """Tokens that act alike are found by them; a name that many share costs a comparison of them all, again and again."""
    letters = Vocabulary.from_tokens(["<eos>", *"abcx", *map("".join, product("abcx", repeat=3))], 0)
    automaton = compile_regex(pattern)
    names = lift(automaton.targets, automaton.byte_class, letters).transformations.hashes(0)
    assert len(np.unique(names)) == len(names) > 8


EOS_ID = 3
TOKENS = ["a", "b", "ab", "<eos>", "ba", "c", "1", ".", ".5", "5", "ab", '"', "aa"]
"""One spelling has two ids."""

CORE = Vocabulary.from_tokens(TOKENS, EOS_ID)


def index_of(pattern: str, tokens: list[str] = TOKENS, eos: int = EOS_ID) -> Index:
    ids: dict[str, list[int]] = {}
    for v, token in enumerate(tokens):
        if v != eos:
            ids.setdefault(token, []).append(v)
    return Index(pattern, CoreVocabulary(eos, ids))


def allowed(index: Index, budget: int) -> set[Ids]:
    """Return the token sequences, the end left out, that a walk through the index may write, by brute force."""
    found, level = set[Ids](), [((), index.get_initial_state())]
    for _ in range(budget + 1):
        moves = [(ids, state, token) for ids, state in level for token in index.get_allowed_tokens(state) or ()]
        found |= {ids for ids, _, token in moves if token == EOS_ID}
        level = [((*ids, token), index.get_next_state(state, token)) for ids, state, token in moves if token != EOS_ID]
    return found


@pytest.mark.parametrize(
    "pattern",
    ["ab|c", "(ab|ba|c){1,3}", "(ab)*c?", "a{2,4}b?", r"1(\.5)?", "a|ab|aba", "[abc]*", '"[ab]*"', "(ab)*xx|c"],
)
def test_the_language_is_that_of_the_index(pattern: str) -> None:
    guide = FSMGuide.from_index(index_of(pattern), CORE)
    language = allowed(index_of(pattern), 4)
    assert language and ended(guide, 4) == language
    assert_guide(guide)
    for state in reachable(guide):
        assert_row(guide, state)
    columns = np.stack([guide.row(state).targets for state in range(len(guide))]).T[2:]
    assert len(np.unique(columns, axis=0)) == len(columns) == guide.partition.class_of.max() - 1, (
        "no two classes do the same"
    )
    again = FSMGuide.from_index(index_of(pattern), CORE)
    assert again.fingerprint() == guide.fingerprint(), "equal indexes give equal guides"


@pytest.mark.parametrize("pattern", ["ab|c", "a{2,4}b?", '"[ab]*"', '"(ab|c)*"', "[abc]*"])
def test_where_the_engine_loses_nothing_it_is_the_lift(pattern: str) -> None:
    assert_spells(FSMGuide.from_index(index_of(pattern), CORE), compile_regex(pattern))


def test_what_the_engine_loses_stays_lost() -> None:
    """After the member `1` the engine leaves out the single byte `.`, so one spelling of `1.5` is not written."""
    guide = FSMGuide.from_index(index_of(r"1(\.5)?"), CORE)
    one, point, half, five = map(TOKENS.index, ("1", ".", ".5", "5"))
    assert ended(guide, 3) == {(one,), (one, half)} == ended(guide_of(r"1(\.5)?", CORE), 3) - {(one, point, five)}
    refused(None, assert_spells, guide, compile_regex(r"1(\.5)?"), error=AssertionError)


def test_dead_ends_of_an_index_are_pruned_and_other_ends_are_never_text() -> None:
    """Without an `x` in the vocabulary, `(ab)*xx` loops for ever; the engine allows the loop."""
    index, first = index_of("(ab)*xx|c"), TOKENS.index("ab")
    guide = FSMGuide.from_index(index, CORE)
    assert first in index.get_allowed_tokens(index.get_initial_state()) and guide.partition.class_of[first] == NEVER
    assert guide.advance(guide.start, first) == DEAD and guide.min_tokens(read(guide, "c")) == 1
    # The token that the model stops at is the end of sequence, also where the index has it as an ordinary token.
    vocabulary = Vocabulary((b"a", b"b", b"", b""), (3, 2), np.ones(4, dtype=bool))
    guide = FSMGuide.from_index(index_of("[abx]{1,2}", ["a", "b", "x", "<eos>"]), vocabulary)
    assert ended(guide, 3) == {(0,), (1,), *product((0, 1), repeat=2)} and guide.partition.class_of[3] == EOS


def test_what_cannot_be_made() -> None:
    guide, indexed = guide_of("a+"), FSMGuide.from_index(index_of("ab|c"), CORE)
    refused("no text is allowed by both", and_, guide, guide_of("b+"), error=EmptyLanguageError)
    elsewhere = guide_of("a+", Vocabulary.from_tokens(["<eos>", "a"], 0))
    refused("two vocabularies", and_, guide, elsewhere, error=VocabularyError)
    for table, other in ((replace(guide, automaton=None), guide), (indexed, guide_of("c", CORE))):
        refused("token table", and_, table, other)
    refused(r"b'xyz'.*needs bytes", guide_of, "xyz|xyza", error=EmptyLanguageError)
    refused(
        "no text at all",
        FSMGuide.from_automaton,
        compile_regex("a") & compile_regex("b"),
        VOCABULARY,
        error=EmptyLanguageError,
    )
    refused(
        "allows the id 10, which this vocabulary of 6 ids",
        FSMGuide.from_index,
        index_of("(ab|c)+"),
        Vocabulary.from_tokens(TOKENS[:6], EOS_ID),
        error=VocabularyError,
    )
    refused(
        "allows the id 3, .* does not end with",
        FSMGuide.from_index,
        index_of("b|c"),
        Vocabulary.from_tokens(["<eos>", *TOKENS[1:]], 0),
        error=VocabularyError,
    )
    refused("every path runs into a dead end", FSMGuide.from_index, index_of("(ab)*xx"), CORE, error=EmptyLanguageError)


def test_describe() -> None:
    guide, many = guide_of("ab?"), guide_of("[a-j]", Vocabulary.from_tokens(["<eos>", *"abcdefghij"], 0))
    assert guide.describe(guide.start) == f"state {guide.start} of 5: 2 tokens to go, next b'a', b'ab'"
    assert guide.describe(read(guide, "a")).endswith("1 tokens to go, next <eos>, b'b'")
    assert (guide.describe(DEAD), guide.describe(DONE)) == ("dead", "done")
    assert many.describe(many.start).endswith("b'f' and 4 more")


@pytest.mark.parametrize(
    "pattern", ["[a-c]é?x|€+", ".*x", "(ab|c)*", "[^a]{2}", "", "(?!ab)[abx]{2}", "a&b", "𝄞|é", "."]
)
def test_texts_of_an_automaton_over_characters(pattern: str) -> None:
    fsm = interegular.parse_pattern(pattern).to_fsm()
    assert isinstance(fsm, CharacterFSM)
    found = encoded(fsm)
    for text in map("".join, (each for n in range(4) for each in product("abcxé€𝄞\n", repeat=n))):
        assert found.accepts(text.encode()) == fsm.accepts(text), text
    assert not any(found.accepts(text) for text in (b"\xc3", b"\xff", b"\xa9", b"\xed\xa0\x80")), "no texts"


def test_the_classic_function_draws_what_the_expression_draws() -> None:
    model, pattern = from_transformers(*bundled.load()), "(yes|no)(, (it|we) (is|are) (open|closed))?"
    fsm, prompt = interegular.parse_pattern(pattern).to_fsm(), "Question: is the bakery open on Sunday? Answer: "
    makes = generate.fsm(model, fsm, phi="exact"), generate.regex(model, pattern, phi="exact")
    one, other = ([make(prompt, max_tokens=12, seed=seed) for seed in range(12)] for make in makes)
    assert one == other and len(set(one)) > 1
