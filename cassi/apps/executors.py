"""Who runs the jobs of a command: this process, processes of this machine, or a Dask cluster.

A job is a plain function of plain data, `(settings, what) -> record`. The engines have the protocol
of `concurrent.futures`; the command that submits the jobs writes down what they return.
"""

import importlib
import os
import pickle
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from cassi import links
from cassi.apps.command import plain_warnings
from cassi.apps.memory import keep_freed_memory, use_huge_pages
from cassi.apps.reconstructors import search_also, searched_folders
from cassi.apps.settings import Cluster, Sharing
from cassi.plugins import load_plugins, loaded_names
from cassi.threads import free_cores
from cassi.workers import WORKER, LocalWorkers

J = TypeVar("J")
R = TypeVar("R")
S = TypeVar("S")
Submit = Callable[[bytes], "Future[Any]"]
"""Has a pickled job done in another process."""
AHEAD = 1000
"""Jobs that are submitted and not done: a cluster that grows sees by them how far."""
DASK = {
    "distributed.comm.timeouts.connect": "20s",  # as long a lost scheduler is looked for
    "distributed.scheduler.allowed-failures": 2,  # of a cluster that is started here
    # Nobody else on the machines sees what it does: pages of Dask ask for no certificate.
    "distributed.scheduler.http.routes": (),
    "distributed.worker.http.routes": (),
}
_LOCAL = "127.0.0.1"
_ONE_JOB = threading.Lock()
"""Random numbers and the folder are those of the process."""
_MADE: dict[str, tuple[bytes, Any]] = {}


class LostWorker(OSError):
    """A job whose process ended, however often it was tried."""


@contextmanager
def open_executor(settings: Sharing, *, blocks: bool = False) -> Iterator[Submit | None]:
    """Yield what runs the jobs as `processes` and `cluster` say; None is this process.

    Args:
        settings: of the command.
        blocks: jobs keep to a budget of memory.

    Raises:
        OSError: nobody answers at the cluster's address.
        ValueError: a package for it is missing, or its options do not fit.
    """
    _MADE.clear()  # files may have changed since
    engine: Any = nullcontext()
    if settings.cluster is not None:
        engine = _open_cluster(settings.cluster, settings.processes)
    elif settings.processes is not None:
        engine = LocalWorkers(settings.processes)
    told = secrets.token_hex(8), tuple(loaded_names()), searched_folders(), links.guarded(), blocks
    with engine as workers:
        there = partial(run_there, str(Path.cwd()), settings.threads or 1, told)
        yield None if workers is None else partial(workers.submit, there)


def run_jobs(
    submit: Submit | None, job: Callable[[J], R], given: Iterable[J]
) -> Iterator[tuple[J, R | LostWorker]]:
    """Yield what each job returns, as they end; what one raises ends all.

    Where the process of a job is lost however often it is tried, a `LostWorker` stands in the place
    of the result. None in place of `submit` is this process, one by one.

    Raises:
        ConnectionError: the scheduler of a cluster is lost.
    """
    if submit is None:
        yield from ((what, job(what)) for what in given)
        return
    ended: SimpleQueue[Future[R]] = SimpleQueue()
    running: dict[Future[R], J] = {}
    left = iter(given)
    while True:
        for what in islice(left, AHEAD - len(running)):
            # As bytes: a process reads the function once its plugins are there.
            future = submit(pickle.dumps(partial(job, what)))
            running[future] = what
            future.add_done_callback(ended.put)
        if not running:
            return
        future = ended.get()
        yield running.pop(future), _outcome(future)
        del future  # its result may be large


def _outcome(future: Future[Any]) -> Any:
    try:
        return future.result()
    except CancelledError:
        raise ConnectionError(
            "the scheduler of the cluster is lost; the same command goes on once it is there again"
        ) from None
    except Exception as error:
        if isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":
            return LostWorker("the process that did it was lost each time; is there enough memory?")
        raise


