"""An Outlines application's point of view."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["generate", "samplers"])
