"""Training a network's prior as a denoiser of cubes, before it meets a camera."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cassi.training.module import Training


class Denoising(Training):
    """Trains `net.denoise(x + σn, σ) -> x`, with white noise n, instead of the reconstruction.

    A step costs a small part of one that simulates a camera and unrolls a solver, and what the
    prior learns of images serves for every camera. Each cube draws its σ, log-uniformly.

    Args:
        settings: as for `Training`.
        sigma: the range of σ, in units of the cubes, > 0.

    Raises:
        ValueError: σ is no range, or the network has no method `denoise`.
    """

    def __init__(self, *settings: Any, sigma: Sequence[float] = (0.002, 0.3), **more: Any) -> None:
        super().__init__(*settings, **more)
        low, high = (float(value) for value in sigma) if len(sigma) == 2 else (0.0, 0.0)
        if not 0 < low <= high:
            raise ValueError(f"Denoising sigma: expected (low, high) > 0, got {tuple(sigma)}")
        if not hasattr(self.net, "denoise"):
            raise ValueError(
                f"Denoising: expected a network with a prior, denoise(x, sigma); "
                f"{type(self.net).__name__} has none"
            )
        self.sigma = (low, high)

    def _measure(self, simulate: Any, batch: Tensor, seed: int) -> tuple[Tensor, Tensor, Any]:
        truth = batch.contiguous(memory_format=self.layout)
        generator = torch.Generator().manual_seed(seed)
        low, high = (math.log(value) for value in self.sigma)
        drawn = torch.rand(len(truth), generator=generator)
        sigma = (low + (high - low) * drawn).exp().view(-1, 1, 1, 1).to(truth)
        noise = torch.randn(truth.shape, generator=generator).to(truth)
        return truth, truth + sigma * noise, sigma

    @property
    def network(self) -> Any:
        """What is trained, `(x + σn, σ) -> x`."""
        return self.net.denoise

    def _outputs(self, y: Tensor, system: Any, place: int) -> Any:
        return self.network(y, system)
