"""The command line: ``outlines-phi demo``, ``generate``, ``audit``, ``probabilities`` and ``serve``.

It needs the extra ``cli`` (typer, rich, matplotlib), which the library itself does not.
"""

import sys
from importlib.util import find_spec

MISSING = tuple(name for name in ("matplotlib", "rich", "typer") if find_spec(name) is None)
"""Packages of the extra that are not installed."""

if not MISSING:
    from .app import app as commands


def main() -> None:
    """Run the command line; the entry point of ``outlines-phi``."""
    if MISSING:
        sys.exit(
            f"outlines-phi needs {', '.join(MISSING)}, which the library itself does not. Install the extra:\n"
            "  pip install 'outlines_phi[cli]'"
        )
    commands()
