"""The audit of draws that were saved: what their weights say of masking, without a model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ...errors import EmptyLanguageError, UnsupportedError
from ...fidelity.audit_report import check
from ...fidelity.bias import Bias, measure
from ...fidelity.report_text import bias_section
from ...numerics.checks import counted
from ...phi.estimators.local import LocalPhi
from ..tables import print_table
from .journal import whole_lines


def audit_saved(path: Path, confidence: float, console: Console) -> None:
    """Print the bias of the draws in the file at ``path``.

    Raises
    ------
    UnsupportedError
        No file of ``generate --phi local``, or one without two draws for some prompt.
    EmptyLanguageError
        All weights are 0.
    """
    header, log_w = read_weights(path)
    check(len(log_w), int(header["n"]), confidence)
    if all(weight == -math.inf for weights in log_w for weight in weights):
        raise EmptyLanguageError(
            f"Loosen the truncation: None of the draws of {path} was completed, so nothing can be measured."
        )
    bias: Bias = measure([np.array(weights) for weights in log_w], [(0.0, 1.0)] * len(log_w), 1 - confidence)
    console.print(
        Text(
            f"{path}: {header['n']} draws after each of {counted(len(log_w), 'prompt')}, {header['output_type']['name']}."
        )
    )
    console.print()
    print_table(bias_section(bias, confidence), console)


def read_weights(path: Path) -> tuple[dict[str, Any], list[list[float]]]:
    """Return the first line of a file and the log weights of every finished prompt, ``-inf`` where a trajectory failed.

    Raises
    ------
    UnsupportedError
        Not such a file; says what it is.
    """
    lines = [found.record for found in whole_lines(path)]
    if not lines:
        raise UnsupportedError(f"Give a file of draws: {path} was not written by outlines-phi generate, or only begun.")
    header = lines[0]
    if header["phi"] != LocalPhi.name:
        raise UnsupportedError(
            "Draw with --phi local, or audit the model itself (outlines-phi audit --model ... PROMPTS): an audit reads the weights "
            f"of masked draws, and {path} holds draws of --phi {header['phi']}."
        )
    match header:
        case {"sampler": dict()}:
            raise UnsupportedError(
                "Draw with --phi local alone: an audit reads the weights of masked draws, and "
                f"{path} holds draws of --particles, which were picked by weight."
            )
        case {"settings": {"tokenization": str(tokenization)}} if tokenization != "any":
            raise UnsupportedError(
                f"Draw without --tokenization {tokenization} to audit: plain masking does not know it, and {path} has it."
            )
    weights: dict[int, list[float]] = {}
    for record in lines[1:]:
        match record:
            case {"record": "draw", "prompt_index": int(index), "log_w": float() | int() | None as log_w}:
                weights.setdefault(index, []).append(-math.inf if log_w is None else min(0.0, float(log_w)))
    return header, [drawn for drawn in weights.values() if len(drawn) == header["n"]]
