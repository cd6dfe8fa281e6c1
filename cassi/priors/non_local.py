"""Non-local low rank: a prior that finds similar patches, and shrinks their singular values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from cassi import ops
from cassi.checks import not_negative, whole_number
from cassi.priors.subspace import from_subspace, spectral_basis, to_subspace

# Largest number of values of the shifted images in memory at a time. On a CPU they fit a cache; a
# GPU needs few large kernels.
_MAX_CPU_VALUES, _MAX_GPU_VALUES = 1 << 18, 1 << 24

# Patches are compared in the first three spectral components, which hold nearly all the energy.
_N_GUIDES = 3


@dataclass(frozen=True)
class NonLocalLowRank:
    """Weighted nuclear norm shrinkage of groups of similar patches, all bands together.

    Each reference patch and the patches most like it are the rows of a matrix Y `(M, patch²·C)`.
    Their mean is subtracted, and the singular values s are shrunk to

        ŝ = (s + √(s² − 4k))/2  if s² >= 4k, else 0,   √(4k) = weight·σ·(√M + √(patch²·C))

    This is the fixed point of the weighted nuclear norm with weights k/ŝ. For weight 1 the
    threshold √(4k) is about the largest singular value of noise of standard deviation σ. Singular
    values below the threshold become 0. The larger a singular value is, the less it shrinks. A
    pixel of the result is the mean over all patches that cover it.

    Args:
        weight: threshold in units of the largest singular value of noise, >= 0.
        patch: side of a patch, pixels; at most the side of the cube.
        stride: distance of reference patches, pixels; at most `patch`, so that patches cover the
            cube.
        matches: number of patches of a group.
        radius: largest distance of a match from its reference, rows and columns.
        rank: number of spectral components that the prior works on; fewer are faster. None shrinks
            all bands; only the search for similar patches uses the leading three components.
        refresh: number of calls in a run from one search for similar patches to the next.

    Raises:
        ValueError: a negative weight, a number below 1, or a stride beyond the patch.

    Source: Liu, Yuan, Suo, Brady, Dai, "Rank minimization for snapshot compressive imaging"
    (DeSCI), TPAMI 41(12), 2019; Gu et al., "Weighted nuclear norm minimization", CVPR 2014. Their k
    is proportional to √M·σ². For their patch sizes it gives about the same threshold √(4k).
    """

    weight: float = 1.0
    patch: int = 6
    stride: int = 5
    matches: int = 32
    radius: int = 10
    rank: int | None = 8
    refresh: int = 10

    def __post_init__(self) -> None:
        numbers = {"matches": self.matches, "radius": self.radius, "refresh": self.refresh}
        check_groups("NonLocalLowRank", self.weight, self.patch, self.stride, **numbers)
        if self.rank is not None:
            whole_number("NonLocalLowRank rank", self.rank, 1)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; σ, a number or `(B,)`, is in the unit of the cube."""
        return self.begin()(x, sigma)

    def begin(self) -> _NonLocalRun:
        """Return the prior of one run, which keeps its groups for `refresh` calls."""
        return _NonLocalRun(self, GroupCache(self._match, self.refresh))

    def _match(self, images: Tensor) -> Groups:
        side = min(self.patch, *images.shape[2:])
        # With a rank the images are components already, in order of their energy.
        guides = images[:, :_N_GUIDES]
        if self.rank is None:
            guides = to_subspace(images, spectral_basis(images, _N_GUIDES))
        settings = side, min(self.stride, side), self.matches, self.radius
        return Groups.of(match_patches(guides[:, None], *settings), images, side)


def check_groups(name: str, weight: float, patch: int, stride: int, **numbers: int) -> None:
    """Check the numbers that priors on groups of patches share."""
    not_negative(f"{name} weight", weight)
    for key, number in {"patch": patch, "stride": stride, **numbers}.items():
        whole_number(f"{name} {key}", number, 1)
    if stride > patch:
        raise ValueError(f"{name} stride: expected at most patch = {patch}, got {stride}")


