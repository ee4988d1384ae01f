"""Audits against exact enumeration: intervals at their rate, losses in their place, and no bias where there is none."""

import html
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from outlines_phi import (
    AuditReport,
    Draws,
    Effort,
    EmptyLanguageError,
    LocalPhi,
    SamplingSettings,
    Vocabulary,
)
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import TableModel
from outlines_phi_workbench.suite.reference import Reference
from tests.inner import (
    END,
    ROOT,
    AncestralSampler,
    BoundsTree,
    Certification,
    Evaluator,
    Evidence,
    Interval,
    IntervalEstimate,
    ModelCounts,
    Request,
    Trace,
    TraceRecorder,
    Wave,
    audit_traces,
    bias,
    compile_regex,
    grow_trees,
    log_weights,
    measure,
    plots,
    tree_bounds,
)
from tests.languages import LANGUAGES, LISTED, OF_EVERY_KIND, PROMPT, Language
from tests.refusals import refused

ALPHA = 0.1
AUDITS, COUNTED, N = 50, 40, 80
"""Audits, those of each law whose intervals are counted, and the draws of each."""

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
# The truncation leaves the last language nothing.
LAWS = [
    *((language, {}) for language in (*LANGUAGES, LISTED)),
    *((language, {"top_k": 6}) for language in LANGUAGES[:3]),
]
laws = pytest.mark.parametrize(("language", "options"), LAWS, ids=lambda value: str(value or "whole law"))


def draw(request: Request) -> tuple[list[list[Trace]], list[Draws]]:
    recorder = TraceRecorder(request.table.vocabulary, len(request.prompts), request.n)
    return recorder.traces, AncestralSampler(LocalPhi(), recorder).sample(request)


@cache
def many(language: Language, **options: object) -> list[Trace]:
    return draw(language.request(AUDITS * N, seed=21, **options))[0][0]


def audited(traces: list[list[Trace]], names: list[str] | None = None, **options: object) -> AuditReport:
    names = names or [f"prompt {i}" for i in range(len(traces))]
    defaults = {"settings": SamplingSettings(), "budgets": [7] * len(traces), "counts": ModelCounts()}
    return audit_traces(traces, names, **{**defaults, **options})  # type: ignore[arg-type]


def true_tv(reference: Reference) -> float:
    return 1 - sum(min(reference.mask[ids], p) for ids, p in reference.mu.items())


def true_kl(reference: Reference) -> float:
    """KL of the law of completed masked draws to mu*."""
    completed = sum(reference.mask.values())
    return sum(
        q / completed * math.log(q / completed / reference.mu[ids]) for ids, q in reference.mask.items() if q > 0
    )


def missed(estimates: list[tuple[IntervalEstimate, float]]) -> np.ndarray:
    """Return, for each interval, 1 if it misses the truth."""
    limits = [(estimate.interval.low - 1e-9, truth, estimate.interval.high + 1e-9) for estimate, truth in estimates]
    return np.array([not low <= truth <= high for low, truth, high in limits], dtype=float)


@laws
def test_traces_are_the_draws(language: Language, options: dict[str, int]) -> None:
    """The observer changes nothing; legal mass and margin are those of the model's law at every step."""
    request = language.request(300, seed=4, **options)
    (traces,), (draws,) = draw(request)
    plain = AncestralSampler(LocalPhi()).sample(request)[0]
    assert [one.token_ids for one in draws] == [one.token_ids for one in plain]
    assert sum(trace.failed for trace in traces) == draws.failures
    for trace, one in zip([trace for trace in traces if not trace.failed], draws, strict=True):
        assert tuple(trace.token_ids) == one.token_ids and trace.text == one.text
        assert trace.log_w == pytest.approx(one.log_w, abs=1e-9)
        assert math.fsum(trace.log_p) == pytest.approx(one.log_p, abs=1e-9)
    for trace in traces[:40]:
        state, sequence = language.table.start, list(PROMPT)
        for step, (log_s, margin) in enumerate(zip(trace.log_legal, trace.margin, strict=True)):
            logits = language.lm.logits(sequence)
            p = (
                request.settings.log_p(torch.from_numpy(logits)[None], language.lm.vocabulary, [sequence])[0]
                .exp()
                .numpy()
            )
            legal = p[language.table.moves(state, language.budget - step).tokens]
            assert math.exp(log_s) == pytest.approx(legal.sum(), abs=1e-9)
            if step < len(trace.token_ids):
                assert margin == pytest.approx(math.log(p.max() / legal.max()), abs=1e-9)
                state = language.table.guide.advance(state, trace.token_ids[step])
                sequence.append(trace.token_ids[step])


