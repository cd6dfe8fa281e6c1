"""The method that fits an untrained network to a snapshot."""

from cassi.methods.stops import TimeLimit
from cassi.solvers import Algorithm, Prior, Reconstructor, Solver


def untrained(
    prior: Prior,
    *,
    algorithm: Algorithm,
    iterations: int = 6000,
    sigma: float = 0.0,
    time_limit: float | None = None,
) -> Reconstructor:
    """Return the method that fits the weights of an untrained network to the measurement.

    Args:
        prior: smooths the cube of the network if σ > 0.
        algorithm: `cassi.solvers.Untrained`, with its network.
        iterations: at most this many steps of Adam.
        sigma: strength of the prior, relative to the signal level, >= 0.
        time_limit: seconds for the run; None: no limit.

    Raises:
        ValueError: a number is out of range.
    """
    solver = Solver(prior, algorithm, iterations=iterations, sigma=sigma)
    return solver if time_limit is None else TimeLimit(solver, time_limit)
