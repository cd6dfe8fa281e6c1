"""Many snapshots: jobs of an executor, and continued where they were stopped.

A job reconstructs a snapshot, or a batch of them, and writes its results. What is done has a record
in the store of the folder, under the fingerprint of settings and files; the rest is what the same
command does.
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
from cassi.apps.executors import LostWorker, Workers, once, run_jobs
from cassi.apps.folders import check_shares, hold
from cassi.apps.reconstruct.batch import attempt, batch_size, recover_batch
from cassi.apps.reconstruct.blocks import reconstruct_in_blocks
from cassi.apps.reconstruct.journal import forget_passes
from cassi.apps.reconstruct.snapshots import Snapshot, find_snapshots, settings_of_snapshot
from cassi.apps.reconstruct.summary import write_summary
from cassi.apps.reconstructors import Recipe, fingerprint_settings
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import fit, make_recipe, read, say, write_results
from cassi.checks import printable
from cassi.data.atomic import UNWRITABLE, digest_content, size_of
from cassi.data.day_store import DayStore, prepare_store, preview_size
from cassi.data.formats.cells import Json
from cassi.data.store import Store, stamp
from cassi.links import check_parents
from cassi.methods.sequence import Following
from cassi.pipeline.snapshot import Result
from cassi.shares import find_share

DONE = ".done"
"""The hidden folder of what is done, in the folder of the results."""
FEW = 1000
"""Snapshots up to which each has a folder beside a store of all cubes."""


class Outcome(NamedTuple):
    """What a job says of a snapshot."""

    record: Json
    """Its row of the table (of a failure an error alone); the path of its folder, or of the file
    that has its cube in a store of all, and when that changed, ns; names and sizes of its files."""
    said: str = ""
    warnings: Sequence[Mapping[str, str]] = ()


class CubeStore(NamedTuple):
    """Where the cubes of many snapshots go together, and whether each has a folder for the rest."""

    path: Path
    folders: bool


def reconstruct_many(settings: Reconstruct, run: Run, workers: Workers | None) -> float:
    """Reconstruct every snapshot of this command's share that is not done yet.

    Returns:
        The mean relative residual of all that are done.

    Raises:
        SystemExit: with status 1, where some have failed and the others are done.
    """
    recipe = once(make_recipe, settings)
    size = batch_size(settings.batch, network=recipe.is_network, device=recipe.device)
    share = find_share("1/1" if run.is_multirun else settings.share)
    check_shares(run.folder, share)
    snapshots, notes = find_snapshots(settings)
    for snapshot in snapshots:
        check_parents(f"{run.folder / snapshot.name}/")
    own, store = share.take(snapshots), Store(run.folder / DONE)
    if share.count > 1:  # nobody else does this share
        (alone := store.root / share.writer).mkdir(parents=True, exist_ok=True)
        hold(alone)
    about, records = fingerprint_settings(settings), store.all()
    keys = {each.name: _fingerprint(about, each) for each in snapshots}
    left = [
        each for each in own if not _is_done(run.folder, records.get(each.name), keys[each.name])
    ]
    counted = f"{len(own)} snapshots"
    if share.count > 1:
        counted = f"share {share}, of {share.source}: {len(own)} of {len(snapshots)} snapshots"
    before = f", {len(own) - len(left)} of them done before" if len(left) < len(own) else ""
    print(*map(printable, notes), f"{counted}{before}", sep="\n", flush=True)
    batches = [left[i : i + size] for i in range(0, len(left), size)]
    cubes = _prepare_store(settings, run.folder, recipe, snapshots) if left else None
    following = _begin_sequence(recipe) if settings.sequence else None
    job = functools.partial(reconstruct_batch, settings, run.folder, cubes, following)
    for batch, found in run_jobs(workers, job, batches):
        outcomes = [_failed(found)] * len(batch) if isinstance(found, LostWorker) else found
        for snapshot, outcome in zip(batch, outcomes, strict=True):
            key = keys[snapshot.name]
            records[snapshot.name] = record = {"key": key, **outcome.record}
            store.write(snapshot.name, key, record, done="error" not in record["row"])
            _say(snapshot, outcome)
    if share.count > 1:
        records = store.all()
    return write_summary(run.folder, records, keys, own, run.is_multirun)


def _fingerprint(about: str, snapshot: Snapshot) -> str:
    """Return the fingerprint of all that the results of a snapshot depend on."""
    return digest_content([about, *map(str, stamp(snapshot[1:]))])[:32]


def _is_done(root: Path, record: Json | None, key: str) -> bool:
    """Tell whether a snapshot need not be done again.

    A folder into which nothing came since, and from which nothing went, is taken to be whole.
    """
    if record is None or record["key"] != key or "error" in record["row"]:
        return False
    path, files = root / record["path"], record["files"]
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

    Results go into folders below `root`, cubes into the store, if there is one. `following` has the
    snapshots of a sequence in their order. One that fails is an outcome; OSError says that results
    cannot be written.
    """
    if settings.memory_budget is not None:
        return [_in_blocks(settings, root, each) for each in batch]
    recipe = once(make_recipe, settings)
    made = dict(recover_batch(settings, root, recipe, following, batch))
    return [_write(settings, root, store, each, made[each]) for each in batch]


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
        found = attempt(lambda told: fit(read(told, recipe), recipe)[0], told)
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


