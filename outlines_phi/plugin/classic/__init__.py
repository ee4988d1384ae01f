"""The classic API of Outlines 0.x."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["generate", "samplers"])
