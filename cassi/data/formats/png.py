"""PNG: one image of grey levels, 8 or 16 bits a pixel, or of zeros and ones."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, drop_opacity

_DEPTH = 24  # byte of the header that holds the bits of a channel


@contextmanager
def read_png(path: Path, colours: bool = False) -> Iterator[Source]:
    """One image of grey levels; or of three colours with 8 bits each, where they are wanted."""
    from PIL import Image

    with warnings.catch_warnings():
        # Of a large image, which the limits of this process hold.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        # Whatever else Pillow would take it for: one of its formats runs a program.
        opened = Image.open(path, formats=("PNG",))
    with opened as image, path.open("rb") as file:
        depth = file.read(_DEPTH + 1)[_DEPTH]
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
    """Read the grey levels `(H, W)` of an open image with so many bits: bool, uint8 or uint16."""
    if image.mode == "P" or getattr(image, "n_frames", 1) > 1:
        what = "colours of a palette" if image.mode == "P" else f"{image.n_frames} images"
        raise ValueError(f"expected one image of grey levels, got {what}; save it in grey")
    values = np.asarray(image)
    if values.ndim == 3:
        colours = 3 if values.shape[2] > 2 else 1
        if values.shape[2] > colours:
            drop_opacity(values[..., :colours], values[..., colours])
        values = values[..., :colours]
        if depth == 16 or (values != values[..., :1]).any():  # Pillow drops 8 of 16 bits
            raise ValueError(
                "expected a grey image or equal colour channels, got colours; save it in grey"
            )
        values = values[..., 0]
    # Pillow reads 16-bit greys as uint16 or, in some releases, as int32.
    return values.astype(np.uint16) if depth == 16 else values
