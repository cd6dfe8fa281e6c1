"""Every system of `cassi.systems.examples` against its own dense matrix."""

import copy
import inspect
import io
from functools import partial

import pytest
import torch
from shared import before_a_push, quick_systems, rand, systems_of_each_class

import cassi.systems
from cassi.systems import BlurredCassi, SDCassi, System, WarpedCassi, dot_test
from cassi.systems.examples import EXAMPLES

every_system = pytest.mark.parametrize("name", EXAMPLES)
BATCH = 2
most_systems = pytest.mark.parametrize("name", before_a_push(EXAMPLES, quick_systems(), "thorough"))


_rand = partial(rand, low=-0.3)


def _pair(system):
    return _rand(BATCH, *system.cube_shape), _rand(BATCH, *system.measurement_shape, seed=1)


def _matrix(system):  # (measurement, cube): one column per basis cube
    size = torch.Size(system.cube_shape).numel()
    basis = torch.eye(size, dtype=torch.float64).view(size, *system.cube_shape)
    return system(basis).flatten(1).T


def _close(actual, expected, tolerance=1e-10):
    atol = tolerance * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected.view_as(actual), rtol=0, atol=atol)


def _couples_pixels(system, a):
    """Tell whether A Aᵀ has more than a K×K block for each detector pixel.

    Such cameras solve without damping for what a cube can cause; where detector pixels depend on
    each other, another y has no solution, and is not projected.
    """
    shots = system.measurement_shape[0]
    gram = (a @ a.T).unflatten(0, (shots, -1)).unflatten(2, (shots, -1))
    return bool((gram - torch.diag_embed(gram.diagonal(0, 1, 3), dim1=1, dim2=3)).any())


def _caused(a, y):
    return (y.flatten(1) @ torch.linalg.pinv(a, rtol=1e-10).T @ a.T).view_as(y)


def _all_outputs(system, x, y):
    return system(x), system.adjoint(y), system.pinv(y), system.data_step(x, y, 0.2)


def test_every_exported_system_is_an_example():
    exported = {
        value
        for value in map(vars(cassi.systems).get, cassi.systems.__all__)
        if inspect.isclass(value) and issubclass(value, System) and not inspect.isabstract(value)
    }
    assert exported
    # Its inverse is another one, see test_weighted.py.
    assert exported - {cassi.systems.Weighted} <= {type(make()) for make in EXAMPLES.values()}


@every_system
def test_shapes_and_linearity(name):
    system = EXAMPLES[name]()
    x, y = _pair(system)
    assert system(x).shape == (BATCH, *system.measurement_shape)
    assert system.adjoint(y).shape == (BATCH, *system.cube_shape)
    other, other_y = _rand(*x.shape, seed=2), _rand(*y.shape, seed=3)
    _close(system(2 * x - 3 * other), 2 * system(x) - 3 * system(other), 1e-13)
    _close(system.adjoint(2 * y - 3 * other_y), 2 * system.adjoint(y) - 3 * system.adjoint(other_y))
    assert system(x).abs().max() > 0
    _close(system(x)[1:], system(x[1:]), 1e-13)  # samples do not mix


@every_system
def test_dot_product(name):
    a = _matrix(EXAMPLES[name]())
    size = torch.linalg.matrix_norm(a, 2).item() * BATCH * a.numel() ** 0.5
    for dtype, bound in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        system = EXAMPLES[name]().to(dtype)
        for seed in range(3):
            left, right = dot_test(system, batch=BATCH, seed=seed)
            assert abs(left - right) <= bound * size
            assert left != 0


@every_system
def test_adjoint_is_the_transpose_and_the_gradient(name):
    system = EXAMPLES[name]()
    x, y = _pair(system)
    _close(system.adjoint(y), y.flatten(1) @ _matrix(system), 1e-13)
    x.requires_grad_(), y.requires_grad_()
    (gradient,) = torch.autograd.grad((system(x) * y.detach()).sum(), x)
    assert torch.equal(gradient, system.adjoint(y.detach()))
    (gradient,) = torch.autograd.grad((system.adjoint(y) * x.detach()).sum(), y)
    assert torch.equal(gradient, system(x.detach()))


