"""Cut a measurement and its camera into parts that share the statistics of the whole."""

from collections.abc import Iterator

import torch
from torch import Tensor

from cassi.apps.memory import peak_of
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers import Statistics
from cassi.solvers.base import Reconstructor
from cassi.solvers.heldout import cut_brightest_lines
from cassi.solvers.linear_system import zero_bad_pixels
from cassi.systems import System
from cassi.systems.grid import measuring_camera
from cassi.uncertainty import estimate
from cassi.uncertainty.bootstrap import Probe, Trial, bootstrap

ESTIMATES = ("level", "noise", "gain")
"""Statistics that are estimated once, from the whole scene, and used in every block."""
# Rows that are read at a time for these statistics: more rows take more memory, fewer take longer.
_STATISTICS_ROWS = 64
# Error bars estimate the mask's shift and the held-out error from at most this many rows, the
# brightest ones. More rows make the estimates surer and take longer.
_MAX_PROBE_ROWS = 96
# Rows of the strip on which memory is measured. Some networks need 32 rows.
_MEMORY_STRIP_ROWS = 32


class Parts:
    """Cuts a measurement and its camera into parts, which one reconstructor recovers.

    A line is a row of the scene. If the dispersion is vertical (axis −2), a line is a column.

    Attributes:
        axis: axis of the cube along which the lines are counted, -2 or -1.
        length: number of lines.
        statistics: statistics of the whole measurement, which all parts share.

    Raises:
        ValueError: the camera mixes lines, so it cannot be cut into parts.
    """

    def __init__(self, snapshot: Snapshot, reconstructor: Reconstructor) -> None:
        self.snapshot, self.reconstructor = snapshot, reconstructor
        self.system, self.y = snapshot.camera.system, snapshot.y
        if self.system.part_axis is None:
            self.system.part(0, 1)  # raises the camera's own message
        self.axis: int = -2 if self.system.part_axis is None else self.system.part_axis
        self.length = self.system.cube_shape[self.axis]
        self.statistics = Statistics(self._read_parts, self.axis)

    def part(self, start: int, stop: int) -> tuple[Tensor, System]:
        """Return the measurement `(1, K, H', W')` of lines start to stop, and their camera."""
        y = self.y.narrow(self.axis, start, stop - start).contiguous()
        return y, self.system.part(start, stop)

    def place(self, start: int, stop: int) -> tuple[slice, slice]:
        """Return the slices of rows and columns that lines start to stop take in the cube."""
        lines, all_lines = slice(start, stop), slice(None)
        return (lines, all_lines) if self.axis == -2 else (all_lines, lines)

    def squared_residual(self, x: Tensor, start: int) -> float:
        """Return ‖y − Ax‖² for the lines of a cube `(C, H', W')` that begin at start."""
        y, camera = self.part(start, start + x.shape[self.axis])
        camera = measuring_camera(camera, self.reconstructor)
        return float((y - camera(x[None])).double().square().sum())

    def probe(self, lines: int) -> Probe:
        """Estimate the numbers that the error bars of all blocks need, from the brightest lines."""
        y, camera = cut_brightest_lines(
            zero_bad_pixels(self.y, self.system), self.system, min(lines, _MAX_PROBE_ROWS)
        )
        assert isinstance(camera, System)  # `cut_brightest_lines` is typed for any camera
        solution = self.reconstructor.run(y, camera, statistics=self.statistics).checked()
        trial = Trial(
            y,
            camera,
            self.reconstructor,
            self.statistics,
            is_broadband=self.snapshot.is_raw,
            grid_cube=solution.along,
        )
        return bootstrap(trial, solution.x).probe

    def bytes_per_line(self, uncertainty: bool = False) -> float:
        """Measure the bytes that a reconstruction takes for each line, with or without σ."""
        # Estimated now, from the whole scene. The run below would estimate them from the strip.
        self.statistics.estimate(*ESTIMATES)
        lines = min(_MEMORY_STRIP_ROWS, self.length)
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

    def _read_parts(self) -> Iterator[tuple[Tensor, System]]:
        for start in range(0, self.length, _STATISTICS_ROWS):
            stop = min(start + _STATISTICS_ROWS, self.length)
            with torch.no_grad():
                yield self.y.narrow(self.axis, start, stop - start), self.system.part(start, stop)
