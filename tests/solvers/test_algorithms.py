"""The iterates of each algorithm against loops in NumPy, and what all of them keep to."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from shared import ALGORITHMS
from torch import Tensor

from cassi import ADMM, GAP, SDCassi
from cassi.solvers import (
    FISTA,
    HQS,
    Constant,
    Geometric,
    Linear,
    Phases,
    Steps,
    TwIST,
    iterate,
    largest_eigenvalue,
)
from cassi.solvers.schedules import as_schedule

STEPS = 6
SIGMA = [0.5 * 0.8**i for i in range(STEPS)]
FLAGS = [(accelerated, rho) for accelerated in (False, True) for rho in (0.0, 0.2)]


def _camera():
    """A camera, a measurement, and the camera as a dense matrix."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand((4, 5), generator=generator, dtype=torch.float64) + 0.1
    system = SDCassi(mask, bands=3, step=1)
    y = torch.rand((1, 1, 4, 7), generator=generator, dtype=torch.float64)
    basis = torch.eye(60, dtype=torch.float64).view(60, 3, 4, 5)
    return system, y, system(basis).flatten(1).T.numpy()


def _shrink(x, sigma):
    """A prior that is neither linear nor the identity."""
    return x - sigma * torch.tanh(x)


def _cubes(algorithm, sigmas=SIGMA, prior=_shrink, rho=None):
    system, y, _ = _camera()
    cubes = []
    iterate(
        algorithm,
        y,
        system,
        prior,
        iterations=len(sigmas),
        sigma=lambda i, n: sigmas[i],
        rho=None if rho is None else Constant(rho),
        callback=lambda _, x: cubes.append(x.flatten().numpy().copy()),
    )
    return cubes


def _shrunk(v, sigma):
    return v - sigma * np.tanh(v)


def _gap(a, y, x, accelerated, rho):
    target = y
    for sigma in SIGMA:
        v = x + a.T @ np.linalg.solve(a @ a.T + rho * np.eye(len(a)), target - a @ x)
        x = _shrunk(v, sigma)
        target = target + (y - a @ x) if accelerated else target
        yield x


def _hqs(a, y, x, rho):
    for sigma in SIGMA:
        x = _shrunk(np.linalg.solve(a.T @ a + rho * np.eye(60), a.T @ y + rho * x), sigma)
        yield x


def _admm(a, y, x, rho, relaxation):
    u = np.zeros_like(x)
    for sigma in SIGMA:
        v = np.linalg.solve(a.T @ a + rho * np.eye(60), a.T @ y + rho * (x - u))
        v = relaxation * v + (1 - relaxation) * x
        x = _shrunk(v + u, sigma)
        u = u + v - x
        yield x


def _fista(a, y, x, rho, restart):
    length = np.linalg.norm(a, 2) ** 2 + rho
    z, t = x, 1.0
    for sigma in SIGMA:
        last, x = x, _shrunk(z + a.T @ (y - a @ z) / length, sigma)
        if restart and (z - x) @ (x - last) > 0:
            t = 1.0
        following = (1 + np.sqrt(1 + 4 * t**2)) / 2
        z = x + (t - 1) / following * (x - last)
        t = following
        yield x


LOOPS = [
    *((GAP(flag, rho), partial(_gap, accelerated=flag, rho=rho)) for flag, rho in FLAGS),
    (HQS(0.3), partial(_hqs, rho=0.3)),
    *((ADMM(0.3, r), partial(_admm, rho=0.3, relaxation=r)) for r in (0.5, 1.0, 1.6)),
    *((FISTA(0.3, flag), partial(_fista, rho=0.3, restart=flag)) for flag in (False, True)),
]


@pytest.mark.parametrize(("algorithm", "loop"), LOOPS, ids=[str(each[0]) for each in LOOPS])
def test_iterates_are_those_of_a_loop_in_numpy(algorithm, loop):
    _, y, a = _camera()
    y = y.flatten().numpy()
    expected = list(loop(a, y, a.T @ np.linalg.solve(a @ a.T, y)))
    np.testing.assert_allclose(_cubes(algorithm), expected, rtol=1e-10, atol=1e-12)


