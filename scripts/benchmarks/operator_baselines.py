"""The camera's operators as they are usually written in eager PyTorch, to be compared with ours.

Every class computes the same numbers. `forward` and `adjoint` are what differs; `ratio_inverse` and
`data_step` follow from them unless a form has a better way. Constants that do not depend on cube or
measurement (indices, kernels, band counts, the gram) are prepared beforehand and cost no time.
One shot, one mask for all bands, a positive step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import cassi

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
    step: int
    rho: float = 0.1

    @property
    def channels_last(self) -> bool:
        """Whether the cube lies with its bands innermost."""
        last = self.cube.is_contiguous(memory_format=torch.channels_last)
        return last and not self.cube.is_contiguous()

    @property
    def columns(self) -> list[slice]:
        """The detector columns of each band."""
        bands, width = self.cube.shape[1], self.cube.shape[-1]
        return [slice(c * self.step, c * self.step + width) for c in range(bands)]


def make_problem(
    shape: tuple[int, int, int, int],
    step: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    seed: int = 0,
) -> Problem:
    """Draw a random cube `(B, C, H, W)`, a mask in [0.1, 1], and another cube's measurement."""
    generator = torch.Generator(device).manual_seed(seed)
    bands, width = shape[1], shape[3]
    cube, scene = (torch.rand(shape, generator=generator, device=device) for _ in range(2))
    cube = cube.to(dtype)
    if channels_last:
        cube = cube.contiguous(memory_format=torch.channels_last)
    mask = torch.rand(shape[2:], generator=generator, device=device).mul_(0.9).add_(0.1).to(dtype)
    counts = torch.zeros(width + (bands - 1) * step, device=device)
    for c in range(bands):
        counts[c * step : c * step + width] += 1
    measurement = cassi.ops.forward(scene.to(dtype), mask, step)
    gram = cassi.ops.gram(mask, bands, step)
    return Problem(cube, measurement, mask, gram, counts.clamp_min(1).to(dtype), step)


