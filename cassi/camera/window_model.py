r"""How probable windows of a frame are under a place of its mask, and which way it should move.

In light of all wavelengths a frame is an integral along the dispersion,

    y(p) = Σ_o m(p − o − d(p, o)) x(p, o)

with the light x(p, o) that is moved by o pixels and the displacement d of the mask from its file.
Offsets o are even and fine here: which wavelength falls at which offset is not asked. In light in
lines they are those of the bands. A small window of the detector is a Gaussian with

    S = [Σ_oo' λ(o) λ(o') K(o, o') m(p − o) m(p' − o')] [(1 − r) + r·exp(−|p − p'|/ℓ)] + noise

K is the second moment of ordinary reflectances. λ(o) is the spectrum of lamp and sensor as a
spectrograph would show it; its logarithm is a random walk whose step is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from cassi.camera.displacement import (
    ALONG,
    BLURS,
    DISPLACEMENTS,
    EDGE,
    MOVES_BANDS,
    PARAMETERS,
    PARTS,
    blurred_mask,
    displacement,
    fine_mask,
    from_middle,
    sample_grid,
)
from cassi.camera.evidence import (
    ROUGH,
    STRAY,
    WHITE,
    Gaussian,
    Windows,
    ordinary_spectra,
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
WALKS = 6
"""Pseudo-steps that the prior of the walk weighs."""
FACTOR, NOISES, ROUGHS = 2.5, (1e-2, 30.0), (0.005, 0.8)
"""By which a window's noise, over what is usual, and its share of roughness change in a step, and
their limits."""
_DRAWS = 288  # windows that are drawn for the Fisher information


class Light(NamedTuple):
    """What is known of the light of a frame.

    Attributes:
        pitch: pixels between offsets; 0: light comes in one line per band, at its offset.
        simulated: it may end at the edges of the mask: where few windows lie inside, all will do.
        taps: fractions of a pixel are interpolated linearly, of the mask on the pixels of the scene
            and then of the bands, as simulations and reconstructions do; no sensor does.
        points: of each sample, where in the spectrum all of its light is, in bands; None: anywhere.
    """

    pitch: float = PITCH
    simulated: bool = False
    taps: bool = False
    points: Sequence[float | None] = ()


ALL_LIGHT = Light()
LINES = Light(0.0)
SIMULATED = Light(0.0, simulated=True)
TAPS = Light(0.0, simulated=True, taps=True)


@dataclass(frozen=True)
class State:
    """What is fitted.

    Attributes:
        values: of the parameters, and of `BLURS`, by key.
        light: log λ(o), `(P,)`.
        noise: of each window, over what is usual, `(W,)`.
        rough: share of the variance within each window, `(W,)`.
        walk: step of its random walk.
        trust: what the evidence weighs beside the prior: 1 where the model is right. Windows whose
            gradients scatter more than the model has it say less.
    """

    values: dict[str, float]
    light: Tensor
    noise: Tensor
    rough: Tensor
    walk: float = WALK
    trust: float = 1.0


class WindowModel:
    """A frame and a camera whose mask is to be placed."""

    def __init__(
        self,
        y: Tensor,
        system: SDCassi,
        good: Tensor | None = None,
        wavelengths: Sequence[float] | None = None,
        count: int = WINDOWS,
        light: Light = ALL_LIGHT,
        seed: int = 0,
    ) -> None:
        mask = system.turn(system.mask.detach()).float().cpu()
        self.size = mask.shape[-2:]
        bands = torch.tensor(system.offsets, dtype=torch.float64)
        self.lines, self.taps = light.pitch == 0, light.taps
        self.windows = Windows(y, system, good, count, _covered(system, self.size, light))
        self.random = torch.Generator().manual_seed(seed)
        self._last: tuple[tuple[float, float, bool], Tensor] | None = None
        self.parts = 1 if light.taps else PARTS
        self.fine = fine_mask(mask, self.parts)
        self.offsets, self.pitch = (bands, 0.0) if self.lines else _even_offsets(bands, light.pitch)
        self.keys = (*DISPLACEMENTS, *((*ALONG, "blur") if self.lines else BLURS))
        self.middle = float(bands[[0, -1]].mean())
        self.reach = max(float((bands[-1] - bands[0]).abs()) / 2, 1.0)
        self.shown = self._add_points(bands, light.points)
        known = wavelengths or np.linspace(450, 650, len(bands)).tolist()
        order = bands.argsort().numpy()
        nm = np.interp(self.offsets.numpy(), bands.numpy()[order], np.asarray(known)[order])
        self.factor = ordinary_spectra(tuple(nm.tolist()))[:, :RANK]
        # Which products are columns stays: else the evidence would jump.
        self.products = self.windows.products(self.factor, PRODUCTS)

    def _add_points(self, bands: Tensor, points: Sequence[float | None]) -> Tensor:
        """Give light of single wavelengths an offset each; return which windows see which.

        Returns:
            One where an offset has light, else zero, `(W, P, 1)`.
        """
        told = [None] * (1 + int(self.windows.sample.max())) if not points else list(points)
        single = [point for point in told if point is not None]
        low = torch.tensor(single).double().floor().clamp(0, max(len(bands) - 2, 0)).long()
        high = (low + 1).clamp_max(len(bands) - 1)
        at = torch.lerp(bands[low], bands[high], torch.tensor(single).double() - low)
        many, self.offsets = len(self.offsets), torch.cat([self.offsets, at])
        each = torch.cat([torch.arange(many), torch.tensor(single).round().long()])
        self.planes = each  # of a mask per band
        shown = torch.zeros(len(told), len(self.offsets), dtype=torch.float64)
        for sample, point in enumerate(told):
            if point is None:
                shown[sample, :many] = 1
            else:
                shown[sample, many + single.index(point)] = 1
        return shown[self.windows.sample][..., None]

    def start(self, blur: float = 0.5) -> State:
        """Return the mask where its file says, blurred so that wide errors are seen."""
        values = dict.fromkeys(PARAMETERS, 0.0) | {"blur": blur, "width": 1.0}
        usual = torch.ones(len(self.windows.y)).double()
        return State(values, torch.zeros_like(self.offsets), usual, ROUGH * usual)

    def resume(self, state: State, **values: float) -> State:
        """Return the state of other windows as that of these, some values changed."""
        return replace(self.start(), values=state.values | values, light=state.light)

    def codes(self, state: State, keys: Sequence[str] = ()) -> tuple[Tensor, Iterator[Tensor]]:
        """Return the mask at each offset on the windows' pixels, `(W, P, N)`, and derivatives."""
        windows, (height, width) = self.windows, self.size
        row = (windows.corner[:, :1] + windows.down).float()  # (W, N)
        column = (windows.corner[:, 1:] + windows.along).float()
        column = column - self.offsets.float()[:, None, None]  # (P, W, N)
        shown = torch.minimum(column + 1, width - column).clamp(0, 1)
        row = row.expand_as(column)
        fields = self._fields(row, column)
        images = self._images(state.values, bool(keys))
        values, margin = state.values, EDGE
        if self.taps:
            images, margin = self._on_pixels(images, values), 0
            values = {key: values[key] for key in MOVES_BANDS}
        off, along = displacement(values, fields, self.size, like=row)
        at = sample_grid(row - off, column - along, self.size, margin)
        sampled = images.new_zeros(len(at), images.shape[2], *at.shape[1:3])
        for shot in windows.shot.unique().tolist():
            chosen = windows.shot == shot
            image = images[shot]
            image = image[self.planes] if len(image) > 1 else image.expand(len(at), -1, -1, -1)
            sampled[:, :, chosen] = grid_sample(image, at[:, chosen], align_corners=True)
        sampled = (
            sampled * (windows.good * shown[:, None]) * self.shown.transpose(0, 1)[:, None].float()
        )
        code = sampled[:, 0].transpose(0, 1).double()

        def changes() -> Iterator[Tensor]:
            for key in keys:
                if key in BLURS:
                    change = sampled[:, 3 if key == "blur" else 4]
                else:
                    parameter = PARAMETERS[key]
                    scales, moves = parameter.scale(height, width), parameter.basis(*fields)
                    parts = [
                        sampled[:, 1 + way] * (-scale * move)
                        for way, (scale, move) in enumerate(zip(scales, moves, strict=True))
                        if isinstance(move, Tensor) or move
                    ]
                    change = parts[0] if len(parts) == 1 else parts[0] + parts[1]
                yield change

        return code, changes()

    def _images(self, values: dict[str, float], derivatives: bool) -> Tensor:
        """Return the blurred mask; a search asks for the same one many times."""
        key = values["blur"], values["width"], derivatives
        if self._last is None or self._last[0] != key:
            images = blurred_mask(self.fine, values, self.pitch, derivatives, self.parts)
            self._last = key, images
        return self._last[1]

    def _on_pixels(self, images: Tensor, values: dict[str, float]) -> Tensor:
        """Return images of a mask, moved and interpolated on the pixels of the scene."""
        row, column = torch.meshgrid(*(torch.arange(n).float() for n in self.size), indexing="ij")
        fields = (*from_middle(row, column, self.size), torch.zeros_like(row))
        moves = {key: value for key, value in values.items() if key not in MOVES_BANDS}
        off, along = displacement(moves, fields, self.size, like=row)
        at = sample_grid(row - off, column - along, self.size)
        flat = images.flatten(0, 1)
        found = grid_sample(flat, at.expand(len(flat), -1, -1, -1), align_corners=True)
        return found.view(*images.shape[:3], *self.size)

    def _fields(self, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, v = from_middle(row, column, self.size)
        z = (self.offsets - self.middle) / self.reach
        return u.float(), v.float(), z[:, None, None].float()

    def nats(self, state: State) -> Tensor:
        """Return the log evidence of each window, `(W,)`."""
        return self._nats(self.codes(state)[0], state)

    def _nats(self, codes: Tensor, state: State) -> Tensor:
        model, *_ = self._model(codes, state)
        return model.nats(*model.solve(self.windows.y[..., None])[:2])

    def suited(self, state: State, rounds: int = 1) -> State:
        """Return the state with the noise and the roughness that make each window likelier.

        In light of all wavelengths they stay as they are usual: there they stand for what a model
        of the optics misses, and errors would be stated too small.
        """
        if not self.lines:
            return state
        codes = self.codes(state)[0]
        best = self._nats(codes, state)
        for key, limits in rounds * (("noise", NOISES), ("rough", ROUGHS)):
            for factor in (FACTOR, 1 / FACTOR):
                values = state.noise if key == "noise" else state.rough
                tried = (values * factor).clamp(*limits)
                nats = self._nats(codes, _with(state, key, tried))
                state = _with(state, key, torch.where(nats > best, tried, values))
                best = torch.maximum(nats, best)
        return state

    def _model(self, codes: Tensor, state: State) -> tuple[Gaussian, Tensor, Tensor]:
        """Return the Gaussian of each window, and spectra in this light: `(P, R)`, `(W, N, R)`."""
        shine = state.light.exp()
        factor = self.factor * shine[:, None]
        spectral = codes.mT @ factor
        lines = (codes * shine[:, None]).square().sum(1)  # no band like another
        white = WHITE * state.noise[:, None] * lines
        made = self.windows.gaussian(spectral, self.products, state.rough, state.noise, white)
        return made, factor, spectral

    def scores(self, state: State, keys: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return nats, and gradients of what was seen and of what is drawn.

        Returns:
            `(W,)`, `(W, T)` and `(W, Q, T)`, T the keys and then the light.
        """
        windows = self.windows
        codes, changes = self.codes(state, keys)
        model, factor, spectral = self._model(codes, state)
        draws = math.ceil(_DRAWS / len(model.rest))
        seen = torch.cat([windows.y[..., None], model.draw(draws, self.random)], -1)
        chol, amplitude, mean, residual, over = model.solve(seen)
        # dL/dS = (α αᵀ/a² − S⁻¹)/2 with α = S⁻¹ y. So the gradient by a column b of B is
        # α (bᵀα)/a² − S⁻¹ b, and that by the diagonal D half of it for unit vectors.
        scaled = (residual / amplitude.sqrt()[:, None]).mT  # (W, Q, N)
        inner = mean / amplitude.sqrt()[:, None]  # (W, B, Q)
        solved = torch.cholesky_solve(over.mT, chol).mT  # S⁻¹ B
        diagonal = 1 / model.rest - (solved * over).sum(-1)
        by_rest = (scaled.square() - diagonal[:, None]) / 2 * windows.good[:, None]
        rank = self.factor.shape[1]
        share = state.rough[:, None, None]
        smooth, rough = (1 - share) ** 0.5, share**0.5
        maps = windows.maps[:, self.products.spatial]
        pick = torch.nn.functional.one_hot(self.products.spectral, rank).double()
        products = slice(rank, rank + len(self.products.spectral))
        scene = smooth[..., None] * inner[:, :rank].mT[:, :, None]
        scene = scene + rough[..., None] * torch.einsum(
            "np,wpq,pk->wqnk", maps, inner[:, products], pick
        )
        mean_field = smooth * solved[..., :rank] + rough * (solved[..., products] * maps) @ pick
        by_spectral = scaled[..., None] * scene - mean_field[:, None]
        by_spectral = (
            by_spectral
            + 2 * share[..., None] * by_rest[..., None] * ((spectral * self.products.rest)[:, None])
        )
        stray = scaled * inner[:, -1][..., None] - solved[..., -1][:, None]
        by_level = (
            (stray * windows.good[:, None]).sum(-1) * STRAY / (2 * model.level.sqrt())[:, None]
        )
        by_level = by_level + by_rest.sum(-1) * model.noise[:, None]
        by_level = 2 * by_level / windows.good.sum(1)[:, None]
        by_spectral = by_spectral + by_level[..., None, None] * spectral[:, None]
        # By a code, that is Σ_k by_spectral·factor and what the lines have: never held as a whole.
        bright = codes * state.light.exp().square()[:, None]
        white = 2 * WHITE * state.noise[:, None, None] * by_rest
        flat = by_spectral.transpose(1, 2).flatten(2)  # (W, N, Q·R)
        each = (codes @ flat).unflatten(2, (-1, rank))  # (W, P, Q, R)
        shone = (each * factor[:, None]).sum(-1).mT + white @ (bright * codes).mT
        moved = shone.new_zeros(*shone.shape[:2], len(keys))
        by_factor = by_spectral.transpose(2, 3).flatten(2)  # (W, Q, R·N)
        lit = bright.transpose(0, 1)
        for k, change in enumerate(changes):
            spread = factor.mT.to(change) @ change.flatten(1)  # (R, W·N)
            spread = spread.double().view(rank, *change.shape[1:]).transpose(0, 1).flatten(1)
            by_line = (change * lit).sum(0)
            moved[..., k] = (by_factor @ spread[..., None] + white @ by_line[..., None])[..., 0]
        gradient = torch.cat([moved, shone], -1)
        return model.nats(chol, amplitude), gradient[:, 0], gradient[:, 1:]

    def usual(self, key: str) -> tuple[float, float]:
        """Return mean and standard deviation of a prior."""
        if key not in BLURS:
            return 0.0, PARAMETERS[key].deviation
        return (0.0, BLURS[key][1]) if self.lines else BLURS[key]

    def prior(self, state: State, keys: Sequence[str]) -> tuple[float, Tensor, Tensor]:
        """Return the log prior, its gradient and minus its second derivative."""
        mean, deviation = (
            torch.tensor(each).double() for each in zip(*map(self.usual, keys), strict=True)
        )
        away = torch.tensor([state.values[key] for key in keys]).double() - mean
        total = -0.5 * float((away / deviation).square().sum())
        many, walk = len(state.light), state.walk
        steps = state.light.diff()
        total -= 0.5 * float((steps / walk).square().sum()) + (many - 1 + WALKS) * math.log(walk)
        total -= 0.5 * WALKS * (WALK / walk) ** 2
        total -= 0.5 * many * float(state.light.mean() / LEVEL) ** 2
        differences = torch.eye(many).double().diff(dim=0)
        precision = torch.block_diag(
            torch.diag(deviation**-2.0),
            differences.mT @ differences / walk**2 + torch.full((many, many), LEVEL**-2 / many),
        )
        gradient = -precision @ torch.cat([away, state.light])
        return total, gradient, precision


def _with(state: State, key: str, values: Tensor) -> State:
    return replace(state, noise=values) if key == "noise" else replace(state, rough=values)


def outer_offsets(offsets: Sequence[float]) -> tuple[float, float]:
    """Return where the light of the outermost bands ends: half a band beyond their offsets."""
    if len(offsets) == 1:
        return offsets[0] - 0.5, offsets[0] + 0.5
    first, last = offsets[1] - offsets[0], offsets[-1] - offsets[-2]
    return offsets[0] - first / 2, offsets[-1] + last / 2


def _even_offsets(bands: Tensor, pitch: float) -> tuple[Tensor, float]:
    """Return even offsets of light, some beyond the outermost bands, and how far apart they are."""
    first, last = outer_offsets(bands.tolist())
    beyond = math.copysign(BEYOND, last - first)
    first, last = first - beyond, last + beyond
    many = max(round(abs(last - first) / pitch), 2)
    at = (torch.arange(many) + 0.5).double() / many
    return first + (last - first) * at, abs(last - first) / many


def _covered(
    system: SDCassi, size: tuple[int, ...], light: Light
) -> Callable[[Tensor, tuple[int, int]], Tensor]:
    """Return what tells whether all light of a window has passed the mask, away from its edges.

    Simulated light ends at the edges of the mask as it is given.
    """
    low, high = sorted(outer_offsets(system.offsets))

    def covered(corner: Tensor, shape: tuple[int, int]) -> Tensor:
        row, column = corner.T
        height, width = size
        inside = (row >= EDGE) & (row + shape[0] <= height - EDGE)
        inside &= column - high - BEYOND >= 0
        inside &= column + shape[1] - low + BEYOND <= width
        return (
            torch.ones_like(inside) if light.simulated and int(inside.sum()) < WINDOWS else inside
        )

    return covered
