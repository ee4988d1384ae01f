"""What a step reads from the device and sends to it, counted where the package asks for it: a few transfers, however many rows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from outlines_phi.drafting.forced import ForcedDrafter
from outlines_phi.errors import ModelError
from outlines_phi.lm.model import Evaluation, TokenTrees, WrappedModel
from outlines_phi.lm.transformers.forward import Forward
from outlines_phi.lm.transformers.packed import PackedTrees
from outlines_phi.lm.transformers.rows import RowTrees
from outlines_phi.numerics import transfers
from outlines_phi.numerics.distributions import AnswerCheck
from outlines_phi.phi import estimator
from outlines_phi.phi.dp_bigram import BigramDPPhi
from outlines_phi.phi.dp_frozen import FrozenDPPhi
from outlines_phi.phi.learned import LearnedPhi
from outlines_phi.phi.onestep import LocalPhi, OneStepPhi
from outlines_phi.phi.state_values import StateValues
from outlines_phi.phi.tree import ahead
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.drafted_stepper import Prefetch
from outlines_phi.sampling.phi_options import AutoPhi, ExactPhi
from outlines_phi.sampling.rejection import tree_call
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Sampler
from outlines_phi.sampling.smc import SMC, SMCSampler
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.languages import LANGUAGES
from tests.lm.gardens import SIZE, build

LOOP = LANGUAGES[1]
PLACES = ("/phi/", "/sampling/", "/numerics/", "/settings.py")
"""The folders whose transfers count: those of a host are its own, those of guides are kept by state."""


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor is taken for a device whose memory the host cannot read."""
    monkeypatch.setattr(transfers, "HOST", frozenset())


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


SAMPLERS: dict[str, tuple[Callable[[], Sampler], int, int]] = {
    "local": (lambda: AncestralSampler(LocalPhi()), 1, 1),
    "onestep": (lambda: AncestralSampler(OneStepPhi()), 1, 1),
    "dp-frozen": (lambda: AncestralSampler(FrozenDPPhi()), 1, 1),
    # Its tables are read once, and sent once.
    "dp-bigram": (lambda: AncestralSampler(BigramDPPhi()), 2, 2),
    # What was seen is read between rounds.
    "learned": (lambda: AncestralSampler(LearnedPhi()), 2, 3),
    "drafts": (lambda: AncestralSampler(LocalPhi(), draft=Prefetch(ForcedDrafter(), 4)), 1, 1),
    "exact": (lambda: ExactSampler(ExactPhi()), 1, 1),
    "auto": (lambda: AutoSampler(AutoPhi()), 1, 1),
    "onestep frontier": (lambda: AutoSampler(AutoPhi(frontier=OneStepPhi())), 1, 1),
    "learned frontier": (lambda: AutoSampler(AutoPhi(frontier=LearnedPhi())), 1, 2),
    "particles": (lambda: SMCSampler(OneStepPhi(), SMC(particles=4)), 1, 1),
}
"""Each sampler, with the most reads and uploads of a model call beside those of the host."""


def transfers_of(sampler: Sampler, n: int, rows: int) -> tuple[Counter[str], int]:
    with Transfers(*PLACES) as mode:
        draws = sampler.sample(LOOP.request(n, 1, rows=rows))
    return mode.counts, draws[0].counts.calls


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_model_call_takes_a_few_transfers(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MANY", 0)
    monkeypatch.setattr(tree_call, "FINITE_PREFIXES", 0)
    make, reads, uploads = SAMPLERS[name]
    make().sample(LOOP.request(20, 1, rows=rows))  # what is kept by guide state is sent
    counts, calls = transfers_of(make(), 20, rows)
    assert 0 < counts["reads"] <= reads * calls
    assert 0 < counts["uploads"] <= uploads * calls


@pytest.mark.parametrize("road", [PackedTrees, RowTrees])
def test_a_model_call_of_a_host_takes_one_upload(road: type[PackedTrees | RowTrees]) -> None:
    """And reads nothing: whether its answer has numbers is read with what is made of it."""
    forward = Forward(build("llama"), SIZE, max_length=40, memory=1 << 28)
    trees = road(forward, [(1, 2, 3), (4,)])
    with Transfers(
        "forest.py", "forward.py", "packed.py", "rows.py", "/numerics/"
    ) as mode:  # what a cache is given is there
        rows = [trees.roots([0], [5]).rows, trees.extend([1, 2], [6, 7]).rows, trees.extend([3, 4], [8, 9]).rows]
        assert mode.counts == {"uploads": trees.counts.calls}
        mode.counts.clear()
        for answer in rows:
            answer.read()
        assert mode.counts == {"reads": len(rows)}


@final
class Spoiled(WrappedModel):
    """A model whose answers about nodes, but not about prompts, fail their check."""

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        trees = self.lm.trees(prompts)
        sound = trees.extend

        def extend(parents: Sequence[int], tokens: Sequence[int]) -> Evaluation:
            answer = sound(parents, tokens)
            found = torch.zeros(len(answer.rows.matrix), dtype=torch.bool)
            check = AnswerCheck(found, answer.rows.places, lambda: ModelError("spoiled"))
            return replace(answer, rows=replace(answer.rows, check=check))

        trees.extend = extend  # type: ignore[method-assign]
        return trees


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_reads_the_check_of_an_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_call, "FINITE_PREFIXES", 0)
    request = LOOP.request(20, 1)
    with pytest.raises(ModelError, match="spoiled"):
        SAMPLERS[name][0]().sample(replace(request, lm=Spoiled(request.lm)))


def test_nothing_is_learned_from_an_answer_that_fails_its_check() -> None:
    request, values = LOOP.request(20, 1), StateValues()
    with pytest.raises(ModelError, match="spoiled"):
        AncestralSampler(LearnedPhi(values)).sample(replace(request, lm=Spoiled(request.lm)))
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
    """Return how many operations a model call of a sampler takes, its tables made before."""
    make, *_ = SAMPLERS[name]
    make().sample(LOOP.request(20, 1, rows=rows))
    with Operations() as mode:
        draws = make().sample(LOOP.request(20, 1, rows=rows))
    return mode.count / draws[0].counts.calls


@pytest.mark.parametrize("name", SAMPLERS)
def test_operations_do_not_grow_with_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MANY", 0)
    monkeypatch.setattr(tree_call, "FINITE_PREFIXES", 0)
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
