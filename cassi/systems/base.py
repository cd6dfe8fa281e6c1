"""The base class of all cameras, their inverses and data steps, and wrappers around a camera."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from cassi.ops._checks import canonical_damping
from cassi.ops._recording import is_tracked, is_wrapped
from cassi.systems.arguments import Array, check_shape
from cassi.systems.conjugate import Apply, ConjugateGradients, SolveReport

S = TypeVar("S", bound="System")


class System(nn.Module, ABC):
    """A linear camera model A from cube `(B, C, H, W)` to measurement `(B, K, H', W')`.

    A subclass defines `forward`, `adjoint` and two shapes. The inverse and the data step follow,
    by conjugate gradients unless it defines `gram_solve` in closed form. It is an `nn.Module`:
    `.to(device, dtype)` moves it, and `state_dict` holds its calibration.

    Attributes:
        conjugate: tolerance and number of iterations of conjugate gradients.
        last_solve: report of the last solve by conjugate gradients; None before the first. It has
            no influence on any result.
        axis: axis of the dispersion, -1 along columns, -2 along rows.
        part_axis: axis along which a cube may be cut, -2 or -1: the camera mixes no pixels along
            it. None if there is no such axis.
        unit: unit of the camera's cubes, a `cassi.calibration.unit.Unit`; None if the camera's
            file has no response. Operators ignore the unit.
        is_broadband: whether the measurements are a sensor's frames in broadband light. Estimation
            of the camera depends on this; operators ignore it.
        is_guided: whether the camera has a guide's picture of the scene; see `around_prior`.
    """

    unit: Any = None
    is_broadband: bool = False
    is_guided: bool = False
    axis: int = -1
    part_axis: int | None = None
    conjugate: ConjugateGradients = ConjugateGradients()
    last_solve: SolveReport | None = None

    @property
    def base_camera(self) -> System:
        """The camera without wrappers. Calibrations and checks work with it."""
        return self

    @property
    def unweighted(self) -> System:
        """The camera without weights: itself, unless it is `Weighted`."""
        return self

    @property
    def codes_frames(self) -> bool:
        """Whether the bands may be frames of a video."""
        return False

    @property
    def good_pixels(self) -> Tensor | None:
        """Bool, `(1|B, K, H', W')`, True at good detector pixels; None if all are good."""
        return None

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
                `(1|B, K, H', W')`. An infinite ρ leaves the pixel out: z is zero there.

        Returns:
            z, shaped like r, with the gradient of the exact solution. `last_solve` has its error.

        Raises:
            ValueError: r is not measurement-shaped, or ρ is negative or does not fit r.
        """
        return self._solve(r, rho, None)

    def begin(self) -> System:
        """Return the camera for one run of a solver.

        If `gram_solve` runs conjugate gradients, the result is a `WarmStart`: each solve starts
        from the result of the last one. If it has a closed form, the result is the camera itself,
        or a copy with a fixed gram.
        """
        return self if self.has_closed_form else WarmStart(self)

    @property
    def has_closed_form(self) -> bool:
        """Whether `gram_solve` has a closed form. Such a solve reads no value on the host."""
        return type(self).gram_solve is not System.gram_solve

    def part(self, start: int, stop: int) -> System:
        """Return the camera of the rows (columns) start to stop of cube and measurement.

        Args:
            start: first row or column along `part_axis`.
            stop: first row or column after the part.

        Raises:
            ValueError: the camera mixes rows and columns, so that it has no parts.
        """
        raise ValueError(
            f"{type(self).__name__}: this camera mixes rows and columns, so that its scene has no "
            "blocks; set memory_budget=null"
        )

    def weighted(self, variance: Array | None = None, bad_pixels: Array | None = None) -> System:
        """Return the camera with a noise variance for each detector pixel; see `Weighted`."""
        return self.copy_metadata_to(Weighted(self, variance, bad_pixels))

    def copy_metadata_to(self, camera: S) -> S:
        """Copy `unit` and `is_broadband` of this camera to another, and return the other."""
        camera.unit, camera.is_broadband = self.unit, self.is_broadband
        return camera

    def wrap_like_self(self, camera: System) -> System:
        """Wrap another camera with the sensor of this one: with its bad pixels and variances."""
        return camera

    def without_guide(self, y: Tensor) -> tuple[Tensor, System, tuple[Tensor, Tensor] | None]:
        """Separate the measurement of a camera from the picture of its guide.

        Returns:
            The measurement, the camera without the guide, and the guide's picture and response.
            The pair of picture and response is None if there is no guide.
        """
        return y, self, None

    def without_bad_pixels(self, y: Tensor) -> Tensor:
        """Return the measurement with zeros at bad pixels; only `Weighted` cameras have some."""
        return y

    def around_prior(self, prior: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the prior for a run; if there is a guide, one that pulls towards its picture."""
        return prior

    def _solve(self, r: Tensor, rho: float | Tensor, start: Tensor | None) -> Tensor:
        check_shape("y", r, self.measurement_shape)
        z, self.last_solve = self._solve_with_report(r, canonical_damping(rho, r, r), start)
        return z

    def _solve_with_report(
        self, r: Tensor, weight: Tensor, start: Tensor | None = None
    ) -> tuple[Tensor, SolveReport]:
        by_name = self._find_tracked_tensors()

        # A gradient needs one more solve. A transform of `torch.func` passes its own tensors to
        # this solve, and they must stand in for the camera's parameters and buffers.
        def solve_again(g: Tensor, weight: Tensor, *tensors: Tensor) -> Tensor:
            with self._substitute_tensors(dict(zip(by_name, tensors, strict=True))):
                return self._solve_with_report(g, weight)[0]

        return self.conjugate.solve(
            lambda z: self(self.adjoint(z)),
            r,
            weight,
            start,
            self._precondition(weight),
            tuple(by_name.values()),
            solve_again,
        )

    def _find_tracked_tensors(self) -> dict[str, Tensor]:
        """Return the parameters and buffers that need derivatives or are mapped by vmap."""
        named_tensors = [
            *self.named_parameters(remove_duplicate=False),
            *self.named_buffers(remove_duplicate=False),
        ]
        return {
            name: value for name, value in named_tensors if is_tracked(value) or is_wrapped(value)
        }

    def _substitute_tensors(self, tensors: dict[str, Tensor]) -> AbstractContextManager[None]:
        """Return a context in which these tensors are the camera's parameters and buffers."""
        # Outside of transforms the tensors are the camera's own, so nothing has to be replaced.
        current = self._find_tracked_tensors()
        if len(current) == len(tensors) and all(
            current.get(name) is tensors[name] for name in tensors
        ):
            return nullcontext()
        return _reparametrize_module(self, tensors)

    def _precondition(self, rho: Tensor) -> Apply | None:
        """Return a preconditioner, z ↦ M⁻¹z with M ≈ AAᵀ + diag ρ, or None."""
        return None

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
                `(1|B, K, H', W')`. An infinite ρ leaves the pixel out; 0 projects v onto
                {x : Ax = y}.

        Returns:
            The cube `(B, C, H, W)`.
        """
        return self.add_adjoint(v, self.gram_solve(y - self(v), rho))

    def add_adjoint(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + Aᵀy: `(B, C, H, W)` and `(B, K, H', W')` → `(B, C, H, W)`."""
        return v + self.adjoint(y)

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Simulate the measurement of the cube E a: `(B, R, H, W)` → `(B, K, H', W')`.

        Args:
            components: a, `(B, R, H, W)`.
            basis: E, `(B, C, R)`.
        """
        cube = torch.einsum("bcr,brhw->bchw", basis, components)
        return cast(Tensor, self(cube.to(components.dtype)))

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return the components Eᵀ Aᵀ y: `(B, K, H', W')` → `(B, R, H, W)`.

        Args:
            y: measurement `(B, K, H', W')`.
            basis: E, `(B, C, R)`.
        """
        return torch.einsum("bcr,bchw->brhw", basis, self.adjoint(y))

    def residual_subspace(self, y: Tensor, components: Tensor, basis: Tensor) -> Tensor:
        """Return y − A E a; see `forward_subspace`."""
        return y - self.forward_subspace(components, basis)

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + A Aᵀ y: `(B, K, H', W')` twice → `(B, K, H', W')`."""
        return v + self(self.adjoint(y))


class SystemWrapper(System):
    """A wrapper around a camera. Attributes that the wrapper lacks are read from the camera."""

    system: System

    def __init__(self, system: System) -> None:
        super().__init__()
        self.system = system
        self.conjugate, self.part_axis = system.conjugate, system.part_axis

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.system.cube_shape

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""
        return self.system.measurement_shape

    @property
    def last_solve(self) -> SolveReport | None:  # type: ignore[override]
        """Report of the camera's last solve by conjugate gradients."""
        return self.system.last_solve

    @property
    def good_pixels(self) -> Tensor | None:
        """Good pixels of the wrapped camera; None if all are good."""
        return self.system.good_pixels

    @property
    def axis(self) -> int:  # type: ignore[override]
        """Axis of the wrapped camera's dispersion, -1 or -2."""
        return self.system.axis

    @property
    def is_guided(self) -> bool:  # type: ignore[override]
        """Whether the wrapped camera has a second picture of the scene."""
        return self.system.is_guided

    def around_prior(self, prior: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the prior of a run, as the wrapped camera changes it."""
        return self.system.around_prior(prior)

    def __getattr__(self, name: str) -> Any:
        """Return the camera's attribute: mask, bands, step, axis, …."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            # While an object is built or unpickled, `system` is not set yet. Without this test
            # the next line would ask for it again, without end.
            if name == "system":
                raise
            return getattr(self.system, name)


class DelegatingWrapper(SystemWrapper):
    """A wrapper that leaves measuring and solving to its camera.

    Subclasses change the measurement in `_prepare_measurement` and ρ in `damping`.
    """

    @property
    def base_camera(self) -> System:
        """The wrapped camera without wrappers."""
        return self.system.base_camera

    @property
    def unweighted(self) -> System:
        """The wrapped camera without weights."""
        return self.system.unweighted

    @property
    def has_closed_form(self) -> bool:
        """Whether the wrapped camera solves in closed form."""
        return self.system.has_closed_form

    def without_bad_pixels(self, y: Tensor) -> Tensor:
        """Return the measurement with zeros for the camera's bad pixels."""
        return self.system.without_bad_pixels(y)

    def _prepare_measurement(self, y: Tensor) -> Tensor:
        """Return a measurement as the wrapped camera gets it."""
        return y

    def damping(self, rho: float | Tensor) -> float | Tensor:
        """Return the ρ that the wrapped camera gets."""
        return rho

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        return cast(Tensor, self.system(x))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        return self.system.adjoint(self._prepare_measurement(y))

    def add_adjoint(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + Aᵀy."""
        return self.system.add_adjoint(v, self._prepare_measurement(y))

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Simulate the measurement of the cube E a."""
        return self.system.forward_subspace(components, basis)

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return the components Eᵀ Aᵀ y."""
        return self.system.adjoint_subspace(self._prepare_measurement(y), basis)

    def residual_subspace(self, y: Tensor, components: Tensor, basis: Tensor) -> Tensor:
        """Return y − A E a."""
        return self.system.residual_subspace(y, components, basis)

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + A Aᵀ y."""
        return self.system.add_gram_product(v, self._prepare_measurement(y))

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (AAᵀ + diag ρ) z = r, as the camera does."""
        return self.system.gram_solve(self._prepare_measurement(r), self.damping(rho))

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖², as the camera does."""
        return self.system.data_step(v, self._prepare_measurement(y), self.damping(rho))


class WarmStart(DelegatingWrapper):
    """A camera within one run of a solver. Each solve starts from the result of the last one.

    Data steps of one run differ little. So conjugate gradients need a third to a tenth of the
    iterations. Results agree with those of the camera itself to the tolerance. Every run has its
    own object, so that no run depends on an earlier one.
    """

    has_closed_form = False
    _last: Tensor | None = None

    def begin(self) -> System:
        """Return the object itself, which belongs to one run already."""
        return self

    def pinv(self, y: Tensor) -> Tensor:
        """Apply the Moore–Penrose inverse; its solve starts from zero."""
        return self.system.pinv(y)

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖²; the solve starts from the last solution."""
        return System.data_step(self, v, y, rho)

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (AAᵀ + ρI) z = r, starting from the last solution."""
        start = self._last if self._last is not None and self._last.shape == r.shape else None
        z = self.system._solve(r, rho, start)
        self._last = z.detach()
        return z


class Weighted(DelegatingWrapper):
    r"""A camera with bad pixels, and a noise variance for every pixel of its detector.

    Measurements keep their unit. The data step is weighted:

        argmin_x ½ Σ_i (Ax − y)_i² / d_i + ρ/2 ‖x − v‖²  =  v + Aᵀ(AAᵀ + ρ diag d)⁻¹(y − Av)

    This step has a closed form if that of the camera has one. A bad pixel has no row in A: no
    result depends on its value.

    Args:
        system: the camera.
        variance: d > 0, `(K, H', W')` or `(1|B, K, H', W')`, relative. Its mean over the detector
            should be 1, so that ρ keeps its meaning. None is 1 everywhere.
        bad_pixels: nonzero at bad pixels, `(H', W')`, `(K, H', W')` or `(1|B, K, H', W')`; a
            tensor, or anything that NumPy makes an array of. None: all are good.

    Attributes:
        is_good: bool, `(1|B, K, H', W')`, False at bad pixels.
        variance: d, `(1, K, H', W')` or `(B, K, H', W')`.

    Raises:
        TypeError: `system` is no camera.
        ValueError: a shape does not fit the detector, a variance is not a finite number > 0, or all
            pixels are bad.

    >>> from cassi.systems import SDCassi
    >>> camera = SDCassi(torch.ones(2, 3), bands=2, step=1)
    >>> Weighted(camera, bad_pixels=[[0, 1, 0, 0], [0, 0, 0, 0]])(torch.ones(1, 2, 2, 3))
    tensor([[[[1., 0., 2., 1.],
              [1., 2., 2., 1.]]]])
    """

    system: System
    is_good: Tensor
    variance: Tensor
    _bad_damping: Tensor  # infinite at bad pixels, else 0
    _good_weight: Tensor  # 0 at bad pixels, else 1

    def __init__(
        self, system: System, variance: Array | None = None, bad_pixels: Array | None = None
    ) -> None:
        if not isinstance(system, System):
            raise TypeError(f"Weighted: expected a camera, got {type(system).__name__}")
        reference = next(iter([*system.parameters(), *system.buffers()]))
        shape, device = system.measurement_shape, reference.device
        is_good = torch.ones(1, *shape, dtype=torch.bool, device=device)
        d = torch.ones(1, *shape, dtype=torch.float32, device=device)
        if bad_pixels is not None:
            is_good = ~_as_pixel_map("bad_pixels", bad_pixels, shape, device).to(torch.bool)
        if variance is not None:
            d = _as_pixel_map("variance", variance, shape, device)
            d = d.detach().to(torch.promote_types(d.dtype, torch.float32))
            if not bool(((d > 0) & d.isfinite()).all()):
                raise ValueError(
                    f"variance: expected finite numbers > 0, the least is {float(d.min()):g}"
                )
        if isinstance(system, Weighted):
            is_good, d, system = is_good & system.is_good, d * system.variance, system.system
        if not bool(is_good.flatten(1).any(1).all()):
            raise ValueError(
                "bad_pixels: expected some good pixels (value 0) in every sample, got none"
            )
        super().__init__(system)
        self._set_weights(is_good, d)

    def _set_weights(self, is_good: Tensor, variance: Tensor) -> None:
        self.register_buffer("is_good", is_good)
        self.register_buffer("variance", variance)
        bad_damping = torch.where(is_good, 0.0, torch.inf).to(variance.dtype)
        self.register_buffer("_bad_damping", bad_damping, persistent=False)
        self.register_buffer("_good_weight", is_good.to(variance.dtype), persistent=False)

    @property
    def unweighted(self) -> System:
        """The wrapped camera, which has no weights."""
        return self.system

    def wrap_like_self(self, camera: System) -> System:
        """Return another camera with the bad pixels and the noise variance of this one."""
        return self.system.wrap_like_self(camera).weighted(self.variance, ~self.is_good)

    @property
    def good_pixels(self) -> Tensor:
        """Bool, `(1|B, K, H', W')`, False at bad pixels; the same as `is_good`."""
        return self.is_good

    def without_bad_pixels(self, y: Tensor) -> Tensor:
        """Return the measurement with zeros for the bad pixels."""
        return torch.where(self.is_good, y, 0)

    def _prepare_measurement(self, y: Tensor) -> Tensor:
        return self.without_bad_pixels(y)

    def damping(self, rho: float | Tensor) -> Tensor:
        """Return ρ·d, `(1|B, K, H', W')`, infinite at bad pixels; see `gram_solve` for ρ."""
        if not isinstance(rho, Tensor):
            return torch.add(self._bad_damping, self.variance, alpha=rho)
        weight = rho.to(self.variance)
        if weight.ndim < 3:
            weight = weight.reshape(-1, 1, 1, 1)
        return torch.addcmul(self._bad_damping, weight, self.variance)

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement, zero at bad pixels: `(B, C, H, W)` → `(B, K, H', W')`."""
        return self.without_bad_pixels(self.system(x))

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Simulate the measurement of the cube E a, as the camera does, zero at bad pixels."""
        image = self.system.forward_subspace(components, basis)
        # A camera's output is finite, so a product can replace torch.where. The product takes a
        # tenth of the time.
        return image * self._good_weight.to(image.dtype)

    def residual_subspace(self, y: Tensor, components: Tensor, basis: Tensor) -> Tensor:
        """Return y − A E a: y itself at bad pixels."""
        image = self.system.forward_subspace(components, basis)
        return torch.addcmul(y, self._good_weight.to(image.dtype), image, value=-1)

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + A Aᵀ y: v itself at bad pixels."""
        return torch.where(self.is_good, super().add_gram_product(v, y), v)

    def begin(self) -> System:
        """Return the camera for one run of a solver. The run's y must be zero at bad pixels."""
        return _ZeroedMeasurements(self) if self.has_closed_form else WarmStart(self)

    def _solve(self, r: Tensor, rho: float | Tensor, start: Tensor | None) -> Tensor:
        return self.system._solve(self.without_bad_pixels(r), self.damping(rho), start)

    def part(self, start: int, stop: int) -> Weighted:
        """Return the camera of a part of the scene; see `System.part`."""
        camera = self.system.part(start, stop)
        axis = self.part_axis
        assert axis is not None
        is_good, d = (
            value.narrow(axis, start, stop - start) for value in (self.is_good, self.variance)
        )
        # A part of a frame may have no good pixel, which the constructor refuses.
        weighted_part = Weighted(camera, d)
        weighted_part._set_weights(is_good, d)
        return self.copy_metadata_to(weighted_part)

    def extra_repr(self) -> str:
        """Return the number of bad pixels in one line."""
        return f"bad pixels={int((~self.is_good).sum())}"


def _as_pixel_map(
    name: str, value: Array, shape: tuple[int, int, int], device: torch.device
) -> Tensor:
    tensor = torch.as_tensor(value, device=device)
    tensor = tensor[(None,) * (4 - tensor.ndim)] if tensor.ndim in (2, 3) else tensor
    if tensor.ndim != 4 or tuple(tensor.shape[1:]) not in (shape, (1, *shape[1:])):
        raise ValueError(
            f"{name}: expected (K, H', W') = {shape} as the camera's detector, "
            f"got {tuple(tensor.shape)}"
        )
    return tensor.expand(-1, *shape)


class _ZeroedMeasurements(Weighted):
    """A weighted camera for one run of a solver, whose measurements are zero at bad pixels.

    So no method masks a measurement again. The damping map is kept, because ρ seldom changes within
    a run.
    """

    def __init__(self, camera: Weighted) -> None:
        DelegatingWrapper.__init__(self, camera.system.begin())
        self._set_weights(camera.is_good, camera.variance)
        self.damping = lru_cache(1)(super().damping)  # type: ignore[method-assign]

    def add_gram_product(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + A Aᵀ y. Values at bad pixels are any finite numbers; no result uses them."""
        return self.system.add_gram_product(v, y)

    def without_bad_pixels(self, y: Tensor) -> Tensor:
        """Return y, which is zero at bad pixels already."""
        return y


def dot_test(
    system: System, batch: int = 2, seed: int = 0, verbose: bool = False
) -> tuple[float, float]:
    """Compare ⟨Ax, y⟩ with ⟨x, Aᵀy⟩ for random x and y, summed in float64.

    Args:
        system: the camera to test, on any device and in any dtype.
        batch: number of random cubes.
        seed: seed of the random numbers.
        verbose: print both inner products and their relative difference.

    Returns:
        Both inner products. They agree to about 1e-6 of ‖Ax‖‖y‖ in float32, 1e-14 in float64.
    """
    values = [*system.parameters(), *system.buffers()]
    reference = next(value for value in values if value.is_floating_point())
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((batch, *system.cube_shape), generator=generator, dtype=torch.float64)
    y = torch.randn((batch, *system.measurement_shape), generator=generator, dtype=torch.float64)
    x, y = (value.to(device=reference.device, dtype=reference.dtype) for value in (x, y))
    forward_product = (system(x).double() * y.double()).sum().item()
    adjoint_product = (x.double() * system.adjoint(y).double()).sum().item()
    if verbose:
        largest = max(abs(forward_product), abs(adjoint_product), 1e-300)
        gap = abs(forward_product - adjoint_product) / largest
        print(
            f"<Ax, y> = {forward_product:.12g}, <x, A'y> = {adjoint_product:.12g}, "
            f"relative difference {gap:.2e}"
        )
    return forward_product, adjoint_product
