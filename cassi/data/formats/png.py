"""PNG: one image of grey levels, 8 or 16 bits a pixel, or of zeros and ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cassi.data.formats import Source, check_memory, check_plain, check_size, drop_opacity

if TYPE_CHECKING:
    from PIL import Image

_DEPTH = 24  # byte of the header that holds the bits of a channel


@contextmanager
def open_png(path: Path) -> Iterator[Image.Image]:
    """Open an image with Pillow, which reads it only when asked to."""
    from PIL import Image

    with warnings.catch_warnings():
        # Of a large image: its size is compared with the file's.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        # Whatever else Pillow would take it for: one of its formats runs a program.
        opened = Image.open(path, formats=("PNG",))
    with opened as image:
        check_size(math.prod(image.size), path.stat().st_size, compressed=True)
        yield image


def read_levels(image: Image.Image, path: Path) -> np.ndarray:
    """Read the grey levels `(H, W)` of an open image: bool, uint8 or uint16.

    Raises:
        ValueError: its channels differ, it is a palette's, or holds several images.
    """
    frames: int = getattr(image, "n_frames", 1)
    if image.mode == "P" or frames > 1:
        what = "colours of a palette" if image.mode == "P" else f"{frames} images"
        raise ValueError(f"expected one image of grey levels, got {what}; save it in grey")
    with path.open("rb") as file:
        depth = file.read(_DEPTH + 1)[_DEPTH]
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


@contextmanager
def read_png(path: Path) -> Iterator[Source]:
    """One image of grey levels."""
    with open_png(path) as image:
        width, height = image.size
        yield Source(
            {"": (height, width)},
            lambda _: read_levels(image, path),
            axes={"": "HW"},
            image=True,
        )


@contextmanager
def read_colours(path: Path) -> Iterator[Source]:
    """One image of grey levels, or of three colours with 8 bits each."""
    with open_png(path) as image:
        if image.mode not in ("RGB", "RGBA"):
            width, height = image.size
            yield Source({"": (height, width)}, lambda _: read_levels(image, path), image=True)
            return
        with path.open("rb") as file:
            if file.read(_DEPTH + 1)[_DEPTH] != 8:
                raise ValueError("expected 8 bits a colour in PNG, got 16; save it as .tif")
        width, height = image.size
        yield Source(
            {"": (height, width, 3)},
            lambda _: np.asarray(image)[..., :3],
            axes={"": "HWC"},
            image=True,
        )


def read_pages(pages: Sequence[Path]) -> tuple[np.ndarray, str]:
    """Read images of one size, one a band, of 8 or 16 bits a pixel.

    Returns:
        float32 `(C, H, W)` in [0, 1]; a remark on their channels ("" if they have one).

    Raises:
        ValueError: one cannot be read, or they differ in size.
    """
    images: list[np.ndarray] = []
    remark = ""
    for file in pages:
        try:
            check_plain(file)
            with open_png(file) as opened:
                check_memory(2 * 4 * len(pages) * math.prod(opened.size))
                values, channels = read_levels(opened, file), len(opened.getbands())
        except Exception as error:  # a damaged file makes Pillow fail in many ways
            raise ValueError(f"cannot read {file} as PNG: {error}") from error
        if values.dtype.kind != "u":
            raise ValueError(f"{file}: expected 8 or 16 bits a pixel, got {values.dtype}")
        remark = f" of {channels} equal channels" if channels > 1 else remark
        if images and values.shape != images[0].shape:
            raise ValueError(
                f"{file.parent}: expected pages of one size, got {images[0].shape} in "
                f"{pages[0].name} and {values.shape} in {file.name}"
            )
        images.append(values.astype(np.float32) / np.float32(np.iinfo(values.dtype).max))
    return np.stack(images), remark
