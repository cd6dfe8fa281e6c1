"""Draw what mistakes about a camera look like, for docs/guides/your-camera.md.

    python scripts/docs/mistakes.py

The bundled scene is measured with shot noise and reconstructed by the default with the camera that
took it, and with cameras that are wrong in one way each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi import metrics
from cassi.data.bundled import bundled_path
from cassi.data.io import load_cube, load_mask
from cassi.systems.masks import move_mask

TARGET = Path(__file__).resolve().parents[2] / "docs" / "gallery" / "mistakes.jpg"


def picture(x: Tensor) -> Tensor:
    """Return three bands as red, green and blue, brightened, `(H, W, 3)`."""
    count = len(x)
    bands = torch.stack([x[round(share * (count - 1))] for share in (0.87, 0.52, 0.2)], -1)
    return bands.clamp(0, 1) ** 0.6


def main() -> None:
    """Reconstruct and draw."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    truth = load_cube(bundled_path("scene.tif")).data
    mask = load_mask(bundled_path("mask.tif"), bands=truth.shape[1]).data
    bands = truth.shape[1]
    camera = cassi.SDCassi(mask, bands, step=2)
    y = cassi.simulate(truth, camera, noise="shot")
    dead = torch.rand(y.shape[1:], generator=torch.Generator().manual_seed(0)) < 0.005
    broken = torch.where(dead, 0, y)
    cases = {
        "right": (y, camera),
        "system.step=-2: wrong direction": (y, cassi.SDCassi(mask, bands, step=-2)),
        "mask upside down": (y, cassi.SDCassi(mask.flip(-2), bands, step=2)),
        "mask off by (0.4, −0.3) px": (
            y,
            cassi.SDCassi(move_mask(mask, (0.4, -0.3), 0.0), bands, step=2),
        ),
        "dark level left in": (y + 0.1 * y.amax(), camera),
        "0.5 % dead pixels as light": (broken, camera),
        "the same, bad_pixels=FILE": (broken, camera.weighted(bad_pixels=dead)),
    }
    figure, axes = plt.subplots(2, 4, figsize=(12, 6.6))
    axes[0, 0].imshow(picture(truth[0]))
    axes[0, 0].set_title("the scene", fontsize=9)
    for axis, (name, (frame, system)) in zip(axes.flat[1:], cases.items(), strict=True):
        x = cassi.reconstruct(frame, system)
        axis.imshow(picture(x[0]))
        axis.set_title(f"{name}: {metrics.psnr(x, truth).item():.1f} dB", fontsize=9)
        print(name, metrics.psnr(x, truth).item(), flush=True)
    for axis in axes.flat:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(TARGET, dpi=100, pil_kwargs={"quality": 85})


if __name__ == "__main__":
    main()
