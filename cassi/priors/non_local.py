"""Non-local low rank: similar patches, stacked, have few singular values."""

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
        numbers = {"matches": self.matches, "radius": self.radius, "refresh": self.refresh}
        check_groups("NonLocalLowRank", self.weight, self.patch, self.stride, **numbers)
        if self.rank is not None:
            whole_number("NonLocalLowRank rank", self.rank, 1)

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Denoise a cube `(B, C, H, W)`; σ, in its unit, is a number or one per sample."""
        return self.begin()(x, sigma)

    def begin(self) -> _Run:
        """Return the prior of one run, which keeps its matches for `refresh` calls."""
        return _Run(self, Matches(self._match, self.refresh))

    def _match(self, images: Tensor) -> Groups:
        guides, side = images[:, :_GUIDE], min(self.patch, *images.shape[2:])
        if self.rank is None:
            guides = to_subspace(images, spectral_basis(images, _GUIDE))
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
        covered: how many patches cover each pixel, `(B, 1, H, W)`.
        side: of a patch, pixels.
    """

    positions: Tensor
    covered: Tensor
    side: int

    @staticmethod
    def of(positions: Tensor, images: Tensor, side: int) -> Groups:
        """Return the groups `(B, N, M)` of images `(B, C, H, W)`."""
        real = torch.promote_types(images.dtype, torch.float32)
        return Groups(positions, cover(positions, side, *images.shape[2:])[:, None].to(real), side)

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
        return (total.contiguous() / self.covered).to(images.dtype)  # what follows reads images


class Matches:
    """The groups of one run, kept for `refresh` calls with images of one shape."""

    def __init__(self, find: Callable[[Tensor], Groups], refresh: int) -> None:
        self.find, self.refresh = find, refresh
        self.calls, self.shape = 0, tuple[int, ...]()
        self.found: Groups | None = None

    def is_due(self, images: Tensor) -> bool:
        """Tell whether the next call with images `(B, C, H, W)` searches for groups."""
        return self.calls % self.refresh == 0 or self.shape != _sides(images)

    def __call__(self, images: Tensor) -> Groups:
        """Return the groups of images `(B, C, H, W)`."""
        if self.found is None or self.is_due(images):
            self.calls, self.shape = 0, _sides(images)
            self.found = self.find(images)
        return self.found

    def count(self) -> None:
        """Note that the groups were used in a call; one that is recorded does not tell."""
        self.calls += 1

    @property
    def memory(self) -> Sequence[Tensor] | None:
        """The groups; None where the next call searches for others."""
        if self.found is None or self.calls % self.refresh == 0:
            return None
        return self.found.positions, self.found.covered

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        positions, covered = values
        self.found = replace(cast(Groups, self.found), positions=positions, covered=covered)


