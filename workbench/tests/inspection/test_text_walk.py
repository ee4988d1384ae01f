"""Texts token by token."""

from __future__ import annotations

import numpy as np
import pytest

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.notation.reader import read_grammar
from outlines_phi.guides.guide import DONE
from outlines_phi.guides.phrases.ban_language import banned
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.vocabulary.vocabulary import Vocabulary
from outlines_phi_workbench.inspection.inspected import Inspected
from outlines_phi_workbench.inspection.refusals import why_masked
from outlines_phi_workbench.inspection.text_walk import begin, place_after, tokens_of, walk

from .conftest import TEXTS, encode, guide, inspected, vocabulary


def test_a_step_counts_what_the_guide_allows(language: str) -> None:
    of, ids = inspected(language), encode(TEXTS[language])[:8]
    found = walk(of, ids)
    assert found.ids == tuple(ids) and not found.leaves and found.fault == ""
    state = of.guide.start
    for step, token in zip(found.steps, [*ids, None], strict=True):
        row = of.guide.row(state)
        targets = row.targets[row.partition.class_of]
        assert step.live == np.count_nonzero(targets) and step.tokens == len(targets) and step.token == token
        assert step.may_end == (targets[vocabulary().eos_ids[0]] == DONE) == (step.why_no_end == "")
        assert step.distance == of.guide.min_tokens(state) and step.left is None
        assert step.targets == len(np.unique(targets[targets != 0])) >= len(step.groups)
        if step.targets == len(step.groups):
            assert sum(group.count for group in step.groups) == step.live
        state = of.guide.advance(state, token) if token is not None else state


def test_where_a_text_stands_is_in_the_graph(language: str) -> None:
    of = inspected(language)
    graph = of.machine.graph
    found = walk(of, encode(TEXTS[language])[:6])
    for step in found.steps:
        assert step.nodes
        for part, node in step.nodes:
            assert node in {each.id for each in graph.states_of(part).nodes}
    assert len({step.nodes for step in found.steps}) > 2


def test_the_stack_grows_and_shrinks_with_brackets() -> None:
    found = walk(inspected("arithmetic"), encode("1+(2*3)"))
    depths = {step.offset: len(step.stack) for step in found.steps}
    assert depths[4] > depths[2] and len(found.steps[-1].stack) < max(depths.values())
    assert found.steps[0].stack == ("0: $start: • start $END",)


def test_a_text_that_leaves_the_language_ends_with_the_reason() -> None:
    found = walk(inspected("arithmetic"), encode("1+*2"))
    assert found.leaves and found.ids == tuple(encode("1+")) and found.steps[-1].refusal is not None
    assert found.steps[-1].refusal.fault.what == "terminal STAR" and "STAR" in found.fault


def test_tokens_whose_bytes_have_no_tokens() -> None:
    """No token writes ``b`` or ``]`` alone: within ``ab]`` there is no way on, and it is allowed."""
    small = Vocabulary.from_tokens(["[", "ab]", "a", ",", "ab,", "<end>"], 5)
    made = CFGGuide.of(read_grammar('start: "[" NAME ("," NAME)* "]"\nNAME: /[ab]+/'), small)
    for guide_of in (made, banned(made, BannedPhrases(["aa"]))):
        of = Inspected.of("names", guide_of, None if guide_of is made else made)
        found = walk(of, [0, 4, 1])
        assert not found.leaves and found.steps[-1].may_end and found.steps[-1].label == "RSQB"
        assert [why_masked(of, begin(of), token) is None for token in range(5)] == [True, False, False, False, False]
    behind = place_after(Inspected.of("names", made), [0])
    assert (why := why_masked(Inspected.of("names", made), behind, 3)) is not None and why.fault.kind == "parser"


def test_the_limit_counts_down() -> None:
    found = walk(Inspected.of("arithmetic", guide("arithmetic"), budget=6), encode("1+2"))
    assert [step.left for step in found.steps] == [6, 5, 4, 3]


def test_what_cannot_be_walked_is_refused() -> None:
    of = inspected("arithmetic")
    with pytest.raises(UnsupportedError, match="Give a text that the tokenizer writes as it is"):
        tokens_of(of, lambda text: encode(text + "x"), "1")
    with pytest.raises(UnsupportedError, match="Give tokens that are live"):
        place_after(of, encode("1+*"))
    with pytest.raises(UnsupportedError, match="Token 0, id -1, is masked"):
        place_after(of, [-1])
