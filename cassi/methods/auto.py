"""The default: total nuclear variation of spectral components."""

from __future__ import annotations

from typing import Any, Literal

from cassi.priors import TV, Subspace
from cassi.solvers import ADMM, Geometric, Solver


def auto(
    prior: Any = None,
    *,
    iterations: int = 100,
    strength: float = 0.024,
    balance: float = 1.0,
    noise: float | Literal["auto"] = "auto",
    heldout: float = 0.1,
    consistent: bool = True,
    tol: float = 0.0,
) -> Solver:
    """Return the default method: it needs no training, and nothing has to be set.

    ADMM with total nuclear variation in a spectral subspace. The measurement decides the rank and
    the directions of the subspace, how strong the prior stays, and the damping ρ.

    Args:
        prior: in place of total nuclear variation in a subspace.
        iterations: 100 are enough for every camera; fewer are faster and less sharp.
        strength: of the prior at the end, relative to the signal level.
        balance: smooth weak spectral components more (1), or all alike (0); 0 for a scene of one
            spectrum.
        noise: relative to the root mean square of y; "auto" estimates it, 0 trusts the measurement.
        heldout: share of the detector pixels that are held out for early stopping; 0: never.
        consistent: end with data consistency.
        tol: stop when the relative change of the cube falls to this; 0 never stops early.

    Source: Duran et al., "Collaborative total variation", SIAM Journal on Imaging Sciences 2016.
    """
    if prior is None:
        total_variation = TV(weight=1.0, iterations=5, norm="nuclear", warm=True)
        prior = Subspace(prior=total_variation, balance=balance)
    return Solver(
        prior,
        ADMM(rho=0.2, relaxation=1.95),
        iterations=iterations,
        sigma=Geometric(0.7, strength),
        tol=tol,
        noise=noise,
        consistent=consistent,
        heldout=heldout,
    )
