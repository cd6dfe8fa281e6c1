"""A trained network as it is used: in a precision, on cameras it fits, and refined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cassi.solvers import Solver, Statistics, refine, relative_noise

PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""As Lightning's Trainer has them: what autocast computes in."""


class Inference(nn.Module):
    """Runs a network in evaluation mode and, where asked, makes its cube explain the measurement.

        x = net(y, system),   then the solver from there, then `cassi.solvers.refine(x, y, system)`

    Args:
        network: `net(y, system) -> x`.
        refined: refine the cube.
        solver: is given the noise relative to the root mean square of y, and returns the solver
            that goes on from the cube before it is refined, or None.
        precision: one of `PRECISIONS`.
        check: is given the camera before every run, to refuse one that does not fit.

    Raises:
        ValueError: an unknown precision.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        refined: bool = False,
        solver: Callable[[float], Solver | None] | None = None,
        precision: str = "32-true",
        check: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__()
        if precision not in PRECISIONS:
            raise ValueError(
                f"precision: expected {', '.join(PRECISIONS)}, got {precision!r}; a network's "
                "weights stay float32"
            )
        self.network = network.eval()
        self.refined, self.precision, self.check = refined, precision, check
        self.solver = solver

    @torch.no_grad()
    def forward(self, y: Tensor, system: Any, statistics: Statistics | None = None) -> Tensor:
        """Reconstruct: measurement `(B, K, H', W')` → cube `(B, C, H, W)`, float32.

        Statistics are those of the whole measurement, where y is a part of one.

        Raises:
            ValueError: the camera does not fit the network.
        """
        if self.check is not None:
            self.check(system)
        takes = statistics is not None and getattr(self.network, "takes_statistics", False)
        whole = {"statistics": statistics} if takes else {}
        dtype = PRECISIONS[self.precision]
        with torch.autocast(y.device.type, dtype, enabled=dtype is not None):
            x: Tensor = self.network(y, system, **whole)
        x = x.float()
        # A cube that is not finite is for the caller to report.
        if not (self.refined and bool(x.isfinite().all())):
            return x
        noise = relative_noise(y, system, getattr(self.network, "noise", "auto"), statistics)
        solver = None if self.solver is None else self.solver(float(noise.max()))
        if solver is not None:
            x = solver.run(y, system, x0=x, statistics=statistics).x
        return refine(x, y, system, noise=noise, statistics=statistics)
