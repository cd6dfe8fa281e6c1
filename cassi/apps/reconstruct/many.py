"""Reconstruct many snapshots as jobs, and continue a command that was stopped.

A job reconstructs a snapshot, or a batch of them, and writes its results. Each finished snapshot
has a record in the store of the folder, with the fingerprint of its settings and files. The same
command, given again, reconstructs the snapshots without such a record.
"""

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from cassi import methods, metrics
from cassi.apps import results
from cassi.apps.command import Run
from cassi.apps.errors import describe_failure
from cassi.apps.executors import AnyWorkers, LostWorker, make_once, run_jobs
from cassi.apps.folders import check_shares, lock_folder
from cassi.apps.reconstruct.batch import attempt, batch_size, recover_batch
from cassi.apps.reconstruct.blocks import reconstruct_in_blocks
from cassi.apps.reconstruct.journal import forget_passes
from cassi.apps.reconstruct.snapshots import SnapshotFiles, find_snapshots, settings_of_snapshot
from cassi.apps.reconstruct.summary import write_summary
from cassi.apps.reconstructors import Recipe, fingerprint_settings
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import fit, make_recipe, print_findings, read, write_results
from cassi.checks import printable
from cassi.data.atomic import UNWRITABLE, digest_content, size_of
from cassi.data.day_store import DayStore, prepare_store, preview_size
from cassi.data.formats.cells import Json
from cassi.data.store import Store, describe_inputs
from cassi.links import check_parents
from cassi.methods.sequence import SequenceReconstructor
from cassi.pipeline.snapshot import Result
from cassi.pipeline.snapshot import Snapshot as LoadedSnapshot
from cassi.shares import find_share

STORE_FOLDER = ".done"
"""Hidden folder in the folder of the results; it holds the store of the records."""
MAX_FOLDERS = 1000
"""Largest number of snapshots that get a folder each if their cubes are in one store.

With more snapshots, only the store is written: folders would add several small files per snapshot.
"""


class Outcome(NamedTuple):
    """The record that a job makes for a snapshot, with the texts to print."""

    record: Json
    """`row` is the row of the table; after a failure it holds the key `error` alone. `path` is the
    folder of the results, or the file of the cube in a store. `changed` is the time of the last
    change of that path, ns. `files` has names and sizes of the files in the folder."""
    summary: str = ""
    warnings: Sequence[Mapping[str, str]] = ()


class CubeStore(NamedTuple):
    """One store for the cubes of all snapshots."""

    path: Path
    has_folders: bool
    """Whether each snapshot also has a folder, for its pictures and tables."""


def reconstruct_many(settings: Reconstruct, run: Run, workers: AnyWorkers) -> float:
    """Reconstruct every snapshot of this command's share that is not finished yet.

    Returns:
        The mean relative residual of all finished snapshots.

    Raises:
        SystemExit: with status 1, after all snapshots, if one of them failed.
    """
    recipe = make_once(make_recipe, settings)
    size = batch_size(settings.batch, network=recipe.is_network, device=recipe.device)
    share = find_share("1/1" if run.is_multirun else settings.share)
    check_shares(run.folder, share)
    snapshots, notes = find_snapshots(settings)
    # If a folder of results were a link, the results would go elsewhere. All folders are checked
    # now, before hours of work.
    for snapshot in snapshots:
        check_parents(f"{run.folder / snapshot.name}/")
    share_snapshots, store = share.take(snapshots), Store(run.folder / STORE_FOLDER)
    if share.count > 1:
        # The lock keeps a second command from computing the same share at the same time.
        (share_folder := store.root / share.writer).mkdir(parents=True, exist_ok=True)
        lock_folder(share_folder)
    settings_key, records = fingerprint_settings(settings), store.read_all()
    keys = {snapshot.name: _fingerprint(settings_key, snapshot) for snapshot in snapshots}
    remaining_snapshots = [
        snapshot
        for snapshot in share_snapshots
        if not _is_done(run.folder, records.get(snapshot.name), keys[snapshot.name])
    ]
    n_share, n_finished = len(share_snapshots), len(share_snapshots) - len(remaining_snapshots)
    count_text = f"{n_share} snapshots"
    if share.count > 1:
        count_text = f"share {share}, of {share.source}: {n_share} of {len(snapshots)} snapshots"
    finished_text = f", {n_finished} of them done before" if n_finished else ""
    print(*map(printable, notes), f"{count_text}{finished_text}", sep="\n", flush=True)
    batches = [remaining_snapshots[i : i + size] for i in range(0, len(remaining_snapshots), size)]
    cubes = _prepare_store(settings, run.folder, recipe, snapshots) if remaining_snapshots else None
    sequence = _start_sequence(recipe) if settings.sequence else None
    job = functools.partial(reconstruct_batch, settings, run.folder, cubes, sequence)
    for batch, outcomes in run_jobs(workers, job, batches):
        if isinstance(outcomes, LostWorker):
            outcomes = [_failed_outcome(outcomes)] * len(batch)
        for snapshot, outcome in zip(batch, outcomes, strict=True):
            key = keys[snapshot.name]
            records[snapshot.name] = record = {"key": key, **outcome.record}
            store.write(snapshot.name, key, record, is_result="error" not in record["row"])
            _print_outcome(snapshot, outcome)
    if share.count > 1:
        # Other commands have written records of their shares in the meantime.
        records = store.read_all()
    return write_summary(run.folder, records, keys, share_snapshots, run.is_multirun)


