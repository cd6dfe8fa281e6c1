"""Background jobs of the application, run one at a time, with progress for the page."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cassi.apps.errors import describe_failure, is_usage_error


class StopJob(Exception):
    """A job ended because the user stopped it."""


@dataclass
class Job:
    """The state of a job. The job writes it, and the page reads it.

    Attributes:
        stage: the present step, in words.
        progress: fraction that is done, 0 to 1.
        picture: the present cube in colour, `(H, W, 3)`, uint8.
        future: gets the result, or the exception.
    """

    stage: str = "waits for the run before it"
    progress: float = 0.0
    picture: np.ndarray | None = None
    future: Future[Any] = field(default_factory=Future)
    _stop_event: threading.Event = field(default_factory=threading.Event)
    _start_time: float | None = None

    def describe_time_left(self) -> str:
        """Return an estimate of the remaining time as text; "" while there is no estimate."""
        # The progress counts iterations, but the time also includes reading and preparing. Before
        # 5 % of the iterations, that part would dominate the estimate.
        if self._start_time is None or not 0.05 < self.progress < 1:
            return ""
        seconds = (time.monotonic() - self._start_time) * (1 / self.progress - 1)
        return f" about {seconds:.0f} s left" if seconds >= 1 else ""

    def stop(self) -> None:
        """Ask the job to end."""
        self._stop_event.set()

    def raise_if_stopped(self) -> None:
        """Raise StopJob if `stop` was called."""
        if self._stop_event.is_set():
            raise StopJob


class Jobs:
    """One thread that runs the jobs of all tabs, one after the other.

    The random state and the number of threads belong to the process. With two reconstructions at
    once the results would not have the same bits as those of the command.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reconstruct")
        self._running = Job()

    def submit(self, function: Callable[[Job], object]) -> Job:
        """Queue a function; the future of the returned job gets its result or its exception."""
        job = Job()
        job.future = self._thread.submit(self._run, function, job)
        return job

    def stop(self) -> None:
        """Cancel the jobs that wait, and stop the one that runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._running.stop()

    def _run(self, function: Callable[[Job], object], job: Job) -> object:
        self._running = job
        job.raise_if_stopped()
        job._start_time = time.monotonic()
        return function(job)


def describe_error(error: BaseException) -> str:
    """Return the reason of a failure in one line. For a defect of the program, the line says so."""
    reason = describe_failure(error)
    return reason if is_usage_error(error) else f"{reason}; this is a defect of the program"