def _in_blocks(settings: Reconstruct, root: Path, snapshot: Snapshot) -> Outcome:
    print(f"{printable(snapshot.name)}:", flush=True)
    try:
        reconstruct_in_blocks(settings_of_snapshot(settings, snapshot), root / snapshot.name)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise
        return _failed(error)
    return _look_up(root, snapshot)._replace(warnings=())  # they have been printed


def _write(
    settings: Reconstruct,
    root: Path,
    store: CubeStore | None,
    snapshot: Snapshot,
    result: Result | Exception,
) -> Outcome:
    if isinstance(result, Exception):
        return _failed(result)
    settings, folder = settings_of_snapshot(settings, snapshot), root / snapshot.name
    try:
        numbers = results.summarize(result)
        if store is None or store.folders:
            write_results(folder, settings, result, numbers, cubes=store is None)
        forget_passes(folder)
        if store is None:
            return _look_up(root, snapshot)
        return _write_into(once(DayStore, store.path), settings, snapshot, result, numbers)
    except OSError:
        raise
    except Exception as error:
        return _failed(error)


def _look_up(root: Path, snapshot: Snapshot) -> Outcome:
    """Return what stands in the folder of a snapshot that is done."""
    folder = root / snapshot.name
    numbers = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    names = (*numbers["files"], "metrics.json")
    return _succeeded(numbers, snapshot.name, folder, {n: size_of(folder / n) for n in names})


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
    return _succeeded(numbers, path, place, {})


def _succeeded(numbers: Json, path: str, place: Path, files: dict[str, int]) -> Outcome:
    row = {name: numbers[name] for name in ("iterations", "seconds", "relative_residual")}
    row |= numbers.get("metrics", {}).get(metrics.DEFAULT_PRESET, {})
    row["warnings"] = " ".join(each["about"] for each in numbers["warnings"])
    record = {"row": row, "path": path, "files": files, "changed": place.stat().st_mtime_ns}
    return Outcome(record, results.one_line(numbers), numbers["warnings"])


def _failed(error: Exception) -> Outcome:
    return Outcome({"row": {"error": describe_failure(error)}})


def _say(snapshot: Snapshot, outcome: Outcome) -> None:
    name, row = printable(snapshot.name), outcome.record["row"]
    if "error" in row:
        said = f"cassi-reconstruct: {name} failed: {printable(row['error'])}"
        print(said, file=sys.stderr, flush=True)
    else:
        print(f"{name}: {printable(outcome.said)}", flush=True)
        say({"warnings": outcome.warnings}, name)
