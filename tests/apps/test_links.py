"""The folder of results: no link in it is followed, one command has it, nothing hidden stays."""

import fcntl
import os
import shutil
import signal
from itertools import cycle
from pathlib import Path

import pytest
import torch

from cassi.apps import folders
from cassi.calibration.calibration import Calibration, Value
from cassi.camera.displaced_camera import no_displacement
from cassi.camera.place import MaskPlacement
from cassi.data import atomic

TINY = (
    *("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=32"),
    *("trainer.enable_progress_bar=false", "trainer.accelerator=cpu", "logger=default"),
    *("trainer.max_steps=1", "data.steps_per_epoch=1", "data.batch_size=1", "data.workers=0"),
)
GAP = "reconstructors=[{name: gap, method: gap_tv, overrides: {solver.iterations: 1}}]"
QUICK = ("solver=gap", "prior=tv", "solver.iterations=1")


@pytest.fixture
def given(camera, write_day, tmp_path, monkeypatch):
    """Return the command and the options of a case; what a calibration finds is given too."""

    def find(y, system, *_, **__):
        place = MaskPlacement({}, {}, {}, torch.zeros(1), torch.ones(1), torch.zeros(1))
        right = Value("right", "shift right (px)", 0.0, 0.1, 0.1, taken=False)
        return Calibration(system, (right,), no_displacement(), 1.0, 0.5, place)

    monkeypatch.setattr("cassi.pipeline.calibrate.calibrate_on", find)

    def choose(case):
        scenes = tmp_path / "scenes"
        scenes.mkdir(exist_ok=True)
        shutil.copy(camera.truth, scenes / "one.npz")
        nm = "data.wavelengths=[450,500,550,600,650]"
        data = ("data=folder", f"data.root={scenes}", nm, *camera.given("mask"))
        return {
            "one": ("reconstruct", *camera.given(), *QUICK, "output.report=true"),
            "error bars": ("reconstruct", *camera.given(), *QUICK, "uncertainty=true"),
            "blocks": ("reconstruct", *camera.given(), *QUICK, "memory_budget=1GiB"),
            "many": ("reconstruct", *write_day(["a", "b"], 1)),
            "store": ("reconstruct", *write_day(["a", "b"], 1), "output.cube=all.zarr"),
            "evaluate": ("evaluate", *data, GAP),
            "train": ("train", *TINY),
            "calibrate": ("calibrate", *camera.given(), "solver.iterations=1"),
            "camera": ("camera", *camera.given()),
            "export": (
                "export",
                *camera.given("mask", "measurement"),
                *QUICK,
                "format=torch_export",
            ),
        }[case]

    return choose


@pytest.mark.parametrize(
    "case",
    [
        *("one", "error bars", "blocks", "many", "store"),
        *("evaluate", "train", "calibrate", "camera", "export"),
    ],
)
def test_links_where_results_go_are_refused(commands, given, tmp_path, case):
    name, *options = given(case)
    run, folder, outside = commands(name), tmp_path / "run", tmp_path / "outside"
    run(*options).ok()
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    written = [path.relative_to(folder) for path in sorted(folder.iterdir())]
    written += [path.relative_to(folder) for path in sorted(folder.glob("[.cr]*/*"))][:8]
    written += [Path(".passes"), Path(".cube.tif.blocks")] if name == "reconstruct" else []
    outside.mkdir()
    for place, target in zip(written, cycle(("file", "folder", "nothing")), strict=False):
        shutil.rmtree(folder)
        (folder / place).parent.mkdir(parents=True)
        (outside / "file").write_text("mine")
        (outside / "folder").mkdir(exist_ok=True)
        (folder / place).symlink_to(outside / target)
        assert f"{folder / place} is a link" in run(*options).refusal
        assert [path.name for path in outside.rglob("*")] == ["file", "folder"]
        assert (outside / "file").read_text() == "mine"
        there = {path.relative_to(folder) for path in folder.rglob("*")}
        is_snapshot = place.name in ("a", "b")  # those are listed once Hydra has begun
        assert is_snapshot or there <= {place, place.parent}


