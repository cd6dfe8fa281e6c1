"""Run the steps of the pipeline on one snapshot, as the settings of a command say."""

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
from cassi.apps.answers.files import (
    answer_questions,
    describe_answers,
    questions_for,
    write_answers,
)
from cassi.apps.camera.guide import add_guide
from cassi.apps.camera.response import read_unit
from cassi.apps.command import choose_device, make_progress_printer
from cassi.apps.inputs import load_snapshot, name_scene
from cassi.apps.printing import color_label, is_quiet
from cassi.apps.reconstructors import Recipe, build_solver
from cassi.apps.results import describe_solve
from cassi.apps.settings import UNCERTAINTY, Reconstruct, Snapshots
from cassi.data.atomic import atomic_folder
from cassi.data.formats.cells import Json
from cassi.data.io import LoadedArray, write_cube
from cassi.methods.along_dispersion import AlongDispersion
from cassi.pipeline import find
from cassi.pipeline.find import align_snapshot, calibrate_snapshot
from cassi.pipeline.fit import fit as fit_method
from cassi.pipeline.judge import JudgeOptions, judge
from cassi.pipeline.reconstruct import reconstruct
from cassi.pipeline.snapshot import Result, Snapshot
from cassi.solvers import Iteration
from cassi.solvers.base import Callback, Reconstructor, is_sampled, wants_cube
from cassi.systems.grid import SpectralGrid
from cassi.uncertainty.answers import Answer

if TYPE_CHECKING:
    from cassi.apps.reconstruct.journal import Passes

SAMPLING_INTERVAL = 10
"""Iterations between two values of objective and PSNR. Each value takes as long as an iteration."""
DEFAULT_SAMPLES = 16
"""Number of samples that answer questions if the settings state none."""


def make_recipe(settings: Reconstruct) -> Recipe:
    """Return the recipe of settings, on the device of this process."""
    return Recipe(settings, choose_device(settings.device))


def read(
    settings: Reconstruct, recipe: Recipe, files_by_role: Mapping[str, LoadedArray] | None = None
) -> Snapshot:
    """Read the files of one snapshot, except for `files_by_role`; see `load_snapshot`."""
    return load_snapshot(settings, recipe.device, recipe.bands, files_by_role)


def find_camera_by_settings(snapshot: Snapshot, settings: Reconstruct) -> Snapshot:
    """Return the snapshot with the camera that reconstructs it; see `cassi.pipeline.find`.

    `calibrate=true` estimates mask and dispersion. `align=true` moves the mask to its estimated
    alignment. If the settings name a guide, the camera gets it. All three steps need the whole
    measurement in memory.
    """
    if settings.response is not None:
        snapshot = snapshot.with_camera(unit=read_unit(snapshot, settings))
    # A calibration estimates the alignment too, so `align` is ignored beside `calibrate`. In blocks
    # the mask stays where the file has it.
    step = guide = None
    if settings.calibrate:
        step = make_calibration(
            settings, make_progress_printer("calibrate", settings.output.progress)
        )
    elif settings.align and settings.memory_budget is None:
        step = align_snapshot
    if settings.guide.file is not None:
        guide = partial(add_guide, settings=settings.guide)
    return find.find_camera(snapshot, step, guide)


def make_calibration(
    settings: Snapshots, watch: Callable[[str], None], **options: Any
) -> Callable[[Snapshot], Snapshot]:
    """Return a function that calibrates the camera of a snapshot.

    Args:
        settings: settings of cassi-calibrate, or of cassi-reconstruct with `calibrate=true`.
        watch: function that is called with a text on each step.
        options: arguments of `cassi.pipeline.find.calibrated`.
    """
    # A network cannot be the solver of a calibration. None lets it take its default solver.
    solver = (
        None if isinstance(settings, Reconstruct) and settings.model else build_solver(settings)
    )
    arguments = {"solver": solver, "seed": settings.seed, "watch": watch, **options}
    return partial(calibrate_snapshot, **arguments)


def prepare(
    settings: Reconstruct, recipe: Recipe, files_by_role: Mapping[str, LoadedArray] | None = None
) -> tuple[Snapshot, Reconstructor]:
    """Read a snapshot, find its camera and make the method for it."""
    return fit(find_camera_by_settings(read(settings, recipe, files_by_role), settings), recipe)


