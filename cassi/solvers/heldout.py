"""Detector pixels held out: what a reconstruction predicts of pixels that it was not given."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from cassi.solvers.base import Reconstructor
from cassi.solvers.linear_system import Camera, LinearSystem, good_pixels, part_axis, seen
from cassi.solvers.statistics import Statistics

SHARE = 0.05
"""Of the detector pixels: enough for a measurement, too few to change a reconstruction."""
LOOKED_AT = 1 / 3
"""Share of the lines of a scene that are reconstructed again; also its share of the time."""
LEAST = 32
"""The smallest number of lines: networks take no fewer."""


@dataclass(frozen=True)
class HeldOut:
    """How well a reconstruction predicts pixels that it was not given.

    Attributes:
        share: of the pixels that were held out.
        error: ‖(y − Ax)_H‖/‖y_H‖, see `Lines.errors`; of a batch the root mean square.
        lines: number of lines that were reconstructed for it.
    """

    share: float
    error: float
    lines: int


@dataclass(frozen=True)
class Lines:
    """Lines of a measurement, with the pixels that are held out.

    Attributes:
        y: the measurement of these lines.
        system: their camera, with all its pixels.
        heldout: bool, `(1, K, H', W')`.
    """

    y: Tensor
    system: Camera
    heldout: Tensor

    @cached_property
    def camera(self) -> Camera:
        """The camera without these pixels."""
        return self.system.weighted(bad_pixels=self.heldout)

    def errors(self, x: Tensor) -> Tensor:
        r"""Return how far cubes are from pixels that they were reconstructed without, `(B,)`.

            ‖(y − Ax)_H‖ / ‖y_H‖,   0 where the held-out pixels are all zero

        It compares settings of one method: a cube that fits noise predicts badly. It does not
        compare methods.
        """
        return self.misses(self.system(x))

    def misses(self, measured: Tensor) -> Tensor:
        """Return the same of what a camera measures of each cube."""
        return self._norm(self._seen - measured) / self._size

    def weigh(
        self,
        cubes: Sequence[Tensor],
        shares: Sequence[float],
        usual: Sequence[float],
        trust: float,
    ) -> tuple[Tensor, Tensor]:
        r"""Return the weights w of the `weighted_mean` x(w) that predicts the held-out pixels.

            argmin_w ‖(y − A x(w))_H‖² / ‖(y − A x(v))_H‖² + ‖w − v‖² / t,   Σ w_i = 1

        The pixels decide where the cubes differ by more than they miss the pixels by, else the
        usual weights do. The pixels do not show all of an error: that is why t does not grow with
        their number.

        Beside them, how far from x(w) towards the first cube held-out pixels are predicted best:

            argmin_s ‖(y − A(x(w) + s (x_1 − x(w))))_H‖²

        Above 1/2 the first cube is the nearer one. Noise of y does not change this on average: no
        cube was given these pixels.

        All cubes were reconstructed without these pixels; shares and weights have the sum 1; the
        larger t > 0 is, the further w may be from v.

        Returns:
            w `(M, B)`, of sum 1, and s `(B,)`.

        Source: Breiman, "Stacked regressions", Machine Learning 24, 1996.
        """
        chosen = self.heldout.to(cubes[0].device)

        def seen_there(x: Tensor) -> Tensor:  # (B, N), float64
            return torch.where(chosen, self.system(x), 0).flatten(1).double()

        mean = torch.tensor(usual, dtype=torch.float64, device=chosen.device)[:, None]
        light = torch.where(chosen, self._seen, 0).flatten(1).double()
        missed = light - seen_there(weighted_mean(cubes, shares, mean))
        grey = [x.mean(1, keepdim=True) for x in cubes]
        ways = [seen_there((one - grey[-1]).expand_as(cubes[0])) for one in grey[:-1]]
        told = torch.stack(ways, 1) if ways else missed[:, None][:, :0]  # (B, M − 1, N)
        tiny = torch.finfo(torch.float64).tiny
        level = (missed.square().sum(1) / trust).clamp_min(tiny)
        norm = (torch.eye(len(ways)) + 1).to(told)  # ‖w − v‖², of all weights but the last
        gram = told @ told.mT + level[:, None, None] * norm
        change = torch.linalg.solve_ex(gram, (told @ missed[..., None])[..., 0])[0]
        missed = missed - (change[:, None] @ told)[:, 0]  # by x(w)
        way = seen_there(cubes[0]) - light + missed
        nearest = (way * missed).sum(1) / way.square().sum(1).clamp_min(tiny)
        change = change.T
        return mean + torch.cat((change, -change.sum(0, keepdim=True))), nearest

    def error(self, x: Tensor) -> float:
        """Return the error of a cube, the root mean square of a batch."""
        return _root_mean_square(self.errors(x))

    @cached_property
    def _seen(self) -> Tensor:
        return seen(self.y, self.system)

    @cached_property
    def _size(self) -> Tensor:
        size = self._norm(self._seen)
        return torch.where(size > 0, size, torch.inf)  # of no light there is no error

    def _norm(self, value: Tensor) -> Tensor:
        """Return the norm of the held-out pixels, `(B,)`, float64."""
        chosen = self.heldout.to(value.device)
        return torch.where(chosen, value, 0).flatten(1).double().norm(dim=1)


def _root_mean_square(errors: Tensor) -> float:
    each = errors.tolist()
    return math.hypot(*each) / math.sqrt(len(each))


def weighted_mean(
    cubes: Sequence[Tensor], shares: Sequence[float], weights: Tensor | None = None
) -> Tensor:
    r"""Return a mean of cubes whose mean over the bands has weights of its own.

        x(w) = Σ_i s_i x_i + Σ_i (w_i − s_i) g(x_i)

    g(x) has the mean over the bands of x in every band. A detector pixel is a sum over bands. It
    says how bright a place is, and little of how the light is shared out over the bands.
    """
    x = sum(share * cube for share, cube in zip(shares, cubes, strict=True))
    if weights is not None:
        for weight, share, cube in zip(weights.to(cubes[0]), shares, cubes, strict=True):
            x = x + (weight - share).view(-1, 1, 1, 1) * cube.mean(1, keepdim=True)
    return cast(Tensor, x)


def check_share(share: object) -> None:
    """Raise unless it is a share of the pixels that may be held out."""
    number = isinstance(share, int | float) and not isinstance(share, bool)
    if not (isinstance(share, int | float) and number and 0 < share <= 0.5):
        raise ValueError(f"heldout: expected a share above 0, at most 0.5, got {share!r}")


def draw_heldout(shape: Sequence[int], share: float = SHARE, seed: int = 0) -> Tensor:
    """Draw the pixels to hold out, each with the same probability.

    Returns:
        bool, `(1, K, H', W')`, on the CPU.
    """
    check_share(share)
    random = torch.Generator().manual_seed(seed)
    return torch.rand((1, *shape), generator=random) < share


def draw_seen(y: Tensor, system: LinearSystem, share: float = SHARE) -> Tensor:
    """Draw the pixels to hold out by which a method chooses, from what its camera sees.

    A caller may have held out the same pixels before, as bad pixels of the camera. Then a second
    draw, with another seed, replaces the first.
    """
    heldout = draw_heldout(y.shape[1:], share).to(y.device)
    good = good_pixels(system)
    if good is not None and not bool((heldout & good).any()):
        heldout = draw_heldout(y.shape[1:], share, seed=1).to(y.device)
    return heldout


def hold_out(y: Tensor, system: Camera, lines: int, share: float = SHARE) -> Lines:
    """Hold pixels out of the lines with the most light, to choose by them; see `draw_seen`."""
    y, system = brightest(seen(y, system), system, lines)
    return Lines(y, system, draw_seen(y, system, share))


def brightest(y: Tensor, system: Camera, lines: int) -> tuple[Tensor, Camera]:
    """Cut the lines with the most light out of a measurement, where the camera lets it be cut."""
    first, stop = brightest_lines(y, system, lines)
    axis = part_axis(system)
    if axis is None or stop - first == y.shape[axis]:
        return y, system
    return y.narrow(axis, first, stop - first), system.part(first, stop)


def brightest_lines(y: Tensor, system: LinearSystem, lines: int) -> tuple[int, int]:
    """Return the first of the lines with the most light, and the one behind the last of them."""
    axis = part_axis(system) or -2
    if part_axis(system) is None or y.shape[axis] <= lines:
        return 0, y.shape[axis]
    light = y.double().square().sum((0, 1, -3 - axis)).cumsum(0)
    sums = light[lines - 1 :].clone()
    sums[1:] -= light[:-lines]
    first = int(sums.argmax())
    return first, first + lines


@torch.no_grad()
def measure_heldout(
    y: Tensor,
    system: Camera,
    reconstructor: Reconstructor,
    share: float = SHARE,
) -> HeldOut:
    """Reconstruct once more without some pixels, and measure how well the cube predicts them.

    It uses the brightest third of the lines across the dispersion, at least 32. Cameras that
    cannot be cut are reconstructed as a whole, which takes as long as the first time.
    """
    check_share(share)
    y, axis = seen(y, system), part_axis(system)
    if axis is not None:
        y, system = brightest(y, system, max(LEAST, int(LOOKED_AT * y.shape[axis])))
    lines = Lines(y, system, draw_heldout(y.shape[1:], share).to(y.device))
    camera = lines.camera
    # A network that has statistics does not look for the mask of this camera itself.
    known = Statistics(lambda: [(seen(y, camera), camera)])
    found = reconstructor.run(y, camera, statistics=known).checked()
    error = _root_mean_square(lines.misses(found.measured(system)))
    return HeldOut(float(share), error, y.shape[-2 if axis is None else axis])
