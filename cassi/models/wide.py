"""The grid on which the published networks work: as wide as the detector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.models.grid import Camera, offsets


class Wide:
    """A camera behind a crop: it sees the first W of W' columns of a cube.

    A wide cube is `(B, C, H, W')`. Networks that move the bands apart by rolling them over W'
    columns, and together again before each denoiser, meet the mask in the first W columns of the
    cube that is together: what lies to the right of those is context for the denoiser only, and a
    data step leaves it as it is.

    Args:
        system: disperses along columns.
    """

    def __init__(self, system: Camera) -> None:
        self.system = system
        self.width = system.mask.shape[-1]
        self.extra = max(offsets(system))

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W')` → `(B, 1, H, W')`."""
        return self.system(x[..., : self.width])

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return F.pad(self.system.adjoint(y), (0, self.extra))

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse: `(B, 1, H, W')` → `(B, C, H, W')`."""
        return F.pad(self.system.pinv(y), (0, self.extra))

    def data_step(self, v: Tensor, y: Tensor, rho: Any = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²; v and the result are `(B, C, H, W')`."""
        if self.extra == 0:
            return self.system.data_step(v, y, rho)
        seen = self.system.data_step(v[..., : self.width], y, rho)
        return torch.cat((seen, v[..., self.width :]), -1)


def roll_bands(x: Tensor, shifts: Sequence[int]) -> Tensor:
    """Roll each band of `(B, C, H, W')` along the columns: one number of columns per band."""
    bands = [band.roll(shift, -1) for band, shift in zip(x.unbind(1), shifts, strict=True)]
    return torch.stack(bands, 1)


def place_bands(x: Tensor, shifts: Sequence[int], extra: int) -> Tensor:
    """Put each band among zeros: `(B, C, H, W)` → `(B, C, H, W + extra)`.

    Args:
        x: bands.
        shifts: the first column of each band, 0 to `extra`.
        extra: columns to add.
    """
    bands = [
        F.pad(band, (shift, extra - shift)) for band, shift in zip(x.unbind(1), shifts, strict=True)
    ]
    return torch.stack(bands, 1)


def reflect_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Mirror the last rows and columns until H and W are multiples of a number.

    As `F.pad(…, mode="reflect")`, but for any size: images smaller than what is to be added are
    mirrored again and again.
    """
    height, width = x.shape[-2:]
    below, right = -height % multiple, -width % multiple
    if below == right == 0:
        return x
    if below < height and right < width:
        return F.pad(x, (0, right, 0, below), mode="reflect")
    rows, columns = (
        _mirrored(size, size + more, x.device) for size, more in ((height, below), (width, right))
    )
    return x[..., rows[:, None], columns]


def _mirrored(size: int, total: int, device: torch.device) -> Tensor:
    # 0 1 2 3 2 1 0 1 …: the period leaves out both ends once.
    period = max(2 * (size - 1), 1)
    position = torch.arange(total, device=device) % period
    return torch.minimum(position, period - position) if size > 1 else position
