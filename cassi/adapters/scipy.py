"""A camera as a linear operator of SciPy, on NumPy arrays."""

import math

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from cassi.systems import System


class CameraOperator(LinearOperator):
    """A `LinearOperator` around a camera; see `cassi.adapters.as_linear_operator`."""

    def __init__(self, system: System) -> None:
        if not isinstance(system, System):
            raise TypeError(
                f"expected a camera, such as cassi.SDCassi, got {type(system).__name__}"
            )
        self.system = system
        # The first floating-point tensor gives dtype and device; other tensors may be integers.
        values = [*system.parameters(), *system.buffers()]
        self.reference = next(value for value in values if value.is_floating_point())
        shape = math.prod(system.measurement_shape), math.prod(system.cube_shape)
        super().__init__(np.dtype(str(self.reference.dtype).removeprefix("torch.")), shape)

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._matmat(x.reshape(-1, 1))[:, 0]

    def _rmatvec(self, y: np.ndarray) -> np.ndarray:
        return self._rmatmat(y.reshape(-1, 1))[:, 0]

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return _to_columns(self.system(self._to_batch(x, self.system.cube_shape)))

    def _rmatmat(self, y: np.ndarray) -> np.ndarray:
        return _to_columns(self.system.adjoint(self._to_batch(y, self.system.measurement_shape)))

    def _to_batch(self, columns: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        """Return the columns of a matrix as a batch of cubes or measurements of this shape."""
        if np.iscomplexobj(columns):
            raise TypeError(
                "expected real numbers, got complex ones; "
                "apply the operator to real and imaginary part"
            )
        # SciPy stores vectors as columns, but torch needs each sample contiguous.
        rows = np.ascontiguousarray(columns.T.reshape(-1, *shape), dtype=self.dtype)
        return torch.from_numpy(rows).to(self.reference.device)


def _to_columns(batch: Tensor) -> np.ndarray:  # the inverse of `_to_batch`
    return batch.detach().cpu().numpy().reshape(len(batch), -1).T
