"""Sensors and the preprocessing of frames, from the command line."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cassi import SDCassi
from cassi.apps.evaluate.problems import load_benchmark, preparation
from cassi.apps.inputs import load_snapshot
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate
from cassi.data import io
from cassi.data.bundled import bundled_path

NOISES = sorted(f.stem for f in (Path(__file__).parents[2] / "conf/noise").glob("*.yaml"))
QUIET = ("output.pictures=false", "output.progress=false")
SHORT = ("solver=gap", "solver.iterations=4", *QUIET)


@pytest.fixture
def two_shots(tmp_path):
    """Files of two masks and of what each shows of one scene; the camera's file beside them."""
    truth = io.load_cube(bundled_path("scene.tif")).data[:, ::4, :96, :96]
    masks = (torch.rand(2, 1, 96, 96, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    y = SDCassi(masks, bands=7, step=2)(truth)
    for shot in range(2):
        np.save(tmp_path / f"mask{shot}.npy", masks[shot, 0].numpy())
        np.save(tmp_path / f"y{shot}.npy", y[0, shot].numpy())
    np.save(tmp_path / "truth.npy", truth[0].numpy())
    (tmp_path / "camera.yaml").write_text("mask: [mask0.npy, mask1.npy]\nsystem: {bands: 7}\n")
    return "measurement=[y0.npy,y1.npy]"


@pytest.mark.parametrize("blocks", [(), ("memory_budget=1GiB",)])
def test_a_truth_in_counts_is_scored_as_evaluate_does(reconstruct, results, tmp_path, blocks):
    truth = io.load_cube(bundled_path("scene.tif")).data[0, ::4, :64, :64]
    mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(0)).round()
    np.save(tmp_path / "mask.npy", mask.numpy())
    found = {}
    for name, unit in (("unit", 1 / truth.max()), ("counts", 4000 / truth.max())):
        np.save(tmp_path / f"{name}.npy", (unit * truth).numpy())
        np.save(tmp_path / f"y{name}.npy", SDCassi(mask, 7, 2)(unit * truth[None])[0, 0].numpy())
        files = (f"truth={name}.npy", f"measurement=y{name}.npy", "mask=mask.npy")
        said = reconstruct(*files, "system.step=2", *blocks, *SHORT, f"hydra.run.dir={name}").ok()
        found[name] = results(folder=name)["metrics"]["matlab-uint8"]
    assert found["counts"]["psnr"] > 15
    for metric, value in found["unit"].items():
        assert found["counts"][metric] == pytest.approx(value, rel=1e-3), metric
    if not blocks:
        assert "truth: scores are those of truth and cube over its maximum, 4000" in said.out
        rows = results("convergence.csv", "counts")
        assert float(rows[-1]["psnr"]) == pytest.approx(found["counts"]["psnr"], abs=1e-6)
        files = ("truth=counts.npy", "measurement=yunit.npy", "mask=mask.npy")
        said = reconstruct(*files, "system.step=2", *SHORT, "hydra.run.dir=mixed").ok()
        assert "truth: its mean is 3.4e+03 times that of the cube" in said.err


def test_a_list_of_files_is_several_shots(reconstruct, calibrate, two_shots, results):
    found = {}
    for mask in ("mask=[mask0.npy,mask1.npy]", "camera=camera.yaml", None):
        files = ("measurement=y0.npy", "mask=mask0.npy") if mask is None else (two_shots, mask)
        reconstruct(*files, "truth=truth.npy", *SHORT).ok()
        found[mask] = results()["metrics"]["matlab-uint8"]["psnr"]
    one, two, again = found[None], *(found[mask] for mask in list(found)[:2])
    assert two == again > one + 1
    files = (two_shots, "mask=[mask0.npy,mask1.npy]", "system.bands=7")
    calibrate(*files, "radius=0", *SHORT[:2]).ok()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("mask=mask0.npy",), "give as many masks as shots"),
        (("mask=[mask0.npy,truth.npy]",), "mask: expected files of one shape, one per shot"),
        (("mask=[]",), "expected a file, or a list of files, one per shot"),
        (("mask=mask0.npy", "measurement=mask1.npy"), "system.bands=1 for an image of one band"),
    ],
)
def test_shots_that_do_not_fit_are_one_line(reconstruct, two_shots, options, said):
    assert said in reconstruct(two_shots, *options, *SHORT).refusal


