"""Calibration of a camera from what it measured."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cassi.calibration.combine import SHOWN, fuse, widened, widened_error
from cassi.calibration.fit import Fit, are_near, fit_geometry, search_start, significant, sureness
from cassi.calibration.geometry import Geometry, moved_camera, on_pixels, placed
from cassi.calibration.heldout import HeldOut, Prediction, Prepare
from cassi.calibration.parameters import CODE, PARAMETERS, PLACE, SHARED, SHIFT, TILT, changed
from cassi.calibration.refine import Estimate, Slopes, refine
from cassi.calibration.windows import Frame
from cassi.systems import SDCassi, TiltedCassi

_TIE = 0.05  # in objective: minima of plain scenes this close are tried with reconstructions
_BENT = 0.5  # px at the last band: a curve from which the search may start too
_VALLEYS = 2  # of these, richer models are tried
_ASKED = 5.0  # standard errors, of what is further asked for: of many the largest counts
_CLEAR = 3  # times `gain`, by which another valley must predict better
_APART = 1.0  # difference steps, that estimates of the same minimum differ by
_FITTED, _TESTED = 0.2, 0.05  # shares of the pixels that are withheld
_PIXELS = 30_000  # of all frames together; more cost time and tell little more
_SIGNIFICANT = 3.0  # standard errors, of what is believed
_SURER = 2.0  # standard errors, by which the held-out error of a richer model is lower


@dataclass(frozen=True)
class Stage:
    """A model of the camera that was tried.

    Attributes:
        model: keys of the parameters that it has free; none is the nominal camera.
        geometry: what was found.
        error: held-out: ‖y − Ax‖/‖y‖ over pixels that neither cube nor geometry was fitted to.
        taken: whether it was preferred to the one before.
        seconds: since the start of the calibration.
    """

    model: tuple[str, ...]
    geometry: Geometry
    error: float
    taken: bool
    seconds: float


@dataclass(frozen=True)
class Value:
    """One number of the result.

    Attributes:
        name: with its unit.
        nominal: of a camera that is as it should be.
        value: found; the nominal one where it is not in the model.
        standard_error: infinite where nothing depends on it.
        in_model: whether it lowers the held-out error.
    """

    name: str
    nominal: float
    value: float
    standard_error: float
    in_model: bool


@dataclass(frozen=True)
class Calibration:
    """The result.

    Attributes:
        geometry: how far the camera is off; what is not in the model is nominal.
        model: keys of the parameters that differ from the nominal ones.
        errors: standard error of every parameter that was estimated, those beside the model too.
        system: the calibrated camera; `TiltedCassi` with a tilt.
        stages: every model that was tried, the nominal one first.
        before: held-out error of the nominal camera, from a reconstruction of its own.
        after: held-out error of the calibrated one.
        windows: the fit of plain scenes that it began with.
    """

    geometry: Geometry
    model: tuple[str, ...]
    errors: dict[str, float]
    system: SDCassi | TiltedCassi
    stages: list[Stage]
    before: float
    after: float
    windows: Fit

    def estimates(self) -> list[Value]:
        """Return all that was estimated, with units for people: the blur's standard deviation."""
        found = []
        for key, error in self.errors.items():
            parameter = PARAMETERS[key]
            name, value = parameter.name, parameter.read(self.geometry)
            if key == "blur":
                name, value = "mask blur (px)", self.geometry.blur
                error = error / (2 * value) if value > 0 else error**0.5
            found.append(Value(name, parameter.nominal, value, error, key in self.model))
        return found

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

    Raises:
        ValueError: the camera has a mask per sample, the frames do not fit it or are too dark or
            small, or a number is out of range.
    """
    _check(frames, system, radius, degree, gain)
    return _Search(frames, system, prepare, degree, gain, seed).run(radius)


class _Search:
    """One calibration: the models that were tried so far."""

    def __init__(
        self,
        frames: Sequence[Frame],
        system: SDCassi,
        prepare: Prepare,
        degree: int,
        gain: float,
        seed: int,
    ) -> None:
        self.frames, self.system, self.gain = frames, system, gain
        self.began = time.perf_counter()
        self.prepare, self.seed = prepare, seed
        shown = [frame for frame in frames if frame.points is None]
        self.y = torch.cat([frame.y for frame in shown])
        self.good = None
        if any(frame.good is not None for frame in shown):
            every = torch.ones((), dtype=torch.bool, device=self.y.device)
            goods = [every if frame.good is None else frame.good for frame in shown]
            self.good = torch.cat(
                [good.expand_as(frame.y) for good, frame in zip(goods, shown, strict=True)]
            )
        highest = min(degree, system.bands - 1)
        curve = [f"dispersion_{order}" for order in range(2, highest + 1)]
        self.further = (*curve, "magnification", "blur", "contrast")
        self.place: tuple[str, ...] = PLACE if system.bands > 1 else PLACE[:-1]
        self.stages: list[Stage] = []
        self.errors: dict[str, float] = {}
        self.fused: frozenset[str] = frozenset()  # keys of which the errors are wide already

    def run(self, radius: int) -> Calibration:
        fits = self._fit_windows(radius)
        camera: Any = moved_camera(self.system, fits[0].geometry)
        if self.good is not None:
            camera = camera.weighted(bad_pixels=~self.good)
        reconstruct = self.prepare(self.y, camera)
        self.fitted, self.tested = (
            HeldOut(
                self.y,
                self.system,
                reconstruct,
                share=share,
                seed=2 * self.seed + k,
                pixels=_PIXELS,
                good=self.good,
            )
            for k, share in enumerate((_FITTED, _TESTED))
        )
        nominal = self.tested.predict(Geometry())
        self._note((), Geometry(), nominal, True)
        between = any(map(self._bends, fits))
        tries = (
            self._search(fits, nominal, way) for way in ((True, False) if between else (False,))
        )
        model, geometry = next(filter(None, tries))
        after = self.tested.predict(geometry)
        lower = self._is_better(after, nominal)
        if not lower and self._is_sure(geometry, Geometry()):
            # In noise a few pixels tell little.
            errors = [self.fitted.predict(each).error for each in (geometry, Geometry())]
            lower = errors[0] < errors[1]
        self._note(model, geometry, after, lower)
        if not lower:
            model, geometry, after = (), Geometry(), nominal
        return Calibration(
            geometry,
            model,
            self._errors(),
            moved_camera(self.system, geometry),
            self.stages,
            nominal.error,
            after.error,
            fits[0],
        )

    def _search(
        self, fits: Sequence[Fit], nominal: Prediction, between: bool
    ) -> tuple[tuple[str, ...], Geometry] | None:
        """Return model and geometry that predict best, from the fits of plain scenes on.

        All are compared with bands between pixels, or all with bands on them: where light is
        shared between pixels, those are predicted better, whatever the camera. None where bands
        that were thought to lie between pixels turn out to lie on them.
        """
        if between:
            fits = [replace(fit, geometry=on_pixels(fit.geometry, self.system)) for fit in fits]
        else:
            fits = [
                replace(fit, geometry=replace(fit.geometry, whole=None))
                for fit in fits
                if not set(fit.keys) & set(SHARED)
            ]
        model, start = self._begin(fits, nominal)
        if between and any(fit.geometry == start and not self._bends(fit) for fit in fits):
            return None
        cube = self.fitted.predict(start).cube
        found = refine(self.fitted, start, model, cube, 2)
        told = found.solve(model)
        if between and not self._is_between(told.geometry, told.errors):
            return None
        model, found = self._grow(model, found)
        geometry = placed(self._shrink(model, found), self.system)
        if between and geometry.whole is None:
            return None
        return tuple(key for key in model if PARAMETERS[key].is_changed(geometry)), geometry

    def _errors(self) -> dict[str, float]:
        """Return the standard errors, those of predictions alone with what their parts share."""
        order = list(PARAMETERS)
        return {
            key: error if key in self.fused else widened_error(error, key, self.system)
            for key, error in sorted(self.errors.items(), key=lambda item: order.index(item[0]))
        }

    def _fit_windows(self, radius: int) -> list[Fit]:
        """Fit plain scenes: the place in each valley, then what else they ask for; best first."""
        frames, system, nominal = self.frames, self.system, Geometry(whole=0)
        places = search_start(frames, system, nominal, radius)
        fits = [fit_geometry(frames, system, place, self.place) for place in places]
        fits = _different(sorted(fits, key=lambda fit: fit.objectives[-1]), system)
        fits = [fit for fit in fits if fit.objectives[-1] <= fits[0].objectives[-1] + _TIE]
        richer = [
            fit_geometry(frames, system, place)
            for place in search_start(frames, system, nominal, radius, bent=_BENT)
            if "dispersion_2" in self.further
        ]
        for fit in fits[:_VALLEYS]:
            # Without a blur that there is, shift and step make up for it.
            blurred = fit_geometry(frames, system, fit.geometry, (*self.place, "blur"))
            if self._is_asked(blurred, "blur"):
                fit = blurred
                richer.append(fit)
            left = [key for key in (*self.further, *TILT) if key not in fit.keys]
            asked = significant(frames, system, fit, left, _ASKED)
            if TILT[0] in asked:
                asked.remove(TILT[0])
                richer += self._fit_tilted(fit)
            if asked:
                richer.append(fit_geometry(frames, system, fit.geometry, (*fit.keys, *asked)))
        if any(map(self._bends, (*fits, *richer))):
            richer += self._fit_shared(radius)
        # More parameters fit better where they are right.
        richer = [fit for fit in richer if fit.objectives[-1] <= fits[0].objectives[-1] + _TIE]
        richer.sort(key=lambda fit: (len(fit.keys), fit.objectives[-1]))
        return _different([*fits, *richer], system)

    def _fit_shared(self, radius: int) -> list[Fit]:
        """Fit plain scenes with the mask between pixels too, and a tilt if they ask for it.

        The search begins with the mask half a pixel between: without that, bands between pixels
        have valleys beside each other, and the step that fits best is wrong.
        """
        frames, system = self.frames, self.system
        halfway = Geometry(whole=0, interpolated=0.5)
        found = []
        for place in search_start(frames, system, halfway, radius):
            fit = fit_geometry(frames, system, place, (*self.place, *SHARED))
            if not self._is_asked(fit, SHARED[0]):
                continue
            found += [fit, *self._fit_tilted(fit)]
        return found

    def _fit_tilted(self, fit: Fit) -> list[Fit]:
        """Return a fit with a tilt, turned about the band that fits best; none if none is asked."""
        if self.system.offsets[0] == self.system.offsets[-1]:
            return []
        starts = [replace(fit.geometry, pivot=pivot) for pivot in (0.5, 0.0, 1.0)]
        keys = (*fit.keys, *TILT)
        fits = [fit_geometry(self.frames, self.system, start, keys) for start in starts]
        best = min(fits, key=lambda each: each.objectives[-1])
        return [best] if self._is_asked(best, TILT[0]) else []

    def _is_asked(self, fit: Fit, key: str) -> bool:
        """Tell whether plain scenes ask for a parameter."""
        away = abs(PARAMETERS[key].read(fit.geometry) - PARAMETERS[key].nominal)
        return away > _ASKED * fit.errors[fit.keys.index(key)]

    def _bends(self, fit: Fit) -> bool:
        """Tell whether plain scenes are sure of a curve that puts bands between pixels."""
        return self._is_between(fit.geometry, dict(zip(fit.keys, fit.errors, strict=True)))

    def _is_between(self, geometry: Geometry, errors: Mapping[str, float]) -> bool:
        """Tell whether bands fall between pixels, by the curve that is sure."""
        unsure = {
            key: 0.0
            for key, error in errors.items()
            if key.startswith("dispersion") and abs(PARAMETERS[key].read(geometry)) < _ASKED * error
        }
        return placed(changed(geometry, unsure), self.system).whole is not None

    def _begin(self, fits: Sequence[Fit], nominal: Prediction) -> tuple[tuple[str, ...], Geometry]:
        """Return model and geometry to start from.

        That is the deepest fit of plain scenes, unless predictions contradict. Others must predict
        better; a blur or a curve that plain scenes are sure of must not predict worse: in noise
        they know more of it.
        """
        model, start, reached = self.place, Geometry(), nominal
        for fit in fits:
            tried = self.tested.predict(fit.geometry)
            bends = fit.keys == (*model, "dispersion_2")
            trusted = bends or start == Geometry()
            trusted = trusted or fit.keys in ((*model, "blur"), (*model, *TILT))
            if trusted and self._is_sure(fit.geometry, start):
                taken = not self._is_better(reached, tried)
            else:
                taken = self._is_better(tried, reached)
                if taken and not are_near(fit.geometry, start, self.system):
                    taken = self._is_contradicted(start, reached, fit.geometry, tried)
            self._note(fit.keys, fit.geometry, tried, taken)
            if taken:
                model, start, reached = fit.keys, fit.geometry, tried
        self.cube = reached.cube
        return model, start

    def _grow(self, model: tuple[str, ...], found: Slopes) -> tuple[tuple[str, ...], Slopes]:
        """Add parameters as long as one lowers the held-out error."""
        left, lowest = [key for key in self.further if key not in model], None
        self.errors = found.solve(model).errors
        while left:
            found = found.extended(self.fitted, [key for key in left if key not in found.keys])
            plain = found.solve(model)
            tries = {key: self._try(key, found, model) for key in left}
            self.errors |= {key: tried.errors[key] for key, tried in tries.items()}
            best = max(tries, key=lambda key: tries[key].gain)
            tried = tries[best]
            away = abs(PARAMETERS[best].read(tried.geometry) - PARAMETERS[best].nominal)
            left.remove(best)
            if away < _ASKED * tried.errors[best]:
                continue
            if lowest is None:
                lowest = self.tested.predict(plain.geometry, self.cube)
            reached = self.tested.predict(tried.geometry, self.cube)
            taken = self._is_better(reached, lowest)
            if taken and best not in CODE:
                taken = self._moves(reached, tried.geometry, plain.geometry)
            self._note((*model, best), tried.geometry, reached, taken)
            if not taken:
                continue
            model, lowest, self.cube = (*model, best), None, reached.cube
            found = refine(self.fitted, tried.geometry, model, found.prediction.cube, 2)
            self.errors |= found.solve(model).errors
        return model, found

    def _try(self, key: str, found: Slopes, model: tuple[str, ...]) -> Estimate:
        estimate = found.solve((*model, key))
        return self._between(estimate, [key]) if key in CODE else estimate

    def _between(self, estimate: Estimate, keys: Sequence[str]) -> Estimate:
        """Put blur and contrast in the middle between predictions and plain scenes.

        A reconstruction predicts best with less contrast than there is, the more the less it knows
        of the scene; plain scenes fit best with more, by about as much. Half of what they differ by
        is a standard error.
        """
        geometry, errors = estimate.geometry, dict(estimate.errors)
        plain = fit_geometry(self.frames, self.system, geometry, keys).geometry
        for key in keys:
            ends = [PARAMETERS[key].read(each) for each in (geometry, plain)]
            geometry = changed(geometry, {key: sum(ends) / 2})
            errors[key] = math.hypot(errors[key], (ends[0] - ends[1]) / 2)
        return replace(estimate, geometry=geometry, errors=errors)

    def _moves(self, reached: Prediction, geometry: Geometry, plain: Geometry) -> bool:
        """Tell whether a step predicts better than the same step the other way.

        Between pixels the camera interpolates linearly, which blurs, and a blur alone can predict
        better; it is the same either way, movement is not.
        """
        other = changed(
            geometry,
            {
                key: 2 * PARAMETERS[key].read(plain) - PARAMETERS[key].read(geometry)
                for key in (*self.place, *self.further)
                if key not in CODE
            },
        )
        return self._is_better(reached, self.tested.predict(other, self.cube))

    def _shrink(self, model: tuple[str, ...], found: Slopes) -> Geometry:
        """Take parameters away that do not lower the held-out error."""

        def solve(gone: Sequence[str]) -> Geometry:
            estimate = found.solve([key for key in model if key not in gone], gone)
            code = [key for key in model if key in CODE and key not in gone]
            if code:
                estimate = self._between(estimate, code)
                self.errors |= {key: estimate.errors[key] for key in code}
            return estimate.geometry

        geometry = solve(())
        plain_scenes = fit_geometry(self.frames, self.system, geometry, model)
        covariance = widened(plain_scenes.covariance, SHOWN, model, self.system)
        seen = dict(zip(model, covariance.diagonal().sqrt().tolist(), strict=True))
        alone = dict(zip(model, plain_scenes.errors, strict=True))
        seen |= {key: alone[key] for key in model if key in CODE}
        rich = self.tested.predict(geometry, self.cube)
        gone: tuple[str, ...] = ()
        for key in [key for key in reversed(model) if key not in SHIFT]:
            tried = solve((*gone, key))
            plain = self.tested.predict(tried, self.cube)
            nominal, read = PARAMETERS[key].nominal, PARAMETERS[key].read
            known = self._is_known(key, geometry)
            away = abs(read(plain_scenes.geometry) - nominal)
            shown = away > _ASKED * seen[key] and not self._is_better(plain, rich)
            better = self._is_better(rich, plain)
            if key in (*SHARED, *TILT):
                better = better and away > _ASKED * alone[key]
            elif not better:
                better = shown
            elif not shown and key not in (*PLACE, *CODE):
                better = self._moves(rich, geometry, tried)
            if not (known and better):
                geometry, rich, gone = tried, plain, (*gone, key)
        fused = self._fused(found, model, gone, geometry)
        while lost := [
            key
            for key in model
            if key not in (*SHIFT, *CODE, *gone) and not self._is_known(key, fused)
        ]:
            gone = (*gone, *lost)
            fused = self._fused(found, model, gone, solve(gone))
        return fused

    def _is_known(self, key: str, geometry: Geometry) -> bool:
        """Tell whether a parameter is significantly off its nominal value."""
        parameter = PARAMETERS[key]
        away = abs(parameter.read(geometry) - parameter.nominal)
        place = (*PLACE, *CODE, *SHARED, *TILT)
        return away > (_SIGNIFICANT if key in place else _ASKED) * self.errors[key]

    def _fused(
        self, found: Slopes, model: Sequence[str], gone: Sequence[str], geometry: Geometry
    ) -> Geometry:
        """Return the mean of predictions and plain scenes, or of plain scenes alone."""
        self.fused = frozenset()
        kept = [key for key in model if key not in gone]
        free = [key for key in kept if key not in CODE]
        shown = fit_geometry(self.frames, self.system, geometry, free)
        told = found.solve(kept, gone)
        mean = fuse(shown, replace(told, geometry=geometry), kept, free, self.system)
        if mean.apart > _APART:  # another valley
            reached, tried = (self.tested.predict(each) for each in (geometry, shown.geometry))
            if self._is_better(reached, tried):
                return geometry
            mean = fuse(shown, None, kept, free, self.system)
        self.errors |= mean.errors
        self.fused = frozenset(free)
        return changed(geometry, mean.values)

    def _is_sure(self, geometry: Geometry, other: Geometry) -> bool:
        """Tell whether plain scenes fit one geometry significantly better than another."""
        return sureness(self.frames, self.system, geometry, other) > _SIGNIFICANT

    def _is_contradicted(
        self, start: Geometry, reached: Prediction, other: Geometry, tried: Prediction
    ) -> bool:
        """Tell whether another valley predicts much better than where one is, in both draws.

        Where a reconstruction from nothing ends depends on details, in noise by some per cent.
        """
        if tried.error > (1 - _CLEAR * self.gain) * reached.error:
            return False
        ends = [self.fitted.predict(each) for each in (start, other)]
        return ends[1].error < (1 - _CLEAR * self.gain) * ends[0].error

    def _is_better(self, rich: Prediction, plain: Prediction) -> bool:
        """Tell whether a richer model predicts better, by enough and in most parts of the frames.

        Parts are compared by the ratio of their errors, and pixels weighted: a few that no camera
        predicts, at edges, would decide else.
        """
        place, weights = self.tested.place, plain.weights
        squares = [weights * each.residual.square() for each in (plain, rich)]
        if squares[1].sum() >= (1 - self.gain) ** 2 * squares[0].sum():
            return False
        many = int(place.max()) + 1
        parts = [value.new_zeros(many).index_add_(0, place, value) for value in squares]
        falls = (parts[0] / parts[1])[parts[1] > 0].log()
        return bool(falls.mean() > _SURER * falls.std() / len(falls) ** 0.5)

    def _note(
        self, model: tuple[str, ...], geometry: Geometry, found: Prediction, taken: bool
    ) -> None:
        seconds = time.perf_counter() - self.began
        self.stages.append(Stage(model, geometry, found.error, taken, seconds))


def _different(fits: Sequence[Fit], system: SDCassi) -> list[Fit]:
    """Return the first fit of each minimum and model."""
    found: list[Fit] = []
    for fit in fits:
        alike = [other.geometry for other in found if other.keys == fit.keys]
        if not any(are_near(fit.geometry, other, system) for other in alike):
            found.append(fit)
    return found


def _check(frames: Sequence[Frame], system: SDCassi, radius: int, degree: int, gain: float) -> None:
    if type(system) is not SDCassi:  # the others move other things
        raise ValueError(f"calibration: expected SDCassi, got {type(system).__name__}")
    if system.mask.ndim != 4:
        raise ValueError("calibration: expected one mask for all samples, got a mask per sample")
    if not 0 <= radius <= 20:
        raise ValueError(f"radius: expected 0 to 20 pixels, got {radius}")
    if not 1 <= degree <= 5:
        raise ValueError(f"degree: expected 1 to 5, got {degree}")
    if not 0 <= gain < 1:
        raise ValueError(f"gain: expected a share from 0 to below 1, got {gain}")
    if not frames:
        raise ValueError("calibration: expected at least one frame, got none")
    for frame in frames:
        if tuple(frame.y.shape[1:]) != system.measurement_shape:
            raise ValueError(
                f"calibration: expected frames (B, K, H', W') = (B, "
                f"{', '.join(map(str, system.measurement_shape))}), got {tuple(frame.y.shape)}"
            )
