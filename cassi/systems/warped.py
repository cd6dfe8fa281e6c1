"""A single-disperser camera that bends, turns and stretches the image of every band."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag
from typing_extensions import Unpack

from cassi.ops._recording import (
    FunctionContext,
    VmapInfo,
    is_forward,
    is_recorded,
    is_tracked,
    is_wrapped,
)
from cassi.systems.arguments import Array, check_shape, refuse_gradient
from cassi.systems.coupled import CoupledCassi
from cassi.systems.sd_cassi import Further, SDCassi


@dataclass(frozen=True)
class Grid:
    """Sizes of a scene and a detector, and the offsets of the bands without a warp."""

    scene: tuple[int, int]
    """(H, W)"""
    detector: tuple[int, int]
    """(H', W')"""
    offsets: tuple[float, ...]
    """Detector column (row for `axis=-2`) of the first column of each band."""
    axis: int


def scene_coordinates(grid: Grid, band: int, shape: Mapping[str, Tensor | None]) -> Tensor:
    """Return the scene row and column that each detector pixel images in one band.

    See `cassi.systems.WarpedCassi` for the equation; `shape` are its parameters for all bands,
    float64. The result is `(2, H', W')`, float64, differentiable with respect to them.
    """

    def own(name: str) -> Tensor:  # of this band
        value = shape[name]
        assert value is not None
        return value[min(band, len(value) - 1)]

    magnification = own("magnification")
    ruler = {"dtype": torch.float64, "device": magnification.device}
    middle = [(side - 1) / 2 for side in grid.scene]
    shift = [0.0, 0.0]
    shift[grid.axis] = grid.offsets[band]
    down, right = (
        torch.arange(side, **ruler) - o - m  # type: ignore[call-overload]
        for side, o, m in zip(grid.detector, shift, middle, strict=True)
    )
    down, right = torch.meshgrid(down, right, indexing="ij")
    angle = own("rotation") * (math.pi / 180)
    place = [
        middle[0] + (angle.cos() * down - angle.sin() * right) / magnification,
        middle[1] + (angle.sin() * down + angle.cos() * right) / magnification,
    ]
    # Half a side is 1.
    unit = [down / max(middle[0], 0.5), right / max(middle[1], 0.5)]
    along, across = (1, 0) if grid.axis == -1 else (0, 1)
    count = len(grid.offsets)
    colour = 2 * band / (count - 1) - 1 if count > 1 else 0.0
    place[along] = place[along] + own("smile") * unit[across] ** 2
    place[across] = place[across] + own("keystone") * colour * unit[across]
    coordinates = torch.stack(place)
    if shape["polynomial"] is not None:
        powers = [torch.stack([u**n for n in range(own("polynomial").shape[-1])]) for u in unit]
        terms = torch.einsum("dpq,phw,qhw->dhw", own("polynomial"), *powers)
        coordinates = coordinates + terms
    if shape["displacement"] is not None:
        coordinates = coordinates + own("displacement")
    return coordinates


def corners(coordinates: Tensor, scene: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the four scene pixels around each point, and their bilinear weights.

    Coordinates are `(2, H', W')`. The indices into the flattened scene are `(H'·W', 4)`, int32, and
    so are the weights. Points beside the scene have weight 0 and index 0.
    """
    first = coordinates.detach().floor()
    share = coordinates - first
    indices, weights = [], []
    for down in (0, 1):
        for right in (0, 1):
            row, column = first[0] + down, first[1] + right
            inside = (row >= 0) & (row < scene[0]) & (column >= 0) & (column < scene[1])
            weight = (share[0] if down else 1 - share[0]) * (share[1] if right else 1 - share[1])
            # Not a product with `inside`: a coordinate may be infinite.
            indices.append(torch.where(inside, row * scene[1] + column, 0).int())
            weights.append(torch.where(inside, weight, 0))
    return torch.stack(indices, -1).flatten(0, 1), torch.stack(weights, -1).flatten(0, 1)


