"""Pixels of a frame without light: how they are found, and the values that replace them."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

CODE_CONTRAST = 0.3
"""Of the contrast among its neighbours, what a pixel must exceed them by for each sigma."""
STUCK, LIT = 0.99, 0.5
"""Shares of the pixels that have one value, in a dead line at least and in a lit one at most."""
WIDEST_DEAD = 3
"""Dead lines side by side; more are a part of the detector in the dark."""
_SHORTEST_LINE = 8


def find_dead_lines(frame: Tensor, good: Tensor) -> list[tuple[str, int]]:
    """Find the dead rows and columns of a detector: they have one value for any scene.

    In a dead line 99 % of the good pixels have the same value, in every shot of a raw frame
    `(B, K, H', W')`. At most 3 dead lines lie side by side. In the lines beside them less than half
    of the pixels have that value.

    Returns ("rows", index) or ("columns", index) of each.
    """
    found = []
    for kind, across in (("rows", False), ("columns", True)):
        images, usable = frame.flatten(0, 1), good
        if across:
            images, usable = images.mT, usable.mT
        count = usable.sum(-1).clamp(min=1)
        level = torch.where(usable, images, math.nan).nanmedian(-1, keepdim=True).values
        share = ((images == level) & usable).sum(-1) / count  # (N, lines)
        stuck = (share >= STUCK).all(0) & (count >= _SHORTEST_LINE)
        start = 0
        for is_stuck, run in itertools.groupby(stuck.tolist()):
            first, start = start, start + len(list(run))
            if not is_stuck or start - first > WIDEST_DEAD or first == 0 or start == len(stuck):
                continue
            beside = [first - 1, start]
            alike = ((images[:, beside] == level[:, [first]]) & usable[beside]).sum(-1)
            if bool((alike < LIT * count[beside]).all()):
                found += [(kind, at) for at in range(first, start)]
    return found


def find_lines(bad: Tensor, usable: Tensor) -> list[tuple[str, int]]:
    """Return the rows and columns of which 99 % of the usable pixels are bad, both `(H', W')`."""
    found = []
    for kind, across in (("rows", -1), ("columns", -2)):
        count = usable.sum(across)
        full = ((bad & usable).sum(across) >= STUCK * count) & (count >= _SHORTEST_LINE)
        found += [(kind, at) for at in full.nonzero().flatten().tolist()]
    return found


def edge_level(measurement: Tensor, step: float, axis: int = -1) -> float:
    """Estimate a sensor's dark level from the edges of one snapshot `(B, K, H, W')`, in its unit.

    The outermost |step| columns on either side get the light of one band, which is little beside
    the middle, where C bands add up. Their median is the level. It is too high where the scene is
    bright up to its left and right border. A dark frame is better.
    """
    length = measurement.shape[axis]
    count = min(max(1, math.floor(abs(step))), length)
    left = measurement.narrow(axis, 0, count).flatten()
    right = measurement.narrow(axis, length - count, count).flatten()
    return left.new_tensor([left.median().item(), right.median().item()]).mean().item()


def find_outliers(frame: Tensor, threshold: float) -> Tensor:
    """Find the pixels of a smooth frame `(H, W)`, dark or flat, that are far from their neighbours.

        |d| > threshold · σ,  d = pixel − median of its 8 neighbours

    σ = 1.4826 · median |d − median d| is the robust standard deviation of d over the frame. Where
    most pixels equal their neighbours, it is the standard deviation of d.
    """
    excess = frame - torch.stack(_neighbours(frame, math.nan)).nanmedian(0).values
    sigma = _robust_sigma(excess) or excess.std().item()
    return excess.abs() > threshold * sigma


def find_hot_in_snapshot(frame: Tensor, threshold: float) -> Tensor:
    """Find hot pixels where the mask gives every pixel another light than its neighbours.

        d > threshold · (σ + 0.3 · (max − min)),  d = pixel − max

    max and min are those of the pixel's 8 neighbours; σ is as in `find_outliers`. Contrast among
    the neighbours comes from the code, so the threshold rises with it. Clean snapshots of 15 scenes
    with grey masks, five of them real captures, stay below 6.4, those of a binary mask below 10. Of
    two hot pixels side by side only the brighter may be found, and dead pixels are not found: a
    dark frame or a map is better.
    """
    highest = torch.stack(_neighbours(frame, -math.inf)).amax(0)
    lowest = torch.stack(_neighbours(frame, math.inf)).amin(0)
    excess = frame - highest
    return excess > threshold * (_robust_sigma(excess) + CODE_CONTRAST * (highest - lowest))


def repair(frame: Tensor, bad: Tensor, name: str = "bad_pixels") -> Tensor:
    """Replace pixels of `(..., H, W)` where bad `(H, W)` is True by the mean of their neighbours.

    Pixels without a valid neighbour are filled from filled ones, from the border inwards.
    """
    if bool(bad.all()):
        raise ValueError(f"{name}: expected some good pixels, all are to be repaired")
    shape, bad = frame.shape, bad.clone()
    values = torch.where(bad, 0, frame).reshape(-1, 1, *shape[-2:])
    around = values.new_ones(1, 1, 3, 3)  # the middle is bad, hence zero
    while bool(bad.any()):
        valid = (~bad).to(values.dtype)[None, None]
        count = F.conv2d(valid, around, padding=1)
        mean = F.conv2d(values, around, padding=1) / count.clamp(min=1)
        ready = bad & (count[0, 0] > 0)
        values = torch.where(ready, mean, values)
        bad &= ~ready
    return values.reshape(shape)


def _neighbours(frame: Tensor, outside: float) -> list[Tensor]:
    """The 8 neighbours of every pixel, each `(H, W)`."""
    height, width = frame.shape
    padded = F.pad(frame, (1, 1, 1, 1), value=outside)
    places = [(row, column) for row in range(3) for column in range(3) if (row, column) != (1, 1)]
    return [padded[r : r + height, c : c + width] for r, c in places]


def _robust_sigma(values: Tensor) -> float:
    return 1.4826 * (values - values.median()).abs().median().item()
