"""The exact reference, against brute force over all token sequences; figures of a cell, against sums by hand; the suite's table."""

import itertools
import json
import math
import re
from collections import Counter

import numpy as np
import pytest

from outlines_phi import BigramDPPhi, LocalPhi, OneStepPhi, UnsupportedError
from outlines_phi.fidelity.findings import frequencies, total_variation
from outlines_phi.fidelity.plots import png
from outlines_phi.numerics.weights import log_mean
from outlines_phi.phi import ProposalPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi_workbench.suite.cells import Cell, computed, drawn, ordered_groups, weighed
from outlines_phi_workbench.suite.grid import COLUMNS, Grid, Heading, draw_grid, number, row
from outlines_phi_workbench.suite.reference import Ids, Reference, count_prefixes, enumerate_language
from tests.guides.walking import assert_same
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language

PROPOSALS: dict[str, ProposalPhi] = {phi.name: phi for phi in (LocalPhi(), OneStepPhi(), BigramDPPhi())}
SMALL = (Language("two", "(ab|ba|c){1,2}", 4, seed=4), Language("ends", "a*b?", 4, seed=9))


def enumerated(language: Language, **options: object) -> Reference:
    law = language.lm, language.table, PROMPT, language.settings(), language.budget
    return enumerate_language(*law, **{"estimators": PROPOSALS, **options})  # type: ignore[arg-type]


def brute_force(language: Language, **options: object) -> dict[tuple[int, ...], float]:
    """log p of every member, by matching the text of every token sequence."""
    eos, settings, found = VOCABULARY.eos_ids[0], language.settings(**options), {}
    for length in range(language.budget):
        for ids in itertools.product(range(1, len(VOCABULARY)), repeat=length):
            if re.fullmatch(language.pattern, VOCABULARY.decode(ids).decode()):
                trees = language.lm.trees([PROMPT])
                logits = [
                    trees.roots().logits,
                    *(trees.extend([node], [token]).logits for node, token in enumerate(ids)),
                ]
                laws = [settings.log_p(each, VOCABULARY, ())[0] for each in logits]
                found[(*ids, eos)] = sum(float(law[token]) for law, token in zip(laws, (*ids, eos), strict=True))
    return {ids: log_p for ids, log_p in found.items() if log_p > -math.inf}


@pytest.mark.parametrize("language", SMALL, ids=str)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 6}], ids=str)
def test_members_and_their_probabilities_are_those_of_brute_force(
    language: Language, options: dict[str, object]
) -> None:
    reference, expected = language.reference(**options), brute_force(language, **options)
    assert_same(set(reference.log_p), set(expected))
    assert reference.log_p == pytest.approx(expected, abs=1e-6)
    assert reference.log_phi == pytest.approx(math.log(sum(map(math.exp, expected.values()))))


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_the_laws_of_estimators_are_those_of_their_draws(language: Language) -> None:
    """log q of every draw, by its own account of the steps, is what the enumeration says; no mass is lost, and laws differ."""
    reference = enumerated(language)
    assert sum(reference.mu.values()) == pytest.approx(1)
    assert any(abs(reference.mu[ids] - reference.mask[ids]) > 0.01 for ids in reference.mu)
    for name, phi in PROPOSALS.items():
        assert sum(reference.distribution(name).values()) == pytest.approx(1)
        for draw in AncestralSampler(phi).sample(language.request(60, seed=2))[0]:
            assert draw.log_p - draw.log_w == pytest.approx(reference.log_q[name][draw.token_ids], abs=1e-9)


def test_draws_without_weights_keep_the_a_priori_bound() -> None:
    """Theory, 1.4: TV <= 1 - r^T, each step having at least r times its probability under mu*; texts fall short by more."""
    steps_add_up = False
    for language, phi in itertools.product(OF_EVERY_KIND, (LocalPhi, OneStepPhi)):
        reference = enumerated(language)
        law = reference.distribution(phi.name)
        steps = []
        for of in (law, reference.mu):
            mass = Counter[tuple[int, ...]]()
            for ids, p in of.items():
                mass.update({ids[:length]: p for length in range(len(ids) + 1)})  # type: ignore[dict-item]
            steps.append({ids: p / mass[ids[:-1]] for ids, p in mass.items() if ids and mass[ids[:-1]] > 0})
        ratio = min(steps[0].get(ids, 0.0) / p for ids, p in steps[1].items() if p > 0)
        tv = 1 - sum(min(law[ids], p) for ids, p in reference.mu.items())
        assert tv <= 1 - ratio ** max(map(len, law)) + 1e-9
        steps_add_up |= min(law[ids] / p for ids, p in reference.mu.items()) < 0.9 * ratio
    assert steps_add_up


