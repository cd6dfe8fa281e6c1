"""A folder of images, one a band."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import Source, blaming
from cassi.data.formats.png import read_png
from cassi.data.formats.tiff import read_tiff

_READERS: dict[str, Callable[[Path], AbstractContextManager[Source]]] = {
    ".png": read_png,
    ".tif": read_tiff,
    ".tiff": read_tiff,
}
_WAVELENGTH = re.compile(r"(\d+(?:\.\d+)?)[ _-]?nm(?![a-z])", re.IGNORECASE)
_NUMBER = re.compile(r"([0-9]+)")


@contextmanager
def read_planes(folder: Path, pages: Sequence[str] | None = None) -> Iterator[Source]:
    """All PNG, or all TIFF, images of a folder, in the order of the numbers in their names.

    Names such as `scene_550nm.png` say the wavelengths. Images of colours or of several pages, of
    different sizes or types are refused; hidden files are passed over. `pages` names those to be
    read, in order; None for all.
    """
    files = _images(folder) if pages is None else [folder / name for name in pages]
    stated = wavelengths_of(files)
    _, shape, first = _read(files[0])

    def read(_: str) -> np.ndarray:
        planes: list[np.ndarray] = []
        for file in files:
            plane, size, source = _read(file)
            alike = (size, source.scale, source.missing) == (shape, first.scale, first.missing)
            if not alike or plane.dtype != (planes or [plane])[0].dtype:
                raise ValueError(
                    f"expected images alike, got {shape} in {files[0].name} and {size} in "
                    f"{file.name}, or another type of numbers"
                )
            planes.append(plane)
        return np.stack(planes)

    yield Source(
        {"": (len(files), *shape)},
        read,
        axes={"": "CHW"},
        wavelengths=None if stated is None else (stated, "nm"),
        scale=first.scale,
        image=first.image,
        missing=first.missing,
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
    if len({_READERS[file.suffix.lower()] for file in files}) > 1:
        raise ValueError("expected a folder of PNG or of TIFF images, one a band and no others")
    return sorted(files, key=lambda file: _in_order(file.stem))


def _in_order(name: str) -> list[tuple[int, str]]:
    # Numbers as numbers: band_2 comes before band_10.
    return [(int(part), "") if part.isdigit() else (0, part) for part in _NUMBER.split(name)]


def _read(file: Path) -> tuple[np.ndarray, tuple[int, ...], Source]:
    """Return an image of one channel, its size, and what its file holds."""
    with blaming(file.name), _READERS[file.suffix.lower()](file) as source:
        shape = source.shapes.get("", ())
        shape = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
        if len(shape) != 2:
            raise ValueError("expected one image of one channel")
        return source.read("").reshape(shape), shape, source
