"""What the processes of torchrun have to know of each other beside their queue."""

from __future__ import annotations

import os
import sys

import torch


def is_first_process() -> bool:
    """Tell whether this process writes what there is one of; without torchrun it does."""
    return int(os.environ.get("RANK", "0")) == 0


def follow_first_process() -> None:
    """Let a process that is not the first make no folder of Hydra's.

    Results go where the first process says, which for this one may be a second ago.
    """
    if not is_first_process():
        sys.argv += ["hydra.run.dir=.", "hydra.output_subdir=null"]


def own_device(device: torch.device) -> torch.device:
    """Return the GPU of this process: torchrun gives each process of a machine a number."""
    if device.type != "cuda" or device.index is not None:
        return device
    gpus = max(torch.cuda.device_count(), 1)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
