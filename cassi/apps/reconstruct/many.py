"""Many snapshots: shared among processes, and continued where they were stopped.

Each process reads the next snapshot and writes the last one in threads beside its computing. What
is done is in the store of the folder, under the fingerprint of settings and files; the rest is what
the same command does.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from torch import Tensor

from cassi import metrics
from cassi.apps import results
from cassi.apps.command import FAILED, Run
from cassi.apps.errors import describe_failure
from cassi.apps.inputs import Inputs
from cassi.apps.pipeline import (
    Result,
    assess,
    conclude,
    find_camera,
    fit,
    predict,
    read,
    recover,
    say,
    write_results,
)
from cassi.apps.reconstruct.blocks import reconstruct_in_blocks
from cassi.apps.reconstruct.journal import Passes, forget_passes
from cassi.apps.reconstruct.snapshots import (
    SUMMARY,
    Snapshot,
    find_snapshots,
    settings_of_snapshot,
)
from cassi.apps.reconstructors import Recipe, fingerprint_settings
from cassi.apps.settings import Reconstruct
from cassi.checks import printable, whole_number
from cassi.data.atomic import SUMS, UNWRITABLE, atomic_path, is_temporary
from cassi.data.store import Store, fingerprint
from cassi.evaluation import join_processes
from cassi.evaluation.tables import csv_text
from cassi.solvers import Iteration, Solution
from cassi.solvers.base import Reconstructor
from cassi.systems import System

BEHIND = 2
"""Results that wait to be written, at most: a slow disk slows the work and fills no memory."""

T = TypeVar("T")
Loaded = tuple["_Task", Inputs | Exception]
Fitted = tuple["_Task", Inputs, Reconstructor]


def reconstruct_many(settings: Reconstruct, run: Run, recipe: Recipe) -> float:
    """Reconstruct every snapshot that is not done yet, this process its share of them.

    Args:
        settings: of the command.
        run: where results go, those of a snapshot in a folder of its own.
        recipe: what reconstructs.

    Returns:
        The mean relative residual; NaN in a process that is not the first.

    Raises:
        SystemExit: with status 1, where some have failed and the others are done.
        OSError: there are no snapshots, or results cannot be written.
        ValueError: the settings are not fit for many.
    """
    size = batch_size(settings.batch, network=recipe.is_network, device=recipe.device)
    found, notes = find_snapshots(settings)
    queue = join_processes()
    # A file may have come in between: the list of the first process is that of all.
    place, listed = json.loads(queue.share(json.dumps([str(run.folder), found])))
    snapshots = [Snapshot(*entry) for entry in listed]
    folders = Folders(Path(place), settings)
    if queue.rank == 0:
        done = sum(folders.is_done(snapshot) for snapshot in snapshots)
        before = f", {done} of them done before" if done else ""
        print(*map(printable, notes), f"{len(snapshots)} snapshots{before}", sep="\n", flush=True)
    kind = Worker if settings.memory_budget is None else BlockWorker
    worker = kind(settings, recipe, folders)
    chunks = [snapshots[i : i + size] for i in range(0, len(snapshots), size)]
    worker.run(chunks[number] for number in queue.take(len(chunks)))
    queue.wait()
    if queue.rank > 0:
        return float("nan")
    # What was taken by a process that is no more.
    worker.run([snapshot] for snapshot in snapshots if folders.find_row(snapshot) is None)
    return _write_summary(folders, snapshots, run.is_multirun)


class Folders:
    """Where the results of each snapshot are, and whether they are there."""

    def __init__(self, root: Path, settings: Reconstruct) -> None:
        self.root, self.settings = root, fingerprint_settings(settings)
        self.store = Store(root / ".done")

    def path(self, snapshot: Snapshot) -> Path:
        """Return the folder of a snapshot."""
        return self.root / snapshot.name

    def key(self, snapshot: Snapshot) -> str:
        """Return the fingerprint of all that the results of a snapshot depend on."""
        return fingerprint([self.settings, snapshot.measurement, snapshot.truth])

    def is_done(self, snapshot: Snapshot) -> bool:
        """Tell whether a snapshot need not be done again."""
        return self.store.is_done(snapshot.name, self.key(snapshot))

    def find_row(self, snapshot: Snapshot) -> dict[str, Any] | None:
        """Return what the table says of a snapshot; None where it was neither done nor failed."""
        found = self.store.read(snapshot.name, self.key(snapshot))
        if found is None or ("error" not in found and not self.is_done(snapshot)):
            return None
        return {"name": snapshot.name, "status": "failed" if "error" in found else "done", **found}

    def report_failure(self, snapshot: Snapshot, error: Exception) -> None:
        """Say why there are no results; keep it for the table that another process may write."""
        message = describe_failure(error)
        print(
            printable(f"cassi-reconstruct: {snapshot.name} failed: {message}"),
            file=sys.stderr,
            flush=True,
        )
        self.store.write(snapshot.name, self.key(snapshot), {"error": message}, done=False)

    def keep(self, snapshot: Snapshot) -> None:
        """Remember that the results of a snapshot are there, with what the table says of them."""
        folder = self.path(snapshot)
        numbers = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        kept = {name: numbers[name] for name in ("iterations", "seconds", "relative_residual")}
        kept |= numbers.get("metrics", {}).get(metrics.DEFAULT_PRESET, {})
        kept["warnings"] = " ".join(each["about"] for each in numbers["warnings"])
        files = [folder / name for name in (*numbers["files"], "metrics.json", SUMS)]
        self.store.write(snapshot.name, self.key(snapshot), kept, files, content=False)


class _Task(NamedTuple):
    snapshot: Snapshot
    settings: Reconstruct


class Worker:
    """Three threads: one reads the next snapshots, this one computes, one writes the last.

    A snapshot that fails leaves a line and a record that say why, and the others go on; where
    results cannot be written, that is the end of all.
    """

    def __init__(self, settings: Reconstruct, recipe: Recipe, folders: Folders) -> None:
        self.settings, self.recipe, self.folders = settings, recipe, folders

    def run(self, chunks: Iterable[Sequence[Snapshot]]) -> None:
        """Reconstruct what is not done, the snapshots of a chunk together where that is possible.

        Raises:
            OSError: results cannot be written.
        """
        with (
            ThreadPoolExecutor(1, "reader") as reader,
            ThreadPoolExecutor(1, "writer") as writer,
            closing(self._read_ahead(chunks, reader)) as loaded,
        ):
            writing: deque[Future[None]] = deque()
            for task, outcome in (pair for chunk in loaded for pair in self._compute(chunk)):
                while len(writing) >= BEHIND:
                    writing.popleft().result()
                writing.append(writer.submit(self._write, task, outcome))
            for future in writing:
                future.result()

    def _read_ahead(
        self, chunks: Iterable[Sequence[Snapshot]], reader: ThreadPoolExecutor
    ) -> Generator[list[Loaded]]:
        following: Future[list[Loaded]] | None = None
        for chunk in chunks:
            left = [snapshot for snapshot in chunk if not self.folders.is_done(snapshot)]
            if not left:
                continue
            tasks = [
                _Task(snapshot, settings_of_snapshot(self.settings, snapshot)) for snapshot in left
            ]
            current, following = following, reader.submit(self._read, tasks)
            if current is not None:
                yield current.result()
        if following is not None:
            yield following.result()

    def _read(self, tasks: Sequence[_Task]) -> list[Loaded]:
        return [(task, _attempt(read, task.settings, self.recipe)) for task in tasks]

    def _fit(self, task: _Task, inputs: Inputs) -> tuple[Inputs, Reconstructor]:
        return fit(find_camera(inputs, task.settings), self.recipe)

    def _compute(self, loaded: Sequence[Loaded]) -> Iterator[tuple[_Task, Result | Exception]]:
        groups: list[list[Fitted]] = []
        for task, inputs in loaded:
            fitted = inputs if isinstance(inputs, Exception) else _attempt(self._fit, task, inputs)
            if isinstance(fitted, Exception):
                yield task, fitted
                continue
            fits = (g for g in groups if can_share(g[0][1], fitted[0], fitted[1]))
            group = next(fits, None)
            if group is None:
                groups.append(group := [])
            group.append((task, *fitted))
        for group in groups:
            yield from self._recover(group)

    def _recover(self, group: Sequence[Fitted]) -> Iterator[tuple[_Task, Result | Exception]]:
        seed, reconstructor = self.settings.seed, group[0][2]
        more = self.settings.heldout, self.settings.uncertainty
        if len(group) > 1:
            batch = [inputs for _, inputs, _ in group]
            together = _attempt(recover_together, batch, reconstructor, seed, *more)
            if not isinstance(together, Exception):
                yield from zip((task for task, _, _ in group), together, strict=True)
                return
        for task, inputs, _ in group:
            passes = Passes(self.folders.path(task.snapshot), task.settings, inputs)
            asked = (inputs, reconstructor, seed, False, *more)
            yield task, _attempt(recover, *asked, passes=passes)

    def _write(self, task: _Task, outcome: Result | Exception) -> None:
        if isinstance(outcome, Result):
            try:
                write_results(self.folders.path(task.snapshot), task.settings, outcome)
                self.folders.keep(task.snapshot)
                forget_passes(self.folders.path(task.snapshot))
                print(
                    printable(f"{task.snapshot.name}: {results.one_line(outcome.numbers)}"),
                    flush=True,
                )
                say(outcome.numbers, printable(task.snapshot.name))
                return
            except OSError:
                raise
            except Exception as error:
                outcome = error
        self.folders.report_failure(task.snapshot, outcome)


class BlockWorker(Worker):
    """In the place of `Worker` where there is a `memory_budget`.

    One snapshot fills the memory that there may be, and is read and written in parts as it goes: so
    none is read ahead, and none shares a batch.
    """

    def run(self, chunks: Iterable[Sequence[Snapshot]]) -> None:
        """Reconstruct what is not done.

        Raises:
            OSError: results cannot be written.
        """
        for snapshot in (snapshot for chunk in chunks for snapshot in chunk):
            if self.folders.is_done(snapshot):
                continue
            print(f"{printable(snapshot.name)}:", flush=True)
            try:
                settings = settings_of_snapshot(self.settings, snapshot)
                reconstruct_in_blocks(settings, self.folders.path(snapshot), self.recipe)
                self.folders.keep(snapshot)
            except Exception as error:
                if isinstance(error, OSError) and error.errno in UNWRITABLE:
                    raise
                self.folders.report_failure(snapshot, error)


class MergeSummaries(Callback):
    """One table of a multirun whose jobs reconstructed many snapshots each.

    Ends the command with status 1 if any has failures. Nothing is done where jobs reconstructed one
    snapshot each.
    """

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Write results.csv, with the folder of the job before the columns of its table."""
        root = Path(config.hydra.sweep.dir).resolve()
        rows: list[dict[str, Any]] = []
        for path in sorted(root.rglob(SUMMARY)):
            if path.parent != root and not is_temporary(path):
                job = path.parent.relative_to(root).as_posix()
                with path.open(newline="", encoding="utf-8") as stream:
                    rows += [{"job": job, **row} for row in csv.DictReader(stream)]
        if rows and _write_table(root, rows):
            sys.exit(FAILED)


