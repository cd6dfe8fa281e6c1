"""Networks `net(y, system) -> x`, and denoisers `net(x, sigma) -> x`, under published names."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
