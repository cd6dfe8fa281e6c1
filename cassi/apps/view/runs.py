"""Reconstruct, calibrate and save as the commands do, and tell a job how far they are."""

import shlex
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cassi.apps.command import choose_device, prepare_process
from cassi.apps.inputs import file_paths, load_snapshot
from cassi.apps.reconstructors import Recipe
from cassi.apps.results import say_estimates, summarize, summarize_calibration
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import find_camera_by_settings, fit, read, recover, write_results
from cassi.apps.view.cubes import Shown
from cassi.apps.view.jobs import Job
from cassi.apps.view.repeat import write_config
from cassi.apps.view.session import DEFAULT
from cassi.pipeline.snapshot import Snapshot
from cassi.solvers import Iteration
from cassi.viz import srgb

_PAUSE = 0.4  # seconds between pictures
_SIDE = 320  # pixels of such a picture


def reconstruct(settings: Reconstruct, options: list[str], job: Job) -> Shown:
    """Reconstruct as `cassi-reconstruct` does, with the same bits; a job shows how far it is.

    Raises:
        Stopped: the job was told to stop.
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
    watch = _Watch(job, snapshot, reconstructor.iterations)
    more = settings.heldout, settings.uncertainty, watch
    result = recover(snapshot, reconstructor, settings.seed, False, *more)
    file = settings.measurement or settings.truth
    return Shown(
        f"{file_paths(file)[0].stem}, {method_of(settings, options)}",
        np.ascontiguousarray(result.cube[0].cpu().numpy()),
        snapshot.camera.wavelengths,
        None if snapshot.truth is None else snapshot.truth[0].numpy(),
        None if result.errors is None else result.errors.std[0].cpu().numpy(),
        numbers=summarize(result),
        made=(settings, options, result),
    )


def calibrate(settings: Reconstruct, job: Job) -> str:
    """Calibrate the camera, and return the estimates as a table of text."""
    job.stage = "calibrating the camera"
    prepare_process(settings)
    snapshot = load_snapshot(settings, choose_device(settings.device), settings.bands)
    found = find_camera_by_settings(snapshot, replace(settings, calibrate=True))
    assert found.camera.calibration is not None
    return say_estimates(summarize_calibration(found.camera.calibration))


def save(shown: Shown, folder: Path) -> str:
    """Write all that the command writes, and the config that repeats it.

    Of several that save into one folder at once, one makes it.

    Returns:
        The command that repeats it.

    Raises:
        FileExistsError: the folder is there.
        OSError: it cannot be written.
        ValueError: the cube was not made here.
    """
    if shown.made is None:
        raise ValueError(f"{shown.name}: expected a cube made here; this one lies in its folder")
    settings, options, result = shown.made
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise FileExistsError(f"{folder}: it is there already; give another name") from None
    try:
        write_results(
            *(folder, settings, result, dict(shown.numbers)),
            more=lambda stage: write_config(stage, settings, options),
        )
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise
    place = shlex.quote(str(folder))
    return f"cassi-reconstruct --config-dir {place} --config-name repeat hydra.run.dir=repeated"


def method_of(settings: Reconstruct, options: list[str]) -> str:
    """Return the name of the method that the options choose, or that of a network's file."""
    if path := (settings.model or {}).get("path"):
        return Path(path).stem
    chosen = dict(option.partition("=")[::2] for option in options)
    return chosen.get("model", chosen.get("method", DEFAULT)).strip("'\"")


class _Watch:
    """Tells a job about every iteration, and draws a picture every 0.4 s."""

    def __init__(self, job: Job, snapshot: Snapshot, iterations: int) -> None:
        self.job, self.wavelengths, self.iterations = job, snapshot.camera.wavelengths, iterations
        self.last = 0.0

    def __call__(self, iteration: Iteration, x: Tensor) -> None:
        self.job.check()
        self.job.share = min(1.0, iteration.index / max(self.iterations, 1))
        self.job.stage = (
            f"iteration {iteration.index} of {self.iterations}, residual {iteration.residual:.1e}"
        )
        now = time.monotonic()
        if now - self.last >= _PAUSE:
            self.last = now
            every = max(1, -(-max(x.shape[-2:]) // _SIDE))
            small = torch.nan_to_num(x[0, :, ::every, ::every].float()).cpu()
            self.job.picture = srgb(small, self.wavelengths, None)
