"""SDCassi by hand: direction, axis, what counts as a mask, a mask per sample, what is refused."""

import copy
import pickle

import numpy as np
import pytest
import torch
from shared import rand

import cassi
from cassi import SDCassi

MASK = torch.tensor([[1.0, 0.5], [0.0, 0.25]], dtype=torch.float64)
CUBE = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]], dtype=torch.float64)


def test_two_bands_by_hand():
    """Band 0 masked is [[1, 1], [0, 1]], band 1 [[5, 3], [0, 2]], one column further right."""
    system = SDCassi(MASK, bands=2, step=1)
    y = system(CUBE)
    assert y.tolist() == [[[[1, 1 + 5, 3], [0, 1 + 0, 2]]]]
    assert system.gram.tolist() == [[[[1, 1.25, 0.25], [0, 0.0625, 0.0625]]]]
    x = system.pinv(y)
    # At column 1 the value 6 meets masks (0.5, 1): z = 6/1.25 = 4.8; dark pixels get nothing.
    expected = [[[1, 2.4], [0, 4]], [[4.8, 6], [0, 8]]]
    torch.testing.assert_close(x, torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("axis", [-1, -2])
def test_what_passed_the_checks_once_follows_the_mask(axis):
    """The second data step skips the checks: it must see what became of mask and arguments."""
    mask = rand(1, 6, 6)[0]
    system = SDCassi(mask, 3, 1, axis=axis)
    x, y = rand(2, 3, 6, 6), rand(2, *system.measurement_shape)

    def expected(v=x, rho=0.1):
        return SDCassi(system.mask, 3, 1, axis=axis).data_step(v, y, rho)

    for rho in (0.1, torch.tensor([0.1, 0.2]).double(), torch.rand_like(y)):
        for _ in range(3):
            torch.testing.assert_close(system.data_step(x, y, rho), expected(rho=rho))
    with pytest.raises(ValueError, match="rho: expected a number >= 0"):
        system.data_step(x, y, -1.0)
    with pytest.raises(ValueError, match="height and width"):
        system.data_step(x[..., :5], y)
    with torch.no_grad():
        system.mask.mul_(0.5)
    torch.testing.assert_close(system.data_step(x, y, 0.1), expected())
    mapped = torch.func.vmap(lambda v: system.data_step(v[None], y[:1], 0.1)[0])(x)
    torch.testing.assert_close(mapped[0], expected()[0])
    mapped = torch.func.jvp(lambda v: system.data_step(v, y, 0.1), (x,), (x,))[0]
    torch.testing.assert_close(mapped, expected())
    copied = pickle.loads(pickle.dumps(copy.deepcopy(system)))
    for _ in range(2):
        torch.testing.assert_close(copied.data_step(x, y, 0.1), expected())
    tracked = x.clone().requires_grad_()
    assert torch.autograd.grad(system.data_step(tracked, y, 0.1).sum(), tracked)[0].shape == x.shape
    system.mask.requires_grad_()
    assert system.data_step(x, y, 0.1).requires_grad
    system.mask = torch.ones_like(mask)
    torch.testing.assert_close(system.data_step(x, y, 0.1), expected())


def test_a_number_that_is_kept_is_that_of_the_call():
    system = SDCassi(torch.rand(5, 7), bands=3, step=2)
    v, y = torch.rand(1, 3, 5, 7), torch.rand(1, 1, 5, 11)
    with torch.inference_mode():
        for _ in range(2):
            system.data_step(v, y, 0.1)
    for rho in (0.1, 2.0, 0.1, 0, 0.0):
        expected = cassi.ops.data_step(v, y, system.mask, 2, rho)
        assert torch.equal(system.data_step(v, y, rho), expected)
        wide = system.data_step(v.double(), y.double(), rho)
        torch.testing.assert_close(wide.float(), expected)
    x = v.clone().requires_grad_()
    system.data_step(x, y, 0.0).sum().backward()
    with pytest.raises(TypeError, match="rho"):
        system.data_step(v, y, True)


def test_direction_and_axis_by_hand():
    assert SDCassi(MASK, 2, -1)(CUBE).tolist() == [[[[5, 3 + 1, 1], [0, 2 + 0, 1]]]]
    assert SDCassi(MASK, 2, 0)(CUBE).tolist() == [[[[6, 4], [0, 3]]]]
    assert SDCassi(MASK, 2, 1, axis=-2)(CUBE).tolist() == [[[[1, 1], [0 + 5, 1 + 3], [0, 2]]]]
    assert SDCassi(MASK, 2, -1, axis=-2)(CUBE).tolist() == [[[[5, 3], [0 + 1, 2 + 1], [0, 1]]]]
    assert SDCassi(MASK, 2)(CUBE).tolist() == [[[[1, 1, 5, 3], [0, 1, 0, 2]]]]  # step 2


@pytest.mark.parametrize("step", [2, -3])
@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (2, 1, 5, 4)])
def test_rows_are_columns_of_the_transposed_scene(shape, step):
    mask, x = rand(*shape), rand(2, 3, 5, 4)
    rows, columns = SDCassi(mask, 3, step, axis=-2), SDCassi(mask.mT, 3, step)
    y = rows(x)
    assert rows.cube_shape == (3, 5, 4)
    assert tuple(y.shape[1:]) == rows.measurement_shape == (rows.shots, 5 + 2 * abs(step), 4)
    v = rand(*x.shape, seed=1)
    pairs = [
        (y, columns(x.mT)),
        (rows.adjoint(y), columns.adjoint(y.mT)),
        (rows.gram_solve(y, 0.1), columns.gram_solve(y.mT, 0.1)),
        (rows.pinv(y), columns.pinv(y.mT)),
        (rows.data_step(v, y, 0.1), columns.data_step(v.mT, y.mT, 0.1)),
    ]
    if rows.shots == 1:
        pairs.append((rows.ratio_inverse(y), columns.ratio_inverse(y.mT)))
    for got, expected in pairs:
        assert torch.equal(got, expected.mT)