@every_system
def test_components_of_a_cube(name):
    plain = EXAMPLES[name]()
    x, y = _pair(plain)
    bad = torch.zeros(plain.measurement_shape, dtype=torch.bool)
    bad[..., ::2] = True
    basis, a = _rand(BATCH, x.shape[1], 2, seed=4), _rand(BATCH, 2, *x.shape[2:], seed=5)
    cube = torch.einsum("bcr,brhw->bchw", basis, a)
    for system in (plain, plain.weighted(bad_pixels=bad)) if bad.numel() > 1 else (plain,):
        _close(system.forward_subspace(a, basis), system(cube), 1e-12)
        _close(system.residual_subspace(y, a, basis), y - system(cube), 1e-12)
        back = torch.einsum("bcr,bchw->brhw", basis, system.adjoint(y))
        _close(system.adjoint_subspace(y, basis), back, 1e-12)
        _close(system.add_gram_product(y, y), y + system(system.adjoint(y)), 1e-12)


@every_system
def test_gram_solve(name):
    system = EXAMPLES[name]()
    _, y = _pair(system)
    a = _matrix(system)
    rho = torch.tensor([0.0, 0.6], dtype=torch.float64)
    coupled = _couples_pixels(system, a)
    y = _caused(a, y) if coupled else y
    got = system.gram_solve(y, rho)
    for b in range(BATCH):
        dense = a @ a.T + rho[b] * torch.eye(len(a), dtype=torch.float64)
        inverse = torch.linalg.pinv(dense, rtol=1e-12, hermitian=True)
        z = inverse @ y[b].flatten()
        if coupled and rho[b] == 0:  # up to what Aᵀ does not see
            _close(got[b].flatten() @ a, z @ a, 1e-8)
        else:
            _close(got[b], z)
    assert torch.equal(system.gram_solve(y), system.gram_solve(y, 0.0))


def _damping(system, samples):
    """One ρ per detector pixel, some of which have no influence."""
    rho = _rand(samples, *system.measurement_shape, seed=7).abs() + 0.1
    return torch.where(_rand(*rho.shape, seed=8) > 0.4, torch.inf, rho)


@most_systems
@pytest.mark.parametrize("samples", [1, BATCH])
def test_one_rho_per_detector_pixel(name, samples):
    system = EXAMPLES[name]()
    v, y = _pair(system)
    rho, a = _damping(system, samples), _matrix(system)
    z, x = system.gram_solve(y, rho), system.data_step(v, y, rho)
    for b in range(BATCH):
        d = rho[min(b, samples - 1)].flatten()
        kept = d.isfinite()
        rows, expected = a[kept], torch.zeros_like(d)
        dense = rows @ rows.T + d[kept].diag()
        expected[kept] = torch.linalg.solve(dense, y[b].flatten()[kept])
        _close(z[b], expected)
        residual = y[b].flatten()[kept] - rows @ v[b].flatten()
        _close(x[b], v[b].flatten() + rows.T @ torch.linalg.solve(dense, residual))
    absent = rho.isinf().expand_as(y)
    for value in (1e30, 0.0):
        other = torch.where(absent, value, y)
        assert torch.equal(system.gram_solve(other, rho), z)
        assert torch.equal(system.data_step(v, other, rho), x)
        assert torch.equal(system.begin().data_step(v, other, rho), x)


@most_systems
def test_one_value_spread_over_all_pixels_gives_the_same_bits(name):
    system = EXAMPLES[name]()
    v, y = _pair(system)
    for rho in (0.0, torch.tensor([0.3, 0.7]).double(), torch.inf):
        spread = torch.as_tensor(rho, dtype=y.dtype).view(-1, 1, 1, 1).expand(-1, *y.shape[1:])
        assert torch.equal(system.gram_solve(y, spread), system.gram_solve(y, rho))
        assert torch.equal(system.data_step(v, y, spread), system.data_step(v, y, rho))
    assert torch.equal(system.data_step(v, y, torch.inf), v)


@pytest.mark.parametrize("name", ["sd_rows", "sd_two_shots", "sd_offsets_rows", "warped_rows"])
def test_a_rho_that_does_not_fit(name):
    system = EXAMPLES[name]()
    _, y = _pair(system)
    for wrong in (_damping(system, BATCH + 1), _damping(system, 1)[..., 1:]):
        with pytest.raises(ValueError, match=r"rho: expected .* or one per detector pixel"):
            system.gram_solve(y, wrong)


@every_system
def test_pinv_is_moore_penrose(name):
    system = EXAMPLES[name]()
    x, y = _pair(system)
    a = _matrix(system)
    coupled = _couples_pixels(system, a)
    y = _caused(a, y) if coupled else y
    exact = y.flatten(1) @ torch.linalg.pinv(a, rtol=1e-10).T
    _close(system.pinv(y), exact, 1e-8 if coupled else 1e-10)
    measured = system(x)
    _close(system(system.pinv(measured)), measured)
    assert system.pinv(measured).norm() <= x.norm() * (1 + 1e-12)


