"""What every camera model offers, and what follows from a few methods alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from cassi.ops._checks import damping
from cassi.systems.arguments import check_shape
from cassi.systems.conjugate import ConjugateGradients, SolveReport


class System(nn.Module, ABC):
    """A linear camera model A from cube `(B, C, H, W)` to measurement `(B, K, H', W')`.

    A subclass gives `forward`, `adjoint` and its two shapes; the inverse and the data step follow,
    by conjugate gradients where it does not give `gram_solve` in closed form. It is an
    `nn.Module`: `.to(device, dtype)` moves it, `state_dict` holds its calibration.

    Attributes:
        conjugate: tolerance and number of iterations, where conjugate gradients are used.
        last_solve: how far the latest solve by conjugate gradients came; None before the first. It
            is a report and has no influence on any result.
        part_axis: axis along which a cube may be cut, -2 or -1, because the camera mixes nothing
            there; None where it does.
    """

    part_axis: int | None = None
    conjugate: ConjugateGradients = ConjugateGradients()
    last_solve: SolveReport | None = None

    @property
    @abstractmethod
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""

    @property
    @abstractmethod
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement y = A x: `(B, C, H, W)` → `(B, K, H', W')`."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose Aᵀ y: `(B, K, H', W')` → `(B, C, H, W)`."""

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (AAᵀ + diag ρ) z = r by conjugate gradients, see `ConjugateGradients`.

        Args:
            r: measurement-shaped right-hand side `(B, K, H', W')`.
            rho: ρ >= 0, a number, one value per sample `(B,)`, or one per detector pixel
                `(1|B, K, H', W')`; infinite where a pixel has no influence: z is zero there.

        Returns:
            z, shaped like r, with the gradient of the exact solution. `last_solve` says how exact
            it is itself.

        Raises:
            ValueError: r is not measurement-shaped, ρ is negative, or does not fit r.
        """
        return self._solve(r, rho, None)

    def begin(self) -> Any:
        """Return what a run of a solver uses in this camera's place.

        Where conjugate gradients are used, it starts every data step where the last one ended, see
        `WarmStart`; otherwise it is the camera itself.
        """
        return WarmStart(self) if type(self).gram_solve is System.gram_solve else self

    def part(self, start: int, stop: int) -> System:
        """Return the camera that sees the rows (columns) start to stop of cube and measurement.

        Args:
            start: first row, or column, along `part_axis`.
            stop: the one after the last.

        Raises:
            ValueError: the camera mixes rows and columns, so that no part of it is a camera.
        """
        raise ValueError(
            f"{type(self).__name__}: a scene cannot be cut into blocks for a camera that mixes "
            "rows and columns; leave memory_budget=null"
        )

    def _solve(self, r: Tensor, rho: float | Tensor, start: Tensor | None) -> Tensor:
        check_shape("y", r, self.measurement_shape)
        weight = damping(rho, r, r)
        z, self.last_solve = self.conjugate.solve(lambda z: self(self.adjoint(z)), r, weight, start)
        return z

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse Aᵀ(AAᵀ)⁺ y: the minimum-norm solution."""
        return self.adjoint(self.gram_solve(y))

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖² = v + Aᵀ(AAᵀ + ρI)⁻¹(y − Av).

        With one ρ per detector pixel: argmin_x ½ (Ax − y)ᵀ diag(ρ)⁻¹ (Ax − y) + ½‖x − v‖², see
        `cassi.ops.data_step`.

        Args:
            v: cube `(B, C, H, W)`.
            y: measurement `(B, K, H', W')`.
            rho: ρ >= 0, a number, one value per sample `(B,)`, or one per detector pixel
                `(1|B, K, H', W')`; infinite where a pixel has no influence. 0 projects v onto
                {x : Ax = y}.
        """
        return v + self.adjoint(self.gram_solve(y - self(v), rho))


class WarmStart:
    """A camera within one run of a solver: its data steps hardly change from one to the next.

    Within the tolerance of conjugate gradients the results are those of the camera itself, in a
    third to a tenth of the iterations. It is made anew for each run, so that no run depends on what
    was done before it.

    Args:
        system: the camera.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self._last: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Simulate the measurement."""
        y: Tensor = self.system(x)
        return y

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose."""
        return self.system.adjoint(y)

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse."""
        return self.system.pinv(y)

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖², from where the last data step ended."""
        r = y - self.system(v)
        start = self._last if self._last is not None and self._last.shape == r.shape else None
        z = self.system._solve(r, rho, start)
        self._last = z.detach()
        return v + self.system.adjoint(z)


def dot_test(
    system: System, batch: int = 2, seed: int = 0, verbose: bool = False
) -> tuple[float, float]:
    """Compare ⟨Ax, y⟩ with ⟨x, Aᵀy⟩ for random x and y, summed in float64.

    Args:
        system: the operator pair to test, on any device and in any dtype.
        batch: number of random cubes.
        seed: of the random numbers.
        verbose: print both inner products and their relative difference.

    Returns:
        Both inner products. They agree to about 1e-6 of ‖Ax‖‖y‖ in float32, 1e-14 in float64.
    """
    like = next(iter([*system.parameters(), *system.buffers()]))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((batch, *system.cube_shape), generator=generator, dtype=torch.float64)
    y = torch.randn((batch, *system.measurement_shape), generator=generator, dtype=torch.float64)
    x, y = (value.to(device=like.device, dtype=like.dtype) for value in (x, y))
    left = (system(x).double() * y.double()).sum().item()
    right = (x.double() * system.adjoint(y).double()).sum().item()
    if verbose:
        gap = abs(left - right) / max(abs(left), abs(right), 1e-300)
        print(f"<Ax, y> = {left:.12g}, <x, A'y> = {right:.12g}, relative difference {gap:.2e}")
    return left, right
