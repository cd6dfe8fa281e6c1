"""ENVI: a text header and a raw file."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import Source, as_numbers

DATA_SUFFIXES = (".img", ".dat", ".raw", ".bsq", ".bil", ".bip", ".hyspex", ".bin", "")
SUFFIXES = (".hdr", *filter(None, DATA_SUFFIXES))


def _find_pair(path: Path) -> tuple[Path, Path]:
    """Return header and data file, given either."""
    stem = path.with_suffix("")
    if path.suffix.lower() == ".hdr":
        names = [stem.name + s for suffix in DATA_SUFFIXES for s in (suffix, suffix.upper())]
    else:
        names = [name + s for name in (stem.name, path.name) for s in (".hdr", ".HDR")]
    there = [path.with_name(name) for name in names if path.with_name(name).is_file()]
    if path.suffix.lower() == ".hdr":
        if not there:
            raise ValueError(f"no data file {stem.name}.img (.dat, .raw, …) beside it")
        return path, there[0]
    if not there:
        raise ValueError(f"no header {stem.name}.hdr beside it")
    return there[0], path


@contextmanager
def read_envi(path: Path) -> Iterator[Source]:
    """ENVI: a text header and a raw file; either name will do."""
    from spectral.io import envi

    header_path, data_path = _find_pair(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about capitals in the header
        image = envi.open(str(header_path), str(data_path))
    if isinstance(image, envi.SpectralLibrary):
        raise ValueError("it is a spectral library, not an image")
    header, shape = image.metadata, tuple(map(int, image.shape))
    if str(header["interleave"]).lower() not in {"bsq", "bil", "bip"}:
        raise ValueError(f"unknown interleave {header['interleave']!r}; expected bsq, bil or bip")
    claimed = image.offset + math.prod(shape) * np.dtype(image.dtype).itemsize
    stored = data_path.stat().st_size
    # An ENVI file has no check sum; its exact length is the only sign of a damaged header.
    if claimed != stored or min(shape) < 1:
        raise ValueError(f"the header promises {claimed} bytes, {data_path.name} has {stored}")
    bad = [band for band, good in enumerate(as_numbers(header.get("bbl", [])), 1) if not good]
    if bad:
        raise ValueError(
            f"its header marks {len(bad)} bands as bad (bbl), the first is band {bad[0]} of "
            f"{shape[2]}; save it without them"
        )
    factor = float(header.get("reflectance scale factor", 1.0))
    values = header.get("wavelength")
    yield Source(
        {"": shape},
        lambda _: np.asarray(image.open_memmap(interleave="bip")),
        axes={"": "HWC"},
        wavelengths=(values, str(header.get("wavelength units", ""))) if values else None,
        scale=(factor, "reflectance scale factor") if factor != 1.0 else None,
        image=True,
        missing=tuple(as_numbers(header.get("data ignore value", []))),
    )


# What red, green and blue of a picture are taken from, nm.
_DISPLAYED = (640.0, 550.0, 460.0)


def write_envi(
    header_path: Path,
    data_path: Path,
    cube: np.ndarray,
    wavelengths: tuple[float, ...] | None,
    fwhm: tuple[float, ...] | None = None,
) -> None:
    """Write a (C, H, W) float32 cube as the two files of ENVI, band after band.

    The header has what ENVI, GDAL and Spectral Python look for: names and wavelengths of the
    bands, their widths where they are known, and the bands of a colour picture.
    """
    from spectral.io import envi

    bands, height, width = cube.shape
    header: dict[str, object] = {
        "description": "hyperspectral cube, written by cassi",
        "samples": width,
        "lines": height,
        "bands": bands,
        "header offset": 0,
        "file type": "ENVI Standard",
        "data type": 4,  # float32
        "interleave": "bsq",
        "byte order": 0,  # little-endian
        # No value is missing; the one that says so is none that a cube can have.
        "data ignore value": "nan",
    }
    if wavelengths is None:
        header |= {"band names": [f"band {number}" for number in range(1, bands + 1)]}
    else:
        header |= {
            "band names": [f"{value:g} nm" for value in wavelengths],
            "wavelength units": "Nanometers",
            "wavelength": list(wavelengths),
            "default bands": [_nearest(wavelengths, wanted) for wanted in _DISPLAYED],
        }
    if fwhm is not None:
        header["fwhm"] = list(fwhm)
    with data_path.open("wb") as file:
        file.write(cube.astype("<f4").tobytes())
    envi.write_envi_header(str(header_path), header)


def _nearest(wavelengths: tuple[float, ...], wanted: float) -> int:
    """Return the number of a band, from 1 on."""
    return 1 + min(range(len(wavelengths)), key=lambda band: abs(wavelengths[band] - wanted))
