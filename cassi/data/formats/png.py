"""Read PNG images of grey levels with up to 16 bits per pixel, and guides with three colours."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, drop_opacity

# Position of the byte in the header that says how many bits a channel has. Pillow does not tell
# this in all modes.
_DEPTH_BYTE = 24


@contextmanager
def read_png(path: Path, colours: bool = False) -> Iterator[Source]:
    """Open an image of grey levels or, with `colours`, of three colours of 8 bits each."""
    from PIL import Image

    with warnings.catch_warnings():
        # Pillow warns of large images. The limits of the sandboxed reader already stop a bomb.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        # Pillow may read the file only as PNG, whatever it is, because for one of its formats
        # Pillow runs a program.
        pillow_image = Image.open(path, formats=("PNG",))
    with pillow_image as image, path.open("rb") as file:
        depth = file.read(_DEPTH_BYTE + 1)[_DEPTH_BYTE]
        size = image.height, image.width
        if not colours or image.mode not in ("RGB", "RGBA"):
            yield Source(
                {"": size}, lambda _: _read_levels(image, depth), axes={"": "HW"}, image=True
            )
            return
        if depth != 8:
            raise ValueError("expected 8 bits a colour in PNG, got 16; save it as .tif")
        axes = {"": "HWC"}
        yield Source({"": (*size, 3)}, lambda _: np.asarray(image)[..., :3], axes=axes, image=True)


def _read_levels(image: Any, depth: int) -> np.ndarray:
    """Return the grey levels `(H, W)` of an image with `depth` bits: bool, uint8 or uint16.

    ValueError for a palette, several images, or colour channels that differ.
    """
    if image.mode == "P" or getattr(image, "n_frames", 1) > 1:
        content = "colours of a palette" if image.mode == "P" else f"{image.n_frames} images"
        raise ValueError(f"expected one image of grey levels, got {content}; save it in grey")
    values = np.asarray(image)
    if values.ndim == 3:
        n_colours = 3 if values.shape[2] > 2 else 1
        if values.shape[2] > n_colours:
            drop_opacity(values[..., :n_colours], values[..., n_colours])
        values = values[..., :n_colours]
        # Pillow reads colours of 16 bits as 8 bits, so their grey levels would be lost.
        if depth == 16 or (values != values[..., :1]).any():
            raise ValueError(
                "expected a grey image or equal colour channels, got colours; save it in grey"
            )
        values = values[..., 0]
    # Pillow reads 16-bit greys as uint16 or, in some releases, as int32.
    return values.astype(np.uint16) if depth == 16 else values
