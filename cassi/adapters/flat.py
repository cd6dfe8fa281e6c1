"""A camera on NumPy arrays."""

import math

import numpy as np
import torch
from torch import Tensor

from cassi.systems import System


class Flat:
    """A camera whose cubes and measurements are the columns of arrays.

    Args:
        system: the camera.

    Attributes:
        shape: of the matrix, (K·H'·W', C·H·W).
        dtype: of the camera, as NumPy has it.

    Raises:
        TypeError: it is no camera.
    """

    def __init__(self, system: System) -> None:
        if not isinstance(system, System):
            raise TypeError(
                f"expected a camera, such as cassi.SDCassi, got {type(system).__name__}"
            )
        self.system = system
        values = [*system.parameters(), *system.buffers()]
        self.like = next(value for value in values if value.is_floating_point())
        self.shape = (math.prod(system.measurement_shape), math.prod(system.cube_shape))
        self.dtype = np.dtype(str(self.like.dtype).removeprefix("torch."))

    def forward(self, columns: np.ndarray) -> np.ndarray:
        """Apply A to `(C·H·W,)` or `(C·H·W, N)`."""
        x = self._batch(columns, self.system.cube_shape)
        return self._columns(self.system(x), columns.ndim)

    def adjoint(self, columns: np.ndarray) -> np.ndarray:
        """Apply Aᵀ to `(K·H'·W',)` or `(K·H'·W', N)`."""
        y = self._batch(columns, self.system.measurement_shape)
        return self._columns(self.system.adjoint(y), columns.ndim)

    def _batch(self, columns: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        rows = np.ascontiguousarray(columns.T.reshape(-1, *shape), dtype=self.dtype)
        return torch.from_numpy(rows).to(self.like.device)

    @torch.no_grad()
    def _columns(self, batch: Tensor, ndim: int) -> np.ndarray:
        rows: np.ndarray = batch.detach().cpu().numpy().reshape(len(batch), -1)
        return rows[0] if ndim == 1 else rows.T
