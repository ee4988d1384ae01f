"""The request of a call to a sampler: its random streams."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from outlines_phi.sampling.sampler import Stream
from tests.languages import LANGUAGES


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**62 + 3, 2**70])
@pytest.mark.parametrize("number", [0, 1, 2**32 - 1, Stream.DIAGNOSTIC, Stream.AHEAD + 5])
def test_a_stream_is_that_of_numpy_for_three_numbers(seed: int, number: int) -> None:
    request = LANGUAGES[0].request(1, seed)
    for row in (0, 70_000):
        expected = np.random.default_rng((seed, row, number)).random(4)
        assert (request.stream(row, number).random(4) == expected).all()


CHILDREN = '''
import os, torch
from outlines_phi.sampling.sampler import seeds
from outlines_phi.settings import SamplingSettings

def told(settings, seed=None):
    """The seed of a call in a forked process, which has seeded torch itself or not."""
    told, tell = os.pipe()
    if not os.fork():
        if seed is not None:
            torch.manual_seed(seed)
        os.write(tell, repr(seeds(settings)(0)).encode())
        os._exit(0)
    os.wait()
    return os.read(told, 999).decode()

torch.manual_seed(3)
free = SamplingSettings()
drawn = [told(free) for _ in range(3)] + [repr(seeds(free)(0))]
assert len(set(drawn)) == 4, drawn
assert len({told(free, seed=5) for _ in range(3)}) == 1
assert len({told(SamplingSettings(seed=7)) for _ in range(3)}) == 1
torch.manual_seed(3)
assert repr(seeds(free)(0)) == drawn[-1]
'''


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_forked_processes_draw_differently_where_they_have_no_seed_of_their_own() -> None:
    """In a process of its own: one with threads should not be forked."""
    subprocess.run([sys.executable, "-c", CHILDREN], check=True, timeout=120)
