"""Training a network's prior as a denoiser of cubes, before it meets a camera."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from cassi.systems import System
from cassi.training.module import Simulate, Training


@runtime_checkable
class _Denoises(Protocol):
    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor: ...


class Denoising(Training):
    """Trains `net.denoise(x + σn, σ) -> x`, with white noise n, instead of the reconstruction.

    A step costs a small part of one that simulates a camera and unrolls a solver, and what the
    prior learns of images serves for every camera. Each cube draws its σ, log-uniformly, from the
    range of `sigma`, in units of the cubes. The other settings are those of `Training`.
    """

    def __init__(self, *settings: Any, sigma: Sequence[float] = (0.002, 0.3), **more: Any) -> None:
        super().__init__(*settings, **more)
        low, high = (float(value) for value in sigma) if len(sigma) == 2 else (0.0, 0.0)
        if not 0 < low <= high:
            raise ValueError(f"Denoising sigma: expected (low, high) > 0, got {tuple(sigma)}")
        if not isinstance(self.net, _Denoises):
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
        drawn = torch.rand(len(truth), generator=generator)
        sigma = (low + (high - low) * drawn).exp().view(-1, 1, 1, 1).to(truth)
        noise = torch.randn(truth.shape, generator=generator).to(truth)
        return truth, truth + sigma * noise, sigma

    @property
    def network(self) -> Callable[..., Tensor]:
        """What is trained, `(x + σn, σ) -> x`."""
        assert isinstance(self.net, _Denoises)
        return self.net.denoise

    def _outputs(self, y: Tensor, system: System | Tensor, place: int) -> Tensor:
        return self.network(y, system)
