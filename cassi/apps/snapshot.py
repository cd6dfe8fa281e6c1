"""The way of a snapshot: read → camera → fit → recover → write; every command and view takes it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from cassi import metrics, ops
from cassi.apps import results
from cassi.apps.camera.guide import add_guide, describe_guide
from cassi.apps.camera.response import add_unit
from cassi.apps.command import announce, choose_device
from cassi.apps.inputs import Inputs, load_inputs, name_scene
from cassi.apps.printing import is_quiet, marked
from cassi.apps.reconstructors import Recipe, build_solver
from cassi.apps.results import describe_solve
from cassi.apps.settings import UNCERTAINTY, Reconstruct, Snapshots
from cassi.calibration import (
    Calibration,
    CameraCheck,
    Finding,
    Frame,
    Response,
    check_camera,
    check_spectra,
)
from cassi.calibration.camera_check import of_calibrated, shows_another_mask
from cassi.calibration.response import describe
from cassi.camera.ends import find_grid
from cassi.camera_search import align, calibrate_on
from cassi.data.atomic import atomic_folder
from cassi.data.io import Loaded, write_cube
from cassi.guide_search import takes_guide
from cassi.methods.along_dispersion import AlongDispersion
from cassi.methods.video import for_frames
from cassi.priors import Subspace
from cassi.solvers import Iteration, Solution, Statistics, relative_noise
from cassi.solvers.base import Callback, Reconstructor, is_sampled, wants_cube
from cassi.solvers.heldout import measure_heldout
from cassi.solvers.linear_system import seen
from cassi.systems import System
from cassi.systems.dispersion import is_even
from cassi.systems.grid import Grid
from cassi.uncertainty import Uncertainty, estimate, score
from cassi.uncertainty.estimate import DARK, dark_share

if TYPE_CHECKING:
    from cassi.apps.reconstruct.journal import Passes

EVERY = 10
"""Iterations from one objective and PSNR to the next; each takes as long as an iteration."""
_FAR_MOVED = 1.5
"""Pixels from which on a mask was not drifting, but lay elsewhere in its file."""
_FAR_NAMES = 5.0
"""nm by which a band may be another, from which on it is said: half of the width of a filter."""
_FRAMES = "each band has its own mask and none is moved, as for the frames of a video"


@dataclass(frozen=True)
class Result:
    """A cube and all that is written of it."""

    inputs: Inputs
    solution: Solution
    numbers: dict[str, Any]
    """Of metrics.json."""
    rows: list[dict[str, Any]]
    """Of convergence.csv."""
    uncertainty: Uncertainty | None = None
    """Where it was asked for."""


def make_recipe(settings: Reconstruct) -> Recipe:
    """Return what settings reconstruct with, on the device of this process."""
    return Recipe(settings, choose_device(settings.device))


def read(
    settings: Reconstruct, recipe: Recipe, loaded: Mapping[str, Loaded] | None = None
) -> Inputs:
    """Read the files of one snapshot, but for those that are `loaded`; see `load_inputs`."""
    return load_inputs(settings, recipe.device, recipe.bands, loaded)


def find_camera(inputs: Inputs, settings: Reconstruct) -> Inputs:
    """Return the inputs with the camera that reconstructs them: the only place that changes it.

    `calibrate=true` finds mask and bands, `align=true` moves the mask where the measurement is
    sure. A guide's picture is put beside it. All need the whole measurement in memory. Through that
    camera a white frame shows the response.

    Raises:
        ValueError: the camera cannot be calibrated, or the measurement is too dark or small.
    """
    if settings.calibrate:
        inputs, _ = calibrated(inputs, settings, announce("calibrate", settings.output.progress))
    elif settings.align and settings.memory_budget is None:
        inputs = _aligned(inputs)
    if settings.guide.file is not None:
        inputs = add_guide(inputs, settings.guide)
    else:
        inputs = find_ends(inputs)
    return add_unit(inputs, settings)


def prepare(
    settings: Reconstruct, recipe: Recipe, loaded: Mapping[str, Loaded] | None = None
) -> tuple[Inputs, Reconstructor]:
    """Go the way of a snapshot until it can be recovered; see `read`, `find_camera` and `fit`."""
    return fit(find_camera(read(settings, recipe, loaded), settings), recipe)


def find_ends(inputs: Inputs) -> Inputs:
    """Return the inputs with the grid along the dispersion that suits the frame, if any."""
    return replace(inputs, grid=find_grid(inputs.measurement, inputs.system))


def _say_grid(grid: Grid) -> str:
    beyond = abs(grid.offsets[0] - grid.named[0])
    return (
        f"dispersion: {len(grid.offsets)} bands of {grid.pitch:.3g} pixels, to {beyond:.2g} beyond "
        f"the outermost, read at {len(grid.named)}; light=lines for one line per band"
    )


def _aligned(inputs: Inputs) -> Inputs:
    found = align(inputs.measurement, inputs.system)
    if found is None:
        return inputs
    notes = [*inputs.notes, f"camera: {found}; align=false leaves it where it was"]
    return replace(inputs, system=found.system, alignment=found.numbers(), notes=notes)


def calibrated(
    inputs: Inputs,
    settings: Snapshots,
    watch: Callable[[str], None],
    known: Sequence[Frame] = (),
    **asked: Any,
) -> tuple[Inputs, Calibration]:
    """Calibrate a camera on its measurement: for cassi-calibrate, and for `calibrate=true`.

    Args:
        inputs: the snapshots and the nominal camera.
        settings: of the command.
        watch: is told what is being tried.
        known: frames of known light.
        asked: settings of `cassi.camera_search.calibrate_on`.

    Returns:
        The inputs with the camera and what is written of it, and what was found.
    """
    start, nominal = time.perf_counter(), inputs.system.plain
    found = calibrate_on(
        inputs.measurement,
        inputs.system,
        build_solver(settings) if getattr(settings, "model", None) is None else None,
        known=known,
        wavelengths=inputs.wavelengths,
        seed=settings.seed,
        watch=watch,
        **asked,
    )
    numbers = results.summarize_calibration(found, nominal)
    numbers["seconds"] = time.perf_counter() - start
    notes = [*inputs.notes, "camera: calibrated on the measurement"]
    inputs = replace(inputs, system=inputs.system.around(found.system), notes=notes)
    return replace(
        inputs, calibration=numbers, names_error=None if found.told else inputs.names_error
    ), found


def fit(inputs: Inputs, recipe: Recipe) -> tuple[Inputs, Reconstructor]:
    """Return the inputs, with what a network knows of them, and the reconstructor for them.

    Raises:
        ValueError: the network does not fit the camera, or what `output` asks for the cube.
    """
    bands, settings = inputs.system.cube_shape[0], recipe.settings
    grid = recipe.grid(inputs.grid)
    reconstructor, card = recipe.make(bands if grid is None else len(grid.offsets))
    if settings.guide.file is not None and not takes_guide(reconstructor):
        raise ValueError(
            "guide: expected null, this method takes none; solver=auto and "
            "experiment=self_supervised do"
        )
    if card is not None:
        note = f"network: {card.name}"
        if card.wavelengths is not None:
            note += f", trained for {card.wavelengths[0]:g} to {card.wavelengths[-1]:g} nm"
        known = inputs.wavelengths or card.wavelengths
        inputs = replace(inputs, notes=[*inputs.notes, note], wavelengths=known)
    chosen = reconstructor
    if _shows_frames(inputs) and settings.guide.file is None:
        reconstructor = for_frames(chosen)
    if grid is not None:
        chosen = reconstructor = AlongDispersion(reconstructor, grid)
        inputs = replace(inputs, notes=[*inputs.notes, _say_grid(grid)])
    if reconstructor is not chosen:
        note = f"method: experiment=video in place of auto, as {_FRAMES}; else set wavelengths="
        inputs = replace(inputs, notes=[*inputs.notes, note])
    # Before minutes of work, not after them.
    if settings.output.bands == "dispersion":
        _check_dispersion(settings, grid)
    results.select_bands(settings.output, torch.zeros(bands, 1, 1), inputs.wavelengths)
    if settings.output.points is not None:
        from cassi.viz.checks import as_points

        try:
            as_points(settings.output.points, *inputs.system.cube_shape[1:])
        except ValueError as error:
            raise ValueError(f"output.points: {error}") from None
    return inputs, reconstructor


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
    inputs: Inputs,
    reconstructor: Reconstructor,
    seed: int,
    visible: bool,
    heldout: float | None = None,
    uncertainty: bool = False,
    watch: Callback | None = None,
    passes: Passes | None = None,
) -> Result:
    """Reconstruct a measurement.

    Args:
        inputs: the measurement and its camera.
        reconstructor: as `fit` gives it.
        seed: of what the reconstructor draws.
        visible: show a progress bar.
        heldout: share of the pixels to predict in one more reconstruction.
        uncertainty: estimate the standard deviation of every value.
        watch: is called with every iteration and its cube; what it raises ends the reconstruction.
        passes: keeps the result of every pass of a solver, and has that of an earlier run.

    Raises:
        ValueError: camera and reconstructor do not fit, or nothing finite comes out.
    """
    y, system = inputs.measurement, inputs.system
    # What is estimated from the measurement serves for its error bars too.
    statistics = Statistics(lambda: [(seen(y, system), system)])
    torch.manual_seed(seed)
    progress = Progress(inputs, reconstructor.iterations, visible, watch)
    if passes is not None:
        passes.rows = progress.rows
    with progress.bar:
        solution = reconstructor.run(
            y,
            system,
            callback=progress,
            objective=EVERY,
            statistics=statistics,
            checkpoint=passes,
        )
    result = conclude(inputs, solution, progress.rows, reconstructor)
    result = predict(result, reconstructor, seed, heldout)
    result = assess(result, reconstructor, seed, statistics) if uncertainty else result
    return in_unit(result)


def in_unit(result: Result) -> Result:
    """Return a result in the unit that was asked for: cube, error bars and truth over the response.

    What compares the cube with its measurement or its truth stays as it was.

    Raises:
        ValueError: a patch that is to be white is not within the cube, or there is no light in it.
    """
    inputs, unit = result.inputs, result.inputs.unit
    if unit is None or unit.name is None:
        return result
    x, found, truth = result.solution.x, result.uncertainty, inputs.truth
    unit = replace(unit, wavelengths=inputs.wavelengths)  # a network may know them
    response = unit.response(x)
    numbers = result.numbers | {"unit": unit.name}
    if found is not None:
        std, pattern = unit.errors(x, found.std, found.pattern, response)
        found = replace(found, std=std, pattern=pattern)
        told = describe_uncertainty(found)
        size = {key: told[key] for key in ("mean", "rms")}
        numbers["uncertainty"] = numbers["uncertainty"] | size
    if truth is not None:
        inputs = replace(inputs, truth=response.scene(truth))
    return replace(
        result,
        inputs=inputs,
        solution=replace(result.solution, x=unit.scene(x, response)),
        numbers=numbers,
        uncertainty=found,
    )


def assess(
    result: Result, reconstructor: Reconstructor, seed: int, statistics: Statistics | None = None
) -> Result:
    """Add to a result how sure every value is.

    Args:
        result: of the method.
        reconstructor: the method.
        seed: of what it draws.
        statistics: of the measurement, those that the method was given.

    Raises:
        ValueError: nothing finite comes out.
    """
    start, inputs, x = time.perf_counter(), result.inputs, result.solution.x
    y, system, wide = inputs.measurement, inputs.system, light_is_wide(inputs)
    found = estimate(
        y,
        system,
        reconstructor,
        x,
        statistics=statistics,
        seed=seed,
        wide=wide,
        along=result.solution.along,
    )
    if inputs.names_error is not None and inputs.wavelengths is not None:
        found = found.with_names(x, inputs.wavelengths, inputs.names_error)
    told = describe_uncertainty(found)
    if inputs.truth is not None:
        truth = inputs.truth[0].cpu()
        told["scores"] = score(x[0].cpu(), found.std[0].cpu(), truth)
    told["seconds"] = time.perf_counter() - start
    numbers = result.numbers | {"uncertainty": told}
    doubts = (*found.warnings, *_doubt_the_dark(inputs))
    more = [{"about": "uncertainty", "message": message} for message in doubts]
    numbers["warnings"] = [*result.numbers["warnings"], *more]
    return replace(result, numbers=numbers, uncertainty=found)


def _doubt_the_dark(inputs: Inputs) -> list[str]:
    """Say where stray light, which no camera has, makes error bars too small."""
    share = dark_share(inputs.measurement, inputs.system) if inputs.is_raw else 0.0
    message = (
        f"{share:.0%} of the frame has less than a twentieth of its mean light. Stray light of 1 % "
        "is much there, and error bars do not include it: in the dark they are too small"
    )
    return [message] if share > DARK else []


def light_is_wide(inputs: Inputs) -> bool:
    """Tell whether bands are wider than a camera has them: a sensor's frame of all light."""
    return inputs.is_raw


