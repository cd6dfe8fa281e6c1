"""Do mask, measurement and dispersion fit each other?"""

from __future__ import annotations

from omegaconf import DictConfig
from torch import Tensor

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
    step, axis = system.get("step", 0), system.get("axis", -1)
    if isinstance(step, bool) or not isinstance(step, int):
        raise ValueError(f"system.step: expected a whole number of pixels per band, got {step!r}")
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
    if wavelengths is not None and system.get("bands") is None:
        found = infer_bands(mask.shape[axis], measurement.shape[axis], step)
        if found != len(wavelengths):
            raise ValueError(
                f"wavelengths: expected {found} values, one per band that step {step} makes, "
                f"got {len(wavelengths)}"
            )
    return infer_bands(mask.shape[axis], measurement.shape[axis], step, bands)
