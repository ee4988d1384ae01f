"""The fidelity suite on the bundled model, beside sums and draws made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import pytest
import torch
from torch import Tensor

from outlines_phi import LocalPhi, OneStepPhi, PhiTransformers, SamplingSettings, UnsupportedError
from outlines_phi.fidelity.findings import total_variation
from outlines_phi.guides import Table
from outlines_phi.phi import StepPhi
from outlines_phi.phi.estimator import Need
from outlines_phi_workbench.suite import experiment as subject
from outlines_phi_workbench.suite.cells import Cell
from outlines_phi_workbench.suite.experiment import Suite
from outlines_phi_workbench.suite.grid import Heading
from outlines_phi_workbench.suite.languages import QUICK, SUITE, Language, own
from outlines_phi_workbench.suite.methods import SAMPLERS, Method, known_estimators, methods
from outlines_phi_workbench.suite.reference import enumerate_language
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