def describe_uncertainty(found: Uncertainty) -> dict[str, Any]:
    """Return what metrics.json says of standard deviations."""
    sigma = found.std.double()
    return {
        "mean": float(sigma.mean()),
        "rms": float(sigma.square().mean().sqrt()),
        "sources": found.sources,
        "shift": list(found.shift),
        "heldout_error": found.heldout,
    }


def predict(
    result: Result, reconstructor: Reconstructor, seed: int, heldout: float | None
) -> Result:
    """Add to a result how well the method predicts pixels that it is not given.

    Args:
        result: of the method.
        reconstructor: the method.
        seed: of what it draws.
        heldout: share of the pixels; None leaves the result as it is.
    """
    if heldout is None:
        return result
    torch.manual_seed(seed)
    inputs = result.inputs
    found = measure_heldout(inputs.measurement, inputs.system, reconstructor, heldout)
    return replace(result, numbers=result.numbers | {"heldout": asdict(found)})


def conclude(
    inputs: Inputs, solution: Solution, rows: list[dict[str, Any]], reconstructor: Reconstructor
) -> Result:
    """Put together what is written of a solution, and ask whether the camera can be right.

    Raises:
        ValueError: there is no finite cube.
    """
    solution.checked()
    if solution.reason == "diverged":
        print(
            "warning: stopped before values became infinite; see convergence.csv", file=sys.stderr
        )
    device = inputs.measurement.device
    numbers = results.summarize(inputs, solution)
    numbers |= results.environment(device, ops.backend(device))
    numbers |= {"preprocessing": inputs.preprocessing, "inputs": inputs.notes}
    response = None if inputs.unit is None else inputs.unit.response(solution.x)
    if response is not None:
        numbers["response"] = describe(response)
    numbers |= check(inputs, solution.x, reconstructor, response)
    if inputs.calibration is not None:
        numbers["calibration"] = inputs.calibration
    if inputs.alignment is not None:
        numbers["alignment"] = inputs.alignment
    if inputs.guide is not None:
        numbers["guide"] = describe_guide(inputs)
    if solution.along is not None:
        grid = solution.along.grid
        numbers["dispersion"] = {"offsets": grid.offsets, "named": grid.named}
    if inputs.names_error is not None:
        numbers["wavelengths_error"] = inputs.names_error
    return Result(inputs, solution, numbers, rows)


