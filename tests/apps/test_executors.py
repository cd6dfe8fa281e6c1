"""Jobs of many processes: whoever does them, whatever is killed."""

import csv
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from shared import invert, workers_of

from cassi.apps.executors import InThisProcess, LostWorker, once, run_jobs
from cassi.apps.executors.local import LocalWorkers
from cassi.data.record_log import read_records

DASK = ("cluster=dask", "cluster.workers=2")
LOCAL = ("processes=2",)
WORKERS = [LOCAL, pytest.param(DASK, marks=pytest.mark.release)]


@pytest.fixture
def day(camera, tmp_path):
    """Options for eight snapshots that take a second each."""
    folder = tmp_path / "day"
    folder.mkdir()
    for index in range(8):
        frame = camera.system(camera.cube.roll(index, -1))[0, 0].numpy()
        np.save(folder / f"{index}.npy", frame)
    solver = ("solver=gap", "prior=tv", "solver.iterations=400", "output.pictures=false")
    return (f"measurement={folder}", *camera.given("mask"), *solver)


def wait_until(condition, process=None, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_there(process):
    """Whether a process runs; one that has ended may not have been waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def done(folder):
    return read_records(folder / ".done")


def cubes(folder):
    return {path.parent.name: path.read_bytes() for path in folder.glob("*/cube.tif")}


def rows(folder):
    with (folder / "results.csv").open(newline="") as stream:
        return {row["name"]: row["status"] for row in csv.DictReader(stream)}


def test_jobs_of_this_process_are_done_one_by_one():
    seen = []

    def job(number):
        seen.append(number)
        return -number

    running = run_jobs(InThisProcess(), job, iter([1, 2, 3]))
    assert next(running) == (1, -1)
    assert seen == [1]
    assert list(running) == [(2, -2), (3, -3)]
    with pytest.raises(ZeroDivisionError):
        list(run_jobs(InThisProcess(), lambda _: 1 / 0, [1]))


def test_what_jobs_share_is_made_once():
    def make(given):
        return [given]

    assert once(make, 1) is once(make, 1)
    assert once(make, 2) == [2]


@pytest.mark.slow
def test_a_job_that_kills_its_process_is_named_and_the_others_are_done(tmp_path):
    job = functools.partial(invert, tmp_path / "tries")
    with LocalWorkers(2) as workers:
        found = dict(run_jobs(workers, job, [1, 0, 2, 4]))
    assert isinstance(found.pop(0), LostWorker)
    assert found == {1: 1, 2: 0.5, 4: 0.25}
    assert (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_a_killed_worker_loses_nothing(reconstruct, start, day, tmp_path, workers):
    folder = tmp_path / "two"
    process = start("reconstruct", *day, f"hydra.run.dir={folder}", *workers)
    wait_until(lambda: done(folder), process)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert set(rows(folder).values()) == {"done"}
    reconstruct(*day, f"hydra.run.dir={tmp_path / 'whole'}").ok()
    assert cubes(folder) == cubes(tmp_path / "whole")
    assert len(cubes(folder)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_command(reconstruct, start, day, tmp_path, workers, number):
    folder = tmp_path / "two"
    process = start("reconstruct", *day, f"hydra.run.dir={folder}", *workers)
    wait_until(lambda: done(folder), process)
    started = workers_of(process.pid)
    assert len(started) == 2
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        lines = [line for line in err.splitlines() if "interrupted" in line]
        assert lines == err.splitlines()[-1:]
    wait_until(lambda: not any(map(is_there, started)), seconds=30)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/cube.tif")}
    kept = set(done(folder))
    reconstruct(*day, f"hydra.run.dir={folder}").ok()
    after = {path: path.stat().st_mtime_ns for path in folder.glob("*/cube.tif")}
    assert all(after[path] == at for path, at in before.items() if path.parent.name in kept)
    assert len(after) == 8


@pytest.mark.release
@pytest.mark.slow
def test_a_lost_scheduler_ends_the_command_and_the_next_goes_on(reconstruct, start, day, tmp_path):
    folder, place = tmp_path / "far", tmp_path / "scheduler.json"
    options = (*day, f"hydra.run.dir={folder}", "cluster=dask", f"cluster.address={place}")
    with Far(place):
        process = start("reconstruct", *options)
        wait_until(lambda: done(folder), process)
        far = Far.running[0]
        far.kill()
        since = time.monotonic()
        _, err = process.communicate(timeout=120)
        assert time.monotonic() - since < 60
        assert process.returncode == 2, err
        assert "the scheduler of the cluster is lost" in err.splitlines()[-1]
    kept = set(done(folder))
    assert 0 < len(kept) < 8
    with Far(place):
        out, err = start("reconstruct", *options).communicate(timeout=200)
    assert f"{len(kept)} of them done before" in out, err
    assert set(rows(folder).values()) == {"done"}
    reconstruct(*day, f"hydra.run.dir={tmp_path / 'whole'}").ok()
    assert cubes(folder) == cubes(tmp_path / "whole")


class Far:
    """A scheduler and a worker that are there before the command, as on other machines."""

    running = ()

    def __init__(self, place):
        place.unlink(missing_ok=True)
        self.place = place

    def __enter__(self):
        pytest.importorskip("distributed", reason="needs the extra dask")
        told = ("--scheduler-file", str(self.place), "--no-dashboard")
        network = ("--host", "127.0.0.1")
        Far.running = [
            subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{name}", *told, *more],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name, more in (
                ("scheduler", (*network, "--port", "0")),
                ("worker", (*network, "--nthreads", "1", "--no-nanny", "--death-timeout", "60")),
            )
        ]  # fmt: skip

    def __exit__(self, *_):
        for process in Far.running:
            process.kill()
            process.wait()


def test_torchrun_is_refused(reconstruct, day, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "torchrun is for cassi-train; without it, give processes=2" in reconstruct(*day).refusal


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("processes=0", "processes: expected a whole number from 1"),
        ("share=3/2", "share: expected such as 3/16"),
        ("share=0/2", "share: expected such as 3/16"),
        ("cluster=slum", "no cluster named 'slum'; did you mean slurm?"),
    ],
)
def test_wrong_options_are_one_line(reconstruct, day, option, said):
    assert said in reconstruct(*day, option).refusal
