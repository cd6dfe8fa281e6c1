"""Several measurements of one camera in one run of a solver or network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cassi import metrics
from cassi.apps.inputs import Inputs
from cassi.apps.pipeline import Result, assess, conclude, predict
from cassi.checks import whole_number
from cassi.solvers import Iteration, Solution
from cassi.solvers.base import Reconstructor
from cassi.systems import System

NETWORKS_ON_A_GPU = 4
"""How many snapshots `batch: auto` gives to a network at a time; what does not fit goes alone."""


def batch_size(value: Any, network: bool, device: torch.device) -> int:
    """Return how many snapshots go together.

    `auto` is 1 but for networks on a GPU: a solver fills a processor with one snapshot, and alone
    every snapshot has the bits, the residuals and the number of iterations that it has by itself.

    Args:
        value: of the config.
        network: it is a network that reconstructs.
        device: where it runs.

    Raises:
        ValueError: the value is not `auto` or a positive whole number.
    """
    if value != "auto":
        return whole_number("batch", value, 1, 4096)
    return NETWORKS_ON_A_GPU if network and device.type == "cuda" else 1


def same_camera(first: System, second: System) -> bool:
    """Tell whether two cameras are one: shapes, settings and every number in them."""
    if type(first) is not type(second) or str(first) != str(second):
        return False
    a, b = dict(first.named_buffers()), dict(second.named_buffers())
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def can_share(inputs: Inputs, other: Inputs, reconstructor: Reconstructor) -> bool:
    """Tell whether two measurements may go together: one camera, and no stop that depends on both.

    A tolerance stops when the cubes of the whole batch change little, which is another moment than
    for each.
    """
    if not reconstructor.shares_batch:
        return False
    same = inputs.measurement.shape == other.measurement.shape
    return same and same_camera(inputs.system, other.system)


def recover_together(
    batch: Sequence[Inputs],
    reconstructor: Reconstructor,
    seed: int,
    heldout: float | None = None,
    uncertainty: bool = False,
) -> list[Result]:
    """Reconstruct all measurements of a batch at once.

    Objective and change, which the loop knows of the whole batch only, are left out of the rows.

    Args:
        batch: measurements of one camera.
        reconstructor: as `fit` gives it.
        seed: of what the reconstructor draws.
        heldout: as for `recover`.
        uncertainty: as for `recover`.

    Returns:
        One result for each; the seconds are shared evenly.

    Raises:
        ValueError: one of them diverged.
    """
    torch.manual_seed(seed)
    system = batch[0].system
    y = torch.cat([inputs.measurement for inputs in batch])
    rows: list[list[dict[str, Any]]] = [[] for _ in batch]
    truths = [None if i.truth is None else i.truth.to(y.device) for i in batch]
    norms = y.flatten(1).norm(dim=1).clamp_min(torch.finfo(y.dtype).tiny)

    def follow(iteration: Iteration, x: Tensor) -> None:
        residuals = (y - system(x)).flatten(1).norm(dim=1) / norms
        for index, own in enumerate(rows):
            row = {
                "iteration": iteration.index,
                "residual": residuals[index].item(),
                "seconds": iteration.seconds / len(batch),
                "sigma": iteration.sigma,
            }
            if (truth := truths[index]) is not None:
                row["psnr"] = metrics.psnr(x[index : index + 1], truth).mean().item()
            own.append(row)

    solution = reconstructor.run(y, system, callback=follow, objective=False)
    if solution.reason == "diverged":
        raise ValueError("one of a batch diverged")
    results = []
    for index, inputs in enumerate(batch):
        history = [
            replace(step, residual=row["residual"], seconds=row["seconds"])
            for step, row in zip(solution.history, rows[index], strict=True)
        ]
        alone = Solution(solution.x[index : index + 1], history, solution.reason)
        result = conclude(replace(inputs, system=system), alone, rows[index], reconstructor)
        result.numbers["batch"] = len(batch)
        result = predict(result, reconstructor, seed, heldout)
        results.append(assess(result, reconstructor, seed) if uncertainty else result)
    return results
