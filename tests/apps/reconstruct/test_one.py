"""cassi-reconstruct, from its arguments to its files."""

import math
import sys

import numpy as np
import pytest
import torch

import cassi
from cassi.apps.results import write_json
from cassi.data import io
from cassi.data.wavelengths import interpolate_spectra

TINY = ("solver.iterations=3", "solver.consistent=false")
PLAIN = (*TINY, "output.pictures=false")
FILES = {
    "rgb.png",
    "bands.png",
    "spectra.png",
    "spectra.csv",
    "report.html",
    "cube.tif",
    "convergence.csv",
}


@pytest.fixture
def recover(reconstruct, camera, tmp_path):
    """Return the cube that options, on top of the small camera's, lead to."""

    def run(*options, roles=("measurement", "mask")):
        reconstruct(*camera.given(*roles), *PLAIN, *options).ok()
        return io.read_cube(tmp_path / "run" / "cube.tif")

    return run


def test_writes_every_file(reconstruct, camera, results, tmp_path):
    outcome = reconstruct(*camera.given("measurement", "mask", "truth"), *TINY).ok()
    assert all(text in outcome.err for text in ("3/3", "residual=", "PSNR="))
    run = tmp_path / "run"
    assert {file.name for file in run.iterdir()} == FILES | {"metrics.json", ".hydra"}

    cube = io.load_cube(run / "cube.tif")
    assert cube.data.shape == (1, 5, 12, 17)
    assert cube.wavelengths == (450, 500, 550, 600, 650)

    numbers = results()
    y = camera.system(camera.cube)
    expected = ((y - camera.system(cube.data)).norm() / y.norm()).item()
    assert numbers["relative_residual"] == pytest.approx(expected, rel=1e-4)
    assert (numbers["iterations"], numbers["stopped_by"]) == (3, "iterations")
    assert set(numbers["files"]) == FILES
    assert numbers["seconds"] > 0
    assert numbers["peak_memory_bytes"] > 1e6
    assert numbers["backend"] in ("reference", "compiled")
    assert numbers["device"]
    assert numbers["versions"]["torch"] == torch.__version__
    assert set(numbers["metrics"]) == set(cassi.metrics.list_presets())
    scores = numbers["metrics"]["matlab-uint8"]
    assert scores["psnr"] == pytest.approx(cassi.metrics.psnr(cube.data, camera.cube).item())
    assert "conjugate_gradients" not in numbers

    rows = results("convergence.csv")
    assert [row["iteration"] for row in rows] == ["1", "2", "3"]
    assert float(rows[-1]["residual"]) == pytest.approx(expected, rel=1e-4)
    assert float(rows[-1]["psnr"]) == pytest.approx(scores["psnr"], rel=1e-4)
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert float(rows[0]["objective"]) > 0
    assert [bool(row["objective"]) for row in rows] == [True, False, True]
    assert not [name for name in rows[0] if name.startswith("inner")]


def test_it_needs_nothing_of_the_extra_train(recover, monkeypatch):
    ours = [name for name in sys.modules if name.startswith("cassi.training")]
    for name in ("lightning", "tensorboard", "torchmetrics", "cassi.training", *ours):
        monkeypatch.setitem(sys.modules, name, None)
    recover("solver=gap")


def test_without_truth_there_are_no_metrics(recover, results):
    recover("prior=low_rank")
    assert "metrics" not in results()
    rows = results("convergence.csv")
    assert "psnr" not in rows[0]
    assert [row["objective"] for row in rows] == [""] * 3  # this prior has none


def test_measurement_is_simulated_from_the_truth(recover):
    assert torch.equal(recover(roles=("truth", "mask")), recover())


def test_scale_and_dark_level(recover, camera, results):
    plain = recover()
    torch.testing.assert_close(recover("scale=4"), 4 * plain)
    np.save(camera.measurement, np.load(camera.measurement) + 3)
    torch.testing.assert_close(recover("dark=3"), plain, atol=1e-5, rtol=0)
    assert "dark level 3" in results()["inputs"][-1]


def test_a_second_run_deletes_nothing_and_names_its_files(reconstruct, camera, results, tmp_path):
    run = tmp_path / "run"
    reconstruct(*camera.given(), *TINY)
    reconstruct(*camera.given(), *TINY, "output.report=false")
    assert set(results()["files"]) == FILES - {"report.html"}
    reconstruct(*camera.given(), *PLAIN, "output.cube=cube.npz")
    listed = ["convergence.csv", "cube.npz"]
    assert {f.name for f in run.iterdir()} == FILES | {"cube.npz", "metrics.json", ".hydra"}
    assert results()["files"] == listed


