"""The dual disperser: its equation, repetition of the mask, and what it refuses."""

import pytest
import torch
from shared import rand

from cassi.systems import DDCassi
from cassi.systems.dd_cassi import code_bands


@pytest.mark.parametrize("step", [2, -2, 0, 1])
@pytest.mark.parametrize("shots", [1, 3])
def test_equation(step, shots):
    bands, height, width = 4, 5, 6
    mask = rand(shots, 1, height, width + (bands - 1) * abs(step))
    x = rand(2, bands, height, width)
    y = torch.zeros(2, shots, height, width, dtype=torch.float64)
    for c in range(bands):
        offset = c * step if step >= 0 else (bands - 1 - c) * -step
        y += mask[:, 0, :, offset : offset + width] * x[:, c, None]
    system = DDCassi(mask, bands, step, width=width)
    torch.testing.assert_close(system(x), y)
    turned = DDCassi(mask.mT, bands, step, axis=-2, width=width)
    torch.testing.assert_close(turned(x.mT), y.mT)
    assert system.measurement_shape == (shots, height, width)
    assert (system.step, system.mask_step) == (0, step)


def test_a_narrow_mask_repeats():
    mask = rand(3, 5)
    wide = torch.cat([mask, mask, mask], -1)
    x = rand(1, 4, 3, 5)
    assert torch.equal(DDCassi(mask, 4, 2)(x), DDCassi(wide, 4, 2, width=5)(x))
    assert DDCassi(mask, 4, 2, width=9).cube_shape == (4, 3, 9)


def test_offsets_between_pixels():
    mask = rand(1, 1, 3, 9)
    system = DDCassi(mask, 3, offsets=[0, 1.25, 2], width=5)
    between = 0.75 * mask[0, 0, :, 1:6] + 0.25 * mask[0, 0, :, 2:7]
    torch.testing.assert_close(system.mask[0, 1], between)
    whole = DDCassi(mask, 3, offsets=[0.0, 2.0, 4.0], width=5)
    assert torch.equal(whole.mask, DDCassi(mask, 3, 2, width=5).mask)


def test_coded_masks_pass_gradients_on():
    mask = rand(1, 1, 3, 5).requires_grad_()
    code_bands(mask, 3, [0, 1, 2.5]).sum().backward()
    torch.testing.assert_close(mask.grad, torch.full_like(mask, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"axis": 1}, ValueError, "axis: expected -1"),
        ({"step": "1"}, TypeError, "step: expected a number of pixels per band, got '1'"),
        ({"bands": True}, TypeError, "bands"),
        ({"width": 0}, ValueError, "width: expected at least 1"),
        ({"offsets": [0, 1]}, ValueError, "offsets: expected 3 numbers"),
        ({"offsets": [0, -1, 2]}, ValueError, "offsets: expected 3 numbers >= 0"),
        ({"mask": torch.ones(2, 4, 5)}, ValueError, "mask: expected 1 or 3 bands, got 2"),
    ],
)
def test_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        DDCassi(**{"mask": torch.ones(4, 5), "bands": 3, **arguments})
