"""Reconstruct, calibrate and save like the commands, with progress reports to a job."""

import shlex
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cassi.apps.answers.files import answer_questions
from cassi.apps.command import choose_device, prepare_process
from cassi.apps.inputs import file_paths, load_snapshot
from cassi.apps.reconstructors import Recipe
from cassi.apps.results import format_estimates, summarize, summarize_calibration
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import (
    choose_judge_options,
    find_camera_by_settings,
    fit,
    read,
    reconstruct_and_judge,
    write_results,
)
from cassi.apps.view.cubes import CubeView
from cassi.apps.view.jobs import Job
from cassi.apps.view.repeat import write_config
from cassi.apps.view.session import DEFAULT_METHOD
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers import Iteration
from cassi.uncertainty.answers import Answer
from cassi.viz import srgb
from cassi.viz.report import encode_answers

_PICTURE_SECONDS = 0.4  # between two pictures of the present cube
_PICTURE_PIXELS = 320  # longer side of such a picture


def reconstruct(settings: Reconstruct, options: list[str], job: Job) -> CubeView:
    """Reconstruct a snapshot with the same bits as `cassi-reconstruct`, and report progress.

    Raises:
        StopJob: the user stopped the job.
    """
    job.stage = "reading"
    device = choose_device(settings.device)
    prepare_process(settings)
    recipe = Recipe(settings, device)
    snapshot = read(settings, recipe)
    if settings.calibrate:
        job.stage = "calibrating the camera"
    snapshot, reconstructor = fit(find_camera_by_settings(snapshot, settings), recipe)
    job.stage = "reconstructing"
    reporter = _ProgressReporter(job, snapshot, reconstructor.iterations)
    result = reconstruct_and_judge(
        snapshot,
        reconstructor,
        settings.seed,
        show_progress=False,
        options=choose_judge_options(settings),
        watch=reporter,
    )
    file = settings.measurement or settings.truth
    answers: dict[str, Answer] = {}
    if settings.answers is not None:
        job.stage = "answering questions"
        answers = answer_questions(Path(settings.answers), result)
    return CubeView(
        f"{file_paths(file)[0].stem}, {name_method(settings, options)}",
        np.ascontiguousarray(result.cube[0].cpu().numpy()),
        snapshot.camera.wavelengths,
        None if snapshot.truth is None else snapshot.truth[0].numpy(),
        None if result.errors is None else result.errors.std[0].cpu().numpy(),
        numbers=summarize(result),
        origin=(settings, options, result),
        answers=encode_answers(answers) if answers else None,
    )


def calibrate(settings: Reconstruct, job: Job) -> str:
    """Calibrate the camera, and return the estimates as a plain-text table."""
    job.stage = "calibrating the camera"
    prepare_process(settings)
    snapshot = load_snapshot(settings, choose_device(settings.device), settings.bands)
    snapshot_with_camera = find_camera_by_settings(snapshot, replace(settings, calibrate=True))
    assert snapshot_with_camera.camera.calibration is not None
    return format_estimates(summarize_calibration(snapshot_with_camera.camera.calibration))


def save_result(cube_view: CubeView, folder: Path) -> str:
    """Write all files that the command writes, and a config that repeats the reconstruction.

    Returns:
        The command line that repeats it.

    Raises:
        FileExistsError: the folder exists.
        OSError: a file cannot be written.
        ValueError: the cube was read from a file.
    """
    if cube_view.origin is None:
        raise ValueError(
            f"{cube_view.name}: expected a cube of this tab, got one that was read from a file"
        )
    settings, options, result = cube_view.origin
    folder.parent.mkdir(parents=True, exist_ok=True)
    # If two tabs save into one folder at the same time, `mkdir` succeeds in one of them only.
    try:
        folder.mkdir()
    except FileExistsError:
        # A result is never replaced: the user may have saved another cube under this name.
        raise FileExistsError(f"{folder}: it is there already; give another name") from None
    try:
        write_results(
            folder,
            settings,
            result,
            dict(cube_view.numbers),
            write_more=lambda stage: write_config(stage, settings, options),
        )
    except BaseException:
        # After a failure the name must be free again. `rmdir` keeps a folder that has files in it.
        with suppress(OSError):
            folder.rmdir()
        raise
    return (
        f"cassi-reconstruct --config-dir {shlex.quote(str(folder))} --config-name repeat "
        "hydra.run.dir=repeated"
    )


def name_method(settings: Reconstruct, options: list[str]) -> str:
    """Return the name of the method that the options choose, or that of a network's file."""
    if path := (settings.model or {}).get("path"):
        return Path(path).stem
    values = dict(option.partition("=")[::2] for option in options)
    return values.get("model", values.get("method", DEFAULT_METHOD)).strip("'\"")


class _ProgressReporter:
    """Reports every iteration to a job, and draws a picture of the cube every 0.4 s."""

    def __init__(self, job: Job, snapshot: Snapshot, iterations: int) -> None:
        self.job, self.wavelengths, self.iterations = job, snapshot.camera.wavelengths, iterations
        self.last_picture_time = 0.0

    def __call__(self, iteration: Iteration, x: Tensor) -> None:
        self.job.raise_if_stopped()
        self.job.progress = min(1.0, iteration.index / max(self.iterations, 1))
        self.job.stage = (
            f"iteration {iteration.index} of {self.iterations}, residual {iteration.residual:.1e}"
        )
        time_now = time.monotonic()
        if time_now - self.last_picture_time >= _PICTURE_SECONDS:
            self.last_picture_time = time_now
            # The cube is thinned before it is copied, so that little data leaves a GPU.
            stride = max(1, -(-max(x.shape[-2:]) // _PICTURE_PIXELS))
            small_cube = torch.nan_to_num(x[0, :, ::stride, ::stride].float()).cpu()
            self.job.picture = srgb(small_cube, self.wavelengths, None)