def fit(snapshot: Snapshot, recipe: Recipe) -> tuple[Snapshot, Reconstructor]:
    """Return the snapshot and the method for it; see `cassi.pipeline.fit`."""
    settings = recipe.settings
    snapshot, method = fit_method(snapshot, recipe)
    # Options of the output that do not fit are refused here, before minutes of work.
    camera = snapshot.camera
    if settings.output.bands == "dispersion":
        _check_dispersion(settings, method.grid if isinstance(method, AlongDispersion) else None)
    bands, *size = camera.system.cube_shape
    results.select_bands(settings.output, torch.zeros(bands, 1, 1), camera.wavelengths)
    if settings.answers is not None:
        questions_for(Path(settings.answers), camera, torch.ones(bands, *size))
    if settings.output.points is not None:
        from cassi.viz.checks import as_points

        try:
            as_points(settings.output.points, *size)
        except ValueError as error:
            raise ValueError(f"output.points: {error}") from None
    return snapshot, method


def _check_dispersion(settings: Reconstruct, grid: SpectralGrid | None) -> None:
    """Raise ValueError if the output cannot be the cube along the dispersion."""
    if grid is None:
        raise ValueError(
            "output.bands: expected wavelengths, this camera's own bands are those along the "
            "dispersion; light=all states broadband light, which has a spectral grid"
        )
    # Response, wavelengths and error bars are known for each band of the camera only.
    is_set_by_name = {
        "output.unit": settings.output.unit is not None,
        "output.wavelengths": settings.output.wavelengths is not None,
        "uncertainty": settings.uncertainty,
    }
    if set_names := [name for name, is_set in is_set_by_name.items() if is_set]:
        raise ValueError(
            f"{set_names[0]}: expected none with output.bands=dispersion; leave one out"
        )


def reconstruct_and_judge(
    snapshot: Snapshot,
    method: Reconstructor,
    seed: int,
    show_progress: bool,
    options: JudgeOptions | None = None,
    watch: Callback | None = None,
    passes: Passes | None = None,
) -> Result:
    """Reconstruct a snapshot and judge the result.

    Args:
        snapshot: the measurement and its camera.
        method: the reconstructor that `fit` returns.
        seed: seed of the random numbers of the method.
        show_progress: show a progress bar.
        options: what to estimate of the result, see `choose_judge_options`.
        watch: function that is called with every iteration and its cube. If it raises an exception,
            the reconstruction ends.
        passes: checkpoint of a solver of several passes.

    Raises:
        ValueError: camera and method do not fit, or no value of the cube is finite.
    """
    progress = Progress(snapshot, method.iterations, show_progress, watch)
    if passes is not None:
        passes.rows = progress.rows
    with progress.bar:
        result = reconstruct(
            snapshot,
            method,
            seed,
            callback=progress,
            objective=SAMPLING_INTERVAL,
            checkpoint=passes,
        )
    if result.solution.reason == "diverged":
        print(
            "warning: stopped before values became infinite; see convergence.csv", file=sys.stderr
        )
    return judge(replace(result, rows=progress.rows), seed, options)


def choose_judge_options(settings: Reconstruct) -> JudgeOptions:
    """Return what the settings want to know of a result; answers need samples."""
    samples = settings.samples
    if settings.answers is not None and samples == 0:
        samples = DEFAULT_SAMPLES
    return JudgeOptions(settings.heldout, settings.uncertainty, samples)


def write_results(
    folder: Path,
    settings: Reconstruct,
    result: Result,
    numbers: Json,
    *,
    cubes: bool = True,
    write_more: Callable[[Path], None] | None = None,
) -> None:
    """Write cube, convergence, pictures and metrics: all of them, or none after an error.

    Other files in the folder are not touched. metrics.json lists the files of this result.

    Args:
        folder: folder of the results.
        settings: settings of the command.
        result: result of the reconstruction.
        numbers: numbers that `results.summarize` returns.
        cubes: write the cube and its standard deviations.
        write_more: function that writes further files into the folder that it is called with.
    """
    camera, output, uncertainty = result.snapshot.camera, settings.output, result.errors
    cube, truth = result.cube[0].cpu(), result.truth
    bars = None
    if uncertainty is not None:
        bars = results.CubeErrors(cube, uncertainty.std[0].cpu(), uncertainty.pattern[0].cpu())
    name = name_scene(settings, "bundled scene")
    if output.bands == "dispersion":
        numbers = numbers | {"bands": "dispersion"}
    # The files are written into a hidden folder and moved at the end, so that the user never finds
    # the cube of one run beside the numbers of another.
    answers: dict[str, Answer] = {}
    if settings.answers is not None:
        answers = answer_questions(Path(settings.answers), result)
        numbers = numbers | {"answers": describe_answers(answers)}
    with atomic_folder(folder) as stage:
        if cubes:
            _write_cubes(stage, settings, result)
        if settings.samples > 0:
            _write_samples(stage, settings, result)
        if answers:
            write_answers(stage, answers, output.pictures)
        results.write_table(stage / "convergence.csv", result.rows)
        results.save_pictures(
            stage,
            output,
            name,
            cube,
            camera.wavelengths,
            None if truth is None else truth[0],
            numbers,
            bars,
            dispersion_cube=result.solution.along,
            answers=answers,
        )
        if write_more is not None:
            write_more(stage)
        # metrics.json is written last, because it lists the files beside it.
        results.write_numbers(stage / "metrics.json", numbers)


