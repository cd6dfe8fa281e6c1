"""A single-disperser camera whose mask is a photograph by its own sensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from cassi import ops
from cassi.ops._checks import canonical_mask
from cassi.ops._recording import is_tracked, is_wrapped
from cassi.systems.arguments import check_shape
from cassi.systems.base import System
from cassi.systems.sd_cassi import CoupledCassi, SDCassi, add_lines, solve_lines

_SHARP = 0.5
"""A neighbour takes this times f(1 − f), f the fraction of a pixel. Masks drawn on a grid four
times as fine are predicted best by 0.44 to 0.54, and densely sampled ones by 0.25."""

_ROUNDED = 1 / 255
"""Of the contrast: values of a design that differ by less are one."""

_PEAKED = 2.5
"""Times as many values of a Gaussian lie within its standard deviation as in the next one."""

_CLIPPED = 0.01
"""Share of the pixels: users clip the brightest of a photograph, usually half as many."""

_DARK = 1e-3
"""Of the median of AAᵀ's diagonal: a pixel with less is left out. At the ends of the bands only one
band falls on a pixel. Where that is dark, noise over the code is far more than the scene."""


def sharp_taps(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the taps `(P, 4)` and starts that shift codes as a sensor sees them.

    A sensor averages a code over its pixels once, wherever that falls. Linear interpolation of a
    mask that was seen on whole pixels blurs it once more, by the fraction: plain scenes then fit
    curves better that put bands on whole pixels. These taps keep the contrast.

    Args:
        offsets: `(P,)`, pixels.
    """
    taps, starts = ops.linear_taps(offsets)
    more = _SHARP * taps.prod(-1, keepdim=True)
    return torch.cat((-more, taps + more, -more), -1), starts - 1


