"""Formats that hold one image stack: TIFF and ENVI."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Reader, Source, Writer, check_expansion, check_size, may_exhaust

__all__ = ["READERS", "WRITERS", "write_envi"]


_MOST_PAGES = 1 << 16
# How strips may be compressed: not at all, PackBits, deflate, deflate. What tifffile leaves to the
# package imagecodecs is expanded into memory of the right size; what Python expands is not.
_BOUNDED, _DEFLATE = {1, 32773, 8, 32946}, {8, 32946}
_LARGEST_HEADER, _MOST_LINES = 1 << 20, 10_000

# TIFF ---------------------------------------------------------------------------------------------


class _Complaints(logging.Handler):
    """Collects what tifffile only logs, such as a broken chain of pages."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _read_tiff(path: Path) -> Iterator[Source]:
    """TIFF, normally one page a band, with a JSON object as description."""
    import tifffile

    complaints, logger = _Complaints(), logging.getLogger("tifffile")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(complaints)
    try:
        # An OME-TIFF may name further files; only this one is read.
        with tifffile.TiffFile(path, is_ome=False) as tiff:
            stored = path.stat().st_size
            if len(tiff.pages) > _MOST_PAGES:
                raise ValueError(f"it has {len(tiff.pages)} pages, more than {_MOST_PAGES}")
            series = {str(i) if len(tiff.series) > 1 else "": s for i, s in enumerate(tiff.series)}
            try:
                about = json.loads(tiff.pages.first.description)
            except (ValueError, RecursionError):
                about = {}
            about = about if isinstance(about, dict) else {}
            for item in series.values():
                _check_tiff_series(item, stored)
            if complaints.messages:
                raise ValueError(complaints.messages[0])

            def read(name: str) -> np.ndarray:
                array = series[name].asarray()
                if complaints.messages:
                    raise ValueError(complaints.messages[0])
                return np.asarray(array)

            integers = tiff.pages.first.dtype is not None and tiff.pages.first.dtype.kind in "iu"
            full_scale = about.get("full_scale") if integers else None
            scale = (float(full_scale), "full_scale") if full_scale is not None else None
            values = about.get("wavelengths_nm", about.get("wavelengths"))
            yield Source(
                {name: tuple(item.shape) for name, item in series.items()},
                read,
                axes={name: _tiff_axes(item) for name, item in series.items()},
                wavelengths=(values, "nm" if "wavelengths_nm" in about else "") if values else None,
                scale=scale,
                image=True,
            )
    finally:
        logger.removeHandler(complaints)
        logger.propagate = propagate


def _check_tiff_series(series: Any, stored: int) -> None:
    if series.dataoffset is not None:
        check_size(series.dataoffset + series.nbytes, stored)
        return
    check_size(series.nbytes, stored, compressed=True)
    for page in series.pages:
        if page is None:
            raise ValueError("a page is missing")
        compression = int(page.compression)
        if compression not in _BOUNDED and importlib.util.find_spec("imagecodecs") is None:
            name = getattr(page.compression, "name", compression)
            raise ValueError(f"compressed by {name}; use deflate, or install imagecodecs")
        claimed = math.prod(page.chunks) * (page.dtype.itemsize if page.dtype else 1)
        check_size(claimed, stored, compressed=True)
        for offset, size in zip(page.dataoffsets, page.databytecounts, strict=True):
            check_size(offset + size, stored)
            if compression in _DEFLATE and may_exhaust(size):
                file = page.parent.filehandle
                file.seek(offset)
                check_expansion(file.read(size), claimed)


def _tiff_axes(series: Any) -> str:
    # tifffile marks an axis it knows nothing about by Q: arrays saved whole, in whatever order.
    # Everywhere else what is neither a row nor a column is a page, a channel or a sample.
    # Among those the shortest axis decides, and without one the pages are the bands.
    if (
        series.kind == "shaped"
        and "Q" in series.axes
        and series.shape.count(min(series.shape)) == 1
    ):
        return ""
    return "".join({"Y": "H", "X": "W"}.get(letter, "C") for letter in series.axes)


