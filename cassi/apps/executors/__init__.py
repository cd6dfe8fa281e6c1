"""Who runs the jobs of a command: this process, processes of this machine, or a Dask cluster.

A job is a plain function of plain data, `(settings, what) -> record`. An executor has the protocol
of `concurrent.futures`; the command that submits the jobs writes down what they return.
"""

from __future__ import annotations

import os
import pickle
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import torch

from cassi.apps.command import plain_warnings
from cassi.apps.executors.local import LocalWorkers
from cassi.apps.memory import keep_freed_memory, use_huge_pages
from cassi.apps.reconstructors import search_also, searched_folders
from cassi.apps.settings import Sharing
from cassi.plugins import load_plugins, loaded_names

J = TypeVar("J")
R = TypeVar("R")
S = TypeVar("S")
AHEAD = 1000
"""Jobs that are submitted and not done: a cluster that grows sees by them how far."""


@contextmanager
def open_executor(settings: Sharing, *, blocks: bool = False) -> Iterator[Executor | None]:
    """Yield what runs the jobs that settings ask for; None is this process.

    Args:
        settings: of the command: `processes`, `cluster`, `threads`.
        blocks: jobs keep to a budget of memory.

    Raises:
        OSError: the cluster cannot be reached.
        ValueError: the package for it is not installed.
    """
    workers: Executor
    command, plugins, threads = secrets.token_hex(8), tuple(loaded_names()), settings.threads or 1
    setup = Setup(str(Path.cwd()), command, plugins, searched_folders(), blocks, threads)
    if settings.cluster is not None:
        from cassi.apps.executors.dask import open_cluster

        with open_cluster(settings.cluster, settings.processes) as workers:
            yield Elsewhere(workers, setup)
    elif settings.processes is not None:
        with LocalWorkers(settings.processes, threads) as workers:
            yield Elsewhere(workers, setup)
    else:
        try:
            yield None
        finally:
            _MADE.clear()


def run_jobs(
    executor: Executor | None, job: Callable[[J], R], given: Iterable[J]
) -> Iterator[tuple[J, R | LostWorker]]:
    """Yield what each job returns, as they end.

    Where the process that does a job is lost however often it is tried, an exception stands in the
    place of the result, and the others go on.

    Args:
        executor: does them; None: this process, one by one.
        job: the function; what it raises ends all.
        given: its argument, of each job.

    Raises:
        ConnectionError: the scheduler of a cluster is lost.
    """
    if executor is None:
        yield from ((what, job(what)) for what in given)
        return
    ended: SimpleQueue[Future[R]] = SimpleQueue()
    running: dict[Future[R], J] = {}
    left = iter(given)
    while True:
        for what in islice(left, AHEAD - len(running)):
            future = executor.submit(job, what)
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


class LostWorker(OSError):
    """A job whose process ended, however often it was tried."""


class Setup(NamedTuple):
    """What a process of a command must know before its first job."""

    folder: str  # that the command was started in, to which paths are relative
    command: str  # tells it from others that the same process works for
    plugins: tuple[str, ...]
    searched: tuple[str, ...]  # folders of the user's own configs
    blocks: bool  # jobs keep to a budget of memory
    threads: int


@dataclass(frozen=True)
class Elsewhere(Executor):
    """Does jobs in other processes, which are first made ready for them."""

    workers: Executor
    setup: Setup

    def submit(self, function: Callable[..., R], /, *given: Any, **more: Any) -> Future[R]:
        """Return the future of a job."""
        # As bytes: a process reads the function once its plugins are there.
        return self.workers.submit(
            run_there, self.setup, pickle.dumps(partial(function, *given, **more))
        )


def run_there(setup: Setup, job: bytes) -> Any:
    """Do a job in a process of an executor, one at a time."""
    with _ONE_JOB, plain_warnings():
        os.chdir(setup.folder)
        once(_begin, setup)
        torch.set_num_threads(setup.threads)  # of this thread
        return pickle.loads(job)()


def _begin(setup: Setup) -> None:
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system's
    _MADE.clear()  # files may have changed since
    load_plugins(setup.plugins)
    search_also(setup.searched)
    use_huge_pages() if setup.blocks else keep_freed_memory()


_ONE_JOB = threading.Lock()
"""Random numbers and the folder are those of the process."""
_MADE: dict[str, tuple[bytes, Any]] = {}


def once(make: Callable[[S], R], given: S) -> R:
    """Return make(given); the same object as long as this process asks for the same."""
    key, name = pickle.dumps(given), make.__qualname__
    if name in _MADE and _MADE[name][0] != key:
        del _MADE[name]  # freed before another is made
    if name not in _MADE:
        _MADE[name] = key, make(given)
    made: R = _MADE[name][1]
    return made
