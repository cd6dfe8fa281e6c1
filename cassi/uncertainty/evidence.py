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
    brightest,
    draw_heldout,
    heldout_error,
)
from cassi.solvers.linear_system import seen
from cassi.solvers.statistics import UNSEEN, Statistics
from cassi.uncertainty.motion import Motion, find_motion

_CHANGED = 0.02  # of the measurement: less is no other code


@dataclass(frozen=True)
class Probe:
    """What pixels held out, and noise drawn again, say of a method on the brightest lines.

    Attributes:
        heldout: error of pixels that the method was not given, see `heldout_error`.
        response: how much the cube changes with noise, for each unit of that: both as root mean
            squares. 0 where there is none.
        motion: where the mask seems to lie.
    """

    heldout: float
    response: float
    motion: Motion


@dataclass(frozen=True)
class Evidence:
    """What is known of a reconstruction without the truth.

    Attributes:
        x: cube `(1, C, H, W)`.
        repeated: what the method makes of x itself, less x, `(1, C, H, W)`: an error whose truth is
            known. The method is given x mirrored, through the same camera, so that another part of
            the mask codes every pixel, with the residual of x as noise, its signs redrawn.
        residual: y − Ax, `(1, K, H', W')`.
        heldout: error of detector pixels that the method was not given, see `heldout_error`.
        expected: the same of the mirrored scene, of which the camera's model is right.
        response: how much the cube changes with noise, for each unit of that.
        motion: where the mask seems to lie.
    """

    x: Tensor
    repeated: Tensor
    residual: Tensor
    heldout: float
    expected: float
    response: float = 0.0
    motion: Motion = field(default_factory=Motion)


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
def probe(trial: Trial, noise: float, motion: Motion) -> Probe:
    """Reconstruct a third of the lines without some pixels; where there is noise, twice.

    Args:
        trial: measurement, camera and method.
        noise: root mean square of the residual of the method's cube, in the unit of y.
        motion: where the mask seems to lie.

    Raises:
        ValueError: the method does not fit the camera, or nothing finite comes out.
    """
    system, seed = trial.system, trial.seed
    y, axis = seen(trial.y, system), getattr(system, "part_axis", None)
    size = float(y.square().mean().sqrt())
    if axis is not None:
        y, system = brightest(y, system, max(LEAST, int(LOOKED_AT * y.shape[axis])))
    held = draw_heldout(y.shape[1:], SHARE, seed).to(y.device)
    camera = system.weighted(bad_pixels=held)
    x = trial.run(y, camera)
    response = 0.0
    added = max(noise, motion.change if motion.is_seen else 0.0)
    if added > UNSEEN * size:
        random = torch.Generator().manual_seed(seed + 2)
        noisy = y + added * torch.randn(y.shape, generator=random).to(y)
        response = float((trial.run(noisy, camera) - x).square().mean().sqrt()) / added
    error = float(heldout_error(x, y, system, held).square().mean().sqrt())
    return Probe(error, response, motion)


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
    if probed is None:
        noise = float(residual.square().mean().sqrt())
        probed = probe(trial, noise, find_motion(y, x, system))
    axes = mirror_axes(x, system)
    random = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, residual.shape, generator=random).to(residual) * 2 - 1
    again = system(x.flip(axes)) + residual.flip(axes) * signs
    held = draw_heldout(y.shape[1:], SHARE, seed + 1).to(y.device)
    mirrored = trial.run(again, system.weighted(bad_pixels=held))
    expected = float(heldout_error(mirrored, again, system, held).square().mean().sqrt())
    repeated = mirrored.flip(axes) - x
    known = probed.heldout, expected, probed.response, probed.motion
    return Evidence(x, repeated, residual, *known)


def mirror_axes(x: Tensor, system: Any) -> tuple[int, ...]:
    """Return along which axes a scene is mirrored: across the dispersion, if the mask changes so.

    With a mask that is its own mirror image, nothing would change; then along both.
    """
    across = getattr(system, "part_axis", None) or -2
    y, mirrored = system(x), system(x.flip(across)).flip(across)
    changed = float((y - mirrored).norm()) > _CHANGED * float(y.norm())
    return (across,) if changed else (-2, -1)
