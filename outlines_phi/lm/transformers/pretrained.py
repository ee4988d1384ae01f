"""The class of Hugging Face's models, without the seconds that it takes to import."""

from __future__ import annotations

import sys


def pretrained() -> tuple[type, ...]:
    """Return ``PreTrainedModel`` for ``isinstance``; nothing while transformers has not loaded it, since no model exists then."""
    module = sys.modules.get("transformers.modeling_utils")
    return () if module is None else (module.PreTrainedModel,)
