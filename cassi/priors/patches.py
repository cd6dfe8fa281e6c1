"""Groups of similar patches: where they are, how they are read and put back."""

from __future__ import annotations

import torch
from torch import Tensor


def patch_grid(size: int, patch: int, stride: int) -> Tensor:
    """Return where patches begin along one side, so that they cover it: 0, stride, …, size − patch.

    >>> patch_grid(10, 4, 4)
    tensor([0, 4, 6])
    """
    last = size - patch
    return torch.unique(torch.tensor([*range(0, last + 1, stride), last]))


def match_patches(guide: Tensor, patch: int, stride: int, matches: int, radius: int) -> Tensor:
    """Find the patches most like each reference patch in a window around it.

    The distance of two patches is the sum of squared differences over their pixels and channels,
    taken for all reference patches at once, one shift of the image after another.

    Args:
        guide: image `(G, H, W)`.
        patch: side of a patch, <= H and W.
        stride: distance of reference patches.
        matches: patches per group; fewer where the window of a corner holds fewer.
        radius: a match begins at most so many rows and columns away.

    Returns:
        `(N, M)` flat positions h·W + w of the patches' first pixels; the reference patch is the
        first of its group.
    """
    _, height, width = guide.shape
    down, right = min(radius, height - patch), min(radius, width - patch)
    rows = patch_grid(height, patch, stride).to(guide.device)
    columns = patch_grid(width, patch, stride).to(guide.device)
    padded = torch.nn.functional.pad(guide, (right, right, down, down))
    positions = rows[:, None] * width + columns
    distances, shifts = [], []
    for dy in range(-down, down + 1):
        for dx in range(-right, right + 1):
            moved = padded[:, down + dy : down + dy + height, right + dx : right + dx + width]
            squares = (guide - moved).square_().sum(0)
            sums = _window_sums(_window_sums(squares, columns, patch).mT, rows, patch).mT
            outside_rows = (rows + dy < 0) | (rows + dy > height - patch)
            outside_columns = (columns + dx < 0) | (columns + dx > width - patch)
            sums[outside_rows] = torch.inf
            sums[:, outside_columns] = torch.inf
            distances.append(torch.full_like(sums, -1) if dy == dx == 0 else sums)
            shifts.append(dy * width + dx)
    count = min(matches, (down + 1) * (right + 1))
    nearest = torch.stack(distances, -1).topk(count, largest=False).indices
    moves = torch.tensor(shifts, device=guide.device)[nearest]
    return (positions[..., None] + moves).flatten(0, 1)


def patch_pixels(patch: int, width: int) -> Tensor:
    """Return the flat positions of a patch's pixels relative to its first: `(patch²,)`."""
    side = torch.arange(patch)
    return (side[:, None] * width + side).flatten()


def _window_sums(values: Tensor, starts: Tensor, length: int) -> Tensor:
    """Sum `length` neighbours along the last dimension from each start."""
    total = torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    return total[..., starts + length] - total[..., starts]
