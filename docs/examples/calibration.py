"""The mask lies a fraction of a pixel off: find where, from the snapshot alone."""

import cassi
from cassi.data.bundled import bundled_path
from cassi.systems.masks import move_mask


def main(size: int = 256, shift: tuple[float, float] = (0.4, 0.0)) -> tuple[float, float]:
    """Return the PSNR, dB, with the camera as it was thought to be and as it was found."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[..., :size, :size]
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]
    nominal = cassi.SDCassi(mask, bands=28, step=2)
    true = cassi.SDCassi(move_mask(mask, shift, 0.0), bands=28, step=2)  # nobody knows this one
    y = true(scene)
    found = cassi.calibrate(y, nominal)
    reached = {}
    cameras = {"nominal": nominal, "calibrated": found, "true": true}
    for name, camera in cameras.items():
        x = cassi.reconstruct(y, camera, align=False)  # the camera as it is
        reached[name] = float(cassi.metrics.psnr(x, scene).mean())
    x = cassi.reconstruct(y, nominal)  # looks for the mask itself, but for nothing else
    reached["aligned"] = float(cassi.metrics.psnr(x, scene).mean())
    for name, psnr in reached.items():
        print(f"{name:10} {psnr:.2f} dB")
    return reached["nominal"], reached["calibrated"]


if __name__ == "__main__":
    main()
