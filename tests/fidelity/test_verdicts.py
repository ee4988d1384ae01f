"""Verdicts of audits: on languages whose bias is known, on few draws, and the number of draws that they name."""

import html
import json
from functools import cache

import numpy as np
import pytest

from outlines_phi import LocalPhi, SamplingSettings, UnsupportedError, Vocabulary
from outlines_phi.fidelity import AuditVerdict, bias
from outlines_phi.fidelity.audit_report import AuditReport, audit_traces
from outlines_phi.fidelity.bias import TOLERANCE, Bias, Interval, measure
from outlines_phi.fidelity.findings import log_weights
from outlines_phi.fidelity.report_text import verdict_on
from outlines_phi.fidelity.traces import Trace, TraceRecorder, tree_bounds
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import TableModel
from outlines_phi.lm.model import ModelCounts
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.sampler import Request

TOKENS = ["<eos>", "x", "y", "z", "?"]
VOCABULARY = Vocabulary.from_tokens(TOKENS, 0)
TABLE = Table(FSMGuide.from_automaton(compile_regex("(x|y)z"), VOCABULARY))

AUDITS = 20  # Of each law and number of draws
KNOWN = [(0.2, 1.0), (0.6, 0.1), (0.95, 1.0), (1.0, 0.2)]
"""Laws of :func:`drawn`: their total variations are 1/3, 1/8, 0.013 and 0."""

known = pytest.mark.parametrize("law", KNOWN, ids=lambda law: "{} and {}".format(*law))


@pytest.fixture(autouse=True)
def no_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias, "RESAMPLES", 2)


@cache
def drawn(law: tuple[float, float]) -> list[Trace]:
    """Masked draws of ``(x|y)z`` where x and y are alike likely, and z has probability ``a b`` after x, ``b`` after y."""
    after_x, after_y = law[0] * law[1], law[1]

    def logits(sequence: tuple[int, ...]) -> np.ndarray:
        text = "".join(TOKENS[token] for token in sequence[1:])
        legal = {"": {"x": 0.5, "y": 0.5}, "x": {"z": after_x}, "y": {"z": after_y}}.get(text, {"<eos>": 1.0})
        p = [legal.get(token, 0.0) for token in TOKENS]
        with np.errstate(divide="ignore"):
            return np.log([*p[:-1], 1 - sum(p)])

    settings = SamplingSettings(max_new_tokens=3, seed=1)
    request = Request(lm=TableModel(VOCABULARY, logits), table=TABLE, prompts=[(1,)], settings=settings, n=8000)
    recorder = TraceRecorder(VOCABULARY, 1, request.n)
    AncestralSampler(LocalPhi(), recorder).sample(request)
    return recorder.traces[0]


def truth(law: tuple[float, float]) -> AuditVerdict:
    return AuditVerdict.BIASED if 0.5 - law[0] / (1 + law[0]) > TOLERANCE else AuditVerdict.NOT_BIASED


def audits(law: tuple[float, float], n: int, *, tree: bool, seed: int = 0) -> list[Bias]:
    rng, traces = np.random.default_rng(seed), drawn(law)
    found = []
    for _ in range(AUDITS):
        chosen = [traces[i] for i in rng.choice(len(traces), n, replace=False)]
        found.append(measure([log_weights(chosen)], [tree_bounds(chosen) if tree else (0.0, 1.0)], 0.05))
    return found


def report(law: tuple[float, float], n: int, prompts: int = 1, **options: object) -> AuditReport:
    traces = [drawn(law)[i * n : (i + 1) * n] for i in range(prompts)]
    defaults = {"settings": SamplingSettings(), "budgets": [3] * prompts, "counts": ModelCounts()}
    return audit_traces(traces, [f"prompt {i}" for i in range(prompts)], **{**defaults, **options})  # type: ignore[arg-type]


@known
def test_many_draws_decide_and_few_do_not(law: tuple[float, float]) -> None:
    """Power: the right verdict from 1,200 draws in each audit; of 6 draws each says that they are too few; none is wrong."""
    assert {found.verdict for found in audits(law, 1200, tree=True)} == {truth(law)}
    few = [found.verdict for n in (6, 25) for found in audits(law, n, tree=False)]
    assert set(few[:AUDITS]) == {AuditVerdict.UNDECIDED}
    assert set(few) <= {AuditVerdict.UNDECIDED, truth(law)}