class PhotographedCassi(CoupledCassi):
    r"""Single disperser whose mask was photographed by the sensor that takes the snapshots.

        y[k, h, w'] = Σ_c m_c[k, h, w'] · Σ_t a[c, t] x[c, h, w' − s(c) − t]

    Band c falls at o = s + f, s whole and 0 <= f < 1. The scene is interpolated linearly, as
    `SDCassi` does: a = (1 − f, f). The code m_c is the photograph, moved by o with sharper taps.
    A photograph is averaged over pixels already. Where it is interpolated linearly it is averaged
    twice, and its code has too little contrast. A mask known from its design is averaged by the
    linear interpolation: that is for `SDCassi`. With bands on whole pixels both are one. A pixel
    that sees less than a thousandth of the light of others is left out: the code is 0 there.

    AAᵀ couples neighbours in a row, and is inverted in closed form, see `cassi.ops.band_solve`.

    Args:
        mask: photograph, as for `SDCassi`.
        bands: number of bands C.
        step: dispersion in pixels per band, whole or not; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        further: what else `SDCassi` takes: `offsets`, `detector`.

    Raises:
        TypeError: as `SDCassi`.
        ValueError: as `SDCassi`.

    >>> camera = PhotographedCassi(torch.tensor([[0.0, 1, 0, 1]]), bands=1, offsets=[0.5])
    >>> camera(torch.ones(1, 1, 1, 4))
    tensor([[[[0.0000, 0.6250, 0.5000, 0.3750, 0.5625]]]])
    """

    def __init__(
        self, mask: Any, bands: int, step: float = 2, axis: int = -1, **further: Any
    ) -> None:
        super().__init__(SDCassi(mask, bands, step, axis, **further), None, 1)
        self.part_axis = -3 - axis
        self._derive()

    @property
    def plain(self) -> SDCassi:
        """The camera with the same mask and places, that interpolates linearly."""
        return self.tell(SDCassi(self.mask, self.bands, **self._where()))

    def around(self, camera: System) -> System:
        """Return the camera as `photographed`."""
        return photographed(camera)

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        check_shape("x", x, self.cube_shape)
        y = ops.forward_taps(self.turn(x), *self._current(), self.detector, after=True)
        return self.turn(y)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        check_shape("y", y, self.measurement_shape)
        return self.turn(ops.adjoint_taps(self.turn(y), *self._current(), after=True))

    def add_adjoint(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + Aᵀy: `(B, C, H, W)` and `(B, K, H', W')` → `(B, C, H, W)`."""
        check_shape("y", y, self.measurement_shape)
        v, y = self.turn(v), self.turn(y)
        return self.turn(ops.add_adjoint_taps(v, y, *self._current(), after=True))

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + A Aᵀ y: `(B, K, H', W')` twice → `(B, K, H', W')`."""
        if self._is_derived():
            return super().add_gram_product(v, y)
        return self.turn(add_lines(self.turn(v), self.turn(y), self._grams()))

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (AAᵀ + diag ρ) z = r in closed form, r and ρ as for `System.gram_solve`."""
        check_shape("y", r, self.measurement_shape)
        rho = self.turn(rho) if isinstance(rho, Tensor) and rho.ndim > 2 else rho
        return self.turn(solve_lines(self.turn(r), self._grams(), rho, self.offsets))

    def part(self, start: int, stop: int) -> PhotographedCassi:
        """Return the camera of rows (columns for `axis=-2`) start to stop; see `System.part`."""
        part = self.plain.part(start, stop)
        return self.tell(PhotographedCassi(part.mask, self.bands, **self._where()))

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the codes from the present mask."""
        self._codes = self._make_codes()
        self._gram: Tensor | None = None  # made when it is asked for
        self._note_sources()

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        return self.plain.extra_repr()

    def _where(self) -> dict[str, Any]:
        return {"offsets": list(self.offsets), "axis": self.axis, "detector": self.detector}

    def _sources(self) -> tuple[Tensor]:
        return (self.mask,)

    def _hold(self) -> None:
        self._grams()
        super()._hold()

    def _is_derived(self) -> bool:
        """Tell whether nothing is kept: the mask may have a gradient, or values of each call."""
        is_compiling = torch.compiler.is_compiling()
        return is_compiling or is_tracked(self.mask) or is_wrapped(self.mask)

    def _current(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the code of each band on the detector, the taps and starts of bands."""
        if self._is_derived():
            return self._make_codes()
        self._notice()
        return self._codes

    def _make_codes(self) -> tuple[Tensor, Tensor, Tensor]:
        mask = canonical_mask(self.turn(self.mask))
        offsets = torch.tensor(self.offsets, dtype=torch.float64, device=mask.device)
        wide = torch.promote_types(mask.dtype, torch.float32)
        taps, starts = ops.linear_taps(offsets)
        sharp, _ = sharp_taps(offsets - starts)
        columns, near = mask.shape[-1] + 1, _beyond(mask.to(wide))
        seen = [
            tap[:, None, None] * near[..., 3 - k : 3 - k + columns]
            for k, tap in enumerate(sharp.to(wide).unbind(-1))
        ]
        code, taps = sum(seen[1:], seen[0]).clamp_min(0), taps.to(wide)
        lit = self._lit(code.detach(), taps, starts)
        return (code * lit).to(mask.dtype).contiguous(), taps, starts

    def _lit(self, code: Tensor, taps: Tensor, starts: Tensor) -> Tensor:
        """Return 1 where a code falls on a pixel that sees light, and 0 on others, as the code."""
        samples, shots, bands, height, columns = code.shape
        white = code.new_ones(samples, bands, height, columns - 1)
        # The diagonal of AAᵀ.
        seen = ops.forward_taps(
            white, code.square(), taps.square(), starts, self.detector, after=True
        )
        lit = (seen > _DARK * seen.median()).to(code.dtype).flatten(0, 1).unsqueeze(1)
        one = code.new_ones(1, 1, height, columns)
        back = ops.adjoint_taps(lit, one, taps.new_ones(bands, 1), starts)
        return back.unflatten(0, (samples, shots))

    def _grams(self) -> Tensor:
        if self._is_derived():
            return self._make_gram()
        self._notice()
        if self._gram is None:
            with torch.no_grad():
                self._gram = self._make_gram()
        return self._gram

    def _make_gram(self) -> Tensor:
        """Return AAᵀ as `cassi.ops.gram_taps` has it, float64."""
        return ops.gram_taps(*self._current(), self.detector, after=True)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.refresh()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_codes": None, "_made_of": [], "_gram": None}


def _beyond(mask: Tensor) -> Tensor:
    """Return the mask `(B, K, 1|C, H, W)` with two more columns on both sides, like the last."""
    flat = mask.flatten(0, 1)
    return pad(flat, (2, 2, 0, 0), mode="replicate").unflatten(0, mask.shape[:2])


def photographed(camera: System) -> System:
    """Return a camera whose mask is a photograph; itself where that makes no difference.

    It does for an `SDCassi` with bands between pixels.
    """
    if type(camera) is not SDCassi or all(offset.is_integer() for offset in camera.offsets):
        return camera
    if camera.mask.requires_grad:
        return camera
    where: dict[str, Any] = {"offsets": camera.offsets, "axis": camera.axis}
    made = PhotographedCassi(camera.mask, camera.bands, detector=camera.detector, **where)
    return camera.tell(made)


def is_design(mask: Tensor) -> bool:
    """Tell whether a mask is a design: it has two values. A sensor's blur makes grey ones.

    Args:
        mask: `(…, H, W)`. Each image may have two values of its own, rounded to 8 bits.
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

    Args:
        mask: `(…, H, W)`, each image with levels of its own.
    """
    low, high = mask.amin((-2, -1), keepdim=True), mask.amax((-2, -1), keepdim=True)
    away = torch.stack((mask - low, high - mask)) / (high - low)
    at, near = ((away <= k * _ROUNDED).float().mean((-2, -1)) for k in (1, 2))
    return bool(((at > _CLIPPED) & (at > _PEAKED * (near - at))).all())
