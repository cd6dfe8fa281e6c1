"""Calibrate mask, band offsets and response of a camera from measurements, and check a camera."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
