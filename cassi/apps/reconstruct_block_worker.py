"""One process's share of many snapshots that are too large for the memory."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

import torch
from omegaconf import DictConfig

from cassi.apps.reconstruct.blocks import reconstruct_big
from cassi.apps.reconstruct.one import Method
from cassi.apps.reconstruct.snapshots import Snapshot, config_of
from cassi.apps.reconstruct_folders import Folders

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class BlockWorker:
    """In the place of `Worker` where there is a `memory_budget`.

    One snapshot fills the memory that there may be, and is read and written in parts as it goes: so
    none is read ahead, and none shares a batch.

    Args:
        config: of the command.
        device: where to reconstruct.
        method: what reconstructs.
        folders: where results go.
    """

    def __init__(
        self, config: DictConfig, device: torch.device, method: Method, folders: Folders
    ) -> None:
        self.config, self.device, self.method, self.folders = config, device, method, folders

    def run(self, chunks: Iterable[Sequence[Snapshot]]) -> None:
        """Reconstruct what is not done.

        Raises:
            OSError: results cannot be written.
        """
        for snapshot in (snapshot for chunk in chunks for snapshot in chunk):
            if not self.folders.is_done(snapshot):
                self._run(snapshot)

    def _run(self, snapshot: Snapshot) -> None:
        config, folder = config_of(self.config, snapshot), self.folders.path(snapshot)
        try:
            key = self.folders.find_key(snapshot)
            print(f"{snapshot.name}:", flush=True)
            reconstruct_big(config, folder, self.method, self.device, key=key)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _UNWRITABLE:
                raise
            self.folders.report_failure(snapshot, error)
        else:
            self.folders.forget_failure(snapshot)
