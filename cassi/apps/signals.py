"""SIGTERM as an exception, so that what is half done is cleaned up.

SLURM sends it before the time of a job is up or its machine is taken, torchrun when another process
has ended, and people by `kill`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn


class Terminated(BaseException):
    """The process was asked to end; like KeyboardInterrupt not an `Exception`."""


def raise_terminated() -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM raise `Terminated` within a block."""
    return _handle(_terminate)


def stopped_by(error: BaseException) -> KeyboardInterrupt | Terminated | None:
    """Return the signal behind an error: itself, or what was being handled when it arose.

    What cleans up after an exception may fail because of what the signal left half done: OmegaConf
    restores the flags of a list whose last element is not there yet.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt | Terminated):
            return seen
        seen = seen.__context__
    return None


def leave_to_lightning(trainer: Any) -> contextlib.AbstractContextManager[None]:
    """Let Lightning end after the step in hand, once it has come to its steps.

    Lightning's own handler, which it registers then, calls the one that was there after itself.
    """

    def terminate_unless_noted(number: int, frame: Any) -> None:
        if not trainer.received_sigterm:
            raise Terminated

    return _handle(terminate_unless_noted)


def end_at_once(trainer: Any, _: Any) -> None:
    """Let SIGTERM end each of several processes now; to be called when the steps begin.

    Lightning's handler waits there for the other processes, which may be waiting for this one.
    """
    if trainer.world_size == 1:
        return

    def terminate_all(number: int, frame: Any) -> NoReturn:
        kill = getattr(trainer.strategy.launcher, "kill", None)
        if kill is not None:  # of the processes that this one has started
            kill(number)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate_all)


def _terminate(number: int, frame: Any) -> NoReturn:
    raise Terminated


@contextlib.contextmanager
def _handle(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and is given signals
        return
    earlier = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
