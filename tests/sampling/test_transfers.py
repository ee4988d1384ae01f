"""The transfers of a step from and to the device, counted where the package asks for them: a few, however many rows."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from outlines_phi import (
    SMC,
    AutoPhi,
    BigramDPPhi,
    ExactPhi,
    LearnedPhi,
    LocalPhi,
    LookaheadPhi,
    OneStepPhi,
    SamplingSettings,
    StateValues,
    Vocabulary,
)
from outlines_phi.drafting import ForcedDrafter
from outlines_phi.errors import ModelError
from outlines_phi.lm import LanguageModel, TokenTrees
from outlines_phi.phi import Estimate, Prefixes, ProposalPhi, SampledRun, estimator
from tests.inner import (
    AncestralSampler,
    AnswerCheck,
    AutoSampler,
    Evaluation,
    ExactSampler,
    Forward,
    LookaheadSampler,
    Need,
    PackedTrees,
    Prefetch,
    Request,
    Rows,
    RowTrees,
    Sampler,
    SMCSampler,
    WrappedModel,
    ahead,
    distributions,
    preexpand,
)
from tests.languages import LOOP
from tests.lm.gardens import SIZE, build
from tests.refusals import refused
from tests.sampling.banning import SHORT

PLACES = ("/phi/", "/sampling/", "/numerics/", "/settings.py")
"""The folders whose transfers count: those of a host are its own, those of guides are kept by state."""


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor is taken for a device whose memory the host cannot read."""
    monkeypatch.setattr(distributions, "HOST", frozenset())


class Transfers(TorchFunctionMode):
    """Counts the transfers that files with one of ``places`` in their path ask for."""

    READS: ClassVar = {"cpu", "tolist", "item", "__bool__", "__float__", "__int__", "__index__", "nonzero"}
    UPLOADS: ClassVar = {"tensor", "as_tensor"}  # and `to` a device, which follows each `from_numpy`

    def __init__(self, *places: str) -> None:
        super().__init__()
        self._places = places
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        sends = name in self.UPLOADS or (name == "to" and any(isinstance(x, torch.device) for x in args))
        kind = "reads" if name in self.READS else "uploads" if sends else ""
        caller = sys._getframe(1).f_code.co_filename
        if kind and any(place in caller for place in self._places):
            self.counts[kind] += 1
        return func(*args, **(kwargs or {}))


SAMPLERS: dict[str, tuple[Callable[[], Sampler], int]] = {
    "local": (lambda: AncestralSampler(LocalPhi()), 0),
    "onestep": (lambda: AncestralSampler(OneStepPhi()), 0),
    # The distributions after the prompts, by which its tokens are chosen, are read before these are evaluated.
    "dp-bigram": (lambda: AncestralSampler(BigramDPPhi()), 1),
    # Three rounds of walks, and of 80 particles five: the later ones begin with a step on prompts that the first has evaluated.
    "learned": (lambda: AncestralSampler(LearnedPhi()), 2),
    "drafts": (lambda: AncestralSampler(LocalPhi(), draft=Prefetch(ForcedDrafter(), 4)), 0),
    "dp-bigram drafts": (lambda: AncestralSampler(BigramDPPhi(), draft=Prefetch(ForcedDrafter(), 4)), 1),
    "learned drafts": (lambda: AncestralSampler(LearnedPhi(), draft=Prefetch(ForcedDrafter(), 4)), 2),
    "exact": (lambda: ExactSampler(ExactPhi()), 0),
    "auto": (lambda: AutoSampler(AutoPhi()), 0),
    "particles": (lambda: SMCSampler(OneStepPhi(), SMC(particles=4)), 0),
    "learned particles": (lambda: SMCSampler(LearnedPhi(), SMC(particles=4)), 4),
    "lookahead": (lambda: LookaheadSampler(LookaheadPhi()), 0),
}
"""Each sampler, with the reads, and the uploads, that a call of ``sample`` takes beyond one for each model call, at most.

The upload of the host is not among them, and neither is what tables and partitions keep: that of the tokens of ``dp-bigram`` is
sent once for each prompt.
"""


@final
class Answering(WrappedModel):
    """A model whose answers are as those of a device: rows lie apart, and come with a check, which those about nodes may fail."""

    def __init__(self, lm: LanguageModel, *, sound: bool = True) -> None:
        super().__init__(lm)
        self._sound = sound

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        trees = self.lm.trees(prompts)
        roots, extend = trees.roots, trees.extend

        def answered(answer: Evaluation, sound: bool) -> Evaluation:
            n = len(answer.nodes)
            matrix, places = answer.rows.unchecked(range(n)).repeat_interleave(2, 0), range(1, 2 * n, 2)
            check = AnswerCheck(torch.full((2 * n,), sound), places, lambda: ModelError("spoiled"))
            return replace(answer, rows=Rows(matrix, places, check))

        trees.roots = lambda *pairs: answered(roots(*pairs), True)  # type: ignore[method-assign]
        trees.extend = lambda *pairs: answered(extend(*pairs), self._sound)  # type: ignore[method-assign]
        return trees


