r"""Fit the place of a mask on the detector, and the light along the dispersion, to any snapshot.

The fit searches the place, blur and light with the largest log evidence of all windows, see
`cassi.camera.window_model`. One step of Fisher scoring changes all parameters at once. For the
Fisher information, frames are drawn from the model; it is the mean outer product of their
gradients. If a parameter is not identifiable, it stays at the mean of its prior.

Source: Longford, "A fast scoring algorithm for maximum likelihood estimation in unbalanced mixed
models with nested random effects", Biometrika 74 (1987), for scoring; White, "Maximum likelihood
estimation of misspecified models", Econometrica 50 (1982), for the standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import torch
from torch import Tensor

from cassi.camera.displacement import BLURS
from cassi.camera.window_model import WALK_PRIOR_STEPS, WALK_STEP, State, WindowModel

COARSE_PARAMETERS = ("across", "rotation", "magnification", "stretch", "shear")
"""Parameters of the first, coarse fit."""
MIN_RATIO = 2.0
"""A value is significant if it differs from its prior's mean by more than this, standard errors."""
CLIMB_PIXELS = (0.16, 0.08, 0.04, 0.02)
"""Lengths of the steps of `PlaceFit.climb`, pixels."""


@dataclass(frozen=True)
class MaskPlacement:
    """The estimated place of a mask, and the light along the dispersion.

    Attributes:
        values: values of `PARAMETERS` and of `BLURS`, by key.
        errors: standard errors of the values that were fitted, by key.
        significant: all values, by key. If a value does not differ significantly from the mean of
            its prior, it is replaced by that mean, and the others by the likeliest values that go
            with it. So no mask is interpolated and no band is moved without significance.
        offsets: offsets o of the light, pixels `(P,)`, float64.
        light: power λ(o)² of the light at the offsets, `(P,)`, mean 1.
        nats: log evidence of the windows of the fit, `(W,)`.
    """

    values: dict[str, float]
    errors: dict[str, float]
    significant: dict[str, float]
    offsets: Tensor
    light: Tensor
    nats: Tensor

    @property
    def windows(self) -> int:
        """Number of windows of the fit."""
        return len(self.nats)