# ENVI ---------------------------------------------------------------------------------------------

_ENVI_DATA = (".img", ".dat", ".raw", ".bsq", ".bil", ".bip", ".hyspex", ".bin", "")


def _envi_pair(path: Path) -> tuple[Path, Path]:
    """Header and data file, given either."""
    if path.suffix.lower() == ".hdr":
        stem = path.with_suffix("")
        for suffix in _ENVI_DATA:
            for data in (stem.with_name(stem.name + s) for s in (suffix, suffix.upper())):
                if data.is_file():
                    return path, data
        raise ValueError(f"no data file {stem.name}.img (.dat, .raw, …) beside it")
    for header in (path.with_suffix(".hdr"), path.with_name(path.name + ".hdr")):
        if header.is_file():
            return header, path
    raise ValueError(f"no header {path.with_suffix('.hdr').name} beside it")


@contextmanager
def _read_envi(path: Path) -> Iterator[Source]:
    """ENVI: a text header and a raw file; either name will do."""
    from spectral.io import envi

    header_path, data_path = _envi_pair(path)
    with header_path.open("rb") as file:
        head = file.read(_LARGEST_HEADER + 1)
    if len(head) > _LARGEST_HEADER or head.count(b"\n") > _MOST_LINES:
        raise ValueError(f"{header_path.name} is too long for the header of an image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about capitals in the header
        header = envi.read_envi_header(str(header_path))
    envi.check_compatibility(header)
    if str(header["interleave"]).lower() not in {"bsq", "bil", "bip"}:
        raise ValueError(f"unknown interleave {header['interleave']!r}; expected bsq, bil or bip")
    if header.get("file type") == "ENVI Spectral Library":
        raise ValueError("it is a spectral library, not an image")
    shape = tuple(int(header[name]) for name in ("lines", "samples", "bands"))
    if min(shape) < 1:
        raise ValueError(f"the header says {shape} lines, samples and bands")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        image = envi.open(str(header_path), str(data_path))
    claimed = image.offset + math.prod(shape) * np.dtype(image.dtype).itemsize
    stored = data_path.stat().st_size
    # An ENVI file has no check sum; its exact length is the only sign of a damaged header.
    if claimed != stored:
        raise ValueError(f"the header promises {claimed} bytes, {data_path.name} has {stored}")

    factor = float(header.get("reflectance scale factor", 1.0))
    values = header.get("wavelength")
    yield Source(
        {"": shape},
        lambda _: np.asarray(image.open_memmap(interleave="bip")),
        axes={"": "HWC"},
        wavelengths=(values, str(header.get("wavelength units", ""))) if values else None,
        scale=(factor, "reflectance scale factor") if factor != 1.0 else None,
        image=True,
    )


# Writers ------------------------------------------------------------------------------------------


def _write_tiff(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    import tifffile

    about: dict[str, Any] = {"axes": "CYX"}
    if wavelengths is not None:
        about["wavelengths_nm"] = list(wavelengths)
    tifffile.imwrite(path, cube, photometric="minisblack", metadata=about)


def write_envi(
    header_path: Path, data_path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None
) -> None:
    """Write a (C, H, W) float32 cube as the two files of ENVI, band after band."""
    from spectral.io import envi

    bands, height, width = cube.shape
    header: dict[str, Any] = {
        "samples": width,
        "lines": height,
        "bands": bands,
        "header offset": 0,
        "data type": 4,  # float32
        "interleave": "bsq",
        "byte order": 0,  # little-endian
    }
    if wavelengths is not None:
        header |= {"wavelength units": "Nanometers", "wavelength": list(wavelengths)}
    with data_path.open("wb") as file:
        file.write(cube.astype("<f4").tobytes())
    envi.write_envi_header(str(header_path), header)


READERS: dict[str, Reader] = {
    ".tif": _read_tiff,
    ".tiff": _read_tiff,
    ".hdr": _read_envi,
    **{suffix: _read_envi for suffix in _ENVI_DATA if suffix},
}
WRITERS: dict[str, Writer] = {".tif": _write_tiff, ".tiff": _write_tiff}
