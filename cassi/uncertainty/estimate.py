"""Estimate the standard deviation of every value of a reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.solvers.base import GridSolution, Reconstructor
from cassi.solvers.statistics import Statistics, root_mean_square, signal_level
from cassi.systems.base import System
from cassi.uncertainty.bootstrap import BootstrapResult, Probe, Trial, bootstrap
from cassi.uncertainty.error_model import SIDES, ErrorModel, load_error_model
from cassi.uncertainty.features import Features
from cassi.uncertainty.samples import Samples, check_count, draw_samples

MAX_UNUSUAL = 0.1
"""Largest share of unusual values without a warning, see `ErrorModel.predict`."""
MAX_ROUGHNESS_FACTOR = 1.5
"""A warning is given if rough spectra raise the root mean square of σ by more than this factor."""
MAX_DARK_SHARE = 0.07
"""Largest `dark_share` of a sensor's frame without a warning. The 90 % intervals hold 95 % of the
values in a frame with a dark share of 5.7 %, but 77 % in a frame with a dark share of 8.2 %
(docs/development/experiments/uncertainty.md)."""
# Side of the squares of `dark_share`, pixels.
_DARK_SQUARE_PIXELS = 8
# A square is dark if its mean light is below this share of the mean of all squares.
_DARK_LEVEL = 0.05


@dataclass(frozen=True)
class Uncertainty:
    """Standard deviations of the values of a reconstruction.

    Attributes:
        std: standard deviation σ, `(1, C, H, W)`, in the unit of the cube: the truth is within
            ±1.645 σ in 90 % of the values.
        pattern: an error of the method on this scene, in units of σ, with mean square 1,
            `(1, C, H, W)`. It shows how errors of neighbouring pixels and bands are correlated.
        sources: root mean squares of the parts of σ, in the unit of the cube, by key. noise: by
            noise; model: by a shift of the mask; unseen: in the null space of A, which the camera
            does not measure.
        shift: apparent shift of the mask (down, right), pixels; texture alone gives up to 0.2.
        heldout: relative error at held-out pixels.
        warnings: messages on differences from the cameras and scenes with which σ was trained.
        seconds: time of the estimate, s.
        samples: cubes that are all consistent with the measurement, if asked for.
    """

    std: Tensor
    pattern: Tensor
    sources: dict[str, float]
    shift: tuple[float, float]
    heldout: float
    warnings: tuple[str, ...]
    seconds: float = 0.0
    samples: Samples | None = None

    def with_names(
        self, x: Tensor, wavelengths: Sequence[float], errors: Sequence[float]
    ) -> Uncertainty:
        """Return a σ that includes the errors of the wavelengths of the bands.

        An error of a wavelength changes a value by this error times the slope of the spectrum.

        Args:
            x: the cube, `(1, C, H, W)`.
            wavelengths: wavelengths of the bands of x, nm, increasing.
            errors: standard errors of the wavelengths, nm, one per band.
        """
        if x.shape[1] < 2:
            return self
        band_wavelengths = torch.tensor(wavelengths, dtype=torch.float64)
        slope = torch.gradient(x.double(), spacing=(band_wavelengths.to(x.device),), dim=1)[0]
        wavelength_part = slope * torch.tensor(errors, dtype=torch.float64, device=x.device).view(
            -1, 1, 1
        )
        std = torch.hypot(self.std.double(), wavelength_part).to(self.std)
        sources = self.sources | {"names": float(root_mean_square(wavelength_part))}
        return replace(self, std=std, pattern=self.pattern * self.std / std, sources=sources)


@torch.no_grad()
def estimate(
    y: Tensor,
    system: System,
    reconstructor: Reconstructor,
    x: Tensor,
    *,
    probed: Probe | None = None,
    statistics: Statistics | None = None,
    seed: int = 0,
    wide: bool = False,
    along: GridSolution | None = None,
    samples: int = 0,
) -> Uncertainty:
    """Estimate the standard deviation of every value of a reconstruction.

    Args:
        y: measurement `(1, K, H', W')`.
        system: the camera.
        reconstructor: the method that made the cube.
        x: the cube `(1, C, H, W)`.
        probed: errors at held-out pixels of the whole scene, if y is a part of a larger scene;
            None: they are measured.
        statistics: statistics of the whole measurement with which x was reconstructed; None: they
            are estimated.
        seed: seed of the random numbers.
        wide: the light is broadband, see `Trial`.
        along: the cube on the spectral grid from which x was interpolated; None: there is no grid.
        samples: number of samples of the cube, even; 0: none.

    Raises:
        TypeError: the camera is no `cassi.systems.System`.
        ValueError: y is not one sample, the method does not fit the camera, its cube is not finite,
            or the number of samples is odd.
    """
    if x.ndim != 4 or x.shape[0] != 1:
        raise ValueError(f"uncertainty: expected a cube (1, C, H, W), got {tuple(x.shape)}")
    if not isinstance(system, System):
        raise TypeError(
            f"uncertainty: expected a camera of cassi.systems, got {type(system).__name__}; derive "
            "yours from cassi.systems.System"
        )
    if samples != 0:
        check_count(samples)
    trial = Trial(y, system, reconstructor, statistics, seed, wide, along)
    result = bootstrap(trial, x, probed)
    level = float(signal_level(y, system, statistics).max())
    uncertainty = uncertainty_of(result, system, level, load_error_model().to(x.device))
    if samples == 0:
        return uncertainty
    models = {side: load_error_model(side).to(x.device) for side in SIDES[1:]}
    cubes = draw_samples(result, system, level, uncertainty.std, models, samples, seed)
    return replace(uncertainty, samples=cubes)


@torch.no_grad()
def uncertainty_of(
    result: BootstrapResult, system: System, level: float, model: ErrorModel
) -> Uncertainty:
    """Return the standard deviations that follow from a bootstrap.

    Args:
        result: result of the bootstrap.
        system: the camera.
        level: signal level of the measurement, in the unit of the cube.
        model: the regression, on the device of the cube.
    """
    features = Features(result, system, level)
    std, unusual_share = model.predict(features)
    # Other cameras, bands or masks than those in training may cause larger errors than in training.
    sigma = (std * model.excess(features)).to(result.x.dtype)
    smooth_level = float(sigma.square().mean().sqrt())
    # Spectra that are rough from band to band show errors. The frames of a video are no spectra.
    if not system.base_camera.codes_frames:
        sigma = torch.maximum(sigma, features.roughness().to(sigma))
    roughness_factor = float(sigma.square().mean().sqrt()) / max(
        smooth_level, torch.finfo(sigma.dtype).tiny
    )
    pattern = result.repeated_error / level / sigma
    pattern = pattern / pattern.square().mean().sqrt().clamp_min(torch.finfo(pattern.dtype).tiny)
    total = float(sigma.square().mean().sqrt()) * level
    sources = _split(result, total)
    return Uncertainty(
        sigma * level,
        pattern,
        sources,
        result.probe.mask_shift.shift,
        result.probe.heldout,
        tuple(_warnings(result, features, system, model, unusual_share, roughness_factor)),
    )


def _split(result: BootstrapResult, total: float) -> dict[str, float]:
    """Divide the error into parts of the noise, of a shifted mask, and of the null space of A.

    The residual is assumed to consist of noise and of the change by a shifted mask, and the method
    to respond to both as it responded to added noise. The rest of the error is in the null space,
    which A does not measure.
    """
    residual_power = float(root_mean_square(result.residual)) ** 2
    shift_power = (
        result.probe.mask_shift.change**2 if result.probe.mask_shift.is_significant else 0.0
    )
    model = min(result.probe.response * shift_power**0.5, total)
    noise = result.probe.response * max(residual_power - shift_power, 0.0) ** 0.5
    noise = min(noise, max(total**2 - model**2, 0.0) ** 0.5)
    null_space = max(total**2 - noise**2 - model**2, 0.0) ** 0.5
    return {"noise": noise, "model": model, "unseen": null_space}


@torch.no_grad()
def dark_share(y: Tensor, system: System) -> float:
    """Return the share of a frame's squares of 8×8 pixels with less than 5 % of the mean light.

    In such dark squares stray light is not small compared with the light of the scene.

    Args:
        y: measurement `(1, K, H', W')`.
        system: the camera.
    """
    # Squares that the mask keeps dark are not counted, because they are dark for any scene.
    side = min(_DARK_SQUARE_PIXELS, *y.shape[-2:])
    white_frame = system(torch.ones_like(system.adjoint(y)))
    white_means, y_means = (
        avg_pool2d(frame, side) for frame in (white_frame, system.without_bad_pixels(y))
    )
    is_lit = white_means > white_means.mean() / 2
    means = y_means[is_lit] / white_means[is_lit]
    return float((means < _DARK_LEVEL * means.mean()).float().mean())


def _warnings(
    result: BootstrapResult,
    features: Features,
    system: System,
    model: ErrorModel,
    unusual_share: float,
    roughness_factor: float,
) -> list[str]:
    messages = []
    if roughness_factor > MAX_ROUGHNESS_FACTOR:
        messages.append(
            f"spectra are rougher from band to band than spectra of scenes: this makes error bars "
            f"{roughness_factor:.1f} times as wide"
        )
    if result.probe.mask_shift.is_doubtful(system.part_axis):
        down, right = result.probe.mask_shift.shift
        messages.append(
            f"the mask seems to lie {down:+.2f} pixels down and {right:+.2f} right of its place in "
            "the camera, so error bars may be too small; calibrate=true or cassi-calibrate shows "
            "whether this shift is real"
        )
    if unusual := model.unusual_numbers(features):
        messages.append(
            f"error bars were calibrated with other scenes and cameras than this one, by "
            f"{', '.join(unusual)}: take them as a map, not as numbers"
        )
    elif unusual_share > MAX_UNUSUAL:
        messages.append(
            f"error bars were calibrated with scenes unlike {unusual_share:.0%} of this one: take "
            "them as a map, not as numbers"
        )
    return messages