@dataclass(frozen=True)
class Groups:
    """Groups of similar patches of B images.

    Attributes:
        positions: flat positions h·W + w of the patches' first pixels, `(B, N, M)`.
        cover_counts: number of patches that cover each pixel, `(B, 1, H, W)`.
        side: side of a patch, pixels.
    """

    positions: Tensor
    cover_counts: Tensor
    side: int

    @staticmethod
    def of(positions: Tensor, images: Tensor, side: int) -> Groups:
        """Return the groups of images `(B, C, H, W)` from the positions `(B, N, M)`."""
        counts = count_cover(positions, side, *images.shape[2:])[:, None]
        dtype = torch.promote_types(images.dtype, torch.float32)
        return Groups(positions, counts.to(dtype), side)

    def shrink(self, images: Tensor, weight: float, sigma: float | Tensor) -> Tensor:
        """Shrink the groups of images `(B, C, H, W)`; σ is a number or one per image."""
        count, values = self.positions.shape[2], self.side**2 * images.shape[1]
        # √M + √(patch²·C) is about the largest singular value of a noise matrix with σ = 1.
        scale = weight * (math.sqrt(count) + math.sqrt(values))
        source = images.to(self.cover_counts.dtype)
        if isinstance(sigma, Tensor):
            threshold = scale * sigma.to(source).reshape(-1)
        else:  # made on the device: a copy would make the host wait
            threshold = source.new_full((1,), scale * sigma)
        # The operator reads all bands of a pixel together. Later steps read whole images.
        source = source.contiguous(memory_format=torch.channels_last)
        total = ops.shrink_groups(source, self.positions, threshold, self.side)
        return (total.contiguous() / self.cover_counts).to(images.dtype)


class GroupCache:
    """Keeps the groups of one run for `refresh` calls with images of one shape."""

    def __init__(self, find: Callable[[Tensor], Groups], refresh: int) -> None:
        self.find, self.refresh = find, refresh
        self.calls, self.shape = 0, tuple[int, ...]()
        self.groups: Groups | None = None

    def is_due(self, images: Tensor) -> bool:
        """Tell whether the next call with images `(B, C, H, W)` searches for groups."""
        return self.calls % self.refresh == 0 or self.shape != _get_batch_and_size(images)

    def __call__(self, images: Tensor) -> Groups:
        """Return the groups of images `(B, C, H, W)`."""
        if self.groups is None or self.is_due(images):
            self.calls, self.shape = 0, _get_batch_and_size(images)
            self.groups = self.find(images)
        return self.groups

    def count(self) -> None:
        """Count a call that used the groups. A replayed CUDA graph cannot count by itself."""
        self.calls += 1

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """The groups as tensors; None if the next call searches for new groups."""
        if self.groups is None or self.calls % self.refresh == 0:
            return None
        return self.groups.positions, self.groups.cover_counts

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        positions, cover_counts = values
        groups = cast(Groups, self.groups)
        self.groups = replace(groups, positions=positions, cover_counts=cover_counts)