class Taps(NamedTuple):
    """A sparse matrix from each band's scene to the detector, and its transpose.

    Both are stored by the rows that they are summed over, so that every sum has a fixed order.
    """

    source: Tensor
    """`(C, H'·W', 4)`, int32, into the flattened scene."""
    weight: Tensor
    """`(C, H'·W', 4)`"""
    back_source: Tensor
    """Into the flattened detector, int32: by band, then by the scene's pixel it contributes to."""
    back_weight: Tensor
    back_start: Tensor
    """`(C, H·W + 1)`, int32: first entry of each pixel of the scene in its band's part."""
    parts: tuple[int, ...]
    """Number of entries of every band."""


@torch.no_grad()
def make_taps(grid: Grid, shape: Mapping[str, Tensor | None], dtype: torch.dtype) -> Taps:
    """Interpolate at the `scene_coordinates` of every band; weights have the dtype asked for."""
    size, pixels = grid.scene[0] * grid.scene[1], grid.detector[0] * grid.detector[1]
    bands = len(grid.offsets)
    device = next(value.device for value in shape.values() if value is not None)
    # Made in place: beside the result there is never more than one band. Memory that is not
    # written to is not taken.
    source = torch.empty(bands, pixels, 4, dtype=torch.int32, device=device)
    weight = torch.empty(bands, pixels, 4, dtype=dtype, device=device)
    back_source = torch.empty(source.numel(), dtype=torch.int32, device=device)
    back_weight = torch.empty(source.numel(), dtype=dtype, device=device)
    back_start = torch.zeros(bands, size + 1, dtype=torch.int32, device=device)
    parts: list[int] = []
    for band in range(bands):
        source[band], shares = corners(scene_coordinates(grid, band, shape), grid.scene)
        weight[band] = shares
        here, shares = source[band].flatten(), weight[band].flatten()
        seen = torch.nonzero(shares)[:, 0]
        order = seen[here[seen].argsort(stable=True)]
        place = slice(sum(parts), sum(parts) + len(order))
        back_source[place], back_weight[place] = order // 4, shares[order]
        back_start[band, 1:] = torch.bincount(here[seen], minlength=size).cumsum(0)
        parts.append(len(order))
    total = sum(parts)
    back = (back_source[:total], back_weight[:total], back_start)
    return Taps(source, weight, *back, tuple(parts))


def resample(table: Tensor, taps: Taps) -> Tensor:
    """Interpolate the scenes of all bands `(C, H·W, F)` and sum over bands: `(H'·W', F)`."""
    return _interpolate(table, False, *taps)


def spread(table: Tensor, taps: Taps) -> Tensor:
    """Apply the transpose of `resample`: `(H'·W', F)` → `(C, H·W, F)`."""
    return _interpolate(table, True, *taps)


def resample_along(table: Tensor, source: list[Tensor], weight: list[Tensor]) -> Tensor:
    """Do what `resample` does, with gradients with respect to the weights `(H'·W', 4)`."""
    return torch.stack(
        [
            (embedding(here, scene) * share[..., None]).sum(1)
            for scene, here, share in zip(table.unbind(0), source, weight, strict=True)
        ]
    ).sum(0)


# Band by band: a scene stays in the cache, and a bag for each pixel and band would fill memory.
def _resample(table: Tensor, source: Tensor, weight: Tensor) -> Tensor:
    start = torch.arange(0, weight[0].numel() + 1, 4, dtype=source.dtype, device=table.device)
    out = table.new_zeros(len(start) - 1, table.shape[2])
    for band, scene in enumerate(table):
        out += _sum_bags(source[band].flatten(), scene, start, weight[band].flatten())
    return out


def _spread(
    table: Tensor, source: Tensor, weight: Tensor, start: Tensor, parts: tuple[int, ...]
) -> Tensor:
    table = table.contiguous()
    out = table.new_empty(len(start), start.shape[1] - 1, table.shape[1])
    first = 0
    for band, count in enumerate(parts):
        part = slice(first, first + count)
        out[band] = _sum_bags(source[part], table, start[band], weight[part])
        first += count
    return out


