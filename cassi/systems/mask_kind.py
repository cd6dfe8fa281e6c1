"""Tell design masks, which have two values, from masks that a sensor measured."""

import torch
from torch import Tensor

# Values of a design that differ by at most this fraction of the contrast count as equal. The
# fraction is one step of an 8-bit image.
_MAX_ROUNDING = 1 / 255

# Noise, blur and vignetting spread a sensor's values around a level at least as widely as a
# Gaussian. On one side of its mean a Gaussian has 2.5 times as many values within one standard
# deviation as in the next interval of the same width. The levels of a design are narrower.
_MIN_PEAK_RATIO = 2.5

# A measured mask may have this fraction of its pixels at one exact level, because users clip the
# brightest pixels. They usually clip half as many.
_MAX_CLIPPED_FRACTION = 0.01


def is_design(mask: Tensor) -> bool:
    """Tell whether a mask is a design mask, with two values only.

    A mask that a sensor measured has grey values between them, from blur. Each image of a mask
    `(…, H, W)` may have its own two values, rounded to 8 bits.
    """
    lowest, highest = mask.amin((-2, -1), keepdim=True), mask.amax((-2, -1), keepdim=True)
    distances = torch.minimum(mask - lowest, highest - mask)
    return bool((distances <= _MAX_ROUNDING * (highest - lowest)).all())


def has_two_levels(mask: Tensor) -> bool:
    """Tell whether many pixels of a grey mask have one of two values, as in an averaged design.

    A design that is averaged over pixels is grey where an element ends within a pixel. Pixels
    within one element still have one of two values, to the rounding of 8 bits. A measured mask has
    its values spread over more than the rounding. So each level must have far more values within
    the rounding than the next interval of the same width has, and more than users clip.
    """
    lowest, highest = mask.amin((-2, -1), keepdim=True), mask.amax((-2, -1), keepdim=True)
    distances = torch.stack((mask - lowest, highest - mask)) / (highest - lowest)
    at_level, within_two = ((distances <= k * _MAX_ROUNDING).float().mean((-2, -1)) for k in (1, 2))
    is_peak = at_level > _MIN_PEAK_RATIO * (within_two - at_level)
    return bool(((at_level > _MAX_CLIPPED_FRACTION) & is_peak).all())
