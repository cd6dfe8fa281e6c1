"""Methods by name, and the reconstructors around reconstructors that they are composed of."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
