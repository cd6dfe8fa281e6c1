"""Write the sRGB picture of a cube, alone or beside the picture of the truth."""

import os

from cassi.viz.canvas import Canvas
from cassi.viz.checks import Array, Wavelengths, as_cube, as_truth
from cassi.viz.color import exposure_of, srgb
from cassi.viz.png import save_png

# Longer side of an enlarged picture, pixels, to the nearest whole factor. A whole factor keeps
# every pixel of the cube a sharp square of one size.
_PANEL_SIDE = 480
_GAP = 14  # pixels between the two pictures
_NAME_SIZE = 19  # size of their names, pixels


def save_rgb(
    path: str | os.PathLike[str],
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    truth: Array | None = None,  # (C, H, W)
    illuminant: str | None = "D65",
) -> None:
    """Write a cube's sRGB rendering as PNG; see `srgb`.

    Without a truth, the file has exactly the pixels of the cube. With a truth, estimate and truth
    are side by side with labels, both at the truth's exposure.

    `illuminant` is that of `srgb`: the light on a cube of reflectances, or None for radiance.
    Without wavelengths the colours are false. The other arguments and the exceptions are those of
    `save_bands`.
    """
    estimate = as_cube(cube)
    true_cube = as_truth(truth, estimate)
    if true_cube is None:
        save_png(path, srgb(estimate, wavelengths, illuminant))
        return
    exposure = exposure_of(true_cube, wavelengths, illuminant)
    height, width = estimate.shape[1:]
    factor = max(1, round(_PANEL_SIDE / max(height, width)))
    height, width = factor * height, factor * width
    canvas = Canvas()
    for index, (name, picture) in enumerate((("estimate", estimate), ("truth", true_cube))):
        left = index * (width + _GAP)
        canvas.text(name, left + width / 2, -13, align="center", size=_NAME_SIZE)
        color = srgb(picture, wavelengths, illuminant, exposure)
        canvas.image(color, left, 0, width, height)
    canvas.save(path)
