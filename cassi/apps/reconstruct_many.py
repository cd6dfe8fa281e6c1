"""Many snapshots: shared among processes, and continued where they were stopped."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from omegaconf import DictConfig

from cassi.apps.reconstruct.batch import batch_size
from cassi.apps.reconstruct.many import Worker
from cassi.apps.reconstruct.one import Method
from cassi.apps.reconstruct.snapshots import Snapshot, find_snapshots
from cassi.apps.reconstruct_block_worker import BlockWorker
from cassi.apps.reconstruct_folders import Folders, write_summary
from cassi.evaluation import join_processes


def reconstruct_many(
    config: DictConfig, folder: Path, method: Method, device: torch.device
) -> float:
    """Reconstruct every snapshot that is not done yet, this process its share of them.

    Args:
        config: of the command.
        folder: where results go, those of a snapshot in a folder of its own.
        method: what reconstructs.
        device: where.

    Returns:
        The mean relative residual; NaN in a process that is not the first.

    Raises:
        SystemExit: with status 1, where some have failed and the others are done.
        OSError: there are no snapshots, or results cannot be written.
        ValueError: the config is not fit for many.
    """
    size = batch_size(config.batch, network=method.node is not None, device=device)
    found, notes = find_snapshots(config)
    queue = join_processes()
    # A file may have come in between: the list of the first process is that of all.
    place, listed = json.loads(queue.share(json.dumps([str(folder.resolve()), found])))
    snapshots = [Snapshot(*entry) for entry in listed]
    folders = Folders(Path(place), config)
    if queue.rank == 0:
        done = sum(folders.is_done(snapshot) for snapshot in snapshots)
        before = f", {done} of them done before" if done else ""
        print(*notes, f"{len(snapshots)} snapshots{before}", sep="\n", flush=True)
    kind = Worker if config.memory_budget is None else BlockWorker
    worker = kind(config, device, method, folders)
    chunks = [snapshots[i : i + size] for i in range(0, len(snapshots), size)]
    worker.run(chunks[number] for number in queue.take(len(chunks)))
    queue.wait()
    if queue.rank > 0:
        return float("nan")
    # What was taken by a process that is no more.
    worker.run([snapshot] for snapshot in snapshots if folders.find_row(snapshot) is None)
    return write_summary(folders, snapshots)
