"""Reconstructions in the background, one at a time, that pages look at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cassi.apps.errors import describe_failure, is_usage_error

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"


class Stopped(Exception):
    """Somebody asked a job to stop."""


@dataclass
class Job:
    """What is known of a job while it runs; the page reads it, the job writes it.

    Attributes:
        status: WAITING, RUNNING, DONE, FAILED or STOPPED.
        stage: what is being done, in words.
        share: of the job that is done, 0 to 1.
        picture: `(H, W, 3)`, uint8, of the cube so far.
        message: why it failed, in one line.
        value: what it returned.
    """

    status: str = WAITING
    stage: str = "waits for the run before it"
    share: float = 0.0
    picture: np.ndarray | None = None
    message: str = ""
    value: Any = None
    started: float = field(default_factory=time.monotonic)
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ask the job to end."""
        self._stop.set()

    def check(self) -> None:
        """Raise Stopped where it is to end."""
        if self._stop.is_set():
            raise Stopped

    @property
    def is_over(self) -> bool:
        """Tell whether nothing will change any more."""
        return self.status in (DONE, FAILED, STOPPED)


class Jobs:
    """A thread that does one job after the other, for all pages.

    Random numbers and threads are the process's, so that two reconstructions side by side would
    not give the bits that the command gives.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reconstruct")

    def submit(self, function: Callable[[Job], Any]) -> Job:
        """Do something when its turn comes; whatever it raises ends as a message of the job."""
        job = Job()
        self._thread.submit(_run, function, job)
        return job

    def close(self) -> None:
        """Begin no further job."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _run(function: Callable[[Job], Any], job: Job) -> None:
    try:
        job.check()
        job.status, job.started = RUNNING, time.monotonic()
        job.value = function(job)
        job.share, job.status = 1.0, DONE
    except Stopped:
        job.status = STOPPED
    except BaseException as error:  # a page that shows why, and goes on, is the point of it
        job.message = explain(error)
        job.status = FAILED


def explain(error: BaseException) -> str:
    """Say in one line why something failed; of a defect also where it is."""
    said = describe_failure(error)
    return said if is_usage_error(error) else f"{said}; this is a defect of the program"
