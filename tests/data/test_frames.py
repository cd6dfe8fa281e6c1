"""Correction of raw frames: each step alone, all steps on a simulated sensor, and errors."""

import math

import numpy as np
import pytest
import torch
from shared import seeded

from cassi import SDCassi
from cassi.checks import clipped_level
from cassi.data.bundled import bundled_path
from cassi.data.frames import STEPS, Preprocessing, describe_corrections
from cassi.data.frames.pixels import find_dead_lines, repair
from cassi.data.io import load_cube, load_mask
from cassi.data.sensor import Sensor


@pytest.fixture(scope="module")
def snapshot():
    """The bundled scene, measured."""
    truth = load_cube(bundled_path("scene.tif")).data
    mask = load_mask(bundled_path("mask.tif")).data
    return SDCassi(mask, bands=truth.shape[1], step=2)(truth)


def _apply(chain, frame):
    result = chain.prepare(frame)
    return result.y, result.corrections


@pytest.fixture
def save(tmp_path):
    """Write a frame, return its path."""

    def write(name, frame):
        np.save(tmp_path / f"{name}.npy", np.asarray(frame))
        return str(tmp_path / f"{name}.npy")

    return write


def test_nothing_is_done_by_default():
    frame = torch.rand(1, 2, 6, 8)
    y, corrections = _apply(Preprocessing(), frame)
    assert torch.equal(y, frame)
    assert tuple(corrections) == STEPS
    assert corrections["dark"] == {"source": "number", "level": 0.0}
    assert corrections["scale"] == 1.0
    assert {name: corrections[name] for name in STEPS if corrections[name] is not None}.keys() == {
        "dark",
        "scale",
    }
    assert describe_corrections(corrections) == ""


def test_dark_window_and_scale():
    frame = torch.rand(1, 2, 6, 8) + 1
    y, corrections = _apply(Preprocessing(dark=0.5, window=[1, 2, 4, 5], scale=3), frame)
    torch.testing.assert_close(y, 3 * (frame[..., 1:5, 2:7] - 0.5))
    assert corrections["window"] == [1, 2, 4, 5]
    assert (
        describe_corrections(corrections)
        == "dark level 0.5 subtracted, window [1, 2, 4, 5], times 3"
    )


@pytest.mark.parametrize("axis", [-1, -2])
def test_dark_level_of_the_edges(axis):
    frame = torch.rand(1, 1, 6, 12) + 5
    frame[..., :2] = frame[..., -2:] = 0.25
    frame = frame.transpose(-1, axis)
    y, corrections = _apply(Preprocessing(dark="auto", step=-2, axis=axis), frame)
    assert corrections["dark"] == {"source": "edges", "level": 0.25}
    torch.testing.assert_close(y, frame - 0.25)


def test_dark_frames_are_averaged_and_flats_normalised(save):
    frame, dark = torch.rand(1, 2, 6, 8) + 1, torch.rand(3, 6, 8)
    flat = 1 + torch.rand(6, 8)
    chain = Preprocessing(dark=save("dark", dark), flat=save("flat", flat + dark.mean(0)))
    y, corrections = _apply(chain, frame)
    torch.testing.assert_close(y, (frame - dark.mean(0)) / (flat / flat.mean()))
    assert corrections["dark"]["level"] == pytest.approx(dark.mean().item())
    assert corrections["flat"]["lowest"] == pytest.approx((flat.min() / flat.mean()).item())
    assert "dark.npy" in describe_corrections(corrections)
    assert "flat.npy" in describe_corrections(corrections)


def test_repair_takes_the_mean_of_good_neighbours():
    frame = torch.arange(30.0).reshape(1, 1, 5, 6)
    is_bad = torch.zeros(5, 6, dtype=torch.bool)
    is_bad[2, 2] = is_bad[2, 3] = is_bad[0, 0] = True
    broken_frame = torch.where(is_bad, 1e6, frame)
    repaired_frame = repair(broken_frame, is_bad)
    assert torch.equal(repaired_frame[..., ~is_bad], frame[..., ~is_bad])
    good_neighbours = [frame[0, 0, r, c] for r in (1, 2, 3) for c in (1, 2, 3) if not is_bad[r, c]]
    assert repaired_frame[0, 0, 2, 2].item() == pytest.approx(
        torch.stack(good_neighbours).mean().item()
    )
    assert repaired_frame[0, 0, 0, 0].item() == pytest.approx((1 + 6 + 7) / 3)
    # A whole block is filled from its border inwards.
    is_bad[:4, :4] = True
    assert repair(torch.where(is_bad, math.inf, torch.ones(5, 6)), is_bad).eq(1).all()


