"""Run a task in a process of its own, so that its memory is its own, and survive its end."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any

import torch

from cassi.apps.memory import keep_freed_memory

Send = Callable[[object], None]


class Lost(Exception):
    """The process took too long, or is gone."""


def answers(task: Callable[..., None], *given: Any, threads: int, limit: float) -> Iterator[Any]:
    """Yield what `task(send, *given)` sends, until it ends.

    Args:
        task: runs in a fresh interpreter.
        given: its further arguments.
        threads: of torch.
        limit: seconds from one answer to the next.

    Raises:
        Lost: no answer in time, or the process was killed.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(task, theirs, threads, given), daemon=True)
    process.start()
    theirs.close()
    try:
        while ours.poll(limit):
            kind, answer = ours.recv()
            if kind == "end":
                return
            yield answer
        raise Lost(f"longer than {limit:.0f} s")
    except EOFError:
        raise Lost("killed, most likely for its memory") from None
    finally:
        process.kill()
        process.join()


def _work(task: Callable[..., None], pipe: Any, threads: int, given: tuple[Any, ...]) -> None:
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(threads)
    task(lambda answer: pipe.send(("answer", answer)), *given)
    pipe.send(("end", None))


def peak_mib(device: str = "cpu") -> float:
    """Return the memory of this process, or of its GPU, at the peak."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def first_line(error: Exception, most: int = 90) -> str:
    """Return the beginning of what an error says."""
    return str(error).partition("\n")[0][:most]
