"""Find where mask and bands really fall on the detector, from what the camera measured."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
