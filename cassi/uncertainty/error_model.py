"""From features to standard deviations: a small regression, and factors that make it hold."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cassi.uncertainty.bootstrap import Evidence

FILE = Path(__file__).with_name("spread.safetensors")
"""The regression that comes with the package; scripts/release/uncertainty.py makes it."""
NORMAL = 1.6448536269514722
"""Standard deviations that hold 90 % of a normal distribution."""
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Shares of the values that intervals are to hold."""
GROUPS = 3
"""Of brightness, and of texture."""
REGIONS = (1, 3, 5, 9, 17, 33)
"""Sides of the regions whose factors are known, pixels."""


class Spread(nn.Module):
    r"""A regression of the logarithm of the error on features of `cassi.uncertainty.error_model`.

        σ = b · exp(f(φ)) · k(g),

    b the local error of the repeated reconstruction, f two hidden layers, and k the factor by which
    in the group g of brightness and texture 90 % of the errors of scenes that f has not seen are
    within ±1.645 σ (split conformal prediction).

    Args:
        width: of the hidden layers.
    """

    center: Tensor
    scale: Tensor
    lowest: Tensor
    highest: Tensor
    edges: Tensor
    factors: Tensor
    intervals: Tensor
    regions: Tensor
    spectra: Tensor

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        count = len(NAMES)
        self.layers = nn.Sequential(
            *(nn.Linear(count, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
            nn.Linear(width, 1),
        )
        nn.init.zeros_(self.layers[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.layers[-1].bias)  # type: ignore[arg-type]
        for name, value in {
            "center": torch.zeros(count),
            "scale": torch.ones(count),
            "lowest": torch.full((count,), -math.inf),
            "highest": torch.full((count,), math.inf),
            "edges": torch.zeros(2, GROUPS - 1),
            "factors": torch.ones(GROUPS, GROUPS),
            "intervals": torch.tensor([0.6744898, 1.2815516, NORMAL, 1.9599640]),
            "regions": torch.ones(len(REGIONS)),
            "spectra": torch.ones(len(REGIONS)),
        }.items():
            self.register_buffer(name, value)

    def forward(self, features: Tensor) -> Tensor:
        """Return log σ in units of the signal level, before its factors: `(N, F)` → `(N,)`."""
        # Beyond what was trained on a network extrapolates to anything.
        inside = features.clamp(self.lowest, self.highest)
        change: Tensor = self.layers((inside - self.center) / self.scale)[:, 0]
        return change + math.log(10) * features[:, BASE]

    def group(self, features: Tensor) -> Tensor:
        """Return the group of brightness and texture, `(N,)`, from 0 to GROUPS² − 1."""
        found = [
            torch.bucketize(features[:, at].contiguous(), edges)
            for at, edges in zip((BRIGHTNESS, TEXTURE), self.edges, strict=True)
        ]
        return GROUPS * found[0] + found[1]

    @torch.no_grad()
    def predict(self, features: Features) -> tuple[Tensor, float]:
        """Return σ `(1, C, H, W)` in units of the signal level, and the share of strange values.

        A value is strange where a tenth of its features are outside of those of the training.
        """
        sigma = torch.empty_like(features.x)
        strange = 0
        for band in range(features.bands):
            planes = features.band(band)
            rows = planes.flatten(1).T
            found = self(rows).exp() * self.factors.flatten()[self.group(rows)]
            sigma[0, band] = found.view(planes.shape[1:])
            local = rows[:, : len(NAMES) - NUMBERS]
            low, high = (edge[: len(NAMES) - NUMBERS] for edge in (self.lowest, self.highest))
            outside = ((local < low) | (local > high)).float().mean(1)
            strange += int((outside > _STRANGE).sum())
        return sigma, strange / sigma.numel()

    def unlike(self, features: Features) -> list[str]:
        """Return which numbers of the scene are outside of those of the training."""
        found = []
        for at, name in enumerate(NAMES[-NUMBERS:], len(NAMES) - NUMBERS):
            number = features.numbers[name]
            above = number > float(self.highest[at]) + _ROOM
            below = number < float(self.lowest[at]) - _ROOM
            # A scene that is predicted better than any of the training is none the worse.
            if above or (below and name in ("unknowns", "bands")):
                found.append(name)
        return found

    def factor_of(self, pixels: float, spectra: bool = False) -> float:
        """Return the factor of means over so many pixels, between those known by interpolation."""
        table = (self.spectra if spectra else self.regions).tolist()
        sides = [math.log(side) for side in REGIONS]
        at = min(max(0.5 * math.log(max(pixels, 1.0)), sides[0]), sides[-1])
        above = next(i for i in range(1, len(sides)) if at <= sides[i])
        part = (at - sides[above - 1]) / (sides[above] - sides[above - 1])
        return table[above - 1] + part * (table[above] - table[above - 1])


_STRANGE = 0.1  # of the features
_ROOM = 0.05  # of a decade, beside the numbers of scenes that were trained on


@lru_cache(maxsize=4)
def load_spread(path: Path = FILE) -> Spread:
    """Return the regression of a file, on the CPU.

    Raises:
        OSError: there is no such file.
    """
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        about: dict[str, Any] = json.loads((file.metadata() or {}).get("about", "{}"))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    spread = Spread(about.get("width", 32))
    spread.load_state_dict(state)
    return spread.eval().requires_grad_(False)


FLOOR = 1e-4
"""Of the signal level: errors and textures below it are all alike."""
_FINE, _COARSE = 4, 16  # sides of blocks, pixels
_LEAST = 1e-4  # held-out error: below it all are alike


NAMES = (
    *("error 3", "error 8", "error 32", "error of all bands 3", "error of all bands 8"),
    *("gradient", "gradient of the mean", "deviation 8"),
    *("deviation of the mean 8", "deviation of the mean 32"),
    *("value", "local mean", "mean over bands", "slope", "local slope"),
    *("residual", "light", "local light", "crowding", "place", "place squared"),
    *("unknowns", "bands", "heldout", "heldout over expected", "error of the scene"),
    *("noise", "motion"),
)
"""What the numbers of `Features.band` are, in their order."""
NUMBERS = 7
"""So many of them, the last ones, are the same for a whole scene."""
BASE, TEXTURE, BRIGHTNESS = (NAMES.index(n) for n in ("error 8", "deviation 8", "local mean"))


class Features:
    r"""Describe every value of a cube by numbers from which the size of its error is told.

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
    number of unknowns for each measured value, by how much pixels held out are missed, and what
    noise of the residual's size and the motion of the mask change of the cube. They are made band
    by band: all of them take 28 times the memory of the cube.

    Args:
        evidence: of `gather`.
        system: the camera.
        level: the signal level.
    """

    @torch.no_grad()
    def __init__(self, evidence: Evidence, system: Any, level: float) -> None:
        self.x, self.error = (evidence.x / level).float(), (evidence.repeated / level).float()
        bands = self.bands = self.x.shape[1]
        ones = torch.ones_like(evidence.residual)
        self.light = system.adjoint(ones).float()
        self.crowd = system.adjoint(system(torch.ones_like(evidence.x))).float()
        self.carried = system.adjoint(evidence.residual.abs() / level).float()
        mean, power = self.x.mean(1, keepdim=True), self.error.square().mean(1, keepdim=True)
        self.shared = {
            "error of all bands 3": _log(_smooth(power, 1).sqrt()),
            "error of all bands 8": _log(_smooth(power, _FINE).sqrt()),
            "gradient of the mean": _log(_gradient(mean)),
            "deviation of the mean 8": _log(_deviation(mean, _FINE)),
            "deviation of the mean 32": _log(_deviation(mean, _COARSE)),
            "mean over bands": _log(mean),
        }
        missed, motion = max(evidence.probed.heldout, _LEAST), evidence.probed.motion
        noise = float(evidence.residual.square().mean().sqrt())
        moved = motion.change if motion.is_seen else 0.0
        changed = [evidence.probed.response * size / level for size in (noise, moved)]
        self.numbers = {
            "unknowns": math.log10(self.x[0].numel() / ones[0].numel()),
            "bands": math.log10(bands / 28),
            "heldout": math.log10(missed),
            "heldout over expected": math.log10(missed / max(evidence.probed.expected, _LEAST)),
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
