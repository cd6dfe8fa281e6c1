"""Make docs/gallery/spectral_video.gif: a sequence of `spectral_video.py`, in colour.

    python -m scripts.docs.spectral_video

Columns: truth, frame by frame, `sequence=true`. Rows: the picture, and eight times the error of the
cube, as the root mean square over bands. It needs cave_test below $CASSI_DATA.
"""

from pathlib import Path

import numpy as np
from PIL import Image

import cassi
from cassi.viz.color import exposure_of, srgb
from scripts.benchmarks.spectral_video import BANDS, first_sequence

FILE = Path(__file__).resolve().parents[2] / "docs" / "gallery" / "spectral_video.gif"
COLORS = 64
"""Of one palette for all pages, so that nothing flickers."""
WAVELENGTHS = np.linspace(450, 650, BANDS)


def main() -> None:
    """Reconstruct the sequence, and write the file."""
    truth, camera = first_sequence()
    method = cassi.methods.auto()
    following = cassi.methods.Sequence(method).begin()
    exposure = exposure_of(truth[0].numpy(), WAVELENGTHS)
    pages = []
    for x in truth:
        y = camera(x[None])
        cubes = [x, method.run(y, camera).x[0], following.run(y, camera).x[0]]
        pictures = [srgb(cube.numpy(), WAVELENGTHS, exposure=exposure) for cube in cubes]
        errors = [(cube - x).square().mean(0).sqrt().numpy() for cube in cubes]
        shown = [(2040 * error).clip(0, 255).astype(np.uint8) for error in errors]
        grey = [np.repeat(each[..., None], 3, 2) for each in shown]
        page = np.concatenate([np.concatenate(pictures, 1), np.concatenate(grey, 1)])
        pages.append(Image.fromarray(page).resize((576, 384), Image.Resampling.LANCZOS))
    several = Image.fromarray(np.concatenate([np.asarray(page) for page in pages[::5]]))
    palette = several.quantize(COLORS, kmeans=2)
    first, *others = (page.quantize(palette=palette, dither=Image.Dither.NONE) for page in pages)
    first.save(FILE, save_all=True, append_images=others, duration=250, loop=0)


if __name__ == "__main__":
    main()
