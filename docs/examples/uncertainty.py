"""How sure is a cube: an error bar for every value, and for the mean over a region."""

import cassi
from cassi.data.bundled import bundled_path


def main(size: int = 256, method: str = "auto") -> float:
    """Return the share of the values whose truth lies in their 90 % interval."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[..., :size, :size]
    mask = cassi.read_mask(bundled_path("mask.tif"))[..., :size, :size]
    camera = cassi.SDCassi(mask, bands=28, step=2)
    y = cassi.simulate(scene, camera, noise="shot")
    found = cassi.reconstruct(y, camera, method=method, uncertainty=True)
    for message in found.warnings:
        print(f"warning: {message}")
    inside = ((found.x - scene).abs() < 1.645 * found.std).float().mean()
    print(f"{float(inside):.1%} of the values lie in their 90 % interval")

    middle = slice(size // 2 - 4, size // 2 + 5)
    patch = cassi.uncertainty.region(found, (middle, middle))
    for band in (0, 13, 27):
        mean, std = float(patch.mean[0, band]), float(patch.std[0, band])
        print(f"band {band}: mean over 9×9 pixels {mean:.4f} ± {std:.4f}")
    return float(inside)


if __name__ == "__main__":
    main()
