"""Fit of a format with the texts of a model by itself: ``log Phi``, and the remedies where it is low."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

from ..numerics.weights import log_mass_text
from ..phi.tree.distribution import Beginnings

LOW = -5.0
"""``log Phi`` below which a format is said to fit badly: the model itself would write it less than once in 148 texts."""

REMEDIES = {
    "case": "begin the values with the capital or small letters that the model begins with",
    "blank": "move the blank: from the end of the prompt into the format, or out of it",
    "ask": "ask for the format in the prompt ('Answer with yes or no.')",
    "ends": "let the text go on after the value (ends='open')",
    "fields": "in an object, draw each field by itself (phi='fields')",
}
"""Remedies of a low ``log Phi``."""


@final
@dataclass(frozen=True, kw_only=True)
class FormatFit:
    """The fit of a format after a prompt.

    Attributes
    ----------
    prompt, form
        The names of the prompt and the format.
    log_z, log_z_bounds
        The estimate of ``log Phi(prompt)``, and ``(lower, upper)`` bounds, in nats.
    beginnings
        The likeliest first tokens of the model and of the format; ``None`` where they were not read.
    line
        The line that greedy decoding writes without a format; ``None`` where nobody asked for it.
    """

    prompt: str
    form: str
    log_z: float
    log_z_bounds: tuple[float, float]
    beginnings: Beginnings | None = None
    line: str | None = None

    @property
    def low(self) -> bool:
        """True where the model hardly ever writes the format by itself."""
        return self.log_z < LOW

    @property
    def log_phi(self) -> str:
        """``log Phi``, or its bounds, as a text."""
        return log_mass_text(self.log_z_bounds, self.log_z)

    @property
    def advice(self) -> tuple[str, ...]:
        """Those of :data:`REMEDIES` that fit: some are for mass that is lost at the first token, others for what is lost later."""
        if not self.low:
            return ()
        if self.beginnings is None:
            return tuple(REMEDIES[name] for name in ("ask", "ends", "fields"))
        later = ("ends", "fields") if self.beginnings.log_live > self.log_z / 2 else ()
        return tuple(REMEDIES[name] for name in (*_respelled(self.beginnings), "ask", *later))

    @property
    def warning(self) -> str:
        """Message of a call where :attr:`low`: remedies first."""
        said = ", or ".join(self.advice)
        _, _, mass, outside, inside = self.cells
        begun = f". First tokens outside of the format: {outside}; in it: {inside}, of {mass} together" if mass else ""
        return (
            f"{said[0].upper()}{said[1:]}; generator.fit(prompt) compares formats. log Phi is {self.log_phi} after "
            f"{self.prompt!r:.80}: {self.form} is what the model writes by itself with a probability of "
            f"{math.exp(self.log_z):.1g}{begun}."
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table, under :data:`HEAD`."""
        if (first := self.beginnings) is None:
            return self.form, self.log_phi, "", "", ""
        return (
            self.form,
            self.log_phi,
            f"{math.exp(first.log_live):.2g}",
            first.listed(live=False),
            first.listed(live=True),
        )


HEAD = ("format", "log Phi", "first tokens", "outside of the format", "in the format")
"""The columns of a table of fits."""


@final
@dataclass(frozen=True, repr=False)
class FitTable(Sequence[FormatFit]):
    """The fits of some formats after some prompts; formats of one prompt together."""

    fits: tuple[FormatFit, ...]

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.fits[index]

    def __repr__(self) -> str:
        """Return a table for each prompt, with the model's own line, and the advice."""
        parts = []
        for prompt, found in groupby(self.fits, lambda fit: fit.prompt):
            fits = list(found)
            cells = [HEAD, *(fit.cells for fit in fits)]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            rows = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
            advice = (f"{fit.form}: {', or '.join(fit.advice)}." for fit in fits if fit.low)
            line = f"Greedy decoding without a format: {fits[0].line!r}"
            parts.append("\n".join([f"After {prompt!r}", *rows, line, *advice]))
        return "\n\n".join(parts)


def _respelled(beginnings: Beginnings) -> tuple[str, ...]:
    """Return the remedies for first tokens outside of the format that differ from one in it by a blank before them, or by case."""
    outside, inside = ([token.text for token in beginnings.tokens if token.live == live] for live in (False, True))
    pairs = [(a, b) for a in outside for b in inside]
    blank = any(a[:1].isspace() != b[:1].isspace() and _alike(a.strip(), b.strip()) for a, b in pairs)
    case = any(
        not _alike(a.strip(), b.strip()) and _alike(a.strip().casefold(), b.strip().casefold()) for a, b in pairs
    )
    return ("blank",) * blank + ("case",) * case


def _alike(first: str, second: str) -> bool:
    """Return True if two texts are one, or one of more than a letter begins the other."""
    short, long = sorted((first, second), key=len)
    return bool(short) and (first == second or (len(short) > 1 and long.startswith(short)))
