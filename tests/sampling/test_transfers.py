"""What a step reads from the device and sends to it, counted where the package asks for it: a few transfers, however many rows."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from outlines_phi.phi import estimator
from outlines_phi.phi.dp_frozen import FrozenDPPhi
from outlines_phi.phi.onestep import LocalPhi, OneStepPhi
from outlines_phi.phi.tree import ahead
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.phi_options import ExactPhi
from outlines_phi.sampling.rejection import tree_call
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Sampler
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.languages import LANGUAGES

LOOP = LANGUAGES[1]
PLACES = ("/phi/tree/", "/sampling/", "/numerics/", "/settings.py")
"""The folders whose transfers count: those of a host are its own, those of guides are kept by state."""


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
    "local": (lambda: AncestralSampler(LocalPhi()), 1, 2),
    "onestep": (lambda: AncestralSampler(OneStepPhi()), 1, 2),
    # A second one where a prefix that many walks have come to is read whole.
    "exact": (lambda: ExactSampler(ExactPhi()), 2, 3),
}
"""Each sampler, with the most reads and uploads of a model call."""


def transfers(sampler: Sampler, n: int, rows: int) -> tuple[Counter[str], int]:
    with Transfers(*PLACES) as mode:
        draws = sampler.sample(LOOP.request(n, 1, rows=rows))
    return mode.counts, draws[0].counts.calls


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_model_call_takes_a_few_transfers(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MANY", 0)
    monkeypatch.setattr(tree_call, "FINITE_PREFIXES", 0)
    build, reads, uploads = SAMPLERS[name]
    counts, calls = transfers(build(), 20, rows)
    assert 0 < counts["reads"] <= reads * calls
    assert 0 < counts["uploads"] <= uploads * calls


class Operations(TorchFunctionMode):
    """Counts the operations that the package asks for, those of a host and views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        self.count += "outlines_phi" in caller and "/lm/" not in caller and not func.__name__.startswith("__get")
        return func(*args, **(kwargs or {}))


STEPS = {name: build for name, (build, *_) in SAMPLERS.items()} | {
    "dp-frozen": lambda: AncestralSampler(FrozenDPPhi()),
}


def operations(name: str, rows: int) -> float:
    """Return how many operations a model call of a sampler takes, its tables made before."""
    STEPS[name]().sample(LOOP.request(20, 1, rows=rows))
    with Operations() as mode:
        draws = STEPS[name]().sample(LOOP.request(20, 1, rows=rows))
    return mode.count / draws[0].counts.calls


@pytest.mark.parametrize("name", STEPS)
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