class _Interpolate(torch.autograd.Function):
    """Multiply a table by the matrix of the taps, or by its transpose."""

    # One by one: `torch.compile` counts what `forward` takes.
    @staticmethod
    def forward(
        table: Tensor,
        back: bool,
        source: Tensor,
        weight: Tensor,
        back_source: Tensor,
        back_weight: Tensor,
        back_start: Tensor,
        parts: tuple[int, ...],
    ) -> Tensor:
        if back:
            return _spread(table, back_source, back_weight, back_start, parts)
        return _resample(table, source, weight)

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, back, *tensors, parts = inputs
        ctx.constants = back, parts
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back, parts = ctx.constants
        image = _interpolate(gradients[0], not back, *ctx.saved_tensors, parts)
        return (image, None, *(None for _ in Taps._fields))

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: tuple[int, *tuple[None, ...]], table: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        # The mapped entries are further columns of the table.
        columns = table.movedim(in_dims[0], -1)
        image = _interpolate(columns.flatten(-2), *rest)
        return image.unflatten(-1, (-1, info.batch_size)), image.ndim


class _InterpolateForwards(_Interpolate):
    """The same with tangents, of which `torch.compile` takes no class."""

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Tensor) -> None:
        _Interpolate.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[2:-1])

    @staticmethod
    def jvp(ctx: FunctionContext, tangent: Tensor, *_: None) -> Tensor:
        back, parts = ctx.constants
        return _interpolate(tangent, back, *ctx.saved_tensors, parts)


def _interpolate(table: Tensor, back: bool, *taps: Tensor | tuple[int, ...]) -> Tensor:
    function = _InterpolateForwards if is_forward() else _Interpolate
    return function.apply(table, back, *taps)


def _sum_bags(source: Tensor, table: Tensor, start: Tensor, weight: Tensor) -> Tensor:
    # Each row of the result is summed by one thread, in the order of its entries.
    return embedding_bag(
        source,
        table.contiguous(),
        start,
        mode="sum",
        per_sample_weights=weight,
        include_last_offset=True,
    )


@torch.no_grad()
def mean_offset(grid: Grid, band: int, shape: Mapping[str, Tensor | None]) -> float:
    """Return the mean detector column (or row) of the first column of a band, pixels."""
    place = scene_coordinates(grid, band, shape)
    inside = torch.ones_like(place[0], dtype=torch.bool)
    for coordinate, side in zip(place, grid.scene, strict=True):
        inside &= (coordinate >= 0) & (coordinate <= side - 1)
    along = place[grid.axis]
    pixel = torch.arange(along.shape[grid.axis], dtype=along.dtype, device=along.device)
    moved = (pixel if grid.axis == -1 else pixel[:, None]) - along
    return float(moved[inside].mean()) if bool(inside.any()) else grid.offsets[band]


def per_band(name: str, value: Array, bands: int, ndim: int = 0) -> Tensor:
    """Return a parameter as float64, with a first dimension of 1 or of one entry per band."""
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


_MAP = ("rotation", "magnification", "smile", "keystone", "polynomial", "displacement")


