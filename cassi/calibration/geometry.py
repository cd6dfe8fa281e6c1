"""Where mask and bands fall on the detector: the numbers that a calibration finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cassi import ops
from cassi.systems import SDCassi, TiltedCassi
from cassi.systems.masks import blur_mask, move_mask
from cassi.systems.tilted import Shift, line_parts, moved_lines


@dataclass(frozen=True)
class Geometry:
    r"""How far a camera is from its nominal model.

        y = Σ_c S(o(c), p(c)) [m'_c · x_c]
        o(c) = n(c) + (s − w − u) + ε·(c − (C − 1)/2) + Σ_{k≥2} a_k P_k(v)
        p(c) = ∓ tan(τ)·(o(c) − (1 − q)·o(0) − q·o(C − 1))
        m' = max(0, m̄ + κ (G T m − m̄))

    with the nominal offsets n(c), the mask moved by T (magnified and turned about its middle, then
    shifted, see `move_mask`), blurred by a Gaussian G (`blur_mask`) and changed in contrast, the
    nominal mask's mean m̄, the Legendre polynomials P_k and v = 2c/(C − 1) − 1. S(d, e)
    moves by d pixels along the dispersion and by e across it: − down the columns, + along rows.
    Fractions of a pixel are interpolated linearly.

    T shifts the mask across the dispersion by all of the shift. Along it by w + u pixels, and the
    offsets have the rest: where code falls, no snapshot tells a shift of the mask alone from one of
    mask and scene. With a whole w and u = 0, mask and bands are interpolated once, as the detector
    averages, and the scene lies on the pixels of the mask. Where bands fall on whole pixels, w = s
    interpolates once too, and leaves the scene where it nominally is. A fraction u blurs the mask
    by u(1 − u) pixels² along the dispersion, each band by its own fraction beside: that shows, and
    which step of the bands fits best depends on it.

    Two more things no snapshot tells from another scene: a factor of the whole mask, so of m ↦
    offset + contrast·m only the ratio is left, and the mean stays; and a gain g per detector pixel,
    for g·Σ_c S(o(c))[m_c·x_c] = Σ_c S(o(c))[m_c·(S(−o(c))g)·x_c] is the frame of another cube
    exactly.

    Args:
        shift: of the code on the detector, pixels (down, right).
        rotation: of the mask, degrees, counterclockwise as displayed with row 0 on top.
        dispersion: ε in pixels per band, then a_2, a_3, … in pixels at the last band.
        magnification: of the mask, about its middle.
        variance: of the Gaussian, pixels²; a lens between mask and detector blurs the code as one
            between scene and mask cannot. Below 0 it sharpens.
        contrast: κ.
        whole: w, pixels; None for w = s.
        interpolated: u, pixels; without influence where w = s.
        tilt: τ, of the axis of dispersion, degrees, counterclockwise as displayed.
        pivot: q, place in the spectrum about which it is turned, 0 for the first band, 1 for the
            last. The shift is that of the middle of the spectrum, whatever q: what tilt moves it by
            is taken from the mask.
    """

    shift: tuple[float, float] = (0.0, 0.0)
    rotation: float = 0.0
    dispersion: tuple[float, ...] = (0.0,)
    magnification: float = 1.0
    variance: float = 0.0
    contrast: float = 1.0
    whole: int | None = None
    interpolated: float = 0.0
    tilt: float = 0.0
    pivot: float = 0.5

    @property
    def blur(self) -> float:
        """Standard deviation of the Gaussian, pixels."""
        return math.sqrt(max(self.variance, 0.0))

    def values(self) -> list[float]:
        """Return what plain scenes tell, in one list: down, right, degrees, dispersion."""
        return [*self.shift, self.rotation, *self.dispersion]

    def along(self, axis: int) -> float:
        """Return the shift along the dispersion, pixels.

        Args:
            axis: of the dispersion, -1 or -2.
        """
        return self.split_shift(axis)[1]

    def split_shift(self, axis: int) -> tuple[float, float]:
        """Return the shift across the dispersion and along it, pixels."""
        down, right = self.shift
        return (down, right) if axis == -1 else (right, down)

    def with_shift(self, across: float, along: float, axis: int) -> Geometry:
        """Return the same geometry with another shift, pixels across and along the dispersion."""
        return replace(self, shift=(across, along) if axis == -1 else (along, across))

    def across(
        self, nominal: Sequence[float], axis: int, points: Sequence[float] | None = None
    ) -> Tensor:
        """Return by how much each band moves across the dispersion, pixels, float64.

        Args:
            nominal: offsets of all bands, pixels.
            axis: of the dispersion, -1 or -2.
            points: as for `offsets`.
        """
        first, last = self.offsets(nominal)[[0, -1]]
        slope = math.tan(math.radians(self.tilt))
        # Rows count downwards: what is turned counterclockwise goes up, or right.
        reach = self.offsets(nominal, points) - torch.lerp(first, last, self.pivot)
        return reach * (-slope if axis == -1 else slope)

    def with_degree(self, degree: int) -> Geometry:
        """Return the same geometry with a dispersion curve of that degree, at least as high."""
        missing = degree - len(self.dispersion)
        return replace(self, dispersion=self.dispersion + (0.0,) * missing)

    def offsets(self, nominal: Sequence[float], points: Sequence[float] | None = None) -> Tensor:
        """Return the offset of each band, but for the shift.

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


def moved_camera(
    system: SDCassi, geometry: Geometry, lines: tuple[int, int] | None = None
) -> SDCassi | TiltedCassi:
    """Return the camera as its geometry says, on the same detector.

    Args:
        system: the nominal camera, with one mask for all samples.
        geometry: found by a calibration.
        lines: first and one after the last, across the dispersion, of those that it sees alone;
            None for all.
    """
    mask = moved_mask(system, geometry)
    if lines is not None:
        mask = mask.narrow(system.part_axis, lines[0], lines[1] - lines[0])
    across = geometry.across(system.offsets, system.axis) if geometry.tilt else None
    return placed_camera(system, mask, moved_offsets(system, geometry).tolist(), across)


def placed_camera(
    system: SDCassi, mask: Tensor, offsets: Sequence[float], across: Tensor | None
) -> SDCassi | TiltedCassi:
    """Return a camera with another mask and other places of the bands, on the same detector."""
    where: dict[str, Any] = {"offsets": offsets, "axis": system.axis}
    where["detector"] = system.measurement_shape[system.axis]
    if across is None:
        return SDCassi(mask, system.bands, **where)
    return TiltedCassi(mask, system.bands, across=across, tolerance=1e-3, iterations=10, **where)


def placed(geometry: Geometry, system: SDCassi) -> Geometry:
    """Return the same code from a scene within half a pixel of its nominal place.

    That is `whole` as the bands ask for it: None where they fall on whole pixels.
    """
    offsets = geometry.offsets(system.offsets)
    if bool((offsets == offsets.round()).all()):
        return replace(geometry, whole=None, interpolated=0.0)
    return on_pixels(geometry, system)


def on_pixels(geometry: Geometry, system: SDCassi) -> Geometry:
    """Return the same code from a scene within half a pixel, with bands between pixels.

    Where the curve bends by more than a pixel, its shift is that of the outermost bands: those keep
    their offsets, and the mask its place.
    """
    along = geometry.along(system.axis)
    bend = float((geometry.offsets(system.offsets)[[0, -1]]).mean())
    bend -= (system.offsets[0] + system.offsets[-1]) / 2
    along += bend if abs(bend) > 1 else 0.0
    whole = round(along)
    if geometry.whole is None or not geometry.interpolated:
        return replace(geometry, whole=whole, interpolated=0.0)
    moved = geometry.whole + geometry.interpolated
    moved += round(along - moved)
    return replace(geometry, whole=whole, interpolated=moved - whole)


def anchored_camera(system: SDCassi, geometry: Geometry, pivot: float) -> SDCassi | TiltedCassi:
    """Return a camera of the same code, whose scene lies where the nominal camera's does.

    Of all cameras with this code it is the one that moves a band at the pivot as the nominal camera
    does: all else that moves the code is the mask's.

    Args:
        system: the nominal camera.
        geometry: found by a calibration.
        pivot: place in the spectrum, 0 for the first band, 1 for the last.
    """

    def at_pivot(value: Tensor) -> float:
        return float((1 - pivot) * value[0] + pivot * value[-1])

    nominal = torch.tensor(system.offsets, dtype=torch.float64)
    offsets = geometry.offsets(system.offsets)
    across = geometry.across(system.offsets, system.axis)
    beside, aside = at_pivot(offsets - nominal), at_pivot(across)
    off, along = geometry.split_shift(system.axis)
    placed = geometry.with_shift(off + aside, along, system.axis)
    placed = replace(placed, whole=0, interpolated=along + beside)
    mask, tilt = moved_mask(system, placed), across - aside if geometry.tilt else None
    return placed_camera(system, mask, (offsets - beside).tolist(), tilt)


def moved_mask(system: SDCassi, geometry: Geometry) -> Tensor:
    """Return the mask as the scene sees it, `(K, 1|C, H, W)`."""
    mask = nominal = system.mask.detach()
    across, along = geometry.split_shift(system.axis)
    if geometry.tilt:
        across -= float(geometry.across(system.offsets, system.axis)[[0, -1]].mean())
    if geometry.whole is not None:
        along = geometry.whole + geometry.interpolated
    shift = geometry.with_shift(across, along, system.axis).shift
    if any((*shift, geometry.rotation, geometry.magnification - 1)):
        mask = move_mask(mask, shift, geometry.rotation, geometry.magnification)
    mask = blur_mask(mask, geometry.variance)
    if geometry.contrast != 1:
        mask = torch.lerp(nominal.mean().to(mask), mask, geometry.contrast)
    return mask if mask is nominal else mask.clamp_min(0)


def moved_offsets(
    system: SDCassi, geometry: Geometry, points: Sequence[float] | None = None
) -> Tensor:
    """Return the offset of each band, the shift along the dispersion included, pixels, float64.

    Args:
        system: the nominal camera.
        geometry: how far it is off.
        points: as for `Geometry.offsets`.
    """
    offsets = geometry.offsets(system.offsets, points)
    if geometry.whole is None:
        return offsets
    return offsets + (geometry.along(system.axis) - geometry.whole - geometry.interpolated)


def code_images(
    system: SDCassi,
    geometry: Geometry,
    points: Sequence[float] | None = None,
    lines: Tensor | None = None,
    shift: Shift = ops.linear_taps,
) -> Tensor:
    """Return what a white scene shows at single places of the spectrum.

    Args:
        system: the nominal camera.
        geometry: how far it is off.
        points: as for `Geometry.offsets`.
        lines: indices of those to return, across the dispersion; None for all.
        shift: returns taps and starts of offsets.

    Returns:
        `(P, K, H, W')`, dispersion along the last axis: the moved mask, as each band has it.
    """
    mask = system.turn(moved_mask(system, geometry))
    if lines is not None and not geometry.tilt:
        mask = mask[..., lines, :]
    offsets = moved_offsets(system, geometry, points).to(mask.device)
    if mask.shape[1] > 1 and points is not None:
        nearest = torch.tensor(points).round().long().clamp(0, system.bands - 1)
        mask = mask[:, nearest]
    codes = mask.expand(-1, len(offsets), -1, -1).transpose(0, 1)[:, :, None]  # (P, K, 1, H, W)
    white = mask.new_ones(len(offsets), 1, *mask.shape[-2:])
    detector = system.measurement_shape[system.axis]
    codes = codes.contiguous()
    # Every place of the spectrum is a sample of its own, with one band.
    if not geometry.tilt:
        taps, starts = shift(offsets)
        taps = taps.to(mask.dtype)
        return ops.forward_taps(white, codes, taps[:, None], starts[:, None], detector)
    across = geometry.across(system.offsets, system.axis, points).to(mask.device)
    images = codes.new_zeros(len(offsets), codes.shape[1], codes.shape[-2], detector)
    for at, down, taps, starts in line_parts(offsets, across, mask.dtype, shift):
        image = ops.forward_taps(white[at], codes[at], taps[:, None], starts[:, None], detector)
        images[at] += moved_lines(image, down)
    return images if lines is None else images[..., lines, :]
