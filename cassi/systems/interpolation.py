"""Bilinear interpolation of a scene at the points that the detector's pixels image."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from cassi.ops._recording import FunctionContext, VmapInfo, is_forward_mode


@dataclass(frozen=True)
class Geometry:
    """Sizes of a scene and a detector, and the offsets of the bands without a warp, pixels."""

    scene: tuple[int, int]
    """(H, W)"""
    detector: tuple[int, int]
    """(H', W')"""
    offsets: tuple[float, ...]
    """Detector column (row for `axis=-2`) of the first column of each band."""
    axis: int


def map_to_scene(geometry: Geometry, band: int, parameters: Mapping[str, Tensor | None]) -> Tensor:
    """Return the scene row and column that each detector pixel images in one band.

    See `cassi.systems.WarpedCassi` for the equation.

    Args:
        geometry: sizes of scene and detector, and the offsets.
        band: index of the band.
        parameters: parameters of the camera's map by name, float64.

    Returns:
        Rows and columns `(2, H', W')`, float64, differentiable with respect to the parameters.
    """

    def select_band(name: str) -> Tensor:
        value = parameters[name]
        assert value is not None
        return value[min(band, len(value) - 1)]

    magnification = select_band("magnification")
    options = {"dtype": torch.float64, "device": magnification.device}
    middle = [(side - 1) / 2 for side in geometry.scene]
    offset = [0.0, 0.0]
    offset[geometry.axis] = geometry.offsets[band]
    down, right = (
        torch.arange(side, **options) - o - m  # type: ignore[call-overload]
        for side, o, m in zip(geometry.detector, offset, middle, strict=True)
    )
    down, right = torch.meshgrid(down, right, indexing="ij")
    angle = select_band("rotation") * (math.pi / 180)
    position = [
        middle[0] + (angle.cos() * down - angle.sin() * right) / magnification,
        middle[1] + (angle.sin() * down + angle.cos() * right) / magnification,
    ]
    # r̂ and ŝ, in units of half a side. A side of one pixel would divide by zero.
    unit_coordinates = [down / max(middle[0], 0.5), right / max(middle[1], 0.5)]
    along_axis, across_axis = (1, 0) if geometry.axis == -1 else (0, 1)
    n_bands = len(geometry.offsets)
    band_position = 2 * band / (n_bands - 1) - 1 if n_bands > 1 else 0.0
    position[along_axis] = (
        position[along_axis] + select_band("smile") * unit_coordinates[across_axis] ** 2
    )
    position[across_axis] = (
        position[across_axis]
        + select_band("keystone") * band_position * unit_coordinates[across_axis]
    )
    coordinates = torch.stack(position)
    if parameters["polynomial"] is not None:
        powers = [
            torch.stack([u**n for n in range(select_band("polynomial").shape[-1])])
            for u in unit_coordinates
        ]
        polynomial_shift = torch.einsum("dpq,phw,qhw->dhw", select_band("polynomial"), *powers)
        coordinates = coordinates + polynomial_shift
    if parameters["displacement"] is not None:
        coordinates = coordinates + select_band("displacement")
    return coordinates


def find_corners(coordinates: Tensor, scene: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the four scene pixels around each point, and their bilinear weights.

    Args:
        coordinates: rows and columns of the points, `(2, H', W')`.
        scene: (H, W).

    Returns:
        Indices into the flattened scene, int32, and weights, both `(H'·W', 4)`. Pixels beside the
        scene have weight 0 and index 0.
    """
    first = coordinates.detach().floor()
    fraction = coordinates - first
    indices, weights = [], []
    for down in (0, 1):
        for right in (0, 1):
            row, column = first[0] + down, first[1] + right
            is_inside = (row >= 0) & (row < scene[0]) & (column >= 0) & (column < scene[1])
            row_weight = fraction[0] if down else 1 - fraction[0]
            column_weight = fraction[1] if right else 1 - fraction[1]
            # Not a product with `is_inside`: infinite coordinates times 0 would be NaN.
            indices.append(torch.where(is_inside, row * scene[1] + column, 0).int())
            weights.append(torch.where(is_inside, row_weight * column_weight, 0))
    return torch.stack(indices, -1).flatten(0, 1), torch.stack(weights, -1).flatten(0, 1)


