"""Simulated measurements: the camera's own, reproducible, with the noise asked for."""

import pytest
import torch
from shared import seeded, uniform

from cassi import SDCassi
from cassi.data.sensor import Sensor
from cassi.data.simulation import FixedMask, MaskCrops, RandomMasks, Simulator, WhiteNoise


def test_fixed_mask():
    x, mask = uniform(2, 3, 6, 8), uniform(6, 8, seed=1)
    for step, axis in ((2, -1), (-1, -1), (1, -2)):
        simulator = Simulator(mask, step=step, axis=axis)
        y, system = simulator(x, seeded())
        assert torch.equal(y, SDCassi(mask, bands=3, step=step, axis=axis)(x))
        assert torch.equal(y, system(x))
        assert simulator(x, seeded())[1] is system
        assert simulator(x[:, :2], seeded())[1].bands == 2


def test_a_mask_per_sample():
    x = uniform(3, 4, 6, 8)
    y, system = Simulator(RandomMasks())(x, seeded())
    assert system.mask.shape == (3, 1, 1, 6, 8)
    for b in range(3):
        single_system = SDCassi(system.mask[b], bands=4, step=2)
        torch.testing.assert_close(y[b : b + 1], single_system(x[b : b + 1]))
    assert not torch.equal(system.mask[0], system.mask[1])
    _, single_camera = Simulator(RandomMasks())(x[:1], seeded())
    assert single_camera.mask.shape == (1, 1, 6, 8)


def test_steps_are_drawn():
    simulator = Simulator(uniform(6, 8), step=[1, 2, -2])
    steps = {simulator(uniform(1, 3, 6, 8), seeded(seed))[1].step for seed in range(30)}
    assert steps == {1, 2, -2}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_same_state_same_bits(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for noise in (None, WhiteNoise(snr_db=(20, 30)), Sensor()):
        _assert_repeatable(noise, device)


def _assert_repeatable(noise, device):
    simulator = Simulator(MaskCrops(uniform(20, 20)), step=[1, 2], noise=noise)
    x, generator = uniform(2, 3, 6, 8).to(device), seeded()
    first = simulator(x, generator)[0]
    second = simulator(x, generator)[0]
    same_generator = seeded()
    assert torch.equal(simulator(x, same_generator)[0], first)
    assert torch.equal(simulator(x, same_generator)[0], second)
    assert first.shape != second.shape or not torch.equal(first, second)
    assert first.device.type == device


def test_white_noise():
    y = uniform(4, 1, 200, 200) + 0.5
    noisy = WhiteNoise(sigma=0.1)(y, 3, seeded()) - y
    assert noisy.std().item() == pytest.approx(0.1, rel=0.02)
    assert abs(noisy.mean().item()) < 1e-3
    noisy = WhiteNoise(snr_db=30)(y, 3, seeded()) - y
    ratio = 10 * torch.log10(y.square().mean((1, 2, 3)) / noisy.square().mean((1, 2, 3)))
    torch.testing.assert_close(ratio, torch.full((4,), 30.0), rtol=0, atol=0.1)
    noisy = WhiteNoise(snr_db=(20, 40))(y, 3, seeded()) - y
    assert noisy.std((1, 2, 3)).unique().numel() == 4
    assert torch.equal(WhiteNoise(sigma=0)(y, 3, seeded()), y)


def test_camera_of_validation_serves_training():
    simulator = Simulator(uniform(6, 8))
    x = uniform(1, 3, 6, 8)
    with torch.inference_mode():
        simulator(x, seeded())
    y, system = simulator(x, seeded())
    v = torch.zeros_like(x, requires_grad=True)
    system.data_step(v, y).sum().backward()
    assert v.grad is not None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: WhiteNoise(), ValueError, "expected snr_db or sigma"),
        (lambda: WhiteNoise(20, 0.1), ValueError, "expected snr_db or sigma"),
        (lambda: WhiteNoise(snr_db=(3, 2)), ValueError, "snr_db: expected a number or"),
        (lambda: WhiteNoise(sigma=-1), ValueError, "sigma: expected at least 0"),
        (lambda: Simulator(torch.ones(2, 2), step=[]), ValueError, "step: expected at least one"),
        (lambda: Simulator(torch.ones(2, 2), step=["1"]), TypeError, "step: expected a number"),
        (lambda: Simulator(RandomMasks(), detector=9), ValueError, "expected a given mask with it"),
        (lambda: Simulator(torch.ones(2, 2), axis=0), ValueError, "axis: expected -1"),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_cubes_that_do_not_fit():
    simulator = Simulator(FixedMask(torch.ones(4, 4)))
    with pytest.raises(ValueError, match=r"the mask's size \(4, 4\), got \(6, 8\)"):
        simulator(uniform(1, 3, 6, 8), seeded())
    with pytest.raises(ValueError, match=r"expected cubes \(B, C, H, W\)"):
        simulator(uniform(3, 4, 4), seeded())


def test_offsets_and_the_detector_of_the_whole_mask():
    mask, offsets = uniform(8, 20), [-0.5, 1.25, 3.0]
    full_camera, x = SDCassi(mask, 3, offsets=offsets, detector=22), uniform(1, 3, 8, 20)
    y, system = Simulator(mask, offsets=offsets, detector=22)(x, seeded())
    assert torch.equal(y, full_camera(x))
    # A crop has a detector that is smaller by as much as it is itself.
    crops = Simulator(MaskCrops(mask), offsets=offsets, detector=22)
    y, system = crops(x[..., :12].expand(2, -1, -1, -1), seeded())
    assert (system.mask.shape[0], y.shape) == (2, (2, 1, 8, 14))
    assert system.offsets == tuple(offsets)
    assert system.data_step(system.adjoint(y), y).shape == (2, 3, 8, 12)
    with pytest.raises(ValueError, match="offsets: expected 2 values, one per band of the cubes"):
        crops(x[:, :2, :, :12], seeded())


def test_a_fractional_step_for_any_number_of_bands():
    simulator = Simulator(uniform(6, 8), step=-1.5, axis=-2)
    for bands, rows in ((2, 8), (4, 11)):
        y, system = simulator(uniform(1, bands, 6, 8), seeded())
        assert y.shape == (1, 1, rows, 8)
        assert system.offsets == tuple(1.5 * c for c in reversed(range(bands)))
