"""Operations on masks: checks, a learnable mask, motion, and shifts back to the scene's grid."""

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize


def check_mask(mask: Tensor) -> None:
    """Raise unless a mask can code a scene.

    Args:
        mask: transmission `(…, H, W)`.

    Raises:
        ValueError: the mask has NaN, values outside of [0, 1] by more than 1e-3, or a row or column
            that is dark in all shots. Nothing can be recovered there, and the usual cause is a
            wrong crop. Dark rows or columns that recur with a period, as in a grid of holes, are
            accepted.
    """
    if not torch.isfinite(mask).all():
        raise ValueError("mask: expected finite transmissions, got NaN or infinity")
    lowest, highest = mask.min().item(), mask.max().item()
    if lowest < -1e-3 or highest > 1 + 1e-3:
        raise ValueError(
            f"mask: expected transmissions in [0, 1], got {lowest:.4g} to {highest:.4g}; "
            "divide it by its flat field or maximum; or is this the measurement?"
        )
    is_open = (mask > 0).reshape(-1, *mask.shape[-2:]).any(0)  # (H, W)
    for name, dim in (("column", 0), ("row", 1)):
        has_light = is_open.any(dim)
        dark_lines = torch.nonzero(~has_light).flatten().tolist()
        if dark_lines and not _is_periodic(has_light):
            line_list = ", ".join(map(str, dark_lines[:5])) + (", …" if len(dark_lines) > 5 else "")
            raise ValueError(
                f"mask: {len(dark_lines)} all-dark {name}{'s' if len(dark_lines) > 1 else ''} "
                f"({line_list}); crop the mask and the measurement to the coded area"
            )