def test_a_schedule_of_rho_is_in_place_of_the_algorithms_own():
    np.testing.assert_array_equal(_cubes(GAP(True, 0.2)), _cubes(GAP(True), rho=0.2))


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("penalised", [False, True])
def test_twist(monotone, penalised):
    """With an overshooting two-step move, so that the safeguard has something to do."""
    _, y_tensor, a = _camera()
    y, rho, least = y_tensor.flatten().numpy(), 0.3, 1e-3
    sigmas = [0.5 if i % 4 < 2 else 0.0 for i in range(12)]
    length = np.linalg.norm(a, 2) ** 2 + rho
    r = (1 - np.sqrt(least)) / (1 + np.sqrt(least))
    alpha = r**2 + 1
    beta = 2 * alpha / (1 + least)

    def shrink(v, sigma):  # R(x) = σ/2‖x‖², or no proximal map at all
        return v / (1 + sigma) if penalised else v * (1 - 3 * sigma)

    def objective(x, sigma):
        return ((a @ x - y) ** 2).sum() / 2 + length * sigma / 2 * (x**2).sum()

    x = a.T @ np.linalg.solve(a @ a.T, y)
    expected, guarded = [x, shrink(x + a.T @ (y - a @ x) / length, sigmas[0])], 0
    for sigma in sigmas[1:]:
        before, x = expected[-2:]
        plain = shrink(x + a.T @ (y - a @ x) / length, sigma)
        following = (1 - alpha) * before + (alpha - beta) * x + beta * plain
        worse = (following - x) @ (plain - x) < 0
        worse = objective(following, sigma) > objective(x, sigma) if penalised else worse
        guarded += int(worse)
        expected.append(plain if monotone and worse else following)

    def prior(v, s):
        return shrink(v, s)

    if penalised:
        prior.penalty = lambda v, s: s / 2 * v.square().sum((1, 2, 3))
    cubes = _cubes(TwIST(rho, least, monotone), sigmas, prior)
    assert guarded > 0
    np.testing.assert_allclose(cubes, expected[1:], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_bound_of_the_largest_eigenvalue(shots):
    """Exact for one shot, and otherwise never below the truth."""
    generator = torch.Generator().manual_seed(shots)
    mask = torch.rand((shots, 1, 6, 7), generator=generator, dtype=torch.float64)
    mask[..., :2] = 0  # dark columns
    system = SDCassi(mask, bands=4, step=1)
    truth = torch.linalg.eigvalsh(system.gram.permute(2, 3, 0, 1)).max().item()
    bound = largest_eigenvalue(torch.zeros(2, *system.measurement_shape).double(), system).item()
    assert bound >= truth * (1 - 1e-12)
    assert bound <= truth * (1 + 1e-9 if shots == 1 else 1.05)
    dark = SDCassi(torch.zeros(4, 5), bands=2, step=1)
    assert largest_eigenvalue(torch.ones(1, 1, 4, 6), dark) == 1


def _tensors(state):
    values = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_steps_are_pure(name):
    system, y, _ = _camera()
    algorithm = ALGORITHMS[name]()
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


@pytest.mark.parametrize("name", ALGORITHMS)
def test_parameters_may_be_tensors(name):
    """As in an unrolled network: σ and ρ are learned, and get gradients."""
    system, y, _ = _camera()
    algorithm = ALGORITHMS[name]()
    sigma = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    rho = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    state = algorithm.init(y, system, system.pinv(y))
    for _ in range(2):
        state = algorithm.step(state, y, system, _shrink, sigma, rho)
    for gradient in torch.autograd.grad(state.x.square().sum(), (sigma, rho)):
        assert gradient.abs() > 0
    plain = algorithm.init(y, system, system.pinv(y))
    for _ in range(2):
        plain = algorithm.step(plain, y, system, _shrink, 0.3, 0.2)
    torch.testing.assert_close(state.x, plain.x, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_the_protocol_of_a_camera_is_used(name):
    """A dense matrix with four methods is camera enough, and gives the same cubes."""
    system, y, a = _camera()
    matrix = torch.from_numpy(a)

    class Dense:
        def __call__(self, x):
            return (x.flatten(1) @ matrix.T).view(-1, 1, 4, 7)

        def adjoint(self, y):
            return (y.flatten(1) @ matrix).view(-1, 3, 4, 5)

        def pinv(self, y):
            return (y.flatten(1) @ torch.linalg.pinv(matrix).T).view(-1, 3, 4, 5)

        def data_step(self, v, y, rho=0.0):
            gram = matrix @ matrix.T + rho * torch.eye(28, dtype=y.dtype)
            z = torch.linalg.solve(gram, (y - self(v)).flatten(1).T).T
            return v + self.adjoint(z.view(-1, 1, 4, 7))

    cubes = [
        iterate(ALGORITHMS[name](), y, camera, _shrink, iterations=4, sigma=Constant(0.3)).x
        for camera in (system, Dense())
    ]
    torch.testing.assert_close(*cubes, rtol=0, atol=1e-10)


def test_schedules():
    assert [Geometric(0.4, 0.1)(i, 3) for i in range(3)] == pytest.approx([0.4, 0.2, 0.1])
    assert (Geometric(0.4, 0.1)(0, 1), Linear(0.3, 0.1)(0, 1)) == (0.4, 0.3)
    assert [Linear(1.0, 0.0)(i, 3) for i in range(3)] == [1.0, 0.5, 0.0]
    steps = Steps([0.5, 0.2], [2, 1])
    assert [steps(i, 9) for i in range(5)] == [0.5, 0.5, 0.2, 0.2, 0.2]
    two = Phases([steps, Linear(1.0, 3.0)], [1, 3])
    assert [two(i, 9) for i in range(6)] == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]
    named = Phases({"first": Constant(2.0), "then": Constant(1.0)}, [2, 1])
    assert [named(i, 5) for i in range(4)] == [2, 2, 1, 1]
    assert as_schedule(2) == Constant(2.0)
    assert as_schedule(steps) is steps


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (partial(Geometric, *ends), "schedule: expected a start and an end > 0, got")
            for ends in ((0.0, 0.1), (0.1, 0.0), (-1.0, 1.0), (float("nan"), 1.0))
        ),
        *(
            (partial(ADMM, relaxation=wrong), "ADMM relaxation: expected a number between 0 and 2")
            for wrong in (0.0, 2.0, float("nan"))
        ),
        (partial(Linear, -1.0, 1.0), "schedule: expected a start and an end >= 0, got -1"),
        (partial(Steps, [-1.0], [2]), "schedule: expected a number >= 0, got -1"),
        *(
            (partial(Steps, *steps), "schedule.*: expected")
            for steps in (([0.1], [1, 2]), ([], []), ([0.1], [0]), ([0.1], [1.5]))
        ),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
