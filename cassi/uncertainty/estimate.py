"""The standard deviation of every value of a reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from cassi.solvers.base import Along, Reconstructor
from cassi.solvers.statistics import Statistics, root_mean_square, signal_level
from cassi.systems.base import System
from cassi.uncertainty.bootstrap import BootstrapResult, Probe, Trial, bootstrap
from cassi.uncertainty.error_model import ErrorModel, load_error_model
from cassi.uncertainty.features import Features

STRANGE = 0.1
"""Share of the values unlike those of the calibration, above which that is said."""
ROUGH = 1.5
"""Times the root mean square of σ, by which rough spectra raise it, above which that is said."""
DARK = 0.07
"""Share of a sensor's frame where stray light counts, above which that is said."""
_SQUARE, _LITTLE = 8, 0.05


@dataclass(frozen=True)
class Uncertainty:
    """How sure a reconstruction is.

    Attributes:
        std: σ, `(1, C, H, W)`, in the unit of the cube: the truth is within ±1.645 σ in 90 % of
            the values.
        pattern: an error of the method on this scene, in units of σ, mean square 1,
            `(1, C, H, W)`. It has the correlation of errors between neighbours and bands.
        sources: root mean squares of σ, in the unit of the cube: of the noise, of the model of the
            camera, and of the part that the camera does not measure.
        shift: apparent error of the mask's position (down, right), pixels; texture alone gives up
            to 0.2.
        heldout: relative error of detector pixels that the method was not given.
        warnings: how camera and scene differ from those of the calibration of σ.
        seconds: that it took.
    """

    std: Tensor
    pattern: Tensor
    sources: dict[str, float]
    shift: tuple[float, float]
    heldout: float
    warnings: tuple[str, ...]
    seconds: float = 0.0

    def with_names(
        self, x: Tensor, wavelengths: Sequence[float], errors: Sequence[float]
    ) -> Uncertainty:
        """Return σ with what errors of the wavelengths make of a cube: its slope times these.

        Args:
            x: the cube, `(1, C, H, W)`.
            wavelengths: of its bands, nm, rising.
            errors: standard errors of these, nm.
        """
        if x.shape[1] < 2:
            return self
        places = torch.tensor(wavelengths, dtype=torch.float64)
        slope = torch.gradient(x.double(), spacing=(places.to(x.device),), dim=1)[0]
        away = slope * torch.tensor(errors, dtype=torch.float64, device=x.device).view(-1, 1, 1)
        std = torch.hypot(self.std.double(), away).to(self.std)
        sources = self.sources | {"names": float(root_mean_square(away))}
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
    along: Along | None = None,
) -> Uncertainty:
    """Estimate the standard deviation of every value of a reconstruction.

    Args:
        y: measurement `(1, K, H', W')`.
        system: the camera.
        reconstructor: the method that made the cube.
        x: the cube `(1, C, H, W)`.
        probed: of the whole scene, where y is a part of it.
        statistics: of the whole measurement, those that x was made with.
        seed: of the random numbers.
        wide: light comes in all wavelengths, see `Trial`.
        along: what the cube was read from, of a method along the dispersion.

    Raises:
        TypeError: the camera cannot leave pixels out.
        ValueError: y is not one sample, the method does not fit the camera, or its cube is not
            finite.
    """
    if x.ndim != 4 or x.shape[0] != 1:
        raise ValueError(f"uncertainty: expected a cube (1, C, H, W), got {tuple(x.shape)}")
    if not isinstance(system, System):
        raise TypeError(
            f"uncertainty: expected a camera of cassi.systems, got {type(system).__name__}; derive "
            "yours from cassi.systems.System"
        )
    trial = Trial(y, system, reconstructor, statistics, seed, wide, along)
    result = bootstrap(trial, x, probed)
    level = float(signal_level(y, system, statistics).max())
    return judge(result, system, level, load_error_model().to(x.device))


@torch.no_grad()
def judge(result: BootstrapResult, system: System, level: float, model: ErrorModel) -> Uncertainty:
    """Turn what the bootstrap shows into standard deviations."""
    features = Features(result, system, level)
    predicted, strange = model.predict(features)
    # Of a camera, bands or a mask unlike those of the training: what is worse than all of it.
    sigma = (predicted * model.excess(features)).to(result.x.dtype)
    smooth = float(sigma.square().mean().sqrt())
    if not system.plain.codes_frames:  # frames of a video have no spectra
        sigma = torch.maximum(sigma, features.roughness().to(sigma))
    wider = float(sigma.square().mean().sqrt()) / max(smooth, torch.finfo(sigma.dtype).tiny)
    pattern = result.repeated / level / sigma
    pattern = pattern / pattern.square().mean().sqrt().clamp_min(torch.finfo(pattern.dtype).tiny)
    total = float(sigma.square().mean().sqrt()) * level
    sources = _split(result, total)
    return Uncertainty(
        sigma * level,
        pattern,
        sources,
        result.probed.mask_shift.shift,
        result.probed.heldout,
        tuple(_doubts(result, features, system, model, strange, wider)),
    )


def _split(result: BootstrapResult, total: float) -> dict[str, float]:
    """Return what noise, a wrong mask, and the null space of A make of the whole error.

    What is left of the measurement is noise, but for what a shift of the mask changes of it; the
    method answers to both as to noise that is drawn anew. The rest is what A does not see.
    """
    left = float(root_mean_square(result.residual)) ** 2
    moved = result.probed.mask_shift.change**2 if result.probed.mask_shift.is_significant else 0.0
    model = min(result.probed.response * moved**0.5, total)
    noise = result.probed.response * max(left - moved, 0.0) ** 0.5
    noise = min(noise, max(total**2 - model**2, 0.0) ** 0.5)
    unseen = max(total**2 - noise**2 - model**2, 0.0) ** 0.5
    return {"noise": noise, "model": model, "unseen": unseen}


@torch.no_grad()
def dark_share(y: Tensor, system: System) -> float:
    """Return how much of a frame `(1, K, H', W')` is so dark that stray light counts there.

    It is the share of the squares of 8×8 pixels with less than 5 % of the mean light.
    """
    side = min(_SQUARE, *y.shape[-2:])
    even = system(torch.ones_like(system.adjoint(y)))
    light, seen = (avg_pool2d(each, side) for each in (even, system.without_bad_pixels(y)))
    lit = light > light.mean() / 2
    means = seen[lit] / light[lit]
    return float((means < _LITTLE * means.mean()).float().mean())


def _doubts(
    result: BootstrapResult,
    features: Features,
    system: System,
    model: ErrorModel,
    strange: float,
    wider: float,
) -> list[str]:
    doubts = []
    if wider > ROUGH:
        doubts.append(
            f"spectra are rough from band to band, as those of scenes are not: error bars are "
            f"{wider:.1f} times as wide for that"
        )
    if result.probed.mask_shift.is_doubtful(system.part_axis):
        down, right = result.probed.mask_shift.shift
        doubts.append(
            f"the mask seems to lie {down:+.2f} pixels down and {right:+.2f} right of where it is "
            "taken to lie, so error bars may be too small; calibrate=true, or cassi-calibrate, "
            "tells whether it does"
        )
    if unlike := model.unlike(features):
        doubts.append(
            f"error bars were calibrated with other scenes and cameras than this one, by "
            f"{', '.join(unlike)}: take them as a map, not as numbers"
        )
    elif strange > STRANGE:
        doubts.append(
            f"error bars were calibrated with scenes unlike {strange:.0%} of this one: take them "
            "as a map, not as numbers"
        )
    return doubts
