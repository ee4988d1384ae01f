"""The reasons that tokens are masked: compared with the guide, byte by byte."""

from __future__ import annotations

import pytest

from outlines_phi.guides.guide import DEAD
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi_workbench.inspection.inspected import Inspected
from outlines_phi_workbench.inspection.refusals import LOOKED_AT, TextPlace, grouped_refusals, why_masked
from outlines_phi_workbench.inspection.text_walk import after, begin

from .conftest import TEXTS, encode, guide, inspected, vocabulary, without


def places(of: Inspected, text: str) -> list[TextPlace]:
    found = [begin(of)]
    for token in encode(text):
        found.append(after(of, found[-1], token))
    return found


def behind(of: Inspected, text: str) -> TextPlace:
    return places(of, text)[-1]


def token(text: str) -> int:
    return vocabulary().tokens.index(text.encode())


def test_a_token_has_a_reason_where_the_guide_masks_it_and_no_other(language: str) -> None:
    of = inspected(language)
    for at in places(of, TEXTS[language])[1::7]:
        mask, _ = of.live(at.state, at.remaining)
        assert [why_masked(of, at, each) is None for each in range(len(mask))] == mask.tolist()


def test_the_byte_at_fault_is_the_first_that_the_guide_does_not_go_on_with(language: str) -> None:
    """The guide reads the bytes as tokens of one byte each, without the machine that found the reason."""
    of, spelled = inspected(language), vocabulary().tokens
    byte_token = {each[0]: number for number, each in enumerate(spelled) if len(each) == 1}
    at, seen = behind(of, TEXTS[language]), 0
    for number in range(0, len(spelled), 5):
        found = why_masked(of, at, number)
        if found is None or not spelled[number]:
            continue
        state = at.state
        for byte in spelled[number][: found.offset]:
            state = of.guide.advance(state, byte_token[byte])
            assert state != DEAD
        assert of.guide.advance(state, byte_token[spelled[number][found.offset]]) == DEAD
        seen += found.offset > 0
    assert seen or language in ("decimal", "tree")  # whose tokens there are single bytes, or fail at once


def test_the_lexer_names_what_is_pending_and_the_parser_what_may_come() -> None:
    of = inspected("arithmetic")
    at = behind(of, "1+(2*")
    letter, bracket = why_masked(of, at, token("a")), why_masked(of, at, token(")"))
    assert letter is not None and letter.fault.kind == "lexer" and letter.fault.what == "STAR"
    assert bracket is not None and bracket.fault.kind == "parser" and bracket.fault.what == "terminal RPAR"
    assert {"NUMBER", "LPAR"} <= set(bracket.fault.expected) and "RPAR" not in bracket.fault.expected
    assert "product: product STAR • atom" in bracket.fault.because


def test_a_schema_names_the_place_and_the_bytes() -> None:
    of = inspected("schema")
    wrong = why_masked(of, behind(of, '{"name": "bo", "tags": ["'), token("x"))
    assert wrong is not None and wrong.fault.what == "text of #/tags/[]" and wrong.fault.expected == ("[ab]",)


def test_the_end_and_ids_without_bytes() -> None:
    of, ends = inspected("arithmetic"), vocabulary().eos_ids
    found = why_masked(of, behind(of, "1+"), ends[0])
    assert found is not None and found.fault.kind == "parser" and "start rule is not complete" in found.fault.because
    assert why_masked(of, behind(of, "1"), ends[0]) is None
    silent = next(v for v, text in enumerate(vocabulary().tokens) if not text and v not in ends)
    nothing = why_masked(of, begin(of), silent)
    assert nothing is not None and nothing.fault.kind == "vocabulary"


def test_a_banned_phrase_is_named() -> None:
    of = without("decimal", "12", "7.")
    assert (found := why_masked(of, behind(of, "1"), token("2"))) is not None
    assert found.fault.kind == "ban" and found.fault.what == "'12'"
    assert why_masked(of, behind(of, "1"), token("3")) is None
    assert (letter := why_masked(of, behind(of, "1"), token("a"))) is not None and letter.fault.kind == "automaton"


def test_the_limit_of_tokens_is_named() -> None:
    of = Inspected.of("arithmetic", guide("arithmetic"), budget=4)
    found = why_masked(of, behind(of, "("), token("("))
    assert found is not None and found.fault.kind == "budget"
    assert found.fault.because == "The shortest end after it takes 4 more tokens, and the limit of 4 leaves 2."


def test_groups_count_every_masked_token_once(language: str) -> None:
    of = inspected(language)
    for at in places(of, TEXTS[language])[::4]:
        mask, _ = of.live(at.state, at.remaining)
        groups, unlocated = grouped_refusals(of, at, mask)
        masked = [number for number, text in enumerate(vocabulary().tokens) if text and not mask[number]]
        assert sum(group.count for group in groups) + unlocated == len(masked)
        assert unlocated == 0 or isinstance(of.guide, JSONGuide)
        for group in groups:
            assert 0 < len(group.sample) <= group.count and group.because
            part, node = group.node or (of.machine.graph.parts[0].id, None)
            assert node is None or node in {each.id for each in of.machine.graph.states_of(part).nodes}


def test_groups_are_what_each_of_their_tokens_is_masked_for() -> None:
    of = inspected("arithmetic")
    at = behind(of, "1+(2*3")
    mask, _ = of.live(at.state, at.remaining)
    groups, _ = grouped_refusals(of, at, mask)
    single = {
        (why.fault.kind, why.fault.what)
        for v in range(len(mask))
        if vocabulary().tokens[v] and (why := why_masked(of, at, v))
    }
    assert {(group.kind, group.what) for group in groups} == single


def test_few_bytes_are_read(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a vocabulary is: what a step reads is bounded."""
    of, reads = inspected(language), 0
    read = type(of.machine).read

    def counting(machine: object, place: object, byte: int) -> object:
        nonlocal reads
        reads += 1
        return read(machine, place, byte)  # type: ignore[arg-type]

    monkeypatch.setattr(type(of.machine), "read", counting)
    at = begin(of)
    grouped_refusals(of, at, of.live(at.state, at.remaining)[0])
    assert 0 < reads <= LOOKED_AT + 256