class _Run:
    """One run of NonLocalLowRank."""

    def __init__(self, of: NonLocalLowRank, matches: Matches) -> None:
        self.of, self.matches, self.count = of, matches, matches.count

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        result = self.apply(x, sigma)
        self.count()
        return result

    def apply(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        of, matches = self.of, self.matches
        if (of.rank or matches.is_due(x)) and not x.isfinite().all():
            return x  # has no eigenvectors; the solver stops at such a cube
        if of.rank is None:  # a rotation of the bands changes no singular value
            return matches(x).shrink(x, of.weight, sigma)
        basis = spectral_basis(x, of.rank)
        image = to_subspace(x, basis)
        clean = matches(image).shrink(image, of.weight, sigma)
        return from_subspace(clean, basis).to(x.dtype)

    @property
    def memory(self) -> Sequence[Tensor] | None:
        return None if self.of.rank else self.matches.memory

    @memory.setter
    def memory(self, values: Sequence[Tensor]) -> None:
        self.matches.memory = values


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

    Images are rows `(B, C, G, H, W)`, C to a row. A match begins at most `radius` rows and columns
    away, in an image at most `reach` away; where the window of a corner holds fewer, there are
    fewer matches.

    Returns:
        `(B, N, M)` flat positions (c·H + h)·W + w of the patches' first pixels; the reference patch
        is the first of its group.
    """
    _, count, _, height, width = images.shape
    some = max(1, _chunk(images) // images[0, 0].numel())
    if some < len(images):
        settings = patch, stride, matches, radius, reach
        return torch.cat([match_patches(part, *settings) for part in images.split(some)])
    rows = patch_grid(height, patch, stride).to(images.device)
    columns = patch_grid(width, patch, stride).to(images.device)
    positions = rows[:, None, None] * width + columns[:, None]
    corner = (min(radius, height - patch) + 1) * (min(radius, width - patch) + 1)
    groups = []
    for index in range(count):
        distances, shifts = [], []
        near = range(max(0, index - reach), min(count, index + reach + 1))
        for other in near:
            pair = images[:, index], images[:, other]
            found, moves = patch_distances(*pair, patch, rows, columns, radius)
            if other == index:
                found[len(found) // 2] = -1  # the reference patch itself
            distances.append(found)
            shifts.append(moves + other * height * width)
        most = min(matches, corner * min(len(near), reach + 1))
        nearest = torch.cat(distances).permute(1, 3, 2, 0).topk(most, largest=False).indices
        groups.append((positions + torch.cat(shifts)[nearest]).flatten(1, 2))
    return torch.cat(groups, 1)


def patch_distances(
    guide: Tensor, other: Tensor, patch: int, rows: Tensor, columns: Tensor, radius: int
) -> tuple[Tensor, Tensor]:
    """Compare patches of images with all patches of other images around them.

    Patches of `guide` begin at `rows` and `columns`, those of `other` at most `radius` away.

    Returns:
        Sums of squared differences `(N, B, S, R)` of N shifts, infinite where a patch would reach
        beyond the image; and the shifts as flat positions, `(N,)`. No shift is the middle one.
    """
    height, width = guide.shape[2:]
    down, right = min(radius, height - patch), min(radius, width - patch)
    padded = torch.nn.functional.pad(other, (right, right, down, down))
    along = torch.arange(-right, right + 1, device=guide.device)
    far_columns = _outside(columns + along[:, None], width - patch)
    many = max(1, _chunk(guide) // guide.numel())
    distances = []
    for dy in range(-down, down + 1):
        far_rows = _outside(rows + dy, height - patch)
        moved = padded[:, :, down + dy : down + dy + height].unfold(3, width, 1)  # (…, shifts, W)
        for some, far in zip(moved.split(many, 3), far_columns.split(many), strict=True):
            squares = (guide[:, :, :, None] - some).square_().sum(1)
            sums = _window_sums(squares, columns, patch).movedim(1, -1)  # (B, shifts, S, H)
            found = _window_sums(sums, rows, patch) + far[..., None] + far_rows
            distances.append(found.movedim(1, 0))
    shifts = torch.arange(-down, down + 1, device=guide.device)[:, None] * width + along
    return torch.cat(distances), shifts.flatten()


def cover(groups: Tensor, patch: int, height: int, width: int) -> Tensor:
    """Return how many patches of groups `(B, N, M)` cover each pixel of an image, `(B, H, W)`."""
    count, size = len(groups), height * width
    first = groups.flatten(1) + size * torch.arange(count, device=groups.device)[:, None]
    # A patch covers those after its first pixel.
    first = first.flatten().bincount(minlength=count * size).view(count, height, width)
    padded = torch.nn.functional.pad(first, (patch - 1, 0, patch - 1, 0))
    return padded.unfold(1, patch, 1).unfold(2, patch, 1).sum((-2, -1))


def _chunk(images: Tensor) -> int:
    return _CHUNK if images.device.type == "cpu" else _LARGE_CHUNK


def _outside(at: Tensor, last: int) -> Tensor:
    """Return infinity where a patch would begin before 0 or after `last`, else 0."""
    return torch.where((at < 0) | (at > last), torch.inf, 0.0)


def _window_sums(values: Tensor, starts: Tensor, length: int) -> Tensor:
    """Sum `length` neighbours along the last dimension from each start."""
    total = torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    return total[..., starts + length] - total[..., starts]
