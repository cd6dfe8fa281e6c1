"""Low-rank shrinkage of groups of similar patches, as a function of tensors."""

import torch
from torch import Tensor

from cassi.ops._checks import check_floating, check_same_device, shape_of
from cassi.ops._library import call, define, operators
from cassi.ops._recording import is_recorded, is_tracked
from cassi.ops._reference import accumulation_dtype

# Most patches of a group in compiled kernels, which hold a square matrix of that size.
MAX_MATCHES = 48


def shrink_groups(image: Tensor, groups: Tensor, threshold: Tensor, patch: int) -> Tensor:
    """Shrink the singular values of groups of patches, and add the patches at their positions.

    The patches of a group are the rows of a matrix. After their mean is subtracted, its singular
    values s become

        ŝ = s (1 + √(1 − t²/s²))/2  if s > t, else 0

    A pixel that several patches cover gets the sum of their values. If a gradient is recorded, the
    pure-torch reference runs in place of the compiled kernel. Results have the same bits for every
    number of threads. If a group has a value that is not finite, its whole result is NaN.

    Args:
        image: `(B, R, H, W)`; read in place if R is innermost in memory.
        groups: `(B, N, M)`, int64, N <= H·W: flat positions h·W + w of the first pixels of the
            patches. A patch that would reach beyond the image is moved into it.
        threshold: t `(B,)` or `(1,)`, >= 0, in the unit of the image.
        patch: side of a patch, pixels.

    Returns:
        `(B, R, H, W)`, with R innermost in memory, float32 at least.

    Raises:
        TypeError: an argument has another dtype.
        ValueError: shapes or devices do not fit each other, or `patch` is larger than the image.

    >>> flat = torch.ones(1, 1, 2, 3)
    >>> shrink_groups(flat, torch.tensor([[[0, 1]]]), torch.zeros(1), patch=2)
    tensor([[[[1., 2., 1.],
              [1., 2., 1.]]]])
    """
    check_floating("image", image)
    check_floating("threshold", threshold)
    if groups.dtype != torch.int64:
        raise TypeError(f"groups: expected int64, got {groups.dtype}")
    if image.ndim != 4:
        raise ValueError(f"image: expected (B, R, H, W), got shape {shape_of(image)}")
    if groups.ndim != 3 or groups.shape[0] != image.shape[0] or groups.shape[2] < 1:
        raise ValueError(
            f"groups: expected ({image.shape[0]}, N, 1 or more), got shape {shape_of(groups)}"
        )
    if groups.shape[1] > image.shape[2] * image.shape[3]:
        raise ValueError(
            f"groups: expected at most one for each pixel, {image.shape[2] * image.shape[3]}, "
            f"got {groups.shape[1]}"
        )
    if tuple(threshold.shape) not in ((1,), (image.shape[0],)):
        raise ValueError(
            f"threshold: expected (1,) or ({image.shape[0]},), got shape {shape_of(threshold)}"
        )
    if not 1 <= patch <= min(image.shape[-2:]):
        raise ValueError(
            f"patch: expected 1 to {min(image.shape[-2:])}, the sides of the image, got {patch}"
        )
    check_same_device(image=image, groups=groups, threshold=threshold)
    needs_gradient = is_recorded() and is_tracked(image, threshold)
    if needs_gradient or groups.shape[2] > MAX_MATCHES:
        return _reference(image, groups, threshold, patch)
    return call(operators.shrink_groups, image, groups, threshold, patch)


# Pure-torch references, the specification of the compiled kernels. Sums run in float32 at least.

# Groups are computed in chunks. A chunk has at most this many values.
_MAX_CHUNK_NUMBERS = 1 << 22


def _reference(image: Tensor, groups: Tensor, threshold: Tensor, patch: int) -> Tensor:
    """Subtract the mean of each group, shrink its singular values, and add up the patches."""
    dtype = accumulation_dtype(image)
    height, width = image.shape[-2:]
    first = groups.clamp(0, height * width - 1)
    rows = (first // width).clamp(max=height - patch)
    first = rows * width + (first % width).clamp(max=width - patch)
    offsets = patch_pixels(patch, width).to(image.device)
    levels = threshold.to(dtype).expand(image.shape[0])
    totals = []
    for source, starts, level in zip(image.to(dtype).flatten(2).mT, first, levels, strict=True):
        total = torch.zeros_like(source, memory_format=torch.contiguous_format)
        matches, numbers = groups.shape[2], patch * patch * image.shape[1]
        for chunk in starts.split(max(1, _MAX_CHUNK_NUMBERS // max(1, matches * numbers))):
            pixels = (chunk[..., None] + offsets).flatten()
            patches = source[pixels].view(len(chunk), matches, numbers)
            mean = patches.mean(1, keepdim=True)
            shrunk = shrink_singular_values(patches - mean, level) + mean
            total = total.index_add(0, pixels, shrunk.view(len(pixels), image.shape[1]))
        totals.append(total)
    sums = torch.stack(totals) if totals else torch.zeros_like(image, dtype=dtype).flatten(2).mT
    return sums.mT.unflatten(2, (height, width))


def shrink_singular_values(patches: Tensor, threshold: Tensor) -> Tensor:
    """Scale the singular directions of matrices `(N, M, D)` by (1 + √(1 − t²/s²))/2, or by 0.

    A matrix with a value that is not finite becomes NaN.
    """
    # eigh fails for values that are not finite. So 0 replaces such a matrix, and NaN its result.
    finite = patches.isfinite().all(2, keepdim=True).all(1, keepdim=True)
    patches = torch.where(finite, patches, 0)
    is_wide = patches.shape[1] <= patches.shape[2]
    # The eigenvectors of the smaller Gram matrix suffice, and are much faster than an SVD.
    gram = patches @ patches.mT if is_wide else patches.mT @ patches
    values, vectors = torch.linalg.eigh(gram)
    ratio = threshold.square() / values.clamp_min(torch.finfo(values.dtype).tiny)
    is_kept = ratio < 1
    factor = torch.where(is_kept, (1 + (1 - torch.where(is_kept, ratio, 0)).sqrt()) / 2, 0)
    scale = (vectors * factor[:, None]) @ vectors.mT
    return torch.where(finite, scale @ patches if is_wide else patches @ scale, torch.nan)


def patch_pixels(patch: int, width: int) -> Tensor:
    """Return the flat positions of the pixels of a patch relative to the first: `(patch²,)`."""
    side = torch.arange(patch)
    return (side[:, None] * width + side).flatten()


def _fake(image: Tensor, groups: Tensor, threshold: Tensor, patch: int) -> Tensor:
    batch, channels, height, width = image.shape
    sums = image.new_empty((batch, height, width, channels), dtype=accumulation_dtype(image))
    return sums.movedim(-1, 1)


define(
    "shrink_groups(Tensor image, Tensor groups, Tensor threshold, int patch) -> Tensor",
    _reference,
    _fake,
)
