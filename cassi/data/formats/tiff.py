"""Read and write TIFF and OME-TIFF: an image stack, normally one page a band."""

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

# Values of the tags Compression and PhotometricInterpretation.
_NO_COMPRESSION = 1
_COLOUR_FILTER_ARRAY = 32803
# Bits of pixels that cameras store without gaps, the most significant bit first. tifffile would
# need the package imagecodecs to read such pixels, so they are unpacked here.
_PACKED_BITS = (10, 12, 14)
_WAVELENGTH_NAME = re.compile(r"(\d+(?:\.\d+)?)\s*nm", re.IGNORECASE)


def is_ome(path: Path) -> bool:
    """Tell whether a file is an OME-TIFF by its name: `.ome.tif`."""
    return path.name.lower().endswith((".ome.tif", ".ome.tiff"))


class _RaisingHandler(logging.Handler):
    """Raises an error for what tifffile only logs, such as a broken chain of pages."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError(record.getMessage())


_RAISE_LOGGED_ERRORS = _RaisingHandler(logging.ERROR)


def open_tiff(path: Path) -> Any:
    """Open a file with tifffile, but no other files that it names or that lie beside it."""
    import tifffile

    # OME-TIFF, Micro-Manager's stacks and NDTiff may consist of several files. A hostile file could
    # name any file of the machine.
    return tifffile.TiffFile(
        path, is_ome=False, is_mmstack=False, is_ndtiff=False, _multifile=False
    )


@contextmanager
def read_tiff(path: Path) -> Iterator[Source]:
    """Read the series of a TIFF, normally one page a band; the description may be JSON or XML."""
    logger = logging.getLogger("tifffile")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(_RAISE_LOGGED_ERRORS)
    try:
        with open_tiff(path) as tiff:
            first_page, count = tiff.pages.first, len(tiff.series)
            series = {str(i) if count > 1 else "": item for i, item in enumerate(tiff.series)}
            bits = _count_packed_bits(first_page)
            for item in series.values():
                _check_complete(item)

            def read(name: str) -> np.ndarray:
                array = _unpack_pixels(series[name], bits) if bits else series[name].asarray()
                if _has_opacity(series[name]):
                    array = drop_opacity(array[..., 0], array[..., 1])
                return np.asarray(array).reshape(band_axis + array.shape)

            # An OME-TIFF of one page is a cube of one band. tifffile gives it two axes, so the axis
            # of the bands is added.
            has_xml = first_page.description.lstrip()[:1] == "<"
            is_single_plane = len(tiff.pages) == 1 and count == 1 and series[""].ndim == 2
            band_axis: tuple[int, ...] = (1,) if has_xml and is_single_plane else ()
            shapes, axes = {}, {}
            for name, item in series.items():
                shape = item.shape[:-1] if _has_opacity(item) else item.shape
                shapes[name] = band_axis + tuple(shape)
                axes[name] = "C" * len(band_axis) + _find_axes(item)
            is_integer = first_page.dtype is not None and first_page.dtype.kind in "iu"
            full_scale = _read_json(first_page.description).get(
                "full_scale", 2**bits - 1 if bits else None
            )
            scale = None
            if is_integer and full_scale is not None:
                scale = float(full_scale), "full_scale"
            yield Source(
                shapes,
                read,
                axes=axes,
                wavelengths=stated_wavelengths(first_page.description),
                scale=scale,
                image=True,
                missing=_read_no_data(first_page),
            )
    finally:
        logger.removeHandler(_RAISE_LOGGED_ERRORS)
        logger.propagate = propagate


def _has_opacity(series: Any) -> bool:
    """Tell whether each pixel is a grey level and its opacity."""
    # Four samples per pixel may be three colours and opacity, or four bands that a program has
    # labelled in this way. They are read as bands.
    page = series.keyframe
    has_two_samples = page.samplesperpixel == 2 and series.axes.endswith("S")
    if not has_two_samples or series.shape[-1] != 2 or not page.extrasamples:
        return False
    # Values of the tag ExtraSamples: associated and unassociated opacity.
    return int(page.extrasamples[-1]) in (1, 2)


def _read_no_data(page: Any) -> tuple[float, ...]:
    """Return the value by which GDAL marks a missing pixel, if any."""
    tag = page.tags.get("GDAL_NODATA")
    return () if tag is None else tuple(as_numbers(str(tag.value).strip("\0 ")))


def _read_json(description: str) -> dict[str, Any]:
    """Return the object of a JSON text; empty if it is none."""
    try:
        content = json.loads(description)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def stated_wavelengths(description: str) -> tuple[object, str] | None:
    """Return the wavelengths in a file's description and their unit; None if it has none.

    The description is JSON with `wavelengths_nm` or `wavelengths`, or the XML of OME-TIFF, whose
    channels have an emission wavelength or a name such as "550 nm".
    """
    content = _read_json(description)
    values = content.get("wavelengths_nm", content.get("wavelengths"))
    if values:
        return values, "nm" if "wavelengths_nm" in content else ""
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
    emission_wavelengths = [channel.get("EmissionWavelength") for channel in channels]
    if channels and None not in emission_wavelengths:
        return emission_wavelengths, channels[0].get("EmissionWavelengthUnit", "nm")
    matches = [_WAVELENGTH_NAME.fullmatch(channel.get("Name", "").strip()) for channel in channels]
    if channels and None not in matches:
        return [match[1] for match in matches if match is not None], "nm"
    return None


def _count_packed_bits(page: Any) -> int:
    """Return the bits of a packed pixel, 0 if none is packed; ValueError for a colour mosaic."""
    if int(page.photometric) == _COLOUR_FILTER_ARRAY:
        raise ValueError("it has a mosaic of colour filters; expected a monochrome sensor's frame")
    bits = page.bitspersample
    is_packed = bits in _PACKED_BITS and int(page.compression) == _NO_COMPRESSION
    return int(bits) if is_packed and page.samplesperpixel == 1 and not page.is_tiled else 0


def _unpack_pixels(series: Any, bits: int) -> np.ndarray:
    """Read pages of packed pixels; each row begins with a new byte."""
    planes = []
    for page in series.pages:
        height, width = page.imagelength, page.imagewidth
        row_bytes = -(-width * bits // 8)
        file = page.parent.filehandle
        strips = []
        for offset, size in zip(page.dataoffsets, page.databytecounts, strict=True):
            file.seek(offset)
            strips.append(file.read(size))
        packed_bytes = np.frombuffer(b"".join(strips), np.uint8)
        if packed_bytes.size != height * row_bytes:
            raise ValueError(
                f"expected {height * row_bytes} bytes of {bits}-bit pixels, {packed_bytes.size}"
            )
        pixel_bits = np.unpackbits(packed_bytes.reshape(height, row_bytes), axis=1)[
            :, : width * bits
        ]
        weights = (1 << np.arange(bits)[::-1]).astype(np.uint16)
        planes.append(pixel_bits.reshape(height, width, bits) @ weights)
    return np.stack(planes).reshape(series.shape)


def _check_complete(series: Any) -> None:
    """Raise ValueError if parts of an image were never written; tifffile would return 0 there."""
    if series.dataoffset is None and not all(
        page is not None and all(page.databytecounts) for page in series.pages
    ):
        raise ValueError("pages, strips or tiles of it were never written; write them")


def describe_stack(path: Path) -> dict[str, Any] | None:
    """Find where the values of a cube lie in a file, so that parts of the cube can be read.

    Returns:
        `offset` (bytes), `shape` (C, H, W), `dtype` and `wavelengths` (values and unit, or None).
        None if the values are not uncompressed floating numbers, band after band.

    Raises:
        ValueError: the file is cut short.
    """
    with open_tiff(path) as file:
        series = file.series[0]
        if len(file.series) != 1 or series.dataoffset is None or len(series.shape) != 3:
            return None
        if series.dtype is None or series.dtype.kind != "f" or series.axes[1:] != "YX":
            return None
        if _read_no_data(file.pages.first):
            return None
        if series.dataoffset + series.nbytes > path.stat().st_size:
            raise ValueError(f"the file is cut short: {series.nbytes} bytes of values expected")
        wavelengths = stated_wavelengths(file.pages.first.description)
        return {
            "offset": int(series.dataoffset),
            "shape": [int(size) for size in series.shape],
            "dtype": np.dtype(series.dtype).newbyteorder(file.byteorder).str,
            "wavelengths": None
            if wavelengths is None
            else (as_numbers(wavelengths[0]).tolist(), wavelengths[1]),
        }


def _find_axes(series: Any) -> str:
    """Return the letters of the axes of a series; "" if the shape must decide."""
    # tifffile names an axis Q if it knows nothing about it. An array with such an axis may have its
    # axes in any order, so the shortest axis is taken for the bands. If several axes are the
    # shortest, the pages are the bands. All axes other than rows and columns (pages, channels,
    # samples) count as bands.
    has_unknown_axis = series.kind == "shaped" and "Q" in series.axes
    if has_unknown_axis and series.shape.count(min(series.shape)) == 1:
        return ""
    letters = series.axes[:-1] if _has_opacity(series) else series.axes
    return "".join({"Y": "H", "X": "W"}.get(letter, "C") for letter in letters)


def imwrite_options(ome: bool, wavelengths: Sequence[float] | None) -> dict[str, Any]:
    """Return options of `tifffile.imwrite` for a cube: one page a band, and the wavelengths (nm).

    OME-TIFF has a channel per band, named "550 nm", with its emission wavelength.
    """
    metadata: dict[str, object] = {"axes": "CYX"}
    if not ome:
        if wavelengths is not None:
            metadata["wavelengths_nm"] = list(wavelengths)
        return {"photometric": "minisblack", "ome": False, "metadata": metadata}
    metadata["Name"] = "cube"
    if wavelengths is not None:
        metadata["Channel"] = {
            "Name": [f"{value:g} nm" for value in wavelengths],
            "EmissionWavelength": list(wavelengths),
            "EmissionWavelengthUnit": ["nm"] * len(wavelengths),
        }
    return {"photometric": "minisblack", "ome": True, "metadata": metadata}


def write_header(path: Path, shape: tuple[int, ...], wavelengths: Sequence[float] | None) -> int:
    """Write the header of a cube; return the position of its values, bytes."""
    import tifffile

    # tifffile.memmap is not used, because it would put the values at the next multiple of the page
    # size, unlike `write_tiff`.
    options: dict[str, Any] = imwrite_options(is_ome(path), wavelengths) | {"returnoffset": True}
    result = tifffile.imwrite(path, shape=shape, dtype="<f4", **options)
    assert result is not None  # uncompressed values lie in one piece
    return int(result[0])


def write_tiff(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write one page a band, uncompressed, as OME-TIFF if the name ends in `.ome.tif`."""
    import tifffile

    tifffile.imwrite(path, cube, **imwrite_options(is_ome(path), wavelengths))
