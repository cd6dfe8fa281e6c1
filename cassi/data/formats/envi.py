"""ENVI: a text header and a raw file."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import Source, as_numbers, check_plain

DATA_SUFFIXES = (".img", ".dat", ".raw", ".bsq", ".bil", ".bip", ".hyspex", ".bin", "")


def _envi_pair(path: Path) -> tuple[Path, Path]:
    """Header and data file, given either."""
    if path.suffix.lower() == ".hdr":
        stem = path.with_suffix("")
        for suffix in DATA_SUFFIXES:
            for data in (stem.with_name(stem.name + s) for s in (suffix, suffix.upper())):
                if data.is_file() or data.is_symlink():
                    check_plain(data)
                    return path, data
        raise ValueError(f"no data file {stem.name}.img (.dat, .raw, …) beside it")
    names = [path.with_suffix(".hdr"), path.with_name(path.name + ".hdr")]
    for header in (n.with_suffix(s) for n in names for s in (".hdr", ".HDR")):
        if header.is_file() or header.is_symlink():
            check_plain(header)
            return header, path
    raise ValueError(f"no header {path.with_suffix('.hdr').name} beside it")


@contextmanager
def read_envi(path: Path) -> Iterator[Source]:
    """ENVI: a text header and a raw file; either name will do."""
    from spectral.io import envi

    header_path, data_path = _envi_pair(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about capitals in the header
        image = envi.open(str(header_path), str(data_path))
    if isinstance(image, envi.SpectralLibrary):
        raise ValueError("it is a spectral library, not an image")
    header, shape = image.metadata, tuple(map(int, image.shape))
    if str(header["interleave"]).lower() not in {"bsq", "bil", "bip"}:
        raise ValueError(f"unknown interleave {header['interleave']!r}; expected bsq, bil or bip")
    if min(shape) < 1:
        raise ValueError(f"the header says {shape} lines, samples and bands")
    claimed = image.offset + math.prod(shape) * np.dtype(image.dtype).itemsize
    stored = data_path.stat().st_size
    # An ENVI file has no check sum; its exact length is the only sign of a damaged header.
    if claimed != stored:
        raise ValueError(f"the header promises {claimed} bytes, {data_path.name} has {stored}")

    def read(_: str) -> np.ndarray:
        return np.asarray(image.open_memmap(interleave="bip"))

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
        read,
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
