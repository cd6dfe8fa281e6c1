"""Many snapshots: jobs of an executor, and continued where they were stopped.

A job reconstructs a snapshot, or a batch of them, and writes its results. What is done stands in
the logs of the folder, under the fingerprint of settings and files; the rest is what the same
command does.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from cassi import methods, metrics
from cassi.apps import results
from cassi.apps.command import Run
from cassi.apps.errors import describe_failure
from cassi.apps.executors import LostWorker, Submit, once, run_jobs
from cassi.apps.folders import check_shares, hold
from cassi.apps.reconstruct.blocks import reconstruct_in_blocks
from cassi.apps.reconstruct.journal import Passes, forget_passes
from cassi.apps.reconstruct.snapshots import (
    Snapshot,
    find_snapshots,
    settings_of_snapshot,
)
from cassi.apps.reconstruct.summary import write_summary
from cassi.apps.reconstructors import Recipe, fingerprint_settings
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import (
    EVERY,
    fit,
    make_recipe,
    prepare,
    read,
    recover,
    say,
    write_results,
)
from cassi.checks import printable, whole_number
from cassi.data.atomic import UNWRITABLE, digest_content, size_of
from cassi.data.day_store import DayStore, prepare_store, preview_size
from cassi.data.formats.cells import Json
from cassi.data.store import Store, stamp
from cassi.links import check_parents
from cassi.methods.along_dispersion import around, inner_of
from cassi.methods.sequence import Following
from cassi.pipeline.judge import judge
from cassi.pipeline.reconstruct import responding
from cassi.pipeline.snapshot import Result
from cassi.pipeline.snapshot import Snapshot as Measured
from cassi.shares import find_share
from cassi.solvers import Iteration, Solution
from cassi.solvers.base import Reconstructor, is_sampled
from cassi.systems import System

DONE = ".done"
"""The hidden folder of what is done, in the folder of the results."""
FEW = 1000
"""Snapshots up to which each has a folder beside a store of all cubes."""
T = TypeVar("T")
Fitted = tuple[Snapshot, Measured, Reconstructor]


@dataclass(frozen=True)
class Outcome:
    """What a job says of a snapshot.

    Attributes:
        row: of the table; with `error` alone, why there are no results.
        path: of the folder of its results, or of the file that has its cube, in that of all.
        files: names and sizes in the folder.
        changed: when something last came into the folder or went, or the file was written, ns.
        said: the result in a line.
        warnings: of metrics.json.
    """

    row: Json
    path: str = ""
    files: dict[str, int] = field(default_factory=dict)
    changed: int = 0
    said: str = ""
    warnings: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class CubeStore:
    """Where the cubes of many snapshots go together.

    Attributes:
        path: of a `cassi.data.day_store.DayStore`.
        folders: each snapshot has a folder for the rest of its results.
    """

    path: Path
    folders: bool


def reconstruct_many(settings: Reconstruct, run: Run, submit: Submit | None) -> float:
    """Reconstruct every snapshot of this command's share that is not done yet.

    Args:
        settings: of the command.
        run: where results go, those of a snapshot in a folder of its own.
        submit: has snapshots done in other processes; None: this process.

    Returns:
        The mean relative residual of all that are done.

    Raises:
        SystemExit: with status 1, where some have failed and the others are done.
        OSError: there are no snapshots, or results cannot be written.
        ValueError: the settings are not fit for many.
    """
    recipe = once(make_recipe, settings)
    size = batch_size(settings.batch, network=recipe.is_network, device=recipe.device)
    share = find_share("1/1" if run.is_multirun else settings.share)
    check_shares(run.folder, share)
    snapshots, notes = find_snapshots(settings)
    for snapshot in snapshots:
        check_parents(f"{run.folder / snapshot.name}/")
    folders = Folders(run.folder, settings)
    keys = {snapshot.name: folders.key(snapshot) for snapshot in snapshots}
    own = share.take(snapshots)
    if share.count > 1:  # nobody else does this share
        (alone := run.folder / DONE / share.writer).mkdir(parents=True, exist_ok=True)
        hold(alone)
    store, records = folders.records, folders.records.all()
    left = [each for each in own if not folders.is_done(records.get(each.name), keys[each.name])]
    counted = f"{len(own)} snapshots"
    if share.count > 1:
        counted = f"share {share}, of {share.source}: {len(own)} of {len(snapshots)} snapshots"
    before = f", {len(own) - len(left)} of them done before" if len(left) < len(own) else ""
    print(*map(printable, notes), f"{counted}{before}", sep="\n", flush=True)
    batches = [left[i : i + size] for i in range(0, len(left), size)]
    cubes = _prepare_store(settings, run.folder, recipe, snapshots) if left else None
    following = _begin_sequence(recipe) if settings.sequence else None
    job = functools.partial(reconstruct_batch, settings, run.folder, cubes, following)
    for batch, found in run_jobs(submit, job, batches):
        outcomes = [_failed(found)] * len(batch) if isinstance(found, LostWorker) else found
        for snapshot, outcome in zip(batch, outcomes, strict=True):
            key = keys[snapshot.name]
            records[snapshot.name] = record = _record(key, outcome)
            store.write(snapshot.name, key, record, done="error" not in outcome.row)
            _say(snapshot, outcome)
    if share.count > 1:
        records = store.all()
    return write_summary(folders.root, records, keys, own, run.is_multirun)


class Folders:
    """Where the results of each snapshot are, and whether they are there."""

    def __init__(self, root: Path, settings: Reconstruct) -> None:
        self.root, self.settings = root, fingerprint_settings(settings)
        self.records = Store(root / DONE)

    def key(self, snapshot: Snapshot) -> str:
        """Return the fingerprint of all that the results of a snapshot depend on."""
        return digest_content([self.settings, *map(str, stamp(snapshot[1:]))])[:32]

    def is_done(self, record: Json | None, key: str) -> bool:
        """Tell whether a snapshot need not be done again.

        A folder into which nothing came since, and from which nothing went, is taken to be whole.
        """
        if record is None or record["key"] != key or "error" in record["row"]:
            return False
        path, files = self.root / record["path"], record["files"]
        try:
            if path.stat().st_mtime_ns == record["changed"]:
                return True
            return bool(files) and all(size_of(path / name) == files[name] for name in files)
        except OSError:
            return False


def reconstruct_batch(
    settings: Reconstruct,
    root: Path,
    store: CubeStore | None,
    following: Following | None,
    batch: Sequence[Snapshot],
) -> list[Outcome]:
    """Reconstruct snapshots, together where that is possible, and write their results: a job.

    Args:
        settings: of the command.
        root: results of a snapshot go into the folder of its name in this one.
        store: where cubes go instead, if anywhere.
        following: of a sequence, what reconstructs its snapshots in their order.
        batch: the snapshots.

    Returns:
        What became of each. One that fails is no exception.

    Raises:
        OSError: results cannot be written.
    """
    if settings.memory_budget is not None:
        return [_in_blocks(settings, root / each.name, each) for each in batch]
    recipe = once(make_recipe, settings)
    made = dict(_compute(settings, root, recipe, following, batch))
    return [_write(settings, root / each.name, store, each, made[each]) for each in batch]


def _begin_sequence(recipe: Recipe) -> Following:
    method, _ = recipe.make(0)  # no network: any number of bands
    return methods.Sequence(method).begin()


def _prepare_store(
    settings: Reconstruct, root: Path, recipe: Recipe, snapshots: Sequence[Snapshot]
) -> CubeStore | None:
    """Make the store that `output.cube` names, for cubes like that of the first good snapshot."""
    path = root / settings.output.cube
    if path.suffix != ".zarr" or settings.memory_budget is not None:
        return None
    if settings.output.bands != "wavelengths":
        raise ValueError("output.bands: expected wavelengths with one store for all; leave it out")
    for snapshot in snapshots:
        told = settings_of_snapshot(settings, snapshot)
        found = _attempt(lambda told: fit(read(told, recipe), recipe)[0], told)
        if not isinstance(found, Exception):
            break
    else:
        return None  # each says why
    blank = torch.zeros(found.camera.system.cube_shape[0], 1, 1)
    chosen, _, nm = results.select_bands(settings.output, blank, found.camera.wavelengths)
    shape = (len(chosen), *found.camera.system.cube_shape[1:])
    times = [Path(each.measurement).stat().st_mtime for each in snapshots]
    names = [each.name for each in snapshots]
    about = {"title": f"{len(names)} snapshots, recovered by cassi-reconstruct"}
    prepare_store(path, names, times, shape, nm, settings.uncertainty, about)
    return CubeStore(path, folders=len(names) <= FEW)


def _in_blocks(settings: Reconstruct, folder: Path, snapshot: Snapshot) -> Outcome:
    print(f"{printable(snapshot.name)}:", flush=True)
    try:
        reconstruct_in_blocks(settings_of_snapshot(settings, snapshot), folder)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise
        return _failed(error)
    return replace(_look_up(folder, snapshot), warnings=())  # they have been printed


def _compute(
    settings: Reconstruct,
    root: Path,
    recipe: Recipe,
    following: Following | None,
    batch: Sequence[Snapshot],
) -> Iterator[tuple[Snapshot, Result | Exception]]:
    groups: list[list[Fitted]] = []
    for snapshot in batch:
        fitted = _attempt(prepare, settings_of_snapshot(settings, snapshot), recipe)
        if isinstance(fitted, Exception):
            yield snapshot, fitted
            continue
        if following is not None and inner_of(fitted[1]) is following.method:  # else frames
            fitted = fitted[0], around(fitted[1], following)
        group = next((g for g in groups if can_share(g[0][1], fitted[0], fitted[1])), None)
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
        together = _attempt(recover_together, batch, reconstructor, seed, *more)
        if not isinstance(together, Exception):
            yield from zip((snapshot for snapshot, _, _ in group), together, strict=True)
            return
    for snapshot, measured, _ in group:
        passes = Passes(root / snapshot.name, settings_of_snapshot(settings, snapshot), measured)
        asked = (measured, reconstructor, seed, False, *more)
        yield snapshot, _attempt(recover, *asked, passes=passes)


def _write(
    settings: Reconstruct,
    folder: Path,
    store: CubeStore | None,
    snapshot: Snapshot,
    result: Result | Exception,
) -> Outcome:
    if isinstance(result, Exception):
        return _failed(result)
    settings = settings_of_snapshot(settings, snapshot)
    try:
        numbers = results.summarize(result)
        if store is None or store.folders:
            write_results(folder, settings, result, numbers, cubes=store is None)
        forget_passes(folder)
        if store is None:
            return _look_up(folder, snapshot)
        return _write_into(once(DayStore, store.path), settings, snapshot, result, numbers)
    except OSError:
        raise
    except Exception as error:
        return _failed(error)


def _look_up(folder: Path, snapshot: Snapshot) -> Outcome:
    """Return what stands in the folder of a snapshot that is done."""
    numbers = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    names = (*numbers["files"], "metrics.json")
    files = {name: size_of(folder / name) for name in names}
    return _outcome(numbers, snapshot.name, files, folder)


def _write_into(
    store: DayStore,
    settings: Reconstruct,
    snapshot: Snapshot,
    result: Result,
    numbers: Json,
) -> Outcome:
    """Write the cube of a snapshot, its standard deviations and a preview into a store."""
    from cassi.viz.color import srgb

    output, known, found = settings.output, result.snapshot.camera.wavelengths, result.errors
    std = None if found is None else found.std[0].float().cpu()
    cube, std, nm = results.select_bands(output, result.cube[0].float().cpu(), known, std)
    size = preview_size(*cube.shape[1:])
    small = torch.nn.functional.adaptive_avg_pool2d(cube, size)
    picture = srgb(small, nm, output.illuminant)
    store.write(snapshot.name, cube.numpy(), None if std is None else std.numpy(), picture)
    place = store.file(snapshot.name)
    path = place.relative_to(store.path.parent).as_posix()
    return _outcome(numbers, path, {}, place)


def _outcome(numbers: Json, path: str, files: dict[str, int], place: Path) -> Outcome:
    row = {name: numbers[name] for name in ("iterations", "seconds", "relative_residual")}
    row |= numbers.get("metrics", {}).get(metrics.DEFAULT_PRESET, {})
    row["warnings"] = " ".join(each["about"] for each in numbers["warnings"])
    changed = place.stat().st_mtime_ns
    return Outcome(row, path, files, changed, results.one_line(dict(numbers)), numbers["warnings"])


def _failed(error: Exception) -> Outcome:
    return Outcome({"error": describe_failure(error)})


def _record(key: str, outcome: Outcome) -> Json:
    found = {"row": outcome.row, "path": outcome.path, "files": outcome.files}
    return {"key": key, **found, "changed": outcome.changed}


def _say(snapshot: Snapshot, outcome: Outcome) -> None:
    name = printable(snapshot.name)
    if "error" in outcome.row:
        said = f"cassi-reconstruct: {name} failed: {printable(outcome.row['error'])}"
        print(said, file=sys.stderr, flush=True)
    else:
        print(f"{name}: {printable(outcome.said)}", flush=True)
        say({"warnings": outcome.warnings}, name)


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


def can_share(one: Measured, other: Measured, reconstructor: Reconstructor) -> bool:
    """Tell whether two measurements may go together: one camera, and no stop that depends on both.

    A tolerance stops when the cubes of the whole batch change little, which is another moment than
    for each.
    """
    if not reconstructor.shares_batch:
        return False
    same = one.y.shape == other.y.shape
    return same and same_camera(one.camera.system, other.camera.system)


def recover_together(
    batch: Sequence[Measured],
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
