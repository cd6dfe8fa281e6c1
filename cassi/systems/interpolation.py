"""Bilinear interpolation of a scene at the points that a map gives detector pixels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from cassi.ops._recording import (
    FunctionContext,
    VmapInfo,
    is_forward,
)


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
