"""What the error of a value may depend on, free of units and of the number of bands."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.solvers.statistics import root_mean_square
from cassi.systems.base import System
from cassi.uncertainty.bootstrap import BootstrapResult

FLOOR = 1e-4
"""Of the signal level: errors and textures below it are all alike."""
_FINE, _COARSE = 4, 16  # sides of blocks, pixels
_LEAST = 1e-4  # held-out error: below it all are alike
_ROUGH = 4  # order of the differences of neighbouring bands


NAMES = (
    *("error 3", "error 8", "error 32", "error of all bands 3", "error of all bands 8"),
    *("gradient", "gradient of the mean", "deviation 8"),
    *("deviation of the mean 8", "deviation of the mean 32"),
    *("value", "local mean", "mean over bands", "slope", "local slope"),
    *("residual", "light", "local light", "crowding", "place", "place squared"),
    *("unknowns", "bands", "heldout", "heldout without noise", "error of the scene"),
    *("noise", "motion"),
)
"""What the numbers of `Features.band` are, in their order."""
NUMBERS = 7
"""So many of them, the last ones, are the same for a whole scene."""
BASE, TEXTURE, BRIGHTNESS = (NAMES.index(n) for n in ("error 8", "deviation 8", "local mean"))


class Features:
    """Describe every value of a cube by numbers from which the size of its error is told.

    With b the error of the repeated reconstruction and x the cube, both in units of the signal
    level, decimal logarithms of

    - the local root mean square of b in its band, over 3×3 pixels and about 8 and 32, and over all
      bands
    - the gradient of x in its band and of the mean over bands, and local standard deviations
    - x itself, its local mean, and the mean over bands
    - the differences of neighbouring bands, in units of one band in 28
    - the residual carried back, Aᵀ|y − Ax|/Aᵀ1
    - how many bands share the pixels of the detector, Aᵀ(A1)/Aᵀ1

    and the light Aᵀ1 that the mask lets through, the place of the band in the spectrum, the
    number of unknowns for each measured value, the error of pixels held out, the same over
    `Probe.missed`, which is large with noise, and what noise of the residual's size and the shift
    of the mask change of the cube. They are made band by band: all of them take 28 times the
    memory of the cube.
    """

    @torch.no_grad()
    def __init__(self, result: BootstrapResult, system: System, level: float) -> None:
        self.x, self.error = (result.x / level).float(), (result.repeated / level).float()
        bands = self.bands = self.x.shape[1]
        ones = torch.ones_like(result.residual)
        self.light = system.adjoint(ones).float()
        self.crowd = system.adjoint(system(torch.ones_like(result.x))).float()
        self.carried = system.adjoint(result.residual.abs() / level).float()
        mean, power = self.x.mean(1, keepdim=True), self.error.square().mean(1, keepdim=True)
        self.shared = {
            "error of all bands 3": _log(_smooth(power, 1).sqrt()),
            "error of all bands 8": _log(_smooth(power, _FINE).sqrt()),
            "gradient of the mean": _log(_gradient(mean)),
            "deviation of the mean 8": _log(_deviation(mean, _FINE)),
            "deviation of the mean 32": _log(_deviation(mean, _COARSE)),
            "mean over bands": _log(mean),
        }
        missed, mask_shift = max(result.probed.heldout, _LEAST), result.probed.mask_shift
        noise = float(root_mean_square(result.residual))
        moved = mask_shift.change if mask_shift.is_significant else 0.0
        changed = [result.probed.response * size / level for size in (noise, moved)]
        self.numbers = {
            "unknowns": math.log10(self.x[0].numel() / ones[0].numel()),
            "bands": math.log10(bands / 28),
            "heldout": math.log10(missed),
            "heldout without noise": math.log10(missed / max(result.probed.missed, _LEAST)),
            "error of the scene": 0.5 * math.log10(max(float(power.mean()), FLOOR**2)),
            "noise": math.log10(max(changed[0], FLOOR)),
            "motion": math.log10(max(changed[1], FLOOR)),
        }

    @torch.no_grad()
    def band(self, index: int) -> Tensor:
        """Return the numbers of one band, `(F, H, W)`, in the order of `NAMES`."""
        only = slice(index, index + 1)
        x, power, light = self.x[:, only], self.error[:, only].square(), self.light[:, only]
        safe = light.clamp_min(1e-3)
        after, before = min(index + 1, self.bands - 1), max(index - 1, 0)
        slope = (self.x[:, after] - self.x[:, before]).abs()[:, None] * self.bands / 56
        place = 2 * index / max(self.bands - 1, 1) - 1
        own = {
            "error 3": _log(_smooth(power, 1).sqrt()),
            "error 8": _log(_smooth(power, _FINE).sqrt()),
            "error 32": _log(_smooth(power, _COARSE).sqrt()),
            "gradient": _log(_gradient(x)),
            "deviation 8": _log(_deviation(x, _FINE)),
            "value": _log(x),
            "local mean": _log(_smooth(x, _FINE)),
            "slope": _log(slope),
            "local slope": _log(_smooth(slope, _FINE)),
            "residual": _log(_smooth(self.carried[:, only] / safe, _FINE)),
            "light": light,
            "local light": _smooth(light, _FINE),
            "crowding": _log(self.crowd[:, only] / safe),
            "place": torch.full_like(x, place),
            "place squared": torch.full_like(x, place**2),
        }
        known = own | self.shared
        known |= {name: torch.full_like(x, number) for name, number in self.numbers.items()}
        return torch.cat([known[name][0] for name in NAMES])

    @torch.no_grad()
    def roughness(self) -> Tensor:
        r"""Return the error that the spectra show by themselves, `(1, C, H, W)`.

        Spectra of scenes are smooth. If errors of neighbouring bands are independent, the fourth
        difference of a spectrum has 70 times their variance. So their standard deviation is the
        root of its local mean square over 70. With fewer than 5 bands it is 0.
        """
        if self.bands <= _ROUGH:
            return torch.zeros_like(self.x)
        power = _smooth(self.x.diff(n=_ROUGH, dim=1).square(), _FINE)
        band = torch.arange(self.bands, device=power.device) - _ROUGH // 2
        error = (power / math.comb(2 * _ROUGH, _ROUGH)).sqrt()
        return error[:, band.clamp(0, self.bands - _ROUGH - 1)]


def _log(values: Tensor) -> Tensor:
    return (values.clamp_min(0) + FLOOR).log10()


def _smooth(x: Tensor, side: int) -> Tensor:
    """Local means over 3×3 blocks of side × side pixels, shaped like x."""
    height, width = x.shape[-2:]
    side = max(1, min(side, height, width))
    if side > 1:
        x = F.avg_pool2d(x, side, ceil_mode=True, count_include_pad=False)
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    rows = padded[..., :-2, :] + padded[..., 1:-1, :] + padded[..., 2:, :]
    x = (rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]) / 9
    if side == 1:
        return x
    size = (x.shape[-2] * side, x.shape[-1] * side)
    return F.interpolate(x, size=size, mode="bilinear")[..., :height, :width]


def _deviation(x: Tensor, side: int) -> Tensor:
    return (_smooth(x.square(), side) - _smooth(x, side).square()).clamp_min(0).sqrt()


def _gradient(x: Tensor) -> Tensor:
    down, right = torch.zeros_like(x), torch.zeros_like(x)
    down[..., 1:-1, :] = (x[..., 2:, :] - x[..., :-2, :]) / 2
    right[..., 1:-1] = (x[..., 2:] - x[..., :-2]) / 2
    return (down.square() + right.square()).sqrt()
