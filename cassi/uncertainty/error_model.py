"""Predict standard deviations from features, by a small regression and calibrated factors."""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cassi.uncertainty.features import BASE, BRIGHTNESS, NAMES, NUMBERS, TEXTURE, Features

FILE = Path(__file__).with_name("error_model.safetensors")
"""Weights of the package. scripts/release/uncertainty.py fits them."""
NORMAL = 1.6448536269514722
"""Half width of the interval that holds 90 % of a normal distribution, in standard deviations."""
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Nominal coverages of intervals."""
ERRORS = ("heldout", "error of the scene", "noise", "motion")
"""Names of the features of a scene that grow with its error. They are decimal logarithms."""
HELDOUT_WITHOUT_NOISE = NAMES.index("heldout without noise")
"""Index of the feature h/ρ, see `ErrorModel`."""
HELDOUT_EXPONENT, MAX_LOG_HELDOUT = 0.19, -1.3
"""Exponent of h/ρ, and the largest decimal logarithm of h/ρ that counts: 10^−1.3 = 5 %.

The σ of each frame is wrong by a factor that differs from frame to frame. On frames outside of the
training the standard deviation of the factor's logarithm is 0.21 without the term (h/ρ)^0.19, and
0.13 with it (docs/development/experiments/uncertainty.md)."""
# Features of a scene that the regression does not get. They have one value per scene, and the
# training has 20 scenes, so the regression would memorize the scenes.
_UNUSED_FEATURES = [
    HELDOUT_WITHOUT_NOISE,
    *(NAMES.index(name) for name in ERRORS if name != "motion"),
]
GROUPS = 3
"""Number of groups of brightness; there are as many of texture."""
SIDES = (1, 8, 32)
"""Sides of the squares, pixels, for whose means there is a regression; 1: for single values."""
REGIONS = (1, 3, 5, 9, 17, 33)
"""Sides of the square regions whose factors are tabulated, pixels."""
# A value of a cube is unusual if more than this share of its features is outside of their range in
# training.
_MAX_OUTSIDE = 0.1
# A feature of a scene may leave its range in training by so many decades without a warning.
_MARGIN_DECADES = 0.05


class ErrorModel(nn.Module):
    """A regression of the logarithm of the error on features of `cassi.uncertainty.features`.

        σ = b · exp(f(φ)) · (h/ρ)^0.19 · k(g),

    b is the local error of the repeated reconstruction, φ are the features, and f is a network of
    two hidden layers. h and ρ are `heldout` and `heldout_ratio` of
    `cassi.uncertainty.bootstrap.Probe`. k is the factor for the group g of brightness and texture.
    It is fitted so that 90 % of the errors of a group are within ±1.645 σ, where the σ of a scene
    comes from an f that was not trained with this scene (conformal prediction, five folds).

    Attributes:
        center: mean of each feature in the training, `(F,)`.
        scale: standard deviation of each feature in the training, `(F,)`.
        lowest: lower end of the range of each feature in the training, `(F,)`.
        highest: upper end of this range, `(F,)`.
        edges: edges between the groups of brightness and of texture, `(2, GROUPS − 1)`.
        factors: factor k of each group, `(GROUPS, GROUPS)`.
        intervals: half widths of the intervals of `LEVELS`, in units of σ.
        regions: factor of σ of the mean over a square, one for each side of `REGIONS`.
        spectra: factor of σ of the shape of the mean spectrum, which is this spectrum over its mean
            over the bands; one for each side of `REGIONS`.
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
        """Return log σ without k, with σ in units of the signal level: `(N, F)` → `(N,)`."""
        # A network extrapolates badly. So features are clamped to their range in training, and
        # `excess` gives the factor for features above this range.
        values_in_range = features.clamp(self.lowest, self.highest)
        inputs = (values_in_range - self.center) / self.scale
        inputs[:, _UNUSED_FEATURES] = 0
        change: Tensor = self.layers(inputs)[:, 0]
        heldout_term = HELDOUT_EXPONENT * features[:, HELDOUT_WITHOUT_NOISE].clamp_max(
            MAX_LOG_HELDOUT
        )
        return change + math.log(10) * (features[:, BASE] + heldout_term)

    def group(self, features: Tensor) -> Tensor:
        """Return the group of brightness and texture, `(N,)`, from 0 to GROUPS² − 1."""
        groups = [
            torch.bucketize(features[:, index].contiguous(), edges)
            for index, edges in zip((BRIGHTNESS, TEXTURE), self.edges, strict=True)
        ]
        return GROUPS * groups[0] + groups[1]

    @torch.no_grad()
    def predict(self, features: Features) -> tuple[Tensor, float]:
        """Return σ `(1, C, H, W)` in units of the signal level, and the share of unusual values.

        A value is unusual if more than a tenth of its features are outside of their range in
        training.
        """
        sigma = torch.empty_like(features.x)
        n_unusual = 0
        for band in range(features.bands):
            planes = features.band(band)
            rows = planes.flatten(1).T
            std = self(rows).exp() * self.factors.flatten()[self.group(rows)]
            sigma[0, band] = std.view(planes.shape[1:])
            local_features = rows[:, : len(NAMES) - NUMBERS]
            low, high = (edge[: len(NAMES) - NUMBERS] for edge in (self.lowest, self.highest))
            outside_share = ((local_features < low) | (local_features > high)).float().mean(1)
            n_unusual += int((outside_share > _MAX_OUTSIDE).sum())
        return sigma, n_unusual / sigma.numel()

    def unusual_numbers(self, features: Features) -> list[str]:
        """Return the names of features of the scene that are outside of their range in training."""
        names = []
        for index, name in enumerate(NAMES[-NUMBERS:], len(NAMES) - NUMBERS):
            number = features.numbers[name]
            is_above = number > float(self.highest[index]) + _MARGIN_DECADES
            is_below = number < float(self.lowest[index]) - _MARGIN_DECADES
            # If the errors are smaller than those of all scenes in training, the error bars are not
            # in doubt. If there are fewer or more unknowns or bands than in training, they are.
            if is_above or (is_below and name in ("unknowns", "bands")):
                names.append(name)
        return names

    def excess(self, features: Features) -> float:
        """Return the factor, at least 1, by which the errors of a scene exceed those in training.

        Four features of a scene grow with its error: the held-out error, the error of the mirrored
        scene, and the changes of the cube by noise and by a shifted mask. The regression does not
        see them above their range in training. So σ grows by the largest factor by which any of the
        four exceeds its range.
        """
        largest = 0.0
        for index, name in enumerate(NAMES[-NUMBERS:], len(NAMES) - NUMBERS):
            if name in ERRORS:
                largest = max(largest, features.numbers[name] - float(self.highest[index]))
        return float(10**largest)

    def factor_of(self, pixels: float, spectra: bool = False) -> float:
        """Return the factor of σ of a mean over a region, interpolated between sides of `REGIONS`.

        Args:
            pixels: number of pixels of the region.
            spectra: return the factor for the shape of the mean spectrum.
        """
        table = (self.spectra if spectra else self.regions).tolist()
        sides = [math.log(side) for side in REGIONS]
        position = min(max(0.5 * math.log(max(pixels, 1.0)), sides[0]), sides[-1])
        index = next(i for i in range(1, len(sides)) if position <= sides[i])
        fraction = (position - sides[index - 1]) / (sides[index] - sides[index - 1])
        return table[index - 1] + fraction * (table[index] - table[index - 1])


@lru_cache(maxsize=8)
def load_error_model(side: int = 1, path: Path = FILE) -> ErrorModel:
    """Load the regression for means over squares of a side of `SIDES`, on the CPU."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        description: dict[str, Any] = json.loads((file.metadata() or {}).get("about", "{}"))
        prefix = f"{side}."
        state = {
            name.removeprefix(prefix): file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118
            if name.startswith(prefix)
        }
    model = ErrorModel(description.get("width", 32))
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)
