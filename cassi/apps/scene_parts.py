"""A scene in parts: its measurement and the cameras that see them."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from cassi.apps.identity import hash_files
from cassi.apps.inputs import Inputs
from cassi.apps.peak import peak_of
from cassi.solvers import Statistics
from cassi.systems import System

_READ = 64  # rows at a time, for what is estimated from the whole measurement; a multiple of 16
_PROBE = 32  # rows of the strip on which memory is measured
_WITHOUT_INFLUENCE = ("device", "threads", "paths", "output")


class SceneParts:
    """Cuts a measurement and its camera into parts, with the statistics of the whole.

    Args:
        inputs: of the whole scene.

    Raises:
        ValueError: the camera mixes rows and columns.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.system, self.y = inputs.system, inputs.measurement
        if self.system.part_axis is None:
            self.system.part(0, 1)  # refuses, and says why
        self.axis: int = -2 if self.system.part_axis is None else self.system.part_axis
        self.length = self.system.cube_shape[self.axis]
        self.statistics = Statistics.of_parts(self._all, self.axis)

    def part(self, start: int, stop: int) -> tuple[Tensor, System]:
        """Return the measurement of lines start to stop, and their camera."""
        y = self.y.narrow(self.axis, start, stop - start).contiguous()
        return y, self.system.part(start, stop)

    def misfit(self, x: Tensor, start: int) -> float:
        """Return ‖y − Ax‖² of the lines of a cube `(C, H', W')` that begin at start."""
        y, camera = self.part(start, start + x.shape[self.axis])
        return float((y - camera(x[None])).double().square().sum())

    def bytes_per_line(self, solver: Any) -> float:
        """Measure what a solver needs: on a strip, whose working set grows with its lines."""
        for name in ("level", "noise", "gain"):
            getattr(self.statistics, name)  # now: it is computed once and not in every block
        lines = min(_PROBE, self.length)
        y, camera = self.part(0, lines)
        settings = {"callback": lambda *_: None, "statistics": self.statistics}
        return peak_of(lambda: solver.run(y, camera, **settings)) / lines

    def identity(self, config: DictConfig) -> str:
        """Return what tells this reconstruction from any other: of config and content."""
        node = OmegaConf.to_container(config, resolve=True)
        assert isinstance(node, dict)
        kept = {key: value for key, value in node.items() if key not in _WITHOUT_INFLUENCE}
        total = hashlib.sha256(hash_files(kept).encode())
        for value in (self.y, *self.system.state_dict().values()):
            total.update(value.detach().cpu().contiguous().numpy().data)
        return total.hexdigest()

    def _all(self) -> Any:
        for start in range(0, self.length, _READ):
            stop = min(start + _READ, self.length)
            with torch.no_grad():
                yield self.y.narrow(self.axis, start, stop - start), self.system.part(start, stop)