def _write_summary(folders: Folders, snapshots: Sequence[Snapshot], is_multirun: bool) -> float:
    """Write results.csv and say what it comes to; see `reconstruct_many`."""
    lost = "it was neither done nor refused; run again"
    rows = [
        folders.find_row(snapshot) or {"name": snapshot.name, "status": "failed", "error": lost}
        for snapshot in snapshots
    ]
    # A job of a multirun must not end the others; MergeSummaries ends the command.
    if _write_table(folders.root, rows, "; the same command does them again") and not is_multirun:
        sys.exit(FAILED)
    residuals = [row["relative_residual"] for row in rows if row["status"] == "done"]
    return math.fsum(residuals) / len(residuals) if residuals else float("nan")


def _write_table(root: Path, rows: Sequence[dict[str, Any]], hint: str = "") -> int:
    """Write the table of snapshots; return how many failed."""
    with atomic_path(root / SUMMARY) as temporary:
        temporary.write_text(csv_text(rows), encoding="utf-8")
    failed = sum(row["status"] != "done" for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} snapshots done -> {root}")
    if failed:
        said = f"cassi-reconstruct: {failed} of {len(rows)} snapshots failed{hint}"
        print(said, file=sys.stderr)
    return failed


def _attempt(function: Callable[..., T], *arguments: Any, **options: Any) -> T | Exception:
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


NETWORKS_ON_A_GPU = 4
"""How many snapshots `batch: auto` gives to a network at a time; what does not fit goes alone."""


def batch_size(value: Any, network: bool, device: torch.device) -> int:
    """Return how many snapshots go together.

    `auto` is 1 but for networks on a GPU: a solver fills a processor with one snapshot, and alone
    every snapshot has the bits, the residuals and the number of iterations that it has by itself.

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