def test_hot_pixels_by_list_and_by_map(save):
    frame = torch.ones(1, 2, 6, 8)
    frame[..., 3, 4] = 50
    bad_map = torch.zeros(6, 8)
    bad_map[3, 4] = 1
    for bad_pixels in ([[3, 4]], save("map", bad_map), save("map", bad_map.bool())):
        y, corrections = _apply(Preprocessing(bad_pixels=bad_pixels), frame)
        assert y.eq(1).all()
        assert corrections["bad_pixels"]["left_out"] == 2
        assert corrections["bad_pixels"]["found"] is None


@pytest.mark.parametrize("constant", [False, True])
def test_hot_pixels_by_dark_frame(save, constant):
    dark = torch.full((40, 50), 0.1)
    dark += 0 if constant else 0.01 * torch.randn(40, 50, generator=seeded())
    dark[3, 4] = dark[3, 5] = 0.5
    frame = torch.rand(1, 1, 40, 50) + dark
    y, corrections = _apply(Preprocessing(dark=save("dark", dark), bad_pixels=8), frame)
    assert (corrections["bad_pixels"]["source"], corrections["bad_pixels"]["found"]) == ("8", 2)
    # The code is left alone.
    expected = frame - dark
    expected[..., 3, 4:6] = y[..., 3, 4:6]
    assert torch.equal(y, expected)


def test_hot_pixels_of_a_dark_frame_without_asking(save):
    """A dead column, which a dark frame shows as well, is called dead."""
    frame = torch.rand(1, 1, 40, 50, generator=seeded()) + 1
    dark = 0.2 + 0.01 * torch.rand(40, 50, generator=seeded(1))
    dark[5, 6], dark[20, 30], dark[:, 11] = 0.9, 0.6, 0.0
    y = frame + dark
    y[..., 11] = 0
    for bad_pixels in ("auto", ["auto", [1, 1]]):
        result = Preprocessing(dark=save("dark", dark), bad_pixels=bad_pixels).prepare(y)
        report = result.corrections["bad_pixels"]
        assert (report["found"], report["columns"], report["rows"]) == (2, [11], [])
        assert result.bad_pixels[0, 0, [5, 20], [6, 30]].all()
        assert int(result.bad_pixels.sum()) == 42 + (bad_pixels != "auto")
    unchecked_frame = Preprocessing(dark=save("dark", dark), bad_pixels=None).prepare(y)
    assert unchecked_frame.bad_pixels is None
    listed_only = Preprocessing(dark=save("dark", dark), bad_pixels=[[1, 1]]).prepare(y)
    assert listed_only.corrections["bad_pixels"]["found"] is None
    without_outliers = Preprocessing(
        dark=save("dark", 0.2 + 0.01 * torch.rand(40, 50, generator=seeded(1)))
    ).prepare(frame + 0.2)
    assert without_outliers.bad_pixels is None


def test_dead_pixels_by_flat_field(save):
    flat = 1 + 0.01 * torch.randn(40, 50, generator=seeded())
    flat[3, 4] = 0
    frame = torch.ones(1, 1, 40, 50) * flat
    y, corrections = _apply(Preprocessing(flat=save("flat", flat), bad_pixels=8), frame)
    assert corrections["bad_pixels"]["found"] == corrections["bad_pixels"]["left_out"] == 1
    torch.testing.assert_close(y, torch.full_like(y, y[..., 3, 4].item()))


def test_hot_pixels_of_a_coded_snapshot(snapshot):
    clean_frame, corrections = _apply(Preprocessing(bad_pixels=8), snapshot)
    assert torch.equal(clean_frame, snapshot)
    assert corrections["bad_pixels"]["found"] == 0
    frame = snapshot.clone()
    places = torch.randperm(frame.numel(), generator=seeded())[:100]
    frame.view(-1)[places] += snapshot.max()
    y, corrections = _apply(Preprocessing(bad_pixels=8), frame)
    assert 96 <= corrections["bad_pixels"]["found"] <= 100
    is_changed = (y != frame).flatten()
    assert is_changed.sum() == is_changed[places].sum()


