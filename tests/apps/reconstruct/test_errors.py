"""Bad input to cassi-reconstruct: one clear line, exit status 2, nothing written."""

import errno
import os
import re

import numpy as np
import pytest
import torch

TINY = ("solver.iterations=2",)


@pytest.fixture
def refused(reconstruct, camera, tmp_path):
    """Run with overrides on top of a good camera; return the one line of the error."""

    def run(*overrides, files=("measurement", "mask")):
        line = reconstruct(*camera.given(*files), *TINY, *overrides).refusal
        folder = tmp_path / "run"
        left = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        assert left <= {".hydra"}
        return line

    return run


def test_a_mask_without_a_pattern(refused, tmp_path):
    np.save(tmp_path / "mask.npy", np.full((12, 17), 0.7, np.float32))
    assert "mask: expected a pattern, all pixels are 0.7; is this the mask?" in refused()


def test_names_with_signs_of_the_shell(refused, reconstruct, camera, tmp_path, monkeypatch):
    said = refused("measurement=~nobody-here/y.npy")
    assert "~nobody-here/y.npy': there is no such user" in said
    said = refused("measurement=a,b/y.npy")
    assert """needs quotes of its own, 'measurement="a,b/y.npy"'""" in said
    monkeypatch.setenv("HOME", str(tmp_path))
    measurement = f"measurement=~/{camera.measurement.name}"
    for place in ("~/one", '"~/two"'):
        given = (measurement, *camera.given("mask"), *TINY, f"hydra.run.dir={place}")
        reconstruct(*given).ok()
    assert (tmp_path / "one" / "cube.tif").exists()
    assert (tmp_path / "two" / "cube.tif").exists()


def test_missing_file_names_near_matches(refused):
    assert re.search(r"no file .*mask\.npz; did you mean mask\.npy", refused("mask=mask.npz"))


def test_a_line_break_in_a_name_hides_no_reason(refused, tmp_path):
    (tmp_path / "a\nb.npy").write_text("no array")
    line = refused(f"measurement='{tmp_path}/a\nb.npy'")
    assert "a\\nb.npy" in line
    assert "cannot read" in line
    missing = refused(f"measurement='{tmp_path}/a\nc.npy'")
    assert "no file" in missing
    assert "a\\nc.npy" in missing


def test_nothing_to_reconstruct(refused):
    assert "give measurement=FILE" in refused(files=("mask",))
    assert "give mask=FILE" in refused(files=("measurement",))


@pytest.mark.parametrize(
    ("shape", "said", "unsaid"),
    [
        ((20, 17), "cut 8 pixels off the mask", "axis="),
        ((10, 17), "window=[top,left,height,width] cuts the 2 pixels", "axes.measurement"),
        ((21, 17), "axes.measurement=WH reads a transposed file", "system.axis"),
        ((16, 21), "system.axis=-2 disperses along the other side", "axes.measurement"),
        ((16, 12), "axes.mask=WH reads a transposed mask", "axes.measurement"),
        ((24, 32), "resample the mask by 0.5 if it shows all of the frame", "axes"),
    ],
)
def test_a_mask_of_another_size_is_told_what_would_fit(refused, tmp_path, shape, said, unsaid):
    np.save(tmp_path / "other.npy", np.random.default_rng(0).random(shape))
    line = refused(f"mask={tmp_path / 'other.npy'}")
    assert said in line
    assert unsaid not in line


