"""The fidelity suite on the bundled model, beside sums and draws made here; its languages, against lists of their words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, final

import pytest
import torch
from torch import Tensor

from outlines_phi import EmptyLanguageError, LocalPhi, OneStepPhi, PhiTransformers, SamplingSettings, UnsupportedError
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.fidelity.findings import total_variation
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import TableModel
from outlines_phi.phi import StepPhi
from outlines_phi.phi.estimator import Need
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.testing import assert_guide, check_language_model
from outlines_phi_workbench.suite import experiment as subject
from outlines_phi_workbench.suite.cells import Cell
from outlines_phi_workbench.suite.experiment import RecordedModel, Suite
from outlines_phi_workbench.suite.grid import Heading
from outlines_phi_workbench.suite.languages import QUICK, SUITE, Language, dyck, of_sequences, of_single_bytes, own
from outlines_phi_workbench.suite.methods import SAMPLERS, Method, known_estimators, methods
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.guides.walking import ended
from tests.languages import VOCABULARY
from tests.precision import SHARE, near_log

LANGUAGES = {language.name: language for language in SUITE}


def measure(
    model: PhiTransformers, language: Language, chosen: list[Method], **settings: Any
) -> tuple[Heading, dict[str, Cell]]:
    law = SamplingSettings(**settings)
    found = list(Suite(model=model, languages=[language], methods=chosen, settings=law, n=200, seed=0).cells())
    return found[0][0], {cell.method: cell for _, cell in found}


def test_names_are_those_of_the_package_and_none_is_forgotten() -> None:
    with pytest.raises(UnsupportedError, match="None of the samplers smc-5 runs any of the estimators exact"):
        methods(["exact"], ["smc-5"])
    assert len(LANGUAGES) == len(SUITE) and QUICK <= set(LANGUAGES)
    assert all(names is None or names <= set(known_estimators()) for _, names in SAMPLERS.values())
    names = [method.name for method in methods()]
    assert len(set(names)) == len(names) and names[0] == "local"
    assert {"local + smc-50", "exact", "auto", "learned", "exact-0.1"} <= set(names)


def test_the_figures_are_those_of_the_enumerated_laws(model: PhiTransformers) -> None:
    language = LANGUAGES["dyck1-8-single"]
    heading, cells = measure(model, language, methods(["local", "onestep", "exact-0.1", "exact"], ["draw"]))
    prompt = model._prompt_ids(language.prompt)
    estimators = {"local": LocalPhi(), "onestep": OneStepPhi()}
    law = enumerate_language(model.lm, language.table(model), prompt, SamplingSettings(), 9, estimators=estimators)
    assert heading.log_phi == near_log(law.log_phi)
    for name in estimators:
        distance = total_variation(law.distribution(name), law.mu)
        assert cells[name].tv == pytest.approx(distance, abs=SHARE)
        assert cells[name].lost == 0 and cells[name].tokens == 8
        assert 0 < (cells[name].agreement or 0) < 2.5  # its draws have the law that was computed
    assert cells["onestep"].change == pytest.approx(cells["onestep"].tv / cells["local"].tv - 1)
    assert cells["exact-0.1"].tv < 1e-12 and cells["exact-0.1"].certificate < 1e-12
    assert cells["exact"].how == "draws" and cells["exact"].tv < 3 * cells["exact"].floor
    assert cells["exact"].certificate == 0 and cells["exact"].ess == pytest.approx(1)


def test_particles_and_predicates_run_beside_masking(model: PhiTransformers) -> None:
    _, cells = measure(model, LANGUAGES["answer"], methods(["local"]))
    assert set(cells) == {"local", "local + awrs", "local + smc-5", "local + smc-50", "local + smc-50-ess"}
    assert cells["local + awrs"].tv == pytest.approx(cells["local"].tv, abs=0.1)
    assert cells["local + smc-50"].tv < 0.1 < cells["local"].tv
    assert cells["local"].ess < cells["local + smc-5"].ess < cells["local + smc-50"].ess
    _, cells = measure(model, LANGUAGES["dyck1-8-single"], methods(["local"], ["draw", "awrs"]))
    assert set(cells) == {"local"}  # a predicate on texts knows nothing of one spelling


@final
@dataclass(frozen=True)
class Blind(StepPhi):
    """A wrong estimator: it never says yes."""

    name: ClassVar[str] = "blind"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide"})
    log_h = LocalPhi.log_h

    def scores(self, log_p: Tensor, table: Table, states: Sequence[int], remaining: Sequence[int]) -> Tensor:
        yes = torch.tensor([token.startswith(b"y") for token in table.vocabulary.tokens])
        return LocalPhi().scores(log_p, table, states, remaining).masked_fill_(yes, -torch.inf)


def test_a_wrong_estimator_is_reported_as_wrong(model: PhiTransformers) -> None:
    chosen = replace(methods(["local"], ["draw"])[0], estimator="blind", phi=Blind(), proposal=Blind())
    _, cells = measure(model, LANGUAGES["answer"], [chosen])
    assert cells["blind"].lost == pytest.approx(0.81, abs=0.02)
    assert cells["blind"].tv == pytest.approx(cells["blind"].lost)
    assert cells["blind"].log_z_error < -1
    own = replace(methods(["local"], ["draw"])[0], proposal=Blind())
    assert measure(model, LANGUAGES["answer"], [own])[1]["local"].agreement > 5  # draws that have another law


def test_where_members_are_too_many_weights_tell(model: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SHARPNESS", (1e-3, 50))
    monkeypatch.setattr(subject, "PREFIXES", 5)
    language = LANGUAGES["answer"]
    enumerated = measure(model, language, methods(["local"], ["draw"]))[1]["local"]
    monkeypatch.setattr(subject, "SHARPNESS", (0.0, 1))
    monkeypatch.setattr("outlines_phi.fidelity.probabilities.expand_usual", lambda *_, **__: None)
    heading, cells = measure(model, language, methods(["local", "exact", "exact-0.1"], ["draw"]))
    assert "weighted draws" in heading.source and heading.log_phi == pytest.approx(-0.877, abs=0.05)
    assert (cells["local"].how, cells["exact"].how, cells["exact-0.1"].how) == ("weights", "theorem", "")
    assert cells["local"].tv == pytest.approx(0.319, abs=4 * cells["local"].floor)
    assert enumerated.how == "draws" and enumerated.tv == pytest.approx(0.319, abs=0.1)


def test_what_cannot_be_measured_says_why_and_the_rest_goes_on(model: PhiTransformers) -> None:
    languages = [replace(LANGUAGES["dyck1-8-single"], budget=3), LANGUAGES["answer"]]
    chosen, settings = methods(["local", "exact"], ["draw"]), SamplingSettings()
    suite = Suite(model=model, languages=languages, methods=chosen, settings=settings, n=20, seed=0)
    cells = [cell for _, cell in suite.cells()]
    assert len(cells) == len(suite) == 4
    assert all("max_new_tokens=3 is too small" in cell.note for cell in cells[:2])
    assert not any(cell.note for cell in cells[2:])


def test_settings_are_part_of_the_law_and_seeds_name_the_draws(model: PhiTransformers) -> None:
    language = own("mine", "Question: is the bakery open on Sunday? Answer: ", bool)
    language = replace(language, table=LANGUAGES["answer"].table, budget=8)
    chosen = methods(["local", "exact"], ["draw"])
    first, again = (measure(model, language, chosen, temperature=0.7) for _ in range(2))
    assert first == again
    assert first[0].log_phi != pytest.approx(measure(model, language, chosen)[0].log_phi, abs=0.01)


def is_balanced(word: str) -> bool:
    while (shorter := word.replace("()", "").replace("[]", "")) != word:
        word = shorter
    return not word


@pytest.mark.parametrize(("name", "least"), [("dyck1-8", 8), ("dyck1-upto8", 2), ("dyck2-upto6", 2)])
def test_dyck_words_are_the_balanced_ones(name: str, least: int, model: PhiTransformers) -> None:
    language = LANGUAGES[name]
    assert language.budget is not None
    alphabet, lengths = "()[]"[: 2 * int(name[4])], range(least, language.budget)
    words = {"".join(word) for n in lengths for word in itertools.product(alphabet, repeat=n)}
    automaton = language.table(model).guide.machine
    assert isinstance(automaton, ByteAutomaton)
    assert {word.decode() for word in automaton.members()} == set(filter(is_balanced, words))


def test_single_bytes_spell_a_text_in_one_way() -> None:
    automaton = compile_regex(dyck(1, 4))
    single = of_single_bytes(automaton, VOCABULARY)
    assert single.vocabulary is VOCABULARY and single.automaton is None
    assert ended(single, 4) == {(9, 9, 10, 10), (9, 10, 9, 10)}
    assert ended(FSMGuide.from_automaton(automaton, VOCABULARY), 4) > ended(single, 4)


@pytest.mark.parametrize("sequences", [[(1, 2), (3,), (1, 4), (5, 1, 2), (5, 1)], [(), (1,)]])
def test_listed_sequences_are_the_language(sequences: list[tuple[int, ...]]) -> None:
    guide = of_sequences(sequences, VOCABULARY)
    assert ended(guide, 8) == set(sequences)
    assert_guide(guide)


def test_prefixes_that_are_continued_alike_share_a_state() -> None:
    words = list(itertools.product((1, 2, 3, 5), repeat=3))
    guide = of_sequences(words, VOCABULARY)
    assert len({reduce(guide.advance, word[:end], guide.start) for word in words for end in range(4)}) == 4  # lengths
    with pytest.raises(EmptyLanguageError, match="allows no text at all"):
        of_sequences([], VOCABULARY)

    inner = TableModel.random(VOCABULARY, seed=3, max_length=5)
    assert check_language_model(RecordedModel(inner)).error == 0
    lm, one = RecordedModel(inner), RecordedModel(inner, max_bytes=8 * len(VOCABULARY))
    for _ in range(3):
        trees, theirs = lm.trees([[1, 2], [1, 2]]), inner.trees([[1, 2], [1, 2]])
        assert torch.equal(trees.roots().logits, theirs.roots().logits)
        assert torch.equal(trees.extend([0, 1], [1, 1]).logits, theirs.extend([0, 1], [1, 1]).logits)
        assert trees.counts == theirs.counts and trees.next_node == theirs.next_node
        one.logits([(1,), (2,)])
    assert lm.evaluated == 2 and one.evaluated == 4  # what does not fit is asked for again
