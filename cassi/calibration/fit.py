"""The geometry that fits plain scenes best, and how sure it is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.calibration.geometry import Geometry, moved_offsets, placed
from cassi.calibration.parameters import PARAMETERS, changed, place_of
from cassi.calibration.windows import Derivatives, Frame, Windows, is_singular
from cassi.systems import SDCassi

LEAST_WINDOWS = 20
"""Lit windows of a frame: fewer tell nothing."""
CLEAR = 5.0
"""Standard errors, of what is asked for beyond the place: of many parameters the largest counts."""

Watch = Callable[[str], None]
"""Is told what is being tried, every second or so."""


def silent(tried: str) -> None:
    """Say nothing of what is being tried."""


SURE = 3.0
"""Standard errors, by which plain scenes fit one camera better than another."""


@dataclass(frozen=True)
class Estimate:
    """A geometry, and how sure its free parameters are.

    Attributes:
        geometry: the best.
        errors: standard error of each parameter that was free.
        covariance: `(T, T)`, of these, in their order.
    """

    geometry: Geometry
    errors: dict[str, float]
    covariance: Tensor

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the parameters that were free."""
        return tuple(self.errors)

    def is_clear(self, key: str) -> bool:
        """Tell whether a parameter is `CLEAR` standard errors off its nominal value."""
        return PARAMETERS[key].distance(self.geometry) > CLEAR * self.errors[key]

    def is_between(self, system: SDCassi) -> bool:
        """Tell whether a dispersion that is clear puts bands between pixels."""
        unclear = {
            key: 0.0
            for key in self.errors
            if key.startswith("dispersion") and not self.is_clear(key)
        }
        return placed(changed(self.geometry, unclear), system).whole is not None


@dataclass(frozen=True)
class Fit(Estimate):
    """What plain scenes say.

    Attributes:
        objectives: mean logarithm of the windows' relative residual variance: at the start, and
            after each iteration.
        windows: number of windows.
    """

    objectives: list[float]
    windows: int

    @property
    def objective(self) -> float:
        """The lowest one."""
        return self.objectives[-1]


