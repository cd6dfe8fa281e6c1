"""Held-out pixels of the detector: how well a reconstruction predicts pixels it did not get."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from cassi.solvers.base import Reconstructor
from cassi.solvers.linear_system import (
    CameraSystem,
    LinearSystem,
    good_pixels,
    part_axis,
    zero_bad_pixels,
)
from cassi.solvers.statistics import Statistics

HELDOUT_SHARE = 0.05
"""Share of the detector pixels that is held out: enough for an error, too few to change a cube."""
LINE_SHARE = 1 / 3
"""Share of a scene's lines that is reconstructed again, in about this share of the time."""
MIN_LINES = 32
"""Least number of lines that is reconstructed again: networks take no fewer."""


@dataclass(frozen=True)
class HeldOut:
    """How well a reconstruction predicts pixels that it did not get.

    Attributes:
        share: share of the pixels that were held out.
        error: ‖(y − Ax)_H‖/‖y_H‖, see `HeldOutLines.errors`; of a batch the root mean square.
        lines: number of lines that were reconstructed to measure it.
    """

    share: float
    error: float
    lines: int


@dataclass(frozen=True)
class HeldOutLines:
    """Some lines of a measurement, with pixels that are held out.

    Attributes:
        y: the measurement of these lines, `(B, K, H', W')`.
        system: the camera of these lines, with all its pixels.
        heldout: the held-out pixels, bool, `(1, K, H', W')`.
    """

    y: Tensor
    system: CameraSystem
    heldout: Tensor

    @cached_property
    def camera(self) -> CameraSystem:
        """The camera without the held-out pixels: reconstructions use it."""
        return self.system.weighted(bad_pixels=self.heldout)

    def errors(self, x: Tensor) -> Tensor:
        r"""Return the relative error of each cube at the held-out pixels, `(B,)`.

            ‖(y − Ax)_H‖ / ‖y_H‖,   0 where the held-out pixels are all zero

        The cubes must come from `camera`, without these pixels. The error compares settings of one
        method: a cube that fits noise predicts badly. It does not compare methods.
        """
        return self.errors_of_measurement(self.system(x))

    def errors_of_measurement(self, predicted_y: Tensor) -> Tensor:
        """Return the `errors` of cubes, from their predicted measurements A x."""
        return self._heldout_norm(self._good_y - predicted_y) / self._heldout_size

    def weigh(
        self,
        cubes: Sequence[Tensor],
        shares: Sequence[float],
        prior_weights: Sequence[float],
        trust: float,
    ) -> tuple[Tensor, Tensor]:
        r"""Return the weights w of the `weighted_mean` x(w) that predicts the held-out pixels best.

            argmin_w ‖(y − A x(w))_H‖² / ‖(y − A x(v))_H‖² + ‖w − v‖² / t,   Σ w_i = 1

        Where the cubes differ by more than their error at the held-out pixels, these pixels decide.
        Elsewhere w stays near the prior weights v. The held-out pixels show only a part of the
        error of a cube: that is why t does not grow with their number.

        The second result says how far from x(w) towards the first cube the best prediction is:

            argmin_s ‖(y − A(x(w) + s (x_1 − x(w))))_H‖²

        Above 1/2 the first cube is the nearer one. Noise of y does not change s on average, because
        no cube was fitted to these pixels.

        Args:
            cubes: M cubes `(B, C, H, W)`, all reconstructed without the held-out pixels.
            shares: s of `weighted_mean`, of sum 1.
            prior_weights: v, of sum 1.
            trust: t > 0; the larger it is, the further w may be from v.

        Returns:
            w `(M, B)`, of sum 1, and s `(B,)`.

        Source: Breiman, "Stacked regressions", Machine Learning 24, 1996.
        """
        heldout = self.heldout.to(cubes[0].device)

        def predict(x: Tensor) -> Tensor:  # (B, N), float64
            return torch.where(heldout, self.system(x), 0).flatten(1).double()

        mean = torch.tensor(prior_weights, dtype=torch.float64, device=heldout.device)[:, None]
        target = torch.where(heldout, self._good_y, 0).flatten(1).double()
        residual = target - predict(weighted_mean(cubes, shares, mean))
        # A x(w) is linear in the means over the bands. The sum of the weights is 1, so the last one
        # follows from the others, and M − 1 differences from the last cube are fitted.
        grey_images = [x.mean(1, keepdim=True) for x in cubes]
        columns = [
            predict((image - grey_images[-1]).expand_as(cubes[0])) for image in grey_images[:-1]
        ]
        # (B, M − 1, N)
        design = torch.stack(columns, 1) if columns else residual[:, None][:, :0]
        tiny = torch.finfo(torch.float64).tiny
        # The equation above, multiplied by ‖(y − A x(v))_H‖²: no division by a small number.
        level = (residual.square().sum(1) / trust).clamp_min(tiny)
        norm = (torch.eye(len(columns)) + 1).to(design)  # ‖w − v‖², of all weights but the last
        gram = design @ design.mT + level[:, None, None] * norm
        change = torch.linalg.solve_ex(gram, (design @ residual[..., None])[..., 0])[0]
        residual = residual - (change[:, None] @ design)[:, 0]  # that of x(w)
        direction = predict(cubes[0]) - target + residual  # A (x_1 − x(w))
        nearest = (direction * residual).sum(1) / direction.square().sum(1).clamp_min(tiny)
        change = change.T
        return mean + torch.cat((change, -change.sum(0, keepdim=True))), nearest

    def error(self, x: Tensor) -> float:
        """Return the error of a cube, the root mean square of a batch."""
        return _root_mean_square(self.errors(x))

    @cached_property
    def _good_y(self) -> Tensor:
        """The measurement without the bad pixels of the camera."""
        return zero_bad_pixels(self.y, self.system)

    @cached_property
    def _heldout_size(self) -> Tensor:
        size = self._heldout_norm(self._good_y)
        return torch.where(size > 0, size, torch.inf)  # dark pixels: the relative error is 0

    def _heldout_norm(self, value: Tensor) -> Tensor:
        """Return the norm of the held-out pixels, `(B,)`, float64."""
        heldout = self.heldout.to(value.device)
        return torch.where(heldout, value, 0).flatten(1).double().norm(dim=1)


