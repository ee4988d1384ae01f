"""Random texts of a JSON language."""

from __future__ import annotations

from typing import Any

import numpy as np


def drawn(language: Any, rng: np.random.Generator) -> str:
    """Return a random text, which is short."""
    machine = language.machine
    at, text, longest = machine.start, b"", int(rng.choice([5, 15, 40]))
    while not (machine.size(at) == 0 and rng.random() < 0.5):
        near = {byte: after for byte in range(256) if (after := machine.step(at, byte)) is not None}
        if not near:
            break
        if len(text) > longest:
            least = min(map(machine.size, near.values()))
            near = {byte: after for byte, after in near.items() if machine.size(after) == least}
        byte = int(rng.choice(list(near)))
        at, text = near[byte], text + bytes([byte])
    return text.decode()
