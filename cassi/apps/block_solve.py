"""The reconstruction of one block of a scene."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cassi.apps.reconstruct.journal import Record
from cassi.apps.reconstruct.plan import Block
from cassi.apps.scene_parts import SceneParts
from cassi.solvers import Iteration


def solve_block(
    scene: SceneParts,
    solver: Any,
    blocks: list[Block],
    index: int,
    blend: int,
    tail: np.ndarray | None,
    callback: Callable[..., Any],
) -> tuple[Record, np.ndarray, np.ndarray | None]:
    """Reconstruct one block.

    Args:
        scene: the measurement and its camera.
        solver: a solver or a network.
        blocks: all of them.
        index: of this one.
        blend: rows before and after a seam over which two blocks fade into each other.
        tail: what the block before returned for that.
        callback: of the solver.

    Returns:
        Numbers of the block; its values `(C, H', W')`; what the next block is blended with, None
        after the last.

    Raises:
        ValueError: nothing finite comes out.
    """
    block, last = blocks[index], index == len(blocks) - 1
    wall, cpu = time.perf_counter(), time.process_time()
    y, camera = scene.part(block.first, block.last)
    solution = solver.run(y, camera, callback=callback, statistics=scene.statistics)
    if not solution.history:
        raise ValueError("the solver diverged at its first iteration; check scale, rho and sigma")
    x = solution.x[0]
    start = block.start if index == 0 else block.start - blend
    stop = block.stop if last else block.stop - blend
    rest = None
    if not last:
        beyond = x.narrow(scene.axis, stop - block.first, 2 * blend)
        rest = np.ascontiguousarray(beyond.cpu().numpy())
    own = x.narrow(scene.axis, start - block.first, stop - start)
    if tail is not None and blend:
        seam = own.narrow(scene.axis, 0, 2 * blend)
        weight = _weights(2 * blend, seam).unsqueeze(-1 if scene.axis == -2 else 0)
        seam.copy_(torch.lerp(torch.from_numpy(tail).to(seam), seam, weight))
    record = {
        "block": index,
        "lines": [start, stop],
        "misfit": scene.misfit(own, start),
        "reason": solution.reason,
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "history": [_row(index, step) for step in solution.history],
    }
    return record, own.cpu().numpy(), rest


def _weights(count: int, like: torch.Tensor) -> torch.Tensor:
    """A smooth rise from 0 to 1, which its mirror image completes to 1."""
    at = (torch.arange(count, device=like.device, dtype=like.dtype) + 0.5) / count
    return 0.5 - 0.5 * torch.cos(torch.pi * at)


def _row(index: int, step: Iteration) -> dict[str, Any]:
    names = ("residual", "seconds", "change", "sigma")
    return {"block": index + 1, "iteration": step.index} | {n: getattr(step, n) for n in names}
