"""Faithful constrained generation for Outlines.

Masking tokens forces a language model's output into a format and silently samples from the wrong distribution.
outlines_phi draws from the model's own distribution conditioned on the format.
"""

import importlib

import lazy_loader

__version__ = "0.1.0"

# What the stub beside this file names is imported when it is first asked for: --help need not wait for torch.
_public, _, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Return a public name; of one that a folder lists, the message names the folder."""
    try:
        return _public(name)
    except AttributeError:
        for folder in ("drafting", "fidelity", "guides", "lm", "phi", "ray", "sampling", "testing"):
            if name in importlib.import_module(f".{folder}", __name__).__all__:
                raise AttributeError(
                    f"Use outlines_phi.{folder}.{name}: it is not a name of outlines_phi itself."
                ) from None
        raise


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
