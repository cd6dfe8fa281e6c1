"""Cameras with one offset per band: fractions of pixels, any order, learned ones."""

import pytest
import torch
from shared import rand
from torch import nn

from cassi import BlurredCassi, SDCassi, WarpedCassi


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("step", [0, 1, 2, -3])
def test_even_whole_offsets_are_a_step(step, axis):
    mask, x = rand(2, 1, 6, 7).float(), rand(2, 4, 6, 7).float()
    nominal = SDCassi(mask, 4, step, axis)
    for offsets in (nominal.offsets, torch.tensor(nominal.offsets)):
        system = SDCassi(mask, 4, offsets=offsets, axis=axis)
        assert (system.step, system.shifts) == (step, None)
        assert torch.equal(system(x), nominal(x))
    # The same numbers as parameters go the way of fractions, and give the same bits.
    learned = SDCassi(mask, 4, offsets=nn.Parameter(torch.tensor(nominal.offsets)), axis=axis)
    assert learned.measurement_shape == nominal.measurement_shape
    y = nominal(x)
    assert torch.equal(learned(x), y)
    assert torch.equal(learned.adjoint(y), nominal.adjoint(y))


def test_offsets_keep_their_digits():
    offsets = [0.0, 33.123456789]
    system = SDCassi(rand(3, 40), bands=2, offsets=offsets).bfloat16().float()
    assert system.offsets == tuple(offsets)
    assert system.shifts.dtype == torch.float64


def test_changed_offsets_are_noticed():
    mask, x = rand(4, 5), rand(1, 3, 4, 5)
    system = SDCassi(mask, 3, offsets=[0.0, 1.5, 3.0], detector=9)
    system(x), system.pinv(system(x))
    system.shifts.add_(0.25)
    other = SDCassi(mask, 3, offsets=[0.25, 1.75, 3.25], detector=9)
    y = other(x)
    assert torch.equal(system(x), y)
    torch.testing.assert_close(system.pinv(y), other.pinv(y))
    moved = {
        "mask": (mask / 2)[None, None],
        "shifts": torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64),
    }
    other = SDCassi(moved["mask"], 3, offsets=moved["shifts"], detector=9)
    for got, expected in (
        (torch.func.functional_call(system, moved, (x,)), other(x)),
        (
            torch.func.functional_call(
                _Call(system, "pinv"), {f"system.{k}": v for k, v in moved.items()}, (y,)
            ),
            other.pinv(y),
        ),
    ):
        torch.testing.assert_close(got, expected)


class _Call(nn.Module):
    """A method of a camera, for `functional_call`."""

    def __init__(self, system, method):
        super().__init__()
        self.system, self.method = system, method

    def forward(self, *args):
        return getattr(self.system, self.method)(*args)


def test_offsets_and_mask_can_be_learned():
    mask, x = rand(6, 24), rand(2, 3, 6, 24)
    true = [0.4, 2.1, 3.7]
    y = SDCassi(mask, 3, offsets=true, detector=29)(x)
    start = nn.Parameter(torch.tensor([0.2, 2.4, 3.4], dtype=torch.float64))
    system = SDCassi(nn.Parameter(mask * 0.9), 3, offsets=start, detector=29)
    assert {name for name, _ in system.named_parameters()} == {"mask", "shifts"}
    optimizer = torch.optim.Adam(system.parameters(), lr=0.02)
    for _ in range(250):
        optimizer.zero_grad()
        loss = (system(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    assert system.shifts is not None
    torch.testing.assert_close(
        system.shifts.detach(), torch.tensor(true).double(), atol=0.02, rtol=0
    )
    assert loss.item() < 1e-4
    v = torch.zeros_like(x)
    assert torch.autograd.gradcheck(
        lambda o: torch.func.functional_call(
            _Call(system, "data_step"), {"system.shifts": o}, (v, y, 0.3)
        ),
        torch.tensor([0.4, 2.1, 3.7], dtype=torch.float64, requires_grad=True),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [0, 1]}, r"offsets: expected 3 numbers, one per band, got shape \(2,\)"),
        ({"offsets": [-0.5, 1, 2]}, "offsets: expected at least 0, got -0.5; or give detector="),
        ({"offsets": [0, 1, float("nan")]}, "offsets: expected finite numbers"),
        ({"offsets": "abc"}, "offsets: expected numbers, one per band, got 'abc'"),
        ({"offsets": [0, 1, 3], "detector": 0}, "detector: expected a whole number of at least 1"),
        ({"detector": 0}, "detector: expected a whole number of at least 1"),
    ],
)
def test_refused(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SDCassi(torch.ones(4, 5), 3, **change)


def test_ratio_inverse_and_other_sizes_are_refused():
    system = SDCassi(torch.ones(4, 5), 3, offsets=[0, 1.5, 3])
    with pytest.raises(ValueError, match="ratio_inverse: expected a camera with a step"):
        system.ratio_inverse(torch.ones(1, *system.measurement_shape))
    for method in (system.adjoint, system.pinv):
        with pytest.raises(ValueError, match=r"y: expected \(B, K, H', W'\) = \(B, 1, 4, 8\)"):
            method(torch.ones(1, 1, 4, 9))


@pytest.mark.parametrize(
    ("offsets", "step"),
    [([0, 2.6], 3), ([2.6, 0], -3), ([0, 1, 4.9], 2), ([5, 5.4, 5.6], 0), ([0.5], 0)],
)
def test_uneven_offsets_have_a_mean_step(offsets, step):
    assert SDCassi(rand(4, 6), len(offsets), offsets=offsets).step == step


@pytest.mark.parametrize("make", [SDCassi, BlurredCassi, WarpedCassi])
@pytest.mark.parametrize("axis", [-1, -2])
def test_a_fractional_step_is_offsets(make, axis):
    mask, x = rand(7, 9), rand(2, 4, 7, 9)
    system = make(mask, 4, -1.5, axis)
    spelled = make(mask, 4, axis=axis, offsets=[4.5, 3.0, 1.5, 0.0])
    assert system.measurement_shape == spelled.measurement_shape
    assert system.offsets == spelled.offsets
    assert torch.equal(system(x), spelled(x))


def test_a_whole_step_may_be_a_float_and_have_a_detector():
    mask, x = rand(4, 5), rand(1, 3, 4, 5)
    whole = SDCassi(mask, 3, step=2.0)
    assert whole.shifts is None
    assert (whole.step, type(whole.step)) == (2, int)
    assert SDCassi(mask, 3, step=2, detector=9).shifts is None
    cut = SDCassi(mask, 3, step=2, detector=7)
    torch.testing.assert_close(cut(x), whole(x)[..., :7])


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("shots", [1, 2])
@pytest.mark.parametrize("fraction", [0.25, 0.75, -0.25])
def test_a_common_fraction_is_inverted_without_growth(axis, shots, fraction):
    drawn = torch.Generator().manual_seed(0)
    mask = (torch.rand(shots, 1, 300, 300, generator=drawn) < 0.5).float()
    offsets = [2 * c + fraction for c in range(6)]
    system = SDCassi(mask, 6, axis=axis, offsets=offsets, detector=320)
    y = system(torch.rand(1, 6, 300, 300, generator=drawn))
    torch.testing.assert_close(system(system.pinv(y)), y, atol=1e-4, rtol=0)
    noisy = y + 0.01 * torch.randn(y.shape, generator=drawn)
    assert system.pinv(noisy).abs().max() < 10
