"""Live reconstruction: each new frame becomes a cube, with as many iterations as time allows."""

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
from cassi.apps.reconstructors.deadline import SEQUENCE_ITERATIONS, choose_method
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import make_recipe, prepare
from cassi.calibration import check_camera
from cassi.checks import printable
from cassi.data.day_store import FrameRecorder
from cassi.data.io import LoadedArray, load_mask, load_measurement
from cassi.methods import Sequence
from cassi.methods.along_dispersion import with_grid_of, without_grid
from cassi.methods.deadline import Choice
from cassi.methods.sequence import SequenceReconstructor
from cassi.pipeline.snapshot import Camera, Snapshot
from cassi.solvers import Reconstructor
from cassi.systems import System
from cassi.viz.color import srgb

MAX_BUSY_FRACTION, MIN_BUSY_FRACTION = 0.9, 0.5
"""Bounds of the busy fraction, which is the time per cube divided by the deadline. Without a
deadline, the time between frames takes its place. Above the first bound the next frame gets fewer
iterations. Below the second bound it gets more. The gap between the two keeps the number from
changing with every frame."""
FRAMES_PER_CHECK = 50
"""The camera check runs on the first frame and on every 50th one after it."""
_POLL_SECONDS = 0.02  # pause after a source had no frames; a longer one delays the next frame
_NOTICE_SECONDS = 5.0  # shortest time between two lines of the same kind
# Largest number of kinds of lines. A sender in the network can choose the words of an error, and
# could otherwise produce ever new kinds.
_MAX_KINDS = 16


@dataclass(frozen=True)
class FrameView:
    """The last cube and its frame, as a page shows them.

    Attributes:
        name: name of the frame.
        cube: `(C, H, W)`, float32, in the unit of `output.unit`.
        wavelengths: nm, if the settings have them.
        picture: the cube in colour, `(H, W, 3)`, uint8.
        number: number of the frame among those that were reconstructed, from 1.
        arrived_at: when the frame was there, seconds since 1970.
        delay: seconds from the arrival of the frame to its cube.
        processing_seconds: seconds from reading the frame to its cube.
        method: name of the method and its iterations.
    """

    name: str
    cube: np.ndarray
    wavelengths: tuple[float, ...] | None
    picture: np.ndarray
    number: int
    arrived_at: float
    delay: float
    processing_seconds: float
    method: str


