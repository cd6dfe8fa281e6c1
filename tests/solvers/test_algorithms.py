"""The iterates of each algorithm against loops in NumPy, and what all of them keep to."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cassi.solvers
from cassi import ADMM, GAP, SDCassi
from cassi.solvers import Constant, Geometric, iterate
from cassi.solvers.schedules import as_schedule

CLASSES = {
    name: value
    for name, value in ((name, getattr(cassi.solvers, name)) for name in cassi.solvers.__all__)
    if inspect.isclass(value) and hasattr(value, "init") and hasattr(value, "step")
    if not getattr(value, "_is_protocol", False)
}
STEPS = 6
SIGMA = [0.5 * 0.8**i for i in range(STEPS)]


def _camera() -> tuple[SDCassi, Tensor, np.ndarray]:
    """A camera, a measurement, and the camera as a dense matrix."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand((4, 5), generator=generator, dtype=torch.float64) + 0.1
    system = SDCassi(mask, bands=3, step=1)
    y = torch.rand((1, 1, 4, 7), generator=generator, dtype=torch.float64)
    basis = torch.eye(60, dtype=torch.float64).view(60, 3, 4, 5)
    return system, y, system(basis).flatten(1).T.numpy()


def _shrink(x: Tensor, sigma: Any) -> Tensor:
    """A prior that is neither linear nor the identity."""
    return x - sigma * torch.tanh(x)


def _cubes(algorithm: Any, rho: float | None = None) -> list[np.ndarray]:
    system, y, _ = _camera()
    cubes: list[np.ndarray] = []
    iterate(
        algorithm,
        system,
        y,
        _shrink,
        iterations=STEPS,
        sigma=lambda i, n: SIGMA[i],
        rho=None if rho is None else Constant(rho),
        callback=lambda _, x: cubes.append(x.flatten().numpy().copy()),
    )
    return cubes


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.2])
def test_gap(accelerated: bool, rho: float) -> None:
    _, y_tensor, a = _camera()
    y = y_tensor.flatten().numpy()
    x = a.T @ np.linalg.solve(a @ a.T, y)
    target = y.copy()
    expected = []
    for sigma in SIGMA:
        v = x + a.T @ np.linalg.solve(a @ a.T + rho * np.eye(len(a)), target - a @ x)
        x = v - sigma * np.tanh(v)
        if accelerated:
            target = target + (y - a @ x)
        expected.append(x)
    got = _cubes(GAP(accelerated, rho))
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(got, _cubes(GAP(accelerated), rho))


def test_admm() -> None:
    _, y_tensor, a = _camera()
    y, rho = y_tensor.flatten().numpy(), 0.3
    x = a.T @ np.linalg.solve(a @ a.T, y)
    u = np.zeros_like(x)
    expected = []
    for sigma in SIGMA:
        v = np.linalg.solve(a.T @ a + rho * np.eye(60), a.T @ y + rho * (x - u))
        x = (v + u) - sigma * np.tanh(v + u)
        u = u + v - x
        expected.append(x)
    np.testing.assert_allclose(_cubes(ADMM(rho)), expected, rtol=1e-10, atol=1e-12)


def test_admm_solves_the_regularised_problem() -> None:
    """With prior(z) = z/(1+σ) it minimises ½‖Ax − y‖² + ρσ/2‖x‖²."""
    system, y, a = _camera()
    rho, sigma = 0.3, 0.5
    solution = iterate(
        ADMM(rho), system, y, lambda z, s: z / (1 + s), iterations=300, sigma=Constant(sigma)
    )
    expected = np.linalg.solve(a.T @ a + rho * sigma * np.eye(60), a.T @ y.flatten().numpy())
    np.testing.assert_allclose(solution.x.flatten().numpy(), expected, rtol=0, atol=1e-9)


def test_admm_stays_at_its_fixed_point() -> None:
    """At the minimum Aᵀ(y − Ax) = ρu and x = prior(x + u)."""
    system, y, _ = _camera()
    algorithm = ADMM(0.3)
    state = algorithm.init(y, system)
    for _ in range(300):
        state = algorithm.step(state, y, system, _shrink, 0.4, 0.3)
    gradient = system.adjoint(y - system(state.x))
    torch.testing.assert_close(gradient, 0.3 * state.dual, rtol=0, atol=1e-9)
    torch.testing.assert_close(_shrink(state.x + state.dual, 0.4), state.x, rtol=0, atol=1e-9)


