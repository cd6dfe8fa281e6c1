"""Pure-torch shrinkage of groups of patches: the specification of the compiled kernels.

Canonical shapes: image `(B, R, H, W)`, groups `(B, N, M)` of flat positions h·W + w of the patches'
first pixels, threshold `(1|B,)`. Sums run in float32 at least, and the result has their dtype.
"""

import torch
from torch import Tensor

from cassi.ops._reference import accumulation_dtype

_CHUNK = 1 << 22  # numbers in the groups that are in memory at a time


def shrink_groups(image: Tensor, groups: Tensor, threshold: Tensor, patch: int) -> Tensor:
    """Shrink the singular values of each group less its mean, and add up the patches."""
    dtype = accumulation_dtype(image)
    height, width = image.shape[-2:]
    first = groups.clamp(0, height * width - 1)
    rows = (first // width).clamp(max=height - patch)
    first = rows * width + (first % width).clamp(max=width - patch)
    within = patch_pixels(patch, width).to(image.device)
    levels = threshold.to(dtype).expand(image.shape[0])
    totals = []
    for source, starts, level in zip(image.to(dtype).flatten(2).mT, first, levels, strict=True):
        total = torch.zeros_like(source, memory_format=torch.contiguous_format)
        matches, numbers = groups.shape[2], patch * patch * image.shape[1]
        for some in starts.split(max(1, _CHUNK // max(1, matches * numbers))):
            pixels = (some[..., None] + within).flatten()
            stack = source[pixels].view(len(some), matches, numbers)
            mean = stack.mean(1, keepdim=True)
            clean = shrink_singular_values(stack - mean, level) + mean
            total = total.index_add(0, pixels, clean.view(len(pixels), image.shape[1]))
        totals.append(total)
    stacked = torch.stack(totals) if totals else torch.zeros_like(image, dtype=dtype).flatten(2).mT
    return stacked.mT.unflatten(2, (height, width))


def shrink_singular_values(stack: Tensor, threshold: Tensor) -> Tensor:
    """Scale the singular directions of matrices `(N, M, D)` by (1 + √(1 − t²/s²))/2, or by 0.

    A matrix with a number that is not finite becomes one that has none.
    """
    finite = stack.isfinite().all(2, keepdim=True).all(1, keepdim=True)
    stack = torch.where(finite, stack, 0)
    wide = stack.shape[1] <= stack.shape[2]
    # The eigenvectors of the smaller Gram matrix are all it takes, and much faster than an SVD.
    gram = stack @ stack.mT if wide else stack.mT @ stack
    values, vectors = torch.linalg.eigh(gram)
    ratio = threshold.square() / values.clamp_min(torch.finfo(values.dtype).tiny)
    kept = ratio < 1
    factor = torch.where(kept, (1 + (1 - torch.where(kept, ratio, 0)).sqrt()) / 2, 0)
    scale = (vectors * factor[:, None]) @ vectors.mT
    return torch.where(finite, scale @ stack if wide else stack @ scale, torch.nan)


def patch_pixels(patch: int, width: int) -> Tensor:
    """Return the flat positions of a patch's pixels relative to its first: `(patch²,)`."""
    side = torch.arange(patch)
    return (side[:, None] * width + side).flatten()
