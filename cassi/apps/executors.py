"""Run the jobs of a command in this process, in processes of this machine, or on a Dask cluster.

A job is a function that takes one picklable input and returns a picklable result. Processes and
clusters are executors of `concurrent.futures`. The command submits the jobs and records what they
return.
"""

import importlib
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import threading
import time
from collections import deque
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
from cassi.apps.command import WORKER_NUMBER_VARIABLE, choose_device, plain_warnings
from cassi.apps.memory import free_memory, keep_freed_memory, peak_memory, use_huge_pages
from cassi.apps.reconstructors import add_search_folders, list_search_folders
from cassi.apps.settings import Cluster, Sharing
from cassi.plugins import load_plugins, loaded_names
from cassi.threads import free_cores

Input = TypeVar("Input")
Output = TypeVar("Output")
Argument = TypeVar("Argument")
START_SECONDS = time.process_time()
"""Seconds that processes of this machine take to start: what this process took to import torch and
the package, which they import, too."""
MAX_SUBMITTED_JOBS = 1000
"""Largest number of jobs that wait or run on a cluster at one time.

An adaptive cluster chooses its number of workers by the number of these jobs. Each waiting job
takes memory of the scheduler.
"""
DASK_CONFIG = {
    "distributed.comm.timeouts.connect": "20s",  # for finding a scheduler, or a lost one again
    # A job fails if more workers than this are lost while they run it. If the scheduler was started
    # before this command, it keeps its own setting.
    "distributed.scheduler.allowed-failures": 2,
    # Dask's web pages can be read without a certificate. They stay off, so that no other user of
    # the machines can read what a command does.
    "distributed.scheduler.http.routes": (),
    "distributed.worker.http.routes": (),
}
PRELOADED_MODULES = ["cassi.apps.reconstruct.many", "cassi.evaluation", "cassi.viz"]
"""Modules that the fork server imports once, for all local processes."""
_LOCALHOST = "127.0.0.1"
_LOST_MESSAGE = "the process of this job was lost at every try; is there enough memory?"
# A worker of Dask may run jobs in several threads. Random state and current folder belong to the
# whole process, so only one job runs at a time.
_JOB_LOCK = threading.Lock()
# Result of `make_once`: name of the function -> (pickled argument, returned object).
_prepared: dict[str, tuple[bytes, Any]] = {}


class LostWorker(OSError):
    """The result of a job whose process was killed at every try."""


class Command(NamedTuple):
    """State of the command that every worker process needs."""

    token: str  # differs between commands, because a worker of Dask may serve several
    folder: str
    threads: int
    plugins: tuple[str, ...]
    config_folders: tuple[str, ...]
    guarded_folders: tuple[str, ...]
    has_memory_budget: bool


class SpareCores(NamedTuple):
    """This process does the jobs, until it is faster to start processes for the others."""

    command: Command


class Workers(NamedTuple):
    """Processes that do the jobs of a command."""

    open_pool: Callable[[bool], Executor]
    """Open an executor; with True, an executor of a single process."""
    max_submitted: int
    """Largest number of jobs that wait or run at one time."""
    command: Command


AnyWorkers = Workers | SpareCores | None
"""Who does the jobs of a command; None means this process."""


