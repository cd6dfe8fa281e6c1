"""Read and write ENVI images: a text header, and a file with the raw values."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import Source, as_numbers

DATA_SUFFIXES = (".img", ".dat", ".raw", ".bsq", ".bil", ".bip", ".hyspex", ".bin", "")
LIBRARY_SUFFIX = ".sli"
SUFFIXES = (".hdr", LIBRARY_SUFFIX, *filter(None, DATA_SUFFIXES))


def _find_pair(path: Path) -> tuple[Path, Path]:
    """Return the header and the data file of an image, from the path of either."""
    stem = path.with_suffix("")
    if path.suffix.lower() == ".hdr":
        names = [stem.name + s for suffix in DATA_SUFFIXES for s in (suffix, suffix.upper())]
    else:
        names = [name + s for name in (stem.name, path.name) for s in (".hdr", ".HDR")]
    files = [path.with_name(name) for name in names if path.with_name(name).is_file()]
    if path.suffix.lower() == ".hdr":
        if not files:
            raise ValueError(f"no data file {stem.name}.img (.dat, .raw, …) beside it")
        return path, files[0]
    if not files:
        raise ValueError(f"no header {stem.name}.hdr beside it")
    return files[0], path


@contextmanager
def read_envi(path: Path) -> Iterator[Source]:
    """Read an ENVI image, from the path of its header or of its data file."""
    from spectral.io import envi

    header_path, data_path = _find_pair(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # spectral warns of capitals
        image = envi.open(str(header_path), str(data_path))
    if isinstance(image, envi.SpectralLibrary):
        raise ValueError("it is a spectral library, not an image")
    header, shape = image.metadata, tuple(map(int, image.shape))
    if str(header["interleave"]).lower() not in {"bsq", "bil", "bip"}:
        raise ValueError(f"unknown interleave {header['interleave']!r}; expected bsq, bil or bip")
    expected_bytes = image.offset + math.prod(shape) * np.dtype(image.dtype).itemsize
    stored_bytes = data_path.stat().st_size
    # An ENVI file has no checksum. Only a wrong length shows that the header is damaged or the file
    # is cut.
    if expected_bytes != stored_bytes or min(shape) < 1:
        raise ValueError(
            f"the header promises {expected_bytes} bytes, {data_path.name} has {stored_bytes}"
        )
    bad_bands = [
        band for band, is_good in enumerate(as_numbers(header.get("bbl", [])), 1) if not is_good
    ]
    if bad_bands:
        raise ValueError(
            f"its header marks {len(bad_bands)} bands as bad (bbl), the first is band "
            f"{bad_bands[0]} of {shape[2]}; save it without them"
        )
    scale_factor = float(header.get("reflectance scale factor", 1.0))
    wavelengths = header.get("wavelength")
    yield Source(
        {"": shape},
        lambda _: np.asarray(image.open_memmap(interleave="bip")),
        axes={"": "HWC"},
        wavelengths=(wavelengths, str(header.get("wavelength units", ""))) if wavelengths else None,
        scale=(scale_factor, "reflectance scale factor") if scale_factor != 1.0 else None,
        image=True,
        missing=tuple(as_numbers(header.get("data ignore value", []))),
    )


def read_library(path: Path) -> tuple[np.ndarray, dict[str, object]]:
    """Read a spectral library, a file `.sli` with its header.

    Returns:
        Spectra `(M, C)`; their `names`, and the `wavelengths` of the header with their `unit`.
    """
    from spectral.io import envi

    header_path, data_path = _find_pair(path)
    library = envi.open(str(header_path), str(data_path))
    if not isinstance(library, envi.SpectralLibrary):
        raise ValueError("it is an image, not a spectral library")
    bands = library.bands
    return np.asarray(library.spectra, np.float64), {
        "names": [str(name).strip() for name in library.names],
        "wavelengths": None if bands.centers is None else list(map(float, bands.centers)),
        "unit": str(bands.band_unit or ""),
    }


# Other programs show the bands nearest to these wavelengths as red, green and blue.
_DISPLAY_NM = (640.0, 550.0, 460.0)


def write_envi(
    header_path: Path,
    data_path: Path,
    cube: np.ndarray,
    wavelengths: tuple[float, ...] | None,
    fwhm: tuple[float, ...] | None = None,
) -> None:
    """Write a (C, H, W) float32 cube as the two files of ENVI, band after band.

    The header has the keys that ENVI, GDAL and Spectral Python read: names and wavelengths (nm) of
    the bands, their widths (nm) if given, and the bands of a colour picture.
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
        # NaN marks missing values. A finite cube has none, so no value counts as missing.
        "data ignore value": "nan",
    }
    if wavelengths is None:
        header |= {"band names": [f"band {number}" for number in range(1, bands + 1)]}
    else:
        header |= {
            "band names": [f"{value:g} nm" for value in wavelengths],
            "wavelength units": "Nanometers",
            "wavelength": list(wavelengths),
            "default bands": [_find_nearest_band(wavelengths, nm) for nm in _DISPLAY_NM],
        }
    if fwhm is not None:
        header["fwhm"] = list(fwhm)
    with data_path.open("wb") as file:
        file.write(cube.astype("<f4").tobytes())
    envi.write_envi_header(str(header_path), header)


def _find_nearest_band(wavelengths: tuple[float, ...], nm: float) -> int:
    """Return the number of the band nearest to a wavelength, counted from 1."""
    return 1 + min(range(len(wavelengths)), key=lambda band: abs(wavelengths[band] - nm))
