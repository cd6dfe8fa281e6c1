"""The self-supervised method: low rank of groups of similar patches of the scene itself."""

from typing import Literal

from cassi.checks import whole_number
from cassi.methods.automatic import auto
from cassi.methods.blended import Blended
from cassi.methods.noise_threshold import NoiseThreshold
from cassi.methods.restarts import Restarts
from cassi.methods.started import Started
from cassi.methods.stops import TimeLimit
from cassi.priors import NonLocalLowRank, Subspace
from cassi.solvers import ADMM, AboveNoise, Geometric, Prior, Reconstructor, Solver

# docs/development/experiments/self-supervised.md has the measurements behind these numbers.

# First: σ of a first pass that starts from a cube of `auto`. Second: σ of the later passes. A
# network's cube is better, so the first pass after a network takes the second schedule.
FIRST_SIGMA, LATER_SIGMA = Geometric(0.15, 0.03), Geometric(0.08, 0.03)

# A pass keeps the spectral components with at least this energy, relative to the first component.
# First: the strong components, for scenes of few colours and much texture. Second: all components,
# for scenes of many colours. Passes alternate between them.
STRONG_ENERGY, ALL_ENERGY = 2e-4, 0.0

# Share of a network's cube in the result of every pass. For CAVE's `paints` at 30 dB, 0.1 is better
# than 0 and than 0.25.
NETWORK_WEIGHT = 0.1

# Least σ, as a share of the noise in the argument of the prior. Compared with 0.4 at 30 dB, 0.6 is
# better for `paints`, and worse for `cloth`, whose noise is overestimated. Without a limit `paints`
# loses 1.5 dB.
MIN_SIGMA_SHARE = 0.4


def self_supervised(
    prior: Prior | None = None,
    *,
    start: Reconstructor | None = None,
    network: Reconstructor | None = None,
    iterations: int = 200,
    passes: int = 5,
    blend: float = 0.5,
    noise: float | Literal["auto"] = "auto",
    time_limit: float | None = None,
) -> Reconstructor:
    """Return the method that needs the snapshot alone, without training data.

    The method is ADMM with the low rank of groups of similar patches. Passes alternate between the
    strong spectral components and all components. Each pass starts from the result of the pass
    before it, and keeps a share of that cube. If the measurement is noisy, σ stays above a share of
    the noise.

    Args:
        prior: the prior of every pass; replaces groups of similar patches.
        start: makes the first cube; None takes `auto` with the same noise.
        network: makes the first cube in place of `start`. A network's cube is better than the cube
            of another start, so the first pass changes it less, and every result has a tenth of it.
        iterations: number of iterations of all passes together, >= 1.
        passes: number of passes, >= 1; at most one per iteration.
        blend: share of a pass's first cube in its result, in [0, 1).
        noise: noise level relative to the root mean square of y, >= 0; "auto" estimates it.
        time_limit: seconds for all passes together; None: no limit.

    Raises:
        ValueError: a number is out of range.

    Source: Dong et al., "Nonlocal image restoration with bilateral variance estimation", IEEE TIP
    2013; Liu et al., "Rank minimization for snapshot compressive imaging", IEEE TPAMI 2019.
    """
    whole_number("iterations", iterations, 1)
    whole_number("passes", passes, 1)
    count = min(passes, iterations)

    def make_pass(energy: float, sigma: Geometric) -> Reconstructor:
        solver = Solver(
            nonlocal_subspace(energy) if prior is None else prior,
            ADMM(rho=0.05, relaxation=1.9),
            iterations=iterations // count,
            sigma=AboveNoise(sigma, MIN_SIGMA_SHARE),
            noise=noise,
            consistent=True,
        )
        limited_solver = solver if time_limit is None else TimeLimit(solver, time_limit / count)
        return Blended(limited_solver, blend)

    weight, first_sigma = (0.0, FIRST_SIGMA) if network is None else (NETWORK_WEIGHT, LATER_SIGMA)
    pass_methods = [make_pass(STRONG_ENERGY, first_sigma)]
    for index in range(1, count):
        pass_methods.append(make_pass(ALL_ENERGY if index % 2 else STRONG_ENERGY, LATER_SIGMA))
    first = network or start or auto(noise=noise)
    return Started(NoiseThreshold(Restarts(pass_methods, weight)), first)


def nonlocal_subspace(energy: float, *, rank: int = 8, **groups: int) -> Subspace:
    """Return the prior of similar patches of spectral components.

    Args:
        energy: relative energy below which components are dropped; see `Subspace`.
        rank: number of spectral components at the start.
        groups: settings of `NonLocalLowRank` that replace patch 4, stride 3 or matches 24.
    """
    settings = {"patch": 4, "stride": 3, "matches": 24} | groups
    return Subspace(
        prior=NonLocalLowRank(weight=0.6, rank=None, **settings),
        rank=rank,
        energy=energy,
        balance=0.5,
    )
