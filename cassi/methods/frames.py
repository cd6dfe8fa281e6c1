"""The method for video snapshots: the bands are frames, and nothing is dispersed."""

from typing import Literal

from cassi.checks import whole_number
from cassi.methods.automatic import auto
from cassi.methods.blended import Blended
from cassi.methods.restarts import Restarts
from cassi.methods.started import Started
from cassi.priors import TV, MovingPatches, NonLocalLowRank
from cassi.solvers import ADMM, GAP, Geometric, Prior, Reconstructor, Solver

PASS_ITERATIONS = 20
"""Iterations of a pass with patches that are followed from frame to frame."""


def video(
    prior: Prior | None = None,
    *,
    iterations: int = 30,
    passes: int = 0,
    noise: float | Literal["auto"] = "auto",
) -> Reconstructor:
    """Return the method for video snapshots. It needs no training.

    The method is ADMM with the low rank of groups of similar patches. It starts from the cube of
    GAP with total variation. In the first iterations a patch is at the same position in all frames.
    In further passes of 20 iterations, patches follow objects that move from frame to frame
    (`cassi.priors.MovingPatches`). These passes give better cubes and take longer. Each pass starts
    from the result of the pass before it. From the second pass with moving patches on, the result
    of a pass is the mean of its first cube and its last cube.

    Args:
        prior: replaces groups of similar patches in the first iterations.
        iterations: number of iterations with patches through all frames, >= 1.
        passes: number of passes with moving patches, >= 0; 4 are enough.
        noise: noise level relative to the root mean square of y, >= 0; "auto" estimates it.

    Raises:
        ValueError: a number is out of range.

    Source: Liu, Yuan, Suo, Brady, Dai, "Rank minimization for snapshot compressive imaging"
    (DeSCI), TPAMI 41(12), 2019.
    """
    whole_number("iterations", iterations, 1)
    whole_number("passes", passes, 0)
    start = Solver(TV(), GAP(), iterations=60, sigma=Geometric(0.4, 0.1), noise=noise)
    still_patches = Solver(
        NonLocalLowRank(weight=0.6, stride=3, rank=None) if prior is None else prior,
        ADMM(rho=0.1, relaxation=1.8),
        iterations=iterations,
        sigma=Geometric(0.2, 0.03),
        noise=noise,
    )
    moving_patches = Solver(
        MovingPatches(),
        ADMM(rho=0.05, relaxation=1.6),
        iterations=PASS_ITERATIONS,
        sigma=Geometric(0.06, 0.02),
        noise=noise,
    )
    # Still patches give worse cubes, so the first pass with moving patches keeps nothing of them.
    first_pass = [moving_patches] if passes else []
    later_passes = [Blended(moving_patches, 0.5)] * max(0, passes - 1)
    return Started(Restarts([still_patches, *first_pass, *later_passes]), start)


def for_frames(method: Reconstructor) -> Reconstructor:
    """Replace an unchanged `auto` by `video` with the same noise; return other methods as they are.

    `auto` assumes that the values of a pixel over the bands are mixtures of a few spectra. The
    values of a moving scene over the frames are not.
    """
    if isinstance(method, Solver) and method == auto(noise=method.noise):
        return video(noise=method.noise)
    return method
