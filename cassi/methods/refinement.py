"""Methods that refine a network's cube: ADMM with a denoiser, then with similar patches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.methods.self_supervision import nonlocal_subspace
from cassi.priors import Subspace
from cassi.solvers import ADMM, AboveNoise, Geometric, Prior, Solver
from cassi.solvers.refinement import MIN_VISIBLE_NOISE


@dataclass(frozen=True)
class MirroringDenoiser:
    """A denoiser of mirrored images. Each call mirrors the images in another way.

        prior(x, σ) = M p(M x, σ)

    M changes from call to call in a cycle of four: it mirrors nothing, the columns, the rows, and
    both. A denoising network makes other errors on a mirrored image, so the errors average out over
    the iterations.

    Args:
        prior: p, of images `(B, R, H, W)`.

    Source: Coifman, Donoho, "Translation-invariant de-noising", 1995, for the idea (cycle
    spinning).
    """

    prior: Prior

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        """Apply the prior like the first call of a run, which mirrors nothing."""
        return self.begin()(x, sigma)

    def begin(self) -> _MirroringRun:
        """Return the prior of one run, which mirrors in another way in each call."""
        return _MirroringRun(self.prior)


class _MirroringRun:
    """The prior of one run of `MirroringDenoiser`."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.memory: Sequence[Tensor] = ()

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        # The cycle is a tensor that rolls by one row per call. A Python counter would be constant
        # in a CUDA graph of the call.
        if not self.memory:
            cycle = list(itertools.product((False, True), repeat=2))
            self.memory = (torch.tensor(cycle, device=x.device),)
        cycle_rows = self.memory[0]
        self.memory = (cycle_rows.roll(-1, 0),)
        return _mirror(self.prior(_mirror(x, cycle_rows[0]), sigma), cycle_rows[0])


def _mirror(x: Tensor, is_mirrored: Tensor) -> Tensor:
    """Mirror rows and columns if the two booleans are true; the host reads them on a CPU only."""
    if x.is_cpu:
        axes = [axis for axis, flag in zip((-2, -1), is_mirrored.tolist(), strict=True) if flag]
        return x.flip(axes) if axes else x
    # An index of mirrored positions would take twice the time.
    for axis, is_axis_mirrored in zip((-2, -1), is_mirrored, strict=True):
        x = torch.where(is_axis_mirrored, x.flip(axis), x)
    return x


def refining(noise: float, prior: Prior) -> Solver:
    """Return the method that refines a network's cube x, by `run(…, x0=x)`.

    The method works on components of the scene's spectral subspace. Without noise it keeps all
    components: the first iteration smooths weak components almost to zero, but they are a part of
    the network's cube. With noise it drops weak components.

    Args:
        noise: noise level relative to the root mean square of y, >= 0.
        prior: the prior of the components.
    """
    # docs/development/experiments/pretrained.md compares numbers of iterations: 24 in place of 20
    # lose 1.1 dB on smooth gradients.
    return Solver(
        prior=Subspace(prior=prior, energy=0.0 if noise < MIN_VISIBLE_NOISE else 1.5e-3, settle=4),
        algorithm=ADMM(rho=0.05, relaxation=1.9),
        iterations=20,
        sigma=Geometric(0.08, 0.04),
        noise=noise,
        consistent=True,
    )


def nonlocal_refining(noise: float) -> Solver:
    """Return the method that refines the result of `refining` with similar patches of the scene.

    The method is a pass of `self_supervised` with smaller groups, which are found once. Its errors
    differ from the errors of a denoising network, so the mean of both cubes has smaller errors.

    Args:
        noise: noise level relative to the root mean square of y, >= 0.
    """
    count = 36
    groups = nonlocal_subspace(5e-5, rank=6, stride=4, matches=16, radius=5, refresh=count)
    return Solver(
        replace(groups, settle=2),  # the first cube is good, and so is its basis
        ADMM(rho=0.05, relaxation=1.9),
        iterations=count,
        # Of 0.4, 0.6 and 0.8 of the noise, 0.6 is best at 30 dB (experiments/pretrained.md).
        sigma=AboveNoise(Geometric(0.06, 0.03), 0.6),
        noise=noise,
        consistent=True,
    )