def run_there(folder: str, threads: int, told: tuple[Any, ...], job: bytes) -> Any:
    """Do a job in a process of an executor, in the folder that the command was started in."""
    with _ONE_JOB, plain_warnings():
        os.chdir(folder)
        once(_begin, told)
        torch.set_num_threads(threads)  # of this thread
        return pickle.loads(job)()


def _begin(told: tuple[Any, ...]) -> None:
    """Prepare a process for a command, which its first word tells from others."""
    from tqdm import tqdm

    _, plugins, searched, guarded, blocks = told
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system's
    _MADE.clear()
    load_plugins(plugins)
    search_also(searched)
    links.release()
    links.guard(*guarded)
    use_huge_pages() if blocks else keep_freed_memory()
    with suppress(KeyError, ValueError):  # it is no worker of Dask's
        name = sys.modules["distributed"].get_worker().name
        os.environ |= {WORKER: str(name)} if isinstance(name, int) else {}  # of this machine


def once(make: Callable[[S], R], given: S) -> R:
    """Return make(given); the same object as long as this process asks for the same."""
    key, name = pickle.dumps(given), make.__qualname__
    if _MADE.get(name, (b"",))[0] != key:
        _MADE.pop(name, None)  # freed before another is made
        _MADE[name] = key, make(given)
    made: R = _MADE[name][1]
    return made


@contextmanager
def _open_cluster(told: Cluster, processes: int | None) -> Iterator[Executor]:
    """Yield the executor of a cluster; one that is started here ends with the block.

    Lost workers, and how often their jobs are tried again, are the scheduler's affair.
    """
    dask, distributed = _load("dask"), _load("distributed")
    is_file = told.address is not None and Path(told.address).is_file()
    with (
        dask.config.set(DASK),
        _find_cluster(told, processes) as place,
        distributed.Client(**{"scheduler_file" if is_file else "address": place}) as client,
    ):
        page = "" if told.address is None else f", dashboard {client.dashboard_link}"
        print(f"cluster: {client.scheduler.address}{page}", flush=True)
        yield client.get_executor(pure=False, resources=dict(told.resources))


def _find_cluster(told: Cluster, processes: int | None) -> Any:
    if told.address is not None:
        return nullcontext(told.address)
    _load("cryptography")
    # Dask runs what its clients send, so nobody is a client without the keys of this command.
    security = _load("distributed").Security.temporary()
    if told.kind == "local":
        return _load("distributed").LocalCluster(
            n_workers=told.workers or processes or free_cores(),
            threads_per_worker=1,
            host=_LOCAL,
            dashboard_address=None,
            security=security,
            resources=dict(told.resources),
        )
    classes = {name.lower(): made for name, made in vars(_load("dask_jobqueue")).items()}
    try:
        cluster = classes[f"{told.kind}cluster"](security=security, **_job_options(told))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cluster.options: {error}") from None
    cluster.adapt(minimum=told.least, maximum=told.workers)
    return cluster


def _job_options(told: Cluster) -> dict[str, Any]:
    """Return the options of a class of dask_jobqueue, with what keeps others out."""

    def chosen(name: str, default: Any) -> Any:
        usual = _load("dask").config.get(f"jobqueue.{told.kind}.{name.replace('_', '-')}", None)
        return told.options.get(name) or usual or default

    return {
        "scheduler_options": {"dashboard": False, "dashboard_address": f"{_LOCAL}:0"},
        **told.options,
        "worker_extra_args": [*chosen("worker_extra_args", ()), "--no-dashboard"],
        # The keys of workers, in files that only this user reads while the command runs.
        "shared_temp_directory": chosen("shared_temp_directory", "~"),
        # Without -P a worker would import files of the folder that its job starts in.
        "python": f"{chosen('python', sys.executable)} -P",
    }


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"cluster: it takes {name}; pip install 'cassi[dask]'") from None
