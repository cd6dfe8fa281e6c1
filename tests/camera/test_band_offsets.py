"""Offsets of bands by the light along the dispersion: its ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cassi.camera.band_offsets import estimate_offsets

BANDS = 16
AT = torch.arange(-4, 40, 0.5, dtype=torch.float64)


def flat(first, last):
    power = ((first <= AT) & (last >= AT)).double() + 1e-3
    return power / power.mean()


@pytest.mark.parametrize("sign", [1, -1])
def test_abrupt_ends_are_half_a_band_beyond(sign):
    true = 2.0 * np.arange(BANDS) + 0.7
    nominal = true - 0.7
    power, at, start = flat(-0.3, 31.7)[:76], AT[:76], nominal
    if sign < 0:  # the first band last on the detector
        power, at, start, true = power.flip(0), at.flip(0), nominal[::-1], true[::-1]
    found = estimate_offsets(at, power, start.tolist())
    assert found.visible_ends == "ends"
    assert found.offsets == pytest.approx(true.tolist(), abs=0.3)
    assert max(found.errors[0], found.errors[-1]) < 0.3
    assert max(found.errors) > 1  # no end tells the curve between


def test_one_end_shifts_and_leaves_the_other_end_unsure():
    power = flat(-0.3, 60.0) * torch.exp(-(AT - 0) / 6)  # fades
    found = estimate_offsets(AT, power / power.mean(), (2.0 * np.arange(BANDS)).tolist())
    assert found.visible_ends == "one end"
    assert found.offsets[0] == pytest.approx(0.7, abs=0.5)
    assert found.errors[-1] > found.errors[0]


def test_light_that_fades_tells_nothing():
    nominal = (2.0 * np.arange(BANDS)).tolist()
    power = torch.exp(-0.5 * ((AT - 15) / 8) ** 2)
    found = estimate_offsets(AT, power / power.mean(), nominal)
    assert found.visible_ends == ""
    assert found.offsets == pytest.approx(nominal)
    assert min(found.errors) >= 0.9
