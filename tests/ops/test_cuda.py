"""The CUDA kernels against those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cassi.ops._library import kernels

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CAMERA = ("forward", "adjoint", "mask_adjoint", "gram", "gram_solve", "data_step")
SIZES = [((2, 28, 5, 64), 2), ((3, 5, 3, 33), -3), ((1, 1, 1, 1), 0), ((2, 33, 7, 5), 17)]


def _on_cuda(value: Any) -> Any:
    return value.cuda() if isinstance(value, Tensor) else value


def _channels_last(value: Tensor) -> Tensor:
    return value.movedim(1, -1).contiguous().movedim(-1, 1) if value.ndim > 1 else value


def _compare(name: str, args: list[Any], layout: Callable[[Tensor], Tensor] = lambda t: t) -> None:
    kernel = getattr(kernels, name)
    args = [layout(value) if isinstance(value, Tensor) else value for value in args]
    expected, got = kernel(*args), kernel(*map(_on_cuda, args))
    again = kernel(*map(_on_cuda, args))
    results = [r if isinstance(r, tuple) else (r,) for r in (expected, got, again)]
    for e, g, a in zip(*results, strict=True):
        assert torch.equal(g, a)
        loose = {"rtol": 1e-4, "atol": 1e-4} if g.dtype == torch.float32 else {}
        torch.testing.assert_close(g.cpu(), e, **loose)


@pytest.mark.parametrize("name", [*CAMERA, "data_step_backward"])
@pytest.mark.parametrize(("size", "step"), SIZES)
@pytest.mark.parametrize(
    ("shots", "samples", "mask_bands"), [(1, 1, 1), (2, 1, 1), (1, None, None), (3, None, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rho", [(0.1,), "pixels"])
def test_camera(
    camera_arguments: Callable[..., list[Any]],
    name: str,
    size: tuple[int, int, int, int],
    step: int,
    shots: int,
    samples: int | None,
    mask_bands: int | None,
    dtype: torch.dtype,
    rho: Any,
) -> None:
    arguments = camera_arguments(
        name, size, step, shots, samples or size[0], mask_bands or size[1], (dtype,) * 3, rho
    )
    _compare(name, arguments)
    _compare(name, arguments, _channels_last)


@pytest.mark.parametrize("norm", range(3))
@pytest.mark.parametrize("iterations", [0, 1, 5, 20])
@pytest.mark.parametrize("shape", [(2, 3, 40, 70), (1, 28, 9, 5), (1, 1, 1, 1)])
def test_tv_prox(norm: int, iterations: int, shape: tuple[int, ...]) -> None:
    x, weight = torch.rand(shape), torch.tensor([0.1])
    dual = 0.05 * torch.rand(shape[0], 2, *shape[1:])
    _compare("tv_prox", [x, weight, iterations, norm])
    _compare("tv_prox_dual", [x, weight, dual, iterations, norm])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("shots", [1, 3])
def test_taps(dtype: torch.dtype, taps: int, shots: int) -> None:
    batch, bands, height, width, detector = 2, 5, 9, 33, 41
    x, y = torch.rand(batch, bands, height, width), torch.rand(batch, shots, height, detector)
    weights = torch.rand(batch, bands, taps)
    starts = torch.tensor([[-3, 0, 2, 7, 30], [1, 2, 3, 4, 5]])
    for mask in (
        torch.rand(batch, shots, 1, height, width),
        torch.rand(1, shots, 5, height, width),
    ):
        x, y, m, a = (value.to(dtype) for value in (x, y, mask, weights))
        for layout in (lambda t: t, _channels_last):
            _compare("forward_taps", [layout(x), layout(m), a, starts, detector])
            _compare("adjoint_taps", [layout(y), layout(m), a, starts])
            for each in (False, True):
                _compare("mask_adjoint_taps", [layout(x), layout(y), a, starts, each, each])
    gram = torch.rand(batch, taps * shots, shots, height, detector, dtype=torch.float64)
    gram[:, torch.arange(shots), torch.arange(shots)] += 5 * taps * shots  # dominates: definite
    rho = 0.1 + torch.rand(y.shape)
    for damping in (rho[:, :1, :1, :1], rho.where(rho < 1, torch.inf)):
        _compare("band_solve", [y, gram, damping])


def test_signal() -> None:
    a, v = torch.rand(5, 300), torch.rand(5, 7)
    _compare("convolve1d", [a, v])
    _compare("correlate1d", [a, v])
    features, points = torch.rand(9, 8, 5), 2 * torch.rand(9, 3) - 1
    _compare("trilinear", [features, points])
    _compare("trilinear_backward", [torch.rand(9, 5), features, points])
