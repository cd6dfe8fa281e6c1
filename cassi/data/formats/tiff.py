"""TIFF and OME-TIFF: an image stack, normally one page a band."""

import json
import logging
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, as_numbers, check_size, drop_opacity

_UNCOMPRESSED = 1
_PACKED = (10, 12, 14)
"""Bits of pixels that cameras pack without gaps, the most significant first."""
_COLOUR_FILTERS = 32803
_NAMED = re.compile(r"(\d+(?:\.\d+)?)\s*nm", re.IGNORECASE)


def is_ome(path: Path) -> bool:
    """Tell whether a file is an OME-TIFF by its name: `.ome.tif`."""
    return path.name.lower().endswith((".ome.tif", ".ome.tiff"))


class _Complaints(logging.Handler):
    """Collects what tifffile only logs, such as a broken chain of pages."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def open_tiff(path: Path) -> Any:
    """Open a file with tifffile, which reads this one and none that it names or that lie beside it.

    OME-TIFF, Micro-Manager's stacks and NDTiff may be parts of several files.
    """
    import tifffile

    return tifffile.TiffFile(
        path, is_ome=False, is_mmstack=False, is_ndtiff=False, _multifile=False
    )


@contextmanager
def read_tiff(path: Path) -> Iterator[Source]:
    """TIFF, normally one page a band, with a JSON object as description."""
    complaints, logger = _Complaints(), logging.getLogger("tifffile")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(complaints)
    try:
        with open_tiff(path) as tiff:
            series = {str(i) if len(tiff.series) > 1 else "": s for i, s in enumerate(tiff.series)}
            about = _about(tiff.pages.first.description)
            bits = _check_camera(tiff.pages.first)
            for item in series.values():
                _check_whole(item, path.stat().st_size, bits)
            if complaints.messages:
                raise ValueError(complaints.messages[0])

            def read(name: str) -> np.ndarray:
                array = _unpack(series[name], bits) if bits else series[name].asarray()
                if complaints.messages:
                    raise ValueError(complaints.messages[0])
                if _has_opacity(series[name]):
                    array = drop_opacity(array[..., 0], array[..., 1])
                return np.asarray(array).reshape(one + array.shape)

            # A cube of one band is one page, and no less a cube.
            single = tiff.pages.first.description.lstrip()[:1] == "<" and len(tiff.pages) == 1
            one = (1,) if single and set(series) == {""} and series[""].ndim == 2 else ()
            integers = tiff.pages.first.dtype is not None and tiff.pages.first.dtype.kind in "iu"
            full_scale = about.get("full_scale", 2**bits - 1 if bits else None)
            full_scale = full_scale if integers else None
            scale = (float(full_scale), "full_scale") if full_scale is not None else None
            yield Source(
                {
                    name: one + tuple(item.shape[:-1] if _has_opacity(item) else item.shape)
                    for name, item in series.items()
                },
                read,
                axes={name: "C" * len(one) + _tiff_axes(item) for name, item in series.items()},
                wavelengths=stated_wavelengths(tiff.pages.first.description),
                scale=scale,
                image=True,
                missing=_no_data(tiff.pages.first),
            )
    finally:
        logger.removeHandler(complaints)
        logger.propagate = propagate


def _has_opacity(series: Any) -> bool:
    """Tell whether pixels are a grey level and its opacity; four may be bands called colours."""
    page = series.keyframe
    grey = page.samplesperpixel == 2 and series.axes.endswith("S") and series.shape[-1] == 2
    return bool(grey and page.extrasamples and int(page.extrasamples[-1]) in (1, 2))


def _no_data(page: Any) -> tuple[float, ...]:
    """Return the value that GDAL says stands for none."""
    tag = page.tags.get("GDAL_NODATA")
    return () if tag is None else tuple(as_numbers(str(tag.value).strip("\0 ")))


def _about(description: str) -> dict[str, Any]:
    try:
        about = json.loads(description)
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def stated_wavelengths(description: str) -> tuple[object, str] | None:
    """Return the wavelengths of a file's description and their unit; None where there are none.

    It may be ours or anybody's JSON, or the XML of OME-TIFF, whose channels have an emission
    wavelength or a name such as "550 nm".
    """
    about = _about(description)
    values = about.get("wavelengths_nm", about.get("wavelengths"))
    if values:
        return values, "nm" if "wavelengths_nm" in about else ""
    if description.lstrip()[:1] != "<":
        return None
    try:
        channels = [
            element.attrib
            for element in ElementTree.fromstring(description).iter()
            if element.tag.rpartition("}")[2] == "Channel"
        ]
    except (ElementTree.ParseError, ValueError):
        return None
    emitted = [channel.get("EmissionWavelength") for channel in channels]
    if channels and None not in emitted:
        return emitted, channels[0].get("EmissionWavelengthUnit", "nm")
    named = [_NAMED.fullmatch(channel.get("Name", "").strip()) for channel in channels]
    if channels and None not in named:
        return [found[1] for found in named if found is not None], "nm"
    return None


def _check_camera(page: Any) -> int:
    """Return how many bits a packed pixel has, 0 where they are not packed."""
    if int(page.photometric) == _COLOUR_FILTERS:
        raise ValueError("it has a mosaic of colour filters; expected a monochrome sensor's frame")
    bits = page.bitspersample
    packed = bits in _PACKED and int(page.compression) == _UNCOMPRESSED
    return int(bits) if packed and page.samplesperpixel == 1 and not page.is_tiled else 0


def _unpack(series: Any, bits: int) -> np.ndarray:
    """Read pages of pixels without gaps; each row begins with a byte of its own."""
    planes = []
    for page in series.pages:
        height, width = page.imagelength, page.imagewidth
        line = -(-width * bits // 8)
        file = page.parent.filehandle
        parts = []
        for offset, size in zip(page.dataoffsets, page.databytecounts, strict=True):
            file.seek(offset)
            parts.append(file.read(size))
        packed = np.frombuffer(b"".join(parts), np.uint8)
        if packed.size != height * line:
            raise ValueError(f"expected {height * line} bytes of {bits}-bit pixels, {packed.size}")
        single = np.unpackbits(packed.reshape(height, line), axis=1)[:, : width * bits]
        weights = (1 << np.arange(bits)[::-1]).astype(np.uint16)
        planes.append(single.reshape(height, width, bits) @ weights)
    return np.stack(planes).reshape(series.shape)


def _check_whole(series: Any, stored: int, bits: int) -> None:
    """Refuse a file that is cut short, or in which tifffile would take what is not there for 0."""
    if series.dataoffset is not None and not bits:
        check_size(series.dataoffset + series.nbytes, stored)
    elif not all(page is not None and all(page.databytecounts) for page in series.pages):
        raise ValueError("pages, strips or tiles of it were never written; write them")


def describe_stack(path: Path) -> dict[str, Any] | None:
    """Tell where a cube lies in a file, uncompressed and band after band; None where it does not.

    Returns:
        `offset` (bytes), `shape` (C, H, W), `dtype` and `wavelengths` (values and unit, or None).

    Raises:
        ValueError: it is damaged.
    """
    with open_tiff(path) as file:
        item = file.series[0]
        if len(file.series) != 1 or item.dataoffset is None or len(item.shape) != 3:
            return None
        if item.dtype is None or item.dtype.kind != "f" or item.axes[1:] != "YX":
            return None
        if _no_data(file.pages.first):
            return None
        check_size(item.dataoffset + item.nbytes, path.stat().st_size)
        found = stated_wavelengths(file.pages.first.description)
        return {
            "offset": int(item.dataoffset),
            "shape": [int(size) for size in item.shape],
            "dtype": np.dtype(item.dtype).newbyteorder(file.byteorder).str,
            "wavelengths": None if found is None else (as_numbers(found[0]).tolist(), found[1]),
        }


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
    letters = series.axes[:-1] if _has_opacity(series) else series.axes
    return "".join({"Y": "H", "X": "W"}.get(letter, "C") for letter in letters)


def described(ome: bool, wavelengths: Sequence[float] | None) -> dict[str, Any]:
    """Return what tifffile is to write of a cube: one page a band, and the wavelengths (nm).

    OME-TIFF has a channel a band, named "550 nm", with its emission wavelength.
    """
    if not ome:
        nm = {} if wavelengths is None else {"wavelengths_nm": list(wavelengths)}
        return {"photometric": "minisblack", "ome": False, "metadata": {"axes": "CYX", **nm}}
    about: dict[str, object] = {"axes": "CYX", "Name": "cube"}
    if wavelengths is not None:
        about["Channel"] = {
            "Name": [f"{value:g} nm" for value in wavelengths],
            "EmissionWavelength": list(wavelengths),
            "EmissionWavelengthUnit": ["nm"] * len(wavelengths),
        }
    return {"photometric": "minisblack", "ome": True, "metadata": about}


def write_tiff(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write one page a band, wavelengths (nm) in the description, uncompressed."""
    import tifffile

    tifffile.imwrite(path, cube, **described(False, wavelengths))


def write_ome(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write one channel a band, uncompressed, as OME-TIFF."""
    import tifffile

    tifffile.imwrite(path, cube, **described(True, wavelengths))
