"""Starts of a network's own that come again, so that each is computed once."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi.training.tensors import read_tensors, write_tensors


class Starts:
    """Remembers cubes in files of a folder, in half precision, by their names.

    A network that begins with many iterations of a solver spends most of a training step on them.
    They do not depend on its weights: where the batches of a training come again (`data.pool`),
    so do their starts, and the noise that was estimated of their measurements. Where new batches
    take the places of those of a pool (`data.reuse`), their files are written over.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __call__(
        self, name: str, compute: Callable[[], tuple[Tensor, Tensor | None]], batch: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Return cube and noise of that name, on the CPU, computed if they are not there yet.

        The first time, too, it is what the file holds: all passes see the same numbers. Those of
        another batch are computed anew.
        """
        file = self.folder / f"{name}.pt"
        stored = self._read(file)
        if stored is None or "noise" not in stored or stored.get("batch", batch) != batch:
            x, noise = compute()
            x = x.detach().float().cpu()
            size = x.abs().amax().clamp_min(torch.finfo(x.dtype).tiny)
            stored = {
                "size": size,
                "cube": (x / size).half(),
                "batch": batch,
                "noise": None if noise is None else noise.detach().cpu(),
            }
            write_tensors(file, stored)
        cube: Tensor = stored["cube"].float() * stored["size"]
        return cube, stored["noise"]

    def _read(self, file: Path) -> dict[str, Any] | None:
        if not file.is_file():
            return None
        try:
            return read_tensors(file)
        except ValueError as error:
            warnings.warn(f"{error}; it is computed again", stacklevel=2)
            return None
