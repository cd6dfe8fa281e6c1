"""Bad input to cassi-reconstruct: one clear line, exit status 2, nothing written."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import scipy.io

TINY = ("solver.iterations=2", "system.step=-1")


@pytest.fixture
def refused(reconstruct, camera, tmp_path):
    """Run with overrides on top of a good camera; return the one line of the error."""

    def run(*overrides, files=("measurement", "mask")):
        arguments = [f"{role}={getattr(camera, role)}" for role in files]
        outcome = reconstruct(*arguments, *TINY, *overrides)
        assert outcome.status == 2
        lines = [line for line in outcome.err.splitlines() if line.strip()]
        # The progress bar may stand above; the error itself is the last line and the only one.
        assert [line for line in lines if "error" in line.lower()] == lines[-1:]
        assert lines[-1].startswith("cassi-reconstruct: error: ")
        assert "Traceback" not in outcome.err
        folder = tmp_path / "run"
        left = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        assert left <= {".hydra"}
        return lines[-1]

    return run


def test_missing_file_names_near_matches(refused):
    assert re.search(r"no file .*mask\.npz; did you mean mask\.npy", refused("mask=mask.npz"))


def test_nothing_to_reconstruct(refused):
    assert "give measurement=FILE" in refused(files=("mask",))
    assert "give mask=FILE" in refused(files=("measurement",))


def test_wrong_key_lists_the_arrays(refused, camera, tmp_path):
    np.savez(tmp_path / "a.npz", snapshot=np.ones((12, 21)), other=np.ones((3, 4)))
    line = refused(f"measurement={tmp_path / 'a.npz'}", "keys.measurement=snapshots")
    assert "snapshots" in line
    assert "snapshot" in line.replace("snapshots", "")
    assert "other" in line


def test_mask_of_another_height(refused, tmp_path):
    np.save(tmp_path / "m.npy", np.ones((11, 17)))
    line = refused(f"mask={tmp_path / 'm.npy'}")
    assert "expected a height of 12" in line
    assert "got 11" in line


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["system.step=-3"], "2 bands x step 4"),
        (["system.bands=7"], "7 bands and step -1"),
        (["system.step=0"], "5 bands x step 1"),
        (["system.axis=-2"], "expected a width"),
        (["system.axis=0"], "system.axis"),
        (["system.step=1.5"], "whole number"),
        (["system.bands=0"], "at least 1"),
        (["wavelengths=[450,500]", "system.bands=5"], "expected 5 values"),
        (["wavelengths=[450,500,490,510,520]"], "increasing"),
        (["wavelengths=red"], "list of numbers"),
        (["scale=0"], "scale"),
        (["scale=much"], "scale"),
        (["dark=night"], "dark"),
        (["wavelengths=[0.45,0.5,0.55,0.6,0.65]"], "micrometres"),
        (["wavelengths=[450,460]"], "wavelengths: expected 5 values"),
        (["output.points=[5,5]"], "output.points"),
        (["output.points=5"], "output.points"),
        (["+output.pictres=false"], "output.pictres"),
        (["+wavelenghts=[1,2]"], "did you mean wavelengths"),
        (["threads=0"], "threads"),
        (["device=tpu"], "device"),
        (["device=cuda:99"], "device"),
        (["solver=gpa"], "did you mean gap"),
        (["prior=tvv"], "did you mean tv"),
        (["experiment=kaist"], "kaist_snapshot"),
        (["solver.iteration=3"], "solver.iterations"),
        (["solver.iterations=many"], "iterations"),
        (["solver.tol=-1"], "tol"),
        (["prior.weight=-1"], "weight"),
        (["solver._target_=os.system"], "not allowed"),
        (["solver._target_=cassi.data.io.os.system"], "not allowed"),
        (["solver._target_=torch.nn.Identity"], "solver"),
        (["solver.algorithm=null"], "algorithm"),
        (["solver.sigma=null"], "sigma"),
        (["device=meta"], "device"),
        (["threads=5000000"], "threads"),
        (["system.step=100000000"], "pixels along the dispersion"),
        (["output.pictures=abc"], "output.pictures"),
        (["wavelengths=[450,nan,500,510,520]"], "increasing"),
        (["scale=inf"], "scale"),
        (["dark=nan"], "dark"),
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
    ("text", "said"),
    [
        ("defaults: [reconstruct, _self_]\nsystem: {bands: 5\n", "not valid YAML"),
        ("defaults: [reconstruct, _self_]\n\tmask: a\n", "not valid YAML"),
        ("mask: mask.npy\n", "defaults: [reconstruct, _self_]"),
        ("defaults: [reconstruct, _self_]\nmasc: mask.npy\n", "did you mean mask"),
    ],
)
def test_wrong_config_file(reconstruct, camera, tmp_path, text, said):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "broken.yaml").write_text(text)
    outcome = reconstruct(
        "--config-dir", "mine", "--config-name", "broken", f"measurement={camera.measurement}"
    )
    assert outcome.status == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_dark_frame(refused, tmp_path):
    np.save(tmp_path / "y.npy", np.zeros((12, 21)))
    assert "only zeros" in refused(f"measurement={tmp_path / 'y.npy'}")


def test_data_folder_that_is_not_there(reconstruct, tmp_path):
    outcome = reconstruct("experiment=kaist_snapshot", f"paths.data_dir={tmp_path / 'none'}")
    assert outcome.status == 2
    assert "set paths.data_dir=DIR or $CASSI_DATA" in outcome.err


def test_dark_column_and_unscaled_mask(refused, tmp_path):
    mask = np.ones((12, 17))
    mask[:, 4] = 0
    np.save(tmp_path / "m.npy", mask)
    assert "1 all-dark column (4)" in refused(f"mask={tmp_path / 'm.npy'}")
    np.save(tmp_path / "m.npy", np.full((12, 17), 255.0))
    assert "expected transmissions in [0, 1]" in refused(f"mask={tmp_path / 'm.npy'}")


@pytest.mark.parametrize("keep", [0, 20, 130, 400])
def test_corrupt_mat(refused, tmp_path, keep):
    path = tmp_path / "y.mat"
    scipy.io.savemat(path, {"meas": np.ones((12, 21))}, do_compression=True)
    path.write_bytes(path.read_bytes()[:keep].ljust(keep // 2, b"x"))
    assert "y.mat" in refused(f"measurement={path}")


def test_truth_of_another_shape(refused, tmp_path):
    np.save(tmp_path / "t.npy", np.ones((5, 10, 17)))
    assert "truth: expected (C, H, W) = (5, 12, 17)" in refused(f"truth={tmp_path / 't.npy'}")


@pytest.mark.parametrize("moment", ["write", "picture", "rename"])
def test_full_disk_leaves_nothing(refused, monkeypatch, moment):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cube.tif")

    def fail(*_, **__):
        raise full

    target = {
        "write": "cassi.apps.results.write_cube",
        "picture": "cassi.viz.save_spectra",
        "rename": "os.replace",
    }[moment]
    monkeypatch.setattr(target, fail)
    assert "No space left on device" in refused()


def test_a_file_that_cannot_grow(camera, tmp_path):
    # A real failing write, in a process of its own: no file may exceed 2000 bytes.
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-B", "-m", "cassi.apps.reconstruct", *TINY, f"hydra.run.dir={run}",
         f"measurement={camera.measurement}", f"mask={camera.mask}"],
        capture_output=True, text=True, preexec_fn=limit, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "too large" in done.stderr  # where coverage is measured, its files cannot grow either
    assert {file.name for file in run.iterdir()} == {".hydra"}


def test_folder_that_cannot_be_made(reconstruct, camera, tmp_path):
    (tmp_path / "run").write_text("a file stands where the folder should be")
    outcome = reconstruct(f"measurement={camera.measurement}", f"mask={camera.mask}", *TINY)
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1].startswith("cassi-reconstruct: error: ")
    assert (tmp_path / "run").read_text().startswith("a file stands")


def test_diverging_prior_is_reported(refused, monkeypatch):
    import torch

    monkeypatch.setattr("cassi.priors.TV.__call__", lambda self, x, sigma: x * torch.nan)
    assert "diverged" in refused("solver=gap")