def write_results(
    folder: Path,
    settings: Reconstruct,
    result: Result,
    more: Callable[[Path], None] | None = None,
    *,
    cubes: bool = True,
) -> None:
    """Write cube, convergence, pictures and metrics, all or none.

    metrics.json names the files of its run: what else lies in the folder is not touched.

    Args:
        folder: of the results.
        settings: of the command.
        result: of `recover`.
        more: writes further files into the folder that it is given, where they appear with these.
        cubes: write the cube and its standard deviations; else they are elsewhere.
    """
    inputs, output = result.inputs, settings.output
    cube = result.solution.x[0].cpu()
    truth = None if inputs.truth is None else inputs.truth[0]
    found = result.uncertainty
    bars = None if found is None else results.Bars(cube, found.std[0].cpu(), found.pattern[0].cpu())
    name = name_scene(settings, "bundled scene")
    with atomic_folder(folder) as stage:
        if cubes:
            std = None if found is None else found.std[0].cpu()
            chosen, std, nm = results.select_bands(output, cube, inputs.wavelengths, std)
            along = result.solution.along
            if output.bands == "dispersion" and along is not None:
                known, chosen = inputs.wavelengths, along.x[0].cpu()
                nm = None if known is None else along.grid.wavelengths(known)
                result.numbers["bands"] = "dispersion"
            write_cube(stage / output.cube, chosen, nm)
            if std is not None:
                write_cube(stage / UNCERTAINTY, std, nm)
        results.write_table(stage / "convergence.csv", result.rows)
        results.save_pictures(
            *(stage, output, name, cube, inputs.wavelengths, truth, result.numbers, bars),
            along=result.solution.along,
        )
        if more is not None:
            more(stage)
        results.write_numbers(stage / "metrics.json", result.numbers)


