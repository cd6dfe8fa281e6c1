"""Training a network's prior as a denoiser of cubes, before it meets a camera."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from cassi.systems import System
from cassi.training.module import Simulate, Training


@runtime_checkable
class _Denoiser(Protocol):
    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor: ...


class Denoising(Training):
    """Trains `net.denoise(x + σn, σ) -> x`, with white noise n, instead of the reconstruction.

    Such a step costs a small part of one that simulates a camera and unrolls a solver, and the
    prior serves every camera.

    Args:
        settings: those of `Training`.
        sigma: smallest and largest σ, in units of the cubes; a σ per cube is drawn log-uniformly.
        options: those of `Training`.
    """

    def __init__(
        self, *settings: Any, sigma: Sequence[float] = (0.002, 0.3), **options: Any
    ) -> None:
        super().__init__(*settings, **options)
        low, high = (float(value) for value in sigma) if len(sigma) == 2 else (0.0, 0.0)
        if not 0 < low <= high:
            raise ValueError(f"Denoising sigma: expected (low, high) > 0, got {tuple(sigma)}")
        if not isinstance(self.net, _Denoiser):
            raise ValueError(
                f"Denoising: expected a network with a prior, denoise(x, sigma); "
                f"{type(self.net).__name__} has none"
            )
        self.sigma = (low, high)

    def _measure(
        self, simulate: Simulate, batch: Tensor, seed: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        truth = batch.contiguous(memory_format=self.layout)
        generator = torch.Generator().manual_seed(seed)
        low, high = (math.log(value) for value in self.sigma)
        fractions = torch.rand(len(truth), generator=generator)
        sigma = (low + (high - low) * fractions).exp().view(-1, 1, 1, 1).to(truth)
        noise = torch.randn(truth.shape, generator=generator).to(truth)
        return truth, truth + sigma * noise, sigma

    @property
    def network(self) -> Callable[..., Tensor]:
        """The function that is trained, `(x + σn, σ) -> x`."""
        assert isinstance(self.net, _Denoiser)
        return self.net.denoise

    def _outputs(self, y: Tensor, system: System | Tensor, batch: int) -> Tensor:
        return self.network(y, system)