def _is_periodic(has_light: Tensor) -> bool:
    """Tell whether lit and dark lines repeat with a period, at least twice."""
    if not bool(has_light.any()):
        return False
    periods = range(2, len(has_light) // 2 + 1)
    return any(bool((has_light[n:] == has_light[:-n]).all()) for n in periods)


S = TypeVar("S", bound=nn.Module)


class LearnableMask(nn.Module):
    """A mask in [0, 1] with free parameters p.

    `learnable()` is the mask. `learnable.place_in(camera)` makes it the mask of a camera: every
    method of the camera then uses its present value and passes gradients to it.

    Args:
        mask: first value, transmission in [0, 1], of any shape; see `cassi.systems.RandomMask`.
        constraint: "sigmoid" is m = 1 / (1 + e^{−p}) with free p. First values of 0 and 1 are moved
            by 1e-3, so that they can change. "clamp" is m = p, cut to [0, 1]. Gradients that lead
            out of [0, 1] are set to zero: projected gradient descent.

    Raises:
        TypeError: the mask is no tensor of real numbers.
        ValueError: it has values outside of [0, 1], or the constraint is unknown.
    """

    def __init__(self, mask: Tensor, constraint: Literal["sigmoid", "clamp"] = "sigmoid") -> None:
        super().__init__()
        if not isinstance(mask, Tensor) or mask.is_complex():
            raise TypeError(f"mask: expected a tensor of real numbers, got {type(mask).__name__}")
        if constraint not in ("sigmoid", "clamp"):
            raise ValueError(f"constraint: expected 'sigmoid' or 'clamp', got {constraint!r}")
        start = mask.detach().clone()
        start = start if start.is_floating_point() else start.to(torch.get_default_dtype())
        if not bool(((start >= 0) & (start <= 1)).all()):
            raise ValueError(
                f"mask: expected transmissions in [0, 1], got {float(start.min()):g} to "
                f"{float(start.max()):g}"
            )
        self.constraint = constraint
        self.values = nn.Parameter(start.logit(1e-3) if constraint == "sigmoid" else start)

    def forward(self) -> Tensor:
        """Return the mask in [0, 1], of the shape of its first value."""
        if self.constraint == "sigmoid":
            return self.values.sigmoid()
        clamped_values = self.values.clamp(0, 1)
        # Not the clamped values: clamp has no gradient outside of [0, 1], so a parameter there
        # could never come back. The hook stops only gradients that lead farther out.
        excess = (self.values - clamped_values).detach()
        mask = self.values - excess
        if mask.requires_grad:
            mask.register_hook(lambda gradient: gradient * (excess * gradient >= 0))
        return mask

    def place_in(self, system: S) -> S:
        """Make this the mask of a camera. The parameters p become parameters of the camera.

        Args:
            system: a camera with a buffer `mask`, changed in place. Several cameras may share one
                learnable mask.

        Returns:
            The same camera.

        Raises:
            ValueError: the camera's mask has another number of elements.
        """
        camera_mask = system.get_buffer("mask")
        if camera_mask.numel() != self.values.numel():
            raise ValueError(
                f"mask: expected the camera's shape {tuple(camera_mask.shape)}, got "
                f"{tuple(self.values.shape)}"
            )
        parametrize.register_parametrization(system, "mask", _MaskParametrization(self))
        return system


class _MaskParametrization(nn.Module):
    """A parametrization that replaces a camera's mask by the present value of a learnable one."""

    def __init__(self, source: LearnableMask) -> None:
        super().__init__()
        self.source = source

    def forward(self, camera_mask: Tensor) -> Tensor:
        mask = self.source().to(camera_mask).view_as(camera_mask)
        if not torch.is_grad_enabled():
            # A camera computes its gram anew only if the mask requires gradients. A learnable
            # mask changes with every step of the optimizer.
            mask = mask.detach().requires_grad_()
        return mask

    def extra_repr(self) -> str:
        return f"constraint={self.source.constraint}"


def move_mask(
    mask: Tensor, shift: Sequence[float], rotation: float, magnification: float = 1.0
) -> Tensor:
    """Magnify and turn a mask about its middle, then shift it.

    The mask is interpolated bilinearly. Pixels beyond its border repeat the border.

    Args:
        mask: `(K, 1|C, H, W)`.
        shift: (down, right), pixels.
        rotation: degrees, counterclockwise as displayed with row 0 on top.
        magnification: > 0; 1 keeps the size.
    """
    height, width = mask.shape[-2:]
    angle = math.radians(rotation)
    cos, sin = math.cos(angle), math.sin(angle)
    # The grid is float64: rounding coordinates in [-1, 1] to float32 would blur a large mask.
    rows = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2 - shift[0]
    columns = torch.arange(width, dtype=torch.float64)[None] - (width - 1) / 2 - shift[1]
    # The source position of each pixel, by the inverse rotation. Rows count downwards.
    source_columns = (cos * columns - sin * rows) / magnification
    source_rows = (sin * columns + cos * rows) / magnification
    grid = torch.stack([source_columns * 2 / width, source_rows * 2 / height], -1)
    moved_mask = F.grid_sample(
        mask.double(),
        grid.to(mask.device).expand(len(mask), -1, -1, -1),
        padding_mode="border",
        align_corners=False,
    )
    return moved_mask.to(mask.dtype)


def likeness_of_bands(mask: Tensor, step: int, axis: int) -> float:
    """Return the mean correlation of each band's mask with the next one, moved back by a step.

    The correlation is near 1 for masks on the detector's grid: one mask, moved from band to band.

    Args:
        mask: `(K, C, H, W)`.
        step: whole pixels per band.
        axis: axis of the dispersion, -1 or -2.
    """
    length = mask.shape[axis] - abs(step)
    if length < 1:
        return 0.0
    first = mask[:, :-1].narrow(axis, max(-step, 0), length).flatten(2)
    second = mask[:, 1:].narrow(axis, max(step, 0), length).flatten(2)
    first, second = (masks - masks.mean(-1, keepdim=True) for masks in (first, second))
    norms = first.norm(dim=-1) * second.norm(dim=-1)
    if not bool((norms > 0).all()):  # an open mask has no contrast, and all its bands are equal
        return 1.0
    return float(((first * second).sum(-1) / norms).mean())


def unshift_masks(
    masks: Tensor, offsets: Sequence[int], axis: int = -1, tolerance: float = 1e-6
) -> tuple[Tensor, tuple[int, ...], int]:
    """Move masks from the detector's grid back to the scene's grid.

    Detector pixel w' of band c images column w' − o(c) of the scene. If every band's mask is dark
    outside of its window o(c) <= w' < o(c) + W, the scene has W = W' − max o columns. Masks that
    are equal become one. Otherwise light of further columns reaches the detector. The scene is then
    W' + max o columns wide, and each band moves by o(c) − max o. Light beyond the detector's ends
    is lost.

    Args:
        masks: transmission on the detector, `(K, C, H, W')` or `(C, H, W')`. Published code stores
            `mask_3d_shift` as `(H, W', C)`: `.permute(2, 0, 1)`.
        offsets: whole pixels o(c) >= 0, the least of them 0: 0, 2, 4, … for a step of 2.
        axis: -1 disperses along columns, -2 along rows (then read H' for W').
        tolerance: largest value that counts as dark, and largest difference of equal masks.

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
    masks = (masks if axis == -1 else masks.mT)[(None,) * (4 - masks.ndim)]
    shifts = [int(offset) for offset in offsets]
    if shifts != list(offsets) or len(shifts) != masks.shape[1] or min(shifts) != 0:
        raise ValueError(
            f"offsets: expected {masks.shape[1]} whole numbers, the least 0, got {list(offsets)}"
        )
    detector, max_shift = masks.shape[-1], max(shifts)
    width = detector - max_shift
    if width < 1:
        raise ValueError(
            f"masks: expected more than {max_shift} pixels along the dispersion, got {detector}"
        )
    windows = torch.stack([masks[:, c, :, o : o + width] for c, o in enumerate(shifts)], 1)
    n_dark, n_dark_inside = (int((tensor.abs() <= tolerance).sum()) for tensor in (masks, windows))
    # If all is dark outside of the windows, no light of columns beside these W is detected.
    if n_dark - n_dark_inside == masks.numel() - windows.numel():
        is_equal = bool(((windows - windows[:, :1]).abs() <= tolerance).all())
        mask = windows[:, :1] if is_equal else windows
    else:
        mask = masks.new_zeros((*masks.shape[:-1], detector + max_shift))
        for c, o in enumerate(shifts):
            mask[:, c, :, max_shift - o : max_shift - o + detector] = masks[:, c]
        shifts = [o - max_shift for o in shifts]
    return (mask if axis == -1 else mask.mT).contiguous(), tuple(shifts), detector
