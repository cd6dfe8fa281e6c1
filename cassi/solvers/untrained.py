"""An untrained network that is fitted to the measurement, as an algorithm."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cassi.checks import not_negative
from cassi.prior_protocols import Prior
from cassi.solvers.base import Algorithm, State
from cassi.solvers.linear_system import LinearSystem, Rho
from cassi.solvers.statistics import Statistics

# The dtype of autocast. float16 is missing: its gradients would have to be scaled.
PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16}

# β₁, β₂ and ε of Adam, as its authors recommend.
DECAYS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class UntrainedState(State):
    """The best cube so far, the weights and the code, and the state of Adam.

    Attributes:
        parameters: the weights of the network, then the code, `(B, N)`.
        mean: Adam's mean of the gradients, `(B, N)`.
        square: Adam's mean of the squared gradients, `(B, N)`.
        loss: the loss of the best cube, `(B,)`.
        network: the module, which is called with the weights of `parameters`, never with its own.
        code_shape: shape `(c, H, W)` of the code.
        count: number of steps so far.
        seed: the seed of all random numbers.
    """

    parameters: Tensor
    mean: Tensor
    square: Tensor
    loss: Tensor
    network: nn.Module
    code_shape: tuple[int, int, int]
    count: int
    seed: int


@dataclass(frozen=True)
class Untrained(Algorithm[UntrainedState]):
    r"""Fit an untrained network to the measurement. The architecture of the network is the prior.

        min over θ, z of  f·mean|A G_θ(z + n) − y| + s·mean|z|,   x ← prior(G_θ(z + n), σ)

    The code z is the input of the network G_θ, with new noise n in every iteration. Weights and
    code start at random; Adam takes one step per iteration. The result is the cube of the least
    loss so far. With too many iterations the network fits the noise of the measurement too.

    Every sample of a batch has its own weights and its own code, with the same initial values. A
    first cube has no influence. All random numbers follow from torch's seed. With a tolerance, a
    solver stops at the first iteration that does not improve the loss.

    Args:
        network: makes G for C bands, `network(bands=C)`: a module from a code `(1, c, H, W)` to a
            cube `(1, C, H, W)`. The module has no buffers; its attribute `inputs` is c, and `least`
            the smallest number of rows and columns that it takes.
        rate: learning rate of Adam, > 0.
        fidelity: f, > 0.
        sparsity: s, >= 0.
        spread: the code is drawn uniformly from [0, spread].
        disturbance: standard deviation of n, >= 0.
        level: signal level to which the measurement is scaled for the network, > 0; f and s are
            relative to it. The authors' scenes are in [0, 1]. In this scale CAVE's training
            scenes have a median level of 0.52, from 0.29 to 0.87.
        precision: "32-true" ("auto" is the same), or "bf16-mixed" for a network that computes in
            bfloat16; weights, code and loss keep their dtype.

    Raises:
        TypeError: the network is not callable.
        ValueError: a number is out of range, or the precision is unknown.

    Source: Chen et al., "Lightweight convolutional thresholding sparse coding network prior for
    computational hyperspectral imaging", its code; Ulyanov, Vedaldi, Lempitsky, "Deep image prior",
    CVPR 2018; Kingma, Ba, "Adam", ICLR 2015, algorithm 1.
    """

    network: Callable[..., nn.Module]
    rate: float = 1e-3
    fidelity: float = 0.07
    sparsity: float = 1.0
    spread: float = 0.1
    disturbance: float = 0.033
    level: float = 0.5
    precision: str = "32-true"
    rho: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not callable(self.network):
            raise TypeError(f"Untrained network: expected a callable, got {self.network!r}")
        numbers = vars(self)
        for name in ("rate", "fidelity", "level"):
            if not not_negative(f"Untrained {name}", numbers[name]):
                raise ValueError(f"Untrained {name}: expected a number > 0, got 0")
        for name in ("sparsity", "spread", "disturbance"):
            not_negative(f"Untrained {name}", numbers[name])
        # "auto" is the precision that trained weights were tested in. There are none here.
        if self.precision == "auto":
            object.__setattr__(self, "precision", "32-true")
        if self.precision not in PRECISIONS:
            expected = " or ".join(PRECISIONS)
            raise ValueError(f"Untrained precision: expected {expected}, got {self.precision!r}")

    def init(
        self, y: Tensor, system: LinearSystem, x0: Tensor, statistics: Statistics | None = None
    ) -> UntrainedState:
        """Draw weights and code; x0 is the cube until the first step, and has no influence."""
        seed = torch.initial_seed()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network: Any = self.network(bands=x0.shape[1])
            height, width = (max(side, network.least) for side in x0.shape[-2:])
            code_shape = (int(network.inputs), height, width)
            weights = [weight.detach().flatten() for weight in network.parameters()]
            initial = torch.cat([*weights, self.spread * torch.rand(code_shape).flatten()])
        # Every sample begins with the same values, so a batch gives the cubes of single runs.
        parameters = initial.to(x0).repeat(len(x0), 1)
        zeros, infinite_loss = torch.zeros_like(parameters), x0.new_full((len(x0),), torch.inf)
        network.to(x0)
        return UntrainedState(
            x=x0,
            parameters=parameters,
            mean=zeros,
            square=zeros,
            loss=infinite_loss,
            network=network,
            code_shape=code_shape,
            count=0,
            seed=seed,
        )

    def step(
        self,
        state: UntrainedState,
        y: Tensor,
        system: LinearSystem,
        prior: Prior,
        sigma: Any,
        rho: Rho,
    ) -> UntrainedState:
        """Take one step of Adam, and keep the cube if its loss is the least."""
        with torch.enable_grad():
            parameters = state.parameters.detach().requires_grad_()
            cube = self._generate(state, parameters) / self.level
            residual = y - system(cube)
            loss = self.fidelity * self.level * residual.abs().flatten(1).mean(1)
            code = parameters[:, -_count_values(state.code_shape) :]
            loss = loss + self.sparsity * code.abs().mean(1)
            (gradient,) = torch.autograd.grad(loss.sum(), parameters)
        loss, cube, residual = loss.detach(), cube.detach(), residual.detach()
        # One step of Adam, written out because every sample has its own parameters and the state
        # must not change in place.
        count = state.count + 1
        mean = torch.lerp(gradient, state.mean, DECAYS[0])
        square = torch.lerp(gradient.square(), state.square, DECAYS[1])
        root = (square / (1 - DECAYS[1] ** count)).sqrt() + EPSILON
        parameters = state.parameters - self.rate / (1 - DECAYS[0] ** count) * mean / root
        # A loss that is NaN counts as better. So its cube reaches the loop, and the loop ends the
        # run.
        is_better = ~(loss >= state.loss)
        x = prior(cube, sigma)
        if x is not cube:
            residual = y - system(x)
        if state.residual is not None:
            is_kept = is_better.view(-1, 1, 1, 1)
            x = torch.where(is_kept, x, state.x)
            residual = torch.where(is_kept, residual, state.residual)
        return replace(
            state,
            x=x,
            parameters=parameters,
            mean=mean,
            square=square,
            loss=torch.where(is_better, loss, state.loss),
            count=count,
            residual=residual,
        )

    def _generate(self, state: UntrainedState, parameters: Tensor) -> Tensor:
        """Run the network of every sample on its disturbed code: `(B, N)` → `(B, C, H, W)`."""
        own_weights = dict(state.network.named_parameters())
        sizes = [weight.numel() for weight in own_weights.values()]
        # The noise depends on seed and step alone, so batches, parts and repeated runs draw the
        # same noise.
        random = torch.Generator(parameters.device).manual_seed((state.seed + state.count) % 2**63)
        noise = torch.randn(state.code_shape, generator=random, device=parameters.device)
        noise = noise.to(parameters)
        cubes, dtype = [], PRECISIONS[self.precision]
        for sample in parameters:
            *vectors, code = sample.split([*sizes, _count_values(state.code_shape)])
            weights = {
                name: vector.view_as(weight)
                for (name, weight), vector in zip(own_weights.items(), vectors, strict=True)
            }
            z = code.view(state.code_shape) + self.disturbance * noise
            with torch.autocast(z.device.type, dtype, enabled=dtype is not None):
                cube = functional_call(state.network, weights, (z[None],))
            cubes.append(cube.to(parameters.dtype))
        height, width = state.x.shape[-2:]
        return torch.cat(cubes)[..., :height, :width]


def _count_values(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
