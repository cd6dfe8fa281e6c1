"""The checks that deepinv and PyLops make of their own operators, on a camera of each class.

deepinv: its `tests/test_physics.py` by its public functions. PyLops: its dot test and the algebra
of its operators.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

import numpy as np
import pylops
import pytest
import torch
from shared import rand, systems_of_each_class
from torch.autograd import gradcheck

from cassi.adapters import as_physics, as_pylops
from cassi.systems.examples import EXAMPLES

pytestmark = pytest.mark.release
every_camera = pytest.mark.parametrize("name", systems_of_each_class())
OF_IMAGES = ("torchvision", "natsort")  # deepinv imports them for its data sets


class _StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in the place of what is not installed and not used here."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


@pytest.fixture(scope="module", autouse=True)
def deepinv():
    missing = [name for name in OF_IMAGES if importlib.util.find_spec(name) is None]
    before, finder = set(sys.modules), _StandIns(missing)
    sys.meta_path.append(finder)
    try:
        import deepinv
    except (ImportError, RuntimeError) as error:
        deepinv = error
    yield deepinv
    sys.meta_path.remove(finder)
    for name in set(sys.modules) - before:
        if name.split(".")[0] in (*missing, "deepinv") or name == "cassi.adapters.deepinv":
            del sys.modules[name]


@pytest.fixture
def physics(deepinv, name):
    if isinstance(deepinv, Exception):
        pytest.skip(f"deepinv does not load: {deepinv}")
    return as_physics(EXAMPLES[name]())


@pytest.fixture
def x(name):
    return rand(2, *EXAMPLES[name]().cube_shape)


def _matrix(physics):
    size = physics.system.cube_shape
    unit = torch.eye(int(np.prod(size)), dtype=torch.float64)
    return physics.A(unit.reshape(-1, *size)).flatten(1).T


@every_camera
def test_adjointness(deepinv, physics, x):
    assert physics.adjointness_test(x, num_samples=4).abs() < 1e-12
    y, v = physics.A(x), rand(*physics.A(x).shape, seed=1)
    torch.testing.assert_close(physics.A_vjp(x, v), physics.A_adjoint(v))
    shape = tuple(x.shape)
    derived = deepinv.physics.adjoint_function(physics.A, shape, dtype=torch.float64)
    torch.testing.assert_close(derived(v), physics.A_adjoint(v))
    torch.testing.assert_close(physics.A_A_adjoint(v), physics.A(physics.A_adjoint(v)))
    torch.testing.assert_close(physics.A_adjoint_A(x), physics.A_adjoint(y))


@every_camera
def test_norm(physics, x):
    squared = physics.compute_sqnorm(x[:1], max_iter=3000, tol=1e-9, verbose=False)
    exact = torch.linalg.matrix_norm(_matrix(physics), 2).square()
    torch.testing.assert_close(squared, exact, rtol=1e-3, atol=0)


@every_camera
def test_pseudo_inverse(physics, x):
    y = physics.A(x)
    inverse = physics.A_dagger(y)
    torch.testing.assert_close(physics.A(inverse), y, rtol=0, atol=1e-8)
    torch.testing.assert_close(physics.A_dagger(physics.A(inverse)), inverse, rtol=0, atol=1e-7)
    least = torch.linalg.pinv(_matrix(physics), rtol=1e-10) @ y.flatten(1).T
    torch.testing.assert_close(inverse.flatten(1).T, least, rtol=0, atol=1e-7)


@every_camera
def test_prox(deepinv, physics, x):
    y, z, a = physics.A(x), rand(*x.shape, seed=2), _matrix(physics)
    for gamma in (0.1, 2.0):
        found = physics.prox_l2(z, y, gamma)
        right = gamma * y.flatten(1) @ a + z.flatten(1)
        exact = torch.linalg.solve(gamma * a.T @ a + torch.eye(a.shape[1]).double(), right.T)
        torch.testing.assert_close(found.flatten(1).T, exact, rtol=0, atol=1e-10)
        # Its own conjugate gradients end 1e-5 away from that, whatever the tolerance.
        solved = deepinv.physics.LinearPhysics.prox_l2(
            physics, z, y, gamma, max_iter=500, tol=1e-12
        )
        torch.testing.assert_close(found, solved, rtol=0, atol=5e-5)


@every_camera
def test_differentiability(physics, x):
    y = physics.A(x)[:1].detach().requires_grad_()
    x = x[:1].requires_grad_()
    for function, inputs in (
        (physics.A, (x,)),
        (physics.A_adjoint, (y,)),
        (physics.A_dagger, (y,)),
        (lambda z, y: physics.prox_l2(z, y, 0.7), (x, y)),
    ):
        assert gradcheck(function, inputs, fast_mode=True, atol=1e-5)


@every_camera
def test_operators_of_pylops(name):
    camera = EXAMPLES[name]()
    operator, single = as_pylops(camera), as_pylops(EXAMPLES[name]().float())
    assert pylops.utils.dottest(operator, *operator.shape, rtol=1e-10)
    assert pylops.utils.dottest(single, *single.shape, rtol=1e-3, atol=1e-4)
    dense = operator.todense()
    x, y = (rand(n, seed=3).numpy() for n in reversed(operator.shape))
    for combined, matrix, value in (
        (operator, dense, x),
        (operator.H, dense.T, y),
        (operator.T, dense.T, y),
        (2 * operator, 2 * dense, x),
        (operator + operator, 2 * dense, x),
        (-operator, -dense, x),
        (operator.H @ operator, dense.T @ dense, x),
        (operator.H.H, dense, x),
        (pylops.VStack([operator, operator]), np.vstack([dense, dense]), x),
    ):
        assert np.allclose(combined @ value, matrix @ value, rtol=0, atol=1e-12)
    assert np.allclose(operator.H.todense(), dense.T, rtol=0, atol=1e-12)
    assert np.allclose(operator.matmat(np.stack([x, 2 * x], 1))[:, 1], 2 * dense @ x, atol=1e-12)
    measured = operator @ x
    assert np.allclose(operator @ operator.div(measured, niter=2000), measured, atol=1e-3)