@pytest.mark.parametrize("axis", [-1, -2])
def test_negative_step_is_the_mirrored_scene(axis):
    mask, x = rand(3, 5, 4), rand(2, 3, 5, 4)
    forth, back = SDCassi(mask, 3, 2, axis), SDCassi(mask.flip(axis), 3, -2, axis)
    y = forth(x)
    v = rand(*x.shape, seed=1)
    for got, expected in (
        (back(x.flip(axis)), y),
        (back.adjoint(y.flip(axis)), forth.adjoint(y)),
        (back.pinv(y.flip(axis)), forth.pinv(y)),
        (back.data_step(v.flip(axis), y.flip(axis), 0.1), forth.data_step(v, y, 0.1)),
    ):
        torch.testing.assert_close(got, expected.flip(axis), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("mask", "dtype"),
    [
        ([[1, 0], [0, 1]], torch.float32),
        (np.eye(2), torch.float64),
        (np.eye(2, dtype=np.float32)[::-1][:, ::-1], torch.float32),
        (np.eye(2, dtype=np.uint8), torch.float32),
        (np.eye(2, dtype=bool), torch.float32),
        (np.eye(2, dtype=">f4"), torch.float32),
        (np.asfortranarray(np.eye(2, dtype=np.float16)), torch.float16),
        (torch.eye(2, dtype=torch.bool), torch.float32),
        (torch.eye(2, dtype=torch.int64), torch.float32),
        (torch.eye(2, dtype=torch.bfloat16), torch.bfloat16),
    ],
)
def test_what_counts_as_a_mask(mask, dtype):
    system = SDCassi(mask, bands=2, step=1)
    assert system.mask.dtype == dtype
    assert system.mask.tolist() == [[[[1, 0], [0, 1]]]]
    y = system(torch.ones(1, 2, 2, 2, dtype=dtype))
    assert y.tolist() == [[[[1, 1, 0], [0, 1, 1]]]]
    assert y.dtype == dtype


def test_the_mask_is_a_copy_through_which_gradients_go():
    array = np.full((2, 2), 0.5)
    source = torch.full((2, 2), 0.5, requires_grad=True)
    for mask in (array, source):
        system = SDCassi(mask, bands=2)
        with torch.no_grad():
            mask[:] = 0
        assert system.mask.min() == 0.5
        assert system.mask.requires_grad is (mask is source)
    system.pinv(system(torch.ones(1, 2, 2, 2))).square().sum().backward()
    kept = SDCassi(torch.nn.Parameter(torch.full((2, 2), 0.5)), bands=2)
    kept.pinv(kept(torch.ones(1, 2, 2, 2))).square().sum().backward()
    assert torch.equal(source.grad, kept.mask.grad.view_as(source))


def test_a_mask_that_was_learned_and_frozen():
    system, y = SDCassi(rand(5, 4), bands=3), rand(1, 1, 5, 8)
    system.mask.requires_grad_(True)
    system.pinv(y).sum().backward()
    with torch.no_grad():
        system.mask.mul_(0.5)
    system.mask.requires_grad_(False)
    assert torch.equal(system.pinv(y), SDCassi(rand(5, 4) * 0.5, bands=3).pinv(y))