class Taps(NamedTuple):
    """A sparse matrix from each band's scene to the detector, and its transpose.

    The entries of both are sorted by the pixel of the result. So every sum has a fixed order, and
    operators give the same bits for any number of threads.
    """

    source: Tensor
    """`(C, H'·W', 4)`, int32, into the flattened scene."""
    weight: Tensor
    """`(C, H'·W', 4)`"""
    back_source: Tensor
    """Indices into the flattened detector, int32, sorted by band and by pixel of the scene."""
    back_weight: Tensor
    """Weights of `back_source`."""
    back_start: Tensor
    """`(C, H·W + 1)`, int32: first entry of each scene pixel, counted within its band."""
    parts: tuple[int, ...]
    """Number of entries of `back_source` for every band."""


@torch.no_grad()
def make_taps(
    geometry: Geometry, parameters: Mapping[str, Tensor | None], dtype: torch.dtype
) -> Taps:
    """Compute the matrix and its transpose from the map of every band, see `map_to_scene`.

    `dtype` is the dtype of the weights.
    """
    scene_pixels, detector_pixels = math.prod(geometry.scene), math.prod(geometry.detector)
    bands = len(geometry.offsets)
    device = next(value.device for value in parameters.values() if value is not None)
    # The tensors are filled in place, so that at most one band exists twice. `back_source` has its
    # largest possible length. The operating system takes memory only for the part that is written.
    source = torch.empty(bands, detector_pixels, 4, dtype=torch.int32, device=device)
    weight = torch.empty(bands, detector_pixels, 4, dtype=dtype, device=device)
    back_source = torch.empty(source.numel(), dtype=torch.int32, device=device)
    back_weight = torch.empty(source.numel(), dtype=dtype, device=device)
    back_start = torch.zeros(bands, scene_pixels + 1, dtype=torch.int32, device=device)
    entry_counts: list[int] = []
    for band in range(bands):
        source[band], band_weights = find_corners(
            map_to_scene(geometry, band, parameters), geometry.scene
        )
        weight[band] = band_weights
        band_source, band_weights = source[band].flatten(), weight[band].flatten()
        nonzero = torch.nonzero(band_weights)[:, 0]
        # The transpose sums the entries of each scene pixel, so the entries are sorted by scene
        # pixel. The sort is stable, which keeps the order of the sums and so the bits.
        order = nonzero[band_source[nonzero].argsort(stable=True)]
        entries = slice(sum(entry_counts), sum(entry_counts) + len(order))
        back_source[entries], back_weight[entries] = order // 4, band_weights[order]
        pixel_counts = torch.bincount(band_source[nonzero], minlength=scene_pixels)
        back_start[band, 1:] = pixel_counts.cumsum(0)
        entry_counts.append(len(order))
    total = sum(entry_counts)
    return Taps(
        source, weight, back_source[:total], back_weight[:total], back_start, tuple(entry_counts)
    )


def resample(table: Tensor, taps: Taps) -> Tensor:
    """Interpolate the scenes of all bands `(C, H·W, F)` and sum over bands: `(H'·W', F)`."""
    return _interpolate(table, False, *taps)


def spread(table: Tensor, taps: Taps) -> Tensor:
    """Apply the transpose of `resample`: `(H'·W', F)` → `(C, H·W, F)`."""
    return _interpolate(table, True, *taps)


def resample_differentiably(table: Tensor, source: list[Tensor], weight: list[Tensor]) -> Tensor:
    """Do what `resample` does, with gradients with respect to the weights.

    `source` and `weight` have `(H'·W', 4)` for every band.
    """
    return torch.stack(
        [
            (embedding(indices, scene) * weights[..., None]).sum(1)
            for scene, indices, weights in zip(table.unbind(0), source, weight, strict=True)
        ]
    ).sum(0)


