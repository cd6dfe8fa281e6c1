"""Where a mask lies and which light there is, by frames of any scenes."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from cassi.camera.displacement import BLURS, DISPLACEMENTS
from cassi.camera.place import PITCH, ROUGHLY, WINDOWS, Place, PlaceFit
from cassi.systems import SDCassi, System

ROUGH_STEPS, STEPS, TRUSTED_STEPS = 8, 5, 6
"""Steps of Fisher scoring: of few parameters, of all, and of all with the trust they deserve."""
FINE_PITCH, FINE_STEPS = 0.5, 8
"""Pixels between offsets at which lines and ends of the light are read, and steps."""
MOST_OFFSETS = 100
"""Offsets that the light has at most, roughly: time and memory rise with their square."""
_FEW = 16  # windows that a mask is roughly placed by


def can_be_placed(system: System) -> bool:
    """Tell whether a camera has one mask for all bands, samples and gradients: an `SDCassi`."""
    if type(system) is not SDCassi or system.mask.ndim != 4:
        return False
    return system.mask.shape[1] == 1 and not system.mask.requires_grad


def place_mask(
    y: Tensor,
    system: SDCassi,
    good: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
    count: int = WINDOWS,
) -> Place:
    """Place the mask of a camera by frames of any scenes.

    Args:
        y: `(B, K, H', W')`.
        system: the camera, see `can_be_placed`.
        good: pixels that count; None: all.
        wavelengths: nm, one per band.
        count: windows.

    Raises:
        ValueError: too few windows are lit, by light that has passed the mask.
    """
    span = max(system.offsets) - min(system.offsets)
    pitch = max(PITCH, span / MOST_OFFSETS)
    few = PlaceFit(y, system, good, wavelengths, _FEW, pitch)
    state = few.run(few.start(), (*ROUGHLY, *BLURS), ROUGH_STEPS)
    fit = PlaceFit(y, system, good, wavelengths, count, pitch)
    every = (*DISPLACEMENTS, *BLURS)
    state = fit.weighed(fit.run(state, every, STEPS), tuple(DISPLACEMENTS))
    return fit.place(fit.run(state, every, TRUSTED_STEPS, least=0.1))


def find_light(
    y: Tensor,
    system: SDCassi,
    good: Tensor | None = None,
    wavelengths: Sequence[float] | None = None,
    count: int = WINDOWS,
) -> Place:
    """Return the light along the dispersion, in half pixels, and the place of the mask.

    Args:
        y: `(B, K, H', W')`.
        system: the camera, see `can_be_placed`.
        good: pixels that count; None: all.
        wavelengths: nm, one per band.
        count: windows.

    Raises:
        ValueError: too few windows are lit, by light that has passed the mask.
    """
    place = place_mask(y, system, good, wavelengths, count)
    span = max(system.offsets) - min(system.offsets)
    pitch = max(FINE_PITCH, span / (2 * MOST_OFFSETS))
    fit = PlaceFit(y, system, good, wavelengths, count, pitch)
    state = fit.run(replace(fit.start(), values=dict(place.values)), tuple(BLURS), FINE_STEPS)
    fine = fit.place(state)
    return replace(place, offsets=fine.offsets, light=fine.light, covariance=fine.covariance)
