"""What a method shows of its own errors: the scene it found, seen mirrored and lost again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cassi.solvers.base import Reconstructor
from cassi.solvers.heldout import (
    LEAST,
    LOOKED_AT,
    SHARE,
    brightest_lines,
    draw_heldout,
    heldout_error,
)
from cassi.solvers.linear_system import part_axis, seen
from cassi.solvers.statistics import UNSEEN, Statistics
from cassi.uncertainty.mask_shift import Motion, find_motion, measure_moved

_CHANGED = 0.02  # of the measurement: less is no other code


@dataclass(frozen=True)
class Probe:
    """What pixels held out, and noise drawn again, say of a method on the brightest lines.

    Attributes:
        heldout: error of pixels that the method was not given, see `heldout_error`.
        expected: the same of the mirrored scene, on the same lines.
        response: how much the cube changes with noise, for each unit of that: both as root mean
            squares. 0 where there is none.
        motion: where the mask seems to lie.
    """

    heldout: float
    expected: float
    response: float = 0.0
    motion: Motion = field(default_factory=Motion)


@dataclass(frozen=True)
class Evidence:
    """What is known of a reconstruction without the truth.

    Attributes:
        x: cube `(1, C, H, W)`.
        repeated: what the method makes of x itself, less x, `(1, C, H, W)`: an error whose truth is
            known. The method is given x mirrored, through the same camera, so that another part of
            the mask codes every pixel, with the residual of x as noise, its signs redrawn. Where
            the mask seems to lie elsewhere, that mask codes it, and the method is not told.
        residual: y − Ax, `(1, K, H', W')`.
        probed: what the brightest lines say.
    """

    x: Tensor
    repeated: Tensor
    residual: Tensor
    probed: Probe


@dataclass(frozen=True)
class Trial:
    """A measurement, its camera, and the method whose cube of it is judged.

    Attributes:
        y: measurement `(1, K, H', W')`.
        system: the camera.
        reconstructor: the method.
        statistics: of the whole measurement, those that the cube was made with: what the method
            found out about it then is not looked for again.
        seed: of what is drawn.
    """

    y: Tensor
    system: Any
    reconstructor: Reconstructor
    statistics: Statistics | None = None
    seed: int = 0

    def run(self, y: Tensor, system: Any) -> Tensor:
        """Return what the method makes of another measurement through another camera.

        Raises:
            ValueError: the method does not fit the camera, or nothing finite comes out.
        """
        torch.manual_seed(self.seed)
        return self.reconstructor.run(y, system, statistics=self.statistics).checked().x


@torch.no_grad()
def gather(trial: Trial, x: Tensor, probed: Probe | None = None) -> Evidence:
    """Look at a reconstruction: one more of the whole scene, and one or two of a third of it.

    Args:
        trial: measurement, camera and method.
        x: what the method made of them, `(1, C, H, W)`.
        probed: of the whole scene, where y is a part of one.

    Raises:
        ValueError: the method does not fit the camera, or nothing finite comes out.
    """
    system, seed = trial.system, trial.seed
    y = seen(trial.y, system)
    residual = y - system(x)
    motion = find_motion(y, x, system) if probed is None else probed.motion
    axes = mirror_axes(x, system)
    random = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, residual.shape, generator=random).to(residual) * 2 - 1
    again = measure_moved(x.flip(axes), system, motion) + residual.flip(axes) * signs
    held = draw_heldout(y.shape[1:], SHARE, seed + 1).to(y.device)
    mirrored = trial.run(again, system.weighted(bad_pixels=held))
    if probed is None:
        axis = part_axis(system) or -2
        count = y.shape[axis]
        first, stop = brightest_lines(y, system, max(LEAST, int(LOOKED_AT * count)))
        noise = float(residual.square().mean().sqrt())
        heldout, response = _probe(trial, (first, stop), noise, motion)
        lines = (count - stop, count - first) if axis in axes else (first, stop)
        part, *values = _cut(system, lines, mirrored, again, held)
        expected = heldout_error(values[0], values[1], part, values[2])
        probed = Probe(heldout, float(expected.square().mean().sqrt()), response, motion)
    return Evidence(x, mirrored.flip(axes) - x, residual, probed)


def _probe(
    trial: Trial, lines: tuple[int, int], noise: float, motion: Motion
) -> tuple[float, float]:
    """Reconstruct some lines without some pixels; where there is noise, twice.

    Args:
        trial: measurement, camera and method.
        lines: the first, and the one behind the last.
        noise: root mean square of the residual of the method's cube, in the unit of y.
        motion: where the mask seems to lie.

    Returns:
        `heldout` and `response` of `Probe`.
    """
    whole = seen(trial.y, trial.system)
    size = float(whole.square().mean().sqrt())
    system, y = _cut(trial.system, lines, whole)
    held = draw_heldout(y.shape[1:], SHARE, trial.seed).to(y.device)
    camera = system.weighted(bad_pixels=held)
    x = trial.run(y, camera)
    response = 0.0
    added = max(noise, motion.change if motion.is_seen else 0.0)
    if added > UNSEEN * size:
        random = torch.Generator().manual_seed(trial.seed + 2)
        noisy = y + added * torch.randn(y.shape, generator=random).to(y)
        response = float((trial.run(noisy, camera) - x).square().mean().sqrt()) / added
    error = heldout_error(x, y, system, held)
    return float(error.square().mean().sqrt()), response


def _cut(system: Any, lines: tuple[int, int], *values: Tensor) -> tuple[Any, ...]:
    """Return the camera of some lines, and those lines of the values; all where none can be cut."""
    axis = part_axis(system)
    if axis is None:
        return system, *values
    first, stop = lines
    return system.part(first, stop), *(value.narrow(axis, first, stop - first) for value in values)


def mirror_axes(x: Tensor, system: Any) -> tuple[int, ...]:
    """Return along which axes a scene is mirrored: across the dispersion, if the mask changes so.

    With a mask that is its own mirror image, nothing would change; then along both.
    """
    across = part_axis(system) or -2
    y, mirrored = system(x), system(x.flip(across)).flip(across)
    changed = float((y - mirrored).norm()) > _CHANGED * float(y.norm())
    return (across,) if changed else (-2, -1)