def test_every_step_is_in_metrics(reconstruct, camera, results, tmp_path):
    frame = np.zeros((20, 30), np.float32)
    frame[3:15, 4:25] = np.load(camera.measurement)
    frame[5, 6] = 1e3
    np.save(tmp_path / "y.npy", frame * 2 + 1)
    steps = ("dark=1", "bad_pixels=[[5,6]]", "saturation=1e3", "window=[3,4,12,21]", "scale=0.5")
    outcome = reconstruct(*camera.given(), *SHORT, *steps).ok()
    left_out = {"source": "[5, 6]", "found": None, "rows": [], "columns": []}
    left_out |= {"left_out": 1, "fraction": 1 / 252}
    assert results()["preprocessing"] == {
        "bits": None,
        "dark": {"source": "number", "level": 1.0},
        "flat": None,
        "saturation": {"level": 1000.0, "pixels": 0, "fraction": 0.0},
        "window": [3, 4, 12, 21],
        "scale": 0.5,
        "bad_pixels": left_out,
    }
    assert results()["measurement_shape"] == [1, 12, 21]
    assert "1 pixels left out" in outcome.out


def test_a_multirun_compares_noise_with_none(reconstruct, camera, tmp_path):
    many = ("--multirun", f"hydra.sweep.dir={tmp_path / 'many'}", "noise=none,white")
    given = (*camera.given("truth", "mask"), *SHORT)
    reconstruct(*given, *many).ok()
    reconstruct(*given).ok()
    alone = io.read_cube(tmp_path / "run" / "cube.tif")
    none, white = (
        io.read_cube(tmp_path / "many" / f"noise={name}" / "cube.tif") for name in ("none", "white")
    )
    assert torch.equal(none, alone)
    assert not torch.equal(white, alone)


@pytest.mark.parametrize("name", [name for name in NOISES if name != "none"])
def test_every_noise_in_a_simulated_measurement(name, reconstruct, camera, results, tmp_path):
    def cube(*options):
        chosen = (*camera.given("truth", "mask"), *SHORT, *options)
        reconstruct(*chosen).ok()
        return io.read_cube(tmp_path / "run" / "cube.tif")

    noisy = cube(f"noise={name}")
    assert any("simulated" in line for line in results()["inputs"])
    assert results()["preprocessing"]["scale"] == 1
    assert torch.equal(cube(f"noise={name}"), noisy)
    assert not torch.equal(cube(f"noise={name}", "seed=1"), noisy)
    assert not torch.equal(cube(), noisy)
    assert results()["preprocessing"] is None


def test_both_commands_make_the_same_noise():
    cpu, options = torch.device("cpu"), ["noise=sensor"]
    here = load_snapshot(compose_settings(options), cpu).y
    settings = compose_settings(options, kind=Evaluate)
    benchmark = load_benchmark(settings)
    prepare = preparation({"": settings}, benchmark, cpu)
    assert torch.equal(prepare("", benchmark.scenes[0]).y, here)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["hot_pixels=8"], "'hot_pixels': it is bad_pixels now"),
        (["window=[0,0,13,21]"], "window: expected [top, left, height, width] inside (12, 21)"),
        (["noise=shot"], "noise: expected none, the measurement is not simulated"),
        (["truth=truth.npz", "measurement=null", "noise=sensor", "noise.qe=2"], "qe: expected"),
    ],
)
def test_refused_in_one_line(reconstruct, camera, options, said):
    assert said in reconstruct(*camera.given(), *SHORT, *options).refusal
