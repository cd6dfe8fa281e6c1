"""Non-local low rank: similar patches, stacked, have few singular values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cassi import ops
from cassi.checks import not_negative, whole_number
from cassi.priors.subspace import from_subspace, spectral_basis, to_subspace

_CHUNK = 1 << 18  # numbers of shifted images that are in memory at a time: they fit a cache
_LARGE_CHUNK = 1 << 24  # the same on a GPU, which wants few large kernels
_GUIDE = 3  # spectral components that patches are compared in: they hold nearly all the energy


@dataclass(frozen=True)
class NonLocalLowRank:
    """Weighted nuclear norm shrinkage of groups of similar patches, all bands together.

    Each reference patch and the patches most like it are the rows of a matrix Y `(M, patch²·C)`.
    Their mean is subtracted, and the singular values s are shrunk to

        ŝ = (s + √(s² − 4k))/2  where s² >= 4k, else 0,   √(4k) = weight·σ·(√M + √(patch²·C))

    This is the fixed point of the weighted nuclear norm with weights k/ŝ. Singular values below the
    largest one of noise of standard deviation σ vanish; larger ones shrink the less, the larger
    they are. The patches go back to their places; pixels in several patches get the mean.

    Args:
        weight: threshold in units of the largest singular value of noise, >= 0.
        patch: side of a patch, pixels; at most that of the cube.
        stride: distance of reference patches, pixels; at most `patch`, so that they cover the cube.
        matches: number of patches of a group.
        radius: largest distance of a match from its reference, rows and columns.
        rank: number of spectral components that it works on; fewer are faster. None works on all
            bands, as they are; patches are compared in the leading components.
        refresh: number of calls in a run from one search for matches to the next.

    Raises:
        ValueError: a negative weight, a number below 1, or a stride beyond the patch.

    Source: Liu, Yuan, Suo, Brady, Dai, "Rank minimization for snapshot compressive imaging"
    (DeSCI), TPAMI 41(12), 2019; Gu et al., "Weighted nuclear norm minimization", CVPR 2014, whose
    c·√n·σ² is about this threshold at the sizes of its patches.
    """

    weight: float = 1.0
    patch: int = 6
    stride: int = 5
    matches: int = 32
    radius: int = 10
    rank: int | None = 8
    refresh: int = 10

    def __post_init__(self) -> None:
        check_groups(self)
        if self.rank is not None:
            whole_number("NonLocalLowRank rank", self.rank, 1)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; σ, in its unit, is a number or one per sample."""
        return self.begin()(x, sigma)

    def begin(self) -> Callable[[Tensor, float | Tensor], Tensor]:
        """Return the prior of one run, which keeps its matches for `refresh` calls."""
        matches = Matches(self._match, self.refresh)

        def denoise(x: Tensor, sigma: float | Tensor) -> Tensor:
            if (self.rank or matches.is_due(x)) and not x.isfinite().all():
                return x  # has no eigenvectors; the solver stops at such a cube
            if self.rank is None:  # a rotation of the bands changes no singular value
                return matches(x).shrink(x, self.weight, sigma)
            basis = spectral_basis(x, self.rank)
            image = to_subspace(x, basis)
            clean = matches(image).shrink(image, self.weight, sigma)
            return from_subspace(clean, basis).to(x.dtype)

        return denoise

    def _match(self, images: Tensor) -> Groups:
        guides, side = images[:, :_GUIDE], min(self.patch, *images.shape[2:])
        if self.rank is None:
            guides = to_subspace(images, spectral_basis(images, _GUIDE))
        settings = side, min(self.stride, side), self.matches, self.radius
        return Groups.of([match_patches(each[None], *settings) for each in guides], images, side)


