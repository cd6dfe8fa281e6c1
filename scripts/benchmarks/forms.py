"""Ways to write the operators, ours and others, which `ops.py` compares and times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import cassi

Shape = tuple[int, ...]
Array = NDArray[np.floating]
STEP, RHO = 2, 0.1
WEIGHT, INNER = 0.1, 5
RATIO_FLOOR = 1e-12  # what mask zeros are raised to in `ratio_inverse`


@dataclass(frozen=True)
class Problem:
    """Random inputs of all implementations, and the constants they share.

    cube `(B, C, H, W)`, measurement `(B, 1, H, W')`, mask `(H, W)`, gram `(1, 1, H, W')` and the
    number of bands that reach each detector column, counts `(W',)`.
    """

    cube: Tensor
    measurement: Tensor
    mask: Tensor
    gram: Tensor
    counts: Tensor

    @staticmethod
    def drawn(
        shape: Shape, device: torch.device, dtype: torch.dtype, channels_last: bool = False
    ) -> Problem:
        """Draw a random cube `(B, C, H, W)`, a mask in [0.1, 1], another cube's measurement."""
        generator = torch.Generator(device).manual_seed(0)
        bands, width = shape[1], shape[3]
        cube, scene = (torch.rand(shape, generator=generator, device=device) for _ in range(2))
        cube = cube.to(dtype)
        if channels_last:
            cube = cube.contiguous(memory_format=torch.channels_last)
        mask = torch.rand(shape[2:], generator=generator, device=device).mul_(0.9).add_(0.1)
        mask = mask.to(dtype)
        counts = torch.zeros(width + (bands - 1) * STEP, device=device)
        for c in range(bands):
            counts[c * STEP : c * STEP + width] += 1
        y, gram = cassi.ops.forward(scene.to(dtype), mask, STEP), cassi.ops.gram(mask, bands, STEP)
        return Problem(cube, y, mask, gram, counts.clamp_min(1).to(dtype))

    @property
    def columns(self) -> list[slice]:
        """The detector columns of each band."""
        bands, width = self.cube.shape[1], self.cube.shape[-1]
        return [slice(c * STEP, c * STEP + width) for c in range(bands)]

    def windows(self, y: Tensor) -> Tensor:
        """Return a view `(B, C, H, W)` of measurements."""
        return y[:, 0].unfold(-1, self.cube.shape[-1], STEP).transpose(1, 2)

    def new_measurement(self, x: Tensor) -> Tensor:
        """Return zeros shaped like the measurement of a cube."""
        return x.new_zeros((x.shape[0], 1, x.shape[2], self.counts.numel()))

    def correction(self, y: Tensor, simulated: Tensor) -> Tensor:
        """Return (y − Av) / (gram + ρ)."""
        return ((y - simulated) / (self.gram + RHO)).to(y.dtype)

    def count_bytes(self, operator: str, backward: bool) -> int:
        """Count the bytes that must move at least: every input and output once."""
        values = (self.cube, self.measurement, self.mask, self.gram)
        cube, y, mask, gram = (value.nbytes for value in values)
        if operator != "data_step":
            return (cube + y + mask) * (1 + backward)
        return 2 * cube + y + mask + gram + (2 * cube + mask + gram) * backward


Form = dict[str, Callable[..., Tensor]]
"""One way to write the operators: forward(x, mask), adjoint(y, mask), data_step(v, y, mask), …

x is `(B, C, H, W)`, y `(B, 1, H, W')`. One shot, one mask for all bands, a positive step. Constants
that do not depend on cube or measurement (indices, kernels, band counts, the gram) are prepared
beforehand and cost no time.
"""


def ours(p: Problem) -> Form:
    """The operators of this package."""
    last = p.cube.is_contiguous(memory_format=torch.channels_last) and not p.cube.is_contiguous()
    like: dict[str, Any] = {"bands": p.cube.shape[1], "step": STEP, "channels_last": last}
    return {
        "forward": partial(cassi.ops.forward, step=STEP),
        "adjoint": partial(cassi.ops.adjoint, **like),
        "ratio_inverse": partial(cassi.ops.ratio_inverse, **like),
        "data_step": partial(cassi.ops.data_step, step=STEP, rho=RHO, gram=p.gram),
    }


