"""131,072 tokens: what a step reads and what a page gets do not grow with them."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from benchmarks.tekken import tekken_vocabulary
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.notation.reader import read_grammar
from outlines_phi.vocabulary.trie import fewest_tokens
from outlines_phi_workbench.inspection.inspected import Inspected
from outlines_phi_workbench.inspection.inspection import Inspection
from outlines_phi_workbench.inspection.machines.grammar_machine import GrammarMachine
from outlines_phi_workbench.inspection.refusals import LOOKED_AT

from .test_machine_graph import chain


@pytest.mark.skipif(find_spec("mistral_common") is None, reason="the vocabulary is in mistral-common")
def test_a_step_of_a_grammar_of_200_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = tekken_vocabulary()
    of = Inspected.of("chain", CFGGuide.of(read_grammar(chain(200)), vocabulary))
    reads, read = 0, GrammarMachine.read

    def counting(machine: GrammarMachine, place: object, byte: int) -> object:
        nonlocal reads
        reads += 1
        return read(machine, place, byte)  # type: ignore[arg-type]

    monkeypatch.setattr(GrammarMachine, "read", counting)
    found = Inspection(of, lambda text: fewest_tokens(vocabulary, text.encode())).walk("a0 b1 x")
    steps = found["steps"]
    assert len(steps) > 3 and {step["tokens"] for step in steps} == {131_072}
    assert reads <= len(steps) * (LOOKED_AT + 512)
    for step in steps:
        masked = sum(group["count"] for group in step["masked"]) + step["unlocated"]
        assert masked + step["live"] == sum(map(bool, vocabulary.tokens)) + step["may_end"]
    assert max(len(json.dumps(step)) for step in steps) < 12_000
