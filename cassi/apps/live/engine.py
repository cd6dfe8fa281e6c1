"""Frames in, cubes out: with the method that keeps up."""

import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cassi.apps.errors import describe_failure, is_usage_error
from cassi.apps.inputs import file_paths, load_shots, make_preprocessing, preprocess
from cassi.apps.live.sources import Frame, Source
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import make_recipe, prepare
from cassi.calibration import check_camera
from cassi.checks import printable
from cassi.data.day_store import Recording
from cassi.data.io import Loaded, load_mask, load_measurement
from cassi.methods import Sequence
from cassi.methods.along_dispersion import around, inner_of
from cassi.pipeline.snapshot import Camera
from cassi.systems import System
from cassi.viz.color import srgb

LADDER = (36, 24, 16, 10)
"""Iterations of a frame, from the best to the fastest."""
SLOW, FAST = 0.9, 0.5
"""Share of the time between frames above which a faster method is taken, and below which a better
one."""
CHECKED = 50
"""Frames from one check of the camera to the next."""
_IDLE = 0.02
_QUIET = 5.0
"""Seconds from a line to the next of its kind."""
_MOST_KINDS = 16  # of lines: a stranger may choose the words of an error


@dataclass(frozen=True)
class View:
    """What a page shows of the last frame.

    Attributes:
        name: of the frame.
        cube: `(C, H, W)`, float32, in the unit of `output.unit`.
        wavelengths: nm, if known.
        picture: `(H, W, 3)`, uint8.
        number: counts frames that were reconstructed, from 1.
        came: when the frame was there, seconds since 1970.
        delay: seconds from then to its cube.
        seconds: that the frame took.
        method: in words.
    """

    name: str
    cube: np.ndarray
    wavelengths: tuple[float, ...] | None
    picture: np.ndarray
    number: int
    came: float
    delay: float
    seconds: float
    method: str