def slices(p: Problem) -> Form:
    """A Python loop over bands that adds into slices."""

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        y = p.new_measurement(x)
        for c, columns in enumerate(p.columns):
            y[:, 0, :, columns] += mask * x[:, c]
        return y

    def adjoint(y: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([mask * y[:, 0, :, columns] for columns in p.columns], 1)

    return {"forward": forward, "adjoint": adjoint}


def compiled(p: Problem) -> Form:
    """The loop through `torch.compile`, with padded bands instead of slices written in place.

    The compiler fuses either into one kernel, but needs minutes for the gradient of 28 slices and
    twenty seconds for that of padded bands.
    """
    detector, (first, *rest) = p.counts.numel(), p.columns

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        y = functional.pad(mask * x[:, 0], (0, detector - first.stop))
        for c, columns in enumerate(rest, 1):
            y = y + functional.pad(mask * x[:, c], (columns.start, detector - columns.stop))
        return y.unsqueeze(1)

    whole = complete(slices(p) | {"forward": forward}, p)
    return {name: torch.compile(call, dynamic=False) for name, call in whole.items()}


def addcmul(p: Problem) -> Form:
    """A Python loop over bands with a fused multiply-add in place; the best eager form."""

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        y = p.new_measurement(x)
        for c, columns in enumerate(p.columns):
            y[:, 0, :, columns].addcmul_(mask, x[:, c])
        return y

    def data_step(v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        z, x = p.correction(y, forward(v, mask)), v.clone()
        for c, columns in enumerate(p.columns):
            x[:, c].addcmul_(mask, z[:, 0, :, columns])
        return x

    return {"forward": forward, "data_step": data_step}


def unfold(p: Problem) -> Form:
    """The windows of all bands as one overlapping view of the measurement."""
    simulate = addcmul(p)["forward"]

    def adjoint(y: Tensor, mask: Tensor) -> Tensor:
        return p.windows(y) * mask

    def data_step(v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return torch.addcmul(v, p.windows(p.correction(y, simulate(v, mask))), mask)

    return {"adjoint": adjoint, "data_step": data_step}


def convolution(p: Problem) -> Form:
    """Shift and sum as one convolution along the rows, with a one-hot kernel for each band."""
    bands = p.cube.shape[1]
    reach = (bands - 1) * STEP
    back = p.cube.new_zeros((bands, 1, 1, reach + 1))  # that of band c reads column w + o(c)
    back[range(bands), 0, 0, range(0, reach + 1, STEP)] = 1
    there = back.flip(-1).transpose(0, 1).contiguous()  # (1, C, 1, L)
    return {
        "forward": lambda x, mask: functional.conv2d(x * mask, there, padding=(0, reach)),
        "adjoint": lambda y, mask: functional.conv2d(y, back) * mask,
    }


def scatter(p: Problem) -> Form:
    """`scatter_add_` with the detector pixel of every element, and `gather` back."""
    ranges = (torch.arange(n, device=p.cube.device) for n in p.cube.shape[1:])
    band, row, column = torch.meshgrid(*ranges, indexing="ij")
    index = (row * p.counts.numel() + column + band * STEP).view(1, -1)

    def forward(x: Tensor, mask: Tensor) -> Tensor:
        y, source = p.new_measurement(x), (x * mask).reshape(x.shape[0], -1)
        y.view(x.shape[0], -1).scatter_add_(1, index.expand_as(source), source)
        return y

    def adjoint(y: Tensor, mask: Tensor) -> Tensor:
        found = y.reshape(len(y), -1).gather(1, index.expand(len(y), -1))
        return found.view(len(y), *p.cube.shape[1:]) * mask

    return {"forward": forward, "adjoint": adjoint}


def shift_roll(p: Problem) -> Form:
    """As published codes do it: the cube is widened, its bands are rolled, the mask is a cube."""
    bands = p.cube.shape[1]

    def shift(x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C, H, W')
        wide = functional.pad(x, (0, (bands - 1) * STEP))
        for c in range(bands):
            wide[:, c] = torch.roll(wide[:, c], shifts=c * STEP, dims=-1)
        return wide

    def shift_back(wide: Tensor) -> Tensor:  # (B, C, H, W') -> (B, C, H, W)
        for c in range(bands):
            wide[:, c] = torch.roll(wide[:, c], shifts=-c * STEP, dims=-1)
        return wide[..., : wide.shape[-1] - (bands - 1) * STEP]

    shifted = shift(p.mask.expand(1, bands, *p.mask.shape))  # (1, C, H, W')

    def data_step(v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        wide = shift(v)
        z = p.correction(y, (wide * shifted).sum(1, keepdim=True))
        return shift_back(wide + z.repeat(1, bands, 1, 1) * shifted)

    return {
        "forward": lambda x, mask: (shift(x) * shifted).sum(1, keepdim=True),
        "adjoint": lambda y, mask: shift_back(y.repeat(1, bands, 1, 1) * shifted),
        "data_step": data_step,
    }


FORMS: dict[str, Callable[[Problem], Form]] = {
    "slice-add loop": slices,
    "addcmul loop": addcmul,
    "one-hot conv2d": convolution,
    "scatter_add_, gather": scatter,
    "unfold": unfold,
    "compiled eager loop": compiled,
    "published shift-roll": shift_roll,
}


def complete(form: Form, p: Problem) -> Form:
    """Add what follows from the others, unless the form has a better way."""
    forward, adjoint = form.get("forward"), form.get("adjoint")
    found = dict(form)
    # Shift-roll has its mask prepared, and could not divide by another.
    if adjoint is not None and form.keys() != {"forward", "adjoint", "data_step"}:
        found.setdefault(
            "ratio_inverse",
            lambda y, mask: adjoint(y / p.counts, mask.clamp_min(RATIO_FLOOR).reciprocal()),
        )
    if forward is not None and adjoint is not None:
        found.setdefault(
            "data_step",
            lambda v, y, mask: v + adjoint(p.correction(y, forward(v, mask)), mask),
        )
    return found


class NumpyGap:
    """Accelerated GAP in NumPy on a wide cube `(H, W', C)` in float64.

        t ← t + (y − Ax),   v = x + Aᵀ((t − Ax) / Φs),   x ← shift(denoise(shift_back(v)))

    Args:
        mask: `(H, W)`.
        bands: number of bands C.
        denoise: maps a cube `(H, W, C)` to one.
    """

    def __init__(self, mask: Array, bands: int, denoise: Callable[[Array], Array]) -> None:
        """Shift the mask of every band, and sum their squares."""
        self.extra, self.denoise = (bands - 1) * STEP, denoise
        self.masks = self.shift(np.repeat(mask[:, :, None].astype(np.float64), bands, axis=2))
        self.gram = (self.masks**2).sum(2)
        self.gram[self.gram == 0] = 1

    def shift(self, cube: Array) -> Array:  # (H, W, C) -> (H, W', C)
        """Widen the cube and roll every band to its columns."""
        wide = np.pad(cube, ((0, 0), (0, self.extra), (0, 0)))
        for c in range(cube.shape[2]):
            wide[:, :, c] = np.roll(wide[:, :, c], c * STEP, axis=1)
        return wide

    def shift_back(self, wide: Array) -> Array:  # (H, W', C) -> (H, W, C)
        """Roll every band back and crop."""
        for c in range(wide.shape[2]):
            wide[:, :, c] = np.roll(wide[:, :, c], -c * STEP, axis=1)
        return wide[:, : wide.shape[1] - self.extra]

    def iterate(self, wide: Array, y: Array, target: Array) -> tuple[Array, Array]:
        """Run one iteration; return the wide cube and the target `(H, W')`."""
        simulated = (wide * self.masks).sum(2)
        target = target + (y - simulated)
        step = ((target - simulated) / self.gram)[:, :, None] * self.masks
        return self.shift(self.denoise(self.shift_back(wide + step))), target


def denoise_public(cube: Array) -> Array:
    """Call scikit-image on `(H, W, C)` as the public codes do: in its dtype, over all channels."""
    from skimage.restoration import denoise_tv_chambolle

    return denoise_tv_chambolle(cube, weight=WEIGHT, eps=0, max_num_iter=INNER, channel_axis=-1)


def denoise_planes(cube: Array) -> Array:
    """Call scikit-image on one contiguous band of `(C, H, W)` at a time, its fastest form."""
    from skimage.restoration import denoise_tv_chambolle

    clean = np.empty_like(cube)
    for band, out in zip(cube, clean, strict=True):
        out[:] = denoise_tv_chambolle(band, weight=WEIGHT, eps=0, max_num_iter=INNER)
    return clean