@every_system
def test_data_step(name):
    system, rho = EXAMPLES[name](), 0.4
    v, y = _pair(system)
    _close(system.data_step(v, y), System.data_step(system, v, y))
    measured = system(_rand(*v.shape, seed=4))
    _close(system(system.data_step(v, measured)), measured)
    got, a = system.data_step(v, y, rho), _matrix(system)
    _close(got, System.data_step(system, v, y, rho))
    right = y.flatten(1) @ a + rho * v.flatten(1)
    eye = torch.eye(a.shape[1], dtype=torch.float64)
    _close(got, torch.linalg.solve(a.T @ a + rho * eye, right.T).T)
    each = torch.full((BATCH,), rho, dtype=torch.float64)
    assert torch.equal(system.data_step(v, y, each), got)


@every_system
def test_gradient_of_the_mask(name):
    """Where the measurement is linear in a mask, ⟨∂⟨w, Ax⟩/∂m, m⟩ = ⟨w, Ax⟩."""
    system = EXAMPLES[name]()
    mask = getattr(system, "mask", None)
    if mask is None:
        pytest.skip("a system without a mask")
    mask.requires_grad_()
    x, w = _pair(system)
    value = (system(x) * w).sum()
    value.backward()
    assert (mask.grad * mask).sum().item() == pytest.approx(value.item(), rel=1e-12)


@most_systems
def test_moves_to_a_dtype(name):
    x, y = _pair(EXAMPLES[name]())
    exact = _all_outputs(EXAMPLES[name](), x, y)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 4e-2)):
        # pinv of rounded, nearly equal shots is not near that of the unrounded: only in float32.
        keep = slice(None) if dtype == torch.float32 and y.shape[1] == 1 else slice(2)
        got = _all_outputs(EXAMPLES[name]().to(dtype), x.to(dtype), y.to(dtype))
        for a, b in zip(got[keep], exact[keep], strict=True):
            _close(a.double(), b, tolerance)
        assert all(value.dtype == dtype and value.isfinite().all() for value in got)


@most_systems
def test_state_dict_round_trip(name):
    system, other = EXAMPLES[name](), EXAMPLES[name]()
    x, y = _pair(system)
    for value in other.state_dict().values():
        value.mul_(0.5)
    assert not torch.equal(other(x), system(x))
    file = io.BytesIO()
    torch.save(system.state_dict(), file)
    file.seek(0)
    result = other.load_state_dict(torch.load(file, weights_only=True))
    assert not result.missing_keys
    assert not result.unexpected_keys
    for a, b in zip(_all_outputs(other, x, y), _all_outputs(system, x, y), strict=True):
        assert torch.equal(a, b)


@most_systems
def test_deepcopy_is_independent(name):
    system = EXAMPLES[name]()
    x, y = _pair(system)
    twin = copy.deepcopy(system)
    expected = _all_outputs(system, x, y)
    for value in system.state_dict().values():
        value.zero_()
    system.load_state_dict(system.state_dict())
    assert system(x).abs().max() == 0
    for a, b in zip(_all_outputs(twin, x, y), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", systems_of_each_class())
def test_compiles_whole(name):
    system = EXAMPLES[name]()
    x, y = _pair(system)
    function = _all_outputs
    if type(system).gram_solve is System.gram_solve:  # stops when it has converged

        def function(system, x, y):
            return system(x), system.adjoint(y)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(system, x, y), function(system, x, y), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def _by_data(values, others):
    for value, other in zip(values, others, strict=True):
        value.data.copy_(other)


def _by_replacement(values, others):
    for value, other in zip(values, others, strict=True):
        value.data = other.clone()


def _in_inference(values, others):
    with torch.inference_mode():
        for value, other in zip(values, others, strict=True):
            value.copy_(other)


CHANGES = {
    "in place": lambda values, others: [a.copy_(b) for a, b in zip(values, others, strict=True)],
    "data": _by_data,
    "replaced data": _by_replacement,
    "inference": _in_inference,
}


def _twin(name):
    """Return a camera of other values, and the values."""
    twin = EXAMPLES[name]()
    state = {k: v * 0.5 if v.is_floating_point() else v for k, v in twin.state_dict().items()}
    twin.load_state_dict(state)
    return twin, list(twin.state_dict().values())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [*systems_of_each_class(), "sd_offsets", "sd_two_shots"])