def _root_mean_square(errors: Tensor) -> float:
    values = errors.tolist()
    return math.hypot(*values) / math.sqrt(len(values))


def weighted_mean(
    cubes: Sequence[Tensor], shares: Sequence[float], weights: Tensor | None = None
) -> Tensor:
    r"""Return a mean of cubes in which brightness has other weights than the spectra.

        x(w) = Σ_i s_i x_i + Σ_i (w_i − s_i) g(x_i)

    s are the shares and w the weights. g(x) has in every band the mean of x over the bands. A
    detector pixel is a sum over bands: it determines brightness, but hardly the spectrum. So
    weights that come from pixels apply to g alone.

    Args:
        cubes: M cubes `(B, C, H, W)`.
        shares: s, M numbers of sum 1.
        weights: w, `(M, B)`, of sum 1; None takes s.

    Returns:
        `(B, C, H, W)`.
    """
    x = sum(share * cube for share, cube in zip(shares, cubes, strict=True))
    if weights is not None:
        for weight, share, cube in zip(weights.to(cubes[0]), shares, cubes, strict=True):
            x = x + (weight - share).view(-1, 1, 1, 1) * cube.mean(1, keepdim=True)
    return cast(Tensor, x)


def check_share(share: object) -> None:
    """Raise ValueError unless a share is a number in (0, 0.5]."""
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    if not (isinstance(share, int | float) and is_number and 0 < share <= 0.5):
        raise ValueError(f"heldout: expected a share above 0, at most 0.5, got {share!r}")


