"""A camera as an operator of PyLops."""

import numpy as np
import pylops

from cassi.adapters.flat import Flat
from cassi.systems import System


class CameraOperator(pylops.LinearOperator):
    """See `cassi.adapters.as_pylops`.

    Attributes:
        camera: what it applies.
    """

    def __init__(self, system: System) -> None:
        self.camera = Flat(system)
        super().__init__(
            dtype=self.camera.dtype,
            dims=tuple(system.cube_shape),
            dimsd=tuple(system.measurement_shape),
        )

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self.camera.forward(x.reshape(-1))

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self.camera.adjoint(x.reshape(-1))
