"""cassi-reconstruct, from its arguments to its files."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
import torch

import cassi
from cassi.data import io
from cassi.data.checksums import SUMS, check_sums
from cassi.data.frames import edge_level

TINY = ("solver.iterations=3", "system.step=-1", "solver.consistent=false")
PICTURES = {"rgb.png", "bands.png", "spectra.png", "report.html"}
FILES = PICTURES | {"cube.tif", "convergence.csv", "metrics.json"}


def given(camera, *roles):
    return [f"{role}={getattr(camera, role)}" for role in roles or ("measurement", "mask")]


def strict_json(path):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_writes_every_file(reconstruct, camera, tmp_path):
    outcome = reconstruct(*given(camera, "measurement", "mask", "truth"), *TINY)
    assert outcome.status == 0, outcome.err
    run = tmp_path / "run"
    assert {file.name for file in run.iterdir()} == FILES | {".hydra", SUMS}

    cube = io.load_cube(run / "cube.tif")
    assert cube.data.shape == (1, 5, 12, 17)
    assert cube.wavelengths == (450, 500, 550, 600, 650)

    results = strict_json(run / "metrics.json")
    y = camera.system(camera.cube)
    expected = ((y - camera.system(cube.data)).norm() / y.norm()).item()
    assert results["relative_residual"] == pytest.approx(expected, rel=1e-4)
    assert results["iterations"] == 3
    assert results["stopped_by"] == "iterations"
    assert results["seconds"] > 0
    assert results["peak_memory_bytes"] > 1e6
    assert results["backend"] in ("reference", "compiled")
    assert results["device"]
    assert results["versions"]["torch"] == torch.__version__
    assert set(results["metrics"]) == set(cassi.metrics.list_presets())
    scores = results["metrics"]["matlab-uint8"]
    assert scores["psnr"] == pytest.approx(cassi.metrics.psnr(cube.data, camera.cube).item())

    rows = list(csv.DictReader((run / "convergence.csv").open()))
    assert [row["iteration"] for row in rows] == ["1", "2", "3"]
    assert float(rows[-1]["residual"]) == pytest.approx(expected, rel=1e-4)
    assert float(rows[-1]["psnr"]) == pytest.approx(scores["psnr"], rel=1e-4)
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert all(float(row["objective"]) > 0 for row in rows)


def test_objective_is_empty_where_a_prior_has_none(reconstruct, camera, tmp_path):
    assert reconstruct(*given(camera), *TINY, "prior=low_rank").status == 0
    rows = list(csv.DictReader((tmp_path / "run" / "convergence.csv").open()))
    assert [row["objective"] for row in rows] == [""] * 3


def test_progress_shows_residual_and_psnr(reconstruct, camera):
    outcome = reconstruct(*given(camera, "measurement", "mask", "truth"), *TINY)
    assert "3/3" in outcome.err
    assert "residual=" in outcome.err
    assert "PSNR=" in outcome.err
    assert "PSNR" not in reconstruct(*given(camera), *TINY).err


def test_without_truth_there_are_no_metrics(reconstruct, camera, tmp_path):
    assert reconstruct(*given(camera), *TINY).status == 0
    assert "metrics" not in strict_json(tmp_path / "run" / "metrics.json")
    header = (tmp_path / "run" / "convergence.csv").read_text().splitlines()[0]
    assert "psnr" not in header
    assert "residual" in header


def test_measurement_is_simulated_from_the_truth(reconstruct, camera, tmp_path):
    reconstruct(*given(camera), *TINY)
    measured = io.read_cube(tmp_path / "run" / "cube.tif")
    reconstruct(*given(camera, "truth", "mask"), *TINY)
    assert torch.equal(io.read_cube(tmp_path / "run" / "cube.tif"), measured)


def test_scale_multiplies_the_measurement(reconstruct, camera, tmp_path):
    reconstruct(*given(camera), *TINY)
    plain = io.read_cube(tmp_path / "run" / "cube.tif")
    reconstruct(*given(camera), *TINY, "scale=4")
    torch.testing.assert_close(io.read_cube(tmp_path / "run" / "cube.tif"), 4 * plain)


def test_dark_level_is_subtracted(reconstruct, camera, tmp_path):
    reconstruct(*given(camera), *TINY)
    plain = io.read_cube(tmp_path / "run" / "cube.tif")
    np.save(camera.measurement, np.load(camera.measurement) + 3)
    reconstruct(*given(camera), *TINY, "dark=3")
    torch.testing.assert_close(
        io.read_cube(tmp_path / "run" / "cube.tif"), plain, atol=1e-5, rtol=0
    )
    assert "dark level 3" in strict_json(tmp_path / "run" / "metrics.json")["inputs"][-1]


def test_dark_level_from_the_edges():
    frame = torch.zeros(1, 1, 4, 12)
    frame[..., 3:9] = 5
    assert edge_level(frame + 0.25, step=2) == 0.25
    assert edge_level(frame.mT + 0.25, step=-2, axis=-2) == 0.25


@pytest.mark.parametrize("name", ["cube.mat", "cube.npz", "cube.h5", "cube.hdr", "cube.npy"])
def test_other_formats(reconstruct, camera, tmp_path, name):
    arguments = [*given(camera), *TINY, "output.pictures=false", f"output.cube={name}"]
    assert reconstruct(*arguments).status == 0
    assert io.read_cube(tmp_path / "run" / name, axes=None).shape == (1, 5, 12, 17)


def test_a_second_run_deletes_nothing_and_names_its_files(reconstruct, camera, tmp_path):
    run = tmp_path / "run"
    reconstruct(*given(camera), *TINY)
    assert set(strict_json(run / "metrics.json")["files"]) == FILES - {"metrics.json"}
    reconstruct(*given(camera), *TINY, "output.report=false")
    assert set(strict_json(run / "metrics.json")["files"]) == FILES - {
        "metrics.json",
        "report.html",
    }
    reconstruct(*given(camera), *TINY, "output.pictures=false", "output.cube=cube.npz")
    assert {file.name for file in run.iterdir()} == FILES | {"cube.npz", ".hydra", SUMS}
    assert [file.name for file in check_sums(run)] == [
        "convergence.csv",
        "cube.npz",
        "metrics.json",
    ]
    assert strict_json(run / "metrics.json")["files"] == ["convergence.csv", "cube.npz"]


def test_points_can_be_given(reconstruct, camera, tmp_path):
    assert reconstruct(*given(camera), *TINY, "output.points=[[3,4],[11,16]]").status == 0
    outcome = reconstruct(*given(camera), *TINY, "output.points=[[3,40]]")
    assert outcome.status == 2
    assert "40" in outcome.err.splitlines()[-1]


def test_infinite_scores_are_null_in_json(tmp_path):
    from cassi.apps.results import write_json

    write_json(tmp_path / "a.json", {"psnr": math.inf, "list": [math.nan, 1.0]})
    assert strict_json(tmp_path / "a.json") == {"psnr": None, "list": [None, 1.0]}


def test_own_config_directory(reconstruct, camera, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_camera.yaml").write_text(
        "defaults: [reconstruct, _self_]\n"
        "measurement: y.npy\nmask: mask.npy\n"
        "system: {bands: 5, step: -1}\nsolver: {iterations: 2}\n"
        "wavelengths: [450, 500, 550, 600, 650]\n"
    )
    outcome = reconstruct("--config-dir", str(folder), "--config-name", "my_camera")
    assert outcome.status == 0, outcome.err
    assert strict_json(tmp_path / "run" / "metrics.json")["cube_shape"] == [5, 12, 17]


def test_sweep_runs_every_job_and_reports_the_failed_one(reconstruct, camera, tmp_path):
    outcome = reconstruct(
        "--multirun", *given(camera), "system.step=-1", "output.pictures=false",
        "solver.iterations=2,0,3", f"hydra.sweep.dir={tmp_path / 'sweep'}",
        "hydra.sweep.subdir=${solver.iterations}",
    )  # fmt: skip
    assert outcome.status == 2
    assert "at least 1, got 0" in outcome.err
    assert (tmp_path / "sweep" / "2" / "metrics.json").exists()
    assert (tmp_path / "sweep" / "3" / "metrics.json").exists()
    assert not (tmp_path / "sweep" / "0" / "metrics.json").exists()


@pytest.mark.parametrize(("solver", "rounding"), [("gap", 0.0), ("auto", 1e-5)])
def test_the_cube_does_not_depend_on_the_number_of_threads(
    solver, rounding, reconstruct, camera, tmp_path
):
    """Operators give the same bits; a matrix product of torch, as in auto, rounds otherwise."""
    cubes = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        reconstruct(*given(camera), *TINY, f"solver={solver}", f"threads={threads}")
        cubes.append(io.read_cube(tmp_path / "run" / "cube.tif"))
    torch.set_num_threads(before)
    np.testing.assert_allclose(cubes[0], cubes[1], rtol=rounding, atol=rounding)