@languages
def test_the_tree_of_the_draws_bounds_phi_and_closes(language: Language) -> None:
    phi = math.exp(language.reference().log_phi)
    widths = []
    for n in (2, 20, 200, 4000):
        low, high = tree_bounds(many(language)[:n])
        assert low <= phi * (1 + 1e-12) and phi <= high * (1 + 1e-12)
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.2 * widths[0]
    # Power: the bounds are not so wide that any Phi would do.
    low, high = tree_bounds(many(language)[:4000])
    assert not low <= 1.3 * phi <= high


@pytest.mark.parametrize("tree", [False, True], ids=["draws alone", "with their tree"])
def test_intervals_hold_at_their_rate(tree: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 audits of 80 draws of each of eight laws; intervals at 90 % miss in at most 32 of 320, and say something.

    Were it one in five, 64 would miss on average, with a standard deviation of 7.
    """
    monkeypatch.setattr(bias, "RESAMPLES", 2)
    misses, above = {}, {}
    for language, options in LAWS:
        reference = language.reference(**options)
        phi, tv = math.exp(reference.log_phi), true_tv(reference)
        failed = 1 - sum(reference.mask.values())
        law, widths = str((language.name, options)), []
        misses[law], above[law] = np.zeros(3), 0
        for i in range(COUNTED):
            traces = many(language, **options)[i * N : (i + 1) * N]
            found = measure([log_weights(traces)], [tree_bounds(traces) if tree else (0.0, 1.0)], ALPHA)
            misses[law] += missed([(found.phi, phi), (found.tv, tv), (found.failed, failed)])
            above[law] += found.tv.interval.low > tv + 1e-9
            widths.append(found.tv.interval.width)
        assert np.mean(widths) < 0.7, law
        assert misses[law].max() <= 2 * ALPHA * COUNTED, law
    assert (sum(misses.values()) <= ALPHA * COUNTED * len(LAWS)).all()
    assert sum(above.values()) <= ALPHA * COUNTED * len(LAWS)


@pytest.mark.parametrize("language", [LANGUAGES[0], LANGUAGES[1]], ids=str)
def test_residual_attempts_narrow_the_intervals_which_hold_at_their_rate(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 audits of 80 draws with 60 more tokens each, at 90 %: enumeration, then attempts. Power: read at 4 times the evidence, the
    same intervals miss."""
    monkeypatch.setattr(bias, "RESAMPLES", 2)
    reference = language.reference()
    phi, tv, audits = math.exp(reference.log_phi), true_tv(reference), 50
    misses, wrong, narrower = np.zeros(2), 0, []
    for i in range(audits):
        log_w = log_weights(many(language)[i * N : (i + 1) * N])
        tree = BoundsTree(language.table, language.budget)
        evaluator = Evaluator(language.lm, language.settings(), [PROMPT], [tree])
        effort = Effort(tokens=60, attempts=500)
        row = Certification(tree, 1e-3, 1 - ALPHA, lambda number, i=i: np.random.default_rng((i, number)), effort, 16)
        grow_trees([row], evaluator)
        certain = [tuple(map(math.exp, tree.log_bounds))]
        found, without = measure([log_w], certain, ALPHA, [row.evidence]), measure([log_w], certain, ALPHA)
        assert found.residual is not None and found.attempts == row.evidence.attempts > 0
        assert found.certain == without.certain and found.residual.low == found.certain.low
        misses += missed([(found.phi, phi), (found.tv, tv)])
        narrower.append(without.phi.interval.high / found.phi.interval.high)
        louder = Evidence()
        for wave in row.evidence.waves:
            fewer = {"log_lower": wave.log_lower - math.log(4), "log_gap": wave.log_gap - math.log(4)}
            louder.waves.append(wave._replace(**fewer))
        wrong += not phi <= measure([log_w], certain, ALPHA, [louder]).phi.interval.high
    assert (misses <= ALPHA * audits).all() and np.mean(narrower) > 1.05 and wrong > 0.5 * audits


def test_attempts_of_several_prompts_share_the_error() -> None:
    """The limit of a mean is the mean of limits, each at its share; a prompt without attempts keeps its certain bound."""
    log_w = [log_weights(many(language)[:100]) for language in LANGUAGES[:2]]
    found = Evidence()
    found.waves.append(Wave(math.log(0.01), math.log(0.2), 50, 0))
    certain = [(0.01, 0.21), (0.0, 0.5)]
    both = measure(log_w, certain, 0.1, [found, Evidence()])
    assert both.residual is not None
    assert both.residual.high == pytest.approx((math.exp(found.log_limit(0.05)) + 0.5) / 2)
    assert both.residual.low == pytest.approx(0.005) and both.attempts == 50
    alone = measure(log_w[:1], certain[:1], 0.1, [found])
    assert alone.residual is not None and alone.residual.high == pytest.approx(math.exp(found.log_limit(0.1)))
    assert alone.phi.interval.high == pytest.approx(min(math.exp(found.log_limit(0.025)), alone.phi.interval.high))
    assert measure(log_w, certain, 0.1, [Evidence(), Evidence()]) == measure(log_w, certain, 0.1)


def test_the_report_says_which_bound_is_certain() -> None:
    found = Evidence()
    found.waves.append(Wave(-math.inf, 0.0, 500, 20))
    traces = [list(many(LANGUAGES[0])[:200])]
    report = audited(traces, evidence=[found], bounds=[(0.0, 1.0)])
    text = " ".join(str(report).split())
    assert "Phi, for certain" in text and "Phi, at 95% confidence, by 500 residual attempts" in text
    assert "intervals that use it count it in" in text
    assert report.to_dict()["pooled"]["bias"]["residual"]["high"] == report.pooled.bias.residual.high
    assert "residual attempts" not in str(audited(traces))


@languages
def test_the_count_of_misses_has_power(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that forget the last step's legal mass give intervals that miss."""
    monkeypatch.setattr(bias, "RESAMPLES", 2)
    phi = math.exp(language.reference().log_phi)
    misses = 0
    for i in range(COUNTED):
        log_w = np.array([math.fsum(trace.log_legal[:-1]) for trace in many(language)[i * N : (i + 1) * N]])
        low, high = measure([log_w], [(0.0, 1.0)], ALPHA).phi.interval
        misses += not low <= phi <= high
    assert misses > 0.5 * COUNTED


@laws
def test_estimates_are_consistent(language: Language, options: dict[str, int]) -> None:
    """Phi is unbiased by a z-test; TV, KL and Pr(w = 0) come out at the truth from many draws."""
    reference = language.reference(**options)
    log_w = log_weights(many(language, **options))
    found = measure([log_w], [(0.0, 1.0)], ALPHA)
    w = np.exp(log_w)
    assert abs(found.mean_w - math.exp(reference.log_phi)) < 4 * w.std() / math.sqrt(w.size)
    low, high = tree_bounds(many(language, **options))
    closer = measure([log_w], [(low, high)], ALPHA)
    assert closer.mean_w == found.mean_w and low * (1 - 1e-12) <= closer.phi.value <= high * (1 + 1e-12)
    assert found.tv.value == pytest.approx(true_tv(reference), abs=0.03)
    completed = log_w[log_w > -math.inf]
    error = w.std() / w.mean() / math.sqrt(w.size) + completed.std() / math.sqrt(completed.size)
    assert abs(found.kl.value - true_kl(reference)) < 4 * error
    assert found.kl.interval.low - 2 * error <= true_kl(reference) <= found.kl.interval.high + 2 * error
    failed = max(0.0, 1 - sum(reference.mask.values()))
    assert abs(found.failed.value - failed) < 4 * math.sqrt(failed * (1 - failed) / w.size) + 1e-9
    assert found.failures == round(found.failed.value * w.size)
    assert (failed > 0.01) == bool(options)


def test_a_phi_too_small_for_a_float_is_measured_all_the_same() -> None:
    """Weights scaled by exp(-900): the same TV, KL and effective sample size, and log Phi lower by 900."""
    log_w = log_weights(many(LANGUAGES[0])[:500])
    here, there = (measure([log_w - shift], [(0.0, 1.0)], ALPHA) for shift in (0.0, 900.0))
    for name, lower in (("log_phi", 900), ("tv", 0), ("kl", 0)):
        one, other = getattr(here, name), getattr(there, name)
        assert other.value == pytest.approx(one.value - lower)
        assert other.interval.low == pytest.approx(one.interval.low - lower)
    assert there.ess == pytest.approx(here.ess)


def test_several_prompts_are_averaged() -> None:
    """Two laws as two prompts: the pooled Phi, TV and KL are means, and the intervals hold them."""
    chosen = LANGUAGES[:2]
    report = audited([many(language)[:2000] for language in chosen])
    references = [language.reference() for language in chosen]
    pooled = report.pooled.bias
    for estimate, truth in (
        (pooled.phi, np.mean([math.exp(r.log_phi) for r in references])),
        (pooled.tv, np.mean([true_tv(r) for r in references])),
    ):
        assert estimate.interval.low <= truth <= estimate.interval.high and estimate.interval.width < 0.2
    assert pooled.kl.value == pytest.approx(np.mean([finding.bias.kl.value for finding in report.findings]))
    for name in ("nats", "excess"):  # of all prompts, at each step
        parts = [{loss.place: getattr(loss, name) for loss in finding.steps} for finding in report.findings]
        means = {loss.place: np.mean([part.get(loss.place, 0.0) for part in parts]) for loss in report.pooled.steps}
        assert {loss.place: getattr(loss, name) for loss in report.pooled.steps} == pytest.approx(means)
    assert pooled.draws == 4000
    assert [finding.name for finding in report.findings] == ["prompt 0", "prompt 1"]
    assert "all 2 prompts" in " ".join(str(report).split())


TOKENS = ["<eos>", '{"a":"', "x", "y", "z", '","b":"', '"}', "?"]
RECORD = Vocabulary.from_tokens(TOKENS, 0)
RECORD_TABLE = Table(FSMGuide.from_automaton(compile_regex(r'\{"a":"(x|y)","b":"(x|y)"\}'), RECORD))

EVEN = {"x": 0.5, "y": 0.5}


def record_law(leak: str | None, constant: Mapping[str, float] | None = None) -> TableModel:
    """A law of records that writes x after x, outside the format, in the field ``leak``; with its lesser mass elsewhere."""

    def law(sequence: tuple[int, ...]) -> np.ndarray:
        text = "".join(TOKENS[v] for v in sequence[1:] if v)
        p: Mapping[str, float]
        match text[-6:]:
            case "":
                p = {'{"a":"': 1.0}
            case '{"a":"' | '","b":"' | '","b":':
                p = EVEN if constant is None else {**{v: q * 0.5 for v, q in EVEN.items()}, "z": 0.5}
            case _ if text.endswith('"}'):
                p = {"<eos>": 1.0}
            case _ if text.endswith('":"'):
                p = EVEN if constant is None else {**{v: q * 0.5 for v, q in EVEN.items()}, "z": 0.5}
            case _:
                field = "b" if '"b"' in text else "a"
                close = '"}' if field == "b" else '","b":"'
                p = {close: 0.2, "z": 0.8} if field == leak and text.endswith("x") else {close: 1.0}
        with np.errstate(divide="ignore"):
            return np.log([p.get(token, 0.0) for token in TOKENS])

    return TableModel(RECORD, law)


@cache
def records(leak: str | None, constant: bool = False, n: int = 3000) -> AuditReport:
    lm = record_law(leak, EVEN if constant else None)
    settings = SamplingSettings(max_new_tokens=8, seed=5)
    request = Request(lm=lm, table=RECORD_TABLE, prompts=[(7,)], settings=settings, n=n)
    traces, _ = draw(request)
    return audited(traces, ["a prompt"], settings=settings, budgets=request.budgets)


@pytest.mark.parametrize(("leak", "other"), [("a", "b"), ("b", "a")])
def test_losses_are_found_in_their_field(leak: str, other: str) -> None:
    """The same law with its leak in one field and in the other: all mass is lost there, as much as the law says."""
    report = records(leak)
    assert report.by_field
    losses = {loss.place: loss for loss in report.pooled.places}
    assert list(losses) == [ROOT, "a", "b", END]
    share = np.mean([json.loads(trace.text)[leak] == "x" for trace in report.traces[0]])
    assert share == pytest.approx(0.5, abs=0.03) and losses[leak].nats == pytest.approx(share * math.log(5))
    # Of what the model means, x is a sixth there.
    assert losses[leak].excess == pytest.approx((0.5 - 1 / 6) * math.log(5), abs=0.05)
    assert losses[leak].margin == pytest.approx(share * math.log(4) / 2, abs=1e-9)
    assert all(losses[place].nats == pytest.approx(0, abs=1e-12) for place in losses if place != leak)
    assert {(one.field, one.value) for one in report.pooled.distortions} == {(leak, '"x"'), (leak, '"y"')}
    worst = next(one for one in report.pooled.distortions if one.value == '"x"')
    assert worst.masked == pytest.approx(0.5, abs=0.03) and worst.model == pytest.approx(1 / 6, abs=0.03)
    assert abs(worst.masked - worst.model) > worst.noise > 0
    assert other not in {one.field for one in report.pooled.distortions}


@pytest.mark.parametrize("language", LANGUAGES[:2], ids=str)
def test_shares_under_masking_are_those_of_completed_draws(language: Language) -> None:
    traces = many(language, top_k=6)
    completed = Counter(trace.text for trace in traces if not trace.failed)
    found = audited([traces]).pooled.distortions
    assert found and completed.total() < len(traces)
    for one in found:
        assert one.masked == pytest.approx(completed[one.value] / completed.total(), rel=1e-12)


def test_the_excess_of_all_places_is_the_symmetric_divergence() -> None:
    traces = many(LANGUAGES[0])[:4000]
    report = audited([traces])
    assert not report.by_field
    reference = LANGUAGES[0].reference()
    symmetric = true_kl(reference) + sum(
        p * math.log(p / reference.mask[ids]) for ids, p in reference.mu.items() if p > 0
    )
    assert math.fsum(loss.excess for loss in report.pooled.places) == pytest.approx(symmetric, rel=0.1)
    assert [loss.place for loss in report.pooled.steps] == [
        str(step) for step in range(1, len(report.pooled.steps) + 1)
    ]
    assert math.fsum(loss.nats for loss in report.pooled.steps) == pytest.approx(-np.mean(log_weights(traces)))


def test_power_a_fair_mask_is_not_accused_and_a_biased_one_is() -> None:
    """A loss that all draws share is no bias: Phi is a quarter, and masking is exact."""
    fair, biased = records(None, constant=True), records("a")
    assert fair.pooled.bias.phi.value == pytest.approx(0.25)
    assert fair.pooled.bias.tv.interval.low == pytest.approx(0, abs=1e-9)
    assert fair.pooled.bias.tv.interval.high < 0.01 and fair.pooled.bias.kl.value == pytest.approx(0, abs=1e-9)
    assert {loss.place for loss in fair.pooled.places if loss.nats > 0.1} == {"a", "b"}
    assert all(abs(loss.excess) < 1e-9 for loss in fair.pooled.places)
    assert not fair.pooled.distortions and not fair.warnings
    assert str(fair).splitlines()[2].startswith("Plain masking is not biased by more than 0.05")
    assert biased.pooled.bias.tv.interval.low > 0.25
    assert biased.pooled.bias.tv.interval.low <= 1 / 3 <= biased.pooled.bias.tv.interval.high
    assert str(biased).splitlines()[2].startswith("Plain masking is biased")


def test_values_of_a_fair_field_are_rarely_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 audits of 150 draws: the field without a leak is named in at most 5 % of them, the other one in most."""
    monkeypatch.setattr(bias, "RESAMPLES", 2)  # of the divergence, which is not looked at
    traces = records("a", n=9000).traces[0]
    reports = [audited([list(traces[i : i + 150])]) for i in range(0, 9000, 150)]
    named = [{one.field for one in report.pooled.distortions} for report in reports]
    assert sum("b" in fields for fields in named) <= 0.05 * len(named) + 1
    assert sum("a" in fields for fields in named) >= 0.9 * len(named)


def test_few_effective_draws_and_failures_are_said() -> None:
    report = audited([many(LANGUAGES[3])[:20]])
    assert any("worth fewer than 30" in warning for warning in report.warnings) and not report.pooled.distortions
    assert "Warning: " in str(report) and "**Warning.**" in report.to_markdown()
    language = LANGUAGES[0]
    report = audited([many(language, top_k=6)[:500]], settings=language.settings(top_k=6))
    failures = report.pooled.bias.failures
    assert failures > 0 and sum(loss.failures for loss in report.pooled.steps) == failures
    assert any("top_k=6" in warning and f"{failures} draws" in warning for warning in report.warnings)


NEGATIVE_ZERO = re.compile(r"-0(\.0+)?(?![\d.])")
"""Zero with a sign, alone in a cell or a sentence."""

FORMS = {"text": str, "markdown": AuditReport.to_markdown, "page": AuditReport.to_html}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_numbers_names_the_outermost_value_and_gives_no_zero_a_sign(form: str) -> None:
    """Excess and limits are differences of floats, which rounding leaves as -0.000; keys and punctuation are a place."""
    report = records("a")
    text, tv = " ".join(html.unescape(FORMS[form](report)).split()), report.pooled.bias.tv
    for words in (f"{tv.value:.3f}", f"{tv.interval.low:.3f} ... {tv.interval.high:.3f}", "95% confidence", "a prompt"):
        assert words in text
    assert "bootstrap" in text and "max_new_tokens=8" in text
    fair = records(None, constant=True)
    hostile = replace(
        fair.pooled,
        places=tuple(replace(loss, nats=1.0, excess=-1e-9, margin=-1e-12) for loss in fair.pooled.places),
        bias=replace(
            fair.pooled.bias,
            tv=IntervalEstimate(-1e-17, Interval(-1e-17, 0.0)),
            log_phi=IntervalEstimate(-1e-9, Interval(-1.0, -0.0)),
        ),
    )
    written = FORMS[form](replace(fair, pooled=hostile, findings=(hostile,)))
    assert NEGATIVE_ZERO.findall(written) == [] and "0.000" in written and NEGATIVE_ZERO.search(f"{-1e-9:+.3f}")
    assert "(whole value)" in written and "(end of text)" in written and "$" not in written


def test_the_page_has_charts_of_its_numbers_escapes_and_is_self_contained() -> None:
    page, report = records("a").to_html(), records("a").pooled
    labels = re.findall(r'<svg [^>]*aria-label="([^"]*)">', page)
    assert [label.split()[0] for label in labels] == ["Distance", "Legal", "Most"]
    (distance, losses, values) = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    low, high = (250 + 390 * limit for limit in report.bias.tv.interval)
    assert f'x1="{low:.2f}"' in distance and f'x2="{high:.2f}"' in distance
    assert f">{report.places[1].nats:.3f}<" in losses and ">a<" in losses
    assert all(
        f">a: {one.value}<" in html.unescape(values) and f">{one.masked:.3f}<" in values for one in report.distortions
    )
    several = audited([many(LANGUAGES[0])[:50]] * 20, ["<script>", *(f"prompt {i}" for i in range(19))]).to_html()
    assert re.findall(r"<svg .*?</svg>", several, re.DOTALL)[0].count('class="mark"') == plots.ROWS
    assert "&lt;script&gt;" in several and "<script>" not in several and "http" not in several
    assert several.count("<section") == several.count("</section>")


HOSTILE = "a`b|c <img src=x> ![x](y)\n| *z* &amp; \\"
SHOWN = r"a\`b\|c &lt;img src=x> !\[x\](y)"


def test_markdown_shows_names_places_and_warnings_as_they_are() -> None:
    """In the verdict, in cells, and in warnings; HTML, links and new lines are nowhere begun."""
    report = audited([many(LANGUAGES[0])[:50]], [HOSTILE])
    losses = tuple(replace(loss, place=HOSTILE, nats=1.0) for loss in report.pooled.places)
    written = replace(
        report, pooled=replace(report.pooled, places=losses), warnings=(HOSTILE, *report.warnings)
    ).to_markdown()
    assert not re.search(r"<|(?<!\\)[`\[]|^\| \*z", written, re.MULTILINE)
    lines = [line for line in written.splitlines() if SHOWN in line]
    assert any(line.startswith(f"> **Warning.** {SHOWN} \\| \\*z\\* &amp;amp; \\\\") for line in lines)
    assert any(line.startswith(f"| {SHOWN} \\| ") and line.count(" | ") == 5 for line in lines)
    assert any(
        line.startswith(("No bias", "Plain masking")) and "a\\`b\\|c &lt;" in line for line in written.splitlines()
    )


def test_the_dictionary_is_json_and_complete() -> None:
    report = records("a")
    found = json.loads(report.to_json())
    assert found == report.to_dict()
    assert found["pooled"]["bias"]["tv"]["interval"]["low"] == report.pooled.bias.tv.interval.low
    assert found["settings"]["max_new_tokens"] == 8 and found["budgets"] == [8]
    assert {loss["place"] for loss in found["pooled"]["places"]} == {ROOT, "a", "b", END} and "traces" not in found


@pytest.mark.parametrize(
    ("suffix", "start"), [(".md", b"# Audit"), (".json", b"{"), (".html", b"<!doctype html>"), (".png", b"\x89PNG")]
)
def test_reports_are_saved_by_suffix(suffix: str, start: bytes, tmp_path: Path) -> None:
    path = records("a").save(tmp_path / f"audit{suffix}")
    assert path.read_bytes().startswith(start) and [file.name for file in tmp_path.iterdir()] == [path.name]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    refused(r"outlines_phi\[cli\]", records("a").save, tmp_path / "audit.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["audit.pdf", "audit", "missing/audit.md", "folder.md"])
def test_a_path_that_cannot_be_written_leaves_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.md").mkdir()
    refused(r"expected \.md|cannot be written", records("a").save, tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["folder.md"]


def test_an_interrupted_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.md"
    path.write_text("old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outlines_phi.numerics.cache.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        records("a").save(path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_audits_of_nothing_are_refused() -> None:
    for traces, words in (([], "No prompts"), ([many(LANGUAGES[0])[:1]], "at least 2")):
        refused(words, audited, traces)
    failed = Trace(log_legal=[-math.inf], margin=[math.inf])
    refused("top_k=1", audited, [[failed, failed]], settings=SamplingSettings(top_k=1), error=EmptyLanguageError)


def test_one_prompt_without_a_completed_draw_does_not_lose_the_others() -> None:
    report = audited([many(LANGUAGES[0])[:50], [Trace([1], [b"a"], [-2.0], [-1.0, -math.inf], [0.5, math.inf])] * 50])
    assert report.findings[1].steps[0].margin == 0.5 and report.findings[1].steps[0].nats == 0
    dead = report.findings[1].bias
    assert dead.failed.value == 1 and math.isnan(dead.kl.value) and dead.tv.interval.low > 0.8
    assert report.findings[0].bias.kl.value > 0
    assert json.loads(report.to_json())["findings"][1]["bias"]["kl"]["value"] is None and "none" in str(report)
