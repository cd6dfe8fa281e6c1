"""Processes of this machine, each a pool of one: where one dies, only its job is tried again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from cassi.apps.command import WORKER

R = TypeVar("R")
_THREADS = "OMP_NUM_THREADS"
_STARTING = threading.Lock()
TRIES = 3
"""How often a job is begun whose process ends."""


class LocalWorkers(Executor):
    """Starts processes anew (spawn), and each once more where it ends.

    A thread for each process hands it one job after the other. The processes end with this one,
    however it ends.

    Args:
        count: number of processes.
        threads: of each, for libraries that ask the environment.
    """

    def __init__(self, count: int, threads: int = 1) -> None:
        self._of_each = str(threads)
        self._numbers = iter(range(count))
        self._threads = ThreadPoolExecutor(count, "worker", self._take_number)
        self._own = threading.local()
        self._pools: dict[int, tuple[ProcessPoolExecutor, int]] = {}
        self._closed = False

    def submit(self, function: Callable[..., R], /, *given: Any, **more: Any) -> Future[R]:
        """Return the future of a job; a `BrokenProcessPool` where its process ended three times."""
        return self._threads.submit(self._run, function, *given, **more)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Wait for all jobs; after an exception, end their processes."""
        if error is not None:
            self._closed = True
            self._kill()
        self.shutdown(cancel_futures=error is not None)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes once their jobs are done."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for pool, _ in self._pools.values():
            pool.shutdown(wait)

    def _take_number(self) -> None:
        self._own.number = next(self._numbers)

    def _run(self, function: Callable[..., R], *given: Any, **more: Any) -> R:
        for tried in range(1, TRIES + 1):
            try:
                return self._pool().submit(function, *given, **more).result()
            except BrokenProcessPool:
                self._pools.pop(self._own.number, None)
                if tried == TRIES or self._closed:
                    raise
        raise AssertionError

    def _pool(self) -> ProcessPoolExecutor:
        number = self._own.number
        if number not in self._pools:
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(1, spawn, _begin, (number,))
            with self._environment():
                starting = pool.submit(os.getpid)  # this starts it
            self._pools[number] = pool, starting.result()
            if self._closed:  # while it started
                self._kill()
        return self._pools[number][0]

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """Let a process find the number of threads when it loads its libraries."""
        with _STARTING:
            before = os.environ.get(_THREADS)
            os.environ[_THREADS] = self._of_each
            try:
                yield
            finally:
                os.environ.pop(_THREADS)
                os.environ.update({} if before is None else {_THREADS: before})

    def _kill(self) -> None:
        for _, process in list(self._pools.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _begin(number: int) -> None:
    """Prepare a new process: Ctrl-C is for the one that started it, whose end is its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[WORKER] = str(number)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
