"""BlurredCassi by hand: where light goes, what counts as a kernel, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cassi import GAP, TV, BlurredCassi, SDCassi, solve


def _rand(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("step", "axis"), [(2, -1), (-1, -2), (0, -1)])
@pytest.mark.parametrize("shots", [1, 3])
def test_without_blur_it_is_the_plain_camera(step: int, axis: int, shots: int) -> None:
    mask, x = _rand(shots, 4, 6, 5), _rand(2, 4, 6, 5)
    blurred, plain = (make(mask, 4, step, axis) for make in (BlurredCassi, SDCassi))
    torch.testing.assert_close(blurred(x), plain(x))
    assert blurred.offsets == plain.offsets
    assert blurred.measurement_shape == plain.measurement_shape
    y = plain(x)
    torch.testing.assert_close(blurred.adjoint(y), plain.adjoint(y))
    v = _rand(2, 4, 6, 5, seed=1)
    torch.testing.assert_close(blurred.data_step(v, y, 0.5), plain.data_step(v, y, 0.5))


def test_a_point_before_the_mask_and_a_line_after_it() -> None:
    """A point of band 1 in the middle, blurred, coded, spread, and moved by one column."""
    mask = _rand(5, 5)
    point, line = _rand(3, 3), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    system = BlurredCassi(mask, 2, 1, point_spread=point, line_spread=line)
    x = torch.zeros(1, 2, 5, 5, dtype=torch.float64)
    x[0, 1, 2, 2] = 1
    coded = torch.zeros(5, 5, dtype=torch.float64)
    coded[1:4, 1:4] = point
    coded *= mask
    expected = torch.zeros(5, 6, dtype=torch.float64)
    for t, weight in zip((-1, 0, 1), line, strict=True):
        for column in range(1, 4):
            expected[:, column + 1 + t] += weight * coded[:, column]
    torch.testing.assert_close(system(x)[0, 0], expected)


@pytest.mark.parametrize("axis", [-1, -2])
def test_light_is_lost_at_the_rim_alone(axis: int) -> None:
    system = BlurredCassi(torch.ones(15, 15).double(), 1, 0, axis, point_spread=1, line_spread=0.5)
    y = system(torch.ones(1, 1, 15, 15).double())[0, 0]
    torch.testing.assert_close(y[6:9, 6:9], torch.ones(3, 3).double(), rtol=1e-9, atol=1e-9)
    assert bool((y[0] < 1).all())


def test_line_spread_reaches_over_the_ends_of_a_band() -> None:
    """The last band's light may fall to the left of its window, where the detector goes on."""
    system = BlurredCassi(torch.ones(1, 4).double(), 2, 3, line_spread=[0.0, 0.6])
    x = torch.zeros(1, 2, 1, 4).double()
    x[0, 1] = 1
    y = system(x)[0, 0, 0]
    assert 0 < y[2] < y[3]
    assert y[0] < y[1] < y[2]


def test_widths_per_band() -> None:
    widths = [0.3, 0.8]
    each = [BlurredCassi(_rand(6, 7), 1, 0, point_spread=w) for w in widths]
    both = BlurredCassi(_rand(6, 7), 2, 0, point_spread=widths)
    x = _rand(1, 2, 6, 7)
    apart = each[0](x[:, :1]) + each[1](x[:, 1:])
    torch.testing.assert_close(both(x), apart)


def test_an_array_is_reproduced_whatever_its_rank() -> None:
    point = _rand(2, 3, 5)
    system = BlurredCassi(_rand(6, 7), 2, point_spread=point)
    assert system.point_rows is not None
    assert system.point_columns is not None
    made = torch.einsum("rci,rcj->cij", system.point_rows, system.point_columns)
    torch.testing.assert_close(made, point)
    gauss = BlurredCassi(_rand(6, 7), 2, point_spread=0.7)
    again = torch.einsum("rci,rcj->cij", gauss.point_rows, gauss.point_columns)
    assert len(BlurredCassi(_rand(6, 7), 2, point_spread=again).point_rows) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["point_rows", "point_columns", "line", "mask"])
