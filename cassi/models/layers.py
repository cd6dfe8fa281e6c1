"""What the networks share: checks, padding, the map of noise levels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def check_images(owner: str, x: Tensor, channels: int) -> None:
    """Raise a ValueError where x is not `(N, channels, H, W)`."""
    if x.ndim != 4 or x.shape[1] != channels:
        raise ValueError(f"{owner}: expected images (N, {channels}, H, W), got {tuple(x.shape)}")


def check_counts(owner: str, **counts: int) -> None:
    """Raise a ValueError where a number of channels, layers, … is not a whole number >= 1."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(
                f"{owner} {name}: expected a whole number of at least 1, got {count!r}"
            )


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column until H and W are multiples of a number."""
    height, width = x.shape[-2:]
    below, right = -height % multiple, -width % multiple
    return F.pad(x, (0, right, 0, below), mode="replicate") if below or right else x


def level_map(owner: str, sigma: float | Tensor, x: Tensor) -> Tensor:
    """Return σ as one more channel of the images x.

    Args:
        owner: the name in an error.
        sigma: a number, or `(N,)`, `(N, 1, 1, 1)`.
        x: `(N, c, H, W)`.

    Returns:
        `(N, 1, H, W)`, constant over each image.

    Raises:
        ValueError: σ is neither one number nor one per image.
    """
    level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
    if level.numel() not in (1, x.shape[0]):
        raise ValueError(
            f"{owner} sigma: expected one number or one per image ({x.shape[0]}), "
            f"got shape {tuple(level.shape)}"
        )
    return level.reshape(-1, 1, 1, 1).expand(x.shape[0], 1, *x.shape[-2:])
