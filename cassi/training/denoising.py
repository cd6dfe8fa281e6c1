"""Training of a network's prior as a denoiser of cubes, before the training with cameras."""

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

    Such a step takes a small part of the time of a step that simulates a camera and unrolls a
    solver. The prior can be used for every camera.

    Args:
        settings: positional arguments of `Training`.
        sigma: smallest and largest σ, in the unit of the cubes. The σ of a cube is drawn
            log-uniformly between them.
        options: keyword arguments of `Training`.

    Raises:
        ValueError: `sigma` is not a pair 0 < low <= high, or the network has no method `denoise`.
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
        # In place of the camera, `_measure` above returns σ.
        return self.network(y, system)
