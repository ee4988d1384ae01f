"""Draws for the rows of a dataset of Ray Data. Ray is imported when it is first used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
