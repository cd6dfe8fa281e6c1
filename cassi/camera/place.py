r"""Where a mask lies on the detector, and the light along the dispersion, from any snapshot.

In light of all wavelengths a frame is an integral along the dispersion,

    y(p) = Σ_o m(p − o − d(p, o)) x(p, o)

with the light x(p, o) that is moved by o pixels and the displacement d of the mask from its file.
Offsets o are even and fine here: which wavelength falls at which offset is not asked. A small
window of the detector is a Gaussian with

    S = [Σ_oo' λ(o) λ(o') K(o, o') m(p − o) m(p' − o')] [(1 − r) + r·exp(−|p − p'|/ℓ)] + noise

K is the second moment of ordinary reflectances. The light λ(o), the place of the mask d and its
blur maximise the log evidence of all windows, see `cassi.camera.evidence`. λ(o) is the spectrum of
lamp and sensor as a spectrograph would show it; its logarithm is a random walk whose step is
estimated.

One step of Fisher scoring solves for all of it at once. The Fisher information is the mean of outer
products of the gradients of frames that are drawn from the model. What a frame does not tell stays
at its prior.

Source: Longford, "A fast scoring algorithm for maximum likelihood estimation in unbalanced mixed
models with nested random effects", Biometrika 74 (1987), for scoring; White, "Maximum likelihood
estimation of misspecified models", Econometrica 50 (1982), for the standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from cassi.camera.displacement import (
    BLURS,
    DISPLACEMENTS,
    EDGE,
    blurred_mask,
    displacement,
    fine_mask,
    from_middle,
    sample_grid,
)
from cassi.camera.evidence import (
    NOISE,
    ROUGH,
    STRAY,
    TEXTURE,
    WHITE,
    Windows,
    ordinary_moment,
    strongest,
)
from cassi.systems import SDCassi

WINDOWS = 48
"""Windows of a fit. Errors fall with their square root, time rises with them."""
RANK, PRODUCTS = 8, 40
"""Components of ordinary spectra, and of products with spatial ones: those beyond are noise."""
PITCH = 1.0
"""Pixels between offsets: finer than what a mask resolves nothing is gained for its place."""
BEYOND = 3.0
"""Pixels of light beyond the outermost bands: a dispersion is known to 3 % of 100 pixels."""
WALK, LEVEL = 0.2, 2.0
"""Prior of the step of the random walk of log λ, and standard deviation of its level."""
_WALKS = 6  # pseudo-steps that the prior of the walk weighs
_DRAWS = 6  # frames per window that are drawn for the Fisher information

ROUGHLY = ("across", "rotation", "magnification", "stretch", "shear")


@dataclass(frozen=True)
class State:
    """What is fitted.

    Attributes:
        values: of the parameters, and of `BLURS`, by key.
        light: log λ(o), `(P,)`.
        walk: step of its random walk.
        trust: what the evidence weighs beside the prior: 1 where the model is right. Windows whose
            gradients scatter more than the model has it say less.
    """

    values: dict[str, float]
    light: Tensor
    walk: float = WALK
    trust: float = 1.0


@dataclass(frozen=True)
class Place:
    """Where a mask was found.

    Attributes:
        values: of the parameters, by key, and of `BLURS`.
        errors: their standard errors.
        offsets: o, pixels `(P,)`, float64.
        light: λ(o)², the power of the light there, `(P,)`, mean 1.
        covariance: of log λ, `(P, P)`.
        windows: that it was found by.
    """

    values: dict[str, float]
    errors: dict[str, float]
    offsets: Tensor
    light: Tensor
    covariance: Tensor
    windows: int

    def light_of(self, offsets: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Return the light λ of bands, each the mean over a band to either side.

        What an offset lacks its neighbour has: neighbouring ones are told apart badly.

        Args:
            offsets: of the bands, pixels, `(C,)`.

        Returns:
            λ `(C,)` and the covariance of its logarithm `(C, C)`.
        """
        step = max(abs(offsets[-1] - offsets[0]) / max(len(offsets) - 1, 1), 1.0)
        away = np.abs(self.offsets.numpy() - np.asarray(offsets)[:, None])
        share = np.maximum(1 - away / step, 1e-9)
        share = share / share.sum(1, keepdims=True) * self.light.sqrt().numpy()
        light = share.sum(1)
        share = share / light[:, None]
        return light, share @ self.covariance.numpy() @ share.T

    def significant(self) -> dict[str, float]:
        """Return the values, those of the mask 0 where the frame does not tell them.

        A mask that is moved is interpolated, which costs more than a value below its standard error
        is worth. And a frame that says less of a value than its prior does not tell it: two equal
        sources leave the prior's standard deviation over √2.
        """
        return {
            key: value if key in BLURS or self._tells(key) else 0.0
            for key, value in self.values.items()
        }

    def _tells(self, key: str) -> bool:
        error = self.errors[key]
        return abs(self.values[key]) > error and error < DISPLACEMENTS[key].deviation / 2**0.5