def test_saturation_counts_what_is_not_repaired():
    frame = torch.rand(1, 1, 10, 10)
    frame[..., 2, 3] = frame[..., 4, 5] = 2
    with pytest.warns(UserWarning, match=r"1 pixels \(1 %\) are saturated, at 2 or more"):
        _, corrections = _apply(Preprocessing(saturation=2, dark=0.25, bad_pixels=[[2, 3]]), frame)
    assert corrections["saturation"] == {"level": 2.0, "pixels": 1, "fraction": 0.01}


def test_counts_of_a_few_bits():
    frame = torch.randint(200, 4000, (1, 1, 10, 12), generator=seeded()).float()
    frame[..., 2, 3:5] = 4095
    with pytest.warns(UserWarning, match=r"2 pixels \(1.67 %\) are saturated, at 4095 or more"):
        result = Preprocessing(bits=12, dark=200).prepare(frame)
    assert result.bad_pixels.nonzero().tolist() == [[0, 0, 2, 3], [0, 0, 2, 4]]
    torch.testing.assert_close(
        result.y[~result.bad_pixels], (frame[~result.bad_pixels] - 200) / 4095
    )
    assert result.corrections["bits"] == 12
    assert "divided by 4095, full scale of 12 bits" in describe_corrections(result.corrections)
    messages_by_factor = {2: "8190, set more bits", 16: "65520, all multiples of 16; set bits=16"}
    for factor, message in messages_by_factor.items():
        with pytest.raises(ValueError, match=rf"bits: .*, as bits=12 says, got up to {message}"):
            Preprocessing(bits=12).prepare(frame * factor)
    with pytest.raises(ValueError, match=r"saturation: .*, 0 to 4095, got 65535"):
        Preprocessing(bits=12, saturation=65535).prepare(frame)


def test_levels_in_counts_of_a_frame_in_fractions():
    frame = torch.rand(1, 1, 6, 8, generator=seeded()) / 16
    for option in ("dark", "saturation"):
        with pytest.raises(ValueError, match=rf"{option}: .*; set bits to give it in counts"):
            Preprocessing(**{option: 4000}).prepare(frame, 1.0)


def test_noise_alone_is_no_light():
    noise = 64 + 2 * torch.randn(1, 1, 60, 80, generator=seeded())
    for dark in (64, 64.04):
        with pytest.raises(ValueError, match="measurement: expected light, its mean is"):
            Preprocessing(dark=dark).prepare(noise)
    Preprocessing(dark=64).prepare(noise + 2 * torch.rand(60, 80, generator=seeded()))
    with pytest.raises(ValueError, match="measurement: expected light, got only zeros"):
        Preprocessing().prepare(0 * noise)


def _clipped(snapshot, bits, share):
    noisy = snapshot + 0.01 * snapshot.mean() * torch.randn(snapshot.shape, generator=seeded())
    level = noisy.flatten().quantile(1 - share).item()
    return (noisy / level * (2**bits - 1)).round().clamp(0, 2**bits - 1) * 0.37


@pytest.mark.parametrize("bits", [8, 10, 12, 16])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
def test_saturation_is_found_where_the_frame_is_clipped(snapshot, bits, share):
    """Of any sensor: nothing is known of its full scale."""
    frame = _clipped(snapshot, bits, share)
    with pytest.warns(UserWarning, match="are saturated, at .*; saturation=null keeps them"):
        result = Preprocessing().prepare(frame)
    top = frame == frame.max()
    assert torch.equal(result.bad_pixels, top)
    assert result.corrections["saturation"] == {
        "level": frame.max().item(),
        "pixels": int(top.sum()),
        "fraction": top.double().mean().item(),
    }
    assert result.corrections["bad_pixels"]["left_out"] == int(top.sum())


@pytest.mark.parametrize("bits", [8, 10, 12, None])
def test_no_saturation_is_found_in_a_frame_that_is_not_clipped(snapshot, bits):
    noisy = snapshot + 0.01 * snapshot.mean() * torch.randn(snapshot.shape, generator=seeded())
    for scale in (0.1, 0.5, 0.999):
        frame = noisy / noisy.max() * scale
        frame = frame if bits is None else (frame * (2**bits - 1)).round()
        assert clipped_level(frame.flatten()) is None
    # A plain scene through a binary mask has few values, each at many pixels.
    mask = (torch.rand(1, 1, 40, 50, generator=seeded()) > 0.5).float()
    even_light = SDCassi(mask, bands=8, step=1)(torch.ones(1, 8, 40, 50))
    assert clipped_level(even_light.flatten()) is None


