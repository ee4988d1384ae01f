"""Certificates of masks, and the program that is extracted from a proof and checks them (proofs/theories/certificate.v)."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.guides import CFGGuide, read_grammar
from outlines_phi.guides.grammar.notation.reader import grammar_text
from outlines_phi.guides.guide import DEAD, DONE, Row
from outlines_phi_workbench.verification import certificate as subject
from outlines_phi_workbench.verification.certificate import certificate

BYTES = [bytes([byte]) for byte in range(256)]
SHORT = Vocabulary.from_tokens([*BYTES, b"((", b"))", b"1+", b'":', b"[]", b"{}", b"}]", b""], 263)
TEXTS = {
    **{name: grammar_text(name) for name in ("arithmetic", "dyck-2", "json", "lean", "sql", "c")},
    "traps": 'value: NUM | "(" NUM NUM ")"\nstart: value\nNUM: /1+/\n',
    "going back": "start: (NUM | WORD)+\nNUM: /1+(e1+)?/\nWORD: /[a-z]+/\n%ignore /_+/\n",
}

Checker = Callable[[Any], tuple[int, str]]


def guide_of(name: str) -> CFGGuide:
    return CFGGuide.of(read_grammar(TEXTS[name]), SHORT)


@cache
def written(name: str, samples: int = 4) -> dict[str, Any]:
    return certificate(guide_of(name), samples=samples)


@pytest.mark.parametrize(
    ("name", "samples"), [*((name, 4) for name in ("arithmetic", "dyck-2", "json", "traps", "going back")), ("lean", 0), ("sql", 0)]
)  # fmt: skip
def test_masks_of_small_grammars_and_lexers_of_large_ones_are_proven(name: str, samples: int, checker: Checker) -> None:
    code, said = checker(written(name, samples))
    assert (code, said[:6]) == (0, "PROVED") and f"{len(written(name, samples)['samples'])} masks of 263" in said, said


def flip(found: dict[str, Any], bit: str) -> None:
    """Change the first bit of a mask that is ``bit``."""
    mask = found["samples"][1]["mask"]
    place = mask.index(bit)
    found["samples"][1]["mask"] = mask[:place] + "10"[int(bit)] + mask[place + 1 :]


def step(found: dict[str, Any]) -> None:
    """Lead a step of the lexer elsewhere."""
    rows = found["lexer"]["targets"]
    state, column = next((s, c) for s, row in enumerate(rows) for c, target in enumerate(row) if target > 1)
    rows[state][column] -= 1


def witness(found: dict[str, Any]) -> None:
    """Complete a text by other bytes."""
    next(outcome for outcome in found["samples"][1]["outcomes"] if isinstance(outcome[2], list))[2][0].append(33)


def rules(found: dict[str, Any]) -> tuple[list[Any], int]:
    return found["grammar"]["rules"], found["grammar"]["start"]


FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a token too few": lambda found: flip(found, "1"),
    "a token too many": lambda found: flip(found, "0"),
    "a step of the lexer": step,
    "a lexer that emits nothing": lambda found: [row.__setitem__(slice(None), [0] * len(row)) for row in found["lexer"]["emits"]],
    "a rule too many": lambda found: rules(found)[0].append([rules(found)[1], [0]]),
    "a rule too few": lambda found: [rule.__setitem__(1, []) for rule in rules(found)[0] if rule[0] == rules(found)[1]],
    "items that are not closed": lambda found: [here.__delitem__(slice(0, 1)) for here in found["places"]["items"]],
    "an arc too few": lambda found: [here.__delitem__(slice(0, 1)) for here in found["places"]["arcs"]],
    "an end": lambda found: found["samples"][0].update(end=[[], []]),
    "a witness": witness,
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_refused(fault: str, checker: Checker) -> None:
    found = copy.deepcopy(written("arithmetic"))
    assert checker(found)[0] == 0
    FAULTS[fault](found)
    code, said = checker(found)
    assert (code, said[:7]) == (1, "REFUSED"), said


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"tokens": [[', '{"samples": 1e5}', '{"tokens": [[1]]} 2'])
def test_what_is_no_certificate_is_refused(text: str, checker: Checker) -> None:
    code, said = checker(text)
    assert code == 2 and said.startswith("Give a certificate"), said


def test_a_wrong_guide_is_refused(checker: Checker) -> None:
    guide = guide_of("traps")
    right = guide.row(guide.start)
    targets = right.targets.copy()
    trap = right.partition.class_of[ord("(")]
    assert targets[trap] == DEAD  # lexer and parser would read it, and nothing completes it
    targets[trap] = targets[targets > DONE][0]
    guide.row = lambda state: Row(right.partition, targets)  # type: ignore[method-assign]
    assert checker(certificate(guide, samples=1))[1].startswith("REFUSED")


def test_what_has_no_certificate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UnsupportedError, match=r"Give a grammar whose lexemes are the longest without exception\. After '/"
    ):
        certificate(guide_of("c"), samples=0)
    few = CFGGuide.of(read_grammar(TEXTS["traps"]), Vocabulary.from_tokens([b"11", b"(", b")", b""], 3))
    with pytest.raises(UnsupportedError, match=r"every byte is a token\. Members with the byte '1'"):
        certificate(few)
    monkeypatch.setattr(subject, "MOST_ITEMS", 100)
    with pytest.raises(UnsupportedError, match=r"Give a smaller grammar\. .* 100 items or arcs"):
        certificate(guide_of("json"), samples=1)
