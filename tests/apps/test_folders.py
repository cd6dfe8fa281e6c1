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
from hydra.core.utils import setup_globals
from omegaconf import OmegaConf

from cassi.apps import folders

QUICK = ("solver=gap", "solver.iterations=1", "output.pictures=false")


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
    names = [folders._make_numbered(tmp_path / "day" / "12-30-01").name for _ in range(3)]
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


def test_a_killed_command_frees_its_folder_at_once(tmp_path):
    """Also where a process that it has forked, as loaders of data are, lives on."""
    ready, go = os.pipe(), os.pipe()
    command = os.fork()
    if command == 0:
        folders.lock_folder(tmp_path)
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


@pytest.mark.parametrize(
    ("job", "rank", "holds"),
    [
        ("cassi-reconstruct", {}, True),
        ("cassi-reconstruct", {"LOCAL_RANK": "0"}, True),
        ("cassi-reconstruct", {"RANK": "1"}, False),
        ("cassi-reconstruct", {"SLURM_PROCID": "1"}, True),  # a command of its own
        ("cassi-train", {"SLURM_PROCID": "1"}, False),
    ],
)
def test_one_process_of_a_command_holds_its_folder(monkeypatch, job, rank, holds):
    for name, number in rank.items():
        monkeypatch.setenv(name, number)
    hydra = {"job": {"name": job}, "output_subdir": ".hydra"}
    assert folders.writes_folder(OmegaConf.create(hydra)) is holds
    assert not folders.writes_folder(OmegaConf.create(hydra | {"output_subdir": None}))  # --info


def test_sweeps_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    setup_globals()
    places = []
    for _ in range(2):
        told = {"hydra": [], "task": []}
        hydra = {"sweep": {"dir": "sweeps/${now:%Y}"}, "overrides": told}
        config = OmegaConf.create({"hydra": hydra})
        folders.FolderReservation().on_multirun_start(config)
        places.append(config.hydra.sweep.dir)
    assert places[1] == f"{places[0]}_2"
    # The configs of the jobs are composed from these.
    assert list(config.hydra.overrides.hydra) == [f"hydra.sweep.dir='{places[1]}'"]


def test_a_closed_output_is_no_error(camera, tmp_path):
    command = [sys.executable, "-m", "cassi", "reconstruct", *camera.given(), *QUICK]
    command = f"exec {shlex.join(command)} hydra.run.dir=run >&- 2>&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "run/metrics.json").is_file()
