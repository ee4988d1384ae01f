"""Certificates of masks, and the program that is extracted from a proof and checks them (proofs/theories/certificate.v)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar
from outlines_phi.guides.guide import DEAD, DONE, Row
from outlines_phi.vocabulary.vocabulary import Vocabulary
from outlines_phi_workbench.verification.certificates.certificate import certificate

BYTES = [bytes([byte]) for byte in range(256)]
SHORT = Vocabulary.from_tokens([*BYTES, b"((", b"))", b"1+", b'":', b"[]", b"{}", b"}]", b""], 263)
TRAP = 'value: NUM | "(" NUM NUM ")"\nstart: value\nNUM: /1+/\n'
BACK = "start: (NUM | WORD)+\nNUM: /1+(e1+)?/\nWORD: /[a-z]+/\n%ignore /_+/\n"


def guide_of(text: str) -> CFGGuide:
    """Return the guide of a grammar over all bytes and a few longer tokens."""
    return CFGGuide.of(read_grammar(text), SHORT)


@cache
def written(text: str, samples: int = 4) -> dict[str, Any]:
    """Return a certificate, which is made once."""
    return certificate(guide_of(text), samples=samples)


@pytest.mark.parametrize("name", ["arithmetic", "dyck-2", "json"])
def test_shipped_grammars_are_proven(name: str, checker: Callable[[Any], tuple[int, str]]) -> None:
    code, said = checker(written(grammar_text(name)))
    assert (code, said[:6]) == (0, "PROVED"), said
    assert "4 masks of 263 tokens" in said and "certificate.mask_certified" in said


@pytest.mark.parametrize("text", [TRAP, BACK], ids=["traps", "going back"])
def test_traps_and_lexers_that_go_back_are_proven(text: str, checker: Callable[[Any], tuple[int, str]]) -> None:
    code, said = checker(written(text))
    assert code == 0, said


@pytest.mark.parametrize("name", ["lean", "sql"])
def test_the_lexers_of_large_grammars_are_proven(name: str, checker: Callable[[Any], tuple[int, str]]) -> None:
    code, said = checker(written(grammar_text(name), 0))
    assert (code, "0 masks" in said) == (0, True), said


def flip(bits: str, place: int) -> str:
    """Return bits with one changed."""
    return bits[:place] + "10"[int(bits[place])] + bits[place + 1 :]


def wrong_mask(found: dict[str, Any], bit: str) -> None:
    """Change the first bit of a mask that is ``bit``."""
    mask = found["samples"][1]["mask"]
    found["samples"][1]["mask"] = flip(mask, mask.index(bit))


def wrong_step(found: dict[str, Any]) -> None:
    """Lead a step of the lexer elsewhere."""
    rows = found["lexer"]["targets"]
    state, column = next((s, c) for s, row in enumerate(rows) for c, target in enumerate(row) if target > 1)
    rows[state][column] -= 1


def silent(found: dict[str, Any]) -> None:
    """Let the lexer emit nothing more."""
    found["lexer"]["emits"] = [[0] * len(row) for row in found["lexer"]["emits"]]


def longer_rule(found: dict[str, Any]) -> None:
    """Let a rule derive more, which what is forbidden was not shown for."""
    found["grammar"]["rules"].append([found["grammar"]["start"], [0]])


def missing_rule(found: dict[str, Any]) -> None:
    """Take the rules of the start symbol away, on which what is allowed rests."""
    rules, start = found["grammar"]["rules"], found["grammar"]["start"]
    found["grammar"]["rules"] = [[head, [] if head == start else body] for head, body in rules]


def missing_item(found: dict[str, Any]) -> None:
    """Take away items, so that the set is not closed."""
    found["places"]["items"] = [here[1:] for here in found["places"]["items"]]


def missing_arc(found: dict[str, Any]) -> None:
    """Hide an emission of the lexer from the places."""
    found["places"]["arcs"] = [here[1:] for here in found["places"]["arcs"]]


def wrong_end(found: dict[str, Any]) -> None:
    """Let the empty text end."""
    found["samples"][0]["end"] = [[], []]


def wrong_witness(found: dict[str, Any]) -> None:
    """Complete a text by other bytes."""
    outcomes = found["samples"][1]["outcomes"]
    allowed = next(outcome for outcome in outcomes if isinstance(outcome[2], list))
    allowed[2][0] = [*allowed[2][0], 33]


FAULTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a token too few": lambda found: wrong_mask(found, "1"),
    "a token too many": lambda found: wrong_mask(found, "0"),
    "a step of the lexer": wrong_step,
    "a lexer that emits nothing": silent,
    "a rule too many": longer_rule,
    "a rule too few": missing_rule,
    "items that are not closed": missing_item,
    "an arc too few": missing_arc,
    "an end": wrong_end,
    "a witness": wrong_witness,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_refused(fault: str, checker: Callable[[Any], tuple[int, str]]) -> None:
    found = copy.deepcopy(written(grammar_text("arithmetic")))
    assert checker(found)[0] == 0
    FAULTS[fault](found)
    code, said = checker(found)
    assert (code, said[:7]) == (1, "REFUSED"), said


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"tokens": [[', '{"samples": 1e5}', '{"tokens": [[1]]} 2'])
def test_what_is_no_certificate_is_refused(text: str, checker: Callable[[Any], tuple[int, str]]) -> None:
    code, said = checker(text)
    assert code == 2 and said.startswith("Give a certificate"), said


def test_a_wrong_guide_is_refused(checker: Callable[[Any], tuple[int, str]]) -> None:
    guide = guide_of(TRAP)
    right = guide.row(guide.start)
    targets = right.targets.copy()
    trap = right.partition.class_of[ord("(")]
    assert targets[trap] == DEAD  # lexer and parser would read it, and nothing completes it
    targets[trap] = targets[targets > DONE][0]
    guide.row = lambda state: Row(right.partition, targets)  # type: ignore[method-assign]
    code, said = checker(certificate(guide, samples=1))
    assert (code, said[:7]) == (1, "REFUSED"), said


def test_a_lexer_by_exception_has_no_certificate() -> None:
    with pytest.raises(
        UnsupportedError, match=r"Give a grammar whose lexemes are the longest without exception\. After '/"
    ):
        certificate(guide_of(grammar_text("c")), samples=0)


def test_a_certificate_has_a_most_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_phi_workbench.verification.certificates.emitted_words.MOST_ITEMS", 100)
    with pytest.raises(UnsupportedError, match=r"Give a smaller grammar\. .* 100 items or arcs"):
        certificate(guide_of(grammar_text("json")), samples=1)


def test_every_byte_has_to_be_a_token() -> None:
    few = CFGGuide.of(read_grammar(TRAP), Vocabulary.from_tokens([b"11", b"(", b")", b""], 3))
    with pytest.raises(UnsupportedError, match=r"every byte is a token\. Members with the byte '1'"):
        certificate(few)


def test_it_does_not_depend_on_the_run() -> None:
    assert certificate(guide_of(TRAP), samples=3, seed=1) == certificate(guide_of(TRAP), samples=3, seed=1)