def test_a_camera_follows_its_values(name, change):
    system, (twin, values) = EXAMPLES[name](), _twin(name)
    x, y = _pair(system)
    for _ in range(2):  # the second passes checks that the first has made
        _all_outputs(system, x, y), system.add_gram_product(y, y)
    own = dict(system.named_buffers(remove_duplicate=False)) | dict(system.named_parameters())
    CHANGES[change]([own[key] for key in system.state_dict()], values)
    for a, b in zip(_all_outputs(system, x, y), _all_outputs(twin, x, y), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(system.add_gram_product(y, y), twin.add_gram_product(y, y))


@pytest.mark.parametrize("name", [*systems_of_each_class(), "sd_offsets", "sd_two_shots"])
def test_a_compiled_camera_follows_its_mask(name):
    system, twin = EXAMPLES[name](), EXAMPLES[name]()
    if "mask" not in system.state_dict():
        pytest.skip("a system without a mask of its own")
    twin.load_state_dict(twin.state_dict() | {"mask": 0.5 * twin.mask})
    x, y = _pair(system)
    function = _all_outputs if system.has_closed_form else lambda s, x, y: (s(x), s.adjoint(y))
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    compiled(system, x, y)
    system.mask.copy_(twin.mask)
    for a, b in zip(compiled(system, x, y), function(twin, x, y), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [*systems_of_each_class(), "sd_offsets", "sd_two_shots"])
def test_a_run_has_the_camera_of_its_begin(name):
    system = EXAMPLES[name]()
    if not system.has_closed_form or "mask" not in system.state_dict():
        pytest.skip("a run of another kind")
    v, y = _pair(system)
    for factor in (1.0, 0.5):
        system.mask.data.mul_(factor)
        run = system.begin()
        for _ in range(2):  # the second passes checks that the first has made
            for a, b in zip(_all_outputs(run, v, y), _all_outputs(system, v, y), strict=True):
                assert torch.equal(a, b)
            assert torch.equal(run.add_gram_product(y, y), system.add_gram_product(y, y))


def test_dot_test_sees_a_wrong_adjoint():
    class Wrong(cassi.systems.SDCassi):
        def adjoint(self, y):
            return super().adjoint(y.roll(1, -1))

    left, right = dot_test(Wrong(_rand(5, 6) + 0.3, bands=3))
    assert abs(left - right) > 1e-3 * abs(left)


coupled = pytest.mark.parametrize("make", [BlurredCassi, WarpedCassi])


@coupled
@pytest.mark.parametrize(("step", "axis"), [(2, -1), (-1, -2), (0, -1)])
@pytest.mark.parametrize("shots", [1, 3])
def test_without_blur_or_warp_it_is_the_plain_camera(make, step, axis, shots):
    mask, x = rand(shots, 4, 6, 5), rand(2, 4, 6, 5)
    camera, plain = make(mask, 4, step, axis), SDCassi(mask, 4, step, axis)
    y = plain(x)
    torch.testing.assert_close(camera(x), y)
    assert (camera.offsets, camera.measurement_shape) == (plain.offsets, plain.measurement_shape)
    torch.testing.assert_close(camera.adjoint(y), plain.adjoint(y))
    v = rand(2, 4, 6, 5, seed=1)
    torch.testing.assert_close(camera.data_step(v, y, 0.5), plain.data_step(v, y, 0.5))


@coupled
def test_inputs_that_do_not_fit_are_named(make):
    system = make(rand(4, 5), 3)
    with pytest.raises(ValueError, match=r"x: expected \(B, C, H, W\) = \(B, 3, 4, 5\), got"):
        system(rand(1, 2, 4, 5))
    with pytest.raises(ValueError, match=r"y: expected .* = \(B, 1, 4, 9\), got"):
        system.adjoint(rand(1, 1, 4, 8))


@pytest.mark.parametrize(
    ("system", "said"),
    [
        (
            SDCassi(rand(2, 1, 5, 4), bands=3, step=-2, axis=-2),
            "mask=5x4, shots=2, bands=3, step=-2, axis=-2",
        ),
        (
            SDCassi(rand(4, 6), 3, offsets=[0.25, 1.5, 3], detector=12),
            "offsets=0.25 to 3, detector=12",
        ),
        (
            BlurredCassi(rand(5, 4), 3, point_spread=0.5, line_spread=rand(3)),
            "mask=5x4, shots=1, bands=3, step=2, axis=-1, point_spread=5x5, line_spread=3",
        ),
        (BlurredCassi(rand(4, 5), 3, line_spread=0.5), "point_spread=none, line_spread="),
        (cassi.systems.DDCassi(rand(4, 9), 3, step=1.5), "step=1.5 across the mask"),
        (
            WarpedCassi(rand(4, 5), 3, smile=0.5, keystone=[0, 1, 2]),
            "mask=4x5, shots=1, bands=3, step=2, axis=-1, smile=0.5, keystone=(3,))",
        ),
    ],
)
def test_repr_names_the_camera(system, said):
    assert said in repr(system)