@contextmanager
def open_workers(
    settings: Sharing, *, blocks: bool = False, in_order: bool = False
) -> Iterator[AnyWorkers]:
    """Yield the workers that `processes` and `cluster` ask for; None means this process.

    Args:
        settings: settings of the command.
        blocks: the jobs have a memory budget, so the workers return freed memory.
        in_order: each job continues the one before it, so no two run at one time.

    Raises:
        OSError: no scheduler answers at the cluster's address.
        ValueError: a package for the cluster is missing, or an option does not fit.
    """
    _prepared.clear()  # files may have changed since an earlier command of this process
    command = Command(
        token=secrets.token_hex(8),
        folder=str(Path.cwd()),
        threads=settings.threads or 1,
        plugins=tuple(loaded_names()),
        config_folders=list_search_folders(),
        guarded_folders=links.guarded_folders(),
        has_memory_budget=blocks,
    )
    if settings.cluster is not None:
        processes = None if settings.processes == "auto" else settings.processes
        with _open_cluster(settings.cluster, processes) as executor:
            yield Workers(lambda _: executor, MAX_SUBMITTED_JOBS, command)
    elif settings.processes == "auto":
        # Processes of one GPU would share its memory, and a budget holds for each process.
        can_share = not (blocks or in_order) and choose_device(settings.device).type == "cpu"
        yield SpareCores(command) if can_share else None
    elif settings.processes is not None:
        with _open_processes(settings.processes) as open_pool:
            yield Workers(open_pool, 2 * settings.processes, command)
    else:
        yield None


def run_jobs(
    workers: AnyWorkers, job: Callable[[Input], Output], items: Iterable[Input]
) -> Iterator[tuple[Input, Output | LostWorker]]:
    """Yield (input, result) of each job in the order in which the jobs end.

    An exception of a job ends all jobs. A job whose process was killed at every try has a
    `LostWorker` in the place of its result.

    Raises:
        ConnectionError: the scheduler of a cluster is lost.
    """
    if workers is None:
        yield from ((item, job(item)) for item in items)
        return
    if isinstance(workers, SpareCores):
        yield from _run_here_first(workers.command, job, deque(items))
        return
    remaining = iter(items)
    # A killed process breaks its whole pool, and nothing tells which job was at fault. Most often
    # the memory was too small for all jobs together. So the jobs of the broken pool run once more.
    # If the pool breaks again, each of them runs alone: it has all of the memory then, and cannot
    # take other jobs with it.
    while lost_inputs := (yield from _run(workers, job, remaining)):
        second_try = iter(lost_inputs)
        for item in [*(yield from _run(workers, job, second_try)), *second_try]:
            if (yield from _run(workers, job, iter([item]), is_single=True)):
                yield item, LostWorker(_LOST_MESSAGE)


def _run_here_first(
    command: Command, job: Callable[[Input], Output], items: deque[Input]
) -> Iterator[tuple[Input, Output | LostWorker]]:
    """Do jobs in this process; start processes once the others take longer than these to start."""
    seconds = 0.0
    while items:
        count = _count_useful_processes(len(items), seconds, command.threads)
        if count > 1:
            with _open_processes(count) as open_pool:
                yield from run_jobs(Workers(open_pool, 2 * count, command), job, items)
            return
        item, started_at = items.popleft(), time.perf_counter()
        result = job(item)
        seconds = max(seconds, time.perf_counter() - started_at)
        yield item, result


