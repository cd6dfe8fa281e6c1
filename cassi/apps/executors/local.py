"""Processes of this machine, each a pool of one: where one dies, only its job is tried again.

They are forks of a process that has imported the package and does nothing else: its threads and
GPUs have not begun. That takes one import for all of them, while the command reads its files.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

from cassi.apps.command import WORKER

R = TypeVar("R")
_THREADS = "OMP_NUM_THREADS"
_IMPORTED = ("cassi.apps.reconstruct", "cassi.evaluation", "cassi.viz")
TRIES = 3
"""How often a job is begun whose process ends."""


class LocalWorkers(ThreadPoolExecutor):
    """Starts processes, and each once more where it ends.

    A thread for each process hands it one job after the other. The processes end with this one,
    however it ends, and after an exception in the `with` block.

    Args:
        count: number of processes.
        threads: of each, for libraries that ask the environment when they are loaded.
    """

    def __init__(self, count: int, threads: int = 1) -> None:
        super().__init__(count, "worker")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*_IMPORTED])
        before, os.environ[_THREADS] = os.environ.get(_THREADS), str(threads)
        forkserver.ensure_running()
        del os.environ[_THREADS]
        os.environ |= {} if before is None else {_THREADS: before}
        self._ends, self._alive = self._context.Pipe(duplex=False)
        self._pools: dict[int, ProcessPoolExecutor] = {}
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(count):
            self._free.put(number)

    def submit(self, function: Callable[..., R], /, *given: Any, **more: Any) -> Future[R]:
        """Return the future of a job; a `BrokenProcessPool` where its process ended three times."""
        return super().submit(self._run, functools.partial(function, *given, **more))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Wait for all jobs; after an exception, end their processes."""
        if error is not None:
            self._alive.close()
        self.shutdown(cancel_futures=error is not None)
        for pool in self._pools.values():
            pool.shutdown()
        self._alive.close()

    def _run(self, job: Callable[[], R]) -> R:
        number, tried = self._free.get(), 0
        try:
            while True:
                if number not in self._pools:
                    given = (number, self._ends)
                    self._pools[number] = ProcessPoolExecutor(1, self._context, _begin, given)
                try:
                    return self._pools[number].submit(job).result()
                except BrokenProcessPool:
                    del self._pools[number]
                    tried += 1
                    if tried == TRIES or self._alive.closed:
                        raise
        finally:
            self._free.put(number)


def _begin(number: int, ends: Connection) -> None:
    """Prepare a new process: Ctrl-C is for the one that started it, whose end is its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[WORKER] = str(number)
    threading.Thread(target=_end_with, args=(ends,), daemon=True).start()


def _end_with(ends: Connection) -> None:
    ends.poll(None)
    os._exit(1)
