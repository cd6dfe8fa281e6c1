"""Deep image prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cassi.priors.checks import check_count, check_weight


@dataclass(frozen=True, eq=False)
class DeepImage:
    """What an untrained network can render of a cube.

        prior(x, σ) = f_θ(z),   θ ← Adam on mean (f_θ(z) − x)²

    z is fixed random numbers. Convolutions render images sooner than noise, so that few iterations
    denoise. Within a run each call goes on where the call before stopped, with a cube that has
    changed a little: so the network is fitted once per run and not once per call. A call ends after
    `iterations`, or when it has come as near to x as σ says is right, ‖f_θ(z) − x‖_rms <=
    strength·σ.

    The authors of PnP-DIP start a new network at every call, and add ‖A f_θ(z) − y‖² to what is
    fitted. Here that is the data step's work, done in closed form between two calls: the prior
    knows no camera, and goes with every algorithm.

    Args:
        network: makes a network for a number of bands, `network(bands)`: `cassi.models.Hourglass`,
            or a function of your own; with Hydra, a node with `_partial_: true`. It maps
            `(1, C, H, W)` to the same shape.
        iterations: at most so many steps of Adam per call.
        first: so many at the first call of a run; as at every call if None.
        learning_rate: of Adam, >= 0.
        strength: where to stop, per σ; 0 never stops early.
        seed: of the weights and of z: results repeat.

    Raises:
        TypeError: the network is not something to call.
        ValueError: a number out of range.

    Source: Ulyanov, Vedaldi, Lempitsky, "Deep image prior", CVPR 2018; Meng, Yu, Xu, Yuan,
    "Self-supervised neural networks for spectral snapshot compressive imaging", ICCV 2021,
    equation 12.
    """

    network: Callable[[int], nn.Module]
    iterations: int = 100
    first: int | None = None
    learning_rate: float = 1e-3
    strength: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if isinstance(self.network, nn.Module) or not callable(self.network):
            raise TypeError(
                "DeepImage network: expected what makes a network for a number of bands, such as "
                f"cassi.models.Hourglass, got {type(self.network).__name__}"
            )
        check_count("DeepImage iterations", self.iterations)
        if self.first is not None:
            check_count("DeepImage first", self.first)
        check_weight("DeepImage strength", self.strength)
        check_weight("DeepImage learning_rate", self.learning_rate)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(
                f"DeepImage seed: expected a whole number of at least 0, got {self.seed!r}"
            )

    def __call__(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        """Fit a new network to a cube `(B, C, H, W)` and return what it renders."""
        return self.begin()(x, sigma)

    def begin(self) -> Callable[[Tensor, float | Tensor], Tensor]:
        """Return the prior of one run: it keeps one network per sample, untrained at first."""
        fits: list[_Fit] = []

        def denoise(x: Tensor, sigma: float | Tensor) -> Tensor:
            iterations = self.iterations
            if not fits:
                fits.extend(_Fit(self, sample[None]) for sample in x)
                iterations = self.first or iterations
            if len(fits) != len(x):
                raise ValueError(f"x: expected {len(fits)} samples as before, got {len(x)}")
            level = self.strength * torch.as_tensor(sigma, dtype=torch.float32)
            goals = level.reshape(-1).expand(len(x)).tolist()
            cubes = [
                fit.improve(sample[None], iterations, goal)
                for fit, sample, goal in zip(fits, x, goals, strict=True)
            ]
            return torch.cat(cubes).to(x.dtype)

        return denoise


class _Fit:
    """One network, its input and its optimizer."""

    def __init__(self, prior: DeepImage, x: Tensor) -> None:
        # On the CPU whatever the device, so that all devices begin alike.
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            torch.manual_seed(prior.seed)
            self.network = prior.network(x.shape[1]).float().train().to(x.device)
            self.z = 0.1 * torch.rand(x.shape).to(x.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=prior.learning_rate)

    def improve(self, x: Tensor, iterations: int, goal: float) -> Tensor:
        """Fit for some iterations, until the error is down to the goal; return the rendering."""
        if not x.isfinite().all():
            return x  # nothing to fit; the solver stops at such a cube
        # A cube made in inference mode cannot be fitted to, its copy can.
        with torch.inference_mode(False), torch.enable_grad():
            target = x.float().clone()
            for iteration in range(iterations + 1):
                u = self.network(self.z)
                loss = (u - target).square().mean()
                if iteration == iterations or (goal > 0 and loss.item() <= goal**2):
                    break
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return u.detach()
