"""Cameras of masks that were recorded, or stored, where they fall on the detector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unshift_masks(
    masks: Tensor, offsets: Sequence[int], axis: int = -1, tolerance: float = 1e-6
) -> tuple[Tensor, tuple[int, ...], int]:
    """Move masks that are given on the detector's grid back to the scene's.

    A detector pixel w' of band c looks at the scene's column w' − o(c). Where every band's mask is
    dark outside of its window, o(c) <= w' < o(c) + W, the scene has W = W' − max o columns, and
    the masks that remain are one mask where they are equal. Otherwise light of columns beside
    those reaches the detector too: the scene is then W' + max o columns wide, each band is moved by
    o(c) − max o, and what falls beyond the detector's ends is lost.

    Args:
        masks: transmission on the detector, `(K, C, H, W')` or `(C, H, W')`. Published code stores
            `mask_3d_shift` as `(H, W', C)`: `.permute(2, 0, 1)`.
        offsets: whole pixels o(c) >= 0, the least of them 0: 0, 2, 4, … for a step of 2.
        axis: -1 disperses along columns, -2 along rows (then read H' for W').
        tolerance: what counts as dark, and as equal.

    Returns:
        Mask `(K, 1|C, H, W)`, offsets and detector length W', for
        `SDCassi(mask, bands, offsets=…, detector=…)`.

    Raises:
        ValueError: shapes or offsets do not fit.

    >>> masks = torch.zeros(3, 2, 6)  # C, H, W'
    >>> for c in range(3):
    ...     masks[c, :, c : c + 4] = 0.5
    >>> mask, offsets, detector = unshift_masks(masks, [0, 1, 2])
    >>> mask.shape, offsets, detector
    (torch.Size([1, 1, 2, 4]), (0, 1, 2), 6)
    """
    if masks.ndim not in (3, 4):
        raise ValueError(
            f"masks: expected (C, H, W') or (K, C, H, W'), got shape {tuple(masks.shape)}"
        )
    masks = masks[(None,) * (4 - masks.ndim)]
    masks = masks if axis == -1 else masks.mT
    shifts = [int(offset) for offset in offsets]
    if shifts != list(offsets) or len(shifts) != masks.shape[1] or min(shifts) != 0:
        raise ValueError(
            f"offsets: expected {masks.shape[1]} whole numbers, the least 0, got {list(offsets)}"
        )
    detector, extra = masks.shape[-1], max(shifts)
    width = detector - extra
    if width < 1:
        raise ValueError(
            f"masks: expected more than {extra} pixels along the dispersion, got {detector}"
        )
    inside = torch.stack([masks[:, c, :, o : o + width] for c, o in enumerate(shifts)], 1)
    dark = all(
        bool((masks[:, c, :, :o].abs() <= tolerance).all())
        and bool((masks[:, c, :, o + width :].abs() <= tolerance).all())
        for c, o in enumerate(shifts)
    )
    if dark:
        equal = bool(((inside - inside[:, :1]).abs() <= tolerance).all())
        mask = inside[:, :1] if equal else inside
    else:
        mask = masks.new_zeros((*masks.shape[:-1], detector + extra))
        for c, o in enumerate(shifts):
            mask[:, c, :, extra - o : extra - o + detector] = masks[:, c]
        shifts = [o - extra for o in shifts]
    return (mask if axis == -1 else mask.mT).contiguous(), tuple(shifts), detector
