"""Processes of this machine, each a pool of one: where one dies, only its job is tried again.

They are forks of a process that has imported the package and does nothing else: its threads and
GPUs have not begun. That takes one import for all of them, while the command reads its files.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
WORKER = "CASSI_WORKER"
"""Environment variable: the number of this process among those of a command on its machine."""
TRIES = 3
"""How often a job is begun whose process ends."""
_EACH = 5
"""Threads of a process, and of this one for it: they count as processes do."""
_NO_ROOM = (
    "processes: the system lets no more processes start; give a smaller number, or raise ulimit -u"
)
_FORKS = multiprocessing.get_context("forkserver")
_IMPORTED = ["cassi.apps.reconstruct", "cassi.evaluation", "cassi.viz"]


def _prepare() -> None:
    """Start the process of which workers are forks, where it does not run."""
    _FORKS.set_forkserver_preload(_IMPORTED)
    told = {"OMP_NUM_THREADS": "1", WORKER: "0"}  # libraries ask for the first when they are loaded
    before = {name: os.environ[name] for name in told if name in os.environ}
    os.environ |= told
    forkserver.ensure_running()
    for name in told.keys() - before.keys():
        del os.environ[name]
    os.environ |= before


class LocalWorkers(ThreadPoolExecutor):
    """Starts `count` processes, and each once more where it ends.

    A thread for each process hands it one job after the other. The processes end with this one,
    however it ends, and after an exception in the `with` block.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        _check_room(_EACH * count)
        _prepare()
        self._ends, self._alive = _FORKS.Pipe(duplex=False)
        self._free: SimpleQueue[tuple[int, ProcessPoolExecutor]] = SimpleQueue()
        for number in range(count):
            self._free.put((number, self._pool(number)))

    def submit(
        self, job: Callable[Given, Result], /, *given: Given.args, **more: Given.kwargs
    ) -> Future[Result]:
        """Return the future of a job; a `BrokenProcessPool` where its process ended three times."""
        return super().submit(self._run, partial(job, *given, **more))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Wait for all jobs; after an exception, end their processes."""
        if error is not None:
            self._alive.close()
        self.shutdown(cancel_futures=error is not None)
        while not self._free.empty():
            self._free.get()[1].shutdown()
        self._alive.close()

    def _pool(self, number: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, _FORKS, _begin, (number, self._ends))

    def _run(self, job: Callable[[], Result]) -> Result:
        (number, pool), tried = self._free.get(), 0
        try:
            while True:
                try:
                    return _submit(pool, job).result()
                except BrokenProcessPool:
                    pool, tried = self._pool(number), tried + 1
                    if tried == TRIES or self._alive.closed:
                        raise
        finally:
            self._free.put((number, pool))


def _check_room(count: int) -> None:
    """Raise OSError where the system lets this user start no more so many threads.

    A thread of a pool that cannot start its own ends without a word, and its jobs never do.
    """
    ends = threading.Event()
    threads = [threading.Thread(target=ends.wait, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        raise OSError(_NO_ROOM) from None
    finally:
        ends.set()
    for thread in threads:
        thread.join()


def _submit(pool: ProcessPoolExecutor, job: Callable[[], Result]) -> Future[Result]:
    try:
        return pool.submit(job)
    except BrokenProcessPool:
        raise
    except (EOFError, OSError, RuntimeError):  # no process, or no thread, was started
        raise OSError(_NO_ROOM) from None


def _begin(number: int, ends: Connection) -> None:
    """Prepare a new process: Ctrl-C is for the one that started it, whose end is its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[WORKER] = str(number)
    threading.Thread(target=lambda: (ends.poll(None), os._exit(1)), daemon=True).start()
