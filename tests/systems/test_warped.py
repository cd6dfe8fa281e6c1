"""WarpedCassi by hand: directions of its parameters, gradients, determinism, what is refused."""

import pytest
import torch
from shared import rand

from cassi import WarpedCassi


def _place(image):
    """Return the centre of gravity (row, column) of an image `(H, W)`."""
    rows, columns = (torch.arange(n).double() for n in image.shape)
    total = image.sum()
    return ((image.sum(1) @ rows) / total).item(), ((image.sum(0) @ columns) / total).item()


def _point(system, band, row, column):
    x = torch.zeros(1, *system.cube_shape, dtype=torch.float64)
    x[0, band, row, column] = 1
    return _place(system(x)[0, 0])


def test_directions_along_columns():
    mask = torch.ones(21, 31).double()

    def place(row, column, band=0, **arguments):
        return _point(WarpedCassi(mask, 3, 2, **arguments), band, row, column)

    assert place(10, 15, band=1) == pytest.approx((10, 17))
    # Clockwise on a screen: what is right of the middle goes down.
    down, _ = place(10, 25, rotation=2)
    assert down == pytest.approx(10 + 10 * 0.0349, abs=1e-2)
    assert place(10, 25, magnification=1.05) == pytest.approx((10, 15 + 10 * 1.05), abs=0.05)
    # The middle stays, the ends of the slit are bent; scene = detector + smile.
    assert place(10, 15, smile=1) == pytest.approx((10, 15))
    assert place(1, 15, smile=1)[1] == pytest.approx(15 - 0.81, abs=1e-6)
    assert place(19, 15, smile=1)[1] == pytest.approx(15 - 0.81, abs=1e-6)
    # The slit's image is longer in one outermost band than in the other.
    first, middle, last = (place(1, 15, band=c, keystone=0.5)[0] for c in range(3))
    assert middle == pytest.approx(1)
    assert first == pytest.approx(1 - 0.45, abs=0.05)
    assert last == pytest.approx(1 + 0.45, abs=0.05)


def test_rows_and_columns_change_places_with_the_axis():
    mask, x = rand(7, 9), rand(2, 3, 7, 9)
    arguments = {"smile": 0.6, "keystone": [0.2, 0.1, 0.3], "magnification": 1.05}
    columns = WarpedCassi(mask, 3, -1, **arguments)
    rows = WarpedCassi(mask.T, 3, -1, axis=-2, **arguments)
    torch.testing.assert_close(columns(x), rows(x.mT).mT)


def test_a_polynomial_and_a_displacement_can_say_the_same():
    polynomial = torch.zeros(2, 2, 2)
    polynomial[0, 0, 0], polynomial[1, 1, 0] = 0.4, 0.3
    field = torch.full((2, 5, 9), 0.4).double()
    field[1] = 0.3 * torch.linspace(-1, 1, 5).double()[:, None]
    mask, x = rand(5, 7), rand(1, 3, 5, 7)
    a = WarpedCassi(mask, 3, 1, polynomial=polynomial)
    b = WarpedCassi(mask, 3, 1, displacement=field)
    torch.testing.assert_close(a(x), b(x), rtol=1e-6, atol=1e-6)


def test_offsets_follow_the_smile():
    system = WarpedCassi(rand(41, 30), 2, 3, smile=1.5)
    assert system.offsets == pytest.approx((-0.5, 2.5), abs=0.05)  # the mean of a parabola
    with torch.no_grad():
        system.smile.zero_()
    assert system.offsets == (0, 3)


def test_offsets_are_those_in_the_scene():
    """A magnified image moves more beside it, which does not count; the middle is that of a map."""
    offsets = WarpedCassi(rand(20, 21), 3, 6, magnification=1.2).offsets
    assert offsets == pytest.approx((0, 6, 12), abs=0.2)
    rows = WarpedCassi(rand(21, 20), 3, 6, axis=-2, magnification=1.2).offsets
    assert rows == pytest.approx(offsets)


@pytest.mark.parametrize(
    "name", ["rotation", "magnification", "smile", "keystone", "polynomial", "displacement"]
)
@pytest.mark.parametrize("method", ["forward", "adjoint", "data_step"])
def test_gradients_of_the_map(name, method, assert_slope):
    system = WarpedCassi(
        rand(2, 1, 5, 6) + 0.2,
        2,
        step=1,
        rotation=1.3,
        magnification=[1.02, 0.97],
        smile=0.31,
        keystone=0.17,
        polynomial=0.1 * rand(2, 2, 2),
        displacement=0.1 * rand(2, 2, 5, 7),
    )
    x, y = rand(2, *system.cube_shape), rand(2, *system.measurement_shape)
    arguments = {"forward": (x,), "adjoint": (y,), "data_step": (x, y, 0.3)}[method]
    value = getattr(system, name)

    def evaluate():
        return getattr(system, method)(*arguments).square().sum()

    assert_slope(evaluate, value, rand(*value.shape, seed=3), 1e-6, rel=1e-4)


def test_bits_do_not_depend_on_threads(assert_same_bits):
    system = WarpedCassi(rand(40, 50).float(), 5, 2, smile=1.0, rotation=0.5)
    x, y = rand(2, *system.cube_shape).float(), rand(2, *system.measurement_shape).float()
    assert_same_bits(lambda: (system(x), system.adjoint(y), system.data_step(x, y, 0.5)))


def test_a_map_keeps_its_precision_and_is_derived_once():
    system = WarpedCassi(rand(5, 6).float(), 2, 1, smile=0.3, rotation=0.123456789)
    taps = system._taps
    assert system.float()._taps is taps
    assert system.half().rotation.dtype == torch.float64
    assert system.double().rotation.item() == 0.123456789


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"smile": [1.0, 2.0]}, ValueError, r"smile: expected one value or 3, .* shape \(2,\)"),
        ({"rotation": "a"}, TypeError, "rotation: expected numbers, got dtype"),
        ({"keystone": float("inf")}, ValueError, "keystone: expected finite numbers"),
        ({"magnification": 0.0}, ValueError, r"magnification: expected numbers > 0, got 0\.0"),
        ({"polynomial": rand(2, 2, 3)}, ValueError, r"polynomial: expected \(C, 2, P, P\), got"),
        (
            {"displacement": rand(2, 4, 5)},
            ValueError,
            r"displacement: expected \(C, 2, 4, 9\), got shape \(1, 2, 4, 5\)",
        ),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        WarpedCassi(rand(4, 5), 3, **arguments)
