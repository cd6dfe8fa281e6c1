"""Who does the jobs of a command: this process, processes of this machine, or a Dask cluster.

A job is a plain function of plain data, `(settings, what) -> record`. Processes and clusters are
executors of `concurrent.futures`; the command that submits the jobs writes down what they return.
"""

import importlib
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import islice
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import torch

from cassi import links
from cassi.apps.command import WORKER, plain_warnings
from cassi.apps.memory import keep_freed_memory, use_huge_pages
from cassi.apps.reconstructors import search_also, searched_folders
from cassi.apps.settings import Cluster, Sharing
from cassi.plugins import load_plugins, loaded_names
from cassi.threads import free_cores

J = TypeVar("J")
R = TypeVar("R")
S = TypeVar("S")
AHEAD = 1000
"""Jobs of a cluster that are submitted and not done: one that grows sees by them how far."""
DASK = {
    "distributed.comm.timeouts.connect": "20s",  # as long a lost scheduler is looked for
    "distributed.scheduler.allowed-failures": 2,  # of a cluster that is started here
    # Nobody else on the machines sees what it does: pages of Dask ask for no certificate.
    "distributed.scheduler.http.routes": (),
    "distributed.worker.http.routes": (),
}
PRELOADED = ["cassi.apps.reconstruct.many", "cassi.evaluation", "cassi.viz"]
"""What local processes have imported when they begin."""
_LOCAL = "127.0.0.1"
_LOST = "the process that did it was lost each time; is there enough memory?"
_ONE_JOB = threading.Lock()
"""Random numbers and the folder are those of the process."""
_MADE: dict[str, tuple[bytes, Any]] = {}


class LostWorker(OSError):
    """A job whose process ended, however often it was tried."""


class Command(NamedTuple):
    """What a process takes over from the command that it works for."""

    token: str  # Dask's workers may have done the jobs of another command before
    folder: str
    threads: int
    plugins: tuple[str, ...]
    searched: tuple[str, ...]
    guarded: tuple[str, ...]
    blocks: bool


class Workers(NamedTuple):
    """Other processes, which do the jobs of a command."""

    open: Callable[[bool], Executor]
    """Opens an executor; with True, of one process alone."""
    ahead: int
    """Jobs that are submitted and not done."""
    command: Command


@contextmanager
def open_executor(settings: Sharing, *, blocks: bool = False) -> Iterator[Workers | None]:
    """Yield who does the jobs, as `processes` and `cluster` say; None is this process.

    With `blocks`, jobs keep to a budget of memory.

    Raises:
        OSError: nobody answers at the cluster's address.
        ValueError: a package for it is missing, or its options do not fit.
    """
    _MADE.clear()  # files may have changed since
    plugins, searched = tuple(loaded_names()), searched_folders()
    shared = plugins, searched, links.guarded(), blocks
    command = Command(secrets.token_hex(8), str(Path.cwd()), settings.threads or 1, *shared)
    if settings.cluster is not None:
        with _open_cluster(settings.cluster, settings.processes) as executor:
            yield Workers(lambda _: executor, AHEAD, command)
    elif settings.processes is not None:
        with _open_processes(settings.processes) as open_pool:
            yield Workers(open_pool, 2 * settings.processes, command)
    else:
        yield None


def run_jobs(
    workers: Workers | None, job: Callable[[J], R], given: Iterable[J]
) -> Iterator[tuple[J, R | LostWorker]]:
    """Yield what each job returns, as they end; what one raises ends all.

    Where a process of this machine is killed, its pool breaks. The jobs that were in it are done
    once more; where that breaks too, each of them alone, so that it has all of the memory and ends
    no other. One that is lost then as well has a `LostWorker` in the place of its result.

    Raises:
        ConnectionError: the scheduler of a cluster is lost.
    """
    if workers is None:
        yield from ((what, job(what)) for what in given)
        return
    left = iter(given)
    while lost := (yield from _run(workers, job, left)):
        again = iter(lost)
        for what in [*(yield from _run(workers, job, again)), *again]:
            if (yield from _run(workers, job, iter([what]), alone=True)):
                yield what, LostWorker(_LOST)


def _run(
    workers: Workers, job: Callable[[J], R], left: Iterator[J], alone: bool = False
) -> Generator[tuple[J, R | LostWorker], None, list[J]]:
    """Yield what jobs return, as they end; return those that a pool had when it broke."""
    executor = workers.open(alone)
    ended: SimpleQueue[Future[Any]] = SimpleQueue()
    running: dict[Future[Any], J] = {}
    lost: list[J] = []
    while True:
        for what in islice(left, 0 if lost else workers.ahead - len(running)):
            future = _submit(executor, workers.command, job, what)
            running[future] = what
            future.add_done_callback(ended.put)
        if not running:
            return lost
        future = ended.get()
        what = running.pop(future)
        try:
            yield what, _outcome(future)
        except BrokenProcessPool:
            lost.append(what)
        del future  # its result may be large


