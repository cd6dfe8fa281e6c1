"""What a second and a fourth snapshot, through other masks, are worth."""

import torch

import cassi
from cassi.data.bundled import bundled_path


def main(size: int = 256, shots: tuple[int, ...] = (1, 2, 4)) -> list[float]:
    """Return the PSNR, dB, for every number of snapshots."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[..., :size, :size]
    random = torch.Generator().manual_seed(0)
    masks = (torch.rand(max(shots), 1, size, size, generator=random) > 0.5).float()
    reached = []
    for count in shots:
        camera = cassi.SDCassi(masks[:count], bands=28, step=2)  # K masks, K channels of y
        x = cassi.reconstruct(camera(scene), camera)
        reached.append(float(cassi.metrics.psnr(x, scene).mean()))
        print(f"{count} shots: {reached[-1]:.2f} dB")
    return reached


if __name__ == "__main__":
    main()
