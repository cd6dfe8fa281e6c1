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

from cassi.data.formats import Source, as_numbers, drop_opacity

_UNCOMPRESSED = 1
_PACKED = (10, 12, 14)
"""Bits of pixels that cameras pack without gaps, the most significant first."""
_COLOUR_FILTERS = 32803
_NAMED = re.compile(r"(\d+(?:\.\d+)?)\s*nm", re.IGNORECASE)


def is_ome(path: Path) -> bool:
    """Tell whether a file is an OME-TIFF by its name: `.ome.tif`."""
    return path.name.lower().endswith((".ome.tif", ".ome.tiff"))


class _Complaints(logging.Handler):
    """Makes errors of what tifffile only logs, such as a broken chain of pages."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError(record.getMessage())


_COMPLAINTS = _Complaints(logging.ERROR)


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
    logger = logging.getLogger("tifffile")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(_COMPLAINTS)
    try:
        with open_tiff(path) as tiff:
            first, count = tiff.pages.first, len(tiff.series)
            series = {str(i) if count > 1 else "": item for i, item in enumerate(tiff.series)}
            bits = _packed_bits(first)
            for item in series.values():
                _check_written(item)

            def read(name: str) -> np.ndarray:
                array = _unpack(series[name], bits) if bits else series[name].asarray()
                if _has_opacity(series[name]):
                    array = drop_opacity(array[..., 0], array[..., 1])
                return np.asarray(array).reshape(one + array.shape)

            # A cube of one band is one page, and no less a cube.
            single = first.description.lstrip()[:1] == "<" and len(tiff.pages) == 1
            one = (1,) if single and set(series) == {""} and series[""].ndim == 2 else ()
            integers = first.dtype is not None and first.dtype.kind in "iu"
            full_scale = _about(first.description).get("full_scale", 2**bits - 1 if bits else None)
            scale = None
            if integers and full_scale is not None:
                scale = float(full_scale), "full_scale"
            yield Source(
                {
                    name: one + tuple(item.shape[:-1] if _has_opacity(item) else item.shape)
                    for name, item in series.items()
                },
                read,
                axes={name: "C" * len(one) + _tiff_axes(item) for name, item in series.items()},
                wavelengths=stated_wavelengths(first.description),
                scale=scale,
                image=True,
                missing=_no_data(first),
            )
    finally:
        logger.removeHandler(_COMPLAINTS)
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


def _packed_bits(page: Any) -> int:
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


def _check_written(series: Any) -> None:
    """Refuse a file in which tifffile would take what is not there for 0."""
    if series.dataoffset is None and not all(
        page is not None and all(page.databytecounts) for page in series.pages
    ):
        raise ValueError("pages, strips or tiles of it were never written; write them")


def describe_stack(path: Path) -> dict[str, Any] | None:
    """Tell where a cube lies in a file, uncompressed and band after band; None where it does not.

    Returns:
        `offset` (bytes), `shape` (C, H, W), `dtype` and `wavelengths` (values and unit, or None).
    """
    with open_tiff(path) as file:
        item = file.series[0]
        if len(file.series) != 1 or item.dataoffset is None or len(item.shape) != 3:
            return None
        if item.dtype is None or item.dtype.kind != "f" or item.axes[1:] != "YX":
            return None
        if _no_data(file.pages.first):
            return None
        if item.dataoffset + item.nbytes > path.stat().st_size:
            raise ValueError(f"the file is cut short: {item.nbytes} bytes of values expected")
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


def reserve(path: Path, shape: tuple[int, ...], wavelengths: Sequence[float] | None) -> int:
    """Write the header of a cube; return where its values lie."""
    import tifffile

    # Not tifffile.memmap, which moves the values to the next page of memory.
    how: dict[str, Any] = described(is_ome(path), wavelengths) | {"returnoffset": True}
    written = tifffile.imwrite(path, shape=shape, dtype="<f4", **how)
    assert written is not None  # what is not compressed lies in one piece
    return int(written[0])


def write_tiff(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write one page a band, uncompressed; OME-TIFF where the name says so."""
    import tifffile

    tifffile.imwrite(path, cube, **described(is_ome(path), wavelengths))
