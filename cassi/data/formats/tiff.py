"""TIFF: an image stack, normally one page a band."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, check_expansion, check_size, may_exhaust

_MOST_PAGES = 1 << 16
# How strips may be compressed: not at all, PackBits, deflate, deflate. What tifffile leaves to the
# package imagecodecs is expanded into memory of the right size; what Python expands is not.
_BOUNDED, _DEFLATE = {1, 32773, 8, 32946}, {8, 32946}


class _Complaints(logging.Handler):
    """Collects what tifffile only logs, such as a broken chain of pages."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def read_tiff(path: Path) -> Iterator[Source]:
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


def write_tiff(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write one page a band, wavelengths (nm) in the description, uncompressed."""
    import tifffile

    about: dict[str, Any] = {"axes": "CYX"}
    if wavelengths is not None:
        about["wavelengths_nm"] = list(wavelengths)
    tifffile.imwrite(path, cube, photometric="minisblack", metadata=about)