def check_groups(prior: Any) -> None:
    """Check the numbers that priors on groups of patches share.

    Raises:
        ValueError: a negative weight, a number below 1, or a stride beyond the patch.
    """
    name = type(prior).__name__
    not_negative(f"{name} weight", prior.weight)
    for key in ("patch", "stride", "matches", "radius", "refresh"):
        whole_number(f"{name} {key}", getattr(prior, key), 1)
    if prior.stride > prior.patch:
        raise ValueError(
            f"{name} stride: expected at most patch = {prior.patch}, got {prior.stride}"
        )


@dataclass(frozen=True)
class Groups:
    """Groups of similar patches of B images.

    Attributes:
        positions: flat positions h·W + w of the patches' first pixels, `(B, N, M)`.
        covered: how many patches cover each pixel, `(B, 1, H, W)`.
        side: of a patch, pixels.
    """

    positions: Tensor
    covered: Tensor
    side: int

    @staticmethod
    def of(positions: Sequence[Tensor], images: Tensor, side: int) -> Groups:
        """Return the groups `(N, M)` of each of the images `(B, C, H, W)`."""
        covered = [cover(each, side, *images.shape[2:]) for each in positions]
        real = torch.promote_types(images.dtype, torch.float32)
        return Groups(torch.stack(list(positions)), torch.stack(covered)[:, None].to(real), side)

    def shrink(self, images: Tensor, weight: float, sigma: float | Tensor) -> Tensor:
        """Shrink the groups of images `(B, C, H, W)`; σ is a number or one per image."""
        count, numbers = self.positions.shape[2], self.side**2 * images.shape[1]
        scale = weight * (math.sqrt(count) + math.sqrt(numbers))
        wide = images.to(self.covered.dtype)
        if isinstance(sigma, Tensor):
            threshold = scale * sigma.to(wide).reshape(-1)
        else:  # a device need not wait for it
            threshold = wide.new_full((1,), scale * sigma)
        source = wide.contiguous(memory_format=torch.channels_last)
        total = ops.shrink_groups(source, self.positions, threshold, self.side)
        return (total / self.covered).to(images.dtype)


class Matches:
    """The groups of one run, kept for `refresh` calls with images of one shape.

    Args:
        find: returns the groups of images `(B, C, H, W)`.
        refresh: calls from one search to the next, >= 1.
    """

    def __init__(self, find: Callable[[Tensor], Groups], refresh: int) -> None:
        self.find, self.refresh = find, refresh
        self.calls, self.shape = 0, tuple[int, ...]()
        self.found: Groups | None = None

    def is_due(self, images: Tensor) -> bool:
        """Tell whether the next call with images `(B, C, H, W)` searches for groups."""
        return self.calls in (0, self.refresh) or self.shape != _sides(images)

    def __call__(self, images: Tensor) -> Groups:
        """Return the groups of images `(B, C, H, W)`."""
        if self.found is None or self.is_due(images):
            self.calls, self.shape = 0, _sides(images)
            self.found = self.find(images)
        self.calls += 1
        return self.found


def _sides(images: Tensor) -> tuple[int, ...]:
    return (images.shape[0], *images.shape[2:])


def patch_grid(size: int, patch: int, stride: int) -> Tensor:
    """Return where patches begin along one side, so that they cover it: 0, stride, …, size − patch.

    >>> patch_grid(10, 4, 4)
    tensor([0, 4, 6])
    """
    last = size - patch
    return torch.unique(torch.tensor([*range(0, last + 1, stride), last]))


