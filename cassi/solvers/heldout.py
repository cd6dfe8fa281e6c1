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
"""Share of the detector pixels that are held out: more pixels give a more
reliable error, fewer pixels change the cube less."""
LINE_SHARE = 1 / 3
"""Share of a scene's lines that are reconstructed again. The second reconstruction takes about this
share of the time of the first."""
MIN_LINES = 32
"""Least number of lines that are reconstructed again, because networks take no fewer."""


@dataclass(frozen=True)
class HeldOut:
    """How well a reconstruction predicts pixels that it did not get.

    Attributes:
        share: share of the pixels that were held out.
        error: ‖(y − Ax)_H‖/‖y_H‖, see `HeldOutLines.errors`; for a batch, the root mean square
            over its samples.
        lines: number of lines that were reconstructed to measure the error.
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
        """The camera without the held-out pixels, for reconstructions."""
        return self.system.weighted(bad_pixels=self.heldout)

    def errors(self, x: Tensor) -> Tensor:
        r"""Return the relative error of each cube at the held-out pixels, `(B,)`.

            ‖(y − Ax)_H‖ / ‖y_H‖,   0 if the held-out pixels of a cube are all zero

        The cubes must be reconstructed with `camera`, which lacks these pixels. A cube that fits
        noise predicts badly, so the error can compare settings of one method. It cannot compare
        different methods.
        """
        return self.errors_of_measurement(self.system(x))

    def errors_of_measurement(self, predicted_y: Tensor) -> Tensor:
        """Return the `errors` of cubes, from their predicted measurements A x."""
        return self._compute_heldout_norm(self._good_y - predicted_y) / self._heldout_y_norm

    def weigh(
        self,
        cubes: Sequence[Tensor],
        shares: Sequence[float],
        prior_weights: Sequence[float],
        trust: float,
    ) -> tuple[Tensor, Tensor]:
        r"""Return the weights w with which `weighted_mean` x(w) predicts the held-out pixels best.

            argmin_w ‖(y − A x(w))_H‖² / ‖(y − A x(v))_H‖² + ‖w − v‖² / t,   Σ w_i = 1

        H are the held-out pixels, v the prior weights and t the trust. If the cubes differ by more
        than their error at these pixels, the pixels decide. Otherwise w stays near v. Held-out
        pixels show only a part of the error of a cube, so t does not grow with their number.

        The second result p is the position of the best prediction on the line from x(w), p = 0, to
        the first cube x_1, p = 1:

            argmin_p ‖(y − A(x(w) + p (x_1 − x(w))))_H‖²

        Above 1/2 the best prediction is nearer to x_1 than to x(w). Noise of y does not change p on
        average, because no cube was fitted to the held-out pixels.

        Args:
            cubes: M cubes `(B, C, H, W)`, all reconstructed without the held-out pixels.
            shares: s of `weighted_mean`, of sum 1.
            prior_weights: v, of sum 1.
            trust: t > 0; a larger t lets w be further from v.

        Returns:
            w `(M, B)`, of sum 1, and p `(B,)`.

        Source: Breiman, "Stacked regressions", Machine Learning 24, 1996.
        """
        heldout = self.heldout.to(cubes[0].device)

        def predict(x: Tensor) -> Tensor:  # (B, N), float64
            return torch.where(heldout, self.system(x), 0).flatten(1).double()

        v = torch.tensor(prior_weights, dtype=torch.float64, device=heldout.device)[:, None]
        target = torch.where(heldout, self._good_y, 0).flatten(1).double()
        residual = target - predict(weighted_mean(cubes, shares, v))
        # A x(w) is linear in the means over the bands. The sum of the weights is 1, so the last
        # weight follows from the others, and M − 1 differences from the last cube are fitted.
        *grey_images, last_image = [x.mean(1, keepdim=True) for x in cubes]
        columns = [predict((image - last_image).expand_as(cubes[0])) for image in grey_images]
        # (B, M − 1, N)
        design = torch.stack(columns, 1) if columns else residual[:, None][:, :0]
        tiny = torch.finfo(torch.float64).tiny
        # The minimised sum is multiplied by ‖(y − A x(v))_H‖², to avoid division by a small number.
        regularization = (residual.square().sum(1) / trust).clamp_min(tiny)
        # ‖w − v‖² as a quadratic form of all weights but the last.
        quadratic = (torch.eye(len(columns)) + 1).to(design)
        gram = design @ design.mT + regularization[:, None, None] * quadratic
        weight_change = torch.linalg.solve_ex(gram, (design @ residual[..., None])[..., 0])[0]
        residual = residual - (weight_change[:, None] @ design)[:, 0]  # of x(w)
        direction = predict(cubes[0]) - target + residual  # A (x_1 − x(w))
        position = (direction * residual).sum(1) / direction.square().sum(1).clamp_min(tiny)
        weight_change = weight_change.T
        return v + torch.cat((weight_change, -weight_change.sum(0, keepdim=True))), position

    def error(self, x: Tensor) -> float:
        """Return the root mean square of the `errors` of a batch of cubes."""
        return _combine_errors(self.errors(x))

    @cached_property
    def _good_y(self) -> Tensor:
        """The measurement without the bad pixels of the camera."""
        return zero_bad_pixels(self.y, self.system)

    @cached_property
    def _heldout_y_norm(self) -> Tensor:
        y_norm = self._compute_heldout_norm(self._good_y)
        return torch.where(y_norm > 0, y_norm, torch.inf)  # dark pixels: the relative error is 0

    def _compute_heldout_norm(self, value: Tensor) -> Tensor:
        """Return the norm of the held-out pixels, `(B,)`, float64."""
        heldout = self.heldout.to(value.device)
        return torch.where(heldout, value, 0).flatten(1).double().norm(dim=1)


def _combine_errors(errors: Tensor) -> float:
    """Return the root mean square of the errors of a batch."""
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

    Args:
        shape: shape of the measurement, `(K, H', W')`.
        share: probability of each pixel, in (0, 0.5].
        seed: seed of the random numbers.

    Raises:
        ValueError: the share is out of range.

    Returns:
        bool, `(1, K, H', W')`, on the CPU.
    """
    check_share(share)
    random = torch.Generator().manual_seed(seed)
    return torch.rand((1, *shape), generator=random) < share


