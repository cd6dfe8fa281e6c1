"""Frames to measurements: each step alone, all of them undoing a simulated sensor, and refusals."""

import math

import numpy as np
import pytest
import torch
from shared import seeded

from cassi import SDCassi
from cassi.data.bundled import bundled_path
from cassi.data.frames import STEPS, Preprocessing, describe, repair
from cassi.data.io import load_cube, load_mask
from cassi.data.sensor import Sensor


@pytest.fixture(scope="module")
def snapshot():
    """The bundled scene, measured."""
    truth = load_cube(bundled_path("scene.tif")).data
    mask = load_mask(bundled_path("mask.tif")).data
    return SDCassi(mask, bands=truth.shape[1], step=2)(truth)


@pytest.fixture
def save(tmp_path):
    """Write a frame, return its path."""

    def write(name, frame):
        np.save(tmp_path / f"{name}.npy", np.asarray(frame))
        return str(tmp_path / f"{name}.npy")

    return write


def test_nothing_is_done_by_default():
    frame = torch.rand(1, 2, 6, 8)
    y, done = Preprocessing().apply(frame)
    assert torch.equal(y, frame)
    assert tuple(done) == STEPS
    assert done["dark"] == {"source": "number", "level": 0.0}
    assert done["scale"] == 1.0
    assert [done[name] for name in STEPS[1:-1]] == [None] * 4
    assert describe(done) == ""


def test_dark_window_and_scale():
    frame = torch.rand(1, 2, 6, 8)
    y, done = Preprocessing(dark=0.5, window=[1, 2, 4, 5], scale=3).apply(frame)
    torch.testing.assert_close(y, 3 * (frame[..., 1:5, 2:7] - 0.5))
    assert done["window"] == [1, 2, 4, 5]
    assert describe(done) == "dark level 0.5 subtracted, window [1, 2, 4, 5], times 3"


def test_dark_level_of_the_edges():
    frame = torch.rand(1, 1, 6, 12) + 5
    frame[..., :2] = frame[..., -2:] = 0.25
    y, done = Preprocessing(dark="auto", step=-2).apply(frame)
    assert done["dark"] == {"source": "edges", "level": 0.25}
    torch.testing.assert_close(y, frame - 0.25)


def test_dark_frames_are_averaged_and_flats_normalised(save):
    frame, dark = torch.rand(1, 2, 6, 8) + 1, torch.rand(3, 6, 8)
    flat = 1 + torch.rand(6, 8)
    chain = Preprocessing(dark=save("dark", dark), flat=save("flat", flat + dark.mean(0)))
    y, done = chain.apply(frame)
    torch.testing.assert_close(y, (frame - dark.mean(0)) / (flat / flat.mean()))
    assert done["dark"]["level"] == pytest.approx(dark.mean().item())
    assert done["flat"]["lowest"] == pytest.approx((flat.min() / flat.mean()).item())
    assert "dark.npy" in describe(done)
    assert "flat.npy" in describe(done)


def test_repair_takes_the_mean_of_good_neighbours():
    frame = torch.arange(30.0).reshape(1, 1, 5, 6)
    bad = torch.zeros(5, 6, dtype=torch.bool)
    bad[2, 2] = bad[2, 3] = bad[0, 0] = True
    broken = torch.where(bad, 1e6, frame)
    fixed = repair(broken, bad)
    assert torch.equal(fixed[..., ~bad], frame[..., ~bad])
    around = [frame[0, 0, r, c] for r in (1, 2, 3) for c in (1, 2, 3) if not bad[r, c]]
    assert fixed[0, 0, 2, 2].item() == pytest.approx(torch.stack(around).mean().item())
    assert fixed[0, 0, 0, 0].item() == pytest.approx((1 + 6 + 7) / 3)
    # A whole block is filled from its border inwards.
    bad[:4, :4] = True
    assert repair(torch.where(bad, math.inf, torch.ones(5, 6)), bad).eq(1).all()


def test_hot_pixels_by_list_and_by_map(save):
    frame = torch.ones(1, 2, 6, 8)
    frame[..., 3, 4] = 50
    bad = torch.zeros(6, 8)
    bad[3, 4] = 1
    for given in ([[3, 4]], save("map", bad), save("map", bad.bool())):
        y, done = Preprocessing(hot_pixels=given).apply(frame)
        assert y.eq(1).all()
        assert done["hot_pixels"]["repaired"] == 1
        assert done["hot_pixels"]["threshold"] is None


@pytest.mark.parametrize("constant", [False, True])
def test_hot_pixels_by_dark_frame(save, constant):
    dark = torch.full((40, 50), 0.1)
    dark += 0 if constant else 0.01 * torch.randn(40, 50, generator=seeded())
    dark[3, 4] = dark[3, 5] = 0.5
    frame = torch.rand(1, 1, 40, 50) + dark
    y, done = Preprocessing(dark=save("dark", dark), hot_pixels=8).apply(frame)
    assert done["hot_pixels"] == {"source": "dark", "threshold": 8, "repaired": 2}
    # The code is left alone.
    expected = frame - dark
    expected[..., 3, 4:6] = y[..., 3, 4:6]
    assert torch.equal(y, expected)


def test_dead_pixels_by_flat_field(save):
    flat = 1 + 0.01 * torch.randn(40, 50, generator=seeded())
    flat[3, 4] = 0
    frame = torch.ones(1, 1, 40, 50) * flat
    y, done = Preprocessing(flat=save("flat", flat), hot_pixels=8).apply(frame)
    assert done["hot_pixels"]["source"] == "flat"
    assert done["hot_pixels"]["repaired"] == 1
    torch.testing.assert_close(y, torch.full_like(y, y[..., 3, 4].item()))


