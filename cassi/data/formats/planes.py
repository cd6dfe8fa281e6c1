"""A folder of images, one a band."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import Source, check_plain
from cassi.data.formats.png import read_png
from cassi.data.formats.tiff import read_tiff

_READERS: dict[str, Callable[[Path], AbstractContextManager[Source]]] = {
    ".png": read_png,
    ".tif": read_tiff,
    ".tiff": read_tiff,
}
_WAVELENGTH = re.compile(r"(\d+(?:\.\d+)?)[ _-]?nm(?![a-z])", re.IGNORECASE)
_NUMBER = re.compile(r"([0-9]+)")
_MOST_BANDS = 1 << 16


@contextmanager
def read_planes(folder: Path) -> Iterator[Source]:
    """All PNG, or all TIFF, images of a folder, in the order of the numbers in their names.

    Names such as `scene_550nm.png` say the wavelengths. Images of colours or of several pages, of
    different sizes or types are refused; hidden files are passed over.
    """
    files = _images(folder)
    for file in files:
        check_plain(file)
    first = _describe(files[0])
    for file in files[1:]:
        if _describe(file) != first:
            raise ValueError(f"expected images alike, {files[0].name} and {file.name} are not")
    (height, width), scale, missing = first
    stated = wavelengths_of(files)
    with _READERS[files[0].suffix.lower()](files[0]) as source:
        image = source.image

    def read(_: str) -> np.ndarray:
        planes = []
        for file in files:
            with _READERS[file.suffix.lower()](file) as source:
                planes.append(source.read("").reshape(height, width))
        if len({plane.dtype for plane in planes}) > 1:
            raise ValueError("expected images of one type of numbers")
        return np.stack(planes)

    yield Source(
        {"": (len(files), height, width)},
        read,
        axes={"": "CHW"},
        wavelengths=None if stated is None else (stated, "nm"),
        scale=scale,
        image=image,
        missing=missing,
    )


def wavelengths_of(pages: Sequence[Path]) -> list[str] | None:
    """Return the wavelengths (nm) that the names of all pages say; None where one does not."""
    named = [_WAVELENGTH.search(page.stem) for page in pages]
    stated = [match[1] for match in named if match is not None]
    return stated if len(stated) == len(pages) else None


def numbered_pages(entries: Iterable[Path]) -> list[Path]:
    """Return the PNG images whose names end in a number, or in a wavelength."""
    images = [path for path in entries if path.suffix.lower() == ".png"]
    return [p for p in images if p.stem[-1:].isdigit() or _WAVELENGTH.search(p.stem)]


def has_images(folder: Path) -> bool:
    """Tell whether a folder could be a cube."""
    return len(_listed(folder)) > 1


def _listed(folder: Path) -> list[Path]:
    shown = [file for file in folder.iterdir() if not file.name.startswith(".")]
    return [file for file in shown if file.is_file() and file.suffix.lower() in _READERS]


def _images(folder: Path) -> list[Path]:
    files = _listed(folder)
    if len({_READERS[file.suffix.lower()] for file in files}) > 1 or len(files) > _MOST_BANDS:
        raise ValueError("expected a folder of PNG or of TIFF images, one a band and no others")
    return sorted(files, key=lambda file: _in_order(file.stem))


def _in_order(name: str) -> list[tuple[int, str]]:
    # Numbers as numbers: band_2 comes before band_10.
    return [(int(part), "") if part.isdigit() else (0, part) for part in _NUMBER.split(name)]


def _describe(
    file: Path,
) -> tuple[tuple[int, ...], tuple[float, str] | None, tuple[float, ...]]:
    with _READERS[file.suffix.lower()](file) as source:
        shape = source.shapes.get("", ())
        shape = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
        if len(shape) != 2:
            raise ValueError(f"{file.name}: expected one image of one channel")
        return shape, source.scale, source.missing
