"""Pixels that are left out: whatever the frame holds there, the cube has the same bits."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

import cassi
from cassi.data import io
from cassi.models.inference import fill_bad_pixels, prepare

QUIET = ("output.pictures=false", "output.progress=false")
SHORT = ("solver.iterations=4", *QUIET)


@pytest.fixture
def cubes(reconstruct, camera, tmp_path):
    """Reconstruct a frame with several values at its bad pixels; one cube for each."""

    def run(*options, values=(0.5, -40.0, np.nan, np.inf)):
        frame = np.load(camera.measurement)
        frame += np.random.default_rng(0).normal(0, 0.02, frame.shape).astype(np.float32)
        bad = np.random.default_rng(1).random(frame.shape) < 0.05
        bad[5, 6:9] = bad[0, :3] = True
        np.save(tmp_path / "bad.npy", bad)
        found = []
        for value in values:
            np.save(tmp_path / "frame.npy", np.where(bad, value, frame).astype(np.float32))
            reconstruct(
                *camera.given("mask"), "measurement=frame.npy", "bad_pixels=bad.npy", *options
            ).ok()
            found.append(io.read_cube(tmp_path / "run" / "cube.tif"))
        assert all(torch.equal(cube, found[0]) for cube in found)
        return found[0], bad

    return run


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("dark=auto", "bad_pixels=[bad.npy,3]", "scale=2"),
        ("solver=gap", "prior=tv", "saturation=3"),
        ("memory_budget=1GB", "solver.heldout=0"),
    ],
)
def test_their_values_have_no_influence(cubes, results, options):
    _, bad = cubes(*SHORT, *options)
    about = results()["preprocessing"]["bad_pixels"]
    assert about["source"].startswith("bad.npy")
    if "saturation=3" not in options:
        assert about["left_out"] == bad.sum()
    assert "left out" in " ".join(results()["inputs"])


@pytest.mark.parametrize("name", ["mst_s", "cassi_net"])
def test_nor_in_networks(cubes, name):
    cube, _ = cubes(f"model={name}", "model.weights=random", *QUIET, values=(0.5, np.nan))
    assert cube.isfinite().all()


def test_positions_are_of_the_whole_frame(reconstruct, camera, results, tmp_path):
    frame = np.zeros((20, 30), np.float32)
    frame[3:15, 4:25] = np.load(camera.measurement)
    bad = np.zeros((20, 30), np.uint8)
    bad[0, 0] = bad[5, 6] = bad[6, 7] = 1
    frame[5, 6] = np.nan
    np.save(tmp_path / "y.npy", frame)
    savemat(tmp_path / "bad.mat", {"bad": bad})
    options = ("window=[3,4,12,21]", "bad_pixels=bad.mat")
    outcome = reconstruct(*camera.given("mask"), "measurement=y.npy", *options, *SHORT).ok()
    assert results()["preprocessing"]["bad_pixels"]["left_out"] == 2
    assert "2 pixels left out" in outcome.out


def test_saturated_pixels_are_left_out(reconstruct, camera, results):
    frame = np.load(camera.measurement)
    level = float(np.quantile(frame, 0.95))
    outcome = reconstruct(*camera.given(), *SHORT, f"saturation={level}").ok()
    assert "or more; they are left out\n" in outcome.err
    done, number = results()["preprocessing"], int((frame >= np.float32(level)).sum())
    assert done["saturation"]["pixels"] == done["bad_pixels"]["left_out"] == number
    assert done["bad_pixels"]["source"] is None


def test_of_a_simulated_measurement(reconstruct, camera, results, tmp_path):
    bad = np.zeros((12, 21))
    bad[3, 4:9] = 1
    np.save(tmp_path / "bad.npy", bad)
    for options in ((), ("noise=sensor",)):
        given = (*camera.given("mask", "truth"), "bad_pixels=bad.npy", *options)
        outcome = reconstruct(*given, *SHORT).ok()
        assert "5 pixels left out" in outcome.out


def test_refused(reconstruct, camera, tmp_path):
    np.save(tmp_path / "one.npy", np.eye(12, 21))
    np.save(tmp_path / "nan.npy", np.full((12, 21), np.nan, np.float32))
    for options, said in (
        ("bad_pixels=none.npy", "bad_pixels: expected a file"),
        ("saturation=-1", "saturation: expected some pixels below"),
    ):
        assert said in reconstruct(*camera.given(), *SHORT, options).refusal
    options = ("measurement=nan.npy", "bad_pixels=one.npy")
    said = reconstruct(*camera.given("mask"), *options, *SHORT).refusal
    assert "values that are NaN" in said


def test_in_python(camera):
    y = camera.system(camera.cube)
    bad = torch.zeros(y.shape[-2:])
    bad[4, 5:8] = 1
    spoilt = torch.where(bad > 0, torch.nan, y)
    spec = {"method": "gap_tv", "overrides": {"solver.iterations": 4}}
    cube = cassi.reconstruct(spoilt, camera.system, spec, bad_pixels=bad)
    assert torch.equal(cube, cassi.reconstruct(y, camera.system, spec, bad_pixels=bad.numpy()))
    weighted = camera.system.weighted(bad_pixels=bad)
    assert torch.equal(cube, cassi.reconstruct(spoilt, weighted, spec))
    with pytest.raises(ValueError, match="bad_pixels: expected"):
        cassi.reconstruct(y, camera.system, spec, bad_pixels=bad[1:])


def test_the_shipped_network_stands_them():
    random = torch.Generator().manual_seed(0)
    mask = (torch.rand(48, 48, generator=random) > 0.5).float()
    ramp = torch.linspace(0.2, 1, 48).expand(48, 48)
    x = torch.stack([ramp * (0.5 + 0.05 * c) for c in range(8)])[None]
    system = cassi.SDCassi(mask, bands=8, step=1)
    bad = torch.rand(48, 55, generator=random) < 0.05
    y = system(x)
    net = prepare(cassi.create_model("pretrained", system, size="small").network)
    plain = net.run(y, system).x
    cube = net.run(torch.where(bad, torch.nan, y), system.weighted(bad_pixels=bad)).x
    full, part = (cassi.metrics.psnr(value, x).item() for value in (plain, cube))
    assert part > full - 3
    assert part > cassi.metrics.psnr(net.run(torch.where(bad, 9.0, y), system).x, x).item() + 5


def test_fill_in_is_exact_where_the_scene_is_even(camera):
    system = camera.system
    y = 0.7 * system(torch.ones(2, 5, 12, 17))
    bad = torch.zeros(12, 21, dtype=torch.bool)
    bad[2:9, 4:12] = bad[0, :2] = True
    weighted = system.weighted(bad_pixels=bad)
    filled = fill_bad_pixels(torch.where(bad, torch.nan, y), weighted)
    torch.testing.assert_close(filled, y)
    assert torch.equal(filled[..., ~bad], y[..., ~bad])