@known
@pytest.mark.parametrize("tree", [False, True], ids=["draws alone", "with their tree"])
def test_the_number_that_is_named_is_about_enough(law: tuple[float, float], tree: bool) -> None:
    """In most audits of it there is a verdict, the right one; in few of a third of it."""
    first = audits(law, 10, tree=tree)
    assert all(found.needed is not None for found in first if found.verdict is AuditVerdict.UNDECIDED)
    named = [found.needed for found in first if found.needed is not None and found.needed <= 8000]
    assert len(named) >= AUDITS // 2
    there = int(np.median(named))
    enough = [found.verdict for found in audits(law, there, tree=tree, seed=1)]
    short = [found.verdict for found in audits(law, there // 3, tree=tree, seed=2)]
    print(f"{law}, tree {tree}: about {there} draws")
    assert set(enough) <= {AuditVerdict.UNDECIDED, truth(law)}
    assert enough.count(truth(law)) >= 0.5 * AUDITS
    assert short.count(truth(law)) <= 0.25 * AUDITS


def test_where_phi_is_tiny_bounds_are_named_instead_of_draws() -> None:
    """The upper limit of a Phi of 1e-6 comes down to it after some millions of draws alone."""
    alike = np.full(50, np.log(1e-6))
    alone = measure([alike], [(0.0, 1.0)], 0.05)
    assert (alone.verdict, alone.needed) == (AuditVerdict.UNDECIDED, None)
    assert "bounds_tokens" in verdict_on(alone, 0.95, "after it")
    bounded = measure([alike], [(9.9e-7, 1.01e-6)], 0.05)
    assert bounded.needed is not None and bounded.needed < 400


def test_a_verdict_is_where_the_interval_lies() -> None:
    for low, high, expected in [
        (0.0, 0.05, AuditVerdict.NOT_BIASED),
        (0.05, 0.3, AuditVerdict.UNDECIDED),
        (0.004, 0.811, AuditVerdict.UNDECIDED),
        (0.051, 0.3, AuditVerdict.BIASED),
    ]:
        assert AuditVerdict.of(Interval(low, high), 0.05) is expected


def test_every_form_of_a_report_says_the_verdict() -> None:
    for law, n, tolerance, words in [
        ((0.2, 1.0), 1000, 0.05, "Plain masking is biased: its distance"),
        ((1.0, 1.0), 1000, 0.05, "Plain masking is not biased by more than 0.05: its distance"),
        ((0.6, 1.0), 1000, 0.3, "Plain masking is not biased by more than 0.3: its distance"),
        ((0.6, 1.0), 10, 0.05, "Undecided whether plain masking is biased by more than 0.05: its distance"),
    ]:
        found = report(law, n, tolerance=tolerance)
        for written in (str(found), found.to_markdown(), html.unescape(found.to_html())):
            assert words in " ".join(written.split())
            assert ("To decide it, take about " in " ".join(written.split())) == (
                found.verdict is AuditVerdict.UNDECIDED
            )
        kept = json.loads(found.to_json())["pooled"]["bias"]
        assert (kept["verdict"], kept["needed"], kept["tolerance"]) == (found.verdict, found.draws_needed, tolerance)


def test_several_prompts_have_a_verdict_each_and_one_together() -> None:
    both = report((0.6, 1.0), 5, prompts=2)
    assert both.verdict is both.pooled.bias.verdict is AuditVerdict.UNDECIDED
    assert [finding.bias.verdict for finding in both.findings] == [AuditVerdict.UNDECIDED] * 2
    alone = [finding.bias.needed for finding in both.findings]
    assert both.draws_needed is not None and both.draws_needed < min(n for n in alone if n is not None)


@pytest.mark.parametrize("tolerance", [0, -0.1, 1.5, float("nan"), True, "small", None])
def test_a_tolerance_that_is_none_is_refused(tolerance: object) -> None:
    with pytest.raises(UnsupportedError, match="tolerance"):
        report((1.0, 1.0), 10, tolerance=tolerance)
