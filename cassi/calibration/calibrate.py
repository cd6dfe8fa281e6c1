"""Calibration of a camera from what it measured."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cassi.calibration.bend import Bend
from cassi.calibration.comparison import UNTOLD, Comparison
from cassi.calibration.fit import Fit, PlainScenes, Watch, silent
from cassi.calibration.geometry import Geometry, moved_camera
from cassi.calibration.heldout import Prepare, WithheldPixels
from cassi.calibration.lines import compare_moved, tells_dispersion
from cassi.calibration.parameters import FURTHER, PARAMETERS, PLACE
from cassi.calibration.search import farthest_bend, fit_curves, fit_places, with_richer
from cassi.calibration.selection import Selection, Stage
from cassi.calibration.windows import Frame
from cassi.camera.names import Names
from cassi.camera.place import Place
from cassi.systems import DDCassi, SDCassi, System, TiltedCassi, WideCassi

FITTED = 0.2
"""Share of the pixels that are withheld to fit the camera to."""
_TESTED = 0.05  # to test it by
_PIXELS = 30_000  # of all frames together; more cost time and tell little more


@dataclass(frozen=True)
class Value:
    """One number of the result.

    Attributes:
        name: with its unit.
        nominal: of a camera that is as it should be.
        value: found; the nominal one where it is not in the model.
        standard_error: infinite where nothing depends on it.
        in_model: whether it lowers the held-out error.
        note: why it is not, or where the search ended.
    """

    name: str
    nominal: float
    value: float
    standard_error: float
    in_model: bool
    note: str = ""


@dataclass(frozen=True)
class Calibration:
    """The result.

    Attributes:
        geometry: how far the camera is off; what is not in the model is nominal.
        model: keys of the parameters that differ from the nominal ones.
        errors: standard error of every parameter that was estimated, those beside the model too.
        system: the calibrated camera with all its pixels, of the nominal one's kind; `TiltedCassi`
            with a tilt.
        stages: every model that was tried, the nominal one first.
        before: held-out error of the nominal camera, from a reconstruction of its own.
        after: held-out error of the calibrated one.
        windows: number of windows that it began with.
        told: whether the frames tell the dispersion; if not, it is as it was given.
        light: mean of each band in the cube that predicts withheld pixels.
        searched: how far either way each parameter was searched, by key.
        dropped: models that were taken and are not the result's, each with the reason.
        place: of the mask, and the light along the dispersion, of a sensor's frame.
        names: offsets of the bands by the ends of that light.
        bend: of the dispersion, where a step alone was given and that light makes one likely.
        levels: mean light of each frame of known light, in its unit: what a band of value 1 gives
            under a mask of 1.
    """

    geometry: Geometry
    model: tuple[str, ...]
    errors: dict[str, float]
    system: SDCassi | TiltedCassi | WideCassi | DDCassi
    stages: list[Stage]
    before: float
    after: float
    windows: int
    told: bool = True
    light: tuple[float, ...] = ()
    searched: dict[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    place: Place | None = None
    names: Names | None = None
    bend: Bend | None = None
    levels: tuple[float, ...] = ()

    def superseded(self, reason: str, **changes: Any) -> "Calibration":
        """Return a result with these changes in place of the model taken, dropped for a reason."""
        stages = [replace(stage, taken=not stage.model) for stage in self.stages]
        names = ", ".join(PARAMETERS[key].name for key in self.model)
        dropped = (*self.dropped, f"{names}: {reason}") if names else self.dropped
        return replace(self, stages=stages, dropped=dropped, **changes)

    def estimates(self) -> list[Value]:
        """Return all that was estimated, with units for people: the blur's standard deviation."""
        found = []
        for key, error in self.errors.items():
            parameter = PARAMETERS[key]
            name, value = parameter.name, parameter.read(self.geometry)
            if key == "blur":
                name, value = "mask blur (px)", self.geometry.blur
                error = error / (2 * value) if value > 0 else error**0.5
            told = self._note(key, value)
            found.append(Value(name, parameter.nominal, value, error, key in self.model, told))
        return found

    def _note(self, key: str, value: float) -> str:
        reach = self.searched.get(key)
        if key in self.model:
            at_edge = reach is not None and abs(value) >= reach
            return f"at the edge of the search, ±{reach:g}" if at_edge else ""
        return "not significant" if reach is None else f"none found within ±{reach:g}"

    def standings(self, system: SDCassi) -> list[tuple[str, float, float]]:
        """Return how far each number is from nominal and how sure, in difference steps.

        Args:
            system: the nominal camera.

        Returns:
            Key, distance and standard error, each over `Parameter.step`: tenths of a pixel.
        """
        found = []
        for key, error in self.errors.items():
            parameter = PARAMETERS[key]
            away = parameter.read(self.geometry) - parameter.nominal
            step = parameter.step(system)
            found.append((key, away / step, error / step))
        return found