def test_overexposed_frames_are_warned_of():
    frame = torch.rand(1, 1, 40, 50, generator=seeded()).clamp(max=0.6)
    with pytest.warns(UserWarning, match=r"% of the pixels share its largest value, .*saturation="):
        result = Preprocessing().prepare(frame)
    assert result.bad_pixels is None
    with pytest.warns(UserWarning, match="are saturated, at 0.6 or more; they are left out"):
        result = Preprocessing(saturation=0.6).prepare(frame)
    assert torch.equal(result.bad_pixels, frame >= 0.6)


def test_dead_lines(snapshot, tmp_path):
    noisy = snapshot + 0.01 * torch.randn(snapshot.shape, generator=seeded())
    assert find_dead_lines(noisy, torch.ones(noisy.shape[-2:], dtype=torch.bool)) == []
    noisy[..., 200:206] = 0  # too wide: it is dark there
    noisy[..., :2] = 0  # the border
    noisy[..., 40] = 0
    noisy[..., 100:102] = 3.7
    noisy[..., 7, :] = 2.9
    noisy[..., 5, 40] = 1.0  # one of its pixels does something
    result = Preprocessing().prepare(noisy)
    report = result.corrections["bad_pixels"]
    assert (report["rows"], report["columns"]) == ([7], [40, 100, 101])
    expected = torch.zeros_like(noisy, dtype=torch.bool)
    expected[..., 7, :] = expected[..., [40, 100, 101]] = True
    assert torch.equal(result.bad_pixels, expected)
    assert "row 7 dead, column 40, 100, 101 dead" in describe_corrections(result.corrections)
    assert Preprocessing(bad_pixels=None).prepare(noisy).bad_pixels is None


def test_all_that_holds_no_light_is_left_out(snapshot, save):
    """Listed, hot and saturated pixels; whatever they hold changes nothing."""
    bad_map = torch.zeros(snapshot.shape[-2:])
    bad_map[30, 40:44] = 1
    chain = Preprocessing(
        bad_pixels=[save("bad", bad_map), [50, 60]], saturation=snapshot.max().item()
    )
    frames = [snapshot.clone(), snapshot.clone()]
    for frame, value in zip(frames, (math.nan, 1e6), strict=True):
        frame[..., bad_map > 0] = frame[..., 50, 60] = value
    with pytest.warns(UserWarning, match="1 pixels .* saturated"):
        result = [chain.prepare(frame) for frame in frames]
    assert torch.equal(result[0].y, result[1].y)
    assert int(result[0].bad_pixels.sum()) == 4 + 1 + 1
    assert bool(result[0].bad_pixels[0, 0, 50, 60])
    assert torch.equal(result[0].y[~result[0].bad_pixels], snapshot[~result[0].bad_pixels])


def test_a_pixel_without_a_number_is_named_with_what_leaves_it_out(snapshot):
    snapshot = snapshot.index_fill(-1, torch.tensor(4), math.nan)
    with pytest.raises(ValueError, match=r"values .*\(0, 0, 0, 4\); .*bad_pixels=\[row,column\]"):
        Preprocessing().prepare(snapshot)
    listed_pixels = [[row, 4] for row in range(snapshot.shape[-2])]
    assert bool(Preprocessing(bad_pixels=listed_pixels).prepare(snapshot).y.isfinite().all())


def test_a_frame_in_errors_has_its_name_and_its_file_enough_bits():
    chain = Preprocessing(bits=12, dark=9)
    with pytest.raises(ValueError, match=r"^white\.png: expected light, its mean is -5.5"):
        chain.prepare(torch.arange(-4.0, 12).view(1, 1, 4, 4), 65535.0, "white.png")
    with pytest.raises(ValueError, match=r"bits: .*0 to 4095.*values end at 255; was it converted"):
        chain.prepare(torch.full((1, 1, 8, 8), 99.0), 255.0)