def _fingerprint(settings_key: str, snapshot: SnapshotFiles) -> str:
    """Return the fingerprint of all that the results of a snapshot depend on."""
    return digest_content([settings_key, *map(str, describe_inputs(snapshot[1:]))])[:32]


def _is_done(root: Path, record: Json | None, key: str) -> bool:
    """Tell whether the results of a snapshot are finished and still in their place."""
    if record is None or record["key"] != key or "error" in record["row"]:
        return False
    path, files = root / record["path"], record["files"]
    try:
        # A folder gets a new time of change when a file is added or removed. So one system call for
        # the folder is enough, and its files need none.
        if path.stat().st_mtime_ns == record["changed"]:
            return True
        return bool(files) and all(size_of(path / name) == files[name] for name in files)
    except OSError:
        return False


def reconstruct_batch(
    settings: Reconstruct,
    root: Path,
    store: CubeStore | None,
    sequence: SequenceReconstructor | None,
    batch: Sequence[SnapshotFiles],
) -> list[Outcome]:
    """Reconstruct a batch of snapshots and write their results; this is a job.

    A snapshot that fails gets an outcome with its error.

    Args:
        settings: settings of the command.
        root: folder of the results; each snapshot has a folder in it.
        store: the store of all cubes. If None, each cube is a file in the folder of its snapshot.
        sequence: reconstructs the snapshots of a sequence in their order; None if there is no
            sequence.
        batch: the snapshots.

    Raises:
        OSError: the results cannot be written.
    """
    if settings.memory_budget is not None:
        return [_reconstruct_in_blocks(settings, root, snapshot) for snapshot in batch]
    recipe = make_once(make_recipe, settings)
    results_by_snapshot = dict(recover_batch(settings, root, recipe, sequence, batch))
    return [
        _write_result(settings, root, store, snapshot, results_by_snapshot[snapshot])
        for snapshot in batch
    ]


def _start_sequence(recipe: Recipe) -> SequenceReconstructor:
    # A sequence cannot use a network, and a solver does not depend on the number of bands. So any
    # number will do.
    method, _ = recipe.make(0)
    return methods.Sequence(method).begin()


def _prepare_store(
    settings: Reconstruct, root: Path, recipe: Recipe, snapshots: Sequence[SnapshotFiles]
) -> CubeStore | None:
    """Make the store that `output.cube` names, or return None if it names a file.

    The cubes of the store have the shape and wavelengths of the first snapshot that can be read.
    """
    path = root / settings.output.cube
    if path.suffix != ".zarr" or settings.memory_budget is not None:
        return None
    if settings.output.bands != "wavelengths":
        raise ValueError("output.bands: expected wavelengths with one store for all; leave it out")

    def load(files: SnapshotFiles) -> LoadedSnapshot:
        return fit(read(settings_of_snapshot(settings, files), recipe), recipe)[0]

    for files in snapshots:
        first_loaded = attempt(load, files)
        if not isinstance(first_loaded, Exception):
            break
    else:
        return None  # no snapshot can be read; the job of each prints why
    bands, height, width = first_loaded.camera.system.cube_shape
    blank = torch.zeros(bands, 1, 1)
    selected_bands, _, nm = results.select_bands(
        settings.output, blank, first_loaded.camera.wavelengths
    )
    shape = (len(selected_bands), height, width)
    times = [Path(snapshot.measurement).stat().st_mtime for snapshot in snapshots]
    names = [snapshot.name for snapshot in snapshots]
    attributes = {"title": f"{len(names)} snapshots, recovered by cassi-reconstruct"}
    prepare_store(path, names, times, shape, nm, settings.has_error_bars, attributes)
    return CubeStore(path, has_folders=len(names) <= MAX_FOLDERS)


