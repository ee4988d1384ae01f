"""The checks: their verdicts on the fixtures, and engines that are wrong on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from outlines_phi.errors import EmptyLanguageError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.grammar import Grammar, Terminal
from outlines_phi.guides.grammar.lexing.lexer import NOTHING, START, Lexer
from outlines_phi.guides.grammar.lexing.spanner import Spanner
from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar
from outlines_phi.guides.guide import DEAD, DONE, Guide, Row
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.lm import bundled
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.classes import EOS
from outlines_phi.vocabulary.vocabulary import Vocabulary
from outlines_phi_workbench.verification.certificates.certificate import certificate
from outlines_phi_workbench.verification.exploration import Collapse, Exploration
from outlines_phi_workbench.verification.oracle import GrammarOracle
from outlines_phi_workbench.verification.subject import CheckFinding, GrammarParts, Subject, Verdict
from outlines_phi_workbench.verification.verification import CHECKS, Verification, verify
from tests.guides.grammar.fixtures import BY_ID, FIXTURES, Fixture, grammar, vocabulary, words

WRITTEN = [fixture for fixture in FIXTURES if not fixture.empty]
pytestmark = pytest.mark.filterwarnings("ignore:rules that never end")


def subject_of(fixture: Fixture, depth: int = 4, most: int | None = None) -> Subject:
    return Subject.of_grammar(fixture.grammar, fixture.vocabulary, depth=depth)


def verdicts(found: Verification) -> dict[str, Verdict]:
    return {result.check.id: result.finding.verdict for result in found.results}


@pytest.mark.parametrize("fixture", WRITTEN, ids=lambda fixture: fixture.id)
def test_the_engine_on_the_fixtures(fixture: Fixture) -> None:
    # All but the balanced words have finitely many states, so nothing is left out.
    is_finite = fixture.id != "DYCK"
    found = verify(subject_of(fixture, depth=8 if is_finite else 4))
    assert found.holds, [result for result in found.results if result.finding.verdict is Verdict.COUNTEREXAMPLE]
    of = verdicts(found)
    assert list(of) == [check.id for check in CHECKS]
    assert (of["S4"] is Verdict.EXHAUSTIVE) == fixture.has_separator
    assert (of["S5"] is Verdict.EXHAUSTIVE) == fixture.has_single_bytes
    assert (of["S6"] is Verdict.EXHAUSTIVE) == fixture.restarts
    assert {of[check] for check in ("S1", "S2", "S3", "T1", "T2", "T4")} == {Verdict.EXHAUSTIVE}
    expected = Verdict.EXHAUSTIVE if is_finite else Verdict.BOUNDED
    assert {of[f"T{n}"] for n in (9, 10, 11, 12, 13, 14, 16)} == {expected}
    assert of["T15"] is (expected if fixture.has_single_bytes else Verdict.BOUNDED)
    assert all(result.finding.cases for result in found.results if result.check.id not in ("S7", "T15"))


def test_a_vocabulary_that_completes_nothing() -> None:
    with pytest.raises(EmptyLanguageError):
        subject_of(BY_ID["NOSING"])


def test_tokens_where_bytes_are_missing() -> None:
    """Without ``(`` and ``)`` as tokens, whole tokens complete a text: what no token completes is no prefix."""
    fixture = BY_ID["DYCK"]
    found = verify(Subject.of_grammar(fixture.grammar, vocabulary("()", "((", "))", "_", ")("), depth=4))
    of = verdicts(found)
    assert of["S5"] is Verdict.NOT_NEEDED
    assert of["T10"] is not Verdict.COUNTEREXAMPLE and of["T12"] is not Verdict.COUNTEREXAMPLE


def test_lexemes_that_are_given_up() -> None:
    """A longer lexeme that fails puts out several at once."""
    terminals = (Terminal("NUM", r"1+(\.1+)?"), Terminal("DOT", r"\.", literal=True))
    alphabet = ("1", ".", "1.", "..")
    given = grammar(terminals, "s: NUM DOT DOT NUM | NUM | DOT s")
    subject = Subject.of_grammar(given, vocabulary(*alphabet), depth=5)
    found = verify(subject)
    assert found.holds, [result for result in found.results if result.finding.verdict is Verdict.COUNTEREXAMPLE]
    members = ["".join(word) for word in words(alphabet, 5) if subject.oracle.is_member("".join(word).encode())]
    begun = {member[:end] for member in members for end in range(len(member) + 1)}
    texts = {"".join(word) for word in words(alphabet, 2)}
    assert {text for text in texts if subject.oracle.is_prefix(text.encode())} == texts & begun
    assert "1..1" in members and not subject.oracle.is_prefix(b"1...")


class Wrong(Guide):
    """A guide whose rows somebody has changed."""

    def __init__(self, guide: Guide, change: Callable[[Guide, int, np.ndarray], None]) -> None:
        self.guide, self.change = guide, change
        self.vocabulary, self.start = guide.vocabulary, guide.start

    def row(self, state: int) -> Row:
        row = self.guide.row(state)
        targets = row.targets.copy()
        self.change(self.guide, state, targets)
        return Row(row.partition, targets)

    def min_tokens(self, state: int) -> int:
        return self.guide.min_tokens(state)

    def describe(self, state: int) -> str:
        return self.guide.describe(state)


class Promising(Wrong):
    """Promises an end that is nearer than it is."""

    def min_tokens(self, state: int) -> int:
        return max(1, self.guide.min_tokens(state) - 1)


def never_ends(guide: Guide, state: int, targets: np.ndarray) -> None:
    targets[EOS] = DEAD


def ends_anywhere(guide: Guide, state: int, targets: np.ndarray) -> None:
    targets[EOS] = DONE


def forgets_the_last_class(guide: Guide, state: int, targets: np.ndarray) -> None:
    if (targets[EOS + 1 :] != DEAD).sum() > 1:
        targets[np.flatnonzero(targets)[-1]] = DEAD


def unchanged(guide: Guide, state: int, targets: np.ndarray) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "kind", "broken", "witness"),
    [
        (never_ends, Wrong, {"T12", "T13", "T16"}, "<eos>"),
        (ends_anywhere, Wrong, {"T12", "T13", "T16"}, "'(' <eos>"),
        (forgets_the_last_class, Wrong, {"T11", "T13", "T14"}, None),
        (unchanged, Promising, {"T16"}, None),
        (unchanged, Wrong, set(), None),
    ],
)
def test_a_wrong_guide(
    change: Callable[[Guide, int, np.ndarray], None], kind: type[Wrong], broken: set[str], witness: str | None
) -> None:
    right = subject_of(BY_ID["DYCK"])
    found = verify(replace(right, guide=kind(right.guide, change)))
    of = {result.check.id: result.finding for result in found.results}
    laws = {f"T{n}" for n in (9, 10, 11, 12, 13, 14, 16)}
    assert {check for check in laws if of[check].verdict is Verdict.COUNTEREXAMPLE} == broken
    assert found.holds == (not broken)
    assert witness is None or of["T12"].witness == witness


def raw_engine(given: Grammar, words: Vocabulary) -> Guide:
    """The masks of the paper: what survives in the parser, with nothing known of how lexemes may stand side by side."""
    guide = CFGGuide.of(given, words)

    def survivors(_: Guide, state: int, targets: np.ndarray) -> None:
        configuration, lexeme = divmod(state - 2, len(guide.lexer))
        spans = guide.spanner.of_state(lexeme)
        for kind in range(EOS + 1, len(targets)):
            after = guide.parser.read(configuration, guide.spanner.words[spans.word[kind]])
            promised = np.flatnonzero(guide.lexer.reaches[spans.target[kind]]).tolist()  # nothing is held back here
            expected = after >= 0 and any(guide.parser.shift(after, each) != guide.parser.ERROR for each in promised)
            if targets[kind] == DEAD and spans.target[kind] and expected:
                targets[kind] = 2 + after * len(guide.lexer) + spans.target[kind]

    return Wrong(guide, survivors)


def test_dead_ends_of_masks_without_exact_realizability() -> None:
    fixture = BY_ID["DEAD"]
    right = subject_of(fixture)
    found = verify(replace(right, guide=raw_engine(fixture.grammar, fixture.vocabulary)))
    of = {result.check.id: result.finding for result in found.results}
    assert of["T10"].verdict is Verdict.COUNTEREXAMPLE and of["T10"].witness == "'('"
    assert of["T11"].verdict is not Verdict.COUNTEREXAMPLE and of["T12"].verdict is not Verdict.COUNTEREXAMPLE


def test_a_lexer_that_is_not_longest_match() -> None:
    """An oracle of other terminals: the lexer differs from it, and the shortest text that shows it is named."""
    fixture = BY_ID["REENT"]
    right = subject_of(fixture)
    other = grammar((replace(fixture.grammar.terminals[0], pattern="(ab)*a|abab"),), "texts: | texts T")
    assert right.machine is not None
    wrong = replace(right.machine, oracle=GrammarOracle(other))
    of = {r.check.id: r.finding for r in verify(replace(right, machine=wrong, oracle=wrong.oracle)).results}
    assert of["T1"].verdict is Verdict.COUNTEREXAMPLE and of["T1"].witness is not None and "abab" in of["T1"].witness
    assert of["T12"].verdict is Verdict.COUNTEREXAMPLE


def test_a_level_that_is_too_large_is_left_out() -> None:
    right = subject_of(BY_ID["DYCK"])
    narrow = Exploration.of(right.guide, right.oracle, right.collapse, depth=5, most=10)
    wide = Exploration.of(right.guide, right.oracle, right.collapse, depth=5)
    assert (narrow.complete, wide.complete, narrow.closed, wide.closed) == (1, 5, False, False)
    assert max(len(node.word) for node in narrow.nodes) == 1 and len(narrow.nodes) <= 10
    assert narrow.nodes == wide.nodes[: len(narrow.nodes)]


def test_without_a_depth_words_grow_until_no_pair_is_new_or_there_are_too_many() -> None:
    regular = Subject.of_pattern("a{20}|b*", vocabulary("a", "b", "bb"), most=30).exploration
    assert regular.closed and regular.complete == 21 and len(regular.inner) == len(regular.nodes) <= 30
    few = Subject.of_pattern("a{20}|b*", vocabulary("a", "b", "bb"), most=10).exploration
    assert not few.closed and 1 < few.complete < 20 and len(few.nodes) <= 10
    deep = Subject.of_pattern("a{20}|b*", vocabulary("a", "b", "bb"), depth=3).exploration
    assert not deep.closed and deep.complete == 3


class TestSpellings:
    """Masks that depend on the way in which a text is cut."""

    PATTERN, TOKENS = "(a|b)*ab", ("a", "b", "ab", "bb")

    def t15(self, subject: Subject) -> CheckFinding:
        (found,) = (check.find(subject) for check in CHECKS if check.id == "T15")
        return found

    @pytest.mark.parametrize("depth", [None, 3])
    def test_a_token_that_leads_elsewhere_than_its_bytes(self, depth: int | None) -> None:
        right = Subject.of_pattern(self.PATTERN, vocabulary(*self.TOKENS), depth=depth)
        assert self.t15(right).verdict is Verdict.EXHAUSTIVE

        def redirected(guide: Guide, state: int, targets: np.ndarray) -> None:
            kind = guide.partition_of(state).class_of[self.TOKENS.index("ab")]
            targets[kind] = guide.start

        found = self.t15(replace(right, guide=Wrong(right.guide, redirected)))
        assert found.verdict is Verdict.COUNTEREXAMPLE and found.witness == "'ab'"
        assert found.remark == "and 'ab' byte by byte"

    def test_a_difference_that_shows_later(self) -> None:
        """Two states with one mask, of which only later texts tell the one from the other: the token leads to the wrong one."""
        right = Subject.of_pattern("(aa)*b|ccc", vocabulary("a", "b", "c", "aa"))

        def redirected(guide: Guide, state: int, targets: np.ndarray) -> None:
            kind = guide.partition_of(state).class_of[3]
            targets[kind] = guide.advance(guide.start, 0) if targets[kind] != DEAD else DEAD

        assert self.t15(right).verdict is Verdict.EXHAUSTIVE
        assert self.t15(replace(right, guide=Wrong(right.guide, redirected))).verdict is Verdict.COUNTEREXAMPLE

    def test_tokens_whose_bytes_are_no_tokens_are_left_out(self) -> None:
        found = self.t15(Subject.of_pattern("(ab)*c", vocabulary("ab", "c", "cc")))
        assert found.verdict is Verdict.BOUNDED and found.remark == "1 of 2 tokens, whose bytes are tokens"

    def test_states_of_other_numbers_that_do_the_same(self) -> None:
        """A JSON guide numbers what was written in a key by its tokens."""
        tokens = sorted({bytes([byte]) for byte in range(128)} | {b'{"', b'":', b"12", b'"a', b"ab"})
        words_ = Vocabulary.from_tokens([*tokens, b""], len(tokens))
        schema = {"type": "object", "properties": {"ab": {"const": 12}}, "additionalProperties": False}
        subject = Subject.of_json(JSONGuide.of(schema, words_, blanks=""))
        assert self.t15(subject).verdict is Verdict.EXHAUSTIVE and subject.exploration.closed


class TestCollapse:
    def test_kinds_of_tokens(self) -> None:
        fixture = BY_ID["CALC"]
        words = vocabulary(*fixture.tokens, "aaa", "++", "a_", "-", "__", "aa+a+")
        guide = CFGGuide.of(fixture.grammar, words)
        found = Collapse.of(words, [guide.spanner.of_state(state).partition for state in range(1, len(guide.lexer))])
        kinds = {
            found.texts[place]: {words.tokens[v] for v in np.flatnonzero(found.stands_for == place)}
            for place in range(len(found.texts))
        }
        assert kinds[b"a"] == {b"a", b"aa", b"aaa"} and kinds[b"_"] == {b"_", b"__"}
        assert found.stands_for[words.tokens.index(b"-")] == -1 and found.stands_for[-1] == -1
        assert set(found.texts) == {b"a", b"+", b"_", b"a+", b"+a", b"++", b"a_", b"aa+a+"}

    def test_nothing_is_lost(self) -> None:
        """Every token is allowed where the one is that stands for it, and leads to the same."""
        right = subject_of(BY_ID["DYCK"])
        for node in right.exploration.nodes[:50]:
            for token in np.flatnonzero(right.collapse.stands_for >= 0).tolist():
                other = int(right.collapse.tokens[right.collapse.stands_for[token]])
                assert right.guide.advance(node.state, token) == right.guide.advance(node.state, other)

    @pytest.mark.parametrize(
        ("name", "representatives", "pairs", "texts"),
        [("json", 90, 92, 1980), ("arithmetic", 32, 33, 224)],
    )
    def test_counts_of_the_small_model_s_vocabulary(
        self, name: str, representatives: int, pairs: int, texts: int
    ) -> None:
        """The representatives of the vocabulary, and the pairs of states that all words of two tokens lead to."""
        words = Vocabulary.from_tokenizer(bundled.load()[1])
        found = verify(Subject.of_grammar(read_grammar(grammar_text(name)), words, depth=2))
        explored, collapse = found.subject.exploration, found.subject.collapse
        assert found.holds and (len(collapse.stands_for), explored.complete) == (1280, 2)
        assert (len(collapse.tokens), len(explored.nodes), found.texts) == (representatives, pairs, texts)
        of = verdicts(found)
        assert of["T4"] is Verdict.EXHAUSTIVE and of["S8"] is Verdict.BOUNDED

    def test_a_token_that_is_not_what_stands_for_it(self) -> None:
        """A collapse that takes names and brackets for one is found out on both sides."""
        right = subject_of(BY_ID["DYCK"])
        wrong = right.collapse.stands_for.copy()
        wrong[wrong >= 0] = 0
        found = verify(replace(right, collapse=right.collapse._replace(stands_for=wrong)))
        assert verdicts(found)["S8"] is Verdict.COUNTEREXAMPLE
        left_out = right.collapse.stands_for.copy()
        left_out[0] = -1
        found = verify(replace(right, collapse=right.collapse._replace(stands_for=left_out)))
        assert verdicts(found)["S8"] is Verdict.COUNTEREXAMPLE


class TestPatterns:
    @pytest.mark.parametrize("pattern", ["(ab)*a", "[ab]{2,4}", "a|ab|abb", "b*(a|ba)?"])
    def test_regular_expressions_are_proved(self, pattern: str) -> None:
        """Without a depth, for texts of any length."""
        subject = Subject.of_pattern(pattern, vocabulary("a", "b", "ab", "bb", "aba"))
        found = verify(subject)
        of = verdicts(found)
        assert found.holds and "T1" not in of and subject.exploration.closed
        assert {of[f"T{n}"] for n in range(9, 17)} == {Verdict.EXHAUSTIVE}
        words = [subject.guide.vocabulary.decode(word).decode() for word in subject.exploration.endings]
        assert words and all(re.fullmatch(pattern, word) for word in words)

    def test_a_third_party_says_what_is_wrong(self) -> None:
        subject = Subject.of_pattern(
            "[ab]+", vocabulary("a", "b"), depth=2, fault=lambda text: "has an a" if b"a" in text else None
        )
        found = {result.check.id: result.finding for result in verify(subject).results}
        assert found["T16"].verdict is Verdict.COUNTEREXAMPLE and found["T16"].remark == "has an a"

    def test_characters_that_tokens_cut(self) -> None:
        tokens = [b"\xc3", b"\xa9", b"\xa8", b"e", "\u00e9".encode()]
        given = Vocabulary.from_tokens([*tokens, b""], len(tokens))
        found = verify(Subject.of_pattern("(e|\u00e9)+", given, depth=4))
        assert found.holds and len(found.subject.collapse.tokens) < len(tokens)


def test_findings_as_json() -> None:
    found = verify(subject_of(BY_ID["DEAD"], depth=2)).as_dict()
    assert found["holds"] is True and found["vocabulary"] == {"tokens": 5, "representatives": 4}
    assert [check["id"] for check in found["checks"]] == [check.id for check in CHECKS]
    assert found["checks"][3] | {"seconds": 0} == {
        "id": "S4",
        "statement": "a separator may stand anywhere",
        "meaning": "An ignored byte, such as a space, may stand after every lexeme and belongs to none.",
        "verdict": "NOT NEEDED",
        "bound": None,
        "cases": 4,
        "witness": "no byte separates",
        "remark": "the theorems that need a separator do not apply; T10 to T14 are checked without one",
        "seconds": 0,
    }


def without_boundary(lexer: Lexer) -> Lexer:
    """A byte that ends a lexeme is not read once more as the beginning of the next one."""
    return replace(lexer, targets=np.where(lexer.emits != 0, DEAD, lexer.targets), emits=np.zeros_like(lexer.emits))


def without_flush(lexer: Lexer) -> Lexer:
    """The end of a text puts out nothing, and is refused after a lexeme."""
    ends = np.full_like(lexer.ends, NOTHING)
    ends[START] = 0
    return replace(lexer, ends=ends, label=np.full_like(lexer.label, NOTHING))


def with_clean_ends(lexer: Lexer) -> Lexer:
    """A state from which the start's bytes lead on as from the start is taken for it: the published construction."""
    ends = lexer.ends.copy()
    same = (lexer.targets == lexer.targets[START]).all(axis=1) & (ends == NOTHING)
    ends[same] = 0
    assert same.any()
    return replace(lexer, ends=ends)


