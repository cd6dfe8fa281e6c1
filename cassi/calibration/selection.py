"""Which parameters a camera needs: models are compared by withheld pixels."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cassi.calibration.combine import PLAIN, halfway, weighted_mean, widened, widened_error
from cassi.calibration.comparison import Comparison
from cassi.calibration.fit import CLEAR, Fit, are_near
from cassi.calibration.geometry import Geometry, on_pixels, placed
from cassi.calibration.heldout import Prediction
from cassi.calibration.parameters import CODE, PARAMETERS, SHARED, SHIFT, TILT
from cassi.calibration.refine import Slopes, Step, refine

_APART = 1.0  # difference steps, that estimates of the same minimum differ by
_SIGNIFICANT = 3.0  # standard errors, of what is believed


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


class Selection:
    """Chooses the model that predicts withheld pixels best.

    Args:
        compare: cameras by what they predict.
        place: keys of the parameters that every model begins with.
        further: keys of those that may be added.
        began: when the calibration did, by `time.perf_counter`.

    Attributes:
        stages: every model that was tried, the nominal one first.
    """

    def __init__(
        self, compare: Comparison, place: Sequence[str], further: Sequence[str], began: float
    ) -> None:
        self.compare, self.scenes = compare, compare.scenes
        self.system, self.place, self.further = compare.system, tuple(place), further
        self.began, self.stages = began, list[Stage]()
        self.nominal = compare.tested.predict(Geometry())
        self.note((), Geometry(), self.nominal, True)
        self._errors: dict[str, float] = {}
        self._combined: frozenset[str] = frozenset()  # keys of which the errors are wide already

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors, those of predictions alone with what their parts share."""
        return {
            key: self._errors[key]
            if key in self._combined
            else widened_error(self._errors[key], key, self.system)
            for key in PARAMETERS
            if key in self._errors
        }

    def note(
        self, model: tuple[str, ...], geometry: Geometry, found: Prediction, taken: bool
    ) -> None:
        """Note that a model was tried."""
        seconds = time.perf_counter() - self.began
        self.scenes.watch(f"{' '.join(model) or 'nominal'}: held-out error {found.error:.4f}")
        self.stages.append(Stage(model, geometry, found.error, taken, seconds))

    def run(self, fits: Sequence[Fit]) -> tuple[tuple[str, ...], Geometry]:
        """Return model and geometry that predict best, from fits of plain scenes on.

        All are compared with bands between pixels, or all with bands on them: where light is shared
        between pixels, those are predicted better, whatever the camera. Between pixels they are
        tried first where plain scenes are sure that they lie there.
        """
        if any(fit.is_between(self.system) for fit in fits):
            between = [replace(fit, geometry=on_pixels(fit.geometry, self.system)) for fit in fits]
            model, start = self._begin(between)
            chosen = [fit for fit in between if fit.geometry == start]
            if all(fit.is_between(self.system) for fit in chosen):
                return self._refine(model, start)
        on = [fit for fit in fits if not set(fit.keys) & set(SHARED)]
        on = [replace(fit, geometry=replace(fit.geometry, whole=None)) for fit in on]
        return self._refine(*self._begin(on))

    def _refine(self, model: tuple[str, ...], start: Geometry) -> tuple[tuple[str, ...], Geometry]:
        """Return model and geometry that predict best, from one fit on."""
        cube = self.compare.fitted.predict(start).cube
        found = refine(self.compare.fitted, start, model, cube)
        model, found = self._grow(model, found)
        geometry = placed(self._shrink(model, found), self.system)
        return tuple(key for key in model if PARAMETERS[key].distance(geometry)), geometry

    def _begin(self, fits: Sequence[Fit]) -> tuple[tuple[str, ...], Geometry]:
        """Return model and geometry to start from.

        That is the deepest fit of plain scenes, unless predictions contradict. Others must predict
        better; a blur or a curve that plain scenes are sure of must not predict worse: in noise
        they know more of it.
        """
        compare = self.compare
        model, start, reached = self.place, Geometry(), self.nominal
        for fit in fits:
            tried = compare.tested.predict(fit.geometry)
            added = fit.keys[len(model) :] if fit.keys[: len(model)] == model else None
            trusted = start == Geometry() or added in (("dispersion_2",), ("blur",), TILT)
            trusted = trusted or "dispersion_3" in fit.keys  # a prism's curve is a valley by itself
            if trusted and compare.is_sure(fit.geometry, start):
                taken = not compare.is_better(reached, tried)
            else:
                taken = compare.is_better(tried, reached)
                if taken and not are_near(fit.geometry, start, self.system):
                    taken = compare.is_contradicted(start, reached, fit.geometry, tried)
            self.note(fit.keys, fit.geometry, tried, taken)
            if taken:
                model, start, reached = fit.keys, fit.geometry, tried
        self.cube = reached.cube
        return model, start

    def _grow(self, model: tuple[str, ...], found: Slopes) -> tuple[tuple[str, ...], Slopes]:
        """Add parameters as long as one lowers the held-out error."""
        compare, lowest = self.compare, None
        left = [key for key in self.further if key not in model]
        self._errors = found.solve(model).errors
        while left:
            found = found.extended(compare.fitted, [key for key in left if key not in found.keys])
            plain = found.solve(model)
            tries = {key: self._try(key, found, model) for key in left}
            self._errors |= {key: tried.errors[key] for key, tried in tries.items()}
            best = max(tries, key=lambda key: tries[key].gain)
            tried = tries[best]
            left.remove(best)
            if not tried.is_clear(best):
                continue
            if lowest is None:
                lowest = compare.tested.predict(plain.geometry, self.cube)
            reached = compare.tested.predict(tried.geometry, self.cube)
            taken = compare.is_better(reached, lowest)
            self.note((*model, best), tried.geometry, reached, taken)
            if not taken:
                continue
            model, lowest, self.cube = (*model, best), None, reached.cube
            found = refine(compare.fitted, tried.geometry, model, found.prediction.cube)
            self._errors |= found.solve(model).errors
        return model, found

    def _try(self, key: str, found: Slopes, model: tuple[str, ...]) -> Step:
        step = found.solve((*model, key))
        return halfway(self.scenes, step, [key]) if key in CODE else step

    def _shrink(self, model: tuple[str, ...], found: Slopes) -> Geometry:
        """Take parameters away that do not lower the held-out error."""
        compare = self.compare

        def solve(gone: Sequence[str]) -> Geometry:
            step = found.solve([key for key in model if key not in gone], gone)
            code = [key for key in model if key in CODE and key not in gone]
            if code:
                step = halfway(self.scenes, step, code)
                self._errors |= {key: step.errors[key] for key in code}
            return step.geometry

        geometry = solve(())
        fit = self.scenes.fit(geometry, model)
        covariance = widened(fit.covariance, PLAIN, model, self.system)
        wide = dict(zip(model, covariance.diagonal().sqrt().tolist(), strict=True))
        wide |= {key: fit.errors[key] for key in model if key in CODE}
        rich = compare.tested.predict(geometry, self.cube)
        gone: tuple[str, ...] = ()
        for key in [key for key in reversed(model) if key not in SHIFT]:
            tried = solve((*gone, key))
            plain = compare.tested.predict(tried, self.cube)
            # In noise plain scenes know more; of light that is shared between pixels they do not.
            shown = PARAMETERS[key].distance(fit.geometry) > CLEAR * wide[key]
            better = compare.is_better(rich, plain) or (shown and key not in (*SHARED, *TILT))
            if not (better and self._is_known(key, geometry)):
                geometry, rich, gone = tried, plain, (*gone, key)
        mean = self._combine(found, model, gone, geometry)
        while lost := [
            key
            for key in model
            if key not in (*SHIFT, *CODE, *gone) and not self._is_known(key, mean)
        ]:
            gone = (*gone, *lost)
            mean = self._combine(found, model, gone, solve(gone))
        return mean

    def _is_known(self, key: str, geometry: Geometry) -> bool:
        """Tell whether a parameter is significantly off its nominal value."""
        return PARAMETERS[key].distance(geometry) > _SIGNIFICANT * self._errors[key]

    def _combine(
        self, found: Slopes, model: Sequence[str], gone: Sequence[str], geometry: Geometry
    ) -> Geometry:
        """Return the mean of predictions and plain scenes, and note its errors.

        Where both are in different valleys, it is plain scenes alone.
        """
        kept = [key for key in model if key not in gone]
        fit = self.scenes.fit(geometry, [key for key in kept if key not in CODE])
        predicted = replace(found.solve(kept, gone), geometry=geometry)
        mean = weighted_mean(fit, predicted, geometry, self.system)
        if mean.apart > _APART:
            mean = weighted_mean(fit, None, geometry, self.system)
        self._errors |= mean.errors
        self._combined = frozenset(fit.keys)
        return mean.geometry