def test_hot_pixels_of_a_coded_snapshot(snapshot):
    clean, done = Preprocessing(hot_pixels=8).apply(snapshot)
    assert torch.equal(clean, snapshot)
    assert done["hot_pixels"]["repaired"] == 0
    frame = snapshot.clone()
    places = torch.randperm(frame.numel(), generator=seeded())[:100]
    frame.view(-1)[places] += snapshot.max()
    y, done = Preprocessing(hot_pixels=8).apply(frame)
    assert done["hot_pixels"]["source"] == "measurement"
    assert 96 <= done["hot_pixels"]["repaired"] <= 100
    changed = (y != frame).flatten()
    assert changed.sum() == changed[places].sum()


def test_saturation_counts_what_is_not_repaired():
    frame = torch.rand(1, 1, 10, 10)
    frame[..., 2, 3] = frame[..., 4, 5] = 2
    with pytest.warns(UserWarning, match=r"1 pixels \(1 %\) are saturated, at 2 or more"):
        _, done = Preprocessing(saturation=2, dark=0.5, hot_pixels=[[2, 3]]).apply(frame)
    assert done["saturation"] == {"level": 2.0, "pixels": 1, "fraction": 0.01}


def test_the_chain_undoes_a_sensor(snapshot, save):
    """Dark current, offset, response and hot pixels go; shot and read noise are left."""
    options = {"shot": "poisson", "full_well": 1e4, "gain": 2.5, "bits": 12}
    options |= {"read": 2.5, "offset": 64.0, "dark": 300.0, "saturate": True}
    sensor = Sensor(**options, prnu=0.02, hot=0.002, hot_level=0.4, raw=True)
    bands, random = 28, seeded()
    frame = sensor(snapshot, bands, random)
    still = torch.zeros(1, 16, *snapshot.shape[-2:])
    even = torch.full_like(still, 0.5 * sensor.electrons / sensor.unit(bands))
    dark = save("dark", sensor(still, bands, random)[0])
    flat = save("flat", sensor(even, bands, random)[0])
    y, done = Preprocessing(dark=dark, flat=flat, hot_pixels=8).apply(frame)
    hot = round(0.002 * snapshot[0, 0].numel())
    assert hot <= done["hot_pixels"]["repaired"] <= hot + 2
    electrons = snapshot * sensor.unit(bands)
    variance = electrons + 300 + 2.5**2 + 2.5**2 / 12
    z = (y - snapshot) * sensor.unit(bands) / variance.sqrt()
    good = z.abs() < 6
    assert good.double().mean() > 0.998
    assert z[good].mean().abs() < 0.05
    assert z[good].std().item() == pytest.approx(1, abs=0.06)
    untouched = (frame - snapshot) * sensor.unit(bands) / variance.sqrt()
    assert untouched.abs().median() > 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dark": math.nan}, "dark: expected a number, auto or a file, got nan"),
        ({"dark": True}, "dark: expected"),
        ({"hot_pixels": 0}, "hot_pixels: expected a number > 0, a list of"),
        ({"hot_pixels": [3, 4]}, "hot_pixels: expected"),
        ({"hot_pixels": [[3, -4]]}, "hot_pixels: expected"),
        ({"hot_pixels": [[3, 8]]}, r"hot_pixels: \[3, 8\] lies outside \(6, 8\)"),
        ({"hot_pixels": 1e-9}, "too many to be outliers"),
        ({"saturation": "high"}, "saturation: expected a number or null"),
        ({"window": [0, 0, 4]}, r"window: expected \[top, left, height, width\], got"),
        ({"window": [0, 0, 0, 4]}, "window: expected"),
        ({"window": [0, 5, 4, 4]}, r"inside \(6, 8\), got \[0, 5, 4, 4\]"),
        ({"scale": 0}, "scale: expected a number > 0"),
        ({"scale": math.inf}, "scale: expected"),
    ],
)
def test_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Preprocessing(**options).apply(torch.rand(1, 1, 6, 8, generator=seeded()))


def test_refused_files(save, tmp_path):
    frame = torch.rand(1, 1, 6, 8)
    for name in ("dark", "flat", "hot_pixels"):
        with pytest.raises(FileNotFoundError, match=rf"{name}: expected .* got 'none\.npy'"):
            Preprocessing(**{name: "none.npy"})
        small = {name: save("small", torch.ones(6, 7))}
        with pytest.raises(ValueError, match=rf"{name}: expected a frame of \(6, 8\) .* \(6, 7\)"):
            Preprocessing(**small).apply(frame)
    flat = torch.ones(6, 8)
    flat[2, 3] = 0
    with pytest.raises(
        ValueError, match=r"flat: expected more than the dark level .* got 1 pixels"
    ):
        Preprocessing(flat=save("flat", flat)).apply(frame)
    y, _ = Preprocessing(flat=save("flat", flat), hot_pixels=[[2, 3]]).apply(frame)
    assert y.isfinite().all()
    with pytest.raises(ValueError, match="hot_pixels: expected some good pixels"):
        Preprocessing(hot_pixels=save("all", torch.ones(6, 8))).apply(frame)
    (tmp_path / "broken.npy").write_bytes(b"x")
    with pytest.raises(ValueError, match="dark: cannot read"):
        Preprocessing(dark=str(tmp_path / "broken.npy"))
