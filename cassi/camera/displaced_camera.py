"""Cameras with a displaced mask and displaced bands."""

import torch
from torch import Tensor

from cassi.camera.displacement import (
    ALONG_DISPERSION,
    BAND_PARAMETERS,
    BLURS,
    DISPLACEMENTS,
    moved_mask,
)
from cassi.systems import SDCassi, TiltedCassi


def displaced_camera(
    system: SDCassi, values: dict[str, float], pivot: float | None = None
) -> SDCassi | TiltedCassi:
    r"""Return a camera with mask and bands displaced, on the same detector.

    Band c has the offset

        o'(c) = o(c) + bands + step·z + curve·(3z² − 1)/2,   z = (o(c) − middle)/reach

    and lies tilt·z pixels across the dispersion. All other values move the mask, see `moved_mask`.

    Args:
        system: the nominal camera.
        values: values of `PARAMETERS` and `BLURS`, by key.
        pivot: band whose scene stays on its pixels, as a fraction of the spectrum: 0 is the first
            band, 1 the last one. The shift of this band is subtracted from those of all bands, and
            added to that of the mask. None: no shift is subtracted.
    """
    # A shift of the mask and an equal shift of all bands give the same frame, if the scene is
    # shifted, too. The pivot decides which of the two shifts the camera has.
    offsets = torch.tensor(system.offsets, dtype=torch.float64)
    middle = float(offsets[[0, -1]].mean())
    z = (offsets - middle) / max(float((offsets[-1] - offsets[0]).abs()) / 2, 1.0)
    band_shifts = values["bands"] + values["step"] * z
    tilt_shifts = values["tilt"] * z
    mask_values = {key: value for key, value in values.items() if key not in BAND_PARAMETERS}
    if pivot is not None:
        pivot_shift, pivot_tilt = (
            float(torch.lerp(shifts[0], shifts[-1], pivot)) for shifts in (band_shifts, tilt_shifts)
        )
        mask_values |= {
            "along": mask_values["along"] + pivot_shift,
            "across": mask_values["across"] + pivot_tilt,
        }
        band_shifts, tilt_shifts = band_shifts - pivot_shift, tilt_shifts - pivot_tilt
    band_shifts = band_shifts + values["curve"] * (3 * z * z - 1) / 2
    moves = any(
        mask_values[key]
        for key in (*DISPLACEMENTS, *ALONG_DISPERSION, "blur")
        if key in mask_values
    )
    mask = moved_mask(system, mask_values, oversampling=1) if moves else system.mask
    return placed_camera(
        system, mask, (offsets + band_shifts).tolist(), tilt_shifts if values["tilt"] else None
    )


def placed_camera(
    system: SDCassi, mask: Tensor, offsets: list[float], offsets_across: Tensor | None = None
) -> SDCassi | TiltedCassi:
    """Return a camera with another mask and other offsets of the bands, on the same detector.

    Args:
        system: the nominal camera. The function returns it if mask and offsets do not change.
        mask: transmission, shaped like the mask of the camera.
        offsets: offsets of the bands along the dispersion, pixels `(C,)`.
        offsets_across: offsets of the bands across the dispersion, pixels `(C,)`; None: 0.
    """
    # The gram matrix of a tilted camera has no closed form. Ten conjugate gradients to 1e-3 are
    # exact enough for a data step.
    if offsets_across is not None:
        camera = TiltedCassi(
            mask,
            system.bands,
            offsets=offsets,
            across=offsets_across,
            axis=system.axis,
            detector=system.measurement_shape[system.axis],
            tolerance=1e-3,
            iterations=10,
        )
        return system.copy_metadata_to(camera)
    if mask is system.mask and tuple(offsets) == tuple(system.offsets):
        return system
    return system.replace(mask=mask, offsets=offsets)


def no_displacement() -> dict[str, float]:
    """Return the values of a camera whose mask and bands are not displaced."""
    return dict.fromkeys((*DISPLACEMENTS, *ALONG_DISPERSION), 0.0) | dict.fromkeys(BLURS, 0.0)