def match_patches(
    images: Tensor, patch: int, stride: int, matches: int, radius: int, reach: int = 0
) -> Tensor:
    """Find the patches most like each reference patch, in its image and in those around it.

    The distance of two patches is the sum of squared differences over their pixels and channels,
    taken for all reference patches at once, and for as many shifts of the image as fit a cache.

    Args:
        images: `(C, G, H, W)`, C of them.
        patch: side of a patch, <= H and W.
        stride: distance of reference patches.
        matches: patches per group; fewer where the window of a corner holds fewer.
        radius: a match begins at most so many rows and columns away.
        reach: it lies at most so many images away.

    Returns:
        `(N, M)` flat positions (c·H + h)·W + w of the patches' first pixels; the reference patch is
        the first of its group.
    """
    count, _, height, width = images.shape
    rows = patch_grid(height, patch, stride).to(images.device)
    columns = patch_grid(width, patch, stride).to(images.device)
    positions = rows[:, None, None] * width + columns[:, None]
    corner = (min(radius, height - patch) + 1) * (min(radius, width - patch) + 1)
    groups = []
    for index, guide in enumerate(images):
        distances, shifts = [], []
        near = range(max(0, index - reach), min(count, index + reach + 1))
        for other in near:
            found, moves = patch_distances(guide, images[other], patch, rows, columns, radius)
            if other == index:
                found[len(found) // 2] = -1  # the reference patch itself
            distances.append(found)
            shifts.append(moves + other * height * width)
        most = min(matches, corner * min(len(near), reach + 1))
        nearest = torch.cat(distances).permute(2, 1, 0).topk(most, largest=False).indices
        groups.append((positions + torch.cat(shifts)[nearest]).flatten(0, 1))
    return torch.cat(groups)


def patch_distances(
    guide: Tensor, other: Tensor, patch: int, rows: Tensor, columns: Tensor, radius: int
) -> tuple[Tensor, Tensor]:
    """Compare patches of one image with all patches of another image around them.

    Args:
        guide: image `(G, H, W)`.
        other: image like it, or the same.
        patch: side of a patch, <= H and W.
        rows: where the patches of `guide` begin, `(R,)`.
        columns: alike, `(S,)`.
        radius: a patch of `other` begins at most so many rows and columns away.

    Returns:
        Sums of squared differences `(N, S, R)` of N shifts, infinite where a patch would reach
        beyond the image; and the shifts as flat positions, `(N,)`. No shift is the middle one.
    """
    _, height, width = guide.shape
    down, right = min(radius, height - patch), min(radius, width - patch)
    padded = torch.nn.functional.pad(other, (right, right, down, down))
    along = torch.arange(-right, right + 1, device=guide.device)
    far_columns = _outside(columns + along[:, None], width - patch)
    chunk = _CHUNK if guide.device.type == "cpu" else _LARGE_CHUNK
    many = max(1, chunk // guide.numel())
    distances = []
    for dy in range(-down, down + 1):
        far_rows = _outside(rows + dy, height - patch)
        moved = padded[:, down + dy : down + dy + height].unfold(2, width, 1)  # (G, H, shifts, W)
        for some, far in zip(moved.split(many, 2), far_columns.split(many), strict=True):
            squares = (guide[:, :, None] - some).square_().sum(0)
            sums = _window_sums(squares, columns, patch).movedim(0, -1)
            distances.append(_window_sums(sums, rows, patch) + far[..., None] + far_rows)
    shifts = torch.arange(-down, down + 1, device=guide.device)[:, None] * width + along
    return torch.cat(distances), shifts.flatten()


def cover(groups: Tensor, patch: int, height: int, width: int) -> Tensor:
    """Return how many patches of groups `(N, M)` cover each pixel of an image, `(H, W)`."""
    # A patch covers those after its first pixel.
    first = groups.flatten().bincount(minlength=height * width).view(height, width)
    padded = torch.nn.functional.pad(first, (patch - 1, 0, patch - 1, 0))
    return padded.unfold(0, patch, 1).unfold(1, patch, 1).sum((-2, -1))


def _outside(at: Tensor, last: int) -> Tensor:
    """Return infinity where a patch would begin before 0 or after `last`, else 0."""
    return torch.where((at < 0) | (at > last), torch.inf, 0.0)


def _window_sums(values: Tensor, starts: Tensor, length: int) -> Tensor:
    """Sum `length` neighbours along the last dimension from each start."""
    total = torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    return total[..., starts + length] - total[..., starts]
