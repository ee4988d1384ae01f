"""Samplers beside a model on another device: what they draw, seed for seed. Without one, `make test-full` shows that they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import pytest
import torch
from torch import Tensor

from outlines_phi import LocalPhi
from outlines_phi.drafting import ForcedDrafter
from outlines_phi.lm import LanguageModel, SequenceTrees, TokenTrees
from tests.inner import AncestralSampler, Prefetch, Sampler, WrappedModel, ahead
from tests.languages import LANGUAGES
from tests.sampling.test_laws import SAMPLERS

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")

LOOP = LANGUAGES[1]
ACCELERATOR = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


@final
class OnDevice(WrappedModel):
    """A model whose logits lie on a device, in single precision."""

    def __init__(self, lm: LanguageModel, device: str) -> None:
        super().__init__(lm)
        self.device = torch.device(device)

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SequenceTrees(self.logits, prompts, len(self.vocabulary), self.max_length)

    def logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        rows = self.lm.trees([*sequences]).roots().logits if sequences else torch.empty(0, len(self.vocabulary))
        return rows.float().to(self.device)


DRAWN: dict[str, Sampler] = {name: build() for name, build in SAMPLERS.items()} | {
    "drafts": AncestralSampler(LocalPhi(), draft=Prefetch(ForcedDrafter(), 4)),
}


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.full), ACCELERATOR])
@pytest.mark.parametrize("name", DRAWN)
def test_a_device_draws_what_a_processor_draws(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But where rounding decides, which is seldom. Exact draws by tokens drawn ahead, those of ``auto`` by whole rows."""
    monkeypatch.setattr(ahead, "MANY", 0)

    def texts(device: str) -> list[tuple[int, ...]]:
        request = replace(LOOP.request(20, 5, rows=3), lm=OnDevice(LOOP.lm, device))
        return [draw.token_ids for draws in DRAWN[name].sample(request) for draw in draws]

    here, there = texts("cpu"), texts(device)
    assert len(here) == len(there) > 0
    assert sum(a == b for a, b in zip(here, there, strict=True)) >= 0.95 * len(here)
