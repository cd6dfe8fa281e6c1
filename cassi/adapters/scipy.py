"""A camera as a linear operator of SciPy."""

import numpy as np
from scipy.sparse.linalg import LinearOperator

from cassi.adapters.flat import Flat
from cassi.systems import System


class CameraOperator(LinearOperator):
    """See `cassi.adapters.as_linear_operator`.

    Attributes:
        camera: what it applies.
    """

    def __init__(self, system: System) -> None:
        self.camera = Flat(system)
        super().__init__(self.camera.dtype, self.camera.shape)

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.camera.forward(_real(x).reshape(-1))

    def _rmatvec(self, y: np.ndarray) -> np.ndarray:
        return self.camera.adjoint(_real(y).reshape(-1))

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self.camera.forward(_real(x))

    def _rmatmat(self, y: np.ndarray) -> np.ndarray:
        return self.camera.adjoint(_real(y))


def _real(values: np.ndarray) -> np.ndarray:
    if np.iscomplexobj(values):
        raise TypeError("expected real numbers, got complex ones; apply it to both parts")
    return np.asarray(values)
