"""A camera as the physics of deepinv."""

from typing import Any

import torch
from deepinv.physics import LinearPhysics
from torch import Tensor

from cassi.systems import System


class CameraPhysics(LinearPhysics):
    """A `LinearPhysics` around a camera; see `cassi.adapters.as_physics`.

    deepinv passes further keyword arguments to every method, such as parameters of the physics. A
    camera has no such parameters, so these arguments are ignored.
    """

    def __init__(self, system: System, **options: Any) -> None:
        if not isinstance(system, System):
            raise TypeError(
                f"expected a camera, such as cassi.SDCassi, got {type(system).__name__}"
            )
        super().__init__(img_size=tuple(system.cube_shape), **options)
        self.system = system

    def A(self, x: Tensor, **_: object) -> Tensor:
        """Simulate the measurement without noise, `(B, C, H, W)` → `(B, K, H', W')`."""
        return self.system(x)

    def A_adjoint(self, y: Tensor, **_: object) -> Tensor:
        """Apply the transpose, `(B, K, H', W')` → `(B, C, H, W)`."""
        return self.system.adjoint(y)

    def A_dagger(self, y: Tensor, **_: object) -> Tensor:
        """Apply the Moore–Penrose inverse Aᵀ(AAᵀ)⁺. Options of an iteration are ignored."""
        return self.system.pinv(y)

    def prox_l2(
        self, z: Tensor | float | None, y: Tensor, gamma: Tensor | float, **_: object
    ) -> Tensor:
        """Solve argmin_x γ/2 ‖Ax − y‖² + ½ ‖x − z‖². Options of an iteration are ignored.

        A number z stands for a constant cube, None for zeros. γ > 0 is one number, or a tensor of B
        elements. y is `(B, K, H', W')`, and so the result is `(B, C, H, W)`.
        """
        if not isinstance(z, Tensor):
            z = y.new_full((len(y), *self.system.cube_shape), 0.0 if z is None else float(z))
        rho = 1 / torch.as_tensor(gamma, dtype=y.dtype, device=y.device).reshape(-1)
        return self.system.data_step(z, y, rho if rho.numel() > 1 else rho[0])
