"""Gauss–Newton steps on what a camera predicts of withheld pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.calibration.fit import Estimate
from cassi.calibration.geometry import Geometry
from cassi.calibration.heldout import Prediction, WithheldPixels
from cassi.calibration.parameters import PARAMETERS, changed

_SHORT = 0.2  # difference steps, a fiftieth of a pixel: from there the minimum is one step away
_LONGEST = 5.0  # difference steps: beyond, nothing is linear
_HALVINGS = 3
_SHORTER = 0.5  # of a difference step; larger than what is to be found, smaller than a pixel


@dataclass(frozen=True)
class Step(Estimate):
    """Where a Gauss–Newton step leads.

    Attributes:
        length: of the longest part of the step, in difference steps.
        gain: by which share the weighted sum of squares falls.
    """

    length: float
    gain: float


@dataclass(frozen=True)
class Slopes:
    """A prediction and how it changes with parameters.

    Attributes:
        geometry: where.
        keys: of the parameters.
        prediction: there.
        jacobian: `(N, T)`, of the residual, per difference step.
        steps: `(T,)`, difference steps in the parameters' units.
        place: `(N,)`, the part of the frames of each pixel.
        start: cube from which all were reconstructed.
    """

    geometry: Geometry
    keys: tuple[str, ...]
    prediction: Prediction
    jacobian: Tensor
    steps: Tensor
    place: Tensor
    start: Tensor

    def extended(self, held: WithheldPixels, keys: Sequence[str]) -> Slopes:
        """Return the slopes with those of further parameters."""
        if not keys:
            return self
        more = [_column(held, self.geometry, key, self.start) for key in keys]
        steps = [PARAMETERS[key].step(held.system) for key in keys]
        return replace(
            self,
            keys=(*self.keys, *keys),
            jacobian=torch.cat((self.jacobian, torch.stack(more, 1)), 1),
            steps=torch.cat((self.steps, self.steps.new_tensor(steps))),
        )

    def solve(self, keys: Sequence[str], fixed: Sequence[str] = ()) -> Step:
        """Estimate some parameters by one Gauss–Newton step, all others as they are.

        The covariance is H⁻¹ G H⁻¹ with the curvature H and the scatter G of the gradient between
        the sixteenths of the frames: what the cube does not predict is no white noise.

        Args:
            keys: of the parameters to be estimated.
            fixed: of those that become nominal.
        """
        index = [self.keys.index(key) for key in keys]
        back = {key: PARAMETERS[key].nominal for key in fixed}
        residual = self.prediction.residual
        for key, nominal in back.items():
            k = self.keys.index(key)
            moved = (nominal - PARAMETERS[key].read(self.geometry)) / self.steps[k]
            residual = residual + self.jacobian[:, k] * moved
        slope, weight = self.jacobian[:, index], self.prediction.weights
        weighted = slope * weight[:, None]
        curvature = slope.mT @ weighted
        # Parameters without any influence stay.
        curvature += torch.eye(len(index)).to(curvature) * 1e-9 * curvature.diagonal().amax()
        step = -torch.linalg.solve(curvature, weighted.mT @ residual)
        rest = residual + slope @ step
        sums = slope.new_zeros(int(self.place.max()) + 1, len(index))
        sums.index_add_(0, self.place, weighted * rest[:, None])
        many = len(self.place.unique())
        inverse = torch.linalg.inv(curvature)
        scatter = sums.mT @ sums * (many / max(many - len(index), 1))
        steps = self.steps[index]
        covariance = (inverse @ scatter @ inverse) * steps[:, None] * steps
        gain = 1 - float((weight * rest.square()).sum() / (weight * residual.square()).sum())
        step = step.clamp(-_LONGEST, _LONGEST).cpu()
        values = {
            key: PARAMETERS[key].read(self.geometry) + float(part) * float(self.steps[k])
            for key, part, k in zip(keys, step, index, strict=True)
        }
        errors = covariance.diagonal().clamp_min(0).sqrt().tolist()
        return Step(
            changed(self.geometry, back | values),
            dict(zip(keys, errors, strict=True)),
            covariance,
            float(step.abs().max()),
            gain,
        )


def slopes(held: WithheldPixels, geometry: Geometry, keys: Sequence[str], start: Tensor) -> Slopes:
    """Return how predictions change with parameters, the cube being made anew for each.

    A fixed cube would not do: it has absorbed a part of the camera's error, and so hides a part of
    every step. Differences are central, for linear interpolation blurs by as much as it moves
    either way, and a one-sided difference would take that for the movement.

    Args:
        held: the snapshots.
        geometry: where.
        keys: of the parameters.
        start: cube to start from, for all alike.
    """
    prediction = held.predict(geometry, start)
    nothing = prediction.residual.new_zeros(len(prediction.residual), 0)
    none = nothing.new_zeros(0)
    bare = Slopes(geometry, (), prediction, nothing, none, held.place, start)
    return bare.extended(held, keys)


def _column(held: WithheldPixels, geometry: Geometry, key: str, start: Tensor) -> Tensor:
    parameter = PARAMETERS[key]
    value, step = parameter.read(geometry), _SHORTER * parameter.step(held.system)
    ahead, behind = (
        held.predict(parameter.write(geometry, value + way * step), start).residual
        for way in (1, -1)
    )
    return (ahead - behind) / (2 * _SHORTER)


def refine(held: WithheldPixels, geometry: Geometry, keys: Sequence[str], start: Tensor) -> Slopes:
    """Minimise the held-out error over parameters by one step; a short one is not worth it.

    Args:
        held: the snapshots.
        geometry: where to start.
        keys: of the parameters.
        start: cube of that geometry.

    Returns:
        The slopes from where one more step leads to the minimum.
    """
    found = slopes(held, geometry, keys, start)
    step = found.solve(keys)
    if step.length < _SHORT:
        return found
    start, reached = found.prediction.cube, step.geometry
    following = held.predict(reached, start)
    for _ in range(_HALVINGS):
        if following.error <= found.prediction.error:
            break
        reached = _halfway(found.geometry, reached, keys)
        following = held.predict(reached, start)
    return slopes(held, reached, keys, following.cube)


def _halfway(a: Geometry, b: Geometry, keys: Sequence[str]) -> Geometry:
    reads = [PARAMETERS[key].read for key in keys]
    return changed(b, {k: (read(a) + read(b)) / 2 for k, read in zip(keys, reads, strict=True)})
