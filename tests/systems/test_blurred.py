"""BlurredCassi by hand: where light goes, what counts as a kernel, and what is refused."""

import pytest
import torch
from shared import rand

from cassi import BlurredCassi


def test_a_point_before_the_mask_and_a_line_after_it():
    """A point of band 1 in the middle, blurred, coded, spread, and moved by one column."""
    mask = rand(5, 5)
    point, line = rand(3, 3), torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
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
def test_light_is_lost_at_the_rim_alone(axis):
    system = BlurredCassi(torch.ones(15, 15).double(), 1, 0, axis, point_spread=1, line_spread=0.5)
    y = system(torch.ones(1, 1, 15, 15).double())[0, 0]
    torch.testing.assert_close(y[6:9, 6:9], torch.ones(3, 3).double(), rtol=1e-9, atol=1e-9)
    assert bool((y[0] < 1).all())


def test_line_spread_reaches_over_the_ends_of_a_band():
    """The last band's light may fall to the left of its window, where the detector goes on."""
    system = BlurredCassi(torch.ones(1, 4).double(), 2, 3, line_spread=[0.0, 0.6])
    x = torch.zeros(1, 2, 1, 4).double()
    x[0, 1] = 1
    y = system(x)[0, 0, 0]
    assert 0 < y[2] < y[3]
    assert y[0] < y[1] < y[2]


def test_an_array_is_reproduced_whatever_its_rank():
    point = rand(2, 3, 5)
    system = BlurredCassi(rand(6, 7), 2, point_spread=point)
    assert system.point_rows is not None
    made = torch.einsum("rci,rcj->cij", system.point_rows, system.point_columns)
    torch.testing.assert_close(made, point)
    gauss = BlurredCassi(rand(6, 7), 2, point_spread=0.7)
    again = torch.einsum("rci,rcj->cij", gauss.point_rows, gauss.point_columns)
    assert len(BlurredCassi(rand(6, 7), 2, point_spread=again).point_rows) == 1


@pytest.mark.parametrize("name", ["point_rows", "point_columns", "line", "mask"])
def test_gradients_of_the_optics(name, assert_slope):
    system = BlurredCassi(rand(4, 5) + 0.2, 2, 1, point_spread=0.5, line_spread=[0.4, 0.5])
    y, v = rand(1, *system.measurement_shape), rand(1, *system.cube_shape)
    value = getattr(system, name)

    def evaluate():
        return system.data_step(v, y, 0.1).square().sum()

    assert_slope(evaluate, value, rand(*value.shape, seed=3), 1e-5, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"point_spread": -1.0}, ValueError, r"point_spread: expected widths >= 0, got -1\.0"),
        ({"line_spread": [0.1, 0.2]}, ValueError, "line_spread: expected one width or 3, .*got 2"),
        ({"line_spread": rand(4)}, ValueError, "line_spread: expected kernels of odd sides"),
        ({"line_spread": rand(2, 3)}, ValueError, r"line_spread: .* C = 3, got shape \(2, 3\)"),
        ({"point_spread": rand(3)}, ValueError, r"point_spread: .* got shape \(1, 3\)|\(3,\)"),
        ({"point_spread": [["a"]]}, TypeError, "point_spread: expected numbers, got dtype"),
        ({"line_spread": rand(3) * float("nan")}, ValueError, "line_spread: expected finite"),
        ({"iterations": 0}, ValueError, "iterations: expected a whole number of at least 1, got 0"),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        BlurredCassi(rand(4, 5), 3, **arguments)


@pytest.mark.parametrize("axis", [-1, -2])
def test_a_shorter_detector_sees_the_first_part(axis):
    mask, x = rand(5, 5), rand(2, 3, 5, 5)
    spreads = {"point_spread": 0.7, "line_spread": 0.6, "axis": axis, "offsets": [0, 1.5, 4]}
    whole = BlurredCassi(mask, 3, **spreads)
    part = BlurredCassi(mask, 3, **spreads, detector=7)
    torch.testing.assert_close(part(x), whole(x).narrow(axis, 0, 7))
    y = rand(2, *part.measurement_shape)
    assert (part(x) * y).sum().item() == pytest.approx((x * part.adjoint(y)).sum().item())


@pytest.mark.parametrize("axis", [-1, -2])
def test_what_blurs_on_the_detector_blurs_the_measurement(axis):
    kernel = rand(3, 5)
    mask, x = rand(2, 1, 6, 7), rand(2, 3, 6, 7)
    sharp = BlurredCassi(mask, 3, 1, axis, point_spread=0.6, line_spread=0.4)
    system = BlurredCassi(
        mask, 3, 1, axis, point_spread=0.6, line_spread=0.4, detector_spread=kernel
    )
    y = sharp(x)
    expected = torch.zeros_like(y)
    wide = torch.nn.functional.pad(y, (2, 2, 1, 1))
    for i in range(3):
        for j in range(5):
            rows, columns = slice(2 - i, 2 - i + y.shape[-2]), slice(4 - j, 4 - j + y.shape[-1])
            expected += kernel[i, j] * wide[..., rows, columns]
    torch.testing.assert_close(system(x), expected)
    assert "detector_spread=3x5" in str(system)
    assert "detector_spread" not in str(sharp)