def test_wrong_key_lists_the_arrays(refused, camera, tmp_path):
    np.savez(tmp_path / "a.npz", snapshot=np.ones((12, 21)), other=np.ones((3, 4)))
    line = refused(f"measurement={tmp_path / 'a.npz'}", "keys.measurement=snapshots")
    assert "snapshots" in line
    assert "snapshot" in line.replace("snapshots", "")
    assert "other" in line


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["system.step=-3"], "2 bands x step 4"),
        (["system.bands=7"], "7 bands and step -1"),
        (["system.axis=-2"], "expected a width"),
        (["system.axis=0"], "system.axis"),
        (["system.step=1.5"], "5 bands x step 1"),
        (["system=[1]"], "do not fit the config"),
        (["noise.snr_db=3"], "noise.snr_db: nothing is chosen there; give noise=NAME"),
        (["system.offsets.glass=SF11", "system.bands=5"], "dispersion@system.offsets=NAME"),
        (["dispersion@system.offsets=linear", "system.offsets=[1,2]"], "give both ~system.offsets"),
        (["model=null", "noise=null", "system.band=5"], "did you mean system.bands"),
        (["system.bands=0"], "at least 1"),
        (["wavelengths=[450,500,490,510,520]"], "increasing"),
        (["wavelengths=red"], "list of numbers"),
        (["wavelengths=[0.45,0.5,0.55,0.6,0.65]"], "micrometres"),
        (["wavelengths=[450,460]"], "wavelengths: expected 5 values"),
        (["output.points=[5,5]"], "output.points"),
        (["output.points=5"], "output.points"),
        (["threads=0"], "threads"),
        (["device=tpu"], "device"),
        (["device=cuda:99"], "device"),
        (["solver=gpa"], "did you mean gap"),
        (["experiment=kaist"], "kaist_snapshot"),
        (["solver.iteration=3"], "solver.iterations"),
        (["solver.iterations=many"], "iterations"),
        (["solver.tol=-1"], "tol"),
        (["prior.weight=-1"], "weight"),
        (["solver._target_=os.system"], "not allowed"),
        (["solver._target_=torch.nn.Identity"], "solver"),
        (["solver.algorithm=null"], "algorithm"),
        (["solver.sigma=null"], "sigma"),
        (["device=meta"], "device"),
        (["threads=5000000"], "threads"),
        (["system.step=100000000"], "pixels along the dispersion"),
        (["output.pictures=abc"], "output.pictures"),
        (["solver._target_=cassi.solvers.Nothing"], "does not exist"),
        (["output.cube=cube.xyz"], "output.cube"),
        (["output.cube=../cube.tif"], "output.cube"),
        (["nonsense"], "key=value"),
    ],
)
def test_wrong_values(refused, overrides, said):
    assert said in refused(*overrides)


@pytest.mark.parametrize("role", ["measurement", "mask", "truth"])
def test_nan(refused, camera, tmp_path, role):
    shape = {"measurement": (12, 21), "mask": (12, 17), "truth": (5, 12, 17)}[role]
    values = np.ones(shape, np.float32)
    values.flat[3] = np.nan
    np.save(tmp_path / "nan.npy", values)
    line = refused(f"{role}={tmp_path / 'nan.npy'}")
    assert re.search("nan|finite", line, re.IGNORECASE)
    assert role in line


@pytest.mark.parametrize(
    ("role", "values", "said"),
    [
        ("measurement", np.zeros((12, 21)), "only zeros"),
        ("mask", 1 - np.eye(11, 17), "expected a height of 12 as the measurement's, got 11"),
        ("truth", np.ones((5, 10, 17)), "truth: expected (C, H, W) = (5, 12, 17)"),
    ],
)
def test_contents_that_do_not_fit(refused, tmp_path, role, values, said):
    np.save(tmp_path / "other.npy", values)
    assert said in refused(f"{role}={tmp_path / 'other.npy'}")


@pytest.mark.parametrize("place", ["/proc/cassi", "file", "file/x"])
def test_a_folder_that_cannot_be_made(reconstruct, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    line = reconstruct(f"hydra.run.dir={place}").refusal
    assert place in line
    assert place != "file/x" or "hydra.run.dir: cannot make" in line
    assert (tmp_path / "file").read_text() == "mine"


def test_the_scene_of_the_package_does_not_fit(reconstruct):
    assert "scene of this package; give measurement=FILE" in reconstruct("system.bands=7").refusal


def test_data_folder_that_is_not_there(reconstruct, tmp_path):
    outcome = reconstruct("experiment=kaist_snapshot", f"paths.data_dir={tmp_path / 'none'}")
    assert "set paths.data_dir=DIR or $CASSI_DATA" in outcome.refusal


@pytest.mark.parametrize("moment", ["write", "picture", "rename"])
def test_full_disk_leaves_nothing(refused, monkeypatch, moment):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cube.tif")

    def fail(*_, **__):
        raise full

    target = {
        "write": "cassi.apps.snapshot.write_cube",
        "picture": "cassi.viz.save_spectra",
        "rename": "os.replace",
    }[moment]
    monkeypatch.setattr(target, fail)
    assert "No space left on device" in refused()


def test_diverging_prior_is_reported(refused, monkeypatch):
    monkeypatch.setattr("cassi.priors.TV.__call__", lambda self, x, sigma: x * torch.nan)
    assert "diverged" in refused("solver=gap")
