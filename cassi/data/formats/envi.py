"""ENVI: a text header and a raw file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source

_LARGEST_HEADER, _MOST_LINES = 1 << 20, 10_000
DATA_SUFFIXES = (".img", ".dat", ".raw", ".bsq", ".bil", ".bip", ".hyspex", ".bin", "")


def _envi_pair(path: Path) -> tuple[Path, Path]:
    """Header and data file, given either."""
    if path.suffix.lower() == ".hdr":
        stem = path.with_suffix("")
        for suffix in DATA_SUFFIXES:
            for data in (stem.with_name(stem.name + s) for s in (suffix, suffix.upper())):
                if data.is_file():
                    return path, data
        raise ValueError(f"no data file {stem.name}.img (.dat, .raw, …) beside it")
    for header in (path.with_suffix(".hdr"), path.with_name(path.name + ".hdr")):
        if header.is_file():
            return header, path
    raise ValueError(f"no header {path.with_suffix('.hdr').name} beside it")


@contextmanager
def read_envi(path: Path) -> Iterator[Source]:
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
