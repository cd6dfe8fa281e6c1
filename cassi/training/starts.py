"""Starts of a network's own that come again, so that each is computed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from cassi.data.atomic import atomic_path


class Starts:
    """Remembers cubes in files, in half precision, by their names.

    A network that begins with many iterations of a solver spends most of a training step on them.
    They do not depend on its weights: where the batches of a training come again (`data.pool`),
    so do their starts.

    Args:
        folder: is made where it is not there.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __call__(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return the cube of that name, on the CPU, computed if it is not there yet.

        The first time, too, it is what the file holds: all passes see the same numbers.

        Args:
            name: of the file, without suffix.
            compute: makes the cube.
        """
        file = self.folder / f"{name}.pt"
        if not file.is_file():
            x = compute().detach().float().cpu()
            size = x.abs().amax().clamp_min(torch.finfo(x.dtype).tiny)
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(file) as temporary:
                torch.save({"size": size, "cube": (x / size).half()}, temporary)
        stored = torch.load(file, weights_only=True)
        cube: Tensor = stored["cube"].float() * stored["size"]
        return cube