def _count_useful_processes(n_jobs: int, seconds: float, threads: int) -> int:
    """Return how many processes do jobs of so many seconds each soonest; 1 means this process.

    Each process has as many threads.
    """
    if n_jobs * seconds < START_SECONDS:  # most often, and counting cores takes 10 ms
        return 1
    peak = peak_memory(torch.device("cpu"))
    count = min(free_cores() // threads, n_jobs, free_memory() // peak)
    return count if count > 1 and n_jobs * seconds * (1 - 1 / count) > START_SECONDS else 1


def _run(
    workers: Workers,
    job: Callable[[Input], Output],
    remaining: Iterator[Input],
    is_single: bool = False,
) -> Generator[tuple[Input, Output | LostWorker], None, list[Input]]:
    """Yield (input, result) as jobs end; return the inputs that were in the pool when it broke."""
    executor = workers.open_pool(is_single)
    ended_futures: SimpleQueue[Future[Any]] = SimpleQueue()
    item_of: dict[Future[Any], Input] = {}
    lost_inputs: list[Input] = []
    while True:
        # A broken pool gets no new jobs: they would be lost, too.
        n_new = 0 if lost_inputs else workers.max_submitted - len(item_of)
        for item in islice(remaining, n_new):
            future = _submit(executor, workers.command, job, item)
            item_of[future] = item
            future.add_done_callback(ended_futures.put)
        if not item_of:
            return lost_inputs
        future = ended_futures.get()
        item = item_of.pop(future)
        try:
            yield item, _get_result(future)
        except BrokenProcessPool:
            lost_inputs.append(item)
        del future  # frees its result, which may be large, while the next one is waited for


def _submit(
    executor: Executor, command: Command, job: Callable[[Input], Output], item: Input
) -> "Future[Any]":
    try:
        return executor.submit(do_job, command, job, item)
    except BrokenProcessPool as error:
        failed_future: Future[Any] = Future()
        failed_future.set_exception(error)
        return failed_future
    except (EOFError, BlockingIOError, RuntimeError):
        # Python raises one of these if no further process or thread can be started.
        raise OSError(
            "processes: the system lets no more processes start; give a smaller number, or raise "
            "ulimit -u"
        ) from None


def _get_result(future: "Future[Any]") -> Any:
    try:
        return future.result()
    except CancelledError:
        raise ConnectionError(
            "the scheduler of the cluster is lost; start it again, then repeat the command to go on"
        ) from None
    except Exception as error:
        # Dask raises it after `allowed-failures`. It is compared by name, so that local processes
        # work where Dask is not installed.
        if type(error).__name__ == "KilledWorker":
            return LostWorker(_LOST_MESSAGE)
        raise


def do_job(command: Command, job: Callable[[Input], Output], item: Input) -> Output:
    """Do a job in a process of an executor, in the folder that the command was started in."""
    with _JOB_LOCK, plain_warnings():
        os.chdir(command.folder)
        make_once(_prepare_for, command)
        torch.set_num_threads(command.threads)  # torch keeps the number per thread
        return job(item)


def _prepare_for(command: Command) -> None:
    """Prepare a worker process for a command: plugins, links, memory."""
    from tqdm import tqdm

    # tqdm's default lock is a semaphore of the system, which works between processes. A worker
    # shares its progress bars with no other process, so a lock between threads is enough.
    tqdm.set_lock(threading.RLock())
    _prepared.clear()
    load_plugins(command.plugins)
    add_search_folders(command.config_folders)
    links.release()
    links.guard_folders(*command.guarded_folders)
    use_huge_pages() if command.has_memory_budget else keep_freed_memory()
    with suppress(KeyError, ValueError):  # raised in a process that is no worker of Dask
        name = sys.modules["distributed"].get_worker().name
        # Only the workers of a `LocalCluster` have numbers for names.
        if isinstance(name, int):
            os.environ[WORKER_NUMBER_VARIABLE] = str(name)


def make_once(make: Callable[[Argument], Output], argument: Argument) -> Output:
    """Return make(argument). If the argument is that of the last call, return the same object.

    So the jobs of a process share an object that is slow to make, such as a network with its
    weights. For each function, only the object of the last argument is kept.
    """
    key, name = pickle.dumps(argument), make.__qualname__
    if _prepared.get(name, (b"",))[0] != key:
        _prepared.pop(name, None)  # frees the old object before the new one needs its memory
        _prepared[name] = key, make(argument)
    prepared_object: Output = _prepared[name][1]
    return prepared_object


@contextmanager
def _open_processes(count: int) -> Iterator[Callable[[bool], Executor]]:
    """Yield a function that opens a pool: of `count` processes, or of a single one with True.

    The processes are forks of a fork server, which imports the package while the command reads its
    files. They end with this process, however it ends, and after an exception in the block.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED_MODULES)
    # Numerical libraries read this variable when the fork server loads them. `do_job` sets the
    # number of threads of torch.
    os.environ["OMP_NUM_THREADS"] = "1"
    forkserver.ensure_running()
    # Only this process holds the writing end. The system closes it even if the process is killed,
    # and every worker that waits at the reading end notices.
    exit_reader, exit_writer = context.Pipe(duplex=False)
    with exit_reader, exit_writer, ExitStack() as stack:

        def open_pool(is_single: bool) -> Executor:
            size = 1 if is_single else count
            return stack.enter_context(
                ProcessPoolExecutor(size, context, _begin_process, (exit_reader,))
            )

        try:
            yield open_pool
        except BaseException:
            exit_writer.close()
            raise


def _begin_process(exit_reader: Connection) -> None:
    """Prepare a new process: it ignores Ctrl-C, and ends when the process of the command ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The name is ForkServerProcess-1 for the first process. Later pools continue the numbers.
    os.environ[WORKER_NUMBER_VARIABLE] = str(
        int(multiprocessing.current_process().name.rpartition("-")[2]) - 1
    )
    threading.Thread(target=lambda: (exit_reader.poll(None), os._exit(1)), daemon=True).start()


@contextmanager
def _open_cluster(cluster: Cluster, processes: int | None) -> Iterator[Executor]:
    """Yield the executor of a cluster; a cluster that is started here ends with the block.

    The scheduler replaces lost workers, and tries their jobs again.
    """
    dask, dask_distributed = _import_for_cluster("dask"), _import_for_cluster("distributed")
    is_file = cluster.address is not None and Path(cluster.address).is_file()
    with (
        dask.config.set(DASK_CONFIG),
        _find_cluster(cluster, processes) as address,
        dask_distributed.Client(**{"scheduler_file" if is_file else "address": address}) as client,
    ):
        dashboard = "" if cluster.address is None else f", dashboard {client.dashboard_link}"
        print(f"cluster: {client.scheduler.address}{dashboard}", flush=True)
        yield client.get_executor(pure=False, resources=dict(cluster.resources))


def _find_cluster(cluster: Cluster, processes: int | None) -> Any:
    """Return a context manager: a new cluster, or one that yields the scheduler's address."""
    if cluster.address is not None:
        return nullcontext(cluster.address)
    _import_for_cluster("cryptography")
    # Dask runs whatever code a client sends, and any user of the machine can connect to a local
    # port. With its own certificate, the cluster accepts this command as its only client.
    security = _import_for_cluster("distributed").Security.temporary()
    if cluster.kind == "local":
        return _import_for_cluster("distributed").LocalCluster(
            n_workers=cluster.workers or processes or free_cores(),
            threads_per_worker=1,
            host=_LOCALHOST,
            dashboard_address=None,
            security=security,
            resources=dict(cluster.resources),
        )
    classes = {
        name.lower(): member for name, member in vars(_import_for_cluster("dask_jobqueue")).items()
    }
    try:
        queue = classes[f"{cluster.kind}cluster"](security=security, **_queue_options(cluster))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cluster.options: {error}") from None
    queue.adapt(minimum=cluster.least, maximum=cluster.workers)
    return queue


def _queue_options(cluster: Cluster) -> dict[str, Any]:
    """Return the options for a class of dask_jobqueue, with those that keep other users out."""
    config = _import_for_cluster("dask").config

    def option_or(name: str, default: Any) -> Any:
        config_value = config.get(f"jobqueue.{cluster.kind}.{name.replace('_', '-')}", None)
        return cluster.options.get(name) or config_value or default

    return {
        "scheduler_options": {"dashboard": False, "dashboard_address": f"{_LOCALHOST}:0"},
        **cluster.options,
        "worker_extra_args": [*option_or("worker_extra_args", ()), "--no-dashboard"],
        # The keys of the workers lie in this folder while the command runs, in files that only
        # this user can read.
        "shared_temp_directory": option_or("shared_temp_directory", "~"),
        # Without -P a worker would import modules from its current folder, which may be a
        # stranger's.
        "python": f"{option_or('python', sys.executable)} -P",
    }


def _import_for_cluster(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f"cluster: expected the package {name}, which is missing; pip install 'cassi[dask]'"
        ) from None
