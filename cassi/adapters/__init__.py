"""Adapters: cameras for SciPy, PyLops and deepinv, and denoisers of deepinv for this package.

A function imports its library when it is called.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from cassi.priors.denoiser import Denoiser, Network
from cassi.systems import System

if TYPE_CHECKING:
    import pylops

    from cassi.adapters import deepinv, scipy

__all__ = ["as_linear_operator", "as_physics", "as_prior", "as_pylops"]


def as_linear_operator(system: System) -> scipy.CameraOperator:
    """Return a camera as a `scipy.sparse.linalg.LinearOperator` of flat arrays.

    `A @ x.ravel()` is A x for one cube `(C, H, W)`, and `A.H @ y.ravel()` is Aᵀy. The columns of a
    matrix are a batch. Arrays are NumPy's. The camera may be on any device, in any dtype.

    Args:
        system: the camera.

    Returns:
        The operator, `(K·H'·W', C·H·W)`, in the camera's dtype.

    Raises:
        TypeError: `system` is no camera.

    >>> import torch, cassi
    >>> A = as_linear_operator(cassi.SDCassi(torch.ones(4, 6), bands=3, step=1))
    >>> A.shape, (A.H @ (A @ torch.ones(72).numpy())).shape
    ((32, 72), (72,))
    """
    from cassi.adapters.scipy import CameraOperator

    return CameraOperator(system)


def as_pylops(system: System) -> pylops.LinearOperator:
    """Return a camera as a PyLops operator: `dims` (C, H, W), `dimsd` (K, H', W').

    Args:
        system: the camera.

    Returns:
        The `pylops.LinearOperator`, in the camera's dtype, of NumPy arrays.

    Raises:
        ImportError: PyLops is not installed: `pip install pylops`.
        TypeError: `system` is no camera.
    """
    _require_package("pylops")
    import pylops

    operator = as_linear_operator(system)
    cube_shape, measurement_shape = tuple(system.cube_shape), tuple(system.measurement_shape)
    return pylops.LinearOperator(operator, dims=cube_shape, dimsd=measurement_shape)


def as_physics(system: System, **options: Any) -> deepinv.CameraPhysics:
    """Return a camera as a `LinearPhysics` of deepinv, which solves by the camera's methods.

    `A` is the camera, `A_adjoint` its transpose, and `A_dagger` the minimum-norm solution.

        prox_l2(z, y, γ)  =  argmin_x γ/2 ‖Ax − y‖² + ½ ‖x − z‖²  =  data_step(z, y, ρ = 1/γ)

    A camera with a closed form gives the exact solution; deepinv's own operators run conjugate
    gradients. All methods are differentiable.

    Args:
        system: the camera; it becomes a submodule, so that `.to(device)` moves it.
        options: arguments of `LinearPhysics`, such as
            `noise_model=deepinv.physics.GaussianNoise(0.01)`.

    Returns:
        The `deepinv.physics.LinearPhysics`.

    Raises:
        ImportError: deepinv is not installed: `pip install deepinv`.
        TypeError: `system` is no camera.
    """
    _require_package("deepinv")
    from cassi.adapters.deepinv import CameraPhysics

    return CameraPhysics(system, **options)


def as_prior(denoiser: Network, **options: Any) -> Denoiser:
    """Return a denoiser of deepinv, or any `net(images, σ)`, as a prior of `cassi.solvers`.

    Args:
        denoiser: a `deepinv.models.Denoiser`, or anything else that `cassi.priors.Denoiser` takes.
        options: arguments of `cassi.priors.Denoiser`, such as `domain` (band, subspace, window or
            cube) and `sigma_range`.

    Raises:
        TypeError: the denoiser is not callable.
        ValueError: an option is out of range.
    """
    return Denoiser(denoiser, **options)


def _require_package(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"expected the package {package}; pip install 'cassi[{package}]'")
