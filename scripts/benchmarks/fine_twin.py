"""A camera on a fine grid: what its optics and its detector make of fractions of a pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from cassi.camera.moved import moved_camera, placed_camera, unmoved
from cassi.systems import SDCassi

FINE = 4
"""Parts of a pixel, in both directions."""


@dataclass(frozen=True)
class FineTwin:
    """A camera with a binary mask and dispersion along rows that is not where it nominally is.

    Attributes:
        system: the nominal camera.
        shift: of the mask over the scene, fine pixels (down, right).
        offsets: of each band, pixels.
        wanted: what there is to find, by the key of `cassi.calibration.Value`.
    """

    system: SDCassi
    shift: tuple[int, int]
    offsets: tuple[float, ...]
    wanted: dict[str, float]

    @staticmethod
    def drawn(shape: Sequence[int], bands: int, step: float, seed: int) -> FineTwin:
        """Draw mask, shift (0.75 px at most), error of the step (0.04) and curvature (0.6 px).

        Args:
            shape: of the mask, (H, W).
            bands: number of bands.
            step: nominal, pixels per band, whole or not.
            seed: of all that is drawn.
        """
        random = torch.Generator().manual_seed(seed)
        mask = (torch.rand(*shape, generator=random) < 0.5).float()
        draw = (2 * torch.rand(4, generator=random, dtype=torch.float64) - 1).tolist()
        shift = (round(0.75 * FINE * draw[0]), round(0.75 * FINE * draw[1]))
        at = torch.arange(bands, dtype=torch.float64)
        away = at - (bands - 1) / 2
        v = 2 * away / (bands - 1)
        nominal = step * at - min(step * (bands - 1), 0.0) + 2
        slope, bend = 0.04 * draw[2], 0.6 * draw[3]
        offsets = nominal + slope * away + bend * (3 * v * v - 1) / 2
        wanted = {
            "down": shift[0] / FINE,
            "right": shift[1] / FINE,
            "dispersion": slope,
            "curve": bend,
        }
        detector = shape[0] + math.ceil(abs(step) * (bands - 1)) + 4
        system = SDCassi(mask, bands, offsets=nominal.tolist(), detector=detector, axis=-2)
        return FineTwin(system, shift, tuple(offsets.tolist()), wanted)

    def measure(self, scene: Tensor) -> Tensor:
        """Return the frame `(1, 1, H', W)` of a scene `(C, 4 H, 4 W)`, even in each fine pixel.

        A detector pixel has the mean of the light that falls on it: of a fine pixel that lies
        across its border, as much as lies within.
        """
        mask = self.system.mask[0, 0].repeat_interleave(FINE, 0).repeat_interleave(FINE, 1)
        height, width = mask.shape
        rows = (torch.arange(height) - self.shift[0]).clamp(0, height - 1)
        columns = (torch.arange(width) - self.shift[1]).clamp(0, width - 1)
        coded = mask[rows][:, columns] * scene
        light = torch.zeros(FINE * self.system.detector, width)
        for band, offset in zip(coded, self.offsets, strict=True):
            first = math.floor(FINE * offset)
            beyond = FINE * offset - first
            light[first : first + height] += (1 - beyond) * band
            light[first + 1 : first + 1 + height] += beyond * band
        return avg_pool2d(light[None, None], FINE)

    @property
    def beside(self) -> float:
        """Pixels by which bands are moved where the mask lies on whole pixels."""
        return self.shift[0] / FINE - round(self.shift[0] / FINE)

    def true_system(self) -> SDCassi:
        """Return the camera, of which the bands have all of the fraction along the dispersion."""
        values = unmoved() | {
            "across": self.shift[1] / FINE,
            "along": float(round(self.shift[0] / FINE)),
        }
        moved = moved_camera(self.system, values)
        offsets = [offset + self.beside for offset in self.offsets]
        found = placed_camera(self.system, moved.mask, offsets)
        assert isinstance(found, SDCassi)
        return found

    @staticmethod
    def cube(scene: Tensor, down: float) -> Tensor:
        """Return a scene on pixels that lie so many further down, `(1, C, H, W)`."""
        return avg_pool2d(scene.roll(-round(FINE * down), -2)[None], FINE)


def enlarged(cube: Tensor, shape: Sequence[int], bands: int) -> Tensor:
    """Return a scene `(C, 4 H, 4 W)` made of a cube `(1, C', h, w)`, some of its bands."""
    chosen = torch.linspace(0, cube.shape[1] - 1, bands).round().long()
    height, width = (FINE * side for side in shape)
    scale = max(height / cube.shape[-2], width / cube.shape[-1])
    size = [math.ceil(length * scale) for length in cube.shape[-2:]]
    large = interpolate(cube[:, chosen].float(), size=size, mode="bicubic", align_corners=False)
    return large[0, :, :height, :width].clamp(0, 1)
