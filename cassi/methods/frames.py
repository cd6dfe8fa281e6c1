"""The method for video snapshots: the bands are frames, and nothing is dispersed."""

from typing import Literal

from cassi.checks import whole_number
from cassi.methods.automatic import auto
from cassi.methods.blended import Blended
from cassi.methods.restarts import Restarts
from cassi.methods.started import Started
from cassi.priors import TV, MovingPatches, NonLocalLowRank
from cassi.solvers import ADMM, GAP, Geometric, Prior, Reconstructor, Solver

PASS = 20
"""Iterations of a pass with patches that are followed."""


def video(
    prior: Prior | None = None,
    *,
    iterations: int = 30,
    passes: int = 0,
    noise: float | Literal["auto"] = "auto",
) -> Reconstructor:
    """Return the method for video snapshots. It needs no training.

    ADMM with the low rank of groups of similar patches, which starts from total variation. First a
    patch holds the same place in all frames. Then, in further passes of 20 iterations, patches are
    followed from frame to frame (`cassi.priors.MovingPatches`): better, and slower. Each pass
    starts from the result of the one before it, and keeps half of that.

    Args:
        prior: replaces groups of similar patches in the first iterations.
        iterations: with patches of all frames, >= 1.
        passes: with patches that are followed, >= 0; 4 are enough.
        noise: relative to the root mean square of y, >= 0; "auto" estimates it.

    Raises:
        ValueError: a number is out of range.

    Source: Liu, Yuan, Suo, Brady, Dai, "Rank minimization for snapshot compressive imaging"
    (DeSCI), TPAMI 41(12), 2019.
    """
    whole_number("iterations", iterations, 1)
    whole_number("passes", passes, 0)
    start = Solver(TV(), GAP(), iterations=60, sigma=Geometric(0.4, 0.1), noise=noise)
    still = Solver(
        NonLocalLowRank(weight=0.6, stride=3, rank=None) if prior is None else prior,
        ADMM(rho=0.1, relaxation=1.8),
        iterations=iterations,
        sigma=Geometric(0.2, 0.03),
        noise=noise,
    )
    moving = Solver(
        MovingPatches(),
        ADMM(rho=0.05, relaxation=1.6),
        iterations=PASS,
        sigma=Geometric(0.06, 0.02),
        noise=noise,
    )
    later = [Blended(moving, 0.5)] * max(0, passes - 1)
    return Started(Restarts([still, *([moving] if passes else []), *later]), start)


def for_frames(method: Reconstructor) -> Reconstructor:
    """Return `video` in place of `auto` as it is, told the same noise; any other method as it is.

    `auto` describes spectra by few components, and frames that move are not like that.
    """
    if isinstance(method, Solver) and method == auto(noise=method.noise):
        return video(noise=method.noise)
    return method
