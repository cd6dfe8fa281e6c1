"""A single-disperser camera that bends, turns and stretches the image of every band."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from cassi.systems.base import System
from cassi.systems.blurred import take_mask
from cassi.systems.conjugate import ConjugateGradients
from cassi.systems.sd_cassi import SDCassi
from cassi.systems.warp import (
    Grid,
    Taps,
    corners,
    make_taps,
    mean_offset,
    per_band,
    resample,
    resample_along,
    scene_coordinates,
    spread,
)

_MAP = ("rotation", "magnification", "smile", "keystone", "polynomial", "displacement")


class WarpedCassi(System):
    r"""Single disperser where each band has a smooth map from detector to scene of its own.

        y[k, i, j] = Σ_c (m[k, c]·x[c])(u_c(i, j), v_c(i, j))

    interpolated bilinearly, with nothing beside the scene. With (r, s) = (i, j − o(c)) counted from
    the middle of the scene, (r̂, ŝ) the same in units of half its sides, and γ_c from −1 for the
    first band to 1 for the last, for dispersion along columns

        u = ū + (r cos θ − s sin θ)/μ + κ γ_c r̂ + Σ_pq a[c, 0, p, q] r̂^p ŝ^q + d[c, 0, i, j]
        v = v̄ + (r sin θ + s cos θ)/μ + σ r̂²    + Σ_pq a[c, 1, p, q] r̂^p ŝ^q + d[c, 1, i, j]

    For `axis=-2` smile and keystone change places; the rest stays as it is, rows first. With the
    default map this is `SDCassi`, or its linear interpolation where offsets are fractional.

    A pixel is a weighted mean of four, so y is not changed in brightness by a magnification. The
    map's parameters are buffers, float64 whatever the camera is converted to. After
    `camera.smile.requires_grad_()`, all methods have gradients with respect to it (and take
    a few times as long), for calibration; that of a bilinear interpolation jumps at pixels.

    AAᵀ is not diagonal: `gram_solve`, `pinv` and `data_step` use conjugate gradients.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`.
        bands: number of bands C.
        step: dispersion in whole pixels per band; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        rotation: θ, degrees by which the image is turned clockwise; a number or one per band, as
            are the next two.
        magnification: μ, of the image against the scene.
        smile: σ, pixels along the dispersion by which the slit's image is bent at its ends.
        keystone: κ, pixels across the dispersion at the ends of the slit in the outermost bands.
        polynomial: a, pixels, `(2, P, P)` or `(C, 2, P, P)`.
        displacement: d, pixels, `(2, H', W')` or `(C, 2, H', W')`.
        tolerance: of conjugate gradients, relative; see `ConjugateGradients`.
        iterations: of conjugate gradients, at most.
        further: what else `SDCassi` takes, such as `offsets`.

    Raises:
        TypeError: as `SDCassi`, or a parameter is not numeric.
        ValueError: as `SDCassi`, or a parameter has another shape, is not finite, or the
            magnification is not positive.

    Source: Arguello et al., "Higher-order computational model for coded aperture spectral imaging",
    Applied Optics 52(10), 2013; for the parameters: Mouroulis, Green, Chrien, "Design of pushbroom
    imaging spectrometers", Applied Optics 39(13), 2000.

    >>> system = WarpedCassi(torch.ones(4, 6), bands=3, step=1, smile=0.5, rotation=1.0)
    >>> system(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 8])
    """

    mask: Tensor
    rotation: Tensor
    magnification: Tensor
    smile: Tensor
    keystone: Tensor
    polynomial: Tensor | None
    displacement: Tensor | None

    def __init__(
        self,
        mask: Any,
        bands: int,
        step: int = 2,
        axis: int = -1,
        *,
        rotation: Any = 0.0,
        magnification: Any = 1.0,
        smile: Any = 0.0,
        keystone: Any = 0.0,
        polynomial: Any = None,
        displacement: Any = None,
        tolerance: float | None = None,
        iterations: int = 200,
        **further: Any,
    ) -> None:
        super().__init__()
        plain = SDCassi(mask, bands, step, axis, **further)
        self.bands, self.step, self.axis = bands, plain.step, axis
        self.conjugate = ConjugateGradients(tolerance, iterations)
        take_mask(self, plain)
        scene, detector = plain.cube_shape[1:], plain.measurement_shape[1:]
        self._grid = Grid(scene, detector, plain.offsets, axis)
        values = (rotation, magnification, smile, keystone)
        given: dict[str, Tensor | None] = {
            name: per_band(name, value, bands) for name, value in zip(_MAP[:4], values, strict=True)
        }
        if not bool((cast("Tensor", given["magnification"]) > 0).all()):
            raise ValueError(f"magnification: expected numbers > 0, got {magnification}")
        given["polynomial"] = _field("polynomial", polynomial, bands, None)
        given["displacement"] = _field("displacement", displacement, bands, detector)
        for name, tensor in given.items():
            self.register_buffer(name, None if tensor is None else tensor.to(plain.mask.device))
        self._taps: Taps | None = None
        self._made_of: list[tuple[Tensor, int]] = []
        self._offsets: tuple[float, ...] | None = None
        self.refresh()
        self.register_load_state_dict_post_hook(_refresh)

    @property
    def shots(self) -> int:
        """Number K of masks, that is of channels of the measurement."""
        return self.mask.shape[-4]

    @property
    def offsets(self) -> tuple[float, ...]:
        """Where the leftmost column of each band falls on the detector, in the mean, pixels."""
        if not self._is_current():
            self.refresh()
        if self._offsets is None:
            shape = self._map()
            self._offsets = tuple(mean_offset(self._grid, c, shape) for c in range(self.bands))
        return self._offsets

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return (self.bands, *self._grid.scene)

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""
        return (self.shots, *self._grid.detector)

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        _check("x", x, "(B, C, H, W)", self.cube_shape)
        wide = self._wide(x)
        image = x.to(wide)[:, None] * self.mask  # (B, K, C, H, W)
        table = image.permute(2, 3, 4, 0, 1).reshape(self.bands, -1, len(x) * self.shots)
        if self._is_calibrated():
            y = resample_along(table, *self._differentiable(wide))
        else:
            y = resample(table, self._current(wide))
        return y.to(x.dtype).mT.reshape(len(x), *self.measurement_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        _check("y", y, "(B, K, H', W')", self.measurement_shape)
        wide = self._wide(y)
        table = y.to(wide).reshape(len(y) * self.shots, -1).mT
        if self._is_calibrated():
            size = self._grid.scene[0] * self._grid.scene[1]
            dark = table.new_zeros(self.bands, size, table.shape[1], requires_grad=True)
            seen = resample_along(dark, *self._differentiable(wide))
            (image,) = torch.autograd.grad(seen, dark, table, create_graph=True)
        else:
            image = spread(table, self._current(wide))
        image = image.reshape(*self.cube_shape, len(y), self.shots).permute(3, 4, 0, 1, 2)
        return (image * self.mask).sum(1).to(y.dtype)

    @torch.no_grad()
    def refresh(self) -> None:
        """Derive the interpolation from the map again."""
        dtype = torch.promote_types(self.mask.dtype, torch.float32)
        self._taps = make_taps(self._grid, self._map(), dtype)
        self._note()

    def _note(self) -> None:
        self._made_of = [(value, _version(value)) for value in self._given()]
        self._offsets = None

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        height, width = self._grid.scene
        parts = [f"mask={height}x{width}, shots={self.shots}, bands={self.bands}"]
        parts.append(f"step={self.step}, axis={self.axis}")
        for name, value in self._map().items():
            if value is None or bool((value == (1 if name == "magnification" else 0)).all()):
                continue
            shown = f"{value.item():g}" if value.numel() == 1 else str(tuple(value.shape))
            parts.append(f"{name}={shown}")
        return ", ".join(parts)

    def _map(self) -> dict[str, Tensor | None]:
        return {name: getattr(self, name) for name in _MAP}

    def _given(self) -> list[Tensor]:
        return [value for value in self._map().values() if value is not None]

    def _is_calibrated(self) -> bool:
        return torch.is_grad_enabled() and any(value.requires_grad for value in self._given())

    def _is_current(self) -> bool:
        values = [(value, _version(value)) for value in self._given()]
        return len(values) == len(self._made_of) and all(
            a is b and version == made
            for (a, version), (b, made) in zip(values, self._made_of, strict=True)
        )

    def _wide(self, value: Tensor) -> torch.dtype:
        dtype = torch.promote_types(value.dtype, self.mask.dtype)
        return torch.promote_types(dtype, torch.float32)

    def _current(self, dtype: torch.dtype) -> Taps:
        # A map changed in place is noticed, except in a compiled graph, where it is a constant.
        if not torch.compiler.is_compiling() and not self._is_current():
            self.refresh()
        taps = cast("Taps", self._taps)
        if taps.weight.dtype == dtype:
            return taps
        weight, back_weight = taps.weight.to(dtype), taps.back_weight.to(dtype)
        return taps._replace(weight=weight, back_weight=back_weight)

    def _differentiable(self, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        shape, scene = self._map(), self._grid.scene
        pairs = [
            corners(scene_coordinates(self._grid, band, shape), scene) for band in range(self.bands)
        ]
        return [source for source, _ in pairs], [weight.to(dtype) for _, weight in pairs]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        kept = {name: value for name, value in self._map().items() if name in self._buffers}
        current, device, wide = self._is_current(), self.mask.device, self._wide(self.mask)
        super()._apply(fn, recurse)
        for name, value in kept.items():  # moved, but as exact as before
            if value is not None:
                moved = value.detach().to(self.mask.device)
                self._buffers[name] = moved.requires_grad_(value.requires_grad)
        if current and (device, wide) == (self.mask.device, self._wide(self.mask)):
            self._note()  # at full size, the interpolation takes seconds to derive
        else:
            self.refresh()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_taps": None, "_made_of": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.refresh()


def _field(name: str, value: Any, bands: int, detector: tuple[int, int] | None) -> Tensor | None:
    if value is None:
        return None
    field = per_band(name, value, bands, ndim=3)
    sides = (field.shape[-1],) * 2 if detector is None else detector
    if tuple(field.shape[1:]) != (2, *sides):
        letters = "(C, 2, P, P)" if detector is None else f"(C, 2, {sides[0]}, {sides[1]})"
        raise ValueError(f"{name}: expected {letters}, got shape {tuple(field.shape)}")
    return field


def _check(name: str, value: Tensor, letters: str, shape: tuple[int, int, int]) -> None:
    if value.ndim != 4 or tuple(value.shape[1:]) != shape:
        raise ValueError(
            f"{name}: expected {letters} = (B, {', '.join(map(str, shape))}), "
            f"got shape {tuple(value.shape)}"
        )


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _refresh(system: WarpedCassi, _: Any) -> None:
    system.refresh()
