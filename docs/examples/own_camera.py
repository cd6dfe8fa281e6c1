"""A camera from its mask and dispersion: measure a scene, reconstruct it, compare."""

import torch

import cassi
from cassi.data.bundled import bundled_path


def main(size: int = 256, method: str = "auto") -> float:
    """Return the PSNR, dB, of the bundled scene, cut to size × size pixels."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[..., :size, :size]  # (1, 28, H, W)
    # In place of these two: cassi.read_mask("mask.mat"), cassi.read_measurement("frame.mat").
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]  # (1, 1, H, W)
    camera = cassi.SDCassi(mask, bands=28, step=2)
    y = cassi.simulate(scene, camera, noise="shot")  # (1, 1, H, W + 27·2)
    print(*cassi.check_camera(y, camera).lines(), sep="\n")
    x = cassi.reconstruct(y, camera, method=method)
    psnr = float(cassi.metrics.psnr(x, scene).mean())
    residual = float(torch.linalg.vector_norm(y - camera(x)) / torch.linalg.vector_norm(y))
    print(f"{method}: {psnr:.2f} dB, relative residual {residual:.1e}")
    return psnr


if __name__ == "__main__":
    main()
