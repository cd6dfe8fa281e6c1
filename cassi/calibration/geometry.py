"""Where mask and bands fall on the detector: the numbers that a calibration finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi import ops
from cassi.systems import SDCassi
from cassi.systems.masks import move_mask


@dataclass(frozen=True)
class Geometry:
    r"""How far a camera is from its nominal model.

        y = Σ_c S(o(c)) [(T m)_c · x_c],   o(c) = n(c) + ε·(c − (C − 1)/2) + Σ_{k≥2} a_k P_k(v)

    with the nominal offsets n(c), the mask moved by T (turned about its middle, then shifted, see
    `move_mask`), the Legendre polynomials P_k and v = 2c/(C − 1) − 1. S(d) moves by d pixels.
    Fractions of a pixel are interpolated linearly. A common shift of all bands cannot be told from
    a shift of mask and scene together; so the mean of the offsets stays.

    Args:
        shift: of the mask, pixels (down, right).
        rotation: of the mask, degrees, counterclockwise as displayed with row 0 on top.
        dispersion: ε in pixels per band, then a_2, a_3, … in pixels at the last band.
    """

    shift: tuple[float, float] = (0.0, 0.0)
    rotation: float = 0.0
    dispersion: tuple[float, ...] = (0.0,)

    def values(self) -> list[float]:
        """Return all numbers in one list: down, right, degrees, dispersion."""
        return [*self.shift, self.rotation, *self.dispersion]

    @staticmethod
    def of(values: Sequence[float]) -> Geometry:
        """Return the geometry whose `values()` these are."""
        down, right, rotation, *dispersion = (float(value) for value in values)
        return Geometry((down, right), rotation, tuple(dispersion))

    def names(self) -> list[str]:
        """Return what each of `values()` is called, with its unit."""
        curve = [f"dispersion {k + 2} (px)" for k in range(len(self.dispersion) - 1)]
        return [
            *("shift down (px)", "shift right (px)", "rotation (degrees)"),
            "dispersion (px per band)",
            *curve,
        ]

    def with_degree(self, degree: int) -> Geometry:
        """Return the same geometry with a dispersion curve of that degree, at least as high."""
        missing = degree - len(self.dispersion)
        return replace(self, dispersion=self.dispersion + (0.0,) * missing)

    def offsets(self, nominal: Sequence[float], points: Sequence[float] | None = None) -> Tensor:
        """Return the offset of each band.

        Args:
            nominal: offsets of all bands, pixels.
            points: places in the spectrum, in bands and fractions of bands; every band if None.

        Returns:
            Pixels, float64.
        """
        bands = len(nominal)
        at = torch.arange(bands) if points is None else torch.tensor(points)
        at = at.double()
        low = at.floor().clamp(0, max(bands - 2, 0)).long()
        base = torch.tensor(nominal, dtype=torch.float64)
        high = (low + 1).clamp_max(bands - 1)
        found = torch.lerp(base[low], base[high], at - low)
        half = (bands - 1) / 2
        v = (at - half) / max(half, 0.5)
        found = found + self.dispersion[0] * (at - half)
        before, current = torch.ones_like(v), v
        for k, value in enumerate(self.dispersion[1:], 2):
            following = ((2 * k - 1) * v * current - (k - 1) * before) / k
            before, current = current, following
            found = found + value * current
        return found

    def differences(self, system: SDCassi) -> list[float]:
        """Return steps for difference quotients: each moves nothing by more than 0.1 pixels."""
        _, height, width = system.cube_shape
        turn = math.degrees(0.1 / (math.hypot(height, width) / 2))
        per_band = 0.2 / max(system.bands - 1, 1)
        return [0.1, 0.1, turn, per_band, *(0.1 for _ in self.dispersion[1:])]


def moved_camera(system: SDCassi, geometry: Geometry) -> SDCassi:
    """Return the camera as its geometry says, on the same detector.

    Args:
        system: the nominal camera, with one mask for all samples.
        geometry: found by a calibration.
    """
    mask = moved_mask(system, geometry)
    offsets = geometry.offsets(system.offsets).tolist()
    detector = system.measurement_shape[system.axis]
    return SDCassi(mask, system.bands, offsets=offsets, detector=detector, axis=system.axis)


def moved_mask(system: SDCassi, geometry: Geometry) -> Tensor:
    """Return the mask as it really lies, `(K, 1|C, H, W)`."""
    if not any((*geometry.shift, geometry.rotation)):
        return system.mask.detach()
    return move_mask(system.mask.detach(), geometry.shift, geometry.rotation)


def code_images(
    system: SDCassi, geometry: Geometry, points: Sequence[float] | None = None
) -> Tensor:
    """Return what a white scene shows at single places of the spectrum.

    Args:
        system: the nominal camera.
        geometry: how far it is off.
        points: as for `Geometry.offsets`.

    Returns:
        `(P, K, H, W')`, dispersion along the last axis: the moved mask, as each band has it.
    """
    mask = turned(system, moved_mask(system, geometry))
    offsets = geometry.offsets(system.offsets, points)
    taps, starts = ops.linear_taps(offsets.to(mask.device))
    if mask.shape[1] > 1 and points is not None:
        nearest = torch.tensor(points).round().long().clamp(0, system.bands - 1)
        mask = mask[:, nearest]
    codes = mask.expand(-1, len(offsets), -1, -1).transpose(0, 1)[:, :, None]  # (P, K, 1, H, W)
    white = mask.new_ones(len(offsets), 1, *mask.shape[-2:])
    detector = system.measurement_shape[system.axis]
    codes, taps = codes.contiguous(), taps.to(mask.dtype)
    # Every place of the spectrum is a sample of its own, with one band.
    return ops.forward_taps(white, codes, taps[:, None], starts[:, None], detector)


def turned(system: SDCassi, value: Tensor) -> Tensor:
    """Turn an image so that the dispersion is along its last axis, or back."""
    return value if system.axis == -1 else value.mT
