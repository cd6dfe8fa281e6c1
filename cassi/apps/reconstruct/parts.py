"""Parts of a measurement and its camera, which know of the whole."""

from collections.abc import Iterator

import torch
from torch import Tensor

from cassi.apps.memory import peak_of
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers import Statistics
from cassi.solvers.base import Reconstructor
from cassi.solvers.heldout import brightest
from cassi.solvers.linear_system import seen
from cassi.systems import System
from cassi.systems.grid import measuring
from cassi.uncertainty import estimate
from cassi.uncertainty.bootstrap import Probe, Trial, bootstrap

ESTIMATES = ("level", "noise", "gain")
"""Of the whole scene, for every block."""
_READ = 64  # rows at a time, for what is estimated from the whole measurement; a multiple of 16
_PROBED = 96  # rows of which error bars ask what they must know of the whole scene
_MEASURED = 32  # rows of the strip on which memory is measured


class Parts:
    """Cuts a measurement and its camera into parts, which one reconstructor recovers.

    ValueError where the camera mixes rows and columns.
    """

    def __init__(self, snapshot: Snapshot, reconstructor: Reconstructor) -> None:
        self.snapshot, self.reconstructor = snapshot, reconstructor
        self.system, self.y = snapshot.camera.system, snapshot.y
        if self.system.part_axis is None:
            self.system.part(0, 1)  # refuses, and says why
        self.axis: int = -2 if self.system.part_axis is None else self.system.part_axis
        self.length = self.system.cube_shape[self.axis]
        self.statistics = Statistics(self._all, self.axis)

    def part(self, start: int, stop: int) -> tuple[Tensor, System]:
        """Return the measurement of lines start to stop, and their camera."""
        y = self.y.narrow(self.axis, start, stop - start).contiguous()
        return y, self.system.part(start, stop)

    def place(self, start: int, stop: int) -> tuple[slice, slice]:
        """Return rows and columns of lines start to stop."""
        lines, rest = slice(start, stop), slice(None)
        return (lines, rest) if self.axis == -2 else (rest, lines)

    def misfit(self, x: Tensor, start: int) -> float:
        """Return ‖y − Ax‖² of the lines of a cube `(C, H', W')` that begin at start."""
        y, camera = self.part(start, start + x.shape[self.axis])
        camera = measuring(camera, self.reconstructor)
        return float((y - camera(x[None])).double().square().sum())

    def probe(self, lines: int) -> Probe:
        """Ask the brightest lines what error bars must know of the whole scene."""
        y, camera = brightest(seen(self.y, self.system), self.system, min(lines, _PROBED))
        assert isinstance(camera, System)  # a part of ours
        solution = self.reconstructor.run(y, camera, statistics=self.statistics).checked()
        trial = Trial(
            y,
            camera,
            self.reconstructor,
            self.statistics,
            wide=self.snapshot.is_raw,
            along=solution.along,
        )
        return bootstrap(trial, solution.x).probed

    def bytes_per_line(self, uncertainty: bool = False) -> float:
        """Measure the memory of a strip, whose working set grows with its lines."""
        self.statistics.estimate(*ESTIMATES)  # now: of the scene, not of the strip
        lines = min(_MEASURED, self.length)
        y, camera = self.part(0, lines)

        def run() -> None:
            x = self.reconstructor.run(y, camera, statistics=self.statistics).x
            if uncertainty:
                estimate(
                    y,
                    camera,
                    self.reconstructor,
                    x,
                    probed=Probe(0.0, 0.0),
                    statistics=self.statistics,
                )

        return peak_of(run) / lines

    def _all(self) -> Iterator[tuple[Tensor, System]]:
        for start in range(0, self.length, _READ):
            stop = min(start + _READ, self.length)
            with torch.no_grad():
                yield self.y.narrow(self.axis, start, stop - start), self.system.part(start, stop)
