"""Frames in, cubes out: with the method that keeps up."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.apps.errors import describe_failure
from cassi.apps.inputs import Inputs, file_paths, load_shots, make_preprocessing, preprocess
from cassi.apps.live.sources import Frame, Source
from cassi.apps.pipeline import make_recipe, prepare
from cassi.apps.settings import Reconstruct
from cassi.calibration import check_camera
from cassi.checks import printable
from cassi.data.day_store import prepare_store, preview_size
from cassi.data.io import Loaded, load_mask, load_measurement
from cassi.methods import Sequence
from cassi.solvers import Solver
from cassi.viz.color import srgb

LADDER = (36, 24, 16, 10)
"""Iterations of a frame, from the best to the fastest."""
SLOW, FAST = 0.9, 0.5
"""Share of the time between frames above which a faster method is taken, and below which a better
one."""
CHECKED = 50
"""Frames from one check of the camera to the next."""
_IDLE = 0.02


@dataclass(frozen=True)
class View:
    """What a page shows of the last frame.

    Attributes:
        name: of the frame.
        cube: `(C, H, W)`, float32.
        wavelengths: nm, if known.
        picture: `(H, W, 3)`, uint8.
        number: counts frames that were reconstructed, from 1.
        delay: seconds from the frame's coming to its cube.
        seconds: that the frame took.
        method: in words.
    """

    name: str
    cube: np.ndarray
    wavelengths: tuple[float, ...] | None
    picture: np.ndarray
    number: int
    delay: float
    seconds: float
    method: str


class Live:
    """Reconstructs the newest frame of a source, again and again; the others are dropped.

    A broken frame is named and skipped.

    Args:
        settings: of cassi-reconstruct, without a measurement.
        source: of the frames.
        record: a Zarr store for raw frames and cubes; None keeps nothing.
        say: is called with a line for each message.

    Raises:
        OSError: the mask cannot be read.
        ValueError: it is no mask.

    Attributes:
        view: of the last cube; None at first.
        dropped: frames that were left out to keep up.
        broken: frames that could not be read.
        messages: the last lines, for the page.
        warnings: of the camera check.
        is_over: whether `run` has ended.
    """

    def __init__(
        self,
        settings: Reconstruct,
        source: Source,
        record: Path | None = None,
        say: Callable[[str], Any] | None = None,
    ) -> None:
        self.settings, self.source, self.record = settings, source, record
        self.say = _print if say is None else say
        self.recipe = make_recipe(settings)
        self.chain = make_preprocessing(vars(settings), settings.system)
        self.loaded: dict[str, Loaded] = {}
        if not isinstance(settings.mask, dict):  # what is wrong with it is no fault of the frames
            hints = {"key": settings.keys.mask, "axes": settings.axes.mask}
            bands = settings.bands or self.recipe.bands
            files = file_paths(settings.mask)
            self.loaded["mask"] = load_shots("mask", load_mask, files, bands=bands, **hints)
        self.view: View | None = None
        self.done, self.dropped, self.broken = 0, 0, 0
        self.messages: list[str] = []
        self.warnings: list[str] = []
        self.is_over = False
        self._stop = threading.Event()
        self._inputs: Inputs | None = None
        self._method: Any = None
        self._rung, self._last, self._between = 0, 0.0, 0.0

    def stop(self) -> None:
        """End `run` after the present frame."""
        self._stop.set()

    def run(self) -> None:
        """Take frames until told to stop."""
        try:
            while not self._stop.is_set():
                frames = self.source.poll()
                if frames:
                    self.take(frames)
                else:
                    time.sleep(_IDLE)
        finally:
            self.is_over = True

    def take(self, frames: list[Frame]) -> None:
        """Reconstruct the newest frame that can be read, and count the others."""
        whole = [frame for frame in frames if not frame.problem]
        for frame in frames:
            if frame.problem:
                self._skip(frame, frame.problem)
        self._measure_pace(frames)
        if not whole:
            return
        if len(whole) > 1:
            self.dropped += len(whole) - 1
            if self.done:
                self._tell(f"dropped {len(whole) - 1} frames to keep up, {self.dropped} in all")
        frame, start = whole[-1], time.perf_counter()
        try:
            self._reconstruct(frame, start)
        except (OSError, ValueError) as error:
            self._skip(frame, describe_failure(error))

    def _reconstruct(self, frame: Frame, start: float) -> None:
        assert frame.path is not None
        raw, y, system = self._read(frame.path)
        assert self._inputs is not None
        cube = self._method.run(y, system).checked().x[0].float().cpu()
        known = self._inputs.wavelengths
        picture = srgb(cube.numpy(), known, self.settings.output.illuminant)
        seconds = time.perf_counter() - start
        self.done += 1
        if self.done % CHECKED == 1:
            found = check_camera(y, system).warnings
            self.warnings = [f"{each.about}: {each.message}" for each in found]
        self.view = View(
            frame.name,
            cube.numpy(),
            known,
            picture,
            self.done,
            time.time() - frame.came,
            seconds,
            self._describe(),
        )
        if self.record is not None:
            self._keep(frame, raw, cube, picture)
        if self.done > 1:
            self._choose_rung(time.perf_counter() - start)

    def _read(self, path: Path) -> tuple[Tensor, Tensor, Any]:
        keys, axes = self.settings.keys.measurement, self.settings.axes.measurement
        counts = self.chain.bits is not None
        loaded = load_measurement(path, key=keys, axes=axes, finite=False, counts=counts)
        if self._inputs is None:
            self._begin(path, loaded)
        assert self._inputs is not None
        y, bad, _, _ = preprocess(self.chain, loaded.data, loaded.full_scale)
        system = self._inputs.system.unweighted
        if tuple(y.shape[1:]) != tuple(system.measurement_shape):
            raise ValueError(
                f"expected a frame of {tuple(system.measurement_shape)}, as the first one, "
                f"got {tuple(y.shape[1:])}"
            )
        y = y.to(self.recipe.device)
        if bad is not None:
            system = system.weighted(bad_pixels=bad.to(y.device))
            y = system.without_bad_pixels(y)
        return loaded.data[0], y, system

    def _begin(self, path: Path, frame: Loaded) -> None:
        """Make camera and method for the first frame; they stay."""
        told = replace(self.settings, measurement=str(path))
        inputs, method = prepare(told, self.recipe, self.loaded | {"measurement": frame})
        try:
            self._method = Sequence(method).begin() if isinstance(method, Solver) else method
        except TypeError:  # no method on spectral components: each frame by itself
            self._method = method
        self._inputs = inputs
        for note in inputs.notes:
            self._tell(note)

    def _measure_pace(self, frames: list[Frame]) -> None:
        newest = frames[-1].came
        if self._last and newest > self._last:
            between = (newest - self._last) / len(frames)
            self._between = between if not self._between else 0.8 * self._between + 0.2 * between
        self._last = newest

    def _choose_rung(self, seconds: float) -> None:
        if not hasattr(self._method, "shorten") or not self._between:
            return
        share, before = seconds / self._between, self._rung
        if share > SLOW:
            self._rung = min(self._rung + 1, len(LADDER) - 1)
        elif self._rung:  # what the better method would take, roughly
            better = share * LADDER[self._rung - 1] / LADDER[self._rung]
            self._rung -= share < FAST and better < SLOW
        if self._rung != before:
            self._method.shorten(LADDER[self._rung])
            self._tell(f"{LADDER[self._rung]} iterations a frame, to keep up")

    def _describe(self) -> str:
        if hasattr(self._method, "shorten"):
            return f"sequence, {LADDER[self._rung]} iterations"
        return type(self._method).__name__

    def _keep(self, frame: Frame, raw: Tensor, cube: Tensor, picture: np.ndarray) -> None:
        assert self.record is not None
        assert self._inputs is not None
        nm, name = self._inputs.wavelengths, f"{self.done:06d} {frame.name}"
        shape: Any = tuple(cube.shape)
        about = {"title": "frames and cubes, by cassi-live"}
        store = prepare_store(
            self.record, [name], [frame.came], shape, nm, about=about, frame=tuple(raw.shape)
        )
        height, width = preview_size(*shape[1:])
        small = torch.from_numpy(picture).permute(2, 0, 1).float()
        small = torch.nn.functional.adaptive_avg_pool2d(small, (height, width))
        preview = small.round().byte().permute(1, 2, 0).numpy()
        store.write(name, cube.numpy(), None, preview, raw.numpy())

    def _skip(self, frame: Frame, problem: str) -> None:
        self.broken += 1
        self._tell(f"skipped {printable(frame.name)}: {printable(problem)}")

    def _tell(self, line: str) -> None:
        self.messages = [*self.messages[-7:], line]
        self.say(line)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