@pytest.mark.parametrize(
    ("mutate", "id_", "check", "witness"),
    [
        (without_boundary, "CALC", "T1", "'++'"),
        (without_flush, "KW", "T1", "the end after '_'"),
        (with_clean_ends, "REENT", "T1", "the end after 'ab'"),
    ],
)
def test_a_wrong_lexer_is_found_out(mutate: Callable[[Lexer], Lexer], id_: str, check: str, witness: str) -> None:
    right = subject_of(BY_ID[id_])
    assert right.machine is not None
    spanner = Spanner(mutate(right.machine.guide.lexer), right.guide.vocabulary)
    mutant = CFGGuide(spanner, right.machine.guide.parser)
    wrong = replace(right, guide=mutant, machine=GrammarParts(mutant, GrammarOracle(right.machine.guide.grammar)))
    of = {found.id: found.find(wrong) for found in CHECKS if found.id in (check, "T12", "T14")}
    assert of[check].verdict is Verdict.COUNTEREXAMPLE and of[check].witness == witness
    # The masks are right where nothing but the table of ends was changed, and only if they do not use it.
    if mutate is not with_clean_ends:
        assert Verdict.COUNTEREXAMPLE in {of["T12"].verdict, of["T14"].verdict}


@pytest.mark.parametrize(
    ("pattern", "harmless"),
    [
        ("ab(ab)*", False),  # the first text that may end is within reach
        (
            "abbabb(ab)*",
            True,
        ),  # what leads away from the end is not: beyond the words that a wrong guide is followed on
        ("(abb)*", False),
    ],
)
def test_a_guide_that_is_wrong_beyond_the_words_that_are_tried_is_no_mistake(pattern: str, harmless: bool) -> None:
    subject = Subject.of_pattern(pattern, Vocabulary.from_tokens([b"</s>", b"a", b"b"], 0), depth=6)
    (found,) = (check.find(subject) for check in CHECKS if check.id == "T17")
    assert found.verdict is not Verdict.COUNTEREXAMPLE
    caught, _, spared = found.remark.partition("no mistake here:")
    name = "forbids what leads away from the end"
    assert name in (spared if harmless else caught)