class Live:
    """Reconstructs the newest frame of a source, again and again; the others are dropped.

    A broken frame is named and skipped. Whatever else fails ends `run`: `state` says why.

    Args:
        settings: of cassi-reconstruct, without a measurement.
        source: of the frames.
        record: keeps raw frames and cubes, if there is one.
        say: is called with a line for each message.

    Raises:
        OSError: the mask cannot be read.
        ValueError: it is no mask.

    Attributes:
        view: of the last cube; None at first.
        dropped: frames that were left out to keep up.
        broken: frames that could not be read.
        notices: lines for the terminal and the page.
        warnings: of the camera check.
        paused: while it is set, no frame is taken.
        reason: why `run` has ended; "" while it goes on.
    """

    def __init__(
        self,
        settings: Reconstruct,
        source: Source,
        record: Recording | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        self.settings, self.source, self.record = settings, source, record
        self.notices = Notices(_print if say is None else say)
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
        self.warnings: list[str] = []
        self.paused = threading.Event()
        self.reason = ""
        self._stop = threading.Event()
        self._camera: Camera | None = None
        self._method: Any = None
        self._following: Any = None  # the sequence within it
        self._rung, self._last, self._between = 0, 0.0, 0.0

    @property
    def state(self) -> str:
        """What it does, in words."""
        if self.reason:
            return f"stopped: {self.reason}"
        if self.paused.is_set():
            return "paused"
        return "running" if self.view else "waits for the first frame"

    def stop(self) -> None:
        """End `run` after the present frame."""
        self._stop.set()

    def run(self) -> None:
        """Take frames until told to stop, or until something fails."""
        try:
            while not self._stop.is_set():
                frames = [] if self.paused.is_set() else self.source.poll()
                if frames:
                    self.take(frames)
                else:
                    time.sleep(_IDLE)
                self.notices.flush()
            self.reason = "the command ends"
        except Exception as error:
            is_end = isinstance(error, EOFError)  # of a video
            self.reason = printable(str(error) if is_end else describe_failure(error))
            self.notices.add(self.state)
            if not is_end and not is_usage_error(error):
                traceback.print_exc()

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
                self.notices.count(
                    "dropped",
                    len(whole) - 1,
                    lambda count: (
                        f"dropped {count:,} frame{'s' * (count > 1)} to keep up, "
                        f"{self.dropped:,} in all"
                    ),
                )
        frame, start = whole[-1], time.perf_counter()
        try:
            raw, view = self._reconstruct(frame, start)
        except (OSError, ValueError) as error:
            self._skip(frame, describe_failure(error))
            return
        self.view = view
        if self.record is not None:
            self.record.append(
                frame.name, frame.came, view.cube, view.picture, raw.numpy(), view.wavelengths
            )
        if self.done > 1:
            self._choose_rung(time.perf_counter() - start)

    def _reconstruct(self, frame: Frame, start: float) -> tuple[Tensor, View]:
        """Return the frame as it was read, and what a page shows of it."""
        assert frame.path is not None
        raw, y, system = self._read(frame.path)
        assert self._camera is not None
        x, unit = self._method.run(y, system).checked().x, self._camera.unit
        if unit is not None and unit.name is not None:
            x = unit.scene(x, unit.response(x))
        cube, wavelengths = x[0].float().cpu().numpy(), self._camera.wavelengths
        picture = srgb(cube, wavelengths, self.settings.output.illuminant)
        seconds = time.perf_counter() - start
        self.done += 1
        if self.done % CHECKED == 1:
            warnings = check_camera(y, system).warnings
            self.warnings = [f"{each.about}: {each.message}" for each in warnings]
        if self._following is not None:
            method = f"sequence, {LADDER[self._rung]} iterations"
        else:
            method = type(inner_of(self._method)).__name__
        delay, came = time.time() - frame.came, frame.came
        return raw, View(
            frame.name, cube, wavelengths, picture, self.done, came, delay, seconds, method
        )

    def _read(self, path: Path) -> tuple[Tensor, Tensor, System]:
        keys, axes = self.settings.keys.measurement, self.settings.axes.measurement
        counts = self.chain.bits is not None
        loaded = load_measurement(path, key=keys, axes=axes, finite=False, counts=counts)
        if self._camera is None:
            self._begin(path, loaded)
        assert self._camera is not None
        y, bad, _, _ = preprocess(self.chain, loaded.data, loaded.full_scale)
        system = self._camera.system.unweighted
        if tuple(y.shape[1:]) != tuple(system.measurement_shape):
            raise ValueError(
                f"expected a frame of {tuple(system.measurement_shape)}, as the first one, "
                f"got {tuple(y.shape[1:])}"
            )
        y = y.to(self.recipe.device)
        if bad is not None:
            system = system.weighted(bad_pixels=bad.to(y.device))
            y = system.without_bad_pixels(y)
        if self._camera.unit is not None:
            y = self._camera.unit.corrected(y, system)
        return loaded.data[0], y, system

    def _begin(self, path: Path, frame: Loaded) -> None:
        """Make camera and method for the first frame; they stay."""
        told = replace(self.settings, measurement=str(path))
        snapshot, method = prepare(told, self.recipe, self.loaded | {"measurement": frame})
        self._method = method
        with suppress(TypeError):  # no method on spectral components: each frame by itself
            self._following = Sequence(inner_of(method)).begin()
            self._method = around(method, self._following)
        camera = snapshot.camera
        unit = camera.unit and replace(camera.unit, wavelengths=camera.wavelengths)
        self._camera = replace(camera, unit=unit)
        for note in snapshot.notes:
            self.notices.add(note)

    def _measure_pace(self, frames: list[Frame]) -> None:
        newest = frames[-1].came
        if self._last and newest > self._last:
            between = (newest - self._last) / len(frames)
            self._between = between if not self._between else 0.8 * self._between + 0.2 * between
        self._last = newest

    def _choose_rung(self, seconds: float) -> None:
        if self._following is None or not self._between:
            return
        share, before = seconds / self._between, self._rung
        if share > SLOW:
            self._rung = min(self._rung + 1, len(LADDER) - 1)
        elif self._rung:  # what the better method would take, roughly
            better = share * LADDER[self._rung - 1] / LADDER[self._rung]
            self._rung -= share < FAST and better < SLOW
        if self._rung != before:
            self._following.shorten(LADDER[self._rung])
            iterations = LADDER[self._rung]
            self.notices.count("pace", 1, lambda _: f"{iterations} iterations a frame, to keep up")

    def _skip(self, frame: Frame, problem: str) -> None:
        self.broken += 1
        what = printable(problem)
        one, kind = f"skipped {printable(frame.name)}: {what}", what.replace(str(frame.path), "")
        self.notices.count(
            re.sub(r"\d+", "", kind),
            1,
            lambda count: one if count == 1 else f"skipped {count:,} frames: {what}",
        )


class Notices:
    """Lines for the terminal and the page: of one kind, one in five seconds says how many.

    Args:
        say: is called with each line.

    Attributes:
        lines: the last ones.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self.say, self.lines = say, list[str]()
        self._next = dict[str, float]()  # when a kind may have its next line
        self._waiting = dict[str, tuple[int, Callable[[int], str]]]()

    def add(self, line: str) -> None:
        """Say a line now."""
        self.lines = [*self.lines[-7:], line]
        self.say(line)

    def count(self, kind: str, number: int, words: Callable[[int], str]) -> None:
        """Count what happened; its line, of the number, comes when the last is old enough."""
        if kind not in self._next and len(self._next) >= _MOST_KINDS:
            kind = ""
        before, _ = self._waiting.get(kind, (0, words))
        self._waiting[kind] = before + number, words
        self.flush()

    def flush(self) -> None:
        """Say what has been counted for long enough."""
        now = time.monotonic()
        self._next = {kind: time for kind, time in self._next.items() if time > now}
        for kind in self._waiting.keys() - self._next.keys():
            number, words = self._waiting.pop(kind)
            self._next[kind] = now + _QUIET
            self.add(words(number))


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
