"""The guess that a value ends: where it may, the one way out, and what is forced after it."""

from __future__ import annotations

import pytest
from outlines.types.dsl import JsonSchema, to_regex
from pydantic import BaseModel, Field

from outlines_phi.drafting import EndingDrafter, FirstOf, ForcedDrafter, Site
from outlines_phi.guides import Guide
from tests.drafting.runs import propose, run_of, site_of, table_of
from tests.drafting.texts import CANONICAL, REAL, guides
from tests.inner import ForcedTexts


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int
    city: str


PATTERN = to_regex(JsonSchema(Person))
TABLE = table_of(PATTERN, REAL)
LETTERS = {written: token for token, written in enumerate(REAL.tokens) if len(written) == 1}


def after(guide: Guide, text: str) -> int:
    state = guide.start
    for byte in text.encode():
        state = guide.advance(state, LETTERS[bytes([byte])])
    return state


@pytest.mark.parametrize("kind", ["bytes", "tokens"])
@pytest.mark.parametrize(
    ("pattern", "written", "ending"),
    [
        (PATTERN, '{"name": "Ada', '", "age": '),
        (PATTERN, '{"name": "Ada", "age": 3', ', "city": "'),
        (PATTERN, '{"name": "Ada", "age": 36, "city": "Oslo', '"}'),
        (PATTERN, '{"name": "', ""),  # no value has begun
        (PATTERN, '{"name": "Ada", "age": ', ""),
        (PATTERN, '{"name": "Ada", "age": 0', ""),  # forced: nothing to guess
        (PATTERN, "", ""),
        ("[ab]+(c|d)", "ab", ""),  # two ways out
        ("[ab]+cab", "ab", "cab"),
        ("[ab]{3,5}cab", "ab", ""),  # too short to end
        ("[ab]{3,5}cab", "aba", "cab"),
    ],
)
def test_the_way_out_of_a_value(kind: str, pattern: str, written: str, ending: str) -> None:
    guide = guides(pattern, REAL)[kind]
    state, last = after(guide, written), written[-1:].encode()
    text, end = ForcedTexts(guide).ending(state, last, b",:", 100)
    assert text.decode() == ending
    assert end == after(guide, written + text.decode())


def test_short_values_cost_no_calls_of_their_own() -> None:
    tokens = CANONICAL.encode('{"name": "Ada", "age": 36, "city": "Oslo"}')

    def calls(drafter: FirstOf) -> int:
        run, at, count = run_of(TABLE, encode=CANONICAL.encode), 0, 0
        while at < len(tokens):
            site: Site = site_of(run, tokens[:at], budget=60)
            (draft,) = propose(drafter, run, [site], length=8)
            for token in draft.tokens:
                if at == len(tokens) or token != tokens[at]:
                    break
                at += 1
            at, count = at + 1, count + 1
        return count

    forced, both = calls(FirstOf((ForcedDrafter(),))), calls(FirstOf((ForcedDrafter(), EndingDrafter())))
    assert both < forced and len(tokens) / both > 2.5
