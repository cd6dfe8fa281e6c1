"""Evaluation of methods over data sets: jobs, records that survive an interruption, tables."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
