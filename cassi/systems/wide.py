"""A single-disperser camera whose bands are as wide as their distance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cassi.checks import is_number
from cassi.systems.arguments import as_shifts
from cassi.systems.sd_cassi import SDCassi


class WideCassi(SDCassi):
    r"""Single disperser with bands that have a width along the dispersion.

        y[k, h, w'] = Σ_c Σ_t a[c, t] · (m[k, c] · x[c])[h, t],   a[c, t] ∝ (1 − |w' − t − o(c)|/b)⁺

    The light of a band is no line. In a continuous spectrum that is known at the bands and linear
    between them, band c is a triangle that ends at its neighbours: b pixels wide at half its
    height, b the step. With a step of two pixels and bands on whole pixels a quarter, a half and a
    quarter of the light fall on three pixels; with b = 1 this is `SDCassi`. The triangle is sampled
    at pixels and has the sum 1. Light that falls beside the detector is lost.

    AAᵀ couples pixels of a row that are less than 2 b apart, and is inverted in closed form, see
    `cassi.ops.band_solve`.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`.
        bands: number of bands C.
        step: dispersion in pixels per band, whole or not; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        band_width: b, pixels, at least 1; None for the mean distance of the bands, or 1 if that is
            less.
        further: what else `SDCassi` takes: `offsets`, `detector`.

    Raises:
        TypeError: as `SDCassi`.
        ValueError: as `SDCassi`, or a width below 1 pixel or above 100.

    >>> camera = WideCassi(torch.ones(1, 4), bands=1, band_width=2)
    >>> camera(torch.tensor([[[[0.0, 0.0, 4.0, 0.0]]]]))
    tensor([[[[0., 1., 2., 1.]]]])
    """

    codes_frames = False
    band_width: float = 1.0

    def __init__(
        self,
        mask: Any,
        bands: int,
        step: float = 2,
        axis: int = -1,
        *,
        band_width: float | None = None,
        **further: Any,
    ) -> None:
        if band_width is not None and not (is_number(band_width) and 1 <= band_width <= _WIDEST):
            raise ValueError(
                f"band_width: expected 1 to {_WIDEST} pixels, or None, got {band_width!r}"
            )
        super().__init__(mask, bands, step, axis, **further)
        if self.shifts is None:  # the taps are those of offsets
            self.register_buffer("shifts", as_shifts(list(self.offsets), bands))
        if band_width is None and bands > 1:
            span = abs(self.offsets[-1] - self.offsets[0]) / (bands - 1)
            band_width = min(max(span, 1.0), float(_WIDEST))
        self.band_width = float(band_width or 1.0)
        self.refresh()

    @classmethod
    def like(cls, camera: SDCassi, band_width: float | None = None) -> WideCassi:
        """Return a camera with mask and offsets of another, and bands of this width."""
        where: dict[str, Any] = {
            "offsets": camera.offsets,
            "axis": camera.axis,
            "detector": camera.detector,
        }
        return cls(camera.mask, camera.bands, band_width=band_width, **where)

    def narrow(self) -> SDCassi:
        """Return the same camera with bands of one pixel."""
        where: dict[str, Any] = {
            "offsets": self.offsets,
            "axis": self.axis,
            "detector": self.detector,
        }
        return SDCassi(self.mask, self.bands, **where)

    def part(self, start: int, stop: int) -> WideCassi:
        """Return the camera of rows (columns for `axis=-2`) start to stop; see `System.part`."""
        return WideCassi.like(super().part(start, stop), self.band_width)

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        return f"{super().extra_repr()}, band_width={self.band_width:.4g}"

    def _linear_taps(self) -> tuple[Tensor, Tensor]:
        assert self.shifts is not None
        whole = self.shifts.detach().floor()
        reach = math.ceil(self.band_width)
        near = torch.arange(1 - reach, reach + 1, device=whole.device, dtype=whole.dtype)
        away = (near - (self.shifts - whole)[..., None]).abs()
        taps = (1 - away / self.band_width).clamp_min(0)
        taps = taps / taps.sum(-1, keepdim=True)
        if not self.shifts.requires_grad:
            lit = (taps > 0).flatten(0, -2).any(0).nonzero().flatten()
            first, last = int(lit[0]), int(lit[-1])
            taps, near = taps[..., first : last + 1], near[first : last + 1]
        starts = whole.long() + int(near[0])
        return taps.to(torch.promote_types(self.mask.dtype, torch.float32)), starts


_WIDEST = 100
