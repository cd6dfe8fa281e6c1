"""Jobs of many processes: whoever does them, whatever is killed."""

import functools
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest
import torch
from shared import cubes_in, invert, python, snapshots_in, stamps, wait_until, workers_of

from cassi.apps import executors, memory
from cassi.apps.executors import LostWorker, _find_cluster, make_once, open_workers, run_jobs
from cassi.apps.settings import Cluster
from cassi.data.store import Store

DASK = ("cluster=dask", "cluster.workers=2")
LOCAL = ("processes=2",)
WORKERS = [LOCAL, pytest.param(DASK, marks=pytest.mark.release)]


@pytest.fixture
def day(write_day):
    """Options for eight snapshots that take half a second each."""
    return write_day("01234567", 200)


class Settings(NamedTuple):
    processes: int | str | None = None
    cluster: Cluster | None = None
    threads: int = 1
    device: str = "cpu"


def is_there(process):
    """Whether a process runs; one that has ended may not have been waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def done(folder):
    return Store(folder / ".done").read_all()


def test_jobs_of_this_process_are_done_one_by_one():
    seen = []

    def job(number):
        seen.append(number)
        return -number

    running = run_jobs(None, job, iter([1, 2, 3]))
    assert next(running) == (1, -1)
    assert seen == [1]
    assert list(running) == [(2, -2), (3, -3)]
    with pytest.raises(ZeroDivisionError):
        list(run_jobs(None, lambda _: 1 / 0, [1]))


def test_what_jobs_share_is_made_once():
    def make(given):
        return [given]

    assert make_once(make, 1) is make_once(make, 1)
    assert make_once(make, 2) == [2]


def own_process(_):
    """A job: say which process does it."""
    return os.getpid()


@pytest.mark.parametrize(
    ("start_seconds", "cores", "memory", "starts"),
    [
        (0.0, 2, 1 << 40, True),
        (60.0, 2, 1 << 40, False),
        (0.0, 1, 1 << 40, False),
        (0.0, 2, 1, False),
    ],
    ids=["long jobs", "short jobs", "one core", "little memory"],
)
def test_processes_start_where_they_are_faster(monkeypatch, start_seconds, cores, memory, starts):
    for name, value in (("free_cores", lambda: cores), ("free_memory", lambda: memory)):
        monkeypatch.setattr(executors, name, value)
    monkeypatch.setattr(executors, "START_SECONDS", start_seconds)
    with open_workers(Settings("auto")) as workers:
        done = dict(run_jobs(workers, own_process, range(6)))
    assert list(done) == sorted(done) or starts
    assert done[0] == os.getpid()
    assert (os.getpid() not in list(done.values())[1:]) is starts
    with open_workers(Settings("auto"), in_order=True) as workers:
        assert workers is None
    with open_workers(Settings("auto", threads=2)) as workers:  # a process needs both cores
        assert set(dict(run_jobs(workers, own_process, range(6))).values()) == {os.getpid()}


def test_memory_of_further_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda root: 1 << 62)
    (tmp_path / "proc").mkdir()
    assert memory.free_memory(tmp_path) == (1 << 62) - memory.peak_memory(torch.device("cpu"))
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert memory.free_memory(tmp_path) == 2 << 20
    monkeypatch.setattr(memory, "machine_memory", lambda root: 1)
    assert memory.free_memory(tmp_path) == 0


@pytest.mark.slow
def test_a_job_that_kills_its_process_is_named_and_the_others_are_done(tmp_path):
    job = functools.partial(invert, tmp_path / "tries")
    with open_workers(Settings(2)) as workers:
        found = dict(run_jobs(workers, job, [1, 0, *range(2, 30)]))
    assert isinstance(found.pop(0), LostWorker)
    assert found == {number: 1 / number for number in range(1, 30)}
    assert (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.parametrize("error", [EOFError(), BlockingIOError(11, ""), RuntimeError("thread")])
def test_a_process_that_does_not_start_is_said(monkeypatch, error):
    monkeypatch.setattr(ProcessPoolExecutor, "submit", Mock(side_effect=error))
    said = pytest.raises(OSError, match="the system lets no more processes start")
    with open_workers(Settings(1)) as workers, said:
        list(run_jobs(workers, abs, [-1]))


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_a_killed_worker_loses_nothing(reconstruct, start, day, tmp_path, workers):
    folder = tmp_path / "two"
    (tmp_path / "day" / "bad.npy").write_text("no array")
    process = start("reconstruct", *day, f"hydra.run.dir={folder}", *workers)
    wait_until(lambda: done(folder), process)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    assert "bad failed: cannot read" in err
    found = {name: row["status"] for name, row in snapshots_in(folder).items()}
    assert found == dict.fromkeys("01234567", "done") | {"bad": "failed"}
    said = [line for line in out.splitlines() if " iterations in " in line]
    assert {line[0] for line in said} == set("01234567")
    assert reconstruct(*day, f"hydra.run.dir={tmp_path / 'whole'}").status == 1
    assert cubes_in(folder) == cubes_in(tmp_path / "whole")
    assert len(cubes_in(folder)) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "number"),
    [
        (LOCAL, signal.SIGINT),
        pytest.param(LOCAL, signal.SIGKILL, marks=pytest.mark.release),
        pytest.param(DASK, signal.SIGKILL, marks=pytest.mark.release),
        pytest.param(DASK, signal.SIGINT, marks=pytest.mark.thorough),
    ],
)
def test_workers_end_with_their_command(reconstruct, start, write_day, tmp_path, workers, number):
    day, folder = write_day("01234567", 600), tmp_path / "two"
    process = start("reconstruct", *day, f"hydra.run.dir={folder}", *workers)
    wait_until(lambda: done(folder), process)
    started = workers_of(process.pid)
    assert len(started) == 2
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130, err
        lines = [line for line in err.splitlines() if "interrupted" in line]
        assert lines == err.splitlines()[-1:]
    wait_until(lambda: not any(map(is_there, started)), seconds=30)
    before = stamps(folder, "*/cube.tif")
    kept = set(done(folder))
    reconstruct(*day, f"hydra.run.dir={folder}").ok()
    after = stamps(folder, "*/cube.tif")
    assert all(after[path] == at for path, at in before.items() if path.parent.name in kept)
    assert len(after) == 8


class Far:
    """A scheduler and a worker that are there before the command, as on other machines."""

    def __init__(self, place):
        pytest.importorskip("distributed", reason="needs the extra dask")
        place.unlink(missing_ok=True)
        told = ("--scheduler-file", str(place), "--no-dashboard", "--host", "127.0.0.1")
        one = ("--nthreads", "1", "--no-nanny", "--death-timeout", "60")
        parts = {"scheduler": ("--port", "0"), "worker": one}
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.running = [
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{part}", *told, *more], **silent
            )
            for part, more in parts.items()
        ]

    def __enter__(self):
        return self.running

    def __exit__(self, *_):
        for process in self.running:
            process.kill()
            process.wait()


@pytest.mark.release
def test_a_lost_scheduler_ends_the_command_and_the_next_goes_on(reconstruct, start, day, tmp_path):
    folder, place = tmp_path / "far", tmp_path / "scheduler.json"
    options = (*day, f"hydra.run.dir={folder}", "cluster=dask", f"cluster.address={place}")
    with Far(place) as (scheduler, _):
        process = start("reconstruct", *options)
        wait_until(lambda: done(folder), process)
        scheduler.kill()
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
    assert {row["status"] for row in snapshots_in(folder).values()} == {"done"}
    reconstruct(*day, f"hydra.run.dir={tmp_path / 'whole'}").ok()
    assert cubes_in(folder) == cubes_in(tmp_path / "whole")


QUEUE = {"address": None, "workers": 1, "least": 0, "resources": {}}
STRANGER = """
import sys, distributed
security = distributed.Security.temporary() if sys.argv[2] == "other" else None
address = sys.argv[1] if security else sys.argv[1].replace("tls", "tcp")
try:
    distributed.Client(address, security=security, timeout=3)