@pytest.mark.parametrize(
    ("pattern", "tokens", "spell"),
    [
        ("(e|\u00e9)+", [b"\xc3", b"\xa9", b"e"], lambda token: token.decode(errors="replace").encode()),
        ("a(\\x00b)*", [b"a", b"\x00b", b"b"], lambda token: token.split(b"\0")[0] or b"\x01"),
    ],
)
def test_tokens_that_are_read_wrongly(pattern: str, tokens: list[bytes], spell: Callable[[bytes], bytes]) -> None:
    """Lossy UTF-8, and tokens that a NUL ends: the guide of such a vocabulary is not that of the tokens."""
    right = Subject.of_pattern(pattern, Vocabulary.from_tokens([*tokens, b""], len(tokens)), depth=3)
    misread = Vocabulary.from_tokens([*map(spell, tokens), b""], len(tokens))
    wrong = replace(right, guide=FSMGuide.from_automaton(compile_regex(pattern), misread))
    assert verify(right).holds and not verify(wrong).holds


def test_ends_of_sequence_beside_the_first() -> None:
    """Of several end-of-sequence ids the first stands for all; the others are never a text."""
    words_ = Vocabulary((b"a", b"", b"+", b"_", b""), (4, 1), np.ones(5, dtype=bool))
    found = verify(Subject.of_grammar(BY_ID["CALC"].grammar, words_, depth=3))
    assert found.holds and len(found.subject.collapse.tokens) == 3


CROSSING = 'start: A ":" B | B ";" C | C "." A\nA: /[ab]+/\nB: /[bc]+/\nC: /[ac]+|b/'


def test_what_is_checked_holds_for_shared_lexemes() -> None:
    letters = vocabulary(*"abc:;.", "ab", "b:", ";b")
    for text in (CROSSING, "start: (X | Y)+ Z\nX: /[ab]+;/\nY: /[bc]+;/\nZ: /[ab:]+;/"):
        subject = Subject.of_grammar(read_grammar(text), letters, text, depth=3)
        assert any(terminal.of for terminal in subject.parts.guide.grammar.terminals)
        found = verify(subject)
        assert [result for result in found.results if result.finding.verdict == "COUNTEREXAMPLE"] == []
        assert subject.parts.reading is not None and not subject.parts.reading.shared
        assert len(certificate(subject.parts.guide)["samples"]) > 3