def draw_good_heldout(y: Tensor, system: LinearSystem, share: float = HELDOUT_SHARE) -> Tensor:
    """Draw the pixels that a method holds out to choose its own settings; some are good pixels."""
    heldout = draw_heldout(y.shape[1:], share).to(y.device)
    good_mask = good_pixels(system)
    # The draw has a fixed seed. If a caller measures the held-out error of the method, it has drawn
    # the same pixels, and they are bad pixels here. Then another seed gives good pixels.
    if good_mask is not None and not bool((heldout & good_mask).any()):
        heldout = draw_heldout(y.shape[1:], share, seed=1).to(y.device)
    return heldout


def hold_out(
    y: Tensor, system: CameraSystem, lines: int, share: float = HELDOUT_SHARE
) -> HeldOutLines:
    """Hold out pixels of the brightest lines; see `draw_good_heldout`."""
    y, system = cut_brightest_lines(zero_bad_pixels(y, system), system, lines)
    return HeldOutLines(y, system, draw_good_heldout(y, system, share))


def cut_brightest_lines(y: Tensor, system: CameraSystem, lines: int) -> tuple[Tensor, CameraSystem]:
    """Return the brightest lines and their camera; all lines if the camera cannot be cut."""
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

    The brightest third of the lines is used, at least 32 lines. If the camera cannot be cut, all
    lines are used, and this takes as long as the first reconstruction.

    Args:
        y: measurement `(B, K, H', W')`.
        system: the camera.
        reconstructor: the method whose error is measured.
        share: share of the pixels that are held out, in (0, 0.5].

    Raises:
        ValueError: the share is out of range, or no iteration was finite.
    """
    check_share(share)
    y, axis = zero_bad_pixels(y, system), part_axis(system)
    if axis is not None:
        y, system = cut_brightest_lines(y, system, max(MIN_LINES, int(LINE_SHARE * y.shape[axis])))
    lines = HeldOutLines(y, system, draw_heldout(y.shape[1:], share).to(y.device))
    camera = lines.camera
    # A network that gets statistics does not search again for the mask of this camera.
    statistics = Statistics(lambda: [(zero_bad_pixels(y, camera), camera)])
    solution = reconstructor.run(y, camera, statistics=statistics).checked()
    error = _combine_errors(lines.errors_of_measurement(solution.measured(system)))
    return HeldOut(float(share), error, y.shape[-2 if axis is None else axis])
