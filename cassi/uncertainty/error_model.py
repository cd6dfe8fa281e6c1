"""From features to standard deviations: a small regression, and factors that make it hold."""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cassi.uncertainty.features import BASE, BRIGHTNESS, NAMES, NUMBERS, TEXTURE, Features

FILE = Path(__file__).with_name("error_model.safetensors")
"""The regression that comes with the package; scripts/release/uncertainty.py makes it."""
NORMAL = 1.6448536269514722
"""Standard deviations that hold 90 % of a normal distribution."""
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Shares of the values that intervals are to hold."""
ERRORS = ("heldout", "error of the scene", "noise", "motion")
"""Numbers of a scene that grow with its error, in decades."""
UNSEEN = NAMES.index("heldout without noise")
EXPONENT, WORST = 0.19, -1.3
"""Of that number, which is taken to be at most 10^WORST = 5 %."""
_BY_HEART = [UNSEEN, *(NAMES.index(name) for name in ERRORS if name != "motion")]
# Numbers of a scene that have too few values for a regression: it would learn them by heart.
GROUPS = 3
"""Of brightness, and of texture."""
REGIONS = (1, 3, 5, 9, 17, 33)
"""Sides of the regions whose factors are known, pixels."""


class ErrorModel(nn.Module):
    """A regression of the logarithm of the error on features of `cassi.uncertainty.features`.

        σ = b · exp(f(φ)) · (h/ρ)^0.19 · k(g),

    b the local error of the repeated reconstruction, f two hidden layers, h and ρ the errors
    `heldout` and `missed` of `cassi.uncertainty.bootstrap.Probe`, and k the factor by which
    in the group g of brightness and texture 90 % of the errors of scenes that f has not seen are
    within ±1.645 σ (split conformal prediction).
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
        known = (inside - self.center) / self.scale
        known[:, _BY_HEART] = 0
        change: Tensor = self.layers(known)[:, 0]
        unseen = EXPONENT * features[:, UNSEEN].clamp_max(WORST)
        return change + math.log(10) * (features[:, BASE] + unseen)

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

    def excess(self, features: Features) -> float:
        """Return by which factor the errors of a scene exceed all of the training, at least 1.

        The regression takes features beyond the training as those at its edge. The scene may be
        worse by as much as its errors are: those of pixels held out, of the mirrored scene, and of
        what noise and a moved mask change of the cube.
        """
        most = 0.0
        for at, name in enumerate(NAMES[-NUMBERS:], len(NAMES) - NUMBERS):
            if name in ERRORS:
                most = max(most, features.numbers[name] - float(self.highest[at]))
        return float(10**most)

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
def load_error_model(path: Path = FILE) -> ErrorModel:
    """Return the regression of a file, on the CPU."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        about: dict[str, Any] = json.loads((file.metadata() or {}).get("about", "{}"))
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = ErrorModel(about.get("width", 32))
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)
