"""Estimators of future validity; by its names, the interface of one's own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
