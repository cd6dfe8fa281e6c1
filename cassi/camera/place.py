r"""Where a mask lies on the detector, and the light along the dispersion, from any snapshot.

Place of the mask, blur and light maximise the log evidence of all windows, see
`cassi.camera.window_model`. One step of Fisher scoring solves for all of it at once. The Fisher
information is the mean of outer products of the gradients of frames that are drawn from the model.
What a frame does not tell stays at its prior.

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
from cassi.camera.window_model import WALK, WALKS, State, WindowModel

ROUGHLY = ("across", "rotation", "magnification", "stretch", "shear")
"""What is fitted first."""
SURE = 2.0
"""Standard errors by which a value differs surely."""
CLIMBS = (0.16, 0.08, 0.04, 0.02)
"""Pixels, of steps along single parameters."""


@dataclass(frozen=True)
class Place:
    """Where a mask was found.

    Attributes:
        values: of the parameters, by key, and of `BLURS`.
        errors: their standard errors.
        kept: the likeliest values of those that differ surely from their prior's mean, if the
            others do not: no mask is interpolated, and no band moved, for less.
        offsets: o, pixels `(P,)`, float64.
        light: λ(o)², the power of the light there, `(P,)`, mean 1.
        nats: log evidence of the windows that it was found by, `(W,)`.
    """

    values: dict[str, float]
    errors: dict[str, float]
    kept: dict[str, float]
    offsets: Tensor
    light: Tensor
    nats: Tensor

    @property
    def windows(self) -> int:
        """How many windows it was found by."""
        return len(self.nats)


class PlaceFit(WindowModel):
    """Maximises the evidence of a `WindowModel`, and says how sure the result is."""

    @torch.no_grad()
    def run(self, state: State, keys: Sequence[str], steps: int, least: float = 1.0) -> State:
        """Take steps of Fisher scoring, damped where one does not raise the evidence."""
        damping = 0.03
        for _ in range(steps):
            nats, gradient, drawn = self.scores(state, keys)
            prior, slope, precision = self.prior(state, keys)
            value = state.trust * float(nats.sum()) + prior
            slope = slope + state.trust * gradient.sum(0)
            curvature = precision + state.trust * information(drawn)
            while damping < 1e4:
                damped = curvature + damping * torch.diag(curvature.diagonal())
                moved = self._moved(state, keys, torch.linalg.solve(damped, slope))
                after = state.trust * float(self.nats(moved).sum()) + self.prior(moved, keys)[0]
                if after > value:
                    break
                damping = max(damping, 1e-2) * 8
            else:
                return state
            state, damping = _relaxed(moved), max(damping / 8, 1e-3)
            if after - value < least:
                break
        return state

    @torch.no_grad()
    def climb(self, state: State, keys: Sequence[str]) -> State:
        """Raise the evidence along one parameter, or two, after the other.

        Where fractions of a pixel are interpolated the evidence has a cusp wherever a band lies on
        whole pixels, which ends a step of scoring early.
        """
        ways = [{key: 1.0} for key in keys]
        ways += [{a: 1.0, b: sign} for a, b in combinations(keys, 2) for sign in (1.0, -1.0)]
        best = float(self.nats(state).sum())
        for step, way in product(CLIMBS, ways):
            for sign in (step, -step):
                while True:
                    moved = {key: state.values[key] + sign * value for key, value in way.items()}
                    tried = replace(state, values=state.values | moved)
                    if (nats := float(self.nats(tried).sum())) <= best:
                        break
                    state, best = tried, nats
        return state

    def _moved(self, state: State, keys: Sequence[str], step: Tensor) -> State:
        values = dict(state.values)
        for key, change in zip(keys, step[: len(keys)].tolist(), strict=True):
            values[key] += min(max(change, -1.0), 1.0)
            if key in BLURS:
                values[key] = max(values[key], 0.0)
        light = (state.light + step[len(keys) :].clamp(-1, 1)).clamp(-6, 6)
        return replace(state, values=values, light=light)

    @torch.no_grad()
    def weighed(self, state: State, keys: Sequence[str]) -> State:
        """Return the state with the trust that its windows deserve.

        It is the mean ratio of what gradients should scatter by and what they do: the magnitude
        adjustment of a composite likelihood, Pauli, Racugno and Ventura, Statistica Sinica 21
        (2011).
        """
        _, gradient, drawn = self.scores(state, keys)
        return replace(state, trust=_trust(gradient, drawn, len(keys)))

    @torch.no_grad()
    def place(self, state: State, keys: Sequence[str] = (), sure: float = SURE) -> Place:
        """Return what was found, with standard errors.

        They are those of a model that may be wrong: H⁻¹ (J + P) H⁻¹, with the Fisher information H,
        prior included, the sum J of outer products of the windows' gradients, and the inverse
        variances P of the prior.
        """
        keys = tuple(keys) or self.keys
        nats, gradient, drawn = self.scores(state, keys)
        _, _, precision = self.prior(state, keys)
        inverse = torch.linalg.inv(precision + state.trust * information(drawn))
        scatter = state.trust**2 * gradient.mT @ gradient
        covariance = inverse @ (scatter + precision) @ inverse
        usual = {key: self.usual(key) for key in keys}
        errors = covariance.diagonal()[: len(keys)].sqrt().tolist()
        light = (2 * state.light).exp()
        return Place(
            dict(state.values),
            {key: min(error, usual[key][1]) for key, error in zip(keys, errors, strict=True)},
            self._kept(state.values, usual, covariance[: len(keys), : len(keys)], sure),
            self.offsets,
            light / light.mean(),
            nats,
        )

    def _kept(
        self,
        values: dict[str, float],
        usual: dict[str, tuple[float, float]],
        covariance: Tensor,
        sure: float,
    ) -> dict[str, float]:
        """Return all values, those that do not surely differ from their prior's mean put there.

        The least sure one is put there, the others move as their covariance says, and so on until
        all that are left are surer than so many standard errors. What a frame tells less than the
        prior does is not sure: two equal sources leave the prior's standard deviation over √2. A
        sensor blurs every mask: there the blur is what it is.
        """
        left = list(usual)
        away = torch.tensor([values[key] - usual[key][0] for key in left]).double()
        while left:
            errors = covariance.diagonal().sqrt()
            weak = errors > torch.tensor([usual[key][1] for key in left]) / 2**0.5
            ratio = torch.where(weak, 0.0, away.abs() / errors)
            stays = torch.tensor([key in BLURS and not self.lines for key in left])
            least = int(torch.where(stays, math.inf, ratio).argmin())
            if stays[least] or ratio[least] > sure:
                break
            column = covariance[:, least] / covariance[least, least]
            others = torch.arange(len(left)) != least
            away = (away - column * away[least])[others]
            covariance = (covariance - torch.outer(column, covariance[least]))[others][:, others]
            left.pop(least)
        found = values | {key: mean for key, (mean, _) in usual.items()}
        found |= {key: usual[key][0] + v for key, v in zip(left, away.tolist(), strict=True)}
        return found | {"blur": max(found["blur"], 0.0)}


def information(drawn: Tensor) -> Tensor:
    """Return the Fisher information, of gradients of frames that were drawn, `(W, Q, T)`."""
    flat = drawn.flatten(0, 1)
    flat = flat - flat.mean(0)
    return flat.mT @ flat / drawn.shape[1]


def _trust(gradient: Tensor, drawn: Tensor, count: int) -> float:
    """Return what gradients of so many parameters should scatter by over what they do, up to 1."""
    told = information(drawn).diagonal()[:count]
    shown = told > 0
    if len(gradient) < 2 or not shown.any():
        return 1.0
    scatter = gradient[:, :count].var(0) * len(gradient)
    return min(1.0, 1 / max(float((scatter[shown] / told[shown]).mean()), 1e-9))


def _relaxed(state: State) -> State:
    """Return the state with the likeliest step of the random walk of its light."""
    steps = state.light.diff()
    walk = (float(steps.square().sum()) + WALKS * WALK**2) / (len(steps) + WALKS)
    return replace(state, walk=math.sqrt(walk))
