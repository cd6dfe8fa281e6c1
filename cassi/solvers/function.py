"""Any function as a reconstructor of one iteration."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from cassi.solvers.base import Callback, Iteration, Options, Solution, unpack_options
from cassi.solvers.linear_system import CameraSystem, LinearSystem, zero_bad_pixels


@dataclass(frozen=True)
class Function:
    """Any function `(y, system) -> x` as a `Reconstructor` of one iteration.

    Args:
        function: measurement `(B, K, H', W')` and camera → cube `(B, C, H, W)`.
        halo: number of lines beside a part of a scene that influence the result of the part.
        network: the network inside the function, whose weights and operations are counted.
        iterations: 1.
        shares_batch: whether the result of a sample is independent of the other samples.
    """

    function: Callable[[Tensor, Any], Tensor]
    halo: int = 96
    network: nn.Module | None = None
    iterations: int = 1
    shares_batch: bool = True

    @torch.no_grad()
    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `Reconstructor.run`. Only the option `callback` has an effect.

        Raises:
            TypeError: the function returns no tensor.
            ValueError: the tensor has not the shape of a cube, or a first cube is given.
        """
        _, callback, _, _ = unpack_options(options, "function")
        start = time.perf_counter()
        y = zero_bad_pixels(y, system)
        x = self.function(y, system)
        if not isinstance(x, Tensor):
            raise TypeError(f"method: expected a tensor (B, C, H, W), got {type(x).__name__}")
        shape = (len(y), *cast(CameraSystem, system).cube_shape)
        if tuple(x.shape) != shape:
            raise ValueError(
                f"method: expected a cube (B, C, H, W) = {shape}, got {tuple(x.shape)}"
            )
        return one_iteration(x, y, system, time.perf_counter() - start, callback)


def one_iteration(
    x: Tensor, y: Tensor, system: LinearSystem, seconds: float, callback: Callback | None
) -> Solution:
    """Return a cube as a solution of one iteration, and call the callback with it."""
    y_norm = y.norm(dtype=torch.float64).clamp_min(torch.finfo(torch.float64).tiny)
    # The camera cannot measure a cube of another shape, such as one with more bands.
    residual = float("nan")
    if tuple(x.shape[1:]) == tuple(cast(CameraSystem, system).cube_shape):
        residual = float((y - system(x)).norm(dtype=torch.float64) / y_norm)
    iteration = Iteration(index=1, residual=residual, change=1.0, seconds=seconds, sigma=0.0)
    if callback is not None:
        callback(iteration, x)
    return Solution(x, [iteration], "iterations")
