"""A trained network as it is used: a reconstructor in a precision, on cameras it fits, refined."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.models.registry import Card
from cassi.solvers import Callback, Solution, Solver, Statistics, refine, relative_noise
from cassi.solvers.function import one_iteration
from cassi.solvers.heldout import brightest, draw_seen, heldout_error
from cassi.solvers.linear_system import seen
from cassi.solvers.refine import VISIBLE
from cassi.solvers.statistics import UNSEEN
from cassi.solvers.strength import LINES, MISFIT, TOLERANCE

PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""As Lightning's Trainer has them: what autocast computes in."""
FACTORS = (1.0, 2.0, 4.0, 8.0)
"""Of the noise that is seen, to be tried on pixels held out."""

Choose = Callable[[float], Solver | None]
"""The noise relative to the root mean square of y → the solver that goes on from the cube."""


@dataclass(frozen=True)
class Shipped:
    """What is known of a network that comes with its weights: its attribute `shipped`.

    Attributes:
        card: what its file says.
        check: refuses a camera that it does not fit.
        solver: chooses the solver that refines; or None.
        doubts: tells in what a camera and a noise, relative to the root mean square of y, are
            unlike those of the training.
    """

    card: Card
    check: Callable[[Any], None]
    solver: Choose | None = None
    doubts: Callable[[Any, float], list[str]] | None = None