@pytest.mark.parametrize("place", [".hydra/config.yaml", ".done/results.sqlite", "cube.tif"])
def test_a_pipe_is_not_waited_for(reconstruct, camera, tmp_path, place):
    (tmp_path / "run" / place).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / "run" / place)
    assert f"{place} is neither file nor folder" in reconstruct(*camera.given(), *QUICK).refusal


@pytest.mark.parametrize(
    "name", ["reconstruct", "evaluate", "train", "calibrate", "export", "camera"]
)
def test_one_command_has_a_folder(commands, tmp_path, monkeypatch, name):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(folders, "MAX_LOCK_WAIT_SECONDS", 0.0)
    descriptor = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert "run is being written by process" in commands(name)().refusal
    assert not list((tmp_path / "run").iterdir())
    os.close(descriptor)


@pytest.mark.parametrize(
    "case", ["one", "blocks", "many", "evaluate", "train", "calibrate", "camera"]
)
def test_sigterm_while_results_are_written_leaves_no_hidden_folder(
    commands, given, tmp_path, monkeypatch, case
):
    def terminated(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(atomic, "_publish", terminated)
    name, *options = given(case)
    done = commands(name)(*options)
    assert done.status == 143, done.err
    assert "terminated; go on with the same command" in done.err.splitlines()[-1]
    assert not list((tmp_path / "run").rglob(".cassi-*"))


def test_links_that_the_user_names_and_links_of_their_own_stay(reconstruct, camera, tmp_path):
    (tmp_path / "scratch/there").mkdir(parents=True)
    (tmp_path / "outputs").symlink_to("scratch")
    (tmp_path / "scratch/there/data").symlink_to(camera.mask.parent)
    for folder in ("outputs/there", "run"):
        reconstruct(*camera.given(), *QUICK, f"hydra.run.dir={folder}").ok()
        (tmp_path / "run").exists() or (tmp_path / "run").symlink_to("scratch/there")
    assert (tmp_path / "scratch/there/cube.tif").is_file()
    assert (tmp_path / "scratch/there/data").is_symlink()


@pytest.mark.parametrize("link", ["seed=1", "seed=0/.hydra", "seed=0/cube.tif", "multirun.yaml"])
def test_links_in_a_sweep_are_refused(reconstruct, camera, tmp_path, link):
    (tmp_path / "outside").mkdir()
    place = tmp_path / "sweep" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "outside")
    options = (*camera.given(), *QUICK, "seed=0,1", "--multirun", "hydra.sweep.dir=sweep")
    assert f"{link} is a link" in reconstruct(*options).refusal
    assert not list((tmp_path / "outside").iterdir())


def test_links_in_the_folder_of_a_snapshot_are_replaced(reconstruct, write_day, tmp_path):
    (tmp_path / "run/a").mkdir(parents=True)
    (tmp_path / "mine").write_text("mine")
    for name in ("cube.tif", "metrics.json"):
        (tmp_path / "run/a" / name).symlink_to(tmp_path / "mine")
    reconstruct(*write_day(["a"], 1)).ok()
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "run/a/cube.tif").is_symlink()


def test_workers_follow_no_links(start, write_day, tmp_path):
    """Of a scene in blocks a worker keeps what is done in a hidden folder."""
    (tmp_path / "run/a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "run/a/.cube.tif.blocks").symlink_to(tmp_path / "outside")
    options = ("processes=1", "memory_budget=1GiB", f"hydra.run.dir={tmp_path}/run")
    done = start("reconstruct", *write_day(["a"], 1), *options)
    _, said = done.communicate(timeout=200)
    assert done.returncode == 1, said
    assert ".cube.tif.blocks is a link" in said
    assert not list((tmp_path / "outside").iterdir())