def request_of(name: str, n: int, rows: int = 1, **options: bool) -> Request:
    request = (SHORT if name == "lookahead" else LOOP).request(n, 1, rows=rows)
    return replace(request, lm=Answering(request.lm, **options))


def transfers_of(sampler: Sampler, request: Request) -> tuple[Counter[str], int]:
    with Transfers(*PLACES) as mode:
        draws = sampler.sample(request)
    return mode.counts, draws[0].counts.calls


@pytest.mark.in_turn
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_model_call_takes_one_read_and_one_upload(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MANY", 0)
    monkeypatch.setattr(preexpand, "SHORT", 0)
    make, once = SAMPLERS[name]
    make().sample(request_of(name, 20, rows))  # what is kept by guide state is sent
    counts, calls = transfers_of(make(), request_of(name, 20, rows))
    assert 0 < counts["reads"] <= calls + once and 0 < counts["uploads"] <= calls + once


@final
@dataclass(frozen=True)
class OwnPhi(ProposalPhi):
    """An estimator that has nothing but :meth:`Estimate.scores`: it may learn from what it sees."""

    name: ClassVar[str] = "own"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide"})

    def begin(self, run: SampledRun) -> Estimate:
        return OwnEstimate(LocalPhi().begin(run))


@final
@dataclass(frozen=True)
class OwnEstimate(Estimate):
    masked: Estimate

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        return self.masked.scores(log_p, prefixes)


def test_an_estimator_of_scores_alone_sees_a_checked_answer() -> None:
    """And control: the read that this takes is counted."""
    AncestralSampler(OwnPhi()).sample(request_of("own", 20))
    counts, calls = transfers_of(AncestralSampler(OwnPhi()), request_of("own", 20))
    assert counts["reads"] == 2 * calls


@pytest.mark.parametrize("road", [PackedTrees, RowTrees])
def test_a_model_call_of_a_host_takes_one_upload(road: type[PackedTrees | RowTrees]) -> None:
    """And reads nothing: whether its answer has numbers is read with what is made of it."""
    trees = road(Forward(build("llama"), SIZE, max_length=40, memory=1 << 28), [(1, 2, 3), (4,)])
    with Transfers(
        "sequences.py", "forward.py", "packed.py", "roads.py", "/numerics/"
    ) as mode:  # what a cache is given is there
        rows = [trees.roots([0], [5]).rows, trees.extend([1, 2], [6, 7]).rows, trees.extend([3, 4], [8, 9]).rows]
        assert mode.counts == {"uploads": trees.counts.calls}
        mode.counts.clear()
        for answer in rows:
            answer.read()
        assert mode.counts == {"reads": len(rows)}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_reads_the_check_of_an_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)
    refused("spoiled", SAMPLERS[name][0]().sample, request_of(name, 20, sound=False), error=ModelError)


@pytest.mark.parametrize(
    "make",
    [lambda phi: AncestralSampler(phi), lambda phi: SMCSampler(phi, SMC(particles=4))],
    ids=["walks", "particles"],
)
def test_nothing_is_learned_from_an_answer_that_fails_its_check(
    make: Callable[[LearnedPhi], Sampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)
    values = StateValues()
    refused("spoiled", make(LearnedPhi(values)).sample, request_of("learned", 20, sound=False), error=ModelError)
    assert len(values.known.at) == 1  # the step of the prompt


class Operations(TorchFunctionMode):
    """Counts the operations that the package asks for, those of a host and views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        self.count += "outlines_phi" in caller and "/lm/" not in caller and not func.__name__.startswith("__get")
        return func(*args, **(kwargs or {}))


def operations(name: str, rows: int) -> float:
    """Return the number of operations of a sampler's model call, its tables made before."""
    make, _ = SAMPLERS[name]
    language = SHORT if name == "lookahead" else LOOP
    make().sample(language.request(20, 1, rows=rows))
    with Operations() as mode:
        draws = make().sample(language.request(20, 1, rows=rows))
    return mode.count / draws[0].counts.calls


@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
@pytest.mark.parametrize("name", SAMPLERS)
def test_operations_do_not_grow_with_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MANY", 0)
    monkeypatch.setattr(preexpand, "SHORT", 0)
    assert operations(name, 40) < 1.5 * operations(name, 4)


def test_operations_of_each_row_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: rows that are treated one by one are seen."""
    monkeypatch.setattr(estimator, "runs", lambda keys: ((key, slice(i, i + 1)) for i, key in enumerate(keys)))
    assert operations("onestep", 40) > 5 * operations("onestep", 4)


def test_the_rows_beyond_a_tokenizer_are_sent_once() -> None:
    vocabulary = Vocabulary((b"", b"a", b"", b""), (0, 3), np.array([True, True, False, True]))
    settings = SamplingSettings(max_new_tokens=4)
    with Transfers("/settings.py") as mode:
        found = [settings.log_p(torch.zeros(2, 4), vocabulary, [(1,), (1,)]) for _ in range(3)]
    assert mode.counts == {"uploads": 1}
    for log_p in found:
        torch.testing.assert_close(log_p.exp(), torch.tensor([[2 / 3, 1 / 3, 0.0, 0.0]]).expand(2, 4))
