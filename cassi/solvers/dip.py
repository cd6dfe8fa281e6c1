"""Deep image prior."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cassi.checks import not_negative, whole_number
from cassi.solvers.base import Prior, State
from cassi.solvers.linear_system import LinearSystem
from cassi.solvers.statistics import Statistics


@dataclass(frozen=True)
class Fit:
    """The network of one sample, its input, and Adam with its moments."""

    network: nn.Module
    z: Tensor
    optimizer: torch.optim.Adam


@dataclass(frozen=True)
class DipState(State):
    """The cube, and the networks that rendered it."""

    fits: tuple[Fit, ...]


@dataclass(frozen=True, eq=False)
class DIP:
    """Deep image prior: an untrained network is fitted to the one measurement.

        x = f_θ(z),   θ ← `steps` of Adam on ½‖A f_θ(z) − y‖² + ρ/2‖f_θ(z) − prior(x, σ)‖²

    z is fixed random numbers. Convolutions render what repeats and varies slowly long before
    noise, and that is the regularisation; with ρ = 0 it is the only one, and the prior is not used.

    An algorithm, and no prior: fitted to the cubes that GAP or ADMM pass to a prior, the network
    renders their artefacts as readily as the scene (on 64 × 64 × 28 it ended 4 dB lower). Each
    sample has a network of its own.

    Args:
        network: makes a network for a number of bands, `network(bands)`: `cassi.models.Hourglass`,
            or a function of your own; with Hydra, a node with `_partial_: true`. It maps
            `(1, C, H, W)` to the same shape.
        steps: of Adam per iteration, >= 1.
        learning_rate: of Adam, >= 0.
        rho: ρ >= 0; how much the prior counts.
        seed: of the weights and of z: results repeat.

    Raises:
        TypeError: the network is not what makes one.
        ValueError: a number out of range.

    Source: Ulyanov, Vedaldi, Lempitsky, "Deep image prior", CVPR 2018; Meng, Yu, Xu, Yuan,
    "Self-supervised neural networks for spectral snapshot compressive imaging", ICCV 2021, who
    restart the network in every iteration.
    """

    network: Callable[[int], nn.Module]
    steps: int = 30
    learning_rate: float = 3e-3
    rho: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the parts and the numbers."""
        if isinstance(self.network, nn.Module) or not callable(self.network):
            raise TypeError(
                "DIP network: expected what makes a network for a number of bands, such as "
                f"cassi.models.Hourglass, got {type(self.network).__name__}"
            )
        whole_number("DIP steps", self.steps, 1)
        whole_number("DIP seed", self.seed, 0)
        not_negative("DIP learning_rate", self.learning_rate)
        not_negative("DIP rho", self.rho)

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> DipState:
        """Start with untrained networks."""
        return DipState(x0, tuple(self._start(sample[None]) for sample in x0))

    def step(
        self, state: DipState, y: Tensor, system: LinearSystem, prior: Prior, sigma: Any, rho: Any
    ) -> DipState:
        """Go on fitting; what the state holds is copied first."""
        rho = float(rho)
        goal = prior(state.x, sigma).detach().clone() if rho > 0 else None
        # Nothing made in inference mode takes part in a gradient; copies do.
        with torch.inference_mode(False), torch.enable_grad():
            fits = tuple(copy.deepcopy(fit) for fit in state.fits)
            y = y.detach().clone()
            for _ in range(self.steps):
                u = _render(fits, y)
                loss = 0.5 * (system(u) - y).square().sum()
                if goal is not None:
                    loss = loss + 0.5 * rho * (u - goal).square().sum()
                (loss * (len(y) / y.numel())).backward()
                for fit in fits:
                    fit.optimizer.step()
                    fit.optimizer.zero_grad()
        return DipState(_render(fits, y).detach(), fits)

    def _start(self, x: Tensor) -> Fit:
        # On the CPU whatever the device, so that all devices begin alike.
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            torch.manual_seed(self.seed)
            network = self.network(x.shape[1]).float().train().to(x.device)
            z = 0.1 * torch.rand(x.shape).to(x.device)
        return Fit(network, z, torch.optim.Adam(network.parameters(), lr=self.learning_rate))


def _render(fits: tuple[Fit, ...], y: Tensor) -> Tensor:
    return torch.cat([fit.network(fit.z) for fit in fits]).to(y.dtype)