def test_truncation_and_languages_that_are_too_large() -> None:
    assert 0 < sum(LANGUAGES[0].reference(top_k=4).mask.values()) < 0.999
    with pytest.raises(UnsupportedError, match="max_prefixes"):
        enumerated(LANGUAGES[0], max_prefixes=3)
    assert count_prefixes(LANGUAGES[1].table, 10**6, 1000) is None


@pytest.mark.parametrize("language", [*SMALL, *OF_EVERY_KIND], ids=str)
def test_prefixes_are_counted(language: Language) -> None:
    prefixes = len({ids[:i] for ids in language.reference().mu for i in range(len(ids))})
    assert count_prefixes(language.table, language.budget, prefixes) == prefixes
    assert count_prefixes(language.table, language.budget, prefixes - 1) is None


P = {(1, 0): 0.10, (2, 0): 0.05, (3, 0): 0.05}
Q = {(1, 0): 0.5, (2, 0): 0.4, (3, 0): 0.1}
"""Two members have one text; ``Phi = 0.2``."""


def figures(q: dict[Ids, float]) -> tuple[float | None, ...]:
    logs = [{ids: math.log(x) if x else -math.inf for ids, x in law.items()} for law in (P, q)]
    found = computed(Reference(logs[0], {"q": logs[1]}), "q", lambda ids: "aba"[ids[0] - 1])
    return found.tv, found.tv_tokens, found.kl, found.ess, found.lost


