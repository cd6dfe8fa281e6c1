"""Frames as sensors give them: PNG of 12 bits, dead columns, clipped pixels, levels in counts."""

import numpy as np
import pytest
import torch
from PIL import Image

import cassi
from cassi.data import io

QUIET = ("output.pictures=false", "output.progress=false")
SHORT = ("solver.iterations=4", *QUIET)
DARK = 64


@pytest.fixture
def frame(camera):
    """Counts of 12 bits `(12, 21)`, with a dark level of 64."""
    y = np.load(camera.measurement)
    return (y / y.max() * 3500 + DARK).round().astype(np.uint16)


@pytest.fixture
def cube(reconstruct, camera, tmp_path):
    """Reconstruct a frame in a file, with 12 bits if not told otherwise."""

    def run(values, *options, name="y.png"):
        if name.endswith(".npy"):
            np.save(tmp_path / name, values)
        else:
            Image.fromarray(values).save(tmp_path / name)
        given = (*camera.given("mask"), f"measurement={name}", "bits=12", f"dark={DARK}", *SHORT)
        outcome = reconstruct(*given, *options).ok()
        return io.read_cube(tmp_path / "run" / "cube.tif"), outcome

    return run


def test_twelve_bits_in_any_file(cube, frame, camera, tmp_path):
    mask = np.load(camera.mask)
    Image.fromarray((mask * 65535).round().astype(np.uint16)).save(tmp_path / "mask.png")
    Image.fromarray(np.full_like(frame, DARK)).save(tmp_path / "dark.png")
    found, outcome = cube(frame)
    assert "uint16 taken as counts" in outcome.out
    assert "divided by 4095, full scale of 12 bits" in outcome.out
    for values, name in ((frame, "y.npy"), (frame.astype(np.float64), "f.npy")):
        assert torch.equal(cube(values, name=name)[0], found)
    assert torch.equal(cube(frame, "dark=dark.png")[0], found)
    read, _ = cube(frame, "mask=mask.png")
    torch.testing.assert_close(read, found, rtol=1e-3, atol=1e-3)
    by_hand, _ = cube(frame, "bits=null", f"dark={DARK / 65535}", "scale=16.003663")
    torch.testing.assert_close(by_hand, found, rtol=1e-3, atol=1e-4)
    scaled, _ = cube(frame, "scale=2.5")
    torch.testing.assert_close(scaled, 2.5 * found, rtol=1e-3, atol=1e-4)


def test_twelve_bits_of_sixteen_are_pointed_out(reconstruct, camera, frame, tmp_path):
    Image.fromarray(frame).save(tmp_path / "y.png")
    outcome = reconstruct(*camera.given("mask"), "measurement=y.png", *SHORT).ok()
    assert "none above 3564: of a camera of 12 bits? then set bits=12" in outcome.out


def test_what_white_comes_to(cube, frame):
    hint = "a white scene that fills the pixels is 0.36 in the cube; scale=2.75 (bands times mean"
    _, outcome = cube(frame)
    assert hint in outcome.out
    for options in (["scale=2.75"], ["bits=14"]):  # told, or dark beside full scale
        _, outcome = cube(frame, *options)
        assert "a white scene" not in outcome.out


def test_a_dead_column_is_left_out(cube, frame, results):
    clean, _ = cube(frame, *QUIET, "solver.iterations=60")
    broken = frame.copy()
    broken[:, 11] = 0
    found, outcome = cube(broken, *QUIET, "solver.iterations=60")
    assert "column 11 dead, 12 pixels left out (4.76 %)" in outcome.out
    about = results()["preprocessing"]["bad_pixels"]
    assert (about["rows"], about["columns"], about["left_out"]) == ([], [11], 12)
    kept, _ = cube(broken, *QUIET, "solver.iterations=60", "bad_pixels=null")
    spoilt, mended = (
        cassi.metrics.psnr(one / clean.max(), clean / clean.max()).item() for one in (kept, found)
    )
    assert mended > spoilt + 5


