"""Folders of results: none is written by two commands, none is lost."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest
import yaml
from hydra.core.utils import setup_globals
from omegaconf import OmegaConf

from cassi.apps import folders


def test_commands_of_one_second_have_folders_of_their_own(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("mask=bundled:mask.tif", "system.bands=28", "measurement=y.npy", "solver=gap")
    _frame(tmp_path)
    running = [start("reconstruct", *arguments, "solver.iterations=1") for _ in range(3)]
    for process in running:
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
    made = [
        folder for day in (tmp_path / "outputs/reconstruct").iterdir() for folder in day.iterdir()
    ]
    assert len(made) == 3
    assert all((folder / "cube.tif").is_file() for folder in made)


def _frame(folder):
    import numpy as np

    np.save(folder / "y.npy", np.ones((256, 310), np.float32))


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    names = [folders._make_new(tmp_path / "day" / "12-30-01").name for _ in range(3)]
    assert names == ["12-30-01", "12-30-01_2", "12-30-01_3"]


def test_a_folder_that_is_being_written_is_refused(start, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "cube.tif").write_text("of another")
    _frame(tmp_path)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    arguments = (f"measurement={tmp_path}/y.npy", "mask=bundled:mask.tif", "system.bands=28")
    command = ("reconstruct", *arguments, "solver=gap", "solver.iterations=1")
    process = start(*command, f"hydra.run.dir={folder}")
    _, said = process.communicate(timeout=100)
    assert process.returncode == 2
    (line,) = said.splitlines()
    assert re.fullmatch(
        rf"cassi-reconstruct: error: {folder} is being written by process {os.getpid()} on "
        rf"{socket.gethostname()} since 20[-\d]+ [:\d]+; wait for its end, or set "
        "hydra.run.dir=DIR",
        line,
    )
    assert [file.name for file in folder.iterdir()] == ["cube.tif"]
    os.close(descriptor)
    process = start(*command, f"hydra.run.dir={folder}")
    assert process.wait(100) == 0
    assert json.loads((folder / "metrics.json").read_text())


def test_a_folder_is_held_once(tmp_path, monkeypatch):
    with folders.release_at_end():
        folders.hold(tmp_path)
        folders.hold(tmp_path)  # the same command
        monkeypatch.setattr(folders, "_held", {})
        monkeypatch.setattr(folders, "_PATIENCE", 0.0)
        with pytest.raises(ValueError, match=f"is being written by process {os.getpid()}"):
            folders.hold(tmp_path)


def test_a_killed_command_frees_its_folder_at_once(tmp_path):
    """Also where a process that it has forked, as loaders of data are, lives on."""
    ready, go = os.pipe(), os.pipe()
    command = os.fork()
    if command == 0:
        folders.hold(tmp_path)
        if os.fork() == 0:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
        time.sleep(60)
    os.read(ready[0], 1)
    os.kill(command, 9)
    os.waitpid(command, 0)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(go[1], b"x")
    os.close(descriptor)


def hydra_of(job="cassi-reconstruct", subdir=".hydra"):
    return OmegaConf.create({"job": {"name": job}, "output_subdir": subdir})


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_processes_of_one_command_share_a_folder(monkeypatch, name):
    monkeypatch.setenv(name, "0")
    assert folders.may_hold(hydra_of())
    monkeypatch.setenv(name, "1")
    assert not folders.may_hold(hydra_of())


def test_who_holds_a_folder(monkeypatch):
    assert folders.may_hold(hydra_of())
    assert not folders.may_hold(hydra_of(subdir=None))  # --info
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert folders.may_hold(hydra_of())  # each task of srun is a command of its own
    assert not folders.may_hold(hydra_of("cassi-train"))


def test_a_refused_command_changes_nothing(start, tmp_path):
    """Of commands that start together into a new folder, one makes it."""
    _frame(tmp_path)
    arguments = (f"measurement={tmp_path}/y.npy", "mask=bundled:mask.tif", "system.bands=28")
    command = ("reconstruct", *arguments, "solver=gap", f"hydra.run.dir={tmp_path}/new")
    counts = [1, 2, 3]
    running = [start(*command, f"solver.iterations={count}") for count in counts]
    said = [process.communicate(timeout=200)[1] for process in running]
    codes = [process.returncode for process in running]
    assert set(codes) <= {0, 2}
    assert 0 in codes
    assert all(
        "is being written by" in text for text, code in zip(said, codes, strict=True) if code
    )
    written = json.loads((tmp_path / "new/metrics.json").read_text())["iterations"]
    told = yaml.safe_load((tmp_path / "new/.hydra/config.yaml").read_text())
    assert told["solver"]["iterations"] == written


def test_sweeps_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    setup_globals()
    places = []
    for _ in range(2):
        told = {"hydra": [], "task": []}
        hydra = {"sweep": {"dir": "sweeps/${now:%Y}"}, "overrides": told}
        config = OmegaConf.create({"hydra": hydra})
        folders.OneCommand().on_multirun_start(config)
        places.append(config.hydra.sweep.dir)
    assert places[1] == f"{places[0]}_2"
    # The configs of the jobs are composed from these.
    assert list(config.hydra.overrides.hydra) == [f"hydra.sweep.dir='{places[1]}'"]


def test_jobs_of_a_sweep_are_named_after_what_differs(train, tmp_path):
    tiny = ("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=32")
    quiet = ("trainer.enable_progress_bar=false", "trainer.accelerator=cpu", "logger=csv")
    steps = ("trainer.max_steps=1", "data.steps_per_epoch=1", "data.batch_size=1", "data.workers=0")
    place = f"hydra.sweep.dir={tmp_path / 'sweep'}"
    several = ("--multirun", "seed=0,1", "optimizer.lr=1e-3,2e-3")
    train(*several, *tiny, *quiet, *steps, place).ok()
    found = sorted(path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir())
    rates, seeds = ("0.001", "0.002"), (0, 1)
    assert found == [f"optimizer.lr={rate},seed={seed}" for rate in rates for seed in seeds]
    train("--multirun", *tiny, *quiet, *steps, "seed=0", f"hydra.sweep.dir={tmp_path}/one").ok()
    (alone,) = [path for path in (tmp_path / "one").iterdir() if path.is_dir()]
    assert "seed=0" in alone.name


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_is_no_error(tmp_path, closed):
    _frame(tmp_path)
    command = (
        f"exec {sys.executable} -m cassi.apps.reconstruct measurement=y.npy mask=bundled:mask.tif "
        f"system.bands=28 solver=gap solver.iterations=1 hydra.run.dir=run {closed}"
    )
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "run/metrics.json").is_file()