KL = 0.4 * math.log(0.4 / 0.25) + 0.1 * math.log(0.1 / 0.25)
ESS = 0.2**2 / (0.1**2 / 0.5 + 0.05**2 / 0.4 + 0.05**2 / 0.1)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (tuple(Q.values()), (0.15, 0.15, KL, ESS, 0)),  # mu = 0.5, 0.25, 0.25; the text a: 0.6 against 0.75
        ((0.25, 0.2, 0.05), (0.15, 0.15, KL, ESS / 2, 0)),  # half of the trajectories fail: half as many count
        ((0.5, 0.25, 0.25), (0, 0, 0, 1, 0)),  # the truth
        ((0.25, 0.25, 0.5), (0, 0.25, 0.25 * math.log(2), 0.04 / 0.055, 0)),
        ((0, 0.5, 0.5), (0.25, 0.5, math.log(2), 1, 0.5)),  # half of mu* is lost, and no weight can bring it back
        ((0, 0, 0), (1, 1, math.nan, 0, 1)),
    ],
)
def test_figures_of_a_law_by_hand(q: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert figures(dict(zip(P, q, strict=True))) == pytest.approx(expected, nan_ok=True, abs=1e-12)


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_weights_say_the_same_as_the_sum(language: Language) -> None:
    """Draws in the proportions of the law, instead of random ones: the estimates are the figures themselves."""
    exact = language.reference()
    expected = computed(exact, "local", str)
    assert expected.tv_tokens == pytest.approx(total_variation(exact.mask, exact.mu))
    counts = {ids: round(200_000 * q) for ids, q in exact.mask.items()}
    log_w = np.repeat([exact.log_p[ids] - exact.log_mask[ids] for ids in counts], list(counts.values()))
    found = weighed(log_w, exact.log_phi)
    assert (found.tv_tokens, found.kl) == pytest.approx((expected.tv_tokens, expected.kl), abs=5e-3)
    assert found.ess == pytest.approx(expected.ess, rel=2e-2)
    assert log_mean(log_w) == pytest.approx(exact.log_phi, abs=2e-3)
    half = weighed([*log_w, *[-math.inf] * len(log_w)], exact.log_phi - math.log(2))
    assert (half.tv_tokens, half.kl, half.ess) == pytest.approx((found.tv_tokens, found.kl, found.ess / 2))
    assert weighed([-math.inf] * 3, exact.log_phi)[0] == 1


def test_frequencies_have_a_noise() -> None:
    tv, floor = drawn(["a"] * 60 + ["b"] * 40, {"a": 0.75, "b": 0.25})
    assert tv == pytest.approx(0.15)
    assert floor == pytest.approx(0.0345, abs=0.006)  # sqrt(2 / pi) of a standard deviation of 0.0433


def test_groups_keep_the_distance_of_two_laws_and_are_a_lower_limit_for_others() -> None:
    rng = np.random.default_rng(0)
    names = [str(i) for i in range(3000)]
    law, masked, other = (dict(zip(names, rng.dirichlet(np.full(3000, a)), strict=True)) for a in (1.0, 1.0, 0.5))
    group = ordered_groups(law, masked, 12)
    grouped = [frequencies(map(group.__getitem__, of), of.values()) for of in (law, masked, other)]
    whole = total_variation(law, masked)
    assert set(group.values()) == set(range(12)) and 0.97 * whole < total_variation(grouped[0], grouped[1]) <= whole
    assert total_variation(grouped[0], grouped[2]) <= total_variation(law, other)


CELLS = (
    Cell(
        family="brackets", language="short", estimator="local", sampler="draw", how="computed", tv=0.7112, floor=0.0,
        tv_tokens=0.72, kl=3.5, ess=0.2217, lost=0.0, log_z_error=-0.0129, calls=9.0, tokens=1234.5, n=100,
    ),
    Cell(
        family="brackets", language="short", estimator="local", sampler="smc-50", how="groups",
        tv=0.05, floor=0.03, change=-0.93, calls=9.0, tokens=50.0, n=100,
    ),
    Cell(
        family="strings", language="long", estimator="onestep", sampler="draw", how="weights",
        tv=0.5, floor=0.02, change=0.1, kl=math.inf, calls=20.0, tokens=20.0, n=100,
    ),
    Cell(family="strings", language="long", estimator="exact", sampler="draw", how="theorem", tv=0.0, certificate=0.0),
    Cell(family="strings", language="long", estimator="auto", sampler="draw", note="BudgetError: it ran out."),
)  # fmt: skip
HEADINGS = (
    Heading(name="short", family="brackets", title="Short words", log_phi=math.log(0.25), source="enumerated"),
    Heading(name="long", family="strings", title="Long words", log_phi=-9.0, error=0.02, source="estimated"),
)
GRID = Grid(HEADINGS, CELLS)


def test_a_row_has_all_columns_and_says_where_a_figure_comes_from() -> None:
    assert row(CELLS[0]) == ["local", "0.711", "-", "-", "0.72", "3.5", "0.222", "-0.013", "-", "9", "1,234"]
    assert row(CELLS[1])[:4] == ["local + smc-50", ">= 0.05", "noise", "0.03"]
    assert row(CELLS[2])[1:4] == ["0.5", "+10 %", "+-0.02"] and row(CELLS[3])[1] == "0 (theorem)"
    assert row(CELLS[4]) == ["auto", *["-"] * len(COLUMNS)]
    shown = {None: "-", math.nan: "-", 0.0: "0", 3e-11: "3.0e-11", 0.12345: "0.123", 12345.6: "12,346"}
    assert {x: number(x) for x in shown} == shown


def test_markdown_and_json_have_every_language() -> None:
    text = GRID.markdown()
    assert text.index("### Brackets") < text.index("**short**") < text.index("### Strings") < text.index("**long**")
    assert "Phi 0.25; enumerated" in text and "Phi 0.000123 +-2 %; estimated" in text
    assert "- auto: BudgetError: it ran out." in text
    assert all(line.count("|") == len(COLUMNS) + 2 for line in text.splitlines() if line.startswith("|"))
    data = json.loads(GRID.json(n=100))
    assert data["n"] == 100 and [language["name"] for language in data["languages"]] == ["short", "long"]
    assert data["cells"][0]["tv"] == 0.7112 and data["cells"][2]["kl"] is None


@pytest.mark.parametrize("cells", [CELLS, ()])
def test_the_figure_has_a_panel_per_family_that_has_points(cells: tuple[Cell, ...]) -> None:
    figure = draw_grid(Grid(HEADINGS, cells))
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_visible()]
    assert titles == (["brackets", "strings"] if cells else []) and png(figure).startswith(b"\x89PNG")
