"""A camera as the physics of deepinv."""

from typing import Any

import torch
from deepinv.physics import LinearPhysics
from torch import Tensor

from cassi.systems import System


class CameraPhysics(LinearPhysics):
    """See `cassi.adapters.as_physics`.

    Attributes:
        system: the camera.
    """

    def __init__(self, system: Any, **options: Any) -> None:
        if not isinstance(system, System):
            raise TypeError(
                f"expected a camera, such as cassi.SDCassi, got {type(system).__name__}"
            )
        super().__init__(img_size=tuple(system.cube_shape), **options)
        self.system = system

    def A(self, x: Tensor, **_: Any) -> Tensor:
        """Simulate the measurement without noise, `(B, C, H, W)` → `(B, K, H', W')`."""
        y: Tensor = self.system(x)
        return y

    def A_adjoint(self, y: Tensor, **_: Any) -> Tensor:
        """Apply the transpose."""
        x: Tensor = self.system.adjoint(y)
        return x

    def A_dagger(self, y: Tensor, **_: Any) -> Tensor:
        """Apply the Moore–Penrose inverse Aᵀ(AAᵀ)⁺; what would set an iteration is ignored."""
        x: Tensor = self.system.pinv(y)
        return x

    def prox_l2(self, z: Any, y: Tensor, gamma: Any, **_: Any) -> Tensor:
        """Solve argmin_x γ/2 ‖Ax − y‖² + ½ ‖x − z‖²; what would set an iteration is ignored.

        Args:
            z: cube `(B, C, H, W)`; a number for one that is constant, None for 0.
            y: measurement `(B, K, H', W')`.
            gamma: γ > 0, one number, or one per sample of any shape with B elements.
        """
        if not isinstance(z, Tensor):
            z = y.new_full((len(y), *self.system.cube_shape), 0.0 if z is None else float(z))
        rho = 1 / torch.as_tensor(gamma, dtype=y.dtype, device=y.device).reshape(-1)
        x: Tensor = self.system.data_step(z, y, rho if rho.numel() > 1 else rho[0])
        return x
