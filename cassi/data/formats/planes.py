"""Read a folder of images as a cube, one image a band."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import Source, name_errors
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
    """Open the PNG or the TIFF images of a folder, in the order of the numbers in their names.

    Names such as `scene_550nm.png` state the wavelengths. Hidden files are left out. `pages` has
    the names of the images to read, in order; None reads all.

    Raises:
        ValueError: an image has colours or several pages, images differ in size or type, or PNG and
            TIFF images are mixed.
    """
    files = _sorted_images(folder) if pages is None else [folder / name for name in pages]
    wavelengths = parse_wavelengths(files)
    _, shape, first_source = _read_plane(files[0])

    def read(_: str) -> np.ndarray:
        planes: list[np.ndarray] = []
        for file in files:
            plane, size, source = _read_plane(file)
            is_alike = (size, source.scale, source.missing) == (
                shape,
                first_source.scale,
                first_source.missing,
            )
            if not is_alike or plane.dtype != (planes or [plane])[0].dtype:
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
        wavelengths=None if wavelengths is None else (wavelengths, "nm"),
        scale=first_source.scale,
        image=first_source.image,
        missing=first_source.missing,
    )


def parse_wavelengths(pages: Sequence[Path]) -> list[str] | None:
    """Return the wavelengths (nm) in the names of all pages; None if one name has none."""
    matches = [_WAVELENGTH.search(page.stem) for page in pages]
    wavelengths = [match[1] for match in matches if match is not None]
    return wavelengths if len(wavelengths) == len(pages) else None


def find_numbered_pages(entries: Iterable[Path]) -> list[Path]:
    """Return the PNG images whose names end in a number, or in a wavelength."""
    images = [path for path in entries if path.suffix.lower() == ".png"]
    return [p for p in images if p.stem[-1:].isdigit() or _WAVELENGTH.search(p.stem)]


def has_images(folder: Path) -> bool:
    """Tell whether a folder could be a cube: it has at least two images."""
    return len(_find_images(folder)) > 1


def _find_images(folder: Path) -> list[Path]:
    visible_files = [file for file in folder.iterdir() if not file.name.startswith(".")]
    return [file for file in visible_files if file.is_file() and file.suffix.lower() in _READERS]


def _sorted_images(folder: Path) -> list[Path]:
    files = _find_images(folder)
    if len({_READERS[file.suffix.lower()] for file in files}) > 1:
        raise ValueError("expected a folder of PNG or of TIFF images, one a band and no others")
    return sorted(files, key=lambda file: _make_sort_key(file.stem))


def _make_sort_key(name: str) -> list[tuple[int, str]]:
    # Numbers are compared as numbers, so band_2 comes before band_10.
    return [(int(part), "") if part.isdigit() else (0, part) for part in _NUMBER.split(name)]


def _read_plane(file: Path) -> tuple[np.ndarray, tuple[int, ...], Source]:
    """Return an image of one channel, its shape, and the content of its file."""
    with name_errors(file.name), _READERS[file.suffix.lower()](file) as source:
        shape = source.shapes.get("", ())
        shape = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
        if len(shape) != 2:
            raise ValueError("expected one image of one channel")
        return source.read("").reshape(shape), shape, source
