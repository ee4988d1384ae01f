"""Faithful constrained generation for Outlines.

Masking tokens forces a language model's output into a format and silently samples from the wrong distribution.
outlines_phi draws from the model's own distribution conditioned on the format.
"""

import lazy_loader

__version__ = "0.1.0"

# What the stub beside this file names is imported when it is first asked for: --help need not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
