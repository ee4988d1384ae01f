"""The machine of a JSON schema as what its guide is compared with, byte by byte."""

from __future__ import annotations

from typing import final

from ..guides.json_schema.machine.machine import Machine
from ..guides.json_schema.machine.sizes import NEVER
from ..guides.json_schema.machine.stack import Configuration
from .oracle import ByteOracle


@final
class JSONOracle(ByteOracle):
    """The texts of a machine. A third party says whether their values are those of the schema."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        super().__init__(machine.start)

    def after(self, point: Configuration, byte: int) -> Configuration | None:
        """See :meth:`ByteOracle.after`."""
        return self._machine.advance(point, byte)

    def ends(self, point: Configuration) -> bool:
        """See :meth:`Oracle.ends`."""
        return self._machine.size(point) == 0

    def continues(self, point: Configuration) -> bool:
        """See :meth:`Oracle.continues`."""
        return self._machine.size(point) < NEVER
