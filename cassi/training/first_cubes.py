"""A cache on disk of the first cubes that a network computes for repeated batches."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cassi.training.tensors import read_tensors, write_tensors


class FirstCubeCache:
    """Stores first cubes and noise levels in files of a folder, in half precision.

    A network that begins with many iterations of a solver spends most of a training step on them.
    These iterations do not depend on the network's weights. So if a training uses its batches again
    (`data.pool`), the first cubes and the estimated noise are stored here for the next use. When
    new batches replace the batches of the pool (`data.reuse`), their files are overwritten.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __call__(
        self, name: str, compute: Callable[[], tuple[Tensor, Tensor | None]], batch: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Return the cube and the noise that are stored under a name, on the CPU.

        If there is no file, or the file is for another batch, both are computed and stored.
        """
        # A cube that was just computed is rounded to half precision too, so that all passes over a
        # batch get the same values.
        file = self.folder / f"{name}.pt"
        record = self._read(file)
        if record is None or "noise" not in record or record.get("batch", batch) != batch:
            x, noise = compute()
            x = x.detach().float().cpu()
            max_value = x.abs().amax().clamp_min(torch.finfo(x.dtype).tiny)
            record = {
                "size": max_value,
                "cube": (x / max_value).half(),
                "batch": batch,
                "noise": None if noise is None else noise.detach().cpu(),
            }
            write_tensors(file, record)
        cube: Tensor = record["cube"].float() * record["size"]
        return cube, record["noise"]

    def _read(self, file: Path) -> dict[str, Any] | None:
        if not file.is_file():
            return None
        try:
            return read_tensors(file)
        except ValueError as error:
            warnings.warn(f"{error}; it is computed again", stacklevel=2)
            return None
