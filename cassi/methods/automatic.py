"""The default method: total nuclear variation of spectral components."""

from typing import Literal

from cassi.priors import TV, Subspace
from cassi.solvers import ADMM, Geometric, Prior, Solver


def auto(
    prior: Prior | None = None,
    *,
    iterations: int = 100,
    strength: float = 0.024,
    balance: float = 1.0,
    noise: float | Literal["auto"] = "auto",
    heldout: float = 0.1,
    consistent: bool = True,
    tol: float = 0.0,
) -> Solver:
    """Return the default method. It needs no training and no settings.

    The method is ADMM with total nuclear variation in a spectral subspace. The measurement
    determines rank and directions of the subspace, the final strength of the prior, and the damping
    ρ.

    Args:
        prior: replaces total nuclear variation in a subspace.
        iterations: 100 are enough for every camera; fewer are faster and less sharp.
        strength: final strength of the prior, relative to the signal level, > 0; higher is
            smoother.
        balance: 1 smooths weak spectral components more, 0 smooths all alike. Set 0 for a scene of
            one spectrum.
        noise: noise level relative to the root mean square of y, >= 0; "auto" estimates it, 0 means
            none.
        heldout: share in [0, 0.5] of the detector pixels that are held out for early stopping; 0
            never stops early.
        consistent: end with a data step, which fits y no closer than the noise.
        tol: stop when the relative change of the cube falls to this; 0 never stops early.

    Returns:
        A `Solver`; `run(y, system).x` is the cube `(B, C, H, W)`.

    Raises:
        ValueError: a number is out of range.

    Source: Duran et al., "Collaborative total variation", SIAM Journal on Imaging Sciences 2016.
    """
    # Iterations, ρ and relaxation were chosen together: docs/development/experiments/
    # early-stopping.md compares 100 iterations with ρ = 0.15 and 125 with ρ = 0.05.
    if prior is None:
        total_variation = TV(weight=1.0, iterations=5, norm="nuclear", warm=True)
        prior = Subspace(prior=total_variation, balance=balance)
    return Solver(
        prior,
        ADMM(rho=0.15, relaxation=1.95),
        iterations=iterations,
        sigma=Geometric(0.7, strength),
        tol=tol,
        noise=noise,
        consistent=consistent,
        heldout=heldout,
    )
