"""Plug-and-play ADMM that starts from a network's cube: a denoiser, then patches of the scene."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.methods.self_supervision import nonlocal_subspace
from cassi.priors import Subspace
from cassi.solvers import ADMM, AboveNoise, Geometric, Prior, Solver
from cassi.solvers.refinement import VISIBLE


@dataclass(frozen=True)
class InTurn:
    """A denoiser that sees mirrored images, in turn.

        prior(x, σ) = M p(M x, σ)

    Of four calls M mirrors nothing in the first, columns in the second, rows in the third, and both
    in the fourth. The errors of a denoising network are others on a mirrored image, so that they
    average out over the iterations.

    Args:
        prior: p, of images `(B, R, H, W)`.

    Source: Coifman, Donoho, "Translation-invariant de-noising", 1995, for the idea (cycle
    spinning).
    """

    prior: Prior

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        """Apply the prior as the first call of a run does."""
        return self.begin()(x, sigma)

    def begin(self) -> _Turns:
        """Return the prior of one run, which counts its calls."""
        return _Turns(self.prior)


class _Turns:
    """One run of InTurn. What a call mirrors is a tensor: a recording keeps no count."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.memory: Sequence[Tensor] = ()

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        if not self.memory:
            both = list(itertools.product((False, True), repeat=2))
            self.memory = (torch.tensor(both, device=x.device),)
        turns = self.memory[0]
        self.memory = (turns.roll(-1, 0),)
        return _mirrored(self.prior(_mirrored(x, turns[0]), sigma), turns[0])


def _mirrored(x: Tensor, axes: Tensor) -> Tensor:
    # Half the time that indices take.
    for axis, mirrored in zip((-2, -1), axes, strict=True):
        x = torch.where(mirrored, x.flip(axis), x)
    return x


def refining(noise: float, prior: Prior) -> Solver:
    """Return the method that refines a network's cube x, by `run(…, x0=x)`.

    It works on components of the scene's spectral subspace. With a clean measurement all of them
    stay: the first iteration smooths weak ones almost to zero, but they belong to the network's
    cube. With a noisy measurement weak components are dropped.

    Args:
        noise: relative to the root mean square of y, >= 0.
        prior: of the components.
    """
    return Solver(
        prior=Subspace(prior=prior, energy=0.0 if noise < VISIBLE else 1.5e-3, settle=4),
        algorithm=ADMM(rho=0.05, relaxation=1.9),
        iterations=20,
        sigma=Geometric(0.08, 0.04),
        noise=noise,
        consistent=True,
    )


def nonlocal_refining(noise: float) -> Solver:
    """Return the method that goes on from a refined cube x with patches of the scene itself.

    As a pass of `self_supervised`, with smaller groups that are found once. Its errors are others
    than those of a denoising network, so that the mean of both cubes has less of them.

    Args:
        noise: relative to the root mean square of y, >= 0.
    """
    count = 36
    groups = nonlocal_subspace(5e-5, rank=6, stride=4, matches=16, radius=5, refresh=count)
    return Solver(
        replace(groups, settle=2),  # the cube is good from the start
        ADMM(rho=0.05, relaxation=1.9),
        iterations=count,
        sigma=AboveNoise(Geometric(0.06, 0.03), 0.6),
        noise=noise,
        consistent=True,
    )
