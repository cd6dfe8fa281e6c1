"""A single-disperser camera with distortion: rotation, magnification, smile, keystone per band."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.ops._recording import is_recorded, is_tracked, is_wrapped
from cassi.systems.arguments import Array, check_shape, refuse_gradient
from cassi.systems.coupled import CoupledCassi
from cassi.systems.interpolation import (
    Geometry,
    Taps,
    compute_mean_offset,
    find_corners,
    make_taps,
    map_to_scene,
    resample,
    resample_differentiably,
    spread,
)
from cassi.systems.sd_cassi import SDCassi, SDCassiOptions


def as_per_band(name: str, value: Array, bands: int, ndim: int = 0) -> Tensor:
    """Convert a parameter of the map to float64, with a first dimension of 1 or C.

    Args:
        name: name of the parameter in messages.
        value: one value, or one per band.
        bands: number of bands C.
        ndim: number of dimensions of the value of one band.

    Raises:
        TypeError: the values are no numbers.
        ValueError: the shape does not fit, or a value is not finite.
    """
    if isinstance(value, Tensor):
        refuse_gradient(name, value, f"call camera.{name}.requires_grad_() afterwards")
        tensor = value.detach().to(torch.float64).clone()
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name}: expected numbers, got dtype {array.dtype}")
        tensor = torch.from_numpy(array.astype(np.float64))
    tensor = tensor[None] if tensor.ndim == ndim else tensor
    if tensor.ndim != ndim + 1 or len(tensor) not in (1, bands):
        raise ValueError(
            f"{name}: expected one value or {bands}, one per band, of {ndim} dimensions each, "
            f"got shape {tuple(tensor.shape)}"
        )
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    return tensor


_MAP_PARAMETERS = ("rotation", "magnification", "smile", "keystone", "polynomial", "displacement")


class WarpedCassi(CoupledCassi):
    r"""Single disperser with a smooth map from detector to scene for each band.

        y[k, i, j] = Σ_c (m[k, c]·x[c])(u_c(i, j), v_c(i, j))

    The scene is interpolated bilinearly; outside it is dark. (ū, v̄) is the middle of the scene, and
    (r, s) = (i − ū, j − o(c) − v̄). (r̂, ŝ) is (r, s) in units of half the sides of the scene. γ_c
    goes from −1 for the first band to 1 for the last. For dispersion along columns,

        u = ū + (r cos θ − s sin θ)/μ + κ γ_c r̂ + Σ_pq a[c, 0, p, q] r̂^p ŝ^q + d[c, 0, i, j]
        v = v̄ + (r sin θ + s cos θ)/μ + σ r̂²    + Σ_pq a[c, 1, p, q] r̂^p ŝ^q + d[c, 1, i, j]

    For `axis=-2` the terms of smile and keystone change places: smile then bends u, and keystone
    moves v. If all parameters of the map have their defaults, the camera equals `SDCassi` with
    linear interpolation.

    A detector pixel is a weighted mean of four scene pixels, so a magnification does not change the
    brightness of y. The map's parameters are buffers and stay float64 whatever the camera is
    converted to. After `camera.smile.requires_grad_()` all methods have gradients with respect to
    the smile, for calibration, and take a few times as long. The gradient of a bilinear
    interpolation jumps at pixels.

    AAᵀ is not diagonal: `gram_solve`, `pinv` and `data_step` use conjugate gradients.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`.
        bands: number of bands C.
        step: dispersion in pixels per band, whole or not; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        rotation: θ, degrees by which the image is turned clockwise; a number or one per band, as
            for magnification, smile and keystone.
        magnification: μ > 0, of the image relative to the scene.
        smile: σ, pixels along the dispersion by which the image of a slit is bent at its ends.
        keystone: κ, pixels across the dispersion at the ends of a slit in the outermost bands.
        polynomial: a, pixels, `(2, P, P)` or `(C, 2, P, P)`.
        displacement: d, pixels, `(2, H', W')` or `(C, 2, H', W')`.
        tolerance: relative tolerance of conjugate gradients; see `ConjugateGradients`.
        iterations: most iterations of conjugate gradients.
        further: further arguments of `SDCassi`, such as `offsets`.

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

    rotation: Tensor
    magnification: Tensor
    smile: Tensor
    keystone: Tensor
    polynomial: Tensor | None
    displacement: Tensor | None
    _float64_tensors = _MAP_PARAMETERS

    def __init__(
        self,
        mask: Array,
        bands: int,
        step: float = 2,
        axis: int = -1,
        *,
        rotation: Array = 0.0,
        magnification: Array = 1.0,
        smile: Array = 0.0,
        keystone: Array = 0.0,
        polynomial: Array | None = None,
        displacement: Array | None = None,
        tolerance: float | None = None,
        iterations: int = 200,
        **further: Unpack[SDCassiOptions],
    ) -> None:
        disperser = SDCassi(mask, bands, step, axis, **further)
        super().__init__(disperser, tolerance, iterations)
        detector = self.measurement_shape[1:]
        self._geometry = Geometry(self.cube_shape[1:], detector, disperser.offsets, axis)
        per_band_values = (rotation, magnification, smile, keystone)
        parameters: dict[str, Tensor | None] = {
            name: as_per_band(name, value, bands)
            for name, value in zip(_MAP_PARAMETERS[:4], per_band_values, strict=True)
        }
        if not bool((cast("Tensor", parameters["magnification"]) > 0).all()):
            raise ValueError(f"magnification: expected numbers > 0, got {magnification!r}")
        parameters["polynomial"] = _as_field("polynomial", polynomial, bands, None)
        parameters["displacement"] = _as_field("displacement", displacement, bands, detector)
        for name, tensor in parameters.items():
            self.register_buffer(name, None if tensor is None else tensor.to(disperser.mask.device))
        self._taps: Taps | None = None
        self._mean_offsets: tuple[float, ...] | None = None
        self._start_deriving()

    @property
    def offsets(self) -> tuple[float, ...]:
        """Mean detector position of the first column of each band, pixels."""
        if not self._is_current():
            self.refresh()
        if self._mean_offsets is None:
            parameters = self._get_map_parameters()
            self._mean_offsets = tuple(
                compute_mean_offset(self._geometry, c, parameters) for c in range(self.bands)
            )
        return self._mean_offsets

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        check_shape("x", x, self.cube_shape)
        dtype = self._choose_dtype(x)
        image = x.to(dtype)[:, None] * self.mask  # (B, K, C, H, W)
        table = image.permute(2, 3, 4, 0, 1).reshape(self.bands, -1, len(x) * self.shots)
        if self._needs_map_gradient():
            y = resample_differentiably(table, *self._make_differentiable_corners(dtype))
        else:
            y = resample(table, self._get_taps(dtype))
        return y.to(x.dtype).mT.reshape(len(x), *self.measurement_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        check_shape("y", y, self.measurement_shape)
        dtype = self._choose_dtype(y)
        table = y.to(dtype).reshape(len(y) * self.shots, -1).mT
        if self._needs_map_gradient():
            # The operator is linear in the scenes, so its transpose is the derivative at any
            # scene. Computed as a derivative it has gradients with respect to the map as well.
            size = self._geometry.scene[0] * self._geometry.scene[1]
            dark = table.new_zeros(self.bands, size, table.shape[1])
            corner_lists = self._make_differentiable_corners(dtype)
            transpose = torch.func.vjp(
                lambda scenes: resample_differentiably(scenes, *corner_lists), dark
            )[1]
            (image,) = transpose(table)
        else:
            image = spread(table, self._get_taps(dtype))
        image = image.reshape(*self.cube_shape, len(y), self.shots).permute(3, 4, 0, 1, 2)
        return (image * self.mask).sum(1).to(y.dtype)

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the interpolation from the present map."""
        self._taps = make_taps(
            self._geometry, self._get_map_parameters(), self._choose_dtype(self.mask)
        )
        self._mean_offsets = None
        self._note_sources()

    def _describe_arguments(self) -> list[str]:
        texts = super()._describe_arguments()
        for name, value in self._get_map_parameters().items():
            if value is None or bool((value == (1 if name == "magnification" else 0)).all()):
                continue
            value_text = f"{value.item():g}" if value.numel() == 1 else str(tuple(value.shape))
            texts.append(f"{name}={value_text}")
        return texts

    def _get_map_parameters(self) -> dict[str, Tensor | None]:
        values = self.rotation, self.magnification, self.smile, self.keystone
        return dict(
            zip(_MAP_PARAMETERS, (*values, self.polynomial, self.displacement), strict=True)
        )

    def _list_sources(self) -> list[Tensor | None]:
        # The interpolation depends on the dtype and device of the mask, not on its values. An empty
        # tensor stands for both. So a changed mask does not cause a new interpolation, which would
        # take seconds at full size.
        dtype_and_device = self.mask.new_empty(0, dtype=self._choose_dtype(self.mask))
        return [*self._get_map_parameters().values(), dtype_and_device]

    def _needs_map_gradient(self) -> bool:
        sources = [value for value in self._get_map_parameters().values() if value is not None]
        return (is_recorded() and is_tracked(*sources)) or any(map(is_wrapped, sources))

    def _choose_dtype(self, value: Tensor) -> torch.dtype:
        dtype = torch.promote_types(value.dtype, self.mask.dtype)
        return torch.promote_types(dtype, torch.float32)

    def _get_taps(self, dtype: torch.dtype) -> Taps:
        self._refresh_if_changed()
        taps = cast("Taps", self._taps)
        if taps.weight.dtype == dtype:
            return taps
        weight, back_weight = taps.weight.to(dtype), taps.back_weight.to(dtype)
        return taps._replace(weight=weight, back_weight=back_weight)

    def _make_differentiable_corners(self, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        parameters, scene = self._get_map_parameters(), self._geometry.scene
        pairs = [
            find_corners(map_to_scene(self._geometry, band, parameters), scene)
            for band in range(self.bands)
        ]
        return [source for source, _ in pairs], [weight.to(dtype) for _, weight in pairs]

    # Pickles leave the interpolation out: it is several times as large as the camera, and
    # `__setstate__` computes it again.
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_taps": None, "_noted_sources": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.refresh()


def _as_field(
    name: str, value: Array | None, bands: int, detector: tuple[int, int] | None
) -> Tensor | None:
    """Check a polynomial `(1|C, 2, P, P)`, or a displacement `(1|C, 2, H', W')`."""
    if value is None:
        return None
    field = as_per_band(name, value, bands, ndim=3)
    sides = (field.shape[-1],) * 2 if detector is None else detector
    if tuple(field.shape[1:]) != (2, *sides):
        letters = "(C, 2, P, P)" if detector is None else f"(C, 2, {sides[0]}, {sides[1]})"
        raise ValueError(f"{name}: expected {letters}, got shape {tuple(field.shape)}")
    return field
