"""Other libraries find in a camera what it is: their own tests pass, results are the same."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

import numpy as np
import pylops
import pytest
import torch
from shared import systems_of_each_class

import cassi
from cassi.adapters import as_linear_operator, as_physics, as_prior, as_pylops
from cassi.systems.examples import EXAMPLES
from scripts.benchmarks import ops as benchmark


@pytest.fixture
def camera():
    mask = torch.rand(2, 1, 9, 11, generator=torch.Generator().manual_seed(0))
    return cassi.SDCassi(mask, bands=4, step=2).double()


@pytest.fixture
def cubes(camera):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(3, *camera.cube_shape, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="session")
def deepinv():
    try:
        import deepinv
    except (
        ImportError,
        RuntimeError,
    ) as error:  # not installed, or torchvision is of another torch
        pytest.skip(str(error))
    return deepinv


def test_scipy(camera, cubes):
    operator = as_linear_operator(camera)
    columns = cubes.flatten(1).T.numpy()
    y = camera(cubes)
    assert operator.dtype == np.float64
    assert np.array_equal(operator @ columns[:, 0], y[0].flatten().numpy())
    assert np.array_equal(operator @ columns, y.flatten(1).T.numpy())
    back = camera.adjoint(y).flatten(1).T.numpy()
    assert np.array_equal(operator.H @ (operator @ columns), back)
    assert np.array_equal(operator.rmatvec(y[1].flatten().numpy()), back[:, 1])
    assert operator.matvec(columns[:, :1]).shape == (operator.shape[0], 1)
    with pytest.raises(TypeError, match="real numbers"):
        operator @ (1j * columns[:, 0])


def test_least_squares_of_scipy_is_the_minimum_norm_solution(camera, cubes):
    from scipy.sparse.linalg import lsqr, svds

    operator = as_linear_operator(camera)
    y = camera(cubes[:1])
    x = lsqr(operator, y.flatten().numpy(), atol=1e-14, btol=1e-14, iter_lim=2000)[0]
    assert torch.allclose(torch.from_numpy(x), camera.pinv(y).flatten(), atol=1e-8)
    largest = svds(operator, k=1, return_singular_vectors=False, random_state=0)[0]
    assert largest**2 == pytest.approx(np.linalg.eigvalsh(_matrix(camera))[-1], rel=1e-6)


def _matrix(camera):
    size = int(np.prod(camera.measurement_shape))
    unit = torch.eye(size, dtype=torch.float64).reshape(size, *camera.measurement_shape)
    return camera(camera.adjoint(unit)).reshape(size, size).numpy()


def test_what_is_no_camera_is_refused():
    for adapt in (as_linear_operator, as_pylops):
        with pytest.raises(TypeError, match=r"expected a camera, such as cassi\.SDCassi, got int"):
            adapt(3)


@pytest.mark.parametrize("name", systems_of_each_class())
def test_every_camera_passes_the_dot_test_of_pylops(name):
    camera = EXAMPLES[name]().double()
    operator = as_pylops(camera)
    assert operator.dims == camera.cube_shape
    assert operator.dimsd == camera.measurement_shape
    assert pylops.utils.dottest(operator, *operator.shape, rtol=1e-10)


def test_pylops(camera, cubes):
    operator = as_pylops(camera)
    y = operator @ cubes[0].numpy()  # of the shape of the measurement
    assert np.array_equal(y, camera(cubes[:1])[0].numpy())
    unit = pylops.Identity(operator.shape[1])
    damped = pylops.optimization.leastsquares.regularized_inversion(
        operator, y.ravel(), [unit], epsRs=[0.1**0.5], atol=1e-12, btol=1e-12, iter_lim=1000
    )[0]
    x = camera.data_step(torch.zeros_like(cubes[:1]), torch.from_numpy(y)[None], 0.1)
    assert np.allclose(damped, x.flatten().numpy(), atol=1e-6)


class _Physics(torch.nn.Module):
    """What ours takes of `deepinv.physics.LinearPhysics`: it keeps the size of an image."""

    def __init__(self, img_size):
        super().__init__()
        self.img_size = img_size


@pytest.fixture
def stand_in(monkeypatch):
    """In the place of deepinv, installed or not: what the methods of ours give needs none of it."""
    for name in ("deepinv", "deepinv.physics"):
        monkeypatch.setitem(sys.modules, name, module_from_spec(ModuleSpec(name, None)))
    sys.modules["deepinv.physics"].LinearPhysics = _Physics
    monkeypatch.delitem(sys.modules, "cassi.adapters.deepinv", raising=False)
    yield
    sys.modules.pop("cassi.adapters.deepinv", None)


def test_physics_is_the_camera(stand_in, camera, cubes):
    with pytest.raises(TypeError, match=r"expected a camera, such as cassi\.SDCassi, got int"):
        as_physics(3)
    physics = as_physics(camera)
    y, z = physics.A(cubes), torch.rand_like(cubes)
    assert physics.img_size == camera.cube_shape
    assert torch.equal(y, camera(cubes))
    assert torch.equal(physics.A_adjoint(y), camera.adjoint(y))
    assert torch.equal(physics.A_dagger(y), camera.pinv(y))
    for gamma in (0.5, torch.tensor([0.5, 1.0, 2.0])):
        rho = 1 / torch.as_tensor(gamma, dtype=y.dtype)
        assert torch.equal(physics.prox_l2(z, y, gamma), camera.data_step(z, y, rho))
    each = physics.prox_l2(z, y, torch.tensor([0.5, 1.0, 2.0]).reshape(3, 1, 1, 1))
    assert torch.equal(each, physics.prox_l2(z, y, torch.tensor([0.5, 1.0, 2.0])))
    assert torch.equal(physics.prox_l2(None, y, 1.0), physics.prox_l2(0.0, y, 1.0))


def test_physics_is_one_of_deepinv(deepinv, camera, cubes):
    physics, z = as_physics(camera), torch.rand_like(cubes)
    y = physics(cubes)  # no noise by default
    assert torch.equal(y, camera(cubes))
    assert physics.adjointness_test(cubes).abs() < 1e-9
    # The very problem, solved by deepinv's own conjugate gradients.
    solved = deepinv.physics.LinearPhysics.prox_l2(physics, z, y, 0.5, max_iter=200, tol=1e-12)
    assert torch.allclose(solved, physics.prox_l2(z, y, 0.5), rtol=0, atol=1e-6)


def test_plug_and_play_of_deepinv(deepinv):
    torch.manual_seed(0)
    mask = (torch.rand(24, 24) > 0.5).float()
    physics = as_physics(cassi.SDCassi(mask, bands=4, step=1))
    cells = torch.rand(1, 4, 3, 3)
    x = torch.nn.functional.interpolate(cells, size=(24, 24))
    noise = deepinv.physics.GaussianNoise(0.001)
    y = as_physics(physics.system, noise_model=noise)(x)
    model = deepinv.optim.optim_builder(
        iteration="HQS",
        prior=deepinv.optim.PnP(deepinv.models.TVDenoiser()),
        data_fidelity=deepinv.optim.L2(),
        max_iter=40,
        params_algo={"stepsize": 10.0, "g_param": 0.02},
    )
    with torch.no_grad():
        found = model(y, physics)
    assert _error(found, x) < 0.5 * _error(physics.A_dagger(y), x)


def _error(found, x):
    return float((found - x).norm() / x.norm())


@pytest.mark.filterwarnings("ignore")
def test_trainer_of_deepinv(deepinv, tmp_path):
    torch.manual_seed(0)
    physics = as_physics(cassi.SDCassi((torch.rand(16, 16) > 0.5).float(), bands=3, step=1))
    x = torch.rand(4, 3, 16, 16)
    network = deepinv.models.ArtifactRemoval(torch.nn.Conv2d(3, 3, 3, padding=1), mode="pinv")
    network.backbone_net.forward = _without_sigma(network.backbone_net.forward)
    before = [p.detach().clone() for p in network.parameters()]
    trainer = deepinv.Trainer(
        model=network,
        physics=physics,
        optimizer=torch.optim.Adam(network.parameters(), lr=1e-2),
        train_dataloader=torch.utils.data.DataLoader(x, batch_size=2),
        online_measurements=True,
        losses=deepinv.loss.SupLoss(),
        epochs=1,
        save_path=str(tmp_path),
        device="cpu",
        verbose=False,
        show_progress_bar=False,
        ckp_interval=10,
    )
    trainer.train()
    after = [p.detach() for p in network.parameters()]
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _without_sigma(forward):
    return lambda x, *_, **__: forward(x)


@pytest.mark.parametrize("name", ["TVDenoiser", "MedianFilter", "DRUNet"])
def test_denoisers_of_deepinv_are_priors(deepinv, camera, cubes, name):
    options = {"TVDenoiser": {}, "MedianFilter": {"kernel_size": 3}}
    fresh = {"in_channels": 1, "out_channels": 1, "nc": [2, 2, 2, 2], "nb": 1, "pretrained": None}
    model = getattr(deepinv.models, name)(**options.get(name, fresh))
    prior = as_prior(model)
    noisy = cubes.float()[..., :8, :8]
    with torch.no_grad():
        bands = [model(noisy[:, [c]], 0.1) for c in range(noisy.shape[1])]
    # Iterations end together for all images of a batch; networks round in another order.
    assert torch.allclose(prior(noisy, 0.1), torch.cat(bands, 1), atol=1e-3)
    x = cassi.solve(camera(cubes), camera, algorithm=cassi.GAP(), prior=prior, iterations=2)
    assert x.shape == cubes.shape
    assert x.isfinite().all()


def test_what_is_not_installed_is_named(camera, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for adapt, name in ((as_pylops, "pylops"), (as_physics, "deepinv")):
        with pytest.raises(ImportError, match=rf"pip install 'cassi\[{name}\]'"):
            adapt(camera)


def test_priors_of_anything():
    x = torch.ones(1, 2, 3, 3)
    assert torch.equal(as_prior(lambda x, sigma: x)(x, 0.1), x)
    with pytest.raises(TypeError, match="expected a module, function or file"):
        as_prior(3)


def test_the_benchmark(deepinv):
    given = [
        "--workload",
        "deepinv",
        "--shapes",
        "1x4x20x20",
        "--seconds",
        "0.01",
        "--threads",
        "1",
    ]
    rows = benchmark.main(given)  # it compares the results
    assert {row["operator"] for row in rows} == {"A", "A_adjoint", "prox_l2"}
