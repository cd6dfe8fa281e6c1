"""Methods by name, and the wrappers of reconstructors of which the methods are composed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
