"""Jobs in the background, one at a time, whose progress the pages show."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cassi.apps.errors import describe_failure, is_usage_error


class Stopped(Exception):
    """A job was told to stop."""


@dataclass
class Job:
    """The state of a job: the job writes it, the page reads it.

    Attributes:
        stage: the present step, in words.
        share: the part that is done, 0 to 1.
        picture: `(H, W, 3)`, uint8, of the present cube.
        future: of its result.
    """

    stage: str = "waits for the run before it"
    share: float = 0.0
    picture: np.ndarray | None = None
    future: Future[Any] = field(default_factory=Future)
    _stop: threading.Event = field(default_factory=threading.Event)
    _begun: float | None = None

    def time_left(self) -> str:
        """Return about how long it takes still, as words; "" while nobody knows."""
        if self._begun is None or not 0.05 < self.share < 1:
            return ""
        seconds = (time.monotonic() - self._begun) * (1 / self.share - 1)
        return f" about {seconds:.0f} s left" if seconds >= 1 else ""

    def stop(self) -> None:
        """Ask the job to end."""
        self._stop.set()

    def check(self) -> None:
        """Raise Stopped if the job was told to end."""
        if self._stop.is_set():
            raise Stopped


class Jobs:
    """One thread that runs the jobs of all pages, one after the other.

    The random state and the number of threads belong to the process. Two reconstructions at once
    would not give the bits of the command.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reconstruct")
        self._running = Job()

    def submit(self, function: Callable[[Job], object]) -> Job:
        """Queue a function; its result, or why there is none, is in the job's future."""
        job = Job()
        job.future = self._thread.submit(self._run, function, job)
        return job

    def close(self) -> None:
        """Cancel the jobs that wait, and stop the one that runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._running.stop()

    def _run(self, function: Callable[[Job], object], job: Job) -> object:
        self._running = job
        job.check()
        job._begun = time.monotonic()
        return function(job)


def explain(error: BaseException) -> str:
    """Return the reason of a failure in one line; for a defect of the program also its place."""
    reason = describe_failure(error)
    return reason if is_usage_error(error) else f"{reason}; this is a defect of the program"
