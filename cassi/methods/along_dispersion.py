"""Reconstruction on a spectral grid, interpolated to the bands of the camera."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from typing_extensions import Unpack

from cassi.methods.wrapper import ReconstructorWrapper
from cassi.solvers import Geometric, LinearSystem, Solution, Solver
from cassi.solvers.base import CallbackWrapper, GridSolution, Options, Reconstructor


@dataclass(frozen=True)
class AlongDispersion(ReconstructorWrapper):
    """Reconstruct on a spectral grid, and return the cube at the camera's bands.

    The grid has G bands and the camera has C bands. The light of a scene is the same on any grid,
    so a band of a finer grid has less light. In units of the light of a band, the noise of y grows
    like G, and the total variation of spectral components like √G. To keep the smoothness of the
    result, the final strength of a `Geometric` schedule is multiplied by (G/C)^(3/4), but it stays
    at or below the first strength.

    Args:
        method: a reconstructor for any number of bands.
        grid: a `cassi.systems.grid.SpectralGrid`.
    """

    grid: Any

    @property
    def shares_batch(self) -> bool:
        """False: the ends of the grid depend on the snapshot."""
        return False

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        grid = self.grid
        if (x0 := options.get("x0")) is not None:
            options["x0"] = grid.spread(x0)
        if (callback := options.get("callback")) is not None:
            options["callback"] = CallbackWrapper(callback, grid.read)
        if (statistics := options.get("statistics")) is not None:
            options["statistics"] = statistics.for_camera(grid, grid.camera)
        solution = self._adapt_method().run(y, grid.camera(system), **options)
        return replace(solution, x=grid.read(solution.x), along=GridSolution(solution.x, grid))

    def _adapt_method(self) -> Reconstructor:
        """Return the method with the final strength for the grid's number of bands."""
        method, ratio = self.method, len(self.grid.offsets) / len(self.grid.band_offsets)
        if not isinstance(method, Solver) or not isinstance(method.sigma, Geometric):
            return method
        start, end = method.sigma.start, method.sigma.end
        return replace(method, sigma=Geometric(start, min(start, end * ratio**0.75)))


def without_grid(method: Reconstructor) -> Reconstructor:
    """Return the method inside an `AlongDispersion`, or any other reconstructor as it is."""
    return method.method if isinstance(method, AlongDispersion) else method


def with_grid_of(method: Reconstructor, replacement: Reconstructor) -> Reconstructor:
    """Return the replacement for a method, on the spectral grid of the method if it has a grid."""
    if isinstance(method, AlongDispersion):
        return replace(method, method=replacement)
    return replacement