def test_the_cube_is_written_at_any_wavelengths(recover, results, tmp_path):
    nm = (450, 500, 550, 600, 650)
    given = f"wavelengths={list(nm)}".replace(" ", "")
    cube, numbers = recover(given)[0], results()
    wanted = recover(given, "output.wavelengths=[455,512.5,550]")[0]
    assert torch.equal(wanted, interpolate_spectra(cube, nm, (455, 512.5, 550))[0])
    assert io.load_cube(tmp_path / "run" / "cube.tif").wavelengths == (455, 512.5, 550)
    assert torch.equal(wanted[2], cube[2])
    assert results()["relative_residual"] == numbers["relative_residual"]
    assert results()["cube_shape"] == numbers["cube_shape"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["wavelengths=[450,500,550,600,650]", "output.wavelengths=[440,500]"], "440 nm would be"),
        (["output.wavelengths=[500]"], "output.wavelengths: expected wavelengths=[…] in nm"),
        (["output.wavelengths=[500,400]"], "output.wavelengths: expected increasing"),
        (["output.wavelengths=red"], "output.wavelengths: expected a list"),
        (["output.wavelengths=[500]", "memory_budget=1GiB"], "expected null with memory_budget"),
    ],
)
def test_wavelengths_that_cannot_be_written(reconstruct, camera, monkeypatch, options, said):
    def late(*_, **__):
        raise AssertionError("refused after the work")

    monkeypatch.setattr("cassi.solvers.Solver.run", late)
    assert said in reconstruct(*camera.given(), *PLAIN, *options).refusal


def test_points_can_be_given(reconstruct, camera, tmp_path):
    pictures = set()
    for points in ("[[3,4],[11,16]]", "[[3.5,4.25],[10.75,16]]"):
        reconstruct(*camera.given(), *TINY, f"output.points={points}").ok()
        pictures.add((tmp_path / "run" / "spectra.png").read_bytes())
    assert len(pictures) == 2
    for outside in ("[[3,40]]", "[[3,16.5]]"):
        refused = reconstruct(*camera.given(), *TINY, f"output.points={outside}")
        assert "output.points: expected points (row, column) inside 12×17 pixels" in refused.refusal
        assert "system:" not in refused.out  # before the work, not after it


def test_infinite_scores_are_null_in_json(results, tmp_path):
    write_json(tmp_path / "a.json", {"psnr": math.inf, "list": [math.nan, 1.0]})
    assert results("a.json", "") == {"psnr": None, "list": [None, 1.0]}


def test_sweep_runs_every_job_and_reports_the_failed_one(reconstruct, camera, tmp_path):
    outcome = reconstruct(
        "--multirun", *camera.given(), "output.pictures=false", "solver.iterations=2,0,3",
        f"hydra.sweep.dir={tmp_path / 'sweep'}", "hydra.sweep.subdir=${solver.iterations}",
    )  # fmt: skip
    assert outcome.status == 2
    assert "at least 1, got 0" in outcome.err
    there = {n: (tmp_path / "sweep" / n / "metrics.json").exists() for n in ("2", "0", "3")}
    assert there == {"2": True, "0": False, "3": True}


@pytest.mark.parametrize(("solver", "rounding"), [("gap", 0.0), ("auto", 1e-5)])
def test_the_cube_does_not_depend_on_the_number_of_threads(recover, solver, rounding):
    """Operators give the same bits; a matrix product of torch, as in auto, rounds otherwise."""
    before = torch.get_num_threads()
    cubes = [recover(f"solver={solver}", f"threads={threads}") for threads in (1, 2)]
    torch.set_num_threads(before)
    np.testing.assert_allclose(cubes[0], cubes[1], rtol=rounding, atol=rounding)


@pytest.mark.parametrize(
    "options",
    [
        ("system=blurred", "system.line_spread=[0.3,0.3,0.4,0.4,0.5]"),
        ("system=warped", "system.smile=0.5"),
    ],
)
def test_a_solve_by_conjugate_gradients_is_reported(recover, results, options):
    recover(*options, "solver=gap", roles=("mask", "truth"))
    solve = results()["conjugate_gradients"]
    assert 0 < solve["iterations"] <= 10
    assert 0 < solve["relative_residual"] < 0.1
    assert solve["converged"] == (solve["relative_residual"] <= 1e-3)
    rows = results("convergence.csv")
    assert len(rows) == 3
    assert all(0 < int(row["inner_iterations"]) <= 10 for row in rows)
    assert all(float(row["inner_residual"]) < 0.1 for row in rows)
