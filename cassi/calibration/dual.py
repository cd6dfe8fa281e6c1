"""Estimate the place of the mask of a dual disperser and its dispersion."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cassi.camera.displaced_camera import displaced_camera
from cassi.camera.displacement import BAND_PARAMETERS, PARAMETERS, moved_mask
from cassi.camera.place import MaskPlacement
from cassi.camera.search import place_bands
from cassi.systems import DDCassi, SDCassi, System

_REFINED_KEYS = ("across", "along", "rotation", "step")
# Trial steps of the parameters, in pixels at the border of the mask. All parameters are tried with
# the first length, then with the second, then with the third.
_STEP_PIXELS = (0.1, 0.05, 0.025)


def equivalent_single_disperser(nominal: DDCassi) -> SDCassi:
    """Return the single disperser with the same frame, for scenes with one spectrum everywhere.

    In a dual disperser's frame of such a scene, the mask of band c is shifted by −o(c).

    Raises:
        ValueError: the camera has a mask per sample.
    """
    if nominal.mask.ndim != 4:
        raise ValueError("calibration: expected one mask for all samples, got a mask per sample")
    return SDCassi(
        nominal.coding.detach(),
        nominal.bands,
        axis=nominal.axis,
        offsets=[-offset for offset in nominal.mask_offsets],
        detector=nominal.detector,
    )


@torch.no_grad()
def place_dual(
    y: Tensor,
    nominal: DDCassi,
    good_pixels: Tensor | None,
    heldout_error: Callable[[System], float],
    radius: int = 2,
) -> tuple[MaskPlacement, DDCassi]:
    """Estimate mask and dispersion of a dual disperser.

    Args:
        y: snapshots `(B, 1, H', W')`.
        nominal: the nominal camera.
        good_pixels: pixels that count, shaped like y; None: all.
        heldout_error: returns the held-out error of a camera.
        radius: radius of the search for shifts, pixels.

    Returns:
        The placement of the mask of the `equivalent_single_disperser`, and the calibrated camera.

    Raises:
        ValueError: the camera has a mask per sample, or too few windows are lit.
    """
    # For scenes of several spectra, the frames of the dual and the single disperser differ. So the
    # placement of the single disperser is only a start. From there the held-out error of the dual
    # disperser is lowered.
    disperser = equivalent_single_disperser(nominal)
    place = place_bands(y, disperser, good_pixels, radius=radius)
    values = _refine_by_heldout(
        place.significant,
        disperser,
        lambda trial: heldout_error(moved_dual(nominal, disperser, trial)),
    )
    return replace(place, significant=values), moved_dual(nominal, disperser, values)


def _refine_by_heldout(
    values: dict[str, float], disperser: SDCassi, heldout_error: Callable[[dict[str, float]], float]
) -> dict[str, float]:
    """Lower the held-out error along one parameter after the other, by fitting parabolas."""
    # If no error of the camera is significant, its values are kept. Otherwise every camera would
    # change, because the smallest held-out error always lies a little beside the start.
    if not any(values[key] for key in PARAMETERS):
        return values
    lowest_error, size = heldout_error(values), disperser.mask.shape[-2:]
    for scale in _STEP_PIXELS:
        for key in _REFINED_KEYS:
            step = scale / max(PARAMETERS[key].scale(*size))
            errors_beside = [
                heldout_error(values | {key: values[key] + sign * step}) for sign in (-1, 1)
            ]
            curvature, slope = (
                errors_beside[0] + errors_beside[1] - 2 * lowest_error,
                (errors_beside[1] - errors_beside[0]) / 2,
            )
            steps = -slope / curvature if curvature > 0 else -math.copysign(math.inf, slope)
            trial = values | {key: values[key] + min(max(steps, -3.0), 3.0) * step}
            if (error := heldout_error(trial)) < lowest_error:
                values, lowest_error = trial, error
    return values


def moved_dual(nominal: DDCassi, disperser: SDCassi, values: dict[str, float]) -> DDCassi:
    """Return the dual disperser that is equivalent to a displaced single disperser.

    Args:
        nominal: the nominal dual disperser.
        disperser: the `equivalent_single_disperser` of the nominal camera.
        values: displacement of the single disperser, see `displaced_camera`.
    """
    offsets = [-offset for offset in displaced_camera(disperser, values | {"tilt": 0.0}).offsets]
    # The smallest offset of a dual disperser is 0. So the smallest offset of the single disperser
    # becomes a shift of the mask.
    first_offset = min(offsets)
    mask_values = {key: value for key, value in values.items() if key not in BAND_PARAMETERS}
    mask_values["along"] -= first_offset
    return DDCassi(
        moved_mask(disperser, mask_values, oversampling=1),
        nominal.bands,
        axis=nominal.axis,
        width=nominal.detector,
        offsets=[offset - first_offset for offset in offsets],
    )