def test_full_scale_is_left_out(cube, frame, results):
    frame[3, 5] = frame[7, 9] = 4095
    _, outcome = cube(frame)
    assert "warning: measurement: 2 pixels (0.794 %) are saturated, at 4095 or" in outcome.err
    assert "they are left out; saturation=null keeps them\n" in outcome.err
    done = results()["preprocessing"]
    assert done["saturation"] == {"level": 4095.0, "pixels": 2, "fraction": 2 / 252}
    assert done["bad_pixels"]["left_out"] == 2
    _, outcome = cube(frame, "saturation=2000")
    assert "saturated, at 2000 or more" in outcome.err
    assert results()["preprocessing"]["saturation"]["pixels"] == int((frame >= 2000).sum())
    _, outcome = cube(frame, "saturation=null")
    assert "saturated" not in outcome.err
    assert results()["preprocessing"]["bad_pixels"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["bits=12", "dark=5000"], "dark: expected a level below the frame's largest value, 3564"),
        (["bits=12", "dark=2500"], "measurement: expected light, its mean is -"),
        (["bits=12", "truth=truth.npz", "measurement=null", "noise=sensor"], "bits: expected null"),
    ],
)
def test_refused_in_one_line(reconstruct, camera, frame, tmp_path, options, said):
    Image.fromarray(frame).save(tmp_path / "y.png")
    outcome = reconstruct(*camera.given("mask"), "measurement=y.png", *SHORT, *options)
    assert said in outcome.refusal


def test_frames_of_an_evaluation(evaluate, camera, frame, results, tmp_path):
    """They are counts as well, and what holds no light is left out."""
    folder = tmp_path / "frames"
    folder.mkdir()
    for value in (0, 3000):
        spoilt = frame.copy()
        spoilt[4, 6:9], spoilt[2, 3] = value, 4095
        bad = np.zeros(frame.shape, np.uint8)
        bad[4, 6:9] = 1
        Image.fromarray(spoilt).save(folder / f"frame_{value}.png")
        Image.fromarray(bad).save(tmp_path / "bad.png")
    with pytest.warns(UserWarning, match=r"frame_0.png: 1 pixels \(0.397 %\) are saturated"):
        outcome = evaluate(
            *("data=folder", "data.root=null", f"data.measurements={folder}"),
            f"mask={camera.mask}",
            *("data.wavelengths=[450,500,550,600,650]", "system.step=-1", "report=false"),
            *("figures=false", "progress=false", "data.evaluation.bits=12"),
            *(f"data.evaluation.dark={DARK}", "data.evaluation.bad_pixels=bad.png"),
            "reconstructors=[{name: gap, method: gap_tv, overrides: {solver.iterations: 3}}]",
        )
    assert outcome.status == 0, outcome.err
    done = results("results.json")["settings"]["preprocessing"]
    assert sorted(done) == ["frame_0", "frame_3000"]
    assert all(each["bad_pixels"]["left_out"] == 4 for each in done.values())
    cubes = [np.load(tmp_path / "run" / "records" / name / "gap.npy") for name in done]
    assert np.array_equal(*cubes)


@pytest.mark.parametrize(
    ("mask", "offsets", "dark", "taken"),
    [
        ("grey.npy", [0.5, 1, 2, 3.5], DARK, True),
        ("grey.npy", [0, 1, 2, 4], DARK, False),
        ("grey.npy", [0.5, 1, 2, 3.5], 0, False),
        ("mask.npy", [0.5, 1, 2, 3.5], DARK, False),
    ],
)
def test_a_sensor_measured_the_mask(cube, frame, tmp_path, mask, offsets, dark, taken):
    np.save(tmp_path / "grey.npy", np.random.default_rng(1).random((12, 17)))
    where = (f"mask={mask}", f"system.offsets={offsets}", "system.detector=21", f"dark={dark}")
    _, outcome = cube(frame, *where)
    assert ("mask: taken as measured" in outcome.out) is taken
    _, outcome = cube(frame, *where, "measured_mask=false")
    assert "mask: taken as measured" not in outcome.out
    assert ("mask: taken as a design, as measured_mask=false says" in outcome.out) is taken
    if mask == "mask.npy":
        assert "mask: taken as a design, as it has two values; if this sensor" in outcome.out
    if taken:
        np.save(tmp_path / "grey.npy", np.tile([0, 0, 0.5, 1], (12, 5))[:, :17])
        _, outcome = cube(frame, *where)
        assert "mask: grey with two levels" in outcome.out
        assert "measured_mask=false" in outcome.out
    if not dark or mask == "mask.npy":
        _, outcome = cube(frame, *where, "measured_mask=true")
        assert "mask: taken as measured" in outcome.out