class Progress:
    """Shows residual and PSNR on a progress bar and keeps the rows of convergence.csv.

    Args:
        inputs: the measurement and its camera.
        iterations: at most.
        visible: show the bar.
        watch: is called with every iteration and its cube as well.
    """

    def __init__(
        self, inputs: Inputs, iterations: int, visible: bool, watch: Callback | None = None
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.shown: dict[str, str] = {}
        self.watch, self.last = watch, iterations
        self.system, self.level, self.truth = inputs.system, inputs.level, None
        if inputs.truth is not None:
            self.truth = inputs.truth.to(inputs.measurement.device) / inputs.level
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
        row: dict[str, Any] = {
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


def check(
    inputs: Inputs, x: Tensor, reconstructor: Reconstructor, response: Response | None = None
) -> dict[str, Any]:
    """Return what speaks for and against the camera, for metrics.json.

    Args:
        inputs: the measurement and its camera.
        x: cube `(1, C, H, W)`; of a large one every few pixels will do.
        reconstructor: what made it.
        response: where it is known spectra are judged as reflectances.

    Returns:
        `warnings`, a list of `{about, message}`, and `camera_check`, the numbers behind them.
    """
    start = time.perf_counter()
    y, system = inputs.measurement, inputs.system
    found = check_camera(y, system)
    white = response is not None and inputs.unit is not None and inputs.unit.name != "radiance"
    if not shows_another_mask(found):
        found += check_spectra(x, system.plain, inputs.wavelengths, response if white else None)
    found = found if inputs.calibration is None else of_calibrated(found)
    if not shows_another_mask(found):
        found += _check_move(inputs)
    found += _check_names(inputs)
    found += _check_axis(inputs, reconstructor)
    found += _check_weights(y, system, reconstructor)
    numbers = {"note": found.note, **found.numbers, "seconds": time.perf_counter() - start}
    return {"warnings": [vars(each) for each in found.warnings], "camera_check": numbers}


def say(numbers: Mapping[str, Any], name: str = "") -> None:
    """Print the note, and the warnings as such.

    Args:
        numbers: of metrics.json.
        name: of the snapshot, of many: then without the note.
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


def _shows_frames(inputs: Inputs) -> bool:
    return inputs.wavelengths is None and inputs.system.plain.codes_frames


def _check_move(inputs: Inputs) -> CameraCheck:
    """Warn of a mask that was moved by more than a mask drifts."""
    moved = inputs.alignment or {}
    down, right = moved.get("down", 0.0), moved.get("right", 0.0)
    if math.hypot(down, right) < _FAR_MOVED:
        return CameraCheck()
    message = (
        f"the mask was {down:+.1f} px down and {right:+.1f} px right of its file, and was moved "
        "there: move it in its file, or keep the camera that cassi-calibrate finds, if this is the "
        "camera's mask"
    )
    return CameraCheck((Finding("shift", message),))


def _check_names(inputs: Inputs) -> CameraCheck:
    """Warn of wavelengths that nobody gave places, where a frame of all light cannot show them."""
    offsets: Sequence[float] = getattr(inputs.system.plain, "offsets", ())
    off = 2 * max(inputs.names_error or (0.0,))
    if not inputs.is_raw or off < _FAR_NAMES or not is_even(offsets):
        return CameraCheck()
    wavelengths = inputs.wavelengths or (0.0,)
    step = (offsets[-1] - offsets[0]) / max(len(offsets) - 1, 1)
    middle = round(wavelengths[len(wavelengths) // 2], -1)
    message = (
        "nobody gave the places of the bands, and this light does not show them: even distances "
        f"are assumed. Behind a prism names are up to {off:.0f} nm off; the cube "
        "along the dispersion is not. Take a frame of the mask through a filter of a middle "
        "wavelength: cassi-calibrate with this camera and measurement, and "
        f"'monochromatic=[{{file: FILE, wavelength: {middle:g}}}]'. Behind a grating distances are "
        f"even: give 'system.offsets={{_target_: cassi.systems.Linear, step: {step:g}}}'"
    )
    return CameraCheck((Finding("wavelengths", message),))


def _check_axis(inputs: Inputs, reconstructor: Reconstructor) -> CameraCheck:
    spectral = isinstance(getattr(reconstructor, "prior", None), Subspace)
    if not _shows_frames(inputs) or not (spectral or reconstructor.network is not None):
        return CameraCheck()
    message = (
        f"set experiment=video, or wavelengths= where the bands are bands: {_FRAMES}, and this "
        "method is made for spectra"
    )
    return CameraCheck((Finding("frames", message),))


@torch.no_grad()
def _check_weights(y: Tensor, system: System, reconstructor: Reconstructor) -> CameraCheck:
    shipped = getattr(reconstructor.network, "shipped", None)
    if shipped is None or shipped.doubts is None:
        return CameraCheck()
    doubts = shipped.doubts(system, float(relative_noise(y, system).max()))
    if not doubts:
        return CameraCheck()
    message = (
        f"the network has not seen cameras like this one: {', '.join(doubts)}; compare with "
        "model=null solver=auto, by heldout=0.05"
    )
    return CameraCheck((Finding("weights", message),))