def _write_cubes(folder: Path, settings: Reconstruct, result: Result) -> None:
    """Write the cube on the bands that the output has, and its standard deviations."""
    output, wavelengths = settings.output, result.snapshot.camera.wavelengths
    std = None if result.errors is None else result.errors.std[0].cpu()
    cube, std, cube_wavelengths = results.select_bands(
        output, result.cube[0].cpu(), wavelengths, std
    )
    dispersion_cube = result.solution.along
    if output.bands == "dispersion" and dispersion_cube is not None:
        cube = dispersion_cube.x[0].cpu()
        cube_wavelengths = (
            None if wavelengths is None else dispersion_cube.grid.wavelengths(wavelengths)
        )
    write_cube(folder / output.cube, cube, cube_wavelengths)
    if std is not None:
        write_cube(folder / UNCERTAINTY, std, cube_wavelengths)


def _write_samples(folder: Path, settings: Reconstruct, result: Result) -> None:
    """Write sample_00.tif, sample_01.tif, …, on the bands of the output; one at a time."""
    assert result.errors is not None
    assert result.errors.samples is not None
    wavelengths = result.snapshot.camera.wavelengths
    for index, sample in enumerate(result.errors.samples):
        cube, _, nm = results.select_bands(settings.output, sample.cpu(), wavelengths)
        write_cube(folder / f"sample_{index:02d}.tif", cube, nm)


class Progress:
    """The callback of a solver: it shows a progress bar and collects the rows of convergence.csv.

    It calls `watch` with every iteration and its cube.
    """

    def __init__(
        self, snapshot: Snapshot, iterations: int, show_bar: bool, watch: Callback | None = None
    ) -> None:
        self.rows: list[Json] = []
        self.postfix: dict[str, str] = {}
        self.watch, self.last = watch, iterations
        self.system, self.level, self.truth = snapshot.camera.system, snapshot.level, None
        if snapshot.truth is not None:
            self.truth = snapshot.truth.to(snapshot.y.device) / snapshot.level
        # A terminal gets a moving bar, a log file a line every ten seconds.
        interval = 0.1 if sys.stderr.isatty() else 10.0
        self.bar = tqdm(
            total=iterations, unit="it", disable=not show_bar or is_quiet(), mininterval=interval
        )

    def wants(self, iteration: Iteration) -> bool:
        """Tell whether the cube of an iteration is needed: for its PSNR, or by `watch`."""
        if self.truth is not None and is_sampled(iteration.index, SAMPLING_INTERVAL, self.last):
            return True
        return self.watch is not None and wants_cube(self.watch, iteration)

    def __call__(self, iteration: Iteration, x: Tensor | None) -> None:
        """Record and show one iteration."""
        row: Json = {
            "iteration": iteration.index,
            "residual": iteration.residual,
            "seconds": iteration.seconds,
            "change": iteration.change,
            "sigma": iteration.sigma,
            "objective": iteration.objective,  # None becomes an empty field of the table
        }
        self.postfix["residual"] = f"{iteration.residual:.2e}"
        solve = describe_solve(self.system)
        if solve is not None:  # either all rows have these columns, or none
            row["inner_iterations"] = solve["iterations"]
            row["inner_residual"] = solve["relative_residual"]
        if (
            x is not None
            and self.truth is not None
            and is_sampled(iteration.index, SAMPLING_INTERVAL, self.last)
        ):
            row["psnr"] = metrics.psnr(x / self.level, self.truth).mean().item()
            self.postfix["PSNR"] = f"{row['psnr']:.2f} dB"
        self.rows.append(row)
        self.bar.set_postfix(self.postfix, refresh=False)
        # A run that continues an earlier one begins at a higher iteration.
        self.bar.update(iteration.index - self.bar.n)
        if self.watch is not None:
            self.watch(iteration, x)


def print_findings(numbers: Json, name: str = "") -> None:
    """Print the note of the camera check, and the warnings.

    Args:
        numbers: numbers of metrics.json.
        name: name of the snapshot if it is one of many. The name stands before its warnings, and
            the note is left out.
    """
    prefix = f"{name}: " if name else ""
    if not name and numbers["camera_check"]["note"]:
        print(f"camera check: {numbers['camera_check']['note']}")
    sys.stdout.flush()
    for warning in numbers["warnings"]:
        print(
            f"{color_label('warning')} {prefix}{warning['about']}: {warning['message']}",
            file=sys.stderr,
            flush=True,
        )