def draw_heldout(shape: Sequence[int], share: float = HELDOUT_SHARE, seed: int = 0) -> Tensor:
    """Draw the pixels to hold out, each with the same probability.

    Returns:
        bool, `(1, K, H', W')`, on the CPU.
    """
    check_share(share)
    random = torch.Generator().manual_seed(seed)
    return torch.rand((1, *shape), generator=random) < share


def draw_good_heldout(y: Tensor, system: LinearSystem, share: float = HELDOUT_SHARE) -> Tensor:
    """Draw pixels to hold out among the good pixels of a camera, for a choice of a method."""
    heldout = draw_heldout(y.shape[1:], share).to(y.device)
    good_mask = good_pixels(system)
    # The draw has a fixed seed. A caller that measures the held-out error of the method has drawn
    # the same pixels and declared them bad, so none of them would be left here.
    if good_mask is not None and not bool((heldout & good_mask).any()):
        heldout = draw_heldout(y.shape[1:], share, seed=1).to(y.device)
    return heldout


def hold_out(
    y: Tensor, system: CameraSystem, lines: int, share: float = HELDOUT_SHARE
) -> HeldOutLines:
    """Hold out pixels of the brightest lines, for a choice of a method; see `draw_good_heldout`."""
    y, system = cut_brightest_lines(zero_bad_pixels(y, system), system, lines)
    return HeldOutLines(y, system, draw_good_heldout(y, system, share))


def cut_brightest_lines(y: Tensor, system: CameraSystem, lines: int) -> tuple[Tensor, CameraSystem]:
    """Cut the brightest lines out of a measurement; all of it where the camera has no parts."""
    first, stop = brightest_lines(y, system, lines)
    axis = part_axis(system)
    if axis is None or stop - first == y.shape[axis]:
        return y, system
    return y.narrow(axis, first, stop - first), system.part(first, stop)


def brightest_lines(y: Tensor, system: LinearSystem, lines: int) -> tuple[int, int]:
    """Return start and stop of the `lines` adjacent lines with the most light."""
    axis = part_axis(system) or -2
    if part_axis(system) is None or y.shape[axis] <= lines:
        return 0, y.shape[axis]
    # Sums over windows as differences of running sums.
    running_sum = y.double().square().sum((0, 1, -3 - axis)).cumsum(0)
    sums = running_sum[lines - 1 :].clone()
    sums[1:] -= running_sum[:-lines]
    first = int(sums.argmax())
    return first, first + lines


@torch.no_grad()
def measure_heldout(
    y: Tensor,
    system: CameraSystem,
    reconstructor: Reconstructor,
    share: float = HELDOUT_SHARE,
) -> HeldOut:
    """Reconstruct once more without some pixels, and measure how well the cube predicts them.

    It uses the brightest third of the lines, at least 32. A camera without parts is reconstructed
    as a whole, which takes as long as the first reconstruction.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        reconstructor: the method whose error is measured.
        share: share of the pixels that is held out, in (0, 0.5].

    Raises:
        ValueError: the share is out of range, or no iteration was finite.
    """
    check_share(share)
    y, axis = zero_bad_pixels(y, system), part_axis(system)
    if axis is not None:
        y, system = cut_brightest_lines(y, system, max(MIN_LINES, int(LINE_SHARE * y.shape[axis])))
    lines = HeldOutLines(y, system, draw_heldout(y.shape[1:], share).to(y.device))
    camera = lines.camera
    # A network that gets statistics does not search for the mask of this camera again.
    statistics = Statistics(lambda: [(zero_bad_pixels(y, camera), camera)])
    solution = reconstructor.run(y, camera, statistics=statistics).checked()
    error = _root_mean_square(lines.errors_of_measurement(solution.measured(system)))
    return HeldOut(float(share), error, y.shape[-2 if axis is None else axis])
