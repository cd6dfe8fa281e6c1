"""A camera with a mask per sample does to each sample what a camera with its mask alone does."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from cassi import SDCassi


def _rand(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("shape", [(3, 1, 1, 4, 5), (3, 2, 1, 4, 5), (3, 2, 4, 4, 5)])
def test_equals_one_camera_a_sample(shape: tuple[int, ...], axis: int) -> None:
    mask = _rand(*shape)
    system = SDCassi(mask, bands=4, step=-2, axis=axis)
    alone = [SDCassi(one, bands=4, step=-2, axis=axis) for one in mask]
    assert system.shots == shape[1]
    assert system.cube_shape == alone[0].cube_shape
    assert system.measurement_shape == alone[0].measurement_shape
    x, y = _rand(3, *system.cube_shape), _rand(3, *system.measurement_shape, seed=1)
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


def test_moves_and_pickles() -> None:
    system = SDCassi(_rand(2, 1, 1, 4, 5), bands=3)
    x = _rand(2, 3, 4, 5)
    assert torch.equal(pickle.loads(pickle.dumps(system))(x), system(x))
    torch.testing.assert_close(system.float()(x.float()).double(), system(x.float()).double())
    assert system.gram.shape == (2, 1, 1, 4, 9)


def test_another_batch_is_refused() -> None:
    system = SDCassi(_rand(2, 1, 1, 4, 5), bands=3)
    with pytest.raises(ValueError, match=r"one per sample of x \(3\), got 2"):
        system(_rand(3, 3, 4, 5))
