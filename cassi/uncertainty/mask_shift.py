"""Does what a cube leaves of its measurement look as if the mask lay elsewhere?"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from cassi.systems.base import System

SIDE = 5
"""Of the square that a cube is averaged over: what it absorbed of a wrong mask is gone then."""
LEFT = 8.0
"""Standard errors by which the residual itself must speak for a shift."""
SHIFT = 0.25
"""Pixels by which the averaged cube must: texture alone makes it seem to be 0.1, rarely 0.2."""
LEAST = 0.05
"""Pixels below which no residual speaks for a shift."""
ERRORS = 10.0
"""Standard errors by which the averaged cube must speak for a shift."""
FOUND = 0.8
"""Of the true shift is what the averaged cube says."""
_DARK = 1e-5  # of the measurement: what is left is rounding
_SINGULAR = 1e-9


@dataclass(frozen=True)
class MaskShift:
    """Where the mask seems to lie, from where it is taken to lie.

    Attributes:
        shift: (down, right), pixels, by the averaged cube; four fifths of the true one.
        errors: by how many standard errors it is not 0.
        left: by how many standard errors the residual of the cube itself says that there is one,
            down and right.
        change: root mean square of what that shift changes of the measurement.
    """

    shift: tuple[float, float] = (0.0, 0.0)
    errors: float = 0.0
    left: tuple[float, float] = (0.0, 0.0)
    change: float = 0.0

    @property
    def is_significant(self) -> bool:
        """Tell whether the mask lies elsewhere."""
        size = math.hypot(*self.shift)
        return self._is_far or (size > LEAST and max(self.left) > LEFT)

    def is_doubtful(self, across: int | None) -> bool:
        """Tell whether it is more than a cube's wrong spectra make of a right mask.

        Light under the names of neighbouring bands looks like a shift of a tenth of their distance
        along the dispersion. So a residual counts across it only, on the axis -2 or -1.
        """
        if across is None:
            return self._is_far
        return self._is_far or (abs(self.shift[across]) > LEAST and self.left[across] > LEFT)

    @property
    def _is_far(self) -> bool:
        return math.hypot(*self.shift) > SHIFT and self.errors > ERRORS


@torch.no_grad()
def find_mask_shift(y: Tensor, x: Tensor, system: System) -> MaskShift:
    """Fit the shift of the mask to what a cube `(1, C, H, W)` leaves of its measurement.

        min_δ ‖y − Ax̄ − Σ_k δ_k ∂(Ax̄)/∂s_k‖²,   s the place of the mask, by differences of a pixel

    A cube is free enough to be consistent with its measurement through a wrong mask, at the cost of
    a pattern of the mask in it; averaged over 5×5 pixels, x̄, it has lost the pattern and most of
    its texture. The texture that is left out knows nothing of the mask's derivative. Where the cube
    itself leaves a residual, that is asked as well. Of a camera without a buffer `mask` nothing is
    found.
    """
    name = _mask_of(system)
    if name is None or min(x.shape[-2:]) < 2 * SIDE:
        return MaskShift()
    margin = SIDE // 2
    padded = F.pad(x, (margin,) * 4, mode="replicate")
    smooth = F.avg_pool2d(F.avg_pool2d(padded, (SIDE, 1), 1), (1, SIDE), 1)
    shift, errors, change = _fit(y, smooth, system, name)
    _, left, _ = _fit(y, x, system, name)
    return MaskShift(shift, max(errors), left, change)


@torch.no_grad()
def measure_shifted(x: Tensor, system: System, mask_shift: MaskShift) -> Tensor:
    """Measure a cube through the mask where it seems to lie, if it seems to lie elsewhere.

    Fractions of a pixel are interpolated linearly.
    """
    name = _mask_of(system)
    if name is None or not mask_shift.is_significant:
        return system(x)
    mask = dict(system.named_buffers())[name]
    for axis, found in zip((-2, -1), mask_shift.shift, strict=True):
        by = found / FOUND
        whole = math.floor(by)
        mask = torch.lerp(mask.roll(whole, axis), mask.roll(whole + 1, axis), by - whole)
    return functional_call(system, {name: mask}, (x,))


def _mask_of(system: System) -> str | None:
    """Return the name of a camera's only buffer `mask`."""
    names = [n for n, _ in system.named_buffers() if n.rpartition(".")[2] == "mask"]
    return names[0] if len(names) == 1 else None


def _fit(
    y: Tensor, x: Tensor, system: System, name: str
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Return the shift, its size in standard errors, down and right, and what it changes of y."""
    mask = dict(system.named_buffers())[name]
    images = []
    for axis in (-2, -1):
        there, back = (functional_call(system, {name: mask.roll(by, axis)}, (x,)) for by in (1, -1))
        images.append((there - back) / 2)
    design = torch.stack([image.flatten() for image in images], 1).double()
    rest = (y - system(x)).flatten().double()
    gram = design.mT @ design
    scale = float(gram[0, 0] * gram[1, 1])
    dark = float(rest.square().mean()) <= _DARK**2 * float(y.double().square().mean())
    if dark or float(torch.linalg.det(gram)) <= _SINGULAR * scale:
        return (0.0, 0.0), (0.0, 0.0), 0.0
    shift = torch.linalg.solve(gram, design.mT @ rest)
    explained = design @ shift
    variance = (rest - explained).square().mean()
    errors = (torch.linalg.inv(gram).diagonal() * variance).sqrt()
    down, right = shift.tolist()
    first, second = (shift.abs() / errors.clamp_min(torch.finfo(errors.dtype).tiny)).tolist()
    return (down, right), (first, second), float(explained.square().mean().sqrt())
