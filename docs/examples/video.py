"""Eight frames from one exposure: a mask per frame, and no dispersion."""

import torch

import cassi
from cassi.data.bundled import bundled_path


def main(size: int = 128, method: str = "video") -> float:
    """Return the PSNR, dB, of the bundled video, cut to size × size pixels."""
    video = cassi.read_cube(bundled_path("video.tif"))[..., :size, :size]  # (1, 8, H, W)
    random = torch.Generator().manual_seed(0)
    masks = (torch.rand(1, 8, size, size, generator=random) > 0.5).float()  # (K, C, H, W)
    camera = cassi.SDCassi(masks, bands=8, step=0)  # a mask per band, which is a frame here
    x = cassi.reconstruct(camera(video), camera, method=method)
    psnr = float(cassi.metrics.psnr(x, video).mean())
    print(f"{method}: {psnr:.2f} dB")
    return psnr


if __name__ == "__main__":
    main()
