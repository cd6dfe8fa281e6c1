"""A sensor with dead and saturated pixels: leave them out, and nothing depends on them."""

import torch

import cassi
from cassi.data.bundled import bundled_path


def main(size: int = 256, share: float = 0.02, method: str = "auto") -> tuple[float, float]:
    """Return the PSNR, dB, with the bad pixels taken for light, and left out."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[..., :size, :size]
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]
    camera = cassi.SDCassi(mask, bands=28, step=2)
    y = cassi.simulate(scene, camera, noise="shot")
    random = torch.Generator().manual_seed(0)
    bad = torch.rand(y.shape[-2:], generator=random) < share
    y = torch.where(bad & (torch.rand(bad.shape, generator=random) < 0.5), 0.0, y)  # dead
    y = torch.where(bad & (y > 0), y.max(), y)  # hot
    reached = []
    for name, left_out in (("taken for light", None), ("left out", bad)):
        x = cassi.reconstruct(y, camera, method=method, bad_pixels=left_out)
        reached.append(float(cassi.metrics.psnr(x, scene).mean()))
        print(f"{int(bad.sum())} bad pixels {name}: {reached[-1]:.2f} dB")
    other = cassi.reconstruct(torch.where(bad, 7.0, y), camera, method=method, bad_pixels=bad)
    assert torch.equal(x, other)  # whatever they hold
    return reached[0], reached[1]


if __name__ == "__main__":
    main()