def _reconstruct_in_blocks(settings: Reconstruct, root: Path, snapshot: SnapshotFiles) -> Outcome:
    print(f"{printable(snapshot.name)}:", flush=True)
    try:
        reconstruct_in_blocks(settings_of_snapshot(settings, snapshot), root / snapshot.name)
    except Exception as error:
        # A full disk would fail every snapshot after this one too, so it ends the command.
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise
        return _failed_outcome(error)
    # `reconstruct_in_blocks` has printed the warnings.
    return _read_outcome(root, snapshot)._replace(warnings=())


def _write_result(
    settings: Reconstruct,
    root: Path,
    store: CubeStore | None,
    snapshot: SnapshotFiles,
    result: Result | Exception,
) -> Outcome:
    if isinstance(result, Exception):
        return _failed_outcome(result)
    settings, folder = settings_of_snapshot(settings, snapshot), root / snapshot.name
    try:
        numbers = results.summarize(result)
        if store is None or store.has_folders:
            write_results(folder, settings, result, numbers, cubes=store is None)
        forget_passes(folder)
        if store is None:
            return _read_outcome(root, snapshot)
        return _write_into_store(
            make_once(DayStore, store.path), settings, snapshot, result, numbers
        )
    except OSError:
        raise  # a full disk would fail every snapshot after this one too
    except Exception as error:
        return _failed_outcome(error)


def _read_outcome(root: Path, snapshot: SnapshotFiles) -> Outcome:
    """Return the outcome of a snapshot, read from the files in its folder."""
    folder = root / snapshot.name
    numbers = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    names = (*numbers["files"], "metrics.json")
    return _success_outcome(numbers, snapshot.name, folder, {n: size_of(folder / n) for n in names})


def _write_into_store(
    store: DayStore,
    settings: Reconstruct,
    snapshot: SnapshotFiles,
    result: Result,
    numbers: Json,
) -> Outcome:
    """Write the cube of a snapshot, its standard deviations and a preview into a store."""
    from cassi.viz.color import srgb

    output, wavelengths, uncertainty = (
        settings.output,
        result.snapshot.camera.wavelengths,
        result.errors,
    )
    std = None if uncertainty is None else uncertainty.std[0].float().cpu()
    cube, std, nm = results.select_bands(output, result.cube[0].float().cpu(), wavelengths, std)
    size = preview_size(*cube.shape[1:])
    preview = torch.nn.functional.adaptive_avg_pool2d(cube, size)
    picture = srgb(preview, nm, output.illuminant)
    store.write(snapshot.name, cube.numpy(), None if std is None else std.numpy(), picture)
    file = store.file(snapshot.name)
    path = file.relative_to(store.path.parent).as_posix()
    return _success_outcome(numbers, path, file, {})


def _success_outcome(numbers: Json, path: str, result_path: Path, files: dict[str, int]) -> Outcome:
    row = {name: numbers[name] for name in ("iterations", "seconds", "relative_residual")}
    row |= numbers.get("metrics", {}).get(metrics.DEFAULT_PRESET, {})
    row["warnings"] = " ".join(warning["about"] for warning in numbers["warnings"])
    record = {"row": row, "path": path, "files": files, "changed": result_path.stat().st_mtime_ns}
    return Outcome(record, results.format_result(numbers), numbers["warnings"])


def _failed_outcome(error: Exception) -> Outcome:
    return Outcome({"row": {"error": describe_failure(error)}})


def _print_outcome(snapshot: SnapshotFiles, outcome: Outcome) -> None:
    name, row = printable(snapshot.name), outcome.record["row"]
    if "error" in row:
        message = f"cassi-reconstruct: {name} failed: {printable(row['error'])}"
        print(message, file=sys.stderr, flush=True)
    else:
        print(f"{name}: {printable(outcome.summary)}", flush=True)
        print_findings({"warnings": outcome.warnings}, name)
