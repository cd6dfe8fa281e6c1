"""Jobs of an evaluation, and queues that share them among processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist


class Job(NamedTuple):
    """One method on one scene, at one point of a sweep ("" where nothing is swept)."""

    point: str
    scene: str
    method: str


class Queue:
    """Each job to whichever process asks next, so that a slow one delays nobody.

    Nothing is kept on a disk, so a killed run leaves no claim behind.

    Args:
        store: counts for all processes; None: there is one process.
        rank: of this process.
        world: number of processes.
    """

    def __init__(self, store: dist.Store | None = None, rank: int = 0, world: int = 1) -> None:
        self.store = dist.HashStore() if store is None else store
        self.rank, self.world = rank, world

    def take(self, count: int) -> Iterator[int]:
        """Yield the numbers, of 0 … count − 1, that no other process has been given."""
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
        return Queue()
    # The meeting of env:// without a process group: counters are all that is shared.
    meeting = dist.rendezvous("env://", timeout=timedelta(minutes=5))
    store, rank, world = next(iter(meeting))
    # After --max-restarts the store is the same, and its counters stand where they were.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Queue(dist.PrefixStore(f"cassi-{attempt}", store), rank, world)
