"""Checks of a mask before it is trusted."""

from __future__ import annotations

import torch
from torch import Tensor


def check_mask(mask: Tensor) -> None:
    """Raise unless a mask can code a scene.

    Args:
        mask: transmission `(…, H, W)`.

    Raises:
        ValueError: NaN, values outside [0, 1] (a rounding error of 1e-3 is let pass), or a row or
            column that no shot lights: nothing there can be recovered, and it mostly means a
            wrong crop.
    """
    if not torch.isfinite(mask).all():
        raise ValueError("mask: expected finite transmissions, got NaN or infinity")
    low, high = mask.min().item(), mask.max().item()
    if low < -1e-3 or high > 1 + 1e-3:
        raise ValueError(
            f"mask: expected transmissions in [0, 1], got {low:.4g} to {high:.4g}; "
            "divide it by its flat field or maximum (or is this the measurement?)"
        )
    light = (mask > 0).reshape(-1, *mask.shape[-2:]).any(0)  # (H, W)
    for name, dim in (("column", 0), ("row", 1)):
        dark = torch.nonzero(~light.any(dim)).flatten().tolist()
        if dark:
            listed = ", ".join(map(str, dark[:5])) + (", …" if len(dark) > 5 else "")
            raise ValueError(
                f"mask: {len(dark)} all-dark {name}{'s' if len(dark) > 1 else ''} ({listed}); "
                "crop the mask and the measurement to the coded area"
            )
