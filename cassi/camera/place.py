r"""Fit the place of a mask on the detector and the light along the dispersion to any snapshot.

Place, blur and light maximise the log evidence of all windows, see `cassi.camera.window_model`. One
step of Fisher scoring solves for all parameters at once. The Fisher information is the mean of
outer products of the gradients of frames that are drawn from the model. Parameters that are not
identifiable stay at the means of their priors.

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
"""Standard errors by which a value must differ from the mean of its prior to be significant."""
CLIMB_PIXELS = (0.16, 0.08, 0.04, 0.02)
"""Lengths of steps along single parameters, pixels."""


@dataclass(frozen=True)
class MaskPlacement:
    """The estimated place of a mask, and the light along the dispersion.

    Attributes:
        values: values of `PARAMETERS` and of `BLURS`, by key.
        errors: standard errors of the values that were fitted, by key.
        significant: all values, but those that do not differ significantly from the mean of their
            prior are that mean, and the others are the likeliest ones beside them. No mask is
            interpolated, and no band moved, for a value that is not significant.
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
        """Number of the windows of the fit."""
        return len(self.nats)


class PlaceFit(WindowModel):
    """A `WindowModel` whose evidence is maximised, with standard errors."""

    @torch.no_grad()
    def run(self, state: State, keys: Sequence[str], steps: int, min_gain: float = 1.0) -> State:
        """Take steps of Fisher scoring, damped where one does not raise the evidence.

        Args:
            state: the state to begin with.
            keys: parameters to fit beside the light.
            steps: most steps to take.
            min_gain: nats; the run ends after a step that gains less.
        """
        # Levenberg and Marquardt's rule: damping grows by 8 until a step raises the evidence, and
        # falls by 8 after it. Where a damping of 1e4 gives no gain the state is a maximum.
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
        """Raise the evidence by steps along one parameter, or two together, after the other."""
        # Where fractions of a pixel are interpolated linearly, the evidence has a cusp wherever a
        # band lies on whole pixels. Fisher scoring stops there, because its gradient is that of one
        # side. Fixed steps get across.
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
        # A step is limited to one unit of a parameter and to a factor e of the light. The curvature
        # of drawn frames is a good one only near the state.
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

        It is the ratio of the expected scatter of the gradients to the scatter that they have: the
        magnitude adjustment of a composite likelihood, Pauli, Racugno and Ventura, Statistica
        Sinica 21 (2011).
        """
        # With a trust of 1 the gradients scatter by 5 to 100 times the expected variance, and the
        # corners of a mask are 1.4 pixels off in place of 0.5
        # (docs/development/experiments/evidence.md).
        _, gradient, drawn_gradients = self.scores(state, keys)
        return replace(state, trust=_trust(gradient, drawn_gradients, len(keys)))

    @torch.no_grad()
    def place(
        self, state: State, keys: Sequence[str] = (), min_ratio: float = MIN_RATIO
    ) -> MaskPlacement:
        """Return the placement of a state, with standard errors.

        The covariance is that of a model that may be wrong (White 1982): H⁻¹ (J + P) H⁻¹. H is the
        Fisher information with the prior, J the sum of outer products of the windows' gradients,
        and P the inverse variances of the prior.
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
            self._significant(
                state.values, priors, covariance[: len(keys), : len(keys)], min_ratio
            ),
            self.offsets,
            light / light.mean(),
            nats,
        )

    def _significant(
        self,
        values: dict[str, float],
        priors: dict[str, tuple[float, float]],
        covariance: Tensor,
        min_ratio: float,
    ) -> dict[str, float]:
        """Return all values, with those that are not significant at the mean of their prior.

        `min_ratio` counts standard errors. The least significant value is set to the mean of its
        prior, and the others move as their covariance with it says. This is repeated until all
        values left are significant.
        """
        # All values together cost 2.5 dB at worst. To keep every value above one standard error
        # gave bows of 0.1 pixels in right cameras. To remove the least significant one first
        # lowered the held-out error of a TSA capture from 0.0340 to 0.0292
        # (docs/development/experiments/evidence.md).
        keys = list(priors)
        deviations = torch.tensor([values[key] - priors[key][0] for key in keys]).double()
        while keys:
            errors = covariance.diagonal().sqrt()
            # Where the frame has less information than the prior, a value is not significant,
            # whatever it is. Two equal sources of information leave the prior's deviation over √2.
            is_weak = errors > torch.tensor([priors[key][1] for key in keys]) / 2**0.5
            ratio = torch.where(is_weak, 0.0, deviations.abs() / errors)
            # A sensor blurs every mask, so that in its frames the blur is kept as it is.
            is_fixed = torch.tensor([key in BLURS and not self.has_lines for key in keys])
            weakest = int(torch.where(is_fixed, math.inf, ratio).argmin())
            if is_fixed[weakest] or ratio[weakest] > min_ratio:
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
    """Return the Fisher information from gradients of drawn frames, `(W, Q, T)`."""
    flat = drawn_gradients.flatten(0, 1)
    flat = flat - flat.mean(0)
    return flat.mT @ flat / drawn_gradients.shape[1]


def _trust(gradient: Tensor, drawn_gradients: Tensor, count: int) -> float:
    """Return the expected over the actual scatter of the first `count` gradients, at most 1."""
    expected = information(drawn_gradients).diagonal()[:count]
    is_expected = expected > 0
    if len(gradient) < 2 or not is_expected.any():
        return 1.0
    scatter = gradient[:, :count].var(0) * len(gradient)
    return min(1.0, 1 / max(float((scatter[is_expected] / expected[is_expected]).mean()), 1e-9))


def _with_likeliest_walk(state: State) -> State:
    """Return the state with the likeliest step of the random walk of its light."""
    steps = state.light.diff()
    square = float(steps.square().sum()) + WALK_PRIOR_STEPS * WALK_STEP**2
    return replace(state, walk=math.sqrt(square / (len(steps) + WALK_PRIOR_STEPS)))
