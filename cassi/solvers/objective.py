"""The objective that an algorithm minimises."""

from typing import cast

from torch import Tensor

from cassi.prior_protocols import ComponentPrior, Prior, is_proximal
from cassi.solvers.base import Algorithm, State
from cassi.solvers.components import Components
from cassi.solvers.linear_system import LinearSystem, Rho


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each sample: `(B, …)` twice → `(B,)`."""
    return (a * b).flatten(1).sum(1)


def half_square(a: Tensor) -> Tensor:
    """Return ½‖a‖² of each sample: `(B, …)` → `(B,)`."""
    return inner_product(a, a) / 2


def data_misfit(x: Tensor, y: Tensor, system: LinearSystem) -> Tensor:
    """Return ½‖Ax − y‖² of each sample: `(B,)`."""
    return half_square(system(x) - y)


def evaluate_objective(
    algorithm: Algorithm,
    prior: Prior,
    state: State | Components,
    y: Tensor,
    system: LinearSystem,
    sigma: float | Tensor,
    rho: Rho,
) -> float | None:
    """Return the objective that algorithm and prior minimise, summed over the samples.

    Returns:
        The sum; None if the algorithm has no objective or the prior is no proximal map.
    """
    if not is_proximal(prior):
        return None
    if isinstance(state, Components):  # the penalty of components needs no cube
        penalty = cast(ComponentPrior, prior).penalty_of(state.components, sigma)
    else:
        penalty = prior.penalty(state.x, sigma)
    value = None if penalty is None else algorithm.objective(state, y, system, penalty, rho)
    return None if value is None else float(value.sum())