def test_gradients_of_the_optics(name: str, assert_slope: Callable[..., None]) -> None:
    system = BlurredCassi(_rand(4, 5) + 0.2, 2, 1, point_spread=0.5, line_spread=[0.4, 0.5])
    y, v = _rand(1, *system.measurement_shape), _rand(1, *system.cube_shape)
    value = getattr(system, name)

    def evaluate() -> Tensor:
        return system.data_step(v, y, 0.1).square().sum()

    assert_slope(evaluate, value, _rand(*value.shape, seed=3), 1e-5, rel=1e-5)


def test_solvers_run_and_the_true_camera_is_worth_it() -> None:
    x = _rand(1, 4, 24, 24).float()
    x = torch.nn.functional.avg_pool2d(x, 5, stride=1, padding=2)
    mask = (_rand(24, 24, seed=1) > 0.5).float()
    system = BlurredCassi(mask, 4, 2, point_spread=0.7, line_spread=0.7, tolerance=1e-3)
    y = system(x)
    errors = [
        (solve(y, camera, algorithm=GAP(), prior=TV(), iterations=20) - x).norm()
        for camera in (system, SDCassi(mask, 4, 2))
    ]
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"point_spread": -1.0}, ValueError, r"point_spread: expected widths >= 0, got -1\.0"),
        ({"line_spread": [0.1, 0.2]}, ValueError, "line_spread: expected one width or 3, .*got 2"),
        ({"line_spread": _rand(4)}, ValueError, "line_spread: expected kernels of odd sides"),
        ({"line_spread": _rand(2, 3)}, ValueError, r"line_spread: .* C = 3, got shape \(2, 3\)"),
        ({"point_spread": _rand(3)}, ValueError, r"point_spread: .* got shape \(1, 3\)|\(3,\)"),
        ({"point_spread": [["a"]]}, TypeError, "point_spread: expected numbers, got dtype"),
        ({"line_spread": _rand(3) * float("nan")}, ValueError, "line_spread: expected finite"),
        ({"iterations": 0}, ValueError, "iterations: expected a whole number of at least 1, got 0"),
    ],
)
def test_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BlurredCassi(_rand(4, 5), 3, **arguments)


def test_repr_names_the_camera() -> None:
    text = repr(BlurredCassi(_rand(5, 4), 3, point_spread=0.5, line_spread=_rand(3)))
    assert "mask=5x4, shots=1, bands=3, step=2, axis=-1, point_spread=5x5, line_spread=3" in text


@pytest.mark.parametrize("axis", [-1, -2])
def test_a_shorter_detector_sees_the_first_part(axis: int) -> None:
    mask, x = _rand(5, 5), _rand(2, 3, 5, 5)
    spreads = {"point_spread": 0.7, "line_spread": 0.6, "axis": axis, "offsets": [0, 1.5, 4]}
    whole = BlurredCassi(mask, 3, **spreads)
    part = BlurredCassi(mask, 3, **spreads, detector=7)
    torch.testing.assert_close(part(x), whole(x).narrow(axis, 0, 7))
    y = _rand(2, *part.measurement_shape)
    assert (part(x) * y).sum().item() == pytest.approx((x * part.adjoint(y)).sum().item())


def test_kernels_may_be_lists() -> None:
    kernel = [[0.0, 0.1, 0.0], [0.1, 0.6, 0.1], [0.0, 0.1, 0.0]]
    x = _rand(1, 2, 5, 6)
    listed, given = (
        BlurredCassi(_rand(5, 6), 2, point_spread=k) for k in (kernel, torch.tensor(kernel))
    )
    torch.testing.assert_close(listed(x), given(x), rtol=1e-6, atol=1e-6)
    with pytest.raises(TypeError, match=r"point_spread: expected real numbers, got torch\.complex"):
        BlurredCassi(_rand(5, 6), 2, point_spread=torch.tensor(kernel).cfloat())


def test_inputs_that_do_not_fit_are_named() -> None:
    system = BlurredCassi(_rand(4, 5), 3, line_spread=0.5)
    assert "point_spread=none, line_spread=" in repr(system)
    with pytest.raises(ValueError, match=r"x: expected \(B, C, H, W\) = \(B, 3, 4, 5\), got"):
        system(_rand(1, 2, 4, 5))
    with pytest.raises(ValueError, match=r"y: expected .* = \(B, 1, 4, 9\), got"):
        system.adjoint(_rand(1, 1, 4, 8))
