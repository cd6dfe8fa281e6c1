"""Snapshots that are reconstructed together, where that is possible."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from cassi import metrics
from cassi.apps.reconstruct.journal import Passes
from cassi.apps.reconstruct.snapshots import Snapshot, settings_of_snapshot
from cassi.apps.reconstructors import Recipe
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import EVERY, prepare, recover
from cassi.checks import whole_number
from cassi.data.formats.cells import Json
from cassi.methods.along_dispersion import around, inner_of
from cassi.methods.sequence import Following
from cassi.pipeline.judge import judge
from cassi.pipeline.reconstruct import responding
from cassi.pipeline.snapshot import Result
from cassi.pipeline.snapshot import Snapshot as Measured
from cassi.solvers import Iteration, Solution
from cassi.solvers.base import Reconstructor, is_sampled
from cassi.systems import System

NETWORKS_ON_A_GPU = 4
"""How many snapshots `batch: auto` gives to a network at a time; what does not fit goes alone."""
T = TypeVar("T")
Fitted = tuple[Snapshot, Measured, Reconstructor]


def batch_size(value: Any, network: bool, device: torch.device) -> int:
    """Return how many snapshots go together.

    `auto` is 1 but for networks on a GPU: a solver fills a processor with one snapshot, and alone
    every snapshot has the bits, the residuals and the number of iterations that it has by itself.
    """
    if value != "auto":
        return whole_number("batch", value, 1, 4096)
    return NETWORKS_ON_A_GPU if network and device.type == "cuda" else 1


def recover_batch(
    settings: Reconstruct,
    root: Path,
    recipe: Recipe,
    following: Following | None,
    batch: Sequence[Snapshot],
) -> Iterator[tuple[Snapshot, Result | Exception]]:
    """Read and reconstruct snapshots; yield the result of each, or why there is none."""
    groups: list[list[Fitted]] = []
    for snapshot in batch:
        fitted = attempt(prepare, settings_of_snapshot(settings, snapshot), recipe)
        if isinstance(fitted, Exception):
            yield snapshot, fitted
            continue
        if following is not None and inner_of(fitted[1]) is following.method:  # else frames
            fitted = fitted[0], around(fitted[1], following)
        group = next((g for g in groups if _can_share(g[0][1], fitted[0], fitted[1])), None)
        if group is None:
            groups.append(group := [])
        group.append((snapshot, *fitted))
    for group in groups:
        yield from _recover(settings, root, group)


def _recover(
    settings: Reconstruct, root: Path, group: Sequence[Fitted]
) -> Iterator[tuple[Snapshot, Result | Exception]]:
    seed, reconstructor = settings.seed, group[0][2]
    more = settings.heldout, settings.uncertainty
    if len(group) > 1:
        batch = [measured for _, measured, _ in group]
        together = attempt(recover_together, batch, reconstructor, seed, *more)
        if not isinstance(together, Exception):
            yield from zip((snapshot for snapshot, _, _ in group), together, strict=True)
            return
    for snapshot, measured, _ in group:
        passes = Passes(root / snapshot.name, settings_of_snapshot(settings, snapshot), measured)
        asked = (measured, reconstructor, seed, False, *more)
        yield snapshot, attempt(recover, *asked, passes=passes)


def attempt(function: Callable[..., T], *arguments: Any, **options: Any) -> T | Exception:
    """Return what a function returns, or the exception that it raises."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


def _can_share(one: Measured, other: Measured, reconstructor: Reconstructor) -> bool:
    """Tell whether two measurements may go together: one camera, and no stop that depends on both.

    A tolerance stops when the cubes of the whole batch change little, which is another moment than
    for each.
    """
    if not reconstructor.shares_batch or one.y.shape != other.y.shape:
        return False
    return _same_camera(one.camera.system, other.camera.system)


def _same_camera(first: System, second: System) -> bool:
    if type(first) is not type(second) or str(first) != str(second):
        return False
    a, b = dict(first.named_buffers()), dict(second.named_buffers())
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def recover_together(
    batch: Sequence[Measured],
    reconstructor: Reconstructor,
    seed: int,
    heldout: float | None = None,
    uncertainty: bool = False,
) -> list[Result]:
    """Reconstruct all measurements of a batch at once; the seconds are shared evenly.

    Objective and change, which the loop knows of the whole batch only, are left out of the rows.
    ValueError where one of them diverged.
    """
    torch.manual_seed(seed)
    system = batch[0].camera.system
    y = torch.cat([each.y for each in batch])
    rows: list[list[Json]] = [[] for _ in batch]
    truths = [None if i.truth is None else i.truth.to(y.device) / i.level for i in batch]
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
            truth = truths[index]
            if truth is not None and is_sampled(iteration.index, EVERY, reconstructor.iterations):
                row["psnr"] = metrics.psnr(x[[index]] / batch[index].level, truth).mean().item()
            own.append(row)

    solution = reconstructor.run(y, system, callback=follow, objective=False)
    if solution.reason == "diverged":
        raise ValueError("one of a batch diverged")
    results = []
    for index, each in enumerate(batch):
        history = [
            replace(step, residual=row["residual"], seconds=row["seconds"])
            for step, row in zip(solution.history, rows[index], strict=True)
        ]
        alone = Solution(solution.x[index : index + 1], history, solution.reason)
        made = Result(each.by(system=system), reconstructor, alone.checked(), rows=rows[index])
        result = responding(replace(made, batch=len(batch)))
        results.append(judge(result, seed, heldout, uncertainty))
    return results
