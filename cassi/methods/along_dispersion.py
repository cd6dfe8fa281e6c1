"""Cubes that are computed along the dispersion, and read at the bands of the camera."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from typing_extensions import Unpack

from cassi.methods.wrapper import Wrapper
from cassi.solvers import Geometric, LinearSystem, Solution, Solver
from cassi.solvers.base import Along, CallbackWrapper, Options, Reconstructor


@dataclass(frozen=True)
class AlongDispersion(Wrapper):
    """Reconstructs on a grid along the dispersion, and returns the cube at the camera's bands.

    The light of a scene is the same on any grid, so more bands have less each. In units of the
    light of a band, noise of y rises with their number G, and total variation of spectral
    components with its square root. For the same smoothness the final strength of a `Geometric`
    schedule is multiplied by (G/C)^(3/4), C the number of the camera's bands.

    Args:
        method: the reconstructor, of any number of bands.
        grid: a `cassi.systems.grid.Grid`.
    """

    grid: Any

    @property
    def shares_batch(self) -> bool:
        """False: samples end their light elsewhere."""
        return False

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.Reconstructor.run`."""
        grid = self.grid
        if (first := options.get("x0")) is not None:
            options["x0"] = grid.spread(first)
        if (callback := options.get("callback")) is not None:
            options["callback"] = CallbackWrapper(callback, grid.read)
        if (known := options.get("statistics")) is not None:
            options["statistics"] = known.by(grid, grid.camera)
        found = self._suited().run(y, grid.camera(system), **options)
        return replace(found, x=grid.read(found.x), along=Along(found.x, grid))

    def _suited(self) -> Reconstructor:
        """Return the method for as many bands as the grid has."""
        method, ratio = self.method, len(self.grid.offsets) / len(self.grid.named)
        if not isinstance(method, Solver) or not isinstance(method.sigma, Geometric):
            return method
        start, end = method.sigma.start, method.sigma.end
        return replace(method, sigma=Geometric(start, min(start, end * ratio**0.75)))


def inner_of(method: Reconstructor) -> Reconstructor:
    """Return the reconstructor within one along the dispersion; another one itself."""
    return method.method if isinstance(method, AlongDispersion) else method


def around(method: Reconstructor, inner: Reconstructor) -> Reconstructor:
    """Return another reconstructor on the grid of a method, if that has one."""
    return replace(method, method=inner) if isinstance(method, AlongDispersion) else inner