def test_the_chain_undoes_a_sensor(snapshot, save):
    """Dark current, offset, response and hot pixels go; shot and read noise are left."""
    options = {"shot": "poisson", "full_well": 1e4, "gain": 2.5, "bits": 12}
    options |= {"read": 2.5, "offset": 64.0, "dark": 300.0, "saturate": True}
    sensor = Sensor(**options, prnu=0.02, hot=0.002, hot_level=0.4, raw=True)
    bands, random = 28, seeded()
    frame = sensor(snapshot, bands, random)
    dark_scene = torch.zeros(1, 16, *snapshot.shape[-2:])
    even_light = torch.full_like(dark_scene, 0.5 * sensor.electrons / sensor.unit(bands))
    dark = save("dark", sensor(dark_scene, bands, random)[0])
    flat = save("flat", sensor(even_light, bands, random)[0])
    y, corrections = _apply(Preprocessing(dark=dark, flat=flat, bad_pixels=8), frame)
    n_hot = round(0.002 * snapshot[0, 0].numel())
    assert n_hot <= corrections["bad_pixels"]["found"] <= n_hot + 2
    electrons = snapshot * sensor.unit(bands)
    variance = electrons + 300 + 2.5**2 + 2.5**2 / 12
    z = (y - snapshot) * sensor.unit(bands) / variance.sqrt()
    is_good = z.abs() < 6
    assert is_good.double().mean() > 0.998
    assert z[is_good].mean().abs() < 0.05
    assert z[is_good].std().item() == pytest.approx(1, abs=0.06)
    errors = (frame - snapshot) * sensor.unit(bands) / variance.sqrt()
    assert errors.abs().median() > 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dark": math.nan}, "dark: expected a number, auto or a file, got nan"),
        (
            {"bad_pixels": 0},
            r"bad_pixels: expected a file, \[row, column\], a number > 0, .*, got 0",
        ),
        ({"bad_pixels": [[3, 4], 8, 9]}, r"bad_pixels: expected one threshold, got \[8.0, 9.0\]"),
        ({"bad_pixels": [[3, 8]]}, r"bad_pixels: \[3, 8\] lies outside \(6, 8\)"),
        ({"bad_pixels": 1e-9}, "too many to be outliers"),
        ({"saturation": "high"}, "saturation: expected a number, auto or null"),
        ({"saturation": 4095}, "in the unit of the frame, whose largest value is 0.9.*, got 4095$"),
        (
            {"saturation": -1},
            "saturation: expected some pixels below -1, got none; expose for a shorter time",
        ),
        ({"dark": 200}, "dark: expected a level below the frame's largest value, 0.9.*, got 200$"),
        ({"dark": 0.9}, "expected light, its mean is -0.4.* set dark to the level of a frame"),
        ({"bits": 12}, "as bits=12 says, got fractions up to 0.9.*; leave bits=null"),
        ({"bits": 0}, "bits: expected a whole number from 1 to 24, got 0"),
        ({"bad_pixels": True}, "bad_pixels: expected a file, .*, got True"),
        ({"scale": 1e39}, "scale: expected values within float32's range"),
        ({"window": [0, 0, 4]}, r"window: expected \[top, left, height, width\], got"),
        ({"window": [0, 5, 4, 4]}, r"inside \(6, 8\), got \[0, 5, 4, 4\]"),
        ({"scale": 0}, "scale: expected a number > 0"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**options).prepare(torch.rand(1, 1, 6, 8, generator=seeded()))


def test_refused_files(save, tmp_path):
    frame = torch.rand(1, 1, 6, 8)
    for name in ("dark", "flat", "bad_pixels"):
        with pytest.raises(FileNotFoundError, match=rf"{name}: expected .* got 'none\.npy'"):
            Preprocessing(**{name: "none.npy"})
        small_file = {name: save("small", torch.ones(6, 7))}
        with pytest.raises(ValueError, match=rf"{name}: expected a frame of \(6, 8\) .* \(6, 7\)"):
            Preprocessing(**small_file).prepare(frame)
    flat = torch.ones(6, 8)
    flat[2, 3] = 0
    with pytest.raises(
        ValueError, match=r"flat: expected more than the dark level .* got 1 pixels"
    ):
        Preprocessing(flat=save("flat", flat)).prepare(frame)
    y, _ = _apply(Preprocessing(flat=save("flat", flat), bad_pixels=[[2, 3]]), frame)
    assert y.isfinite().all()
    with pytest.raises(ValueError, match="bad_pixels: expected some good pixels"):
        Preprocessing(bad_pixels=save("all", torch.ones(6, 8))).prepare(frame)
    (tmp_path / "broken.npy").write_bytes(b"x")
    with pytest.raises(ValueError, match="dark: cannot read"):
        Preprocessing(dark=str(tmp_path / "broken.npy"))