except (OSError, TypeError) as error:
    sys.exit(0)
sys.exit("connected")
"""


@pytest.mark.slow
def test_who_has_no_certificate_is_no_client_of_a_cluster():
    distributed = pytest.importorskip("distributed", reason="needs the extra dask")
    cluster = Cluster(**QUEUE | {"workers": None}, kind="local", options={})
    with open_workers(Settings("auto", cluster)) as workers:
        (address,) = [client.scheduler.address for client in distributed.Client._instances]
        assert address.startswith("tls://127.0.0.1:")
        for kind in ("none", "other"):
            python("-c", STRANGER, address, kind)
        assert [found for _, found in run_jobs(workers, abs, [-1])] == [1]


def test_jobs_of_a_queue_keep_strangers_out():
    pytest.importorskip("dask_jobqueue", reason="needs the extra dask")
    given = {"cores": 1, "memory": "1GiB", "worker_extra_args": ["--lifetime", "1h"]}
    cluster = Cluster(**QUEUE, kind="slurm", options=given)
    with _find_cluster(cluster, None) as queue:
        assert queue.scheduler_address.startswith("tls://")
        script = queue.job_script()
    assert f"{sys.executable} -P -m distributed.cli.dask_worker" in script
    assert "--lifetime 1h --no-dashboard" in script
    assert "--tls-key ~/.dask-jobqueue.worker.key." in script
    assert "PRIVATE KEY" not in script


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
