"""An engine of vLLM over the bundled model, in single precision on a processor; one for all tests, for it takes long to start."""

import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from outlines_phi.lm import bundled

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "block_size": 32,
    "max_num_seqs": 256,
    "disable_log_stats": True,
}


def start(**settings: Any) -> Any:
    """Return a ``vllm.LLM`` of the bundled model; ``settings`` replace :data:`SETTINGS`."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm import LLM

        return LLM(str(Path(bundled.__file__).parent), **{**SETTINGS, **settings})


@cache
def engine() -> Any:
    """Return the engine that tests share."""
    from outlines_phi.vllm import ENGINE

    return start(**ENGINE)
