"""Plug-and-play ADMM that starts from a network's cube."""

from __future__ import annotations

from cassi.priors import Subspace
from cassi.solvers import ADMM, Geometric, Prior, Solver
from cassi.solvers.refine import VISIBLE


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
        prior=Subspace(prior=prior, energy=0.0 if noise < VISIBLE else 1.5e-3),
        algorithm=ADMM(rho=0.05, relaxation=1.9),
        iterations=20,
        sigma=Geometric(0.08, 0.04),
        noise=noise,
        consistent=True,
    )