def _resample(table: Tensor, source: Tensor, weight: Tensor) -> Tensor:
    # Bands are summed one by one. The scene of a band then stays in the cache, and memory need not
    # hold a value for every pixel and band at once.
    start = torch.arange(0, weight[0].numel() + 1, 4, dtype=source.dtype, device=table.device)
    image = table.new_zeros(len(start) - 1, table.shape[2])
    for band, band_scene in enumerate(table):
        image += _sum_rows(source[band].flatten(), band_scene, start, weight[band].flatten())
    return image


def _spread(
    table: Tensor, source: Tensor, weight: Tensor, start: Tensor, parts: tuple[int, ...]
) -> Tensor:
    table = table.contiguous()
    scenes = table.new_empty(len(start), start.shape[1] - 1, table.shape[1])
    begin = 0
    for band, n_entries in enumerate(parts):
        entries = slice(begin, begin + n_entries)
        scenes[band] = _sum_rows(source[entries], table, start[band], weight[entries])
        begin += n_entries
    return scenes


class _Interpolate(torch.autograd.Function):
    """Multiply a table by the matrix of the taps, or by its transpose."""

    # `torch.compile` counts the arguments of `forward`, so they are listed one by one.
    @staticmethod
    def forward(
        table: Tensor,
        is_transposed: bool,
        source: Tensor,
        weight: Tensor,
        back_source: Tensor,
        back_weight: Tensor,
        back_start: Tensor,
        parts: tuple[int, ...],
    ) -> Tensor:
        if is_transposed:
            return _spread(table, back_source, back_weight, back_start, parts)
        return _resample(table, source, weight)

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, is_transposed, *tensors, parts = inputs
        ctx.constants = is_transposed, parts
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        is_transposed, parts = ctx.constants
        image = _interpolate(gradients[0], not is_transposed, *ctx.saved_tensors, parts)
        return (image, None, *(None for _ in Taps._fields))

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: tuple[int, *tuple[None, ...]], table: Tensor, *arguments: Any
    ) -> tuple[Tensor, int]:
        # The dimension that vmap maps becomes further columns of the table, so one call is enough.
        columns = table.movedim(in_dims[0], -1)
        image = _interpolate(columns.flatten(-2), *arguments)
        return image.unflatten(-1, (-1, info.batch_size)), image.ndim


class _InterpolateWithTangents(_Interpolate):
    """`_Interpolate` with forward-mode derivatives.

    It is a class of its own because `torch.compile` accepts no function with a `jvp`.
    """

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Tensor) -> None:
        _Interpolate.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[2:-1])

    @staticmethod
    def jvp(ctx: FunctionContext, tangent: Tensor, *_: None) -> Tensor:
        is_transposed, parts = ctx.constants
        return _interpolate(tangent, is_transposed, *ctx.saved_tensors, parts)


def _interpolate(table: Tensor, is_transposed: bool, *taps: Tensor | tuple[int, ...]) -> Tensor:
    function = _InterpolateWithTangents if is_forward_mode() else _Interpolate
    return function.apply(table, is_transposed, *taps)


def _sum_rows(source: Tensor, table: Tensor, start: Tensor, weight: Tensor) -> Tensor:
    # `embedding_bag` sums each row of the result in one thread, in the order of its entries: the
    # bits do not depend on the number of threads.
    return embedding_bag(
        source,
        table.contiguous(),
        start,
        mode="sum",
        per_sample_weights=weight,
        include_last_offset=True,
    )


@torch.no_grad()
def compute_mean_offset(
    geometry: Geometry, band: int, parameters: Mapping[str, Tensor | None]
) -> float:
    """Return the mean detector column (or row) of the first column of a band, pixels."""
    coordinates = map_to_scene(geometry, band, parameters)
    is_inside = torch.ones_like(coordinates[0], dtype=torch.bool)
    for coordinate, side in zip(coordinates, geometry.scene, strict=True):
        is_inside &= (coordinate >= 0) & (coordinate <= side - 1)
    position = coordinates[geometry.axis]
    pixel = torch.arange(
        position.shape[geometry.axis], dtype=position.dtype, device=position.device
    )
    offsets = (pixel if geometry.axis == -1 else pixel[:, None]) - position
    return float(offsets[is_inside].mean()) if bool(is_inside.any()) else geometry.offsets[band]
