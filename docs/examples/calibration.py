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
    reached = []
    for name, camera in (("nominal", nominal), ("calibrated", found), ("true", true)):
        x = cassi.reconstruct(y, camera)
        reached.append(float(cassi.metrics.psnr(x, scene).mean()))
        print(f"{name:10} {reached[-1]:.2f} dB")
    return reached[0], reached[1]


if __name__ == "__main__":
    main()