class Implementation:
    """One way to write the operators."""

    name = ""
    operators: tuple[str, ...] = ("forward", "adjoint", "ratio_inverse", "data_step")

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.columns = problem.columns

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, C, H, W) -> (B, 1, H, W')
        """Mask, shift, sum."""
        raise NotImplementedError

    def adjoint(self, y: Tensor, mask: Tensor) -> Tensor:  # (B, 1, H, W') -> (B, C, H, W)
        """Shift every band back and multiply by the mask."""
        raise NotImplementedError

    def ratio_inverse(self, y: Tensor, mask: Tensor) -> Tensor:
        """Divide by band count and mask."""
        inverse = mask.clamp_min(RATIO_FLOOR).reciprocal()
        return self.adjoint(y / self.problem.counts, inverse)

    def data_step(self, v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Compute v + Aᵀ((y − Av) / (gram + ρ))."""
        return v + self.adjoint(self.correction(v, y, mask), mask)

    def correction(self, v: Tensor, y: Tensor, mask: Tensor) -> Tensor:  # (B, 1, H, W')
        """Compute (y − Av) / (gram + ρ)."""
        damped = self.problem.gram + self.problem.rho
        return ((y - self.forward(v, mask)) / damped).to(y.dtype)

    def new_measurement(self, x: Tensor) -> Tensor:
        """Return zeros shaped like the measurement of a cube."""
        return x.new_zeros((x.shape[0], 1, x.shape[2], self.problem.counts.numel()))


class Ours(Implementation):
    """The operators of this package."""

    name = "ours"

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return cassi.ops.forward(x, mask, self.problem.step)

    def adjoint(self, y: Tensor, mask: Tensor) -> Tensor:
        p = self.problem
        bands = p.cube.shape[1]
        return cassi.ops.adjoint(y, mask, bands, p.step, channels_last=p.channels_last)

    def ratio_inverse(self, y: Tensor, mask: Tensor) -> Tensor:
        p = self.problem
        bands = p.cube.shape[1]
        return cassi.ops.ratio_inverse(y, mask, bands, p.step, channels_last=p.channels_last)

    def data_step(self, v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Call the operator, with the gram that is known already."""
        return cassi.ops.data_step(
            v, y, mask, self.problem.step, self.problem.rho, self.problem.gram
        )


class SliceLoop(Implementation):
    """A Python loop over bands that adds into slices."""

    name = "slice-add loop"

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.new_measurement(x)
        for c, columns in enumerate(self.columns):
            y[:, 0, :, columns] += mask * x[:, c]
        return y

    def adjoint(self, y: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([mask * y[:, 0, :, columns] for columns in self.columns], 1)


class CompiledLoop(SliceLoop):
    """The loop through `torch.compile`, with padded bands instead of slices written in place.

    The compiler fuses either into one kernel, but needs minutes for the gradient of 28 slices and
    twenty seconds for that of padded bands.
    """

    name = "compiled eager loop"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        for operator in self.operators:
            setattr(self, operator, torch.compile(getattr(self, operator), dynamic=False))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Add all masked bands, each padded to the detector."""
        detector = self.problem.counts.numel()
        y = functional.pad(mask * x[:, 0], (0, detector - self.columns[0].stop))
        for c, columns in enumerate(self.columns[1:], 1):
            y = y + functional.pad(mask * x[:, c], (columns.start, detector - columns.stop))
        return y.unsqueeze(1)


class AddcmulLoop(Implementation):
    """A Python loop over bands with a fused multiply-add in place; the best eager form."""

    name = "addcmul loop"
    operators: tuple[str, ...] = ("forward", "data_step")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.new_measurement(x)
        for c, columns in enumerate(self.columns):
            y[:, 0, :, columns].addcmul_(mask, x[:, c])
        return y

    def data_step(self, v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Add every masked slice of the correction to its band of a copy of v."""
        z = self.correction(v, y, mask)
        x = v.clone()
        for c, columns in enumerate(self.columns):
            x[:, c].addcmul_(mask, z[:, 0, :, columns])
        return x


class Unfold(AddcmulLoop):
    """The windows of all bands as one overlapping view of the measurement."""

    name = "unfold"
    operators = ("adjoint", "ratio_inverse", "data_step")

    def windows(self, y: Tensor) -> Tensor:  # (B, 1, H, W') -> view (B, C, H, W)
        return y[:, 0].unfold(-1, self.problem.cube.shape[-1], self.problem.step).transpose(1, 2)

    def adjoint(self, y: Tensor, mask: Tensor) -> Tensor:
        return self.windows(y) * mask

    def data_step(self, v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Simulate with the addcmul loop, go back with the view."""
        return torch.addcmul(v, self.windows(self.correction(v, y, mask)), mask)


class OneHotConvolution(Implementation):
    """Shift and sum as one convolution along the rows, with a one-hot kernel for each band."""

    name = "one-hot conv2d"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        bands, step = problem.cube.shape[1], problem.step
        self.reach = (bands - 1) * step
        back = problem.cube.new_zeros((bands, 1, 1, self.reach + 1))
        back[range(bands), 0, 0, range(0, self.reach + 1, step)] = 1
        self.back = back  # (C, 1, 1, L): band c reads column w + o(c)
        self.there = back.flip(-1).transpose(0, 1).contiguous()  # (1, C, 1, L)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return functional.conv2d(x * mask, self.there, padding=(0, self.reach))

    def adjoint(self, y: Tensor, mask: Tensor) -> Tensor:
        return functional.conv2d(y, self.back) * mask


class Scatter(Implementation):
    """`scatter_add_` with the detector pixel of every element, and `gather` back."""

    name = "scatter_add_, gather"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        _, bands, height, width = problem.cube.shape
        band, row, column = torch.meshgrid(
            *(torch.arange(n, device=problem.cube.device) for n in (bands, height, width)),
            indexing="ij",
        )
        detector = problem.counts.numel()
        self.index = (row * detector + column + band * problem.step).view(1, -1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.new_measurement(x)
        source = (x * mask).reshape(x.shape[0], -1)
        y.view(x.shape[0], -1).scatter_add_(1, self.index.expand_as(source), source)
        return y

    def adjoint(self, y: Tensor, mask: Tensor) -> Tensor:
        batch = y.shape[0]
        found = y.reshape(batch, -1).gather(1, self.index.expand(batch, -1))
        return found.view(batch, *self.problem.cube.shape[1:]) * mask


class ShiftRoll(Implementation):
    """The style of research code: roll every band of a wide cube, multiply by a 3-D shifted mask.

    The shifted mask is prepared once for the problem's mask; a mask in a call is not looked at.
    """

    name = "published shift-roll"
    operators = ("forward", "adjoint", "data_step")

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.extra = (len(self.columns) - 1) * problem.step
        mask = problem.mask.expand(1, len(self.columns), *problem.mask.shape)
        self.shifted_mask = self.shift(mask)  # (1, C, H, W')

    def shift(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, C, H, W')
        """Widen the cube and roll every band to its columns."""
        wide = functional.pad(x, (0, self.extra))
        for c, columns in enumerate(self.columns):
            wide[:, c] = torch.roll(wide[:, c], shifts=columns.start, dims=-1)
        return wide

    def shift_back(self, wide: Tensor) -> Tensor:  # (B, C, H, W') -> (B, C, H, W)
        """Roll every band back, in place, and crop."""
        for c, columns in enumerate(self.columns):
            wide[:, c] = torch.roll(wide[:, c], shifts=-columns.start, dims=-1)
        return wide[..., : wide.shape[-1] - self.extra]

    def spread(self, y: Tensor) -> Tensor:  # (B, 1, H, W') -> (B, C, H, W')
        """Repeat the measurement for every band and multiply by the shifted mask."""
        return y.repeat(1, len(self.columns), 1, 1) * self.shifted_mask

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self.shift(x) * self.shifted_mask).sum(1, keepdim=True)

    def adjoint(self, y: Tensor, mask: Tensor) -> Tensor:
        return self.shift_back(self.spread(y))

    def data_step(self, v: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Update the wide cube, then shift it back."""
        wide = self.shift(v)
        simulated = (wide * self.shifted_mask).sum(1, keepdim=True)
        correction = (y - simulated) / (self.problem.gram + self.problem.rho)
        return self.shift_back(wide + self.spread(correction.to(y.dtype)))