class PlaceFit:
    """A frame and a camera whose mask is to be placed.

    Args:
        y: frames `(B, K, H', W')` of one camera.
        system: the camera, with one mask for all bands.
        good: bool, shaped like y or its first sample, pixels that count; None: all.
        wavelengths: nm, one per band; None: even ones over visible light.
        count: windows.
        pitch: pixels between offsets.
        seed: of the frames that are drawn.

    Raises:
        ValueError: too few windows are lit, by light that has passed the mask.
    """

    def __init__(
        self,
        y: Tensor,
        system: SDCassi,
        good: Tensor | None = None,
        wavelengths: Sequence[float] | None = None,
        count: int = WINDOWS,
        pitch: float = PITCH,
        seed: int = 0,
    ) -> None:
        mask = system.turn(system.mask.detach()).float().cpu()
        self.size = mask.shape[-2:]
        bands = torch.tensor(system.offsets, dtype=torch.float64)
        self.windows = Windows(y, system, good, count, _covered(system, self.size))
        self.random = torch.Generator().manual_seed(seed)
        self.fine = fine_mask(mask)
        first, last = outer_offsets(bands.tolist())
        beyond = math.copysign(BEYOND, last - first)
        first, last = first - beyond, last + beyond
        many = max(round(abs(last - first) / pitch), 2)
        self.offsets = first + (last - first) * (torch.arange(many) + 0.5).double() / many
        self.pitch = abs(last - first) / many
        self.middle = float(bands[[0, -1]].mean())
        self.reach = max(float((bands[-1] - bands[0]).abs()) / 2, 1.0)
        known = wavelengths or np.linspace(450, 650, len(bands)).tolist()
        order = bands.argsort().numpy()
        nm = np.interp(self.offsets.numpy(), bands.numpy()[order], np.asarray(known)[order])
        self.factor = strongest(ordinary_moment(nm.tolist()))[:, :RANK]
        # Which products are columns stays: else the evidence would jump.
        strength = self.factor.square().sum(0)
        product = (self.windows.share[:, None] * strength).flatten()
        top = product.argsort(descending=True)[:PRODUCTS]
        self.spatial, self.spectral = top // len(strength), top % len(strength)
        kept = torch.zeros_like(product).index_fill(0, top, 1.0).unflatten(0, (-1, len(strength)))
        self.rest = (1 - self.windows.maps.square() @ kept).clamp_min(0)

    def start(self, blur: float = 0.5) -> State:
        """Return the mask where its file says, blurred so that wide errors are seen."""
        values = dict.fromkeys(DISPLACEMENTS, 0.0) | {"blur": blur, "width": 1.0}
        return State(values, torch.zeros_like(self.offsets))

    def codes(self, state: State, keys: Sequence[str] = ()) -> tuple[Tensor, Tensor]:
        """Return the mask at each offset on the windows' pixels, `(W, P, N)`, and derivatives.

        Args:
            state: of the camera.
            keys: of the derivatives, `(len(keys), W, P, N)`.
        """
        windows, (height, width) = self.windows, self.size
        row = (windows.corner[:, :1] + windows.down).float()  # (W, N)
        column = (windows.corner[:, 1:] + windows.along).float()
        column = column - self.offsets.float()[:, None, None]  # (P, W, N)
        row = row.expand_as(column)
        fields = self._fields(row, column)
        off, along = displacement(state.values, fields, self.size, like=row)
        images = blurred_mask(self.fine, state.values, self.pitch, derivatives=bool(keys))
        at = sample_grid(row - off, column - along, self.size)
        sampled = images.new_zeros(len(at), images.shape[2], *at.shape[1:3])
        for shot in windows.shot.unique().tolist():
            chosen = windows.shot == shot
            image = images[shot].expand(len(at), -1, -1, -1)
            sampled[:, :, chosen] = grid_sample(image, at[:, chosen], align_corners=True)
        sampled = sampled * windows.good
        code = sampled[:, 0].transpose(0, 1).double()
        changes = []
        for key in keys:
            if key in BLURS:
                change = sampled[:, 3 if key == "blur" else 4]
            else:
                parameter = DISPLACEMENTS[key]
                scale = parameter.scale(height, width)
                moves = parameter.basis(*fields)
                change = -(
                    scale[0] * moves[0] * sampled[:, 1] + scale[1] * moves[1] * sampled[:, 2]
                )
            changes.append(change.transpose(0, 1))
        return code, torch.stack(changes) if changes else code.new_zeros(0)

    def _fields(self, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, v = from_middle(row, column, self.size)
        z = (self.offsets - self.middle) / self.reach
        return u.float(), v.float(), z[:, None, None].float()

    def nats(self, state: State) -> Tensor:
        """Return the log evidence of each window, `(W,)`."""
        model = self._model(self.codes(state)[0], state.light)
        return model.nats(*model.solve(self.windows.y[..., None])[:2])

    def _model(self, codes: Tensor, light: Tensor) -> _Model:
        windows, shine = self.windows, light.exp()
        factor = self.factor * shine[:, None]
        spectral = codes.mT @ factor  # (W, N, R)
        power = spectral.square()
        pixels = windows.good.sum(1)
        level = power.sum((1, 2)) / pixels
        level = level.clamp_min(1e-9 * level.amax().clamp_min(1e-30))
        seen = (windows.y.square().sum(1) / pixels).clamp_min(1e-9 * windows.power)
        noise = TEXTURE + NOISE**2 * windows.power / seen
        columns = torch.cat(
            [
                (1 - ROUGH) ** 0.5 * spectral,
                ROUGH**0.5 * spectral[..., self.spectral] * windows.maps[:, self.spatial],
                STRAY * level.sqrt()[:, None, None] * windows.good[..., None],
            ],
            -1,
        )
        alone = WHITE * (codes * shine[:, None]).square().sum(1)  # lines: no band like another
        rest = ROUGH * (power * self.rest).sum(-1) + alone + (level * noise)[:, None]
        rest = torch.where(windows.good, rest, 1.0)
        return _Model(factor, spectral, columns, rest, level, noise, windows.good)

    def scores(self, state: State, keys: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return nats, and gradients of what was seen and of what is drawn.

        Returns:
            `(W,)`, `(W, T)` and `(W, Q, T)`, T the keys and then the light.
        """
        windows = self.windows
        codes, changes = self.codes(state, keys)
        model = self._model(codes, state.light)
        columns, rest = model.columns, model.rest
        shape = (*rest.shape, _DRAWS)
        within = torch.randn(len(rest), columns.shape[2], _DRAWS, generator=self.random).double()
        noise = torch.randn(shape, generator=self.random).double() * rest.sqrt()[..., None]
        drawn = (columns @ within + noise) * windows.good[..., None]
        seen = torch.cat([windows.y[..., None], drawn], -1)
        chol, amplitude, mean, residual, over = model.solve(seen)
        # dL/dS = (α αᵀ/a² − S⁻¹)/2 with α = S⁻¹ y. So the gradient by a column b of B is
        # α (bᵀα)/a² − S⁻¹ b, and that by the diagonal D half of it for unit vectors.
        scaled = (residual / amplitude.sqrt()[:, None]).mT  # (W, Q, N)
        inner = mean / amplitude.sqrt()[:, None]  # (W, B, Q)
        solved = torch.cholesky_solve(over.mT, chol).mT  # S⁻¹ B
        diagonal = 1 / rest - (solved * over).sum(-1)
        by_rest = (scaled.square() - diagonal[:, None]) / 2 * windows.good[:, None]
        rank = self.factor.shape[1]
        smooth, rough = (1 - ROUGH) ** 0.5, ROUGH**0.5
        maps = windows.maps[:, self.spatial]
        pick = torch.nn.functional.one_hot(self.spectral, rank).double()
        products = slice(rank, rank + len(self.spectral))
        scene = smooth * inner[:, :rank].mT[:, :, None]
        scene = scene + rough * torch.einsum("np,wpq,pk->wqnk", maps, inner[:, products], pick)
        mean_field = smooth * solved[..., :rank] + rough * (solved[..., products] * maps) @ pick
        by_spectral = scaled[..., None] * scene - mean_field[:, None]
        by_spectral = (
            by_spectral + 2 * ROUGH * by_rest[..., None] * ((model.spectral * self.rest)[:, None])
        )
        stray = scaled * inner[:, -1][..., None] - solved[..., -1][:, None]
        by_level = (
            (stray * windows.good[:, None]).sum(-1) * STRAY / (2 * model.level.sqrt())[:, None]
        )
        by_level = by_level + by_rest.sum(-1) * model.noise[:, None]
        share = 2 * by_level / windows.good.sum(1)[:, None]
        by_spectral = by_spectral + share[..., None, None] * model.spectral[:, None]
        power = state.light.exp().square()[:, None]
        by_code = torch.einsum("wqnk,pk->wqpn", by_spectral, model.factor)
        by_code = by_code + 2 * WHITE * by_rest[:, :, None] * (codes * power)[:, None]
        moved = torch.einsum("wqpn,twpn->wqt", by_code.float(), changes.float()).double()
        shone = (by_code * codes[:, None]).sum(-1)
        gradient = torch.cat([moved, shone], -1)
        return model.nats(chol, amplitude), gradient[:, 0], gradient[:, 1:]

    def _prior(self, state: State, keys: Sequence[str]) -> tuple[float, Tensor, Tensor]:
        """Return the log prior, its gradient and minus its second derivative."""
        mean, deviation = (
            torch.tensor(each).double() for each in zip(*map(_usual, keys), strict=True)
        )
        away = torch.tensor([state.values[key] for key in keys]).double() - mean
        total = -0.5 * float((away / deviation).square().sum())
        many, walk = len(state.light), state.walk
        steps = state.light.diff()
        total -= 0.5 * float((steps / walk).square().sum()) + (many - 1 + _WALKS) * math.log(walk)
        total -= 0.5 * _WALKS * (WALK / walk) ** 2
        total -= 0.5 * many * float(state.light.mean() / LEVEL) ** 2
        differences = torch.eye(many).double().diff(dim=0)
        precision = torch.block_diag(
            torch.diag(deviation**-2.0),
            differences.mT @ differences / walk**2 + torch.full((many, many), LEVEL**-2 / many),
        )
        gradient = -precision @ torch.cat([away, state.light])
        return total, gradient, precision

    @torch.no_grad()
    def run(self, state: State, keys: Sequence[str], steps: int, least: float = 1.0) -> State:
        """Take steps of Fisher scoring, damped where one does not raise the evidence.

        Args:
            state: to start from.
            keys: of what is fitted beside the light.
            steps: at most.
            least: nats, of the last step.
        """
        damping = 0.03
        for _ in range(steps):
            nats, gradient, drawn = self.scores(state, keys)
            prior, slope, precision = self._prior(state, keys)
            value = state.trust * float(nats.sum()) + prior
            slope = slope + state.trust * gradient.sum(0)
            curvature = precision + state.trust * information(drawn)
            while damping < 1e4:
                damped = curvature + damping * torch.diag(curvature.diagonal())
                moved = self._moved(state, keys, torch.linalg.solve(damped, slope))
                after = state.trust * float(self.nats(moved).sum()) + self._prior(moved, keys)[0]
                if after > value:
                    break
                damping = max(damping, 1e-2) * 8
            else:
                return state
            state, damping = _relaxed(moved), max(damping / 8, 1e-3)
            if after - value < least:
                break
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
    def place(self, state: State) -> Place:
        """Return what was found, with standard errors of all parameters.

        They are those of a model that may be wrong: H⁻¹ (J + P) H⁻¹, with the Fisher information H,
        prior included, the sum J of outer products of the windows' gradients, and the inverse
        variances P of the prior.
        """
        every = (*DISPLACEMENTS, *BLURS)
        _, gradient, drawn = self.scores(state, every)
        _, _, precision = self._prior(state, every)
        trust = state.trust
        inverse = torch.linalg.inv(precision + trust * information(drawn))
        scatter = trust**2 * gradient.mT @ gradient
        covariance = inverse @ (scatter + precision) @ inverse
        errors = covariance.diagonal().sqrt()
        light = (2 * state.light).exp()
        return Place(
            dict(state.values),
            {key: min(float(errors[k]), _usual(key)[1]) for k, key in enumerate(every)},
            self.offsets,
            light / light.mean(),
            inverse[len(every) :, len(every) :],
            len(self.windows.y),
        )


class _Model(NamedTuple):
    """The Gaussian of each window: S = B Bᵀ + D."""

    factor: Tensor  # (P, R), of the spectra in this light
    spectral: Tensor  # (W, N, R)
    columns: Tensor  # B
    rest: Tensor  # D
    level: Tensor  # (W,), mean variance
    noise: Tensor  # (W,), share of it
    good: Tensor

    def solve(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the factor of I + BᵀD⁻¹B, a² `(W, Q)`, BᵀS⁻¹y, S⁻¹y and D⁻¹B."""
        over = self.columns / self.rest[..., None]
        inner = over.mT @ self.columns
        inner.diagonal(dim1=1, dim2=2).add_(1.0)
        chol = torch.linalg.cholesky_ex(inner).L
        mean = torch.cholesky_solve(over.mT @ y, chol)
        residual = (y - self.columns @ mean) / self.rest[..., None]
        amplitude = (y * residual).sum(1) / self.good.sum(1)[:, None]
        return chol, amplitude.clamp_min(1e-30), mean, residual, over

    def nats(self, chol: Tensor, amplitude: Tensor) -> Tensor:
        """Return −N/2·log a² − ½·log det S of the frame that was seen."""
        logs = torch.where(self.good, self.rest.log(), 0).sum(1) / 2
        logs = logs + chol.diagonal(dim1=1, dim2=2).log().sum(1)
        return -self.good.sum(1) / 2 * amplitude[:, 0].log() - logs


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


def _usual(key: str) -> tuple[float, float]:
    return BLURS[key] if key in BLURS else (0.0, DISPLACEMENTS[key].deviation)


def _relaxed(state: State) -> State:
    """Return the state with the likeliest step of the random walk of its light."""
    steps = state.light.diff()
    walk = (float(steps.square().sum()) + _WALKS * WALK**2) / (len(steps) + _WALKS)
    return replace(state, walk=math.sqrt(walk))


def outer_offsets(offsets: Sequence[float]) -> tuple[float, float]:
    """Return where the light of the outermost bands ends: half a band beyond their offsets."""
    if len(offsets) == 1:
        return offsets[0] - 0.5, offsets[0] + 0.5
    first, last = offsets[1] - offsets[0], offsets[-1] - offsets[-2]
    return offsets[0] - first / 2, offsets[-1] + last / 2


def _covered(system: SDCassi, size: tuple[int, ...]) -> Callable[[Tensor, tuple[int, int]], Tensor]:
    """Return what tells whether all light of a window has passed the mask, away from its edges."""
    low, high = sorted(outer_offsets(system.offsets))

    def covered(corner: Tensor, shape: tuple[int, int]) -> Tensor:
        row, column = corner.T
        height, width = size
        inside = (row >= EDGE) & (row + shape[0] <= height - EDGE)
        inside &= column - high - BEYOND >= 0
        return inside & (column + shape[1] - low + BEYOND <= width)

    return covered
