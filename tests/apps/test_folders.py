"""Folders of results: none is written by two commands, none is lost."""

import fcntl
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time

import pytest
import yaml
from hydra.core.utils import setup_globals
from omegaconf import OmegaConf

from cassi.apps import command, folders

QUICK = ("solver=gap", "solver.iterations=1", "output.pictures=false")


def test_commands_of_one_second_have_folders_of_their_own(start, camera, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    running = [start("reconstruct", *camera.given(), *QUICK) for _ in range(3)]
    for process in running:
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
    made = [
        folder for day in (tmp_path / "outputs/reconstruct").iterdir() for folder in day.iterdir()
    ]
    assert len(made) == 3
    assert all((folder / "cube.tif").is_file() for folder in made)


@pytest.mark.parametrize("words", [(), ("--multirun", "seed=0,1")], ids=["run", "sweep"])
def test_a_current_folder_that_takes_no_results_is_said_in_one_line(
    words, start, camera, tmp_path, monkeypatch
):
    """As a read-only one: here a file is in the way, which stops root too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").write_bytes(b"")
    running = start("reconstruct", *words, *camera.given(), *QUICK)
    _, said = running.communicate(timeout=200)
    assert running.returncode == 2
    (line,) = said.splitlines()
    option = "hydra.sweep.dir" if words else "hydra.run.dir"
    assert re.search(rf"error: {option}: cannot make outputs\S*: .*; give {option}=DIR$", line)


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    names = [folders._make_new(tmp_path / "day" / "12-30-01").name for _ in range(3)]
    assert names == ["12-30-01", "12-30-01_2", "12-30-01_3"]


def test_a_folder_that_is_being_written_is_refused(start, camera, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "cube.tif").write_text("of another")
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    command = ("reconstruct", *camera.given(), *QUICK, f"hydra.run.dir={folder}")
    process = start(*command)
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
    process = start(*command)
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


def test_a_refused_command_changes_nothing(start, camera, tmp_path):
    """Of commands that start together into a new folder, one makes it."""
    command = ("reconstruct", *camera.given(), *QUICK, f"hydra.run.dir={tmp_path}/new")
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


def test_a_closed_output_is_no_error(camera, tmp_path):
    command = [sys.executable, "-m", "cassi", "reconstruct", *camera.given(), *QUICK]
    command = f"exec {shlex.join(command)} hydra.run.dir=run >&- 2>&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "run/metrics.json").is_file()


@pytest.mark.parametrize(("number", "name"), [(1, "stdout"), (2, "stderr")])
def test_what_is_opened_next_gets_no_output(number, name, tmp_path):
    child, size = os.fork(), 1
    if child == 0:
        try:
            os.close(number)
            setattr(sys, name, None)  # as Python does at its start
            command._open_closed()
            file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
            print("said", file=getattr(sys, name), flush=True)
            size = os.fstat(file).st_size
        finally:
            os._exit(size)
    assert os.waitpid(child, 0)[1] == 0
