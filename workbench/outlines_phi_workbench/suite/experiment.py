"""The fidelity suite: languages as they are measured, each with its truth, and how far every method is from that."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outlines_phi import (
    AutoPhi,
    BudgetError,
    Draws,
    Effort,
    ExactPhi,
    FidelityWarning,
    Guarantee,
    LocalPhi,
    OutlinesPhiError,
    SamplingSettings,
    TextConstraint,
)
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.fidelity.findings import frequencies, total_variation
from outlines_phi.fidelity.probabilities import probabilities
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.guides.guide import DEAD
from outlines_phi.lm import LanguageModel, SequenceTrees, TokenTrees
from outlines_phi.lm.model import WrappedModel
from outlines_phi.numerics.weights import log_mean
from outlines_phi.phi import ProposalPhi
from outlines_phi.phi.tree.evaluator import TreeStore
from outlines_phi.phi.tree.tree import BoundsTree
from outlines_phi.plugin.call import CallOptions
from outlines_phi.plugin.session import PhiModel
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.resolve import sampler_for
from outlines_phi.sampling.sampler import Request

from .cells import Cell, Truth, computed, drawn, ordered_groups, weighed
from .grid import Heading
from .languages import Language
from .methods import AWRS, DRAW, Method
from .reference import CertifiedWalk, Ids, count_prefixes, enumerate_language

PREFIXES = 20_000  # Prefixes of a language that is enumerated, at most;
RECORDED = 2**30  # and bytes of their next-token distributions
ASKED = 256  # Prefixes that the model is asked for in one call
SINGLE = 16  # Calls for one draw each, whose cost is counted

TOGETHER = 50
"""Such calls that are made side by side, where the distribution of a draw depends on the others of its call."""

APART = 200  # Draws of such a method, at most
POPULATIONS = 250  # Draws that are picked from populations of particles, at most

FREE, FREE_SINGLE = 200, 4
"""Draws, and calls for one draw each, where a language cannot be enumerated: every draw then takes model calls of its own."""

FREE_EFFORT, FREE_TOKENS = Effort(attempts=100, tokens=150), 5_000
"""Limits of effort of each of many exact draws there, and the model tokens of a certificate."""

NORMALIZERS = 50  # Residual attempts after many exact draws, which know `Phi` by bounds only without them

SHARPNESS = 1e-3, 10_000
"""The tolerance of the distribution of the texts where token sequences are too many, and the model tokens that it may cost."""

REFERENCE = 800  # Weighted draws that `Phi` is estimated from where even that is too much
NOISY, GROUPS = 0.06, 12  # Noise of a TV of texts from which on it is that of so many groups of them
LEAST_NOISE = 1e-6  # Noise of a distribution that is all on one text

ANY_TEXT = r"[\x00-\x7f]*"
"""Texts that a predicate is asked about: in ASCII, because it sees nothing of an unfinished character and could not refuse it."""


@final
class RecordedModel(WrappedModel):
    """The distribution of another model, each prefix of which is evaluated once: for thousands of draws from one small language.

    The counts of its trees are those of a model that remembers nothing. All draws are from one distribution, in float64, so that
    rounding is not measured. ``max_bytes`` bounds the logits that are kept; ``evaluated`` counts the prefixes that were asked for.
    """

    def __init__(self, lm: LanguageModel, *, max_bytes: int = 2**30) -> None:
        super().__init__(lm)
        self.evaluated, self._left = 0, max_bytes
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SequenceTrees(self.logits, prompts, len(self.vocabulary), self.max_length)

    def logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Return ``[n, V]`` float64: the logits after each sequence, prompt included."""
        new = list(dict.fromkeys(sequence for sequence in sequences if sequence not in self._kept))
        found: dict[tuple[int, ...], Tensor] = {}
        for start in range(0, len(new), ASKED):
            part = new[start : start + ASKED]
            found.update(zip(part, self.lm.trees(part).roots().logits, strict=True))
        self.evaluated += len(new)
        rows = [self._kept[sequence] if sequence in self._kept else found[sequence] for sequence in sequences]
        for sequence, row in found.items():
            if row.nbytes <= self._left:
                self._left -= row.nbytes
                self._kept[sequence] = row.clone()  # a view would keep the whole answer
        nothing = torch.empty(0, len(self.vocabulary), dtype=torch.float64, device=self.device)
        return torch.stack(rows).double() if rows else nothing


