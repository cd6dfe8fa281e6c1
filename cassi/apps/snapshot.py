"""One snapshot as settings ask for it: read, find the camera, reconstruct, judge, write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from cassi import metrics
from cassi.apps import results
from cassi.apps.camera.guide import add_guide
from cassi.apps.camera.response import read_unit
from cassi.apps.command import announce, choose_device
from cassi.apps.inputs import load_snapshot, name_scene
from cassi.apps.printing import is_quiet, marked
from cassi.apps.reconstructors import Recipe, build_solver
from cassi.apps.results import describe_solve
from cassi.apps.settings import UNCERTAINTY, Reconstruct, Snapshots
from cassi.data.atomic import atomic_folder
from cassi.data.formats.cells import Json
from cassi.data.io import Loaded, write_cube
from cassi.methods.along_dispersion import AlongDispersion
from cassi.pipeline import find
from cassi.pipeline.find import aligned, calibrated
from cassi.pipeline.fit import fit as fit_method
from cassi.pipeline.judge import judge
from cassi.pipeline.reconstruct import reconstruct
from cassi.pipeline.snapshot import Result, Snapshot
from cassi.solvers import Iteration
from cassi.solvers.base import Callback, Reconstructor, is_sampled, wants_cube
from cassi.systems.grid import Grid

if TYPE_CHECKING:
    from cassi.apps.reconstruct.journal import Passes

EVERY = 10
"""Iterations from one objective and PSNR to the next; each takes as long as an iteration."""


def make_recipe(settings: Reconstruct) -> Recipe:
    """Return what settings reconstruct with, on the device of this process."""
    return Recipe(settings, choose_device(settings.device))


def read(
    settings: Reconstruct, recipe: Recipe, loaded: Mapping[str, Loaded] | None = None
) -> Snapshot:
    """Read the files of one snapshot, but for those that are `loaded`; see `load_snapshot`."""
    return load_snapshot(settings, recipe.device, recipe.bands, loaded)


def find_camera_by_settings(snapshot: Snapshot, settings: Reconstruct) -> Snapshot:
    """Return the snapshot by the camera that reconstructs it; see `cassi.pipeline.find`.

    `calibrate=true` finds mask and bands, `align=true` moves the mask where the measurement is
    sure. A guide's picture is put beside it. All need the whole measurement in memory.
    """
    if settings.response is not None:
        snapshot = snapshot.by(unit=read_unit(snapshot, settings))
    step = guide = None
    if settings.calibrate:
        step = calibrating(settings, announce("calibrate", settings.output.progress))
    elif settings.align and settings.memory_budget is None:
        step = aligned
    if settings.guide.file is not None:
        guide = partial(add_guide, settings=settings.guide)
    return find.find_camera(snapshot, step, guide)


def calibrating(
    settings: Snapshots, watch: Callable[[str], None], **asked: Any
) -> Callable[[Snapshot], Snapshot]:
    """Return what calibrates the camera of a snapshot: for cassi-calibrate and `calibrate=true`.

    `watch` is told what is being tried; `asked` are arguments of `cassi.pipeline.calibrated`.
    """
    solver = (
        None if isinstance(settings, Reconstruct) and settings.model else build_solver(settings)
    )
    told = {"solver": solver, "seed": settings.seed, "watch": watch, **asked}
    return partial(calibrated, **told)


def prepare(
    settings: Reconstruct, recipe: Recipe, loaded: Mapping[str, Loaded] | None = None
) -> tuple[Snapshot, Reconstructor]:
    """Go the way of a snapshot until it can be reconstructed: read, find the camera, fit."""
    return fit(find_camera_by_settings(read(settings, recipe, loaded), settings), recipe)


def fit(snapshot: Snapshot, recipe: Recipe) -> tuple[Snapshot, Reconstructor]:
    """Return the snapshot and the method for it; see `cassi.pipeline.fit`."""
    settings = recipe.settings
    snapshot, method = fit_method(snapshot, recipe)
    # Before minutes of work, not after them.
    camera = snapshot.camera
    if settings.output.bands == "dispersion":
        _check_dispersion(settings, method.grid if isinstance(method, AlongDispersion) else None)
    bands, *size = camera.system.cube_shape
    results.select_bands(settings.output, torch.zeros(bands, 1, 1), camera.wavelengths)
    if settings.output.points is not None:
        from cassi.viz.checks import as_points

        try:
            as_points(settings.output.points, *size)
        except ValueError as error:
            raise ValueError(f"output.points: {error}") from None
    return snapshot, method


def _check_dispersion(settings: Reconstruct, grid: Grid | None) -> None:
    """Refuse a cube along the dispersion where there is none, or where it has no unit or bars."""
    if grid is None:
        raise ValueError(
            "output.bands: expected wavelengths, the bands of this camera are those along the "
            "dispersion; light=all says that light comes in all wavelengths"
        )
    asked = {
        "output.unit": settings.output.unit is not None,
        "output.wavelengths": settings.output.wavelengths is not None,
        "uncertainty": settings.uncertainty,
    }
    if given := [name for name, is_asked in asked.items() if is_asked]:
        raise ValueError(f"{given[0]}: expected none with output.bands=dispersion; leave one out")


def recover(
    snapshot: Snapshot,
    method: Reconstructor,
    seed: int,
    visible: bool,
    heldout: float | None = None,
    uncertainty: bool = False,
    watch: Callback | None = None,
    passes: Passes | None = None,
) -> Result:
    """Reconstruct a snapshot and judge the result.

    Args:
        snapshot: the measurement and its camera.
        method: as `fit` gives it.
        seed: of what the method draws.
        visible: show a progress bar.
        heldout: share of the pixels to predict in one more reconstruction.
        uncertainty: estimate the standard deviation of every value.
        watch: is called with every iteration and its cube; what it raises ends the reconstruction.
        passes: keeps the result of every pass of a solver, and has that of an earlier run.
    """
    progress = Progress(snapshot, method.iterations, visible, watch)
    if passes is not None:
        passes.rows = progress.rows
    with progress.bar:
        result = reconstruct(
            snapshot, method, seed, callback=progress, objective=EVERY, checkpoint=passes
        )
    if result.solution.reason == "diverged":
        print(
            "warning: stopped before values became infinite; see convergence.csv", file=sys.stderr
        )
    return judge(replace(result, rows=progress.rows), seed, heldout, uncertainty)


def write_results(
    folder: Path,
    settings: Reconstruct,
    result: Result,
    numbers: Json,
    *,
    cubes: bool = True,
    more: Callable[[Path], None] | None = None,
) -> None:
    """Write cube, convergence, pictures and metrics, all or none.

    metrics.json names the files of its run: what else lies in the folder is not touched.
    Without `cubes` the cube is elsewhere. `more` writes further files into the folder it is given,
    where they appear with these.
    """
    camera, output, found = result.snapshot.camera, settings.output, result.errors
    cube, truth = result.cube[0].cpu(), result.truth
    bars = None if found is None else results.Bars(cube, found.std[0].cpu(), found.pattern[0].cpu())
    name = name_scene(settings, "bundled scene")
    if output.bands == "dispersion":
        numbers = numbers | {"bands": "dispersion"}
    with atomic_folder(folder) as stage:
        if cubes:
            _write_cubes(stage, settings, result)
        results.write_table(stage / "convergence.csv", result.rows)
        results.save_pictures(
            *(stage, output, name, cube, camera.wavelengths),
            *(None if truth is None else truth[0], numbers, bars),
            along=result.solution.along,
        )
        if more is not None:
            more(stage)
        results.write_numbers(stage / "metrics.json", numbers)


def _write_cubes(folder: Path, settings: Reconstruct, result: Result) -> None:
    """Write the cube on the bands that are asked for, and its standard deviations."""
    output, known = settings.output, result.snapshot.camera.wavelengths
    std = None if result.errors is None else result.errors.std[0].cpu()
    cube, std, nm = results.select_bands(output, result.cube[0].cpu(), known, std)
    along = result.solution.along
    if output.bands == "dispersion" and along is not None:
        cube = along.x[0].cpu()
        nm = None if known is None else along.grid.wavelengths(known)
    write_cube(folder / output.cube, cube, nm)
    if std is not None:
        write_cube(folder / UNCERTAINTY, std, nm)


class Progress:
    """Shows residual and PSNR on a progress bar and keeps the rows of convergence.csv.

    `watch` is called with every iteration and its cube as well.
    """

    def __init__(
        self, snapshot: Snapshot, iterations: int, visible: bool, watch: Callback | None = None
    ) -> None:
        self.rows: list[Json] = []
        self.shown: dict[str, str] = {}
        self.watch, self.last = watch, iterations
        self.system, self.level, self.truth = snapshot.camera.system, snapshot.level, None
        if snapshot.truth is not None:
            self.truth = snapshot.truth.to(snapshot.y.device) / snapshot.level
        # A log file gets a line now and then, a terminal a moving bar.
        pause = 0.1 if sys.stderr.isatty() else 10.0
        self.bar = tqdm(
            total=iterations, unit="it", disable=not visible or is_quiet(), mininterval=pause
        )

    def wants(self, iteration: Iteration) -> bool:
        """Return whether the cube is looked at: for its PSNR, or by `watch`."""
        if self.truth is not None and is_sampled(iteration.index, EVERY, self.last):
            return True
        return self.watch is not None and wants_cube(self.watch, iteration)

    def __call__(self, iteration: Iteration, x: Tensor | None) -> None:
        """Record one iteration; the callback of the solver."""
        row: Json = {
            "iteration": iteration.index,
            "residual": iteration.residual,
            "seconds": iteration.seconds,
            "change": iteration.change,
            "sigma": iteration.sigma,
            "objective": iteration.objective,  # None, an empty field, where it was not asked for
        }
        self.shown["residual"] = f"{iteration.residual:.2e}"
        solve = describe_solve(self.system)
        if solve is not None:  # None from the first iteration on, or never
            row["inner_iterations"] = solve["iterations"]
            row["inner_residual"] = solve["relative_residual"]
        if (
            x is not None
            and self.truth is not None
            and is_sampled(iteration.index, EVERY, self.last)
        ):
            row["psnr"] = metrics.psnr(x / self.level, self.truth).mean().item()
            self.shown["PSNR"] = f"{row['psnr']:.2f} dB"
        self.rows.append(row)
        self.bar.set_postfix(self.shown, refresh=False)
        self.bar.update(iteration.index - self.bar.n)  # an earlier run may have done some
        if self.watch is not None:
            self.watch(iteration, x)


def say(numbers: Json, name: str = "") -> None:
    """Print the note, and the warnings as such.

    Of one of many snapshots, which then has a name, there is no note.
    """
    before = f"{name}: " if name else ""
    if not name and numbers["camera_check"]["note"]:
        print(f"camera check: {numbers['camera_check']['note']}")
    sys.stdout.flush()
    for each in numbers["warnings"]:
        print(
            f"{marked('warning')} {before}{each['about']}: {each['message']}",
            file=sys.stderr,
            flush=True,
        )
