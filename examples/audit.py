"""An audit of pydantic JSON: the bias of an application that masks, from its own draws.

The prompts and the type are those of the application; the report says how far its distribution is from the model's own
distribution, conditioned on the format, in which fields legal mass is lost, and which values are written too often. A path,
such as ``docs/images/audit.png``, says where to save it and in which format.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

import outlines_phi
from outlines_phi.lm import bundled

PROMPT = "New character: Aria. JSON: "


class Character(BaseModel):
    """A character of a game."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


def main(n: int = 1000, path: Path | None = None) -> None:
    """Audit ``n`` masked draws, print the report and save it to ``path``, by default as Markdown in a temporary folder."""
    model = outlines_phi.from_transformers(*bundled.load())
    generator = outlines_phi.Generator(model, Character)
    report = generator.audit(PROMPT, n=n, max_new_tokens=100, seed=0)
    print(report)
    with tempfile.TemporaryDirectory() as folder:
        saved = report.save(path or Path(folder) / "audit.md")
        print(f"\n{saved.name}: {saved.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(path=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