def test_accelerated_gap_explains_the_measurement_where_plain_gap_does_not() -> None:
    system, y, _ = _camera()
    residuals = [
        iterate(GAP(flag), system, y, lambda z, s: z / (1 + s), iterations=200, sigma=Constant(0.3))
        .history[-1]
        .residual
        for flag in (True, False)
    ]
    assert residuals[0] < 1e-9
    assert residuals[1] > 0.1


def _tensors(state: Any) -> dict[str, Tensor]:
    values = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("name", CLASSES)
def test_steps_are_pure(name: str) -> None:
    system, y, _ = _camera()
    algorithm = CLASSES[name]()
    x0 = system.pinv(y) * 0.5
    kept = {"y": y.clone(), "x0": x0.clone()} | {
        key: value.clone() for key, value in system.named_buffers()
    }
    state = algorithm.init(y, system, x0)
    state = algorithm.step(state, y, system, _shrink, 0.3, 0.1)  # a state in the middle
    before = {key: value.clone() for key, value in _tensors(state).items()}
    first, second = (algorithm.step(state, y, system, _shrink, 0.3, 0.1) for _ in range(2))
    assert type(first) is type(state)
    assert not torch.equal(first.x, state.x)
    for key, value in _tensors(first).items():
        assert torch.equal(value, _tensors(second)[key]), key
    after = {"y": y, "x0": x0} | dict(system.named_buffers()) | _tensors(state)
    for key, value in (kept | before).items():
        assert torch.equal(after[key], value), key


@pytest.mark.parametrize("name", CLASSES)
def test_a_residual_in_the_state_is_that_of_its_cube(name: str) -> None:
    system, y, _ = _camera()
    algorithm = CLASSES[name]()
    state = algorithm.init(y, system)
    for _ in range(3):
        state = algorithm.step(state, y, system, _shrink, 0.3, algorithm.rho)
        if state.residual is not None:
            torch.testing.assert_close(state.residual, y - system(state.x))


@pytest.mark.parametrize("name", CLASSES)
def test_parameters_may_be_tensors(name: str) -> None:
    """As in an unrolled network: σ and ρ are learned, and get gradients."""
    system, y, _ = _camera()
    algorithm = CLASSES[name]()
    sigma = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    rho = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    state = algorithm.init(y, system)
    for _ in range(2):
        state = algorithm.step(state, y, system, _shrink, sigma, rho)
    for gradient in torch.autograd.grad(state.x.square().sum(), (sigma, rho)):
        assert gradient.abs() > 0
    plain = algorithm.init(y, system)
    for _ in range(2):
        plain = algorithm.step(plain, y, system, _shrink, 0.3, 0.2)
    torch.testing.assert_close(state.x, plain.x, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", CLASSES)
def test_only_the_protocol_of_a_camera_is_used(name: str) -> None:
    """A dense matrix with four methods is camera enough, and gives the same cubes."""
    system, y, a = _camera()
    matrix = torch.from_numpy(a)

    class Dense:
        def __call__(self, x: Tensor) -> Tensor:
            return (x.flatten(1) @ matrix.T).view(-1, 1, 4, 7)

        def adjoint(self, y: Tensor) -> Tensor:
            return (y.flatten(1) @ matrix).view(-1, 3, 4, 5)

        def pinv(self, y: Tensor) -> Tensor:
            return (y.flatten(1) @ torch.linalg.pinv(matrix).T).view(-1, 3, 4, 5)

        def data_step(self, v: Tensor, y: Tensor, rho: Any = 0.0) -> Tensor:
            gram = matrix @ matrix.T + rho * torch.eye(28, dtype=y.dtype)
            z = torch.linalg.solve(gram, (y - self(v)).flatten(1).T).T
            return v + self.adjoint(z.view(-1, 1, 4, 7))

    cubes = [
        iterate(CLASSES[name](), camera, y, _shrink, iterations=4, sigma=Constant(0.3)).x
        for camera in (system, Dense())
    ]
    torch.testing.assert_close(*cubes, rtol=0, atol=1e-10)


def test_geometric() -> None:
    schedule = Geometric(0.4, 0.1)
    assert [schedule(i, 3) for i in range(3)] == pytest.approx([0.4, 0.2, 0.1])
    assert schedule(0, 1) == 0.4
    assert Geometric(0.1, 0.4)(2, 3) == pytest.approx(0.4)
    for start, end in ((0.0, 0.1), (0.1, 0.0), (-1.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="schedule: expected a start and an end > 0, got"):
            Geometric(start, end)


def test_constant_and_what_becomes_a_schedule() -> None:
    assert [Constant(0.3)(i, 2) for i in range(2)] == [0.3, 0.3]
    assert as_schedule(2) == Constant(2.0)
    schedule = Geometric(1.0, 0.1)
    assert as_schedule(schedule) is schedule
