"""Whether a mask is a photograph by a sensor, or known from its design."""

import torch
from torch import Tensor

_ROUNDED = 1 / 255
"""Of the contrast: values of a design that differ by less are one."""

_PEAKED = 2.5
"""Times as many values of a Gaussian lie within its standard deviation as in the next one."""

_CLIPPED = 0.01
"""Share of the pixels: users clip the brightest of a photograph, usually half as many."""


def is_design(mask: Tensor) -> bool:
    """Tell whether a mask is a design: it has two values. A sensor's blur makes grey ones.

    Each image of a mask `(…, H, W)` may have two values of its own, rounded to 8 bits.
    """
    low, high = mask.amin((-2, -1), keepdim=True), mask.amax((-2, -1), keepdim=True)
    away = torch.minimum(mask - low, high - mask)
    return bool((away <= _ROUNDED * (high - low)).all())


def has_two_levels(mask: Tensor) -> bool:
    """Tell whether a grey mask has two values that repeat, as a design averaged over pixels has.

    A pixel within one element has one of two values, to the rounding of 8 bits. Noise, blur and
    vignetting spread those of a photograph over more than that. So at both levels more values must
    lie within the rounding than of a Gaussian as wide, against the next interval, and more than are
    clipped.
    """
    low, high = mask.amin((-2, -1), keepdim=True), mask.amax((-2, -1), keepdim=True)
    away = torch.stack((mask - low, high - mask)) / (high - low)
    at, near = ((away <= k * _ROUNDED).float().mean((-2, -1)) for k in (1, 2))
    return bool(((at > _CLIPPED) & (at > _PEAKED * (near - at))).all())
