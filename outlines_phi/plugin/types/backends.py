"""The backends of Outlines: whose languages can be read, and what each of them compiles."""

from __future__ import annotations

from typing import Any

from outlines.types.dsl import CFG, JsonSchema

from ...errors import UnsupportedError
from ...guides.engines.engine import Kind, Source
from ...guides.engines.guide import ENGINES
from .output_types import to_pattern, to_term

OWN = "outlines_core"
"""The backend that is read as an automaton; the default of Outlines for regex and JSON."""

BACKENDS = (OWN, *ENGINES)
"""The backends that Outlines has."""


def engine_name(backend: str | None) -> str | None:
    """Return the engine that ``backend`` stands for, ``None`` where guides of this package are meant.

    Raises
    ------
    UnsupportedError
        No such backend.
    """
    if backend not in (None, *BACKENDS):
        raise UnsupportedError(f"backend={backend!r} was given; expected one of {', '.join(BACKENDS)}, or None.")
    return None if backend == OWN else backend


def to_source(output_type: Any, engine: str) -> Source:
    """Return what ``engine`` compiles for an output type: what Outlines gives it.

    Raises
    ------
    UnsupportedError, GrammarError, EmptyLanguageError
        As :func:`outlines_phi.plugin.types.output_types.to_pattern`; or a whitespace pattern, which engines do not have.
    """
    match term := to_term(output_type):
        case CFG():
            return Source(Kind.GRAMMAR, term.definition)
        case JsonSchema():
            if term.whitespace_pattern is not None:
                raise UnsupportedError(
                    f"backend={engine!r} has no whitespace_pattern; leave it out, or use backend={OWN!r} (the default for JSON)."
                )
            return Source(Kind.JSON_SCHEMA, term.schema)
    return Source(Kind.REGEX, to_pattern(output_type))