class LiveReconstruction:
    """Reconstructs the newest frame of a source, again and again; older frames are dropped.

    A frame that cannot be read is reported and skipped. Any other failure ends `run`, and `state`
    gives the reason.

    Args:
        settings: settings of cassi-reconstruct, without a measurement.
        source: source of the frames.
        record: the store for raw frames and cubes, if there is one.
        say: called with each message, one line; by default it goes to stderr.
        deadline: seconds from reading a frame to its cube, in which the best method is chosen;
            None takes the method of the settings.

    Raises:
        OSError: the mask cannot be read.
        ValueError: the file holds no mask.

    Attributes:
        view: the last cube; None at first.
        n_done: number of frames that were reconstructed.
        n_dropped: number of frames that were dropped to keep up.
        n_broken: number of frames that could not be read.
        notices: lines for the terminal and the page.
        n_late: number of frames after the first one that took longer than the deadline.
        choice: the method that was chosen by the deadline.
        warnings: warnings of the camera check.
        paused: while it is set, no frame is taken.
        reason: why `run` has ended; "" while it runs.
    """

    def __init__(
        self,
        settings: Reconstruct,
        source: Source,
        record: FrameRecorder | None = None,
        say: Callable[[str], object] | None = None,
        deadline: float | None = None,
    ) -> None:
        self.settings, self.source, self.record = settings, source, record
        self.notices = Notices(_print if say is None else say)
        self.recipe = make_recipe(settings)
        self.preprocessing = make_preprocessing(vars(settings), settings.system)
        self.loaded_files: dict[str, LoadedArray] = {}
        # The mask is read now, so that its errors do not count as errors of the first frame.
        if not isinstance(settings.mask, dict):
            hints = {"key": settings.keys.mask, "axes": settings.axes.mask}
            bands = settings.bands or self.recipe.bands
            files = file_paths(settings.mask)
            self.loaded_files["mask"] = load_shots("mask", load_mask, files, bands=bands, **hints)
        self.view: FrameView | None = None
        self.n_done, self.n_dropped, self.n_broken, self.n_late = 0, 0, 0, 0
        self.deadline = deadline
        self.choice: Choice | None = None
        self.warnings: list[str] = []
        self.paused = threading.Event()
        self.reason = ""
        self._stop_event = threading.Event()
        self._camera: Camera | None = None
        self._method: Any = None
        # The part of the method that starts from the last cube; None for a method without it.
        self._sequence: Any = None
        self._rung = 0  # index in SEQUENCE_ITERATIONS
        self._last_arrival, self._frame_interval = 0.0, 0.0

    @property
    def state(self) -> str:
        """The present state, in words."""
        if self.reason:
            return f"stopped: {self.reason}"
        if self.paused.is_set():
            return "paused"
        return "running" if self.view else "waits for the first frame"

    def stop(self) -> None:
        """End `run` after the present frame."""
        self._stop_event.set()

    def run(self) -> None:
        """Reconstruct frames until `stop` is called, or until something fails."""
        try:
            while not self._stop_event.is_set():
                frames = [] if self.paused.is_set() else self.source.poll()
                if frames:
                    self.reconstruct_newest(frames)
                else:
                    time.sleep(_POLL_SECONDS)
                self.notices.flush()
            self.reason = "the command ends"
        except Exception as error:
            is_end = isinstance(error, EOFError)  # a video has no more frames
            self.reason = printable(str(error) if is_end else describe_failure(error))
            self.notices.add(self.state)
            if not is_end and not is_usage_error(error):
                traceback.print_exc()

    def reconstruct_newest(self, frames: list[Frame]) -> None:
        """Reconstruct the newest frame that can be read, and count the others."""
        readable = [frame for frame in frames if not frame.problem]
        for frame in frames:
            if frame.problem:
                self._skip(frame, frame.problem)
        self._measure_pace(frames)
        if not readable:
            return
        if len(readable) > 1:
            self.n_dropped += len(readable) - 1
            # Frames that arrived before the first cube are counted, but not reported.
            if self.n_done:
                self.notices.count("dropped", len(readable) - 1, self._describe_dropped)
        frame, start = readable[-1], time.perf_counter()
        try:
            raw, view = self._reconstruct(frame, start)
        except (OSError, ValueError) as error:
            self._skip(frame, describe_failure(error))
            return
        self.view = view
        if self.record is not None:
            self.record.append(
                frame.name, frame.arrived_at, view.cube, view.picture, raw.numpy(), view.wavelengths
            )
        # The first frame takes much longer: it sets up the camera and the method.
        if self.n_done > 1:
            self.n_late += self.deadline is not None and view.processing_seconds > self.deadline
            self._choose_rung(time.perf_counter() - start)

    def _describe_dropped(self, count: int) -> str:
        frames = "frame" if count == 1 else "frames"
        return f"dropped {count:,} {frames} to keep up, {self.n_dropped:,} in all"

    def _reconstruct(self, frame: Frame, start: float) -> tuple[Tensor, FrameView]:
        """Return the raw frame `(K, H', W')` and its view."""
        assert frame.path is not None
        raw, y, system = self._read(frame.path)
        assert self._camera is not None
        if self.deadline is not None and self.choice is None:
            snapshot = Snapshot(y, replace(self._camera, system=system))
            self._choose_method(snapshot, frame.path, self.deadline)
        cube, picture = self._compute(self._method, y, system)
        processing_seconds = time.perf_counter() - start
        self.n_done += 1
        if self.n_done % FRAMES_PER_CHECK == 1:
            warnings = check_camera(y, system).warnings
            self.warnings = [f"{warning.about}: {warning.message}" for warning in warnings]
        if self._sequence is not None:
            method = f"sequence, {SEQUENCE_ITERATIONS[self._rung]} iterations"
        elif self.choice is not None:
            method = self.choice.name
        else:
            method = type(without_grid(self._method)).__name__
        return raw, FrameView(
            name=frame.name,
            cube=cube,
            wavelengths=self._camera.wavelengths,
            picture=picture,
            number=self.n_done,
            arrived_at=frame.arrived_at,
            delay=time.time() - frame.arrived_at,
            processing_seconds=processing_seconds,
            method=method,
        )

    def _compute(
        self, method: Reconstructor, y: Tensor, system: System
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the cube of a frame, in the unit of the settings, and its picture in colour."""
        assert self._camera is not None
        x, unit = method.run(y, system).checked().x, self._camera.unit
        if unit is not None and unit.name is not None:
            x = unit.scene(x, unit.response(x))
        cube = x[0].float().cpu().numpy()
        return cube, srgb(cube, self._camera.wavelengths, self.settings.output.illuminant)

    def _read(self, path: Path) -> tuple[Tensor, Tensor, System]:
        key, axis_order = self.settings.keys.measurement, self.settings.axes.measurement
        has_counts = self.preprocessing.bits is not None
        # With `finite=False` a value that is not finite becomes a bad pixel, and no error.
        frame = load_measurement(path, key=key, axes=axis_order, finite=False, counts=has_counts)
        if self._camera is None:
            self._set_up(path, frame)
        assert self._camera is not None
        y, bad_pixels, _, _ = preprocess(self.preprocessing, frame.data, frame.full_scale)
        # The camera has the bad pixels of the first frame; every frame gets its own ones.
        system = self._camera.system.unweighted
        if tuple(y.shape[1:]) != tuple(system.measurement_shape):
            raise ValueError(
                f"expected a frame of {tuple(system.measurement_shape)}, as the first one, "
                f"got {tuple(y.shape[1:])}"
            )
        y = y.to(self.recipe.device)
        if bad_pixels is not None:
            system = system.weighted(bad_pixels=bad_pixels.to(y.device))
            y = system.without_bad_pixels(y)
        if self._camera.unit is not None:
            y = self._camera.unit.corrected(y, system)
        return frame.data[0], y, system

    def _set_up(self, path: Path, frame: LoadedArray) -> None:
        """Make camera and method for the first frame. All later frames use them, too."""
        settings = replace(self.settings, measurement=str(path))
        snapshot, method = prepare(
            settings, self.recipe, self.loaded_files | {"measurement": frame}
        )
        camera = snapshot.camera
        unit = camera.unit and replace(camera.unit, wavelengths=camera.wavelengths)
        self._camera = replace(camera, unit=unit)
        for note in snapshot.notes:
            self.notices.add(note)
        self._method = method
        if self.deadline is not None:
            return  # the first frame that can be reconstructed decides
        # `Sequence` raises TypeError for a method that does not work on spectral components, such
        # as a network. Such a method reconstructs each frame by itself.
        with suppress(TypeError):
            self._sequence = Sequence(without_grid(method)).begin()
            self._method = with_grid_of(method, self._sequence)

    def _choose_method(self, snapshot: Snapshot, path: Path, deadline: float) -> None:
        """Take the best method that keeps the deadline, from the file of a frame to its cube."""

        def run(method: Reconstructor) -> None:
            _, y, system = self._read(path)
            self._compute(method, y, system)

        self.notices.add("deadline: measures methods on the first frame")
        self.choice = choose_method(snapshot, deadline, run, is_sequence=True)
        self.notices.add(f"deadline: {self.choice}")
        self._method = self.choice.method
        method = without_grid(self._method)
        if isinstance(method, SequenceReconstructor):
            self._sequence, self._rung = method, SEQUENCE_ITERATIONS.index(method.count)

    def _measure_pace(self, frames: list[Frame]) -> None:
        """Update the time between frames by a moving average, which evens out late arrivals.

        The new interval has the weight 0.2. If the weight were larger, the average would follow a
        change faster, but also vary more when single frames are late.
        """
        last_arrival = frames[-1].arrived_at
        if self._last_arrival and last_arrival > self._last_arrival:
            interval = (last_arrival - self._last_arrival) / len(frames)
            if self._frame_interval:
                interval = 0.8 * self._frame_interval + 0.2 * interval
            self._frame_interval = interval
        self._last_arrival = last_arrival

    def _choose_rung(self, seconds: float) -> None:
        """Choose the number of iterations for the next frame by the seconds of this one."""
        available_seconds = self.deadline or self._frame_interval
        if self._sequence is None or not available_seconds:
            return
        busy_fraction, last_rung = seconds / available_seconds, self._rung
        if busy_fraction > MAX_BUSY_FRACTION:
            self._rung = min(self._rung + 1, len(SEQUENCE_ITERATIONS) - 1)
        elif self._rung and busy_fraction < MIN_BUSY_FRACTION:
            # The time of a cube grows roughly with its iterations. The number is raised only if the
            # cube would still be fast enough. Otherwise it would go up and down for ever.
            growth = SEQUENCE_ITERATIONS[self._rung - 1] / SEQUENCE_ITERATIONS[self._rung]
            if busy_fraction * growth < MAX_BUSY_FRACTION:
                self._rung -= 1
        if self._rung != last_rung:
            self._sequence.shorten(SEQUENCE_ITERATIONS[self._rung])
            iterations = SEQUENCE_ITERATIONS[self._rung]
            self.notices.count("pace", 1, lambda _: f"{iterations} iterations a frame, to keep up")

    def _skip(self, frame: Frame, problem: str) -> None:
        """Count a frame that cannot be reconstructed, and report the problem."""
        self.n_broken += 1
        reason = printable(problem)
        # Reasons that differ only in numbers or in the name of the file are of one kind.
        kind = re.sub(r"\d+", "", reason.replace(str(frame.path), ""))
        single_line = f"skipped {printable(frame.name)}: {reason}"
        self.notices.count(
            kind,
            1,
            lambda count: single_line if count == 1 else f"skipped {count:,} frames: {reason}",
        )


class Notices:
    """Lines for the terminal and the page. Lines of one kind come at most every five seconds.

    Args:
        say: called with each line.

    Attributes:
        lines: the last eight lines.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self.say, self.lines = say, list[str]()
        self._next = dict[str, float]()  # kind -> earliest time of its next line
        # kind -> number of events without a line, and the function that makes the line.
        self._waiting = dict[str, tuple[int, Callable[[int], str]]]()

    def add(self, line: str) -> None:
        """Print a line now."""
        self.lines = [*self.lines[-7:], line]
        self.say(line)

    def count(self, kind: str, n_events: int, make_line: Callable[[int], str]) -> None:
        """Count events of a kind; a line about them comes at most every `_NOTICE_SECONDS`.

        Args:
            kind: events of one kind share a line.
            n_events: number of new events.
            make_line: called with the number of events since the last line.
        """
        # All further kinds share one line.
        if kind not in self._next and len(self._next) >= _MAX_KINDS:
            kind = ""
        n_waiting, _ = self._waiting.get(kind, (0, make_line))
        self._waiting[kind] = n_waiting + n_events, make_line
        self.flush()

    def flush(self) -> None:
        """Print the lines of all kinds that have waited for long enough."""
        time_now = time.monotonic()
        self._next = {
            kind: next_time for kind, next_time in self._next.items() if next_time > time_now
        }
        for kind in self._waiting.keys() - self._next.keys():
            n_events, make_line = self._waiting.pop(kind)
            self._next[kind] = time_now + _NOTICE_SECONDS
            self.add(make_line(n_events))


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