class PlaceFit(WindowModel):
    """Maximises the evidence of a `WindowModel`, and estimates standard errors."""

    @torch.no_grad()
    def run(self, state: State, keys: Sequence[str], steps: int, min_gain: float = 1.0) -> State:
        """Take steps of Fisher scoring, each damped until it raises the evidence.

        Args:
            state: the state to begin with.
            keys: parameters to fit, in addition to the light.
            steps: largest number of steps.
            min_gain: least gain of a step, nats. The run ends after a step that gains less.
        """
        # The rule of Levenberg and Marquardt: damping grows by a factor of 8 until a step raises
        # the evidence, and falls by a factor of 8 after that step. If no damping below 1e4 gives a
        # gain, the state is a maximum.
        damping = 0.03
        for _ in range(steps):
            nats, gradient, drawn_gradients = self.scores(state, keys)
            prior, total_gradient, precision = self.prior(state, keys)
            value = state.trust * float(nats.sum()) + prior
            total_gradient = total_gradient + state.trust * gradient.sum(0)
            curvature = precision + state.trust * information(drawn_gradients)
            while damping < 1e4:
                damped_matrix = curvature + damping * torch.diag(curvature.diagonal())
                trial = self._step(state, keys, torch.linalg.solve(damped_matrix, total_gradient))
                trial_value = (
                    state.trust * float(self.nats(trial).sum()) + self.prior(trial, keys)[0]
                )
                if trial_value > value:
                    break
                damping = max(damping, 1e-2) * 8
            else:
                return state
            state, damping = _with_likeliest_walk(trial), max(damping / 8, 1e-3)
            if trial_value - value < min_gain:
                break
        return state

    @torch.no_grad()
    def climb(self, state: State, keys: Sequence[str]) -> State:
        """Raise the evidence by fixed steps along single parameters, and along pairs of them."""
        # With linear interpolation the evidence has a cusp wherever a band lies on whole pixels.
        # Fisher scoring stops at a cusp, because it sees the gradient of one side only. Fixed steps
        # cross the cusp.
        directions = [{key: 1.0} for key in keys]
        directions += [{a: 1.0, b: sign} for a, b in combinations(keys, 2) for sign in (1.0, -1.0)]
        best = float(self.nats(state).sum())
        for step, direction in product(CLIMB_PIXELS, directions):
            for sign in (step, -step):
                while True:
                    changes = {
                        key: state.values[key] + sign * value for key, value in direction.items()
                    }
                    trial = replace(state, values=state.values | changes)
                    if (nats := float(self.nats(trial).sum())) <= best:
                        break
                    state, best = trial, nats
        return state

    def _step(self, state: State, keys: Sequence[str], step: Tensor) -> State:
        # The estimated curvature is valid only near the state. So a step changes a parameter by at
        # most one unit, and λ by at most a factor of e. log λ stays within ±6, because light of
        # λ = e⁻⁶ = 0.25 % is as good as dark.
        values = dict(state.values)
        for key, change in zip(keys, step[: len(keys)].tolist(), strict=True):
            values[key] += min(max(change, -1.0), 1.0)
            if key in BLURS:
                values[key] = max(values[key], 0.0)
        light = (state.light + step[len(keys) :].clamp(-1, 1)).clamp(-6, 6)
        return replace(state, values=values, light=light)

    @torch.no_grad()
    def with_trust(self, state: State, keys: Sequence[str]) -> State:
        """Return the state with the trust that follows from the scatter of its windows.

        Trust is the expected variance of the gradients over their actual variance, at most 1.

        Source: Pauli, Racugno and Ventura, Statistica Sinica 21 (2011), where it is called the
        magnitude adjustment of a composite likelihood.
        """
        # The gradients have 5 to 100 times the expected variance. The corners of a mask were 1.4
        # pixels off with a trust of 1, and 0.5 with this trust
        # (docs/development/experiments/evidence.md).
        _, gradient, drawn_gradients = self.scores(state, keys)
        return replace(state, trust=_estimate_trust(gradient, drawn_gradients, len(keys)))

    @torch.no_grad()
    def place(
        self, state: State, keys: Sequence[str] = (), min_ratio: float = MIN_RATIO
    ) -> MaskPlacement:
        """Return the placement of a state, with standard errors.

        The covariance is H⁻¹ (J + P) H⁻¹. It is valid even if the model is wrong (White 1982). H is
        the Fisher information plus P. J is the sum of outer products of the windows' gradients. P
        is the matrix of inverse variances of the prior.

        Args:
            state: a fitted state.
            keys: parameters that were fitted; none: all.
            min_ratio: a value is significant above this many standard errors.
        """
        keys = tuple(keys) or self.keys
        nats, gradient, drawn_gradients = self.scores(state, keys)
        _, _, precision = self.prior(state, keys)
        inverse = torch.linalg.inv(precision + state.trust * information(drawn_gradients))
        scatter = state.trust**2 * gradient.mT @ gradient
        covariance = inverse @ (scatter + precision) @ inverse
        priors = {key: self.prior_moments(key) for key in keys}
        errors = covariance.diagonal()[: len(keys)].sqrt().tolist()
        light = (2 * state.light).exp()
        return MaskPlacement(
            dict(state.values),
            {key: min(error, priors[key][1]) for key, error in zip(keys, errors, strict=True)},
            self._reset_insignificant(
                state.values, priors, covariance[: len(keys), : len(keys)], min_ratio
            ),
            self.offsets,
            light / light.mean(),
            nats,
        )

    def _reset_insignificant(
        self,
        values: dict[str, float],
        priors: dict[str, tuple[float, float]],
        covariance: Tensor,
        min_ratio: float,
    ) -> dict[str, float]:
        """Return all values, with insignificant ones reset to the mean of their prior.

        The least significant value is reset first. The other values move according to their
        covariance with it. This is repeated until all remaining values are significant.
        """
        # Measured in docs/development/experiments/evidence.md: if no value is reset, a cube loses
        # up to 2.5 dB. If all values above one standard error are kept, masks of right cameras are
        # bent by 0.1 pixels. Resetting the least significant value first lowered the held-out error
        # of a TSA capture from 0.0340 to 0.0292.
        keys = list(priors)
        deviations = torch.tensor([values[key] - priors[key][0] for key in keys]).double()
        while keys:
            errors = covariance.diagonal().sqrt()
            # If the frame has less information on a value than the prior, the value is not
            # significant, however large it is. If both have equal information, the error is the
            # prior's deviation / √2.
            is_weak = errors > torch.tensor([priors[key][1] for key in keys]) / 2**0.5
            ratio = torch.where(is_weak, 0.0, deviations.abs() / errors)
            # A sensor blurs every mask, so the blur is never reset in broadband light.
            is_kept = torch.tensor([key in BLURS and not self.has_lines for key in keys])
            weakest = int(torch.where(is_kept, math.inf, ratio).argmin())
            if is_kept[weakest] or ratio[weakest] > min_ratio:
                break
            column = covariance[:, weakest] / covariance[weakest, weakest]
            is_other = torch.arange(len(keys)) != weakest
            deviations = (deviations - column * deviations[weakest])[is_other]
            covariance = (covariance - torch.outer(column, covariance[weakest]))[is_other][
                :, is_other
            ]
            keys.pop(weakest)
        values_with_priors = values | {key: mean for key, (mean, _) in priors.items()}
        values_with_priors |= {
            key: priors[key][0] + v for key, v in zip(keys, deviations.tolist(), strict=True)
        }
        return values_with_priors | {"blur": max(values_with_priors["blur"], 0.0)}


def information(drawn_gradients: Tensor) -> Tensor:
    """Return the Fisher information `(T, T)`.

    Args:
        drawn_gradients: gradients of W windows by T parameters, for Q drawn frames, `(W, Q, T)`.
    """
    flat = drawn_gradients.flatten(0, 1)
    flat = flat - flat.mean(0)
    return flat.mT @ flat / drawn_gradients.shape[1]


def _estimate_trust(gradient: Tensor, drawn_gradients: Tensor, count: int) -> float:
    """Return the expected over the actual variance of the first `count` gradients, at most 1."""
    expected = information(drawn_gradients).diagonal()[:count]
    is_positive = expected > 0
    if len(gradient) < 2 or not is_positive.any():
        return 1.0
    actual = gradient[:, :count].var(0) * len(gradient)
    return min(1.0, 1 / max(float((actual[is_positive] / expected[is_positive]).mean()), 1e-9))


def _with_likeliest_walk(state: State) -> State:
    """Return the state with the likeliest step of the random walk of its light."""
    steps = state.light.diff()
    square = float(steps.square().sum()) + WALK_PRIOR_STEPS * WALK_STEP**2
    return replace(state, walk=math.sqrt(square / (len(steps) + WALK_PRIOR_STEPS)))
