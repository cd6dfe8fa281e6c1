"""A prior of one's own: any callable (cube, sigma) -> cube. Here: spectra are smooth."""

from dataclasses import dataclass

import torch
from torch import Tensor

import cassi
from cassi.data.bundled import bundled_path


@dataclass(frozen=True)
class SmoothSpectra:
    """Keeps the first cosines of every spectrum, and total variation for what is in space.

    Args:
        cosines: how many.
    """

    cosines: int = 8

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        """Remove disturbance of standard deviation sigma from a cube (B, C, H, W)."""
        bands = x.shape[1]
        place = (torch.arange(bands, dtype=x.dtype) + 0.5) / bands
        waves = torch.cos(torch.pi * torch.arange(self.cosines)[:, None] * place)
        waves = waves / waves.norm(dim=1, keepdim=True)  # orthonormal: a discrete cosine transform
        smooth = torch.einsum("kc,kd,bdhw->bchw", waves, waves, x)
        result: Tensor = cassi.TV()(smooth, sigma)
        return result


def main(size: int = 256, iterations: int = 60) -> tuple[float, float]:
    """Return the PSNR, dB, of total variation alone, and with smooth spectra."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[..., :size, :size]
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]
    camera = cassi.SDCassi(mask, bands=28, step=2)
    y = camera(scene)
    reached = []
    for prior in (cassi.TV(), SmoothSpectra()):
        x = cassi.solve(y, camera, algorithm=cassi.GAP(), prior=prior, iterations=iterations)
        reached.append(float(cassi.metrics.psnr(x, scene).mean()))
        print(f"{type(prior).__name__}: {reached[-1]:.2f} dB")
    return reached[0], reached[1]


if __name__ == "__main__":
    main()