def _submit(executor: Executor, command: Command, job: Callable[[J], R], what: J) -> "Future[Any]":
    try:
        return executor.submit(do_job, command, job, what)
    except BrokenProcessPool as error:
        broken: Future[Any] = Future()
        broken.set_exception(error)
        return broken
    except (EOFError, BlockingIOError, RuntimeError):  # no process, or no thread, was started
        raise OSError(
            "processes: the system lets no more processes start; give a smaller number, or raise "
            "ulimit -u"
        ) from None


def _outcome(future: "Future[Any]") -> Any:
    try:
        return future.result()
    except CancelledError:
        raise ConnectionError(
            "the scheduler of the cluster is lost; the same command goes on once it is there again"
        ) from None
    except Exception as error:
        if type(error).__name__ == "KilledWorker":  # Dask has tried it often enough
            return LostWorker(_LOST)
        raise


def do_job(command: Command, job: Callable[[J], R], what: J) -> R:
    """Do a job in a process of an executor, in the folder that the command was started in."""
    with _ONE_JOB, plain_warnings():
        os.chdir(command.folder)
        once(_take_over, command)
        torch.set_num_threads(command.threads)  # of this thread
        return job(what)


def _take_over(command: Command) -> None:
    """Prepare a process for a command."""
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system's
    _MADE.clear()
    load_plugins(command.plugins)
    search_also(command.searched)
    links.release()
    links.guard(*command.guarded)
    use_huge_pages() if command.blocks else keep_freed_memory()
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
def _open_processes(count: int) -> Iterator[Callable[[bool], Executor]]:
    """Yield what opens pools of so many processes, or of one.

    They are forks of a process that imports the package while the command reads its files. They end
    with this one, however it ends, and after an exception in the block.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    os.environ["OMP_NUM_THREADS"] = "1"  # libraries ask for it when they are loaded there
    forkserver.ensure_running()
    ends, alive = context.Pipe(duplex=False)
    with ends, alive, ExitStack() as stack:

        def open_pool(alone: bool) -> Executor:
            size = 1 if alone else count
            return stack.enter_context(ProcessPoolExecutor(size, context, _begin, (ends,)))

        try:
            yield open_pool
        except BaseException:
            alive.close()
            raise


def _begin(ends: Connection) -> None:
    """Prepare a new process: Ctrl-C is for the one that started it, whose end is its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Those of a pool are counted on: ForkServerProcess-1 is the first.
    os.environ[WORKER] = str(int(multiprocessing.current_process().name.rpartition("-")[2]) - 1)
    threading.Thread(target=lambda: (ends.poll(None), os._exit(1)), daemon=True).start()


@contextmanager
def _open_cluster(cluster: Cluster, processes: int | None) -> Iterator[Executor]:
    """Yield the executor of a cluster; one that is started here ends with the block.

    Lost workers, and how often their jobs are tried again, are the scheduler's affair.
    """
    dask, distributed = _load("dask"), _load("distributed")
    is_file = cluster.address is not None and Path(cluster.address).is_file()
    with (
        dask.config.set(DASK),
        _find_cluster(cluster, processes) as place,
        distributed.Client(**{"scheduler_file" if is_file else "address": place}) as client,
    ):
        page = "" if cluster.address is None else f", dashboard {client.dashboard_link}"
        print(f"cluster: {client.scheduler.address}{page}", flush=True)
        yield client.get_executor(pure=False, resources=dict(cluster.resources))


def _find_cluster(cluster: Cluster, processes: int | None) -> Any:
    if cluster.address is not None:
        return nullcontext(cluster.address)
    _load("cryptography")
    # Dask runs what its clients send, so nobody is a client without the keys of this command.
    security = _load("distributed").Security.temporary()
    if cluster.kind == "local":
        return _load("distributed").LocalCluster(
            n_workers=cluster.workers or processes or free_cores(),
            threads_per_worker=1,
            host=_LOCAL,
            dashboard_address=None,
            security=security,
            resources=dict(cluster.resources),
        )
    classes = {name.lower(): made for name, made in vars(_load("dask_jobqueue")).items()}
    try:
        queue = classes[f"{cluster.kind}cluster"](security=security, **_job_options(cluster))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cluster.options: {error}") from None
    queue.adapt(minimum=cluster.least, maximum=cluster.workers)
    return queue


def _job_options(cluster: Cluster) -> dict[str, Any]:
    """Return the options of a class of dask_jobqueue, with what keeps others out."""

    def chosen(name: str, default: Any) -> Any:
        usual = _load("dask").config.get(f"jobqueue.{cluster.kind}.{name.replace('_', '-')}", None)
        return cluster.options.get(name) or usual or default

    return {
        "scheduler_options": {"dashboard": False, "dashboard_address": f"{_LOCAL}:0"},
        **cluster.options,
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
