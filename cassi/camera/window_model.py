r"""Log evidence of a frame's windows, with gradients by the displacement of the mask and the light.

A frame is a sum along the dispersion,

    y(p) = Σ_o m(p − o − d(p, o)) x(p, o)

x(p, o) is the light that is dispersed by o pixels, and d the displacement of the mask from its
place in the file. In broadband light the offsets o are even, about a pixel apart, and the model
does not say which wavelength falls at which offset. In light with one line per band the offsets o
are those of the bands. The pixels of a small window are Gaussian with the covariance

    S = [Σ_oo' λ(o) λ(o') K(o, o') m(p − o) m(p' − o')] [(1 − r) + r·exp(−|p − p'|/ℓ)] + noise

K is the second moment of ordinary reflectances. λ(o) is the spectrum of lamp and sensor over the
offset. r is the share of the variance within a window, and ℓ its correlation length. log λ is a
random walk over the offsets, and the step of this walk is estimated.
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
    ALONG_DISPERSION,
    BAND_PARAMETERS,
    BLURS,
    DISPLACEMENTS,
    EDGE_PIXELS,
    LIGHT_PARAMETERS,
    PARAMETERS,
    SAMPLES_PER_PIXEL,
    blurred_mask,
    displacement,
    fine_mask,
    from_middle,
    sample_grid,
)
from cassi.camera.evidence import LINE_FRACTION, SPECTRAL_COMPONENTS, ordinary_spectra
from cassi.camera.light_model import (
    BROADBAND,
    MARGIN_PIXELS,
    LightModel,
    even_offsets,
    outer_offsets,
)
from cassi.camera.windows import ROUGHNESS, STRAY_LEVEL, Gaussian, Windows
from cassi.systems import SDCassi

MAX_WINDOWS = 48
"""Windows of a fit. Time rises in proportion to their number, errors fall with its square root."""
MAX_PRODUCTS = 40
"""Largest number of products of spectral and spatial components. Weaker products count as noise."""
WALK_STEP = 0.2
"""Prior value of the step of the random walk of log λ. A smaller one gives smoother light."""
WALK_PRIOR_STEPS = 6
"""Weight of `WALK_STEP` in the estimate of the step, as a number of steps of the walk."""
LEVEL_DEVIATION = 2.0
"""Prior standard deviation of the mean of log λ."""
TRIAL_FACTOR = 2.5
"""Factor by which a trial changes noise or roughness of a window."""
NOISE_LIMITS = (1e-2, 30.0)
"""Limits of the variance of the noise of a window, relative to the nominal one."""
ROUGHNESS_LIMITS = (0.005, 0.8)
"""Limits of the share r of a window."""
# Least number of frames that are drawn for the Fisher information, summed over all windows. Time
# rises with this number, and the relative error of the information falls with its square root.
_MIN_DRAWS = 288


@dataclass(frozen=True)
class State:
    """Parameters of the model that are fitted.

    Attributes:
        values: values of `PARAMETERS` and of `BLURS`, by key.
        light: log λ(o), `(P,)`.
        noise: variance of the noise of each window, relative to the nominal one, `(W,)`.
        roughness: share r of the variance within each window, `(W,)`.
        walk: step of the random walk of log λ.
        trust: weight of the evidence relative to the prior. It is 1 if the model is right, and less
            if the gradients of the windows scatter more than the model predicts.
    """

    values: dict[str, float]
    light: Tensor
    noise: Tensor
    roughness: Tensor
    walk: float = WALK_STEP
    trust: float = 1.0


class WindowModel:
    """The log evidence of the windows of a frame as a function of a `State`, with gradients.

    Args:
        y: frames `(B, K, H', W')`.
        system: the nominal camera, with one mask for all samples.
        good_pixels: pixels that count, shaped like one frame or all; None: all.
        wavelengths: nm, one per band; None: even from 450 to 650 nm.
        count: largest number of windows.
        light: the model of the light.
        seed: seed of the frames that are drawn for the Fisher information.
        dtype: dtype of all matrices of windows, see `Windows`.

    Raises:
        ValueError: too few windows are lit.
    """

    def __init__(
        self,
        y: Tensor,
        system: SDCassi,
        good_pixels: Tensor | None = None,
        wavelengths: Sequence[float] | None = None,
        count: int = MAX_WINDOWS,
        light: LightModel = BROADBAND,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        mask = system.orient(system.mask.detach()).float().cpu()
        self.size = mask.shape[-2:]
        bands = torch.tensor(system.offsets, dtype=torch.float64)
        self.has_lines, self.uses_taps = light.pitch == 0, light.uses_taps
        select = _covered_windows(system, self.size, light)
        self.windows = Windows(y, system, good_pixels, count, select, dtype)
        self.random = torch.Generator().manual_seed(seed)
        self._blur_cache: tuple[tuple[float, float, bool], Tensor] | None = None
        self.oversampling = 1 if light.uses_taps else SAMPLES_PER_PIXEL
        self.mask_samples = fine_mask(mask, self.oversampling)
        self.offsets, self.pitch = (
            (bands, 0.0) if self.has_lines else even_offsets(bands, light.pitch)
        )
        self.keys = (*DISPLACEMENTS, *((*ALONG_DISPERSION, "blur") if self.has_lines else BLURS))
        self.middle = float(bands[[0, -1]].mean())
        self.reach = max(float((bands[-1] - bands[0]).abs()) / 2, 1.0)
        self.has_light = self._add_points(bands, light.points)
        nominal_wavelengths = wavelengths or np.linspace(450, 650, len(bands)).tolist()
        order = bands.argsort().numpy()
        nm = np.interp(
            self.offsets.numpy(), bands.numpy()[order], np.asarray(nominal_wavelengths)[order]
        )
        self.factor = ordinary_spectra(tuple(nm.tolist()))[:, :SPECTRAL_COMPONENTS]
        # The products that are columns of B are chosen once. If each state had its own choice, the
        # evidence would jump from state to state.
        self.products = self.windows.products(self.factor, MAX_PRODUCTS)

    def _add_points(self, bands: Tensor, points: Sequence[float | None]) -> Tensor:
        """Add an offset for each narrow-band light.

        Returns:
            One where a window has light at an offset, zero elsewhere, `(W, P, 1)`.
        """
        points = [None] * (1 + int(self.windows.sample.max())) if not points else list(points)
        narrow_points = [point for point in points if point is not None]
        low = torch.tensor(narrow_points).double().floor().clamp(0, max(len(bands) - 2, 0)).long()
        high = (low + 1).clamp_max(len(bands) - 1)
        point_offsets = torch.lerp(
            bands[low], bands[high], torch.tensor(narrow_points).double() - low
        )
        n_offsets, self.offsets = len(self.offsets), torch.cat([self.offsets, point_offsets])
        # The band whose mask applies at each offset, if every band has its own mask.
        self.planes = torch.cat(
            [torch.arange(n_offsets), torch.tensor(narrow_points).round().long()]
        )
        has_light = torch.zeros(len(points), len(self.offsets))
        for sample, point in enumerate(points):
            if point is None:
                has_light[sample, :n_offsets] = 1
            else:
                has_light[sample, n_offsets + narrow_points.index(point)] = 1
        return has_light[self.windows.sample][..., None]

    def start(self, blur: float = 0.5) -> State:
        """Return a state without displacement.

        `blur` is the variance of the mask's blur, pixels². If the mask is blurred, the evidence
        rises towards the true place even from one or two pixels away.
        """
        values = dict.fromkeys(PARAMETERS, 0.0) | {"blur": blur, "width": 1.0}
        ones = torch.ones_like(self.windows.y[:, 0])
        return State(values, torch.zeros_like(self.offsets), ones, ROUGHNESS * ones)

    def resume(self, state: State, **values: float) -> State:
        """Return a state of these windows, with values and light of a state of other windows.

        `values` replace values of that state.
        """
        return replace(self.start(), values=state.values | values, light=state.light)

    def codes(self, state: State, keys: Sequence[str] = ()) -> tuple[Tensor, Iterator[Tensor]]:
        """Return the mask at each offset on the windows' pixels, `(W, P, N)`.

        The second result yields the derivative of the mask by each key, `(P, W, N)`.
        """
        windows, (height, width) = self.windows, self.size
        row = (windows.corner[:, :1] + windows.row_offsets).float()  # (W, N)
        column = (windows.corner[:, 1:] + windows.column_offsets).float()
        column = column - self.offsets.float()[:, None, None]  # (P, W, N)
        is_on_mask = torch.minimum(column + 1, width - column).clamp(0, 1)
        fields = self._fields(row, column)
        images = self._blur_mask(state.values, bool(keys))
        values, margin = state.values, EDGE_PIXELS
        # A simulation interpolates twice: the displaced mask on the pixels of the scene, then each
        # band on the detector. Each interpolation blurs by its own fraction of a pixel.
        if self.uses_taps:
            images, margin = self._interpolate_on_pixels(images, values), 0
            values = {key: values[key] for key in BAND_PARAMETERS}
        if self.uses_taps and not any(values[key] for key in LIGHT_PARAMETERS[1:]):
            zero = torch.zeros(())
            _, shift_along = displacement(values, (zero, zero, fields[2]), self.size, fields[2])
            samples = self._sample_rows(images, shift_along[..., 0])
        else:
            shift_across, shift_along = displacement(values, fields, self.size, template=row)
            positions = sample_grid(row - shift_across, column - shift_along, self.size, margin)
            samples = self._sample(images, positions)
        samples = (
            samples
            * (windows.good_pixels * is_on_mask[:, None])
            * self.has_light.transpose(0, 1)[:, None]
        )
        code = samples[:, 0].transpose(0, 1).contiguous().to(windows.y)

        def yield_changes() -> Iterator[Tensor]:
            for key in keys:
                if key in BLURS:
                    change = samples[:, 3 if key == "blur" else 4]
                else:
                    parameter = PARAMETERS[key]
                    scales, moves = parameter.scale(height, width), parameter.basis(*fields)
                    terms = [
                        samples[:, 1 + axis] * (-scale * move)
                        for axis, (scale, move) in enumerate(zip(scales, moves, strict=True))
                        if isinstance(move, Tensor) or move
                    ]
                    change = terms[0] if len(terms) == 1 else terms[0] + terms[1]
                yield change

        return code, yield_changes()

    def _sample(self, images: Tensor, positions: Tensor) -> Tensor:
        """Return images `(K, C, D, ·, ·)` at positions `(P, W, N, 2)`, `(P, D, W, N)`."""
        samples = images.new_zeros(len(positions), images.shape[2], *positions.shape[1:3])
        shots = self.windows.shot.unique().tolist()
        for shot in shots:
            # A slice needs no copy of the positions.
            is_of_shot = self.windows.shot == shot if len(shots) > 1 else slice(None)
            image = images[shot]
            image = (
                image[self.planes] if len(image) > 1 else image.expand(len(positions), -1, -1, -1)
            )
            samples[:, :, is_of_shot] = grid_sample(
                image, positions[:, is_of_shot], align_corners=True
            )
        return samples

    def _sample_rows(self, images: Tensor, shift_along: Tensor) -> Tensor:
        """Return the same samples where each offset shifts all pixels by as much.

        Args:
            images: images on the pixels of the scene, `(K, C, D, H, W)`.
            shift_along: shift at each offset, pixels `(P, 1)`.
        """
        windows, (rows, columns) = self.windows, self.windows.shape
        padded = torch.nn.functional.pad(images, (1, 1))
        row = windows.corner[:, :1] + torch.arange(rows)  # (W, rows)
        # All rows of a window: (W, 1|C, D, rows, width + 2)
        strips = padded.movedim(-2, 1)[windows.shot[:, None], row].movedim(1, -2)
        strips = strips[:, self.planes] if strips.shape[1] > 1 else strips
        first = windows.corner[:, 1] - self.offsets[:, None] - shift_along.double()  # (P, W)
        first_whole = first.floor()
        index = first_whole[..., None].long() + torch.arange(columns + 1)
        index = (index + 1).clamp(0, padded.shape[-1] - 1).transpose(0, 1)[:, :, None, None]
        shape = (*index.shape[:2], *strips.shape[2:4])  # (W, P, D, rows)
        values = strips.expand(*shape, -1).gather(-1, index.expand(*shape, -1))
        weight = (first - first_whole).to(values).T[..., None, None, None]
        samples = torch.lerp(values[..., :-1], values[..., 1:], weight)
        return samples.flatten(3).permute(1, 2, 0, 3)

    def _blur_mask(self, values: dict[str, float], derivatives: bool) -> Tensor:
        """Return the blurred mask, from the cache if the last call had the same blur."""
        # A search evaluates many displacements with one blur, so one entry is enough.
        key = values["blur"], values["width"], derivatives
        if self._blur_cache is None or self._blur_cache[0] != key:
            images = blurred_mask(
                self.mask_samples, values, self.pitch, derivatives, self.oversampling
            )
            self._blur_cache = key, images
        return self._blur_cache[1]

    def _interpolate_on_pixels(self, images: Tensor, values: dict[str, float]) -> Tensor:
        """Displace images of a mask and interpolate them on the pixels of the scene."""
        row, column = torch.meshgrid(*(torch.arange(n).float() for n in self.size), indexing="ij")
        fields = (*from_middle(row, column, self.size), torch.zeros_like(row))
        moves = {key: value for key, value in values.items() if key not in BAND_PARAMETERS}
        shift_across, shift_along = displacement(moves, fields, self.size, template=row)
        positions = sample_grid(row - shift_across, column - shift_along, self.size)
        planes = images.flatten(0, 1)
        moved_planes = grid_sample(
            planes, positions.expand(len(planes), -1, -1, -1), align_corners=True
        )
        return moved_planes.view(*images.shape[:3], *self.size)

    def _fields(self, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, v = from_middle(row, column, self.size)
        z = (self.offsets - self.middle) / self.reach
        return u.float(), v.float(), z[:, None, None].float()

    def nats(self, state: State) -> Tensor:
        """Return the log evidence of each window, `(W,)`."""
        return self._nats(self._view(self.codes(state)[0], state), state)

    def _nats(self, view: _View, state: State) -> Tensor:
        model = self._model(view, state)
        return model.nats(*model.solve(self.windows.y[..., None])[:2])

    def fit_noise(self, state: State, rounds: int = 1) -> State:
        """Return the state with likelier values of noise and roughness of each window.

        In broadband light the state does not change.
        """
        # In broadband light noise and roughness stand for errors of the model of the optics. If
        # they were fitted to the frame, the standard errors would be too small. In light with lines
        # the noise is estimated. The gradients then have 2 to 6 times the expected variance; if the
        # noise is a fixed share of the light, 70 to 115 times
        # (docs/development/experiments/evidence.md).
        if not self.has_lines:
            return state
        view = self._view(self.codes(state)[0], state)
        best = self._nats(view, state)
        for key, limits in rounds * (("noise", NOISE_LIMITS), ("roughness", ROUGHNESS_LIMITS)):
            for factor in (TRIAL_FACTOR, 1 / TRIAL_FACTOR):
                values = state.noise if key == "noise" else state.roughness
                trial = (values * factor).clamp(*limits)
                nats = self._nats(view, _with_window_value(state, key, trial))
                state = _with_window_value(state, key, torch.where(nats > best, trial, values))
                best = torch.maximum(nats, best)
        return state

    def _view(self, codes: Tensor, state: State) -> _View:
        """Return what the windows see through these codes in the light of a state."""
        illuminant = state.light.exp().to(self.windows.y)
        factor = self.factor.to(illuminant) * illuminant[:, None]
        spectral = codes.mT @ factor
        columns = self.windows.columns(spectral, self.products)
        return _View(factor, spectral, columns, (codes * illuminant[:, None]).square().sum(1))

    def _model(self, view: _View, state: State) -> Gaussian:
        """Return the Gaussian of each window."""
        # A share of the light is independent from band to band. It adds variance that is not
        # correlated between pixels.
        line_variance = LINE_FRACTION * state.noise[:, None] * view.line_power
        return self.windows.gaussian(
            view.spectral, view.columns, self.products, state.roughness, state.noise, line_variance
        )

    def _window_gradients(
        self, model: Gaussian, state: State, spectral: Tensor, frames: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return nats of the measured frame, and gradients for all frames `(W, N, Q)`.

        Returns:
            Nats `(W,)`; gradients by the diagonal D, `(W, Q, N)`; gradients by the spectral
            components of the pixels, `(W, Q, N, R)`.
        """
        windows, rank = self.windows, self.factor.shape[1]
        chol, amplitude, mean, residual, weighted_columns = model.solve(frames)
        # dL/dS = (α αᵀ/a² − S⁻¹)/2 with α = S⁻¹ y. So the gradient by a column b of B is
        # α (bᵀα)/a² − S⁻¹ b. The gradient by element n of D is (α_n²/a² − (S⁻¹)_nn)/2.
        weighted_columns = weighted_columns * model.scales[:, None]  # D⁻¹B
        residual = (residual / amplitude.sqrt()[:, None]).mT  # (W, Q, N)
        mean = mean / amplitude.sqrt()[:, None]  # (W, B, Q)
        solved_columns = torch.cholesky_solve(weighted_columns.mT, chol).mT  # S⁻¹ B
        diagonal = 1 / model.residual_variance - (solved_columns * weighted_columns).sum(-1)
        by_variance = (residual.square() - diagonal[:, None]) / 2 * windows.good_pixels[:, None]
        share = state.roughness[:, None, None]
        constant_weight, roughness_weight = (1 - share) ** 0.5, share**0.5
        maps = windows.roughness_maps[:, self.products.spatial]
        selection = torch.nn.functional.one_hot(self.products.spectral, rank).to(mean)
        products = slice(rank, rank + len(self.products.spectral))
        # The spectral components are columns of B, factors of other columns of B, and parts of D.
        scene = constant_weight[..., None] * mean[:, :rank].mT[:, :, None]
        scene = scene + roughness_weight[..., None] * torch.einsum(
            "np,wpq,pk->wqnk", maps, mean[:, products], selection
        )
        rough_columns = roughness_weight * (solved_columns[..., products] * maps) @ selection
        mean_field = constant_weight * solved_columns[..., :rank] + rough_columns
        by_spectral = residual[..., None] * scene - mean_field[:, None]
        remaining = (spectral * self.products.remaining_shares)[:, None]
        by_spectral = by_spectral + 2 * share[..., None] * by_variance[..., None] * remaining
        # The level of a window depends on the components, too. It scales stray light and noise.
        by_stray = residual * mean[:, -1][..., None] - solved_columns[..., -1][:, None]
        by_stray = (by_stray * windows.good_pixels[:, None]).sum(-1)
        by_level = by_stray * STRAY_LEVEL / (2 * model.level.sqrt())[:, None]
        by_level = by_level + by_variance.sum(-1) * model.noise[:, None]
        by_level = 2 * by_level / windows.good_pixels.sum(1)[:, None]
        by_spectral = by_spectral + by_level[..., None, None] * spectral[:, None]
        return model.nats(chol, amplitude), by_variance, by_spectral

    def scores(self, state: State, keys: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return nats of each window and their gradients for the frame and for drawn frames.

        Returns:
            `(W,)`, `(W, T)` and `(W, Q, T)`. T counts the keys and then the offsets of the light.
        """
        windows, rank = self.windows, self.factor.shape[1]
        codes, changes = self.codes(state, keys)
        view = self._view(codes, state)
        model, factor = self._model(view, state), view.factor
        draws = math.ceil(_MIN_DRAWS / len(model.residual_variance))
        frames = torch.cat([windows.y[..., None], model.draw(draws, self.random)], -1)
        nats, by_variance, by_spectral = self._window_gradients(model, state, view.spectral, frames)
        # The gradient by a code is Σ_k by_spectral·factor plus a term of the lines. For all codes
        # it would be a tensor (W, Q, P, N). So only its products with the changes are computed.
        line_codes = codes * (2 * state.light).exp().to(codes)[:, None]
        by_line_power = 2 * LINE_FRACTION * state.noise[:, None, None] * by_variance
        flat = by_spectral.transpose(1, 2).flatten(2)  # (W, N, Q·R)
        by_code = (codes @ flat).unflatten(2, (-1, rank))  # (W, P, Q, R)
        by_light = (by_code * factor[:, None]).sum(-1).mT + by_line_power @ (line_codes * codes).mT
        by_parameter = by_light.new_zeros(*by_light.shape[:2], len(keys))
        by_factor = by_spectral.transpose(2, 3).flatten(2)  # (W, Q, R·N)
        line_codes_by_offset = line_codes.transpose(0, 1)
        for k, change in enumerate(changes):
            spectral_change = factor.mT @ change.flatten(1).to(factor)  # (R, W·N)
            spectral_change = spectral_change.view(rank, *change.shape[1:])
            spectral_change = spectral_change.transpose(0, 1).flatten(1)
            line_change = (change * line_codes_by_offset).sum(0)
            by_key = by_factor @ spectral_change[..., None] + by_line_power @ line_change[..., None]
            by_parameter[..., k] = by_key[..., 0]
        gradient = torch.cat([by_parameter, by_light], -1).double()
        return nats, gradient[:, 0], gradient[:, 1:]

    def prior_moments(self, key: str) -> tuple[float, float]:
        """Return mean and standard deviation of the prior of a parameter."""
        if key not in BLURS:
            return 0.0, PARAMETERS[key].deviation
        return (0.0, BLURS[key][1]) if self.has_lines else BLURS[key]

    def prior(self, state: State, keys: Sequence[str]) -> tuple[float, Tensor, Tensor]:
        """Return the log prior, its gradient and its negative second derivative."""
        mean, deviation = (
            torch.tensor(moments).double()
            for moments in zip(*map(self.prior_moments, keys), strict=True)
        )
        from_mean = torch.tensor([state.values[key] for key in keys]).double() - mean
        total = -0.5 * float((from_mean / deviation).square().sum())
        n_offsets, walk = len(state.light), state.walk
        steps = state.light.diff()
        # Steps of log λ are normal with the standard deviation `walk`. The prior of `walk` has the
        # weight of WALK_PRIOR_STEPS additional steps of size WALK_STEP.
        log_deviations = (n_offsets - 1 + WALK_PRIOR_STEPS) * math.log(walk)
        total -= 0.5 * float((steps / walk).square().sum()) + log_deviations
        total -= 0.5 * WALK_PRIOR_STEPS * (WALK_STEP / walk) ** 2
        total -= 0.5 * n_offsets * float(state.light.mean() / LEVEL_DEVIATION) ** 2
        differences = torch.eye(n_offsets).double().diff(dim=0)
        precision = torch.block_diag(
            torch.diag(deviation**-2.0),
            differences.mT @ differences / walk**2
            + torch.full((n_offsets, n_offsets), LEVEL_DEVIATION**-2 / n_offsets),
        )
        gradient = -precision @ torch.cat([from_mean, state.light])
        return total, gradient, precision


class _View(NamedTuple):
    """The part of a model that is independent of noise and roughness."""

    factor: Tensor  # spectral components under the illuminant, (P, R)
    spectral: Tensor  # these components on the pixels of each window, (W, N, R)
    columns: Tensor  # columns of B without their scales, (W, N, ·)
    line_power: Tensor  # power of the light that is independent from band to band, (W, N)


def _with_window_value(state: State, key: str, values: Tensor) -> State:
    return replace(state, noise=values) if key == "noise" else replace(state, roughness=values)


def _covered_windows(
    system: SDCassi, size: tuple[int, ...], light: LightModel
) -> Callable[[Tensor, tuple[int, int]], Tensor]:
    """Return a function that tells which windows get all their light through the mask.

    The function takes corners `(W, 2)` and the shape of the windows. A window at the edge of the
    mask also gets light from beyond the area of the mask's file, which the model does not include.
    """
    low, high = sorted(outer_offsets(system.offsets))

    def is_covered(corner: Tensor, shape: tuple[int, int]) -> Tensor:
        row, column = corner.T
        height, width = size
        is_inside = (row >= EDGE_PIXELS) & (row + shape[0] <= height - EDGE_PIXELS)
        is_inside &= column - high - MARGIN_PIXELS >= 0
        is_inside &= column + shape[1] - low + MARGIN_PIXELS <= width
        # Simulated light ends at the edges of the mask, so the model is right for windows there.
        if light.is_simulated and int(is_inside.sum()) < MAX_WINDOWS:
            return torch.ones_like(is_inside)
        return is_inside

    return is_covered
