"""Do mask, measurement and dispersion fit each other?"""

from __future__ import annotations

from omegaconf import DictConfig
from torch import Tensor

from cassi.apps.camera import Wavelengths, dispersed, is_dual, whole_step
from cassi.config import plain
from cassi.systems import infer_bands


def fit_bands(
    system: DictConfig,
    mask: Tensor,
    measurement: Tensor,
    bands: int | None,
    wavelengths: tuple[float, ...] | None,
) -> int:
    """Return the number of bands that mask, measurement and wavelengths agree on.

    Raises:
        ValueError: they do not; the message says what would fit.
    """
    step, axis = whole_step(system), system.get("axis", -1)
    if axis not in (-1, -2):
        raise ValueError(f"system.axis: expected -1 (columns) or -2 (rows), got {axis!r}")
    across = -3 - axis  # the other axis
    if measurement.shape[across] != mask.shape[across]:
        side = {-1: "width", -2: "height"}
        raise ValueError(
            f"mask: expected a {side[across]} of {measurement.shape[across]} as the measurement's, "
            f"got {mask.shape[across]} (mask {tuple(mask.shape[-2:])}, measurement "
            f"{tuple(measurement.shape[-2:])}, dispersion along the {side[axis]}); "
            f"system.axis={across} disperses along the other side, axes.measurement=WH reads a "
            "transposed file"
        )
    if is_dual(system) or _own_length(system):
        return _stated_bands(system, mask, measurement, bands, wavelengths)
    if wavelengths is not None and system.get("bands") is None:
        found = infer_bands(mask.shape[axis], measurement.shape[axis], step)
        if found != len(wavelengths):
            raise ValueError(
                f"wavelengths: expected {found} values, one per band that step {step} makes, "
                f"got {len(wavelengths)}"
            )
    return infer_bands(mask.shape[axis], measurement.shape[axis], step, bands)


def _own_length(system: DictConfig) -> bool:
    return system.get("offsets") is not None or system.get("detector") is not None


def _stated_bands(
    system: DictConfig,
    mask: Tensor,
    measurement: Tensor,
    bands: int | None,
    wavelengths: Wavelengths,
) -> int:
    # Sizes do not say how many bands there are.
    offsets = plain(system.get("offsets"))
    if bands is None and wavelengths is not None:
        bands = len(wavelengths)
    if bands is None and isinstance(offsets, list):
        bands = len(offsets)
    if bands is None:
        raise ValueError(
            "system.bands: expected the number of bands, which this camera's size leaves open"
        )
    axis = system.get("axis", -1)
    extra = dispersed(system, bands, wavelengths)  # checks the offsets too
    got, detector = measurement.shape[axis], system.get("detector")
    if is_dual(system):
        expected, why = system.get("width") or got, "system.width says"
    elif detector is not None:
        expected, why = detector, "system.detector says"
    else:
        expected = mask.shape[axis] + extra
        why = f"a mask of {mask.shape[axis]} and bands up to {extra} pixels apart say; set "
        why += f"system.detector={got} if the detector ends elsewhere"
    if got != expected:
        raise ValueError(
            f"measurement: expected {expected} pixels along the dispersion, got {got}: {why}"
        )
    return bands