def test_autocast_keeps_the_precision_of_two_shots():
    system = SDCassi(rand(2, 1, 6, 5).float() + 0.1, bands=3, step=1)
    y = system(rand(1, 3, 6, 5).float())
    with torch.autocast("cpu", torch.bfloat16):
        x = system.data_step(torch.zeros(1, 3, 6, 5), y)
    assert (system(x) - y).norm() <= 1e-5 * y.norm()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((MASK, 2, 1, 1), ValueError, r"axis: expected -1 \(columns\) or -2 \(rows\), got 1"),
        ((MASK, 2.0), TypeError, r"bands: expected an integer, got 2\.0"),
        ((MASK, 0), ValueError, "bands: expected at least 1, got 0"),
        ((MASK, 2, "1"), TypeError, "step: expected a number of pixels per band, got '1'"),
        ((MASK, 2, True), TypeError, "step: expected a number of pixels per band, got True"),
        ((MASK, 2, float("nan")), TypeError, "step: expected a number of pixels per band, got nan"),
        ((MASK, 0, 1.5), ValueError, "bands: expected at least 1, got 0"),
        ((MASK[0], 2), ValueError, r"mask: expected \(H, W\), .*, got shape \(2,\)"),
        ((rand(1, 1, 1, 1, 2, 2), 2), ValueError, r"mask: expected .* \(1, 1, 1, 1, 2, 2\)"),
        ((MASK[:0], 2), ValueError, "mask: expected at least one pixel"),
        ((rand(3, 2, 2), 2), ValueError, "mask: expected 1 or 2 bands, got 3"),
        ((MASK * float("nan"), 2), ValueError, "mask: expected finite numbers, got NaN or inf"),
        ((np.full((2, 2), np.inf), 2), ValueError, "mask: expected finite numbers"),
        ((np.array([["a"]]), 2), TypeError, "mask: expected numbers, got dtype <U1"),
        ((torch.eye(2) + 1j, 2), TypeError, "mask: expected real numbers"),
        ((None, 2), TypeError, "mask: expected numbers, got dtype object"),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SDCassi(*arguments)


@pytest.mark.parametrize("method", ["adjoint", "ratio_inverse", "data_step", "pinv"])
def test_a_measurement_that_does_not_fit_is_named(method):
    system, y = SDCassi(MASK, bands=2, step=1), torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"y: expected .*, got shape \(1, 1, 2, 4\)"):
        getattr(system, method)(*((CUBE, y) if method == "data_step" else (y,)))


@pytest.mark.parametrize("more", [{"step": 1}, {"offsets": [0.0, 1.5]}])
def test_a_cube_of_other_bands_is_refused(more):
    system = SDCassi(MASK, bands=2, **more)
    with pytest.raises(ValueError, match=r"x: expected .*B, 2, .*, got shape \(1, 3, 2, 2\)"):
        system(torch.zeros(1, 3, *MASK.shape[-2:]))


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("shape", [(3, 1, 1, 4, 5), (3, 2, 1, 4, 5), (3, 2, 4, 4, 5)])
def test_equals_one_camera_a_sample(shape, axis):
    mask = rand(*shape)
    system = SDCassi(mask, bands=4, step=-2, axis=axis)
    alone = [SDCassi(one, bands=4, step=-2, axis=axis) for one in mask]
    assert system.shots == shape[1]
    assert system.cube_shape == alone[0].cube_shape
    assert system.measurement_shape == alone[0].measurement_shape
    x, y = rand(3, *system.cube_shape), rand(3, *system.measurement_shape, seed=1)
    rho = torch.tensor([0.0, 0.3, 2.0], dtype=torch.float64)
    for b, one in enumerate(alone):
        at = slice(b, b + 1)
        for got, expected in (
            (system(x)[at], one(x[at])),
            (system.adjoint(y)[at], one.adjoint(y[at])),
            (system.pinv(y)[at], one.pinv(y[at])),
            (system.gram_solve(y, rho)[at], one.gram_solve(y[at], rho[at])),
            (system.data_step(x, y, rho)[at], one.data_step(x[at], y[at], rho[at])),
        ):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_another_batch_is_refused():
    system = SDCassi(rand(2, 1, 1, 4, 5), bands=3)
    with pytest.raises(ValueError, match=r"one per sample of x \(3\), got 2"):
        system(rand(3, 3, 4, 5))