class PlainScenes:
    """Frames of one camera, cut into windows that plain scenes are fitted to.

    Args:
        frames: of one camera.
        system: the nominal camera.
        central: use the middle of the frames only.
        watch: is told what is fitted.
    """

    def __init__(
        self,
        frames: Sequence[Frame],
        system: SDCassi,
        central: bool = False,
        watch: Watch = silent,
    ) -> None:
        self.frames, self.system, self.watch = frames, system, watch
        self._known: dict[Geometry, list[tuple[Tensor, Tensor]]] = {}
        self.parts = [Windows(frame, system, central=central) for frame in frames]

    def fit(self, start: Geometry, keys: Sequence[str] | None = None, iterations: int = 15) -> Fit:
        r"""Fit a geometry by damped Gauss–Newton steps on the objective of `Windows`.

        The standard errors come from (H⁻¹ G H⁻¹) with the curvature H and the scatter G of the
        gradient between the sixteenths of the frames: what the scene does not fit is no white
        noise, and windows near each other err alike.

        Args:
            start: where to start.
            keys: of the parameters that are free; those of the place, with as many degrees of the
                dispersion as `start` has, if None.
            iterations: at most this many.

        Raises:
            ValueError: the frames have too few bright windows.
        """
        count = sum(len(part) for part in self.parts)
        if count < LEAST_WINDOWS:
            raise ValueError(
                f"calibration: expected at least {LEAST_WINDOWS} lit windows of 16×16 pixels, got "
                f"{count}; take a larger or brighter frame"
            )
        keys = place_of(start) if keys is None else tuple(keys)
        self.watch(f"plain scenes, {' '.join(keys)}")
        steps = [PARAMETERS[key].step(self.system) for key in keys]
        geometry, damping = start, 1e-3
        found = self._derivatives(geometry, keys)
        if is_singular(found.curvature):
            raise ValueError(
                f"calibration: a frame through this mask does not say {', '.join(keys)}; expected "
                "a mask with a pattern along both axes"
            )
        objectives = [found.objective]
        for _ in range(iterations):
            curvature, gradient = found.curvature, found.gradient.sum(0)
            diagonal = torch.diag(curvature.diagonal() * damping)
            step = -torch.linalg.solve(curvature + diagonal, gradient)
            limit = torch.tensor(steps, dtype=step.dtype) * 5
            step = step * (limit / step.abs().clamp_min(1e-30)).min().clamp_max(1)
            tried = changed(
                geometry,
                {
                    key: PARAMETERS[key].read(geometry) + away
                    for key, away in zip(keys, step.tolist(), strict=True)
                },
            )
            if self.objective(tried) < objectives[-1]:
                geometry, damping = tried, max(damping / 10, 1e-6)
                found = self._derivatives(geometry, keys)
                objectives.append(found.objective)
            else:
                damping = max(damping, 1e-2) * 10
            # A thousandth of a pixel is less than any camera holds still.
            small = (step.abs() < limit / 500).all()
            if small or damping > 1e4:
                break
        covariance = _covariance(found)
        errors = covariance.diagonal().clamp_min(0).sqrt().tolist()
        return Fit(geometry, dict(zip(keys, errors, strict=True)), covariance, objectives, count)

    def ask(self, fit: Fit, keys: Sequence[str]) -> list[str]:
        """Return which further parameters would clearly fit better: by one Gauss–Newton step.

        Args:
            fit: the best without them.
            keys: of the further parameters.
        """
        found = self._derivatives(fit.geometry, (*fit.keys, *keys))
        curvature, gradient = found.curvature, found.gradient.sum(0)
        if is_singular(curvature):
            return []
        first, asked = len(fit.keys), []
        covariance = _covariance(found)
        for k, key in enumerate(keys, first):  # each by itself beside those of the fit
            index = [*range(first), k]
            step = -torch.linalg.solve(curvature[index][:, index], gradient[index])[-1]
            if abs(step) > CLEAR * covariance[k, k].clamp_min(0).sqrt():
                asked.append(key)
        return asked

    def sureness(self, geometry: Geometry, other: Geometry) -> float:
        """Return by how many standard errors plain scenes fit one geometry better than another.

        Of the fall of the objective, between the sixteenths of the frames.
        """
        means = []
        for (a, place), (b, _) in zip(*map(self._variances, (geometry, other)), strict=True):
            falls = b.log() - a.log()
            means += [falls[place == sixteenth].mean() for sixteenth in place.unique()]
        each = torch.stack(means)
        spread = each.std() / len(each) ** 0.5 if len(each) > 1 else each.new_tensor(math.inf)
        return float(each.mean() / spread.clamp_min(1e-12))

    def is_surer(self, fit: Fit, other: Fit) -> bool:
        """Tell whether plain scenes fit one significantly better than another."""
        return self.sureness(fit.geometry, other.geometry) > SURE

    def objective(self, geometry: Geometry) -> float:
        """Return the objective of a geometry, over all windows."""
        found = [variance for variance, _ in self._variances(geometry)]
        return float(torch.cat(found).log().mean())

    def _variances(self, geometry: Geometry) -> list[tuple[Tensor, Tensor]]:
        """Return the residual variances of a geometry, and keep them: searches come back to it."""
        if geometry not in self._known:
            self._known[geometry] = [part.variances(geometry) for part in self.parts]
        return self._known[geometry]

    def _derivatives(self, geometry: Geometry, keys: Sequence[str]) -> Derivatives:
        """Return those of all frames, on the CPU."""
        found = [part.derivatives(geometry, keys) for part in self.parts]
        places, start = [], 0
        for part in found:
            places.append(part.place.cpu() + start)
            start += int(part.place.max()) + 1 if len(part.place) else 0
        return Derivatives(
            torch.cat([part.variance for part in found]),
            torch.cat([part.gradient.cpu() for part in found]),
            sum((part.curvature.cpu() for part in found), torch.zeros(()).double()),
            torch.cat(places),
        )


def fit_geometry(
    frames: Sequence[Frame], system: SDCassi, start: Geometry, keys: Sequence[str] | None = None
) -> Fit:
    """Fit a geometry to plain scenes in frames; see `PlainScenes.fit`."""
    return PlainScenes(frames, system).fit(start, keys)


def are_near(a: Geometry, b: Geometry, system: SDCassi) -> bool:
    """Tell whether two places are the same minimum."""
    parameters = [PARAMETERS[key] for key in place_of(a)]
    return all(abs(each.read(a) - each.read(b)) < 3 * each.step(system) for each in parameters)


def bands_apart(a: Geometry, b: Geometry, system: SDCassi) -> float:
    """Return by how many pixels a band of two geometries lies apart, at most."""
    return float((moved_offsets(system, a) - moved_offsets(system, b)).abs().max())


def _covariance(found: Derivatives) -> Tensor:
    names, index = found.place.unique(return_inverse=True)
    sums = torch.zeros(len(names), found.gradient.shape[1], dtype=found.gradient.dtype)
    sums.index_add_(0, index, found.gradient)
    sums -= sums.mean(0)
    many = max(len(names), 2)
    inverse = torch.linalg.inv(found.curvature)
    # A mean over few parts scatters less about itself than about the truth.
    scatter = sums.mT @ sums * (many / max(many - found.gradient.shape[1], 1))
    return inverse @ scatter @ inverse
