"""Jobs of an evaluation, and queues that share them among processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple, Protocol

import torch.distributed as dist


class Job(NamedTuple):
    """One method on one scene, at one point of a sweep ("" where nothing is swept)."""

    point: str
    scene: str
    method: str


class Queue(Protocol):
    """Shares numbered jobs among processes."""

    rank: int
    world: int

    def take(self, count: int) -> Iterator[int]:
        """Yield the numbers of this process, of 0 … count − 1."""
        ...

    def share(self, text: str) -> str:
        """Return the text of the process of rank 0."""
        ...

    def wait(self) -> None:
        """Wait in the process of rank 0 until all have called this; others return at once."""
        ...


class LocalQueue:
    """The queue of a single process, which gets all jobs."""

    rank, world = 0, 1

    def take(self, count: int) -> Iterator[int]:
        """Yield every number."""
        yield from range(count)

    def share(self, text: str) -> str:
        """Return the text itself."""
        return text

    def wait(self) -> None:
        """Return at once."""


class SharedQueue:
    """A queue that gives the next job to the next free process, so that a slow one delays nobody.

    Nothing is kept on a disk, so a killed run leaves no claim behind.

    Args:
        store: torch's store, which counts for all processes.
        rank: of this process.
        world: number of processes.
    """

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world

    def take(self, count: int) -> Iterator[int]:
        """Yield numbers that no other process has."""
        while (number := self.store.add("next", 1) - 1) < count:
            yield number

    def share(self, text: str) -> str:
        """Return the text of the process of rank 0; waits for it."""
        if self.rank == 0:
            self.store.set("text", text)
        return self.store.get("text").decode()

    def wait(self) -> None:
        """In the process of rank 0, wait for all others."""
        self.store.add("arrived", 1)
        while self.rank == 0 and self.store.add("arrived", 0) < self.world:
            time.sleep(0.05)


def join_processes() -> Queue:
    """Return the queue of the processes that torchrun started, or a local one.

    Raises:
        RuntimeError: the other processes cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_ADDR" not in os.environ:
        return LocalQueue()
    # The meeting of env:// without a process group: counters are all that is shared.
    meeting = dist.rendezvous("env://", timeout=timedelta(minutes=5))
    store, rank, world = next(iter(meeting))
    # After --max-restarts the store is the same, and its counters stand where they were.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return SharedQueue(dist.PrefixStore(f"cassi-{attempt}", store), rank, world)