class WarpedCassi(CoupledCassi):
    r"""Single disperser with a smooth map from detector to scene for each band.

        y[k, i, j] = Σ_c (m[k, c]·x[c])(u_c(i, j), v_c(i, j))

    The scene is interpolated bilinearly, and dark outside. (r, s) = (i, j − o(c)) counts from the
    middle of the scene; (r̂, ŝ) is the same in units of half its sides. γ_c goes from −1 for the
    first band to 1 for the last. For dispersion along columns,

        u = ū + (r cos θ − s sin θ)/μ + κ γ_c r̂ + Σ_pq a[c, 0, p, q] r̂^p ŝ^q + d[c, 0, i, j]
        v = v̄ + (r sin θ + s cos θ)/μ + σ r̂²    + Σ_pq a[c, 1, p, q] r̂^p ŝ^q + d[c, 1, i, j]

    For `axis=-2` smile and keystone change places; everything else stays, rows first. With the
    default map this is `SDCassi`, or its linear interpolation where offsets are fractional.

    A pixel is a weighted mean of four, so a magnification does not change the brightness of y. The
    map's parameters are buffers and stay float64 whatever the camera is converted to. After
    `camera.smile.requires_grad_()` all methods have gradients with respect to it, for calibration,
    and take a few times as long. The gradient of a bilinear interpolation jumps at pixels.

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

    rotation: Tensor
    magnification: Tensor
    smile: Tensor
    keystone: Tensor
    polynomial: Tensor | None
    displacement: Tensor | None
    _exact = _MAP

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
        **further: Unpack[Further],
    ) -> None:
        plain = SDCassi(mask, bands, step, axis, **further)
        super().__init__(plain, tolerance, iterations)
        detector = self.measurement_shape[1:]
        self._grid = Grid(self.cube_shape[1:], detector, plain.offsets, axis)
        values = (rotation, magnification, smile, keystone)
        given: dict[str, Tensor | None] = {
            name: per_band(name, value, bands) for name, value in zip(_MAP[:4], values, strict=True)
        }
        if not bool((cast("Tensor", given["magnification"]) > 0).all()):
            raise ValueError(f"magnification: expected numbers > 0, got {magnification!r}")
        given["polynomial"] = _field("polynomial", polynomial, bands, None)
        given["displacement"] = _field("displacement", displacement, bands, detector)
        for name, tensor in given.items():
            self.register_buffer(name, None if tensor is None else tensor.to(plain.mask.device))
        self._taps: Taps | None = None
        self._mean_offsets: tuple[float, ...] | None = None
        self._derive()

    @property
    def offsets(self) -> tuple[float, ...]:
        """Mean detector position of the first column of each band, pixels."""
        if not self._is_current():
            self.refresh()
        if self._mean_offsets is None:
            shape = self._map()
            self._mean_offsets = tuple(mean_offset(self._grid, c, shape) for c in range(self.bands))
        return self._mean_offsets

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        check_shape("x", x, self.cube_shape)
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
        check_shape("y", y, self.measurement_shape)
        wide = self._wide(y)
        table = y.to(wide).reshape(len(y) * self.shots, -1).mT
        if self._is_calibrated():
            size = self._grid.scene[0] * self._grid.scene[1]
            dark = table.new_zeros(self.bands, size, table.shape[1])
            corners = self._differentiable(wide)
            back = torch.func.vjp(lambda scenes: resample_along(scenes, *corners), dark)[1]
            (image,) = back(table)
        else:
            image = spread(table, self._current(wide))
        image = image.reshape(*self.cube_shape, len(y), self.shots).permute(3, 4, 0, 1, 2)
        return (image * self.mask).sum(1).to(y.dtype)

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the interpolation from the present map."""
        self._taps = make_taps(self._grid, self._map(), self._wide(self.mask))
        self._mean_offsets = None
        self._note_sources()

    def _described(self) -> list[str]:
        parts = super()._described()
        for name, value in self._map().items():
            if value is None or bool((value == (1 if name == "magnification" else 0)).all()):
                continue
            shown = f"{value.item():g}" if value.numel() == 1 else str(tuple(value.shape))
            parts.append(f"{name}={shown}")
        return parts

    def _map(self) -> dict[str, Tensor | None]:
        values = self.rotation, self.magnification, self.smile, self.keystone
        return dict(zip(_MAP, (*values, self.polynomial, self.displacement), strict=True))

    def _sources(self) -> list[Tensor | None]:
        # At full size the interpolation takes seconds to derive: values of the mask do not matter.
        kind = self.mask.new_empty(0, dtype=self._wide(self.mask))
        return [*self._map().values(), kind]

    def _is_calibrated(self) -> bool:
        sources = [value for value in self._map().values() if value is not None]
        return (is_recorded() and is_tracked(*sources)) or any(map(is_wrapped, sources))

    def _wide(self, value: Tensor) -> torch.dtype:
        dtype = torch.promote_types(value.dtype, self.mask.dtype)
        return torch.promote_types(dtype, torch.float32)

    def _current(self, dtype: torch.dtype) -> Taps:
        self._notice()
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

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_taps": None, "_made_of": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.refresh()


def _field(
    name: str, value: Array | None, bands: int, detector: tuple[int, int] | None
) -> Tensor | None:
    if value is None:
        return None
    field = per_band(name, value, bands, ndim=3)
    sides = (field.shape[-1],) * 2 if detector is None else detector
    if tuple(field.shape[1:]) != (2, *sides):
        letters = "(C, 2, P, P)" if detector is None else f"(C, 2, {sides[0]}, {sides[1]})"
        raise ValueError(f"{name}: expected {letters}, got shape {tuple(field.shape)}")
    return field