class _NonLocalRun:
    """The prior of one run of NonLocalLowRank."""

    def __init__(self, settings: NonLocalLowRank, cache: GroupCache) -> None:
        self.settings, self.cache, self.count = settings, cache, cache.count

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        result = self.apply(x, sigma)
        self.count()
        return result

    def apply(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        settings, cache = self.settings, self.cache
        if (settings.rank or cache.is_due(x)) and not x.isfinite().all():
            return x  # not finite, so no eigenvectors; the solver stops at such a cube
        # Without a rank the basis would only rotate the bands, which changes no singular value.
        if settings.rank is None:
            return cache(x).shrink(x, settings.weight, sigma)
        basis = spectral_basis(x, settings.rank)
        components = to_subspace(x, basis)
        components = cache(components).shrink(components, settings.weight, sigma)
        return from_subspace(components, basis).to(x.dtype)

    @property
    def memory(self) -> Sequence[Tensor] | None:
        return None if self.settings.rank else self.cache.memory

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        self.cache.memory = values


def _get_batch_and_size(images: Tensor) -> tuple[int, ...]:
    """Return (B, H, W): groups do not depend on the number of bands."""
    return (images.shape[0], *images.shape[2:])


def find_patch_starts(size: int, patch: int, stride: int) -> Tensor:
    """Return the first pixels of patches that cover one side: 0, stride, …, size − patch.

    >>> find_patch_starts(10, 4, 4)
    tensor([0, 4, 6])
    """
    last = size - patch
    return torch.unique(torch.tensor([*range(0, last + 1, stride), last]))


def match_patches(
    images: Tensor, patch: int, stride: int, matches: int, radius: int, reach: int = 0
) -> Tensor:
    """Find the patches most like each reference patch, in its image and in neighbouring images.

    The distance of two patches is the sum of squared differences over their pixels and channels.
    Distances are computed for all reference patches at once, and for as many shifts of the image at
    once as fit a cache.

    Args:
        images: B sequences of C images with G channels, `(B, C, G, H, W)`.
        patch: side of a patch, pixels.
        stride: distance of reference patches, pixels.
        matches: M, the number of patches in a group; less if the search window of a corner holds
            fewer patches.
        radius: largest distance of a match from its reference, rows and columns.
        reach: largest distance of a match from its reference in the sequence, images.

    Returns:
        Flat positions (c·H + h)·W + w of the patches' first pixels, `(B, N, M)`. The reference
        patch is the first of its group.
    """
    _, count, _, height, width = images.shape
    samples = max(1, _get_max_values(images) // images[0, 0].numel())
    if samples < len(images):
        settings = patch, stride, matches, radius, reach
        return torch.cat([match_patches(part, *settings) for part in images.split(samples)])
    rows = find_patch_starts(height, patch, stride).to(images.device)
    columns = find_patch_starts(width, patch, stride).to(images.device)
    positions = rows[:, None, None] * width + columns[:, None]
    # All groups have the size that the smallest search window allows, which is the window of a
    # corner patch in the first image. So all groups fit one tensor.
    corner_count = (min(radius, height - patch) + 1) * (min(radius, width - patch) + 1)
    groups = []
    for index in range(count):
        distances, shifts = [], []
        neighbours = range(max(0, index - reach), min(count, index + reach + 1))
        for neighbour in neighbours:
            pair = images[:, index], images[:, neighbour]
            pair_distances, pair_shifts = compare_patches(*pair, patch, rows, columns, radius)
            if neighbour == index:
                pair_distances[len(pair_distances) // 2] = -1  # the reference patch itself
            distances.append(pair_distances)
            shifts.append(pair_shifts + neighbour * height * width)
        size = min(matches, corner_count * min(len(neighbours), reach + 1))
        nearest = torch.cat(distances).permute(1, 3, 2, 0).topk(size, largest=False).indices
        groups.append((positions + torch.cat(shifts)[nearest]).flatten(1, 2))
    return torch.cat(groups, 1)


def compare_patches(
    guide: Tensor, target: Tensor, patch: int, rows: Tensor, columns: Tensor, radius: int
) -> tuple[Tensor, Tensor]:
    """Compare patches of `guide` with the patches of `target` around them.

    Both are images `(B, G, H, W)`. The patches of `guide` begin at `rows` and `columns`. The
    patches of `target` begin at most `radius` pixels away, in rows and columns.

    Returns:
        First: sums of squared differences for N shifts, S columns and R rows, `(N, B, S, R)`. A sum
        is infinite if its patch would extend beyond the image.
        Second: the shifts as flat positions, `(N,)`. The middle shift is 0.
    """
    height, width = guide.shape[2:]
    down, right = min(radius, height - patch), min(radius, width - patch)
    padded = torch.nn.functional.pad(target, (right, right, down, down))
    column_shifts = torch.arange(-right, right + 1, device=guide.device)
    column_penalty = _penalize_outside(columns + column_shifts[:, None], width - patch)
    chunk = max(1, _get_max_values(guide) // guide.numel())
    distances = []
    for dy in range(-down, down + 1):
        row_penalty = _penalize_outside(rows + dy, height - patch)
        # All horizontal shifts of the image that is shifted by dy, (…, shifts, W).
        shifted_target = padded[:, :, down + dy : down + dy + height].unfold(3, width, 1)
        chunks = zip(shifted_target.split(chunk, 3), column_penalty.split(chunk), strict=True)
        for images, penalty in chunks:
            squares = (guide[:, :, :, None] - images).square_().sum(1)
            sums = _sum_windows(squares, columns, patch).movedim(1, -1)  # (B, shifts, S, H)
            sums = _sum_windows(sums, rows, patch) + penalty[..., None] + row_penalty
            distances.append(sums.movedim(1, 0))
    row_shifts = torch.arange(-down, down + 1, device=guide.device)[:, None]
    return torch.cat(distances), (row_shifts * width + column_shifts).flatten()


def count_cover(positions: Tensor, patch: int, height: int, width: int) -> Tensor:
    """Count the patches `(B, N, M)` that cover each pixel of an image, `(B, H, W)`."""
    count, size = len(positions), height * width
    first_pixels = (
        positions.flatten(1) + size * torch.arange(count, device=positions.device)[:, None]
    )
    counts = first_pixels.flatten().bincount(minlength=count * size).view(count, height, width)
    # A patch covers the square that begins at its first pixel. So the patches that cover a pixel
    # begin in the square that ends at this pixel.
    padded = torch.nn.functional.pad(counts, (patch - 1, 0, patch - 1, 0))
    return padded.unfold(1, patch, 1).unfold(2, patch, 1).sum((-2, -1))


def _get_max_values(images: Tensor) -> int:
    """Return how many values of shifted images may be in memory at a time."""
    return _MAX_CPU_VALUES if images.device.type == "cpu" else _MAX_GPU_VALUES


def _penalize_outside(starts: Tensor, last: int) -> Tensor:
    """Return infinity where a patch would begin before 0 or after `last`, else 0."""
    return torch.where((starts < 0) | (starts > last), torch.inf, 0.0)


def _sum_windows(values: Tensor, starts: Tensor, length: int) -> Tensor:
    """Sum `length` neighbours along the last dimension from each start."""
    running_sum = torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    return running_sum[..., starts + length] - running_sum[..., starts]