class Inference(nn.Module):
    """Runs a network in evaluation mode and, where asked, makes its cube consistent with y.

        x = net(y, system),   then the solver from there, then `cassi.solvers.refine(x, y, system)`

    It is a `cassi.solvers.Reconstructor`, with one iteration.

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

    iterations = 1
    halo = 96

    def __init__(
        self,
        network: nn.Module,
        *,
        refined: bool = False,
        solver: Choose | None = None,
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
        # Solver and noise are chosen for all samples of a batch.
        takes = getattr(network, "takes_noise", False) and refined
        self.shares_batch = solver is None and not takes

    @torch.no_grad()
    def forward(self, y: Tensor, system: Any, statistics: Statistics | None = None) -> Tensor:
        """Reconstruct: measurement `(B, K, H', W')` → cube `(B, C, H, W)`, float32.

        Statistics are those of the whole measurement, where y is a part of one.

        Raises:
            ValueError: the camera does not fit the network.
        """
        if self.check is not None:
            self.check(system)
        y = seen(y, system)
        if not self.refined:
            return self._apply_with(None, y, system, statistics)
        noise = relative_noise(y, system, getattr(self.network, "noise", "auto"), statistics)
        visible = VISIBLE
        if self._is_to_choose(noise, system):
            whole = statistics or Statistics(lambda: [(y, system)])
            factor, visible = whole.remember(self, lambda: self._choose(whole, noise))
            noise = noise * factor
        return self._apply_with(noise, y, system, statistics, visible)

    def _apply_with(
        self,
        noise: Tensor | None,
        y: Tensor,
        system: Any,
        statistics: Statistics | None,
        visible: float = VISIBLE,
    ) -> Tensor:
        more: dict[str, Any] = {}
        if statistics is not None and getattr(self.network, "takes_statistics", False):
            more["statistics"] = statistics
        if noise is not None and getattr(self.network, "takes_noise", False):
            more["noise"] = noise
        given, camera = y, system
        if hasattr(system, "good") and not getattr(self.network, "sees_operators", False):
            given, camera = fill_in(y, system), system.system
        dtype = PRECISIONS[self.precision]
        with torch.autocast(y.device.type, dtype, enabled=dtype is not None):
            x: Tensor = self.network(given, camera, **more)
        x = x.float()
        # A cube that is not finite is for the caller to report.
        if noise is None or not bool(x.isfinite().all()):
            return x
        solver = None if self.solver is None else self.solver(float(noise.max()))
        if solver is not None:
            x = solver.run(y, system, x0=x, statistics=statistics).x
        return refine(x, y, system, noise=noise, visible=visible, statistics=statistics)

    def _is_to_choose(self, noise: Tensor, system: Any) -> bool:
        estimated = getattr(self.network, "noise", None) == "auto"
        possible = estimated and getattr(self.network, "takes_noise", False)
        possible = possible and hasattr(system, "weighted")
        return bool(possible) and bool((noise > UNSEEN).any())

    def _choose(self, statistics: Statistics, noise: Tensor) -> tuple[float, float]:
        """Return what times the noise that is seen the network is best told.

        What the camera's model does not explain is noise for a network, though no window of a plain
        scene shows it; and what seems noise is texture where pixels held out are predicted better
        than that. The second number is `visible` of `refine`: 0 where the camera's error is seen.
        """
        y, system = brightest(*statistics.brightest(), LINES)
        y = seen(y, system)
        heldout = draw_seen(y, system)
        camera = system.weighted(bad_pixels=heldout)

        def error(factor: float) -> float:
            x = self._apply_with(noise * factor, camera.seen(y), camera, statistics)
            return float(heldout_error(x, y, system, heldout).square().mean().sqrt())

        best, least = FACTORS[0], error(FACTORS[0])
        shown = float((noise * statistics.size).mean() / y.square().mean().sqrt())
        for factor in (least / shown,) if least < shown else FACTORS[1:]:
            found = error(factor)
            if found > (1 + 2 * TOLERANCE) * least:
                break
            if found < (1 - TOLERANCE) * least:
                best, least = factor, found
        return best, 0.0 if best > 1 and least > MISFIT else VISIBLE

    @torch.no_grad()
    def run(
        self,
        y: Tensor,
        system: Any,
        *,
        x0: Tensor | None = None,
        callback: Callback | None = None,
        objective: bool = False,
        statistics: Statistics | None = None,
    ) -> Solution:
        """Reconstruct y and report how it went, as `cassi.solvers.Solver.run`.

        Args:
            y: measurement `(B, K, H', W')`.
            system: the camera.
            x0: None: a network takes no first cube.
            callback: called once, with statistics and cube.
            objective: has no effect: a network minimises none.
            statistics: of the whole measurement, where y is a part of one.

        Raises:
            ValueError: the camera does not fit the network, the cube is not finite, or there is a
                first cube.
        """
        if x0 is not None:
            raise ValueError("x0: expected None, a network takes no first cube")
        start = time.perf_counter()
        y = seen(y, system)
        x = self(y, system, statistics)
        # Reading a number also waits for a GPU to be done.
        if not bool(x.isfinite().all()):
            raise ValueError("the network's cube is not finite; check scale, dark and the mask")
        return one_iteration(x, y, system, time.perf_counter() - start, callback)


@torch.no_grad()
def fill_in(y: Tensor, system: Any) -> Tensor:
    r"""Fill the bad pixels of a measurement in from the good ones G around them.

        y_i ← (A1)_i · Σ_{j ∈ W_i ∩ G} y_j / Σ_{j ∈ W_i ∩ G} (A1)_j

    The light behind a pixel is as the light behind its neighbours, the code is its own. W is a
    square around the pixel, the smallest of 3, 5, 9, … pixels that has light. It is for networks
    that read the measurement themselves: they have learned what one looks like.

    Args:
        y: measurement `(B, K, H', W')`.
        system: a `cassi.systems.Weighted` camera.

    Returns:
        Shaped like y; zeros where nothing is good.
    """
    y = system.seen(y)
    bad = ~system.good.expand_as(y)
    plain = system.system
    flat = plain(torch.ones_like(plain.adjoint(y)))
    light, filled, side = system.seen(flat), y, 3
    while bool(bad.any()) and side < 4 * max(y.shape[-2:]):
        above, below = (F.avg_pool2d(v, side, 1, side // 2) for v in (y, light))
        ready = bad & (below > 0)
        filled = torch.where(ready, flat * above / below, filled)
        bad, side = bad & ~ready, 2 * side - 1
    return filled


def prepare(
    network: nn.Module, refine: bool | Literal["auto"] = "auto", precision: str = "32-true"
) -> Inference:
    """Make a network ready to reconstruct.

    Args:
        network: `net(y, system) -> x`.
        refine: make the cube consistent with the measurement, see `cassi.solvers.refine`; "auto"
            does so for a network that comes with its weights.
        precision: see `Inference`.

    Raises:
        ValueError: one of the two has no such value.
    """
    if refine not in (True, False, "auto"):
        raise ValueError(f"refine: expected true, false or auto, got {refine!r}")
    shipped: Shipped | None = getattr(network, "shipped", None)
    refined = shipped is not None if refine == "auto" else bool(refine)
    if shipped is None:
        return Inference(network, refined=refined, precision=precision)
    choose = shipped.solver if refined else None
    return Inference(
        network, refined=refined, solver=choose, precision=precision, check=shipped.check
    )
