"""Reconstruct several snapshots in one batch of tensors, if cameras and method allow it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from cassi import metrics
from cassi.apps.reconstruct.journal import Passes
from cassi.apps.reconstruct.snapshots import SnapshotFiles, settings_of_snapshot
from cassi.apps.reconstructors import Recipe
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import (
    SAMPLING_INTERVAL,
    choose_judge_options,
    prepare,
    reconstruct_and_judge,
)
from cassi.checks import whole_number
from cassi.data.formats.cells import Json
from cassi.methods.along_dispersion import with_grid_of, without_grid
from cassi.methods.sequence import SequenceReconstructor
from cassi.pipeline.judge import JudgeOptions, judge
from cassi.pipeline.reconstruct import add_response
from cassi.pipeline.snapshot import Result, Snapshot
from cassi.solvers import Iteration, Solution
from cassi.solvers.base import Reconstructor, is_sampled
from cassi.systems import System

NETWORK_BATCH_SIZE = 4
"""Snapshots in a batch of a network, if `batch` is `auto`.

A larger batch uses more of the GPU and more memory. If the memory is too small for a batch, each of
its snapshots is reconstructed by itself.
"""
T = TypeVar("T")
FittedSnapshot = tuple[SnapshotFiles, Snapshot, Reconstructor]


def batch_size(value: Any, network: bool, device: torch.device) -> int:
    """Return how many snapshots are reconstructed in one batch.

    Args:
        value: the setting `batch`: "auto" or a number.
        network: the reconstructor is a network.
        device: the device of the reconstruction.

    Raises:
        ValueError: `value` is neither "auto" nor a whole number from 1 to 4096.
    """
    if value != "auto":
        return whole_number("batch", value, 1, 4096)
    # A solver keeps a processor busy with one snapshot, so a batch saves no time. Without a batch,
    # a snapshot also gets the same bits, residuals and iterations as in a command of its own.
    return NETWORK_BATCH_SIZE if network and device.type == "cuda" else 1


def recover_batch(
    settings: Reconstruct,
    root: Path,
    recipe: Recipe,
    sequence: SequenceReconstructor | None,
    batch: Sequence[SnapshotFiles],
) -> Iterator[tuple[SnapshotFiles, Result | Exception]]:
    """Read and reconstruct snapshots; yield the result of each, or the exception it raised.

    Args:
        settings: settings of the command.
        root: folder of the results; each snapshot has a folder in it.
        recipe: makes the method.
        sequence: reconstructs the snapshots of a sequence in their order; None if there is no
            sequence.
        batch: the snapshots.
    """
    groups: list[list[FittedSnapshot]] = []
    for files in batch:
        prepared_pair = attempt(prepare, settings_of_snapshot(settings, files), recipe)
        if isinstance(prepared_pair, Exception):
            yield files, prepared_pair
            continue
        snapshot, method = prepared_pair
        # `sequence` is used only if it wraps this same method. It does not for the camera of a
        # video: there `prepare` chooses a method for video frames, which has no warm start.
        if sequence is not None and without_grid(method) is sequence.method:
            method = with_grid_of(method, sequence)
        group = next((g for g in groups if _can_share(g[0][1], snapshot, method)), None)
        if group is None:
            groups.append(group := [])
        group.append((files, snapshot, method))
    for group in groups:
        yield from _recover_group(settings, root, group)


def _recover_group(
    settings: Reconstruct, root: Path, group: Sequence[FittedSnapshot]
) -> Iterator[tuple[SnapshotFiles, Result | Exception]]:
    """Reconstruct a group as one batch; if this fails, reconstruct each snapshot by itself."""
    seed, reconstructor = settings.seed, group[0][2]
    options = choose_judge_options(settings)
    if len(group) > 1:
        batch = [snapshot for _, snapshot, _ in group]
        batch_results = attempt(recover_together, batch, reconstructor, seed, options)
        if not isinstance(batch_results, Exception):
            yield from zip((files for files, _, _ in group), batch_results, strict=True)
            return
        # The batch may have been too large for the memory, or one of its snapshots may have
        # diverged. One by one, each snapshot gets its own result or its own error.
    for files, snapshot, _ in group:
        yield (
            files,
            attempt(
                reconstruct_and_judge,
                snapshot,
                reconstructor,
                seed,
                show_progress=False,
                options=options,
                passes=Passes(root / files.name, settings_of_snapshot(settings, files), snapshot),
            ),
        )


def attempt(function: Callable[..., T], *arguments: Any, **options: Any) -> T | Exception:
    """Return what a function returns, or the exception that it raises."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


def _can_share(first: Snapshot, second: Snapshot, reconstructor: Reconstructor) -> bool:
    """Tell whether two snapshots may share a batch.

    The method must allow it, and cameras and shapes must be equal.
    """
    # `shares_batch` is false for a solver with a tolerance. Such a solver stops when the cubes of
    # the whole batch change little. A snapshot alone would stop at another iteration.
    if not reconstructor.shares_batch or first.y.shape != second.y.shape:
        return False
    return _have_equal_cameras(first.camera.system, second.camera.system)


def _have_equal_cameras(first: System, second: System) -> bool:
    if type(first) is not type(second) or str(first) != str(second):
        return False
    a, b = dict(first.named_buffers()), dict(second.named_buffers())
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def recover_together(
    batch: Sequence[Snapshot],
    reconstructor: Reconstructor,
    seed: int,
    options: JudgeOptions | None = None,
) -> list[Result]:
    """Reconstruct all measurements of a batch at once.

    Each result gets an equal part of the seconds. Its rows of convergence.csv lack the columns
    `objective` and `change`, because the solver computes both only for the whole batch.

    Raises:
        ValueError: one of the snapshots diverged.
    """
    torch.manual_seed(seed)
    system = batch[0].camera.system
    y = torch.cat([snapshot.y for snapshot in batch])
    rows: list[list[Json]] = [[] for _ in batch]
    truths = [None if s.truth is None else s.truth.to(y.device) / s.level for s in batch]
    # The lower bound gives a frame of zeros the residual 0 rather than 0/0.
    norms = y.flatten(1).norm(dim=1).clamp_min(torch.finfo(y.dtype).tiny)

    def record_iteration(iteration: Iteration, x: Tensor) -> None:
        residuals = (y - system(x)).flatten(1).norm(dim=1) / norms
        for index, snapshot_rows in enumerate(rows):
            row = {
                "iteration": iteration.index,
                "residual": residuals[index].item(),
                "seconds": iteration.seconds / len(batch),
                "sigma": iteration.sigma,
            }
            truth = truths[index]
            if truth is not None and is_sampled(
                iteration.index, SAMPLING_INTERVAL, reconstructor.iterations
            ):
                row["psnr"] = metrics.psnr(x[[index]] / batch[index].level, truth).mean().item()
            snapshot_rows.append(row)

    solution = reconstructor.run(y, system, callback=record_iteration, objective=False)
    if solution.reason == "diverged":
        raise ValueError("one of a batch diverged")
    results = []
    for index, snapshot in enumerate(batch):
        history = [
            replace(step, residual=row["residual"], seconds=row["seconds"])
            for step, row in zip(solution.history, rows[index], strict=True)
        ]
        own_solution = Solution(solution.x[index : index + 1], history, solution.reason)
        result = Result(
            snapshot.with_camera(system=system),
            reconstructor,
            own_solution.checked(),
            rows=rows[index],
            batch=len(batch),
        )
        results.append(judge(add_response(result), seed, options))
    return results