@final
class Experiment:
    """A language as it is measured: compiled, with the model that is asked, ``n`` draws a method.

    ``settings`` hold the seed of all random streams; the language's own length limit comes before theirs. ``proposals`` are the
    estimators whose distributions are computed, by the names of their methods. Where the language can be enumerated, the model's
    answers are kept, so that thousands of calls cost no more than one of each prefix.
    """

    def __init__(
        self,
        model: PhiModel,
        language: Language,
        settings: SamplingSettings,
        n: int,
        proposals: Mapping[str, ProposalPhi],
    ) -> None:
        self._language, self._n, self._proposals, self._seed = language, n, proposals, settings.seed or 0
        table = language.table(model)
        if language.budget is not None:
            settings = replace(settings, max_new_tokens=language.budget)
        with model.asking([language.prompt], table, CallOptions(settings)) as request:
            limit = min(PREFIXES, RECORDED // (4 * len(table.vocabulary)))
            self.prefixes = count_prefixes(table, request.budgets[0], limit)
            self.request = request
        if self.finite:
            self.request = replace(request, lm=RecordedModel(request.lm, max_bytes=2 * RECORDED))

    @property
    def finite(self) -> bool:
        """True if every member is enumerated."""
        return self.prefixes is not None

    @cached_property
    def truth(self) -> Truth:
        """The knowledge of ``mu*``: everything, or the distribution of texts within a tolerance, or an estimate of ``Phi``."""
        if self.finite:
            return self._enumerated()
        request = self.request
        tree = BoundsTree(request.table, request.budgets[0])
        tolerance, tokens = SHARPNESS
        try:
            (found,) = probabilities(
                request.lm, request.settings, request.prompts, [tree], tolerance=tolerance, max_tokens=tokens
            )
        except BudgetError as error:
            return self._estimated(error)
        (low, high), tolerance = found.log_z_bounds, found.tolerance
        phi, off, source = (low + high) / 2, (high - low) / 2, f"texts enumerated to a TV of {tolerance:.1g}"
        return Truth(log_phi=phi, error=off, texts=found.distribution, tolerance=tolerance, source=source)

    def _enumerated(self) -> Truth:
        request = self.request
        proposals = {LocalPhi.name: LocalPhi(), **self._proposals}
        language = (request.lm, request.table, request.prompts[0], request.settings, request.budgets[0])
        reference = enumerate_language(*language, estimators=proposals)
        texts = self._texts(reference.mu)
        source = f"enumerated, {self.prefixes:,} prefixes"
        masked = self._texts(reference.distribution(LocalPhi.name))
        return Truth(log_phi=reference.log_phi, texts=texts, masked=masked, reference=reference, source=source)

    def _estimated(self, error: BudgetError) -> Truth:
        """Estimate ``Phi`` from weighted draws of the adaptive proposal, each of which is unbiased given those before it."""
        draws = AutoSampler(AutoPhi(share=0, candidates=1)).sample(replace(self.request, n=REFERENCE))[0]
        log_w = draws.log_w
        log_phi = log_mean(log_w)
        spread = float(np.exp(log_w - log_phi).std()) / math.sqrt(len(log_w))
        low, high = map(math.exp, error.log_z_bounds or (-math.inf, 0.0))
        source = f"Phi from {REFERENCE} weighted draws, ESS {draws.ess:.0f}; certainly in [{low:.3g}, {high:.3g}]"
        return Truth(log_phi=log_phi, error=spread, source=source)

    def measure(self, method: Method, truth: Truth) -> Cell:
        """Measure a method on this language."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FidelityWarning)  # the cell says it
            results = self._draw(method)
            few = not self.finite or isinstance(method.proposal, CertifiedWalk)  # a tree costs the same every time
            apart = range(FREE_SINGLE if few else SINGLE)
            singles = [self._sample(method, 1, 1, (1, i))[0].counts for i in apart]
        texts = [text for draws in results for text in draws.texts]
        log_w = np.array([log_w for draws in results for log_w in _weights(draws, truth.log_phi)])
        cell = replace(
            _unmeasured(self._language, method),
            ess=weighed(log_w, truth.log_phi).ess,
            log_z_error=_log_z_error(results, truth.log_phi),
            certificate=_certificate(results),
            calls=float(np.mean([counts.calls for counts in singles])),
            tokens=float(np.mean([counts.tokens for counts in singles])),
            n=len(log_w),
        )
        return replace(cell, **self._distance(method, truth, texts, log_w))

    def _distance(self, method: Method, truth: Truth, texts: Sequence[str], log_w: Any) -> dict[str, Any]:
        """Return the distance of the method from ``mu*``, in the best way that there is here."""
        if truth.reference is not None and method.proposal is not None:
            exact = computed(truth.reference, method.name, self._text)
            own = self._texts(truth.reference.distribution(method.name))
            distance, noise = drawn(texts, own)
            return {"how": "computed", **exact._asdict(), "agreement": distance / max(noise, LEAST_NOISE)}
        known = _by_weights(method, log_w, truth)
        if truth.texts is not None:
            tv, floor = drawn(texts, truth.texts)
            if floor > NOISY and truth.masked is not None:
                group = ordered_groups(truth.texts, truth.masked, GROUPS)
                shares = frequencies(map(group.__getitem__, truth.texts), truth.texts.values())
                tv, floor = drawn([group[text] for text in texts], shares)
                return {"how": "groups", "tv": tv, "floor": floor}
            return {**known, "how": "draws", "tv": tv, "floor": floor + truth.tolerance}
        if known:
            return {**known, "how": "weights", "tv": known["tv_tokens"]}
        match method.phi:
            case ExactPhi(tolerance=0) if method.sampler == DRAW:
                return {"how": "theorem", "tv": 0.0}
        return {}

    def _draw(self, method: Method) -> list[Draws]:
        """Return the draws of a method, in calls of its own for each where they are not independent."""
        n = self._n if self.finite else min(FREE, self._n)
        n = n if method.options is None else min(n, POPULATIONS if self.finite else TOGETHER)
        if method.independent:
            return self._sample(method, 1, n, (0,))
        n = min(n, APART if self.finite else TOGETHER)
        sizes = [min(TOGETHER, n - start) for start in range(0, n, TOGETHER)]
        return [draws for i, rows in enumerate(sizes) for draws in self._sample(method, rows, 1, (0, i))]

    def _sample(self, method: Method, rows: int, n: int, key: tuple[int, ...]) -> list[Draws]:
        """Return ``n`` draws in each of so many calls that are made side by side."""
        phi = method.phi
        match phi:
            case ExactPhi(tolerance=0) if n > 1:
                effort = phi.effort if self.finite else FREE_EFFORT
                phi = replace(phi, effort=effort, normalizers=NORMALIZERS)
            case ExactPhi() if not self.finite and phi.tolerance > 0:
                phi = replace(phi, effort=Effort(tokens=FREE_TOKENS))
        # A cell's own numbers: with those of another cell, one unlucky draw would show in both.
        cell = zlib.crc32(f"{self._language.name} {method.estimator} {method.sampler}".encode())
        seed = int(np.random.SeedSequence((self._seed, cell, *key)).generate_state(1, np.uint64)[0])
        request = self._predicate if method.sampler == AWRS else self.request
        prompts, settings = [request.prompts[0]] * rows, replace(request.settings, seed=seed)
        sampler = sampler_for(phi, TreeStore(), method.options)  # without memory of earlier draws
        return sampler.sample(replace(request, prompts=prompts, settings=settings, n=n))

    def runs(self, method: Method) -> bool:
        """Return True if the method applies: predicates need a language of ASCII texts, in all tokenizations."""
        return method.sampler != AWRS or _automaton(self.request.table) is not None

    @cached_property
    def _predicate(self) -> Request:
        """The language as an application without a guide has it: any text, and a predicate on what is written."""
        automaton, vocabulary = _automaton(self.request.table), self.request.table.vocabulary
        assert automaton is not None
        constraint = TextConstraint(
            prefix=lambda text: automaton.advance(automaton.start, text.encode()) != DEAD,
            complete=lambda text: automaton.accepts(text.encode()),
        )
        table = Table(FSMGuide.from_automaton(compile_regex(ANY_TEXT), vocabulary))
        return replace(self.request, table=table, constraint=constraint.over(vocabulary))

    def _texts(self, p: Mapping[Ids, float]) -> dict[str, float]:
        """Return the distribution of the texts, all tokenizations of one summed; normalised."""
        return frequencies(map(self._text, p), p.values())

    def _text(self, ids: Ids) -> str:
        return self.request.table.vocabulary.decode(ids).decode(errors="replace")


def _automaton(table: Table) -> ByteAutomaton | None:
    """Return the texts of a table in ASCII; ``None`` where there are others, or its language is not one of texts."""
    match table.guide:
        case FSMGuide(automaton=ByteAutomaton() as automaton):
            return None if automaton.targets[:, automaton.byte_class[128:]].any() else automaton
    return None


def _weights(draws: Draws, log_phi: float) -> list[float]:
    """Return the log weight of every trajectory; that of an exact draw is ``log Phi``, which its call may not have known."""
    drawn = [log_phi if draw.guarantee == Guarantee.EXACT else draw.log_w for draw in draws]
    return [*drawn, *[-math.inf] * draws.failures]


def _by_weights(method: Method, log_w: Any, truth: Truth) -> dict[str, Any]:
    """Estimate the distance by the weights of independent draws of one proposal, of token sequences; empty where they are not."""
    if method.proposal is None or isinstance(method.phi, ExactPhi):
        return {}
    found = weighed(log_w, truth.log_phi)
    # A relative error of Phi moves the TV by no more than itself.
    return {"tv_tokens": found.tv_tokens, "floor": math.hypot(found.floor, truth.error), "kl": found.kl}


def _log_z_error(results: Sequence[Draws], log_phi: float) -> float | None:
    """Return the error of the estimate of ``log Phi``, where there is one estimate: of a call, or of calls that count alike."""
    if len(results) > 1 and any(draws.guarantee > Guarantee.WEIGHTED for draws in results):
        return None
    return log_mean([draws.log_z for draws in results]) - log_phi


def _certificate(results: Sequence[Draws]) -> float | None:
    """Return an upper limit of the TV that every one of the draws has by its own account."""
    known = [draws.certificate.total_variation for draws in results if draws.certificate is not None]
    return max(known) if len(known) == len(results) else None


@final
@dataclass(frozen=True, kw_only=True)
class Suite:
    """A cell for each language and method: ``n`` draws of ``model``, all random streams by ``seed``."""

    model: PhiModel
    languages: Sequence[Language]
    methods: Sequence[Method]
    settings: SamplingSettings  # what defines the distribution, apart from the budget
    n: int
    seed: int

    def __len__(self) -> int:
        return len(self.languages) * len(self.methods)

    def cells(self, observe: Callable[[str], None] = lambda _: None) -> Iterator[tuple[Heading, Cell]]:
        """Yield the cells as they are finished, under the headings of their languages; ``observe`` is told what comes next.

        A cell that cannot be measured says why in its note, and the others go on.
        """
        proposals = {method.name: method.proposal for method in self.methods if method.proposal is not None}
        settings = replace(self.settings, seed=self.seed)
        for language in self.languages:
            observe(f"{language.name}, truth")
            heading = Heading(name=language.name, family=language.family, title=language.title)
            try:
                subject = Experiment(self.model, language, settings, self.n, proposals)
                truth = subject.truth
            except OutlinesPhiError as error:
                heading = replace(heading, source=_said(error))
                yield from ((heading, _unmeasured(language, method, _said(error))) for method in self.methods)
                continue
            heading = replace(heading, log_phi=truth.log_phi, error=truth.error, source=truth.source)
            mask = None if truth.texts is None or truth.masked is None else total_variation(truth.masked, truth.texts)
            for method in filter(subject.runs, self.methods):
                observe(f"{language.name}, {method.name}")
                try:
                    cell = subject.measure(method, truth)
                except OutlinesPhiError as error:
                    cell = _unmeasured(language, method, _said(error))
                if method.phi == LocalPhi() and method.sampler == DRAW:
                    mask = cell.tv
                elif mask and cell.tv is not None and (cell.floor or 0.0) < mask / 4:
                    cell = replace(cell, change=cell.tv / mask - 1)
                yield heading, cell


def _unmeasured(language: Language, method: Method, note: str = "") -> Cell:
    family, name = language.family, language.name
    return Cell(family=family, language=name, estimator=method.estimator, sampler=method.sampler, note=note)


def _said(error: OutlinesPhiError) -> str:
    """Return the first sentence of an error, with its kind; of one that begins with a remedy, what was reached."""
    said, _, _ = " ".join((error.reason if isinstance(error, BudgetError) else str(error)).split()).partition(". ")
    return f"{type(error).__name__}: {said.removesuffix('.')}."