def calibrate(
    frames: Sequence[Frame],
    system: SDCassi,
    prepare: Prepare,
    *,
    radius: int = 2,
    degree: int = 2,
    gain: float = 0.02,
    seed: int = 0,
    watch: Watch = silent,
) -> Calibration:
    """Find how far a camera is from its nominal model.

    1. A search on a grid and a fit of plain scenes in windows find shift, rotation and dispersion
       roughly, see `Windows`.
    2. A fifth of the detector pixels is withheld from the reconstruction, which predicts them.
       Gauss–Newton steps minimise what it misses; for each difference quotient the cube is
       reconstructed anew, so that the camera's error does not hide in the cube.
    3. Further parameters (magnification, blur and contrast of the mask, curvature of the
       dispersion) are added, and superfluous ones taken away. Models are compared by their
       error on other withheld pixels: the richer one is kept only if its error is lower by `gain`
       and by two standard errors of the difference between sixteenths of the frames.

    Args:
        frames: snapshots, and frames of known light, by one camera.
        system: the nominal camera.
        prepare: returns what makes cubes of a measurement.
        radius: of the search for the shift, whole pixels; 0 starts at the nominal camera.
        degree: highest of the dispersion curve.
        gain: by which share the held-out error must fall for a further parameter.
        seed: of the draws of withheld pixels.
        watch: is told what is being tried, every few seconds.

    Raises:
        ValueError: the camera has a mask per sample, the frames do not fit it or are too dark or
            small, or a number is out of range.
    """
    _check(frames, system)
    check_search(radius, degree, gain)
    began = time.perf_counter()
    scenes = PlainScenes(frames, system, watch=watch)
    curve = [f"dispersion_{order}" for order in range(2, min(degree, system.bands - 1) + 1)]
    shown: bool | None = True
    places = fit_places(scenes, radius)
    moved: list[Fit] = []
    if system.bands > 1:
        shown = compare_moved(scenes, places[0].geometry) != 0
        if shown:  # else a search of curves would be in vain
            moved = fit_curves(scenes, radius, bool(curve), places[0])
            shown = tells_dispersion(frames, system, moved[0].geometry, places[0].geometry)

    def select(told: bool | None) -> Calibration:
        place: tuple[str, ...] = PLACE[:-1]
        further: tuple[str, ...] = FURTHER
        fits = places
        if told is not False and moved:
            place, further, fits = PLACE, (*curve, *FURTHER), moved
        fits = with_richer(scenes, fits, radius, further)
        fitted, tested = _hold_out(scenes, fits[0].geometry, prepare, seed)
        compare = Comparison(scenes, fitted, tested, gain)
        selection = Selection(compare, place, further, began)
        model, geometry = selection.run(fits)
        before, after = selection.nominal, tested.predict(geometry)
        kept = compare.is_better(after, before, UNTOLD if told is False else 1)
        if told and not kept and any(key in curve for key in model):
            # A curve in lines that plain scenes are sure of need not predict better.
            kept = compare.is_sure(geometry, Geometry()) and not compare.is_better(before, after)
        selection.note(model, geometry, after, kept)
        found = Calibration(
            geometry,
            model,
            selection.errors,
            moved_camera(system, geometry),
            selection.stages,
            before.error,
            after.error,
            fits[0].windows,
            told is not False,
            tuple(after.cube.mean((0, 2, 3)).tolist()),
            {"down": radius, "right": radius, "dispersion_2": farthest_bend(system)},
        )
        if kept:
            return found
        found = found.superseded(
            "held-out pixels are not predicted better by enough",
            geometry=Geometry(),
            model=(),
            system=moved_camera(system, Geometry()),
            after=before.error,
            light=tuple(before.cube.mean((0, 2, 3)).tolist()),
        )
        if told is None:
            again = select(False)
            return replace(again, dropped=(*found.dropped, *again.dropped))
        return found

    return select(shown)


def _hold_out(
    scenes: PlainScenes, start: Geometry, prepare: Prepare, seed: int
) -> list[WithheldPixels]:
    """Withhold pixels of the snapshots to fit the camera to, and others to test it by."""
    system, shown = scenes.system, [frame for frame in scenes.frames if frame.points is None]
    y, good = torch.cat([frame.y for frame in shown]), None
    camera: System = moved_camera(system, start)
    if any(frame.good is not None for frame in shown):
        whole = torch.ones((), dtype=torch.bool, device=y.device)
        goods = [(whole if f.good is None else f.good).expand_as(f.y) for f in shown]
        good = torch.cat(goods)
        camera = camera.weighted(bad_pixels=~good)
    reconstruct = prepare(y, camera)
    return [
        WithheldPixels(y, system, reconstruct, share, 2 * seed + k, _PIXELS, good, scenes.watch)
        for k, share in enumerate((FITTED, _TESTED))
    ]


def check_search(radius: int = 2, degree: int = 2, gain: float = 0.02) -> None:
    """Raise ValueError where a setting of `calibrate` is out of its range."""
    if not 0 <= radius <= 20:
        raise ValueError(f"radius: expected 0 to 20 pixels, got {radius}")
    if not 1 <= degree <= 5:
        raise ValueError(f"degree: expected 1 to 5, got {degree}")
    if not 0 <= gain < 1:
        raise ValueError(f"gain: expected a share from 0 to below 1, got {gain}")


def _check(frames: Sequence[Frame], system: SDCassi) -> None:
    if type(system) is not SDCassi:  # the others move other things
        raise ValueError(f"calibration: expected SDCassi, got {type(system).__name__}")
    if system.mask.ndim != 4:
        raise ValueError("calibration: expected one mask for all samples, got a mask per sample")
    if not frames:
        raise ValueError("calibration: expected at least one frame, got none")
    for frame in frames:
        if tuple(frame.y.shape[1:]) != system.measurement_shape:
            raise ValueError(
                f"calibration: expected frames (B, K, H', W') = (B, "
                f"{', '.join(map(str, system.measurement_shape))}), got {tuple(frame.y.shape)}"
            )
