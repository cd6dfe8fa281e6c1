"""Unrolled networks that are trained on the cubes of several stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cassi.models.grid import Camera
from cassi.models.network import Unrolled


class Staged(Unrolled):
    """A network whose every stage ends with an estimate of the cube.

    A subclass gives `iterates`, which sees dispersion along columns only.
    """

    def iterates(self, y: Tensor, system: Camera) -> Iterator[Tensor]:
        """Yield the cube `(B, C, H, W)` of each stage, of y `(B, 1, H, W')`."""
        raise NotImplementedError

    def recover(self, y: Tensor, system: Camera) -> Tensor:
        """Reconstruct where `system.axis` is -1: `(B, 1, H, W')` → `(B, C, H, W)`."""
        cube = y
        for iterate in self.iterates(y, system):
            cube = iterate
        return cube

    def outputs(self, y: Tensor, system: Camera) -> list[Tensor]:
        """Return the cubes of all stages, the last stage first.

        Args:
            y: measurement `(B, 1, H', W')`.
            system: the camera, of either axis.

        Returns:
            Cubes `(B, C, H, W)`, as many as there are stages.

        Raises:
            ValueError: camera or measurement do not fit, as for a reconstruction.
        """
        y, camera = self.align(y, system)
        cubes = list(self.iterates(y, camera))[::-1]
        return [x.mT for x in cubes] if system.axis == -2 else cubes

    def run(self, part: nn.Module, *inputs: Any) -> Tensor:
        """Apply a part of a stage; with `checkpointing` its inside is computed again."""
        if self.checkpointing and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(part, *inputs, use_reentrant=False))
        return cast(Tensor, part(*inputs))
