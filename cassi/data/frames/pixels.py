"""Find dead lines and hot pixels of a frame, estimate its dark level, and repair bad pixels."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

# In a snapshot neighbours differ because of the mask's code, not only because of noise. So this
# fraction of their contrast (maximum − minimum) is added to σ before the threshold multiplies it.
# Otherwise bright openings of the mask would count as hot.
CODE_CONTRAST = 0.3
# A line is dead if at least this fraction of its good pixels has one value. The fraction is below
# 1, so that single pixels of another value, such as hot pixels, do not hide a dead line.
MIN_STUCK_FRACTION = 0.99
# In the lines beside a dead line, less than this fraction of the pixels may have its value.
# Otherwise the scene itself has one brightness there, such as a black object.
MAX_EQUAL_FRACTION = 0.5
# If more dead lines than this lie side by side, that part of the detector gets no light: its
# border, for example.
MAX_DEAD_WIDTH = 3
# In a line with fewer good pixels, all of them may have one value by chance.
_MIN_LINE_PIXELS = 8


def find_dead_lines(frame: Tensor, is_good: Tensor) -> list[tuple[str, int]]:
    """Find the dead rows and columns of a detector, whose pixels have one value for any scene.

    In a dead line 99 % of the good pixels have the same value, in every shot. At most 3 dead lines
    lie side by side. In the lines beside them less than half of the pixels have that value.

    Args:
        frame: raw, `(B, K, H', W')`.
        is_good: pixels that are not known to be bad, bool, `(H', W')`.

    Returns:
        ("rows", index) or ("columns", index) of each dead line.
    """
    dead_lines = []
    for kind, is_column in (("rows", False), ("columns", True)):
        images, is_usable = frame.flatten(0, 1), is_good
        if is_column:
            images, is_usable = images.mT, is_usable.mT
        count = is_usable.sum(-1).clamp(min=1)
        level = torch.where(is_usable, images, math.nan).nanmedian(-1, keepdim=True).values
        fraction = ((images == level) & is_usable).sum(-1) / count  # (N, lines)
        is_stuck_line = (fraction >= MIN_STUCK_FRACTION).all(0) & (count >= _MIN_LINE_PIXELS)
        start = 0
        for is_dead, run in itertools.groupby(is_stuck_line.tolist()):
            stop = start + len(list(run))
            first, start = start, stop
            # At the border of the detector a line has no neighbour to compare it with.
            is_at_border = first == 0 or stop == len(is_stuck_line)
            if not is_dead or is_at_border or stop - first > MAX_DEAD_WIDTH:
                continue
            beside_run = [first - 1, stop]
            is_equal = (images[:, beside_run] == level[:, [first]]) & is_usable[beside_run]
            if bool((is_equal.sum(-1) < MAX_EQUAL_FRACTION * count[beside_run]).all()):
                dead_lines += [(kind, index) for index in range(first, stop)]
    return dead_lines


def find_lines(is_bad: Tensor, is_usable: Tensor) -> list[tuple[str, int]]:
    """Return the rows and columns in which 99 % of the usable pixels are bad; maps `(H', W')`."""
    lines = []
    for kind, axis in (("rows", -1), ("columns", -2)):
        count = is_usable.sum(axis)
        is_full = ((is_bad & is_usable).sum(axis) >= MIN_STUCK_FRACTION * count) & (
            count >= _MIN_LINE_PIXELS
        )
        lines += [(kind, index) for index in is_full.nonzero().flatten().tolist()]
    return lines


def edge_level(measurement: Tensor, step: float, axis: int = -1) -> float:
    """Estimate a sensor's dark level from the edges of one snapshot `(B, K, H, W')`, in its unit.

    The outermost |step| columns on either side (rows if `axis` is -2) get the light of one band
    only. This is little light compared with the middle, where C bands add up. The level is the mean
    of the medians of both sides. If the scene is bright up to these sides, the estimate is too
    high. A dark frame is better.
    """
    length = measurement.shape[axis]
    count = min(max(1, math.floor(abs(step))), length)
    left = measurement.narrow(axis, 0, count).flatten()
    right = measurement.narrow(axis, length - count, count).flatten()
    return left.new_tensor([left.median().item(), right.median().item()]).mean().item()


def find_outliers(frame: Tensor, threshold: float) -> Tensor:
    """Find pixels of a dark frame or flat field `(H, W)` that differ much from their neighbours.

        |d| > threshold · σ,  d = pixel − median of its 8 neighbours

    σ = 1.4826 · median |d − median d| is the robust standard deviation of d over the frame. If it
    is 0, because most pixels equal their neighbours, σ is the standard deviation of d.
    """
    excess = frame - torch.stack(_collect_neighbours(frame, math.nan)).nanmedian(0).values
    sigma = _estimate_sigma(excess) or excess.std().item()
    return excess.abs() > threshold * sigma


def find_hot_in_snapshot(frame: Tensor, threshold: float) -> Tensor:
    """Find the hot pixels of a snapshot, in which neighbours differ because of the mask.

        d > threshold · (σ + 0.3 · (max − min)),  d = pixel − max

    max and min are taken over the pixel's 8 neighbours; σ is defined as in `find_outliers`. The
    contrast among the neighbours comes from the mask's code, so the threshold rises with it. In 15
    clean snapshots with grey masks, five of them real captures, a threshold of 6.4 finds no pixel.
    For a binary mask, a threshold of 10 finds none. If two hot pixels lie side by side, only the
    brighter one may be found. Dead pixels are not found. A dark frame or a map of bad pixels is
    better.
    """
    highest = torch.stack(_collect_neighbours(frame, -math.inf)).amax(0)
    lowest = torch.stack(_collect_neighbours(frame, math.inf)).amin(0)
    excess = frame - highest
    return excess > threshold * (_estimate_sigma(excess) + CODE_CONTRAST * (highest - lowest))


def repair(frame: Tensor, is_bad: Tensor, name: str = "bad_pixels") -> Tensor:
    """Replace bad pixels of a frame `(..., H, W)` by the mean of their good neighbours.

    A large bad region is repaired from its border inwards: a pixel without a good neighbour gets
    the mean of neighbours that are already repaired.

    Args:
        frame: values, of any number of leading axes.
        is_bad: bad pixels, bool `(H, W)`.
        name: name of the setting, for the message.

    Raises:
        ValueError: all pixels are bad.
    """
    if bool(is_bad.all()):
        raise ValueError(f"{name}: expected some good pixels, all are to be repaired")
    shape, is_bad = frame.shape, is_bad.clone()
    values = torch.where(is_bad, 0, frame).reshape(-1, 1, *shape[-2:])
    # The middle of the kernel adds the pixel itself, which is bad and hence zero.
    kernel = values.new_ones(1, 1, 3, 3)
    while bool(is_bad.any()):
        valid = (~is_bad).to(values.dtype)[None, None]
        count = F.conv2d(valid, kernel, padding=1)
        mean = F.conv2d(values, kernel, padding=1) / count.clamp(min=1)
        is_next = is_bad & (count[0, 0] > 0)
        values = torch.where(is_next, mean, values)
        is_bad &= ~is_next
    return values.reshape(shape)


def _collect_neighbours(frame: Tensor, fill: float) -> list[Tensor]:
    """Return the 8 neighbours of every pixel, each `(H, W)`, with `fill` outside the frame."""
    height, width = frame.shape
    padded = F.pad(frame, (1, 1, 1, 1), value=fill)
    positions = [
        (row, column) for row in range(3) for column in range(3) if (row, column) != (1, 1)
    ]
    return [padded[r : r + height, c : c + width] for r, c in positions]


def _estimate_sigma(values: Tensor) -> float:
    # 1.4826 times the median deviation is the standard deviation of a normal distribution.
    return 1.4826 * (values - values.median()).abs().median().item()
