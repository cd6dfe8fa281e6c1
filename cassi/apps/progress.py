"""Show how a reconstruction goes, and remember it."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor
from tqdm import tqdm

from cassi import metrics
from cassi.apps.inputs import Inputs
from cassi.apps.results import describe_solve
from cassi.solvers import Iteration
from cassi.solvers.base import Callback, wants_cube


class Progress:
    """Shows residual and PSNR on a progress bar and keeps the rows of convergence.csv.

    Args:
        inputs: the measurement and its camera.
        iterations: at most.
        visible: show the bar.
        watch: is called with every iteration and its cube as well.
    """

    def __init__(
        self, inputs: Inputs, iterations: int, visible: bool, watch: Callback | None = None
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.watch = watch
        self.truth = None if inputs.truth is None else inputs.truth.to(inputs.measurement.device)
        self.system = inputs.system
        # A log file gets a line now and then, a terminal a moving bar.
        pause = 0.1 if sys.stderr.isatty() else 10.0
        self.bar = tqdm(total=iterations, unit="it", disable=not visible, mininterval=pause)

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the cube is looked at: for its PSNR, or by `watch`."""
        if self.truth is not None:
            return True
        return self.watch is not None and wants_cube(self.watch, iteration)

    def __call__(self, iteration: Iteration, x: Tensor | None) -> None:
        """Record one iteration; the callback of the solver."""
        row: dict[str, Any] = {
            "iteration": iteration.index,
            "residual": iteration.residual,
            "seconds": iteration.seconds,
            "change": iteration.change,
            "sigma": iteration.sigma,
            "objective": iteration.objective,  # None is written as an empty field
        }
        shown = {"residual": f"{iteration.residual:.2e}"}
        solve = describe_solve(self.system)
        if solve is not None:  # None from the first iteration on, or never
            row["inner_iterations"] = solve["iterations"]
            row["inner_residual"] = solve["relative_residual"]
        if self.truth is not None and x is not None:
            row["psnr"] = metrics.psnr(x, self.truth).mean().item()
            shown["PSNR"] = f"{row['psnr']:.2f} dB"
        self.rows.append(row)
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(iteration.index - self.bar.n)  # an earlier run may have done some
        if self.watch is not None:
            self.watch(iteration, x)
