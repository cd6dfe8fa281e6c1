"""A network in the place of a solver."""

from __future__ import annotations

import time

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from cassi.models.inference import Inference
from cassi.models.pretrained import prepare_shipped
from cassi.models.registry import PRETRAINED
from cassi.solvers import Callback, Iteration, Solution, Statistics
from cassi.systems import System


def prepare_network(network: nn.Module, config: DictConfig) -> Inference:
    """Make a network ready to reconstruct, as `refine` and `precision` of a config say.

    Args:
        network: of `build_model`.
        config: of cassi-reconstruct.

    Raises:
        ValueError: one of the two has no such value.
    """
    shipped = config.model.get("name") == PRETRAINED
    if config.refine not in (True, False, "auto"):
        raise ValueError(f"refine: expected true, false or auto, got {config.refine!r}")
    refined = shipped if config.refine == "auto" else bool(config.refine)
    if shipped:
        return prepare_shipped(network, config.model.size, refined, str(config.precision))
    return Inference(network, refined=refined, precision=str(config.precision))


class NetworkSolver:
    """A network in the place of a solver, with one iteration.

    Args:
        network: `net(y, system) -> x`.
    """

    iterations = 1

    def __init__(self, network: Inference) -> None:
        self.network = network

    @torch.no_grad()
    def run(
        self,
        y: Tensor,
        system: System,
        *,
        callback: Callback,
        objective: bool = False,
        statistics: Statistics | None = None,
    ) -> Solution:
        """Reconstruct `(B, C, H, W)` from y `(B, K, H', W')`; see `cassi.solvers.Solver.run`.

        Raises:
            ValueError: the camera does not fit the network, or the cube is not finite.
        """
        start = time.perf_counter()
        x = self.network(y, system, statistics)
        # Reading a number also waits for a GPU to be done.
        if not bool(x.isfinite().all()):
            raise ValueError("the network's cube is not finite; check scale, dark and the mask")
        seconds = time.perf_counter() - start
        residual = float((y - system(x)).norm() / y.norm().clamp_min(torch.finfo(y.dtype).tiny))
        step = Iteration(index=1, residual=residual, change=1.0, seconds=seconds, sigma=0.0)
        callback(step, x)
        return Solution(x, [step], "iterations")
