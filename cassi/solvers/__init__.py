"""Iterative reconstruction: algorithms as pure steps, one loop, and their binding to a prior."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
