"""Write the table of docs/guides/files.md: which library opens what, and what stays exact.

    python scripts/docs/formats_page.py

Every format that cassi writes is opened by every library that reads it, and what the library writes
is read by cassi. A library that is not installed keeps the column that the page has of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data import io

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/guides/files.md"
FIRST, LAST = "<!-- made by scripts/docs/formats_page.py -->", "<!-- end -->"
NM = (453.5, 457.5, 462.0, 466.125, 471.3000000000001)
CUBE = np.random.default_rng(0).random((5, 7, 4), dtype=np.float32)
FORMATS = (".tif", ".ome.tif", ".hdr", ".nc", ".zarr", ".hspy", ".h5", ".mat", ".npz", ".npy")
LIBRARIES = {
    "xarray": "xarray",
    "spectral": "Spectral Python",
    "rasterio": "GDAL (rasterio)",
    "rsciio": "HyperSpy (RosettaSciIO)",
    "tifffile": "tifffile",
}

Found = tuple[np.ndarray, Any]
"""A cube (C, H, W) and its wavelengths, None where the library has none."""


def open_xarray(path: Path) -> Found:
    """As a Dataset; `.h5` as a netCDF file whose dimensions have no names."""
    import xarray

    if path.suffix == ".zarr":
        data = xarray.open_zarr(path)
    elif path.suffix == ".h5":
        data = xarray.open_dataset(path, engine="h5netcdf", phony_dims="sort")
    else:
        data = xarray.open_dataset(path, engine="h5netcdf")
    with data:
        named = "wavelengths" if path.suffix == ".h5" else "wavelength"
        cube = data["cube"] if path.suffix == ".h5" else data["cube"].transpose(named, "y", "x")
        return cube.values, data[named].values


def open_spectral(path: Path) -> Found:
    """As an image of Spectral Python."""
    from spectral.io import envi

    image = envi.open(str(path))
    return np.asarray(image.load()).transpose(2, 0, 1), image.bands.centers


def open_rasterio(path: Path) -> Found:
    """By the driver of GDAL; the pages of a TIFF are its subdatasets."""
    import rasterio

    with rasterio.open(path.with_suffix(".img") if path.suffix == ".hdr" else path) as image:
        pages = image.subdatasets if path.suffix == ".tif" else []
        tags = [image.tags(band) for band in image.indexes]
        cube = image.read()
    if pages:
        planes = []
        for page in pages:
            with rasterio.open(page) as image:
                planes.append(image.read(1))
        cube = np.stack(planes)
    nm = [float(tag["wavelength"]) for tag in tags if "wavelength" in tag]
    return cube, nm or None


def open_rsciio(path: Path) -> Found:
    """As a signal of HyperSpy."""
    from rsciio import hspy, tiff

    (signal,) = (hspy if path.suffix == ".hspy" else tiff).file_reader(str(path))
    axes = signal["axes"]
    spectral = [i for i, axis in enumerate(axes) if axis.get("units") == "nm"]
    if not spectral:
        return signal["data"], None
    axis = axes[spectral[0]]
    nm = (
        axis["axis"] if "axis" in axis else axis["offset"] + axis["scale"] * np.arange(axis["size"])
    )
    return np.moveaxis(signal["data"], spectral[0], 0), nm


def open_tifffile(path: Path) -> Found:
    """As pages, with the description as tifffile understands it."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        if file.ome_metadata is not None:
            about = tifffile.xml2dict(file.ome_metadata)["OME"]["Image"]["Pixels"]["Channel"]
            nm = [channel["EmissionWavelength"] for channel in about]
        else:
            nm = (file.shaped_metadata or ({},))[0]["wavelengths_nm"]
        return file.asarray(), nm


OPENED: dict[str, tuple[Callable[[Path], Found], tuple[str, ...]]] = {
    "xarray": (open_xarray, (".nc", ".zarr", ".h5")),
    "spectral": (open_spectral, (".hdr",)),
    "rasterio": (open_rasterio, (".tif", ".ome.tif", ".hdr")),
    "rsciio": (open_rsciio, (".tif", ".ome.tif", ".hspy")),
    "tifffile": (open_tifffile, (".tif", ".ome.tif")),
}


def save_xarray(path: Path) -> None:
    """Write a Dataset as xarray does by itself."""
    import xarray

    array = xarray.DataArray(CUBE, dims=("wavelength", "y", "x"), name="cube")
    data = array.assign_coords(wavelength=("wavelength", list(NM), {"units": "nm"})).to_dataset()
    data.to_zarr(path) if path.suffix == ".zarr" else data.to_netcdf(path, engine="h5netcdf")


def save_spectral(path: Path) -> None:
    """Write an ENVI image, interleaved by pixel."""
    from spectral.io import envi

    about = {"wavelength": list(NM), "wavelength units": "Nanometers"}
    envi.save_image(str(path), CUBE.transpose(1, 2, 0), metadata=about, interleave="bip")


def save_rasterio(path: Path) -> None:
    """Write an image of GDAL, which says nothing of wavelengths by itself."""
    import rasterio

    bands, height, width = CUBE.shape
    size = {"width": width, "height": height, "count": bands, "dtype": "float32"}
    driver = "ENVI" if path.suffix == ".hdr" else "GTiff"
    target = path.with_suffix(".img") if path.suffix == ".hdr" else path
    with rasterio.open(target, "w", driver=driver, **size) as image:
        image.write(CUBE)


def save_rsciio(path: Path) -> None:
    """Write a signal as HyperSpy does, spectra of pixels."""
    from rsciio import hspy, tiff

    values = np.ascontiguousarray(CUBE.transpose(1, 2, 0))
    axes: list[dict[str, Any]] = [
        {"name": name, "units": "px", "navigate": True, "size": size, "scale": 1.0, "offset": 0.0}
        for name, size in zip("yx", values.shape, strict=False)
    ]
    axes.append({"name": "Wavelength", "units": "nm", "navigate": False, "axis": np.asarray(NM)})
    if path.suffix == ".tif":
        tiff.file_writer(str(path), {"data": values, "axes": axes, "metadata": {}}, photometric=1)
        return
    signal = {
        "data": values,
        "axes": axes,
        "metadata": {"General": {"title": "cube"}, "Signal": {"signal_type": ""}},
        "original_metadata": {},
        "learning_results": {},
        "attributes": {"_lazy": False, "ragged": False},
        "models": {},
        "package_info": {"package": "hyperspy", "package_version": "2.0"},
        "tmp_parameters": {},
    }
    hspy.file_writer(str(path), signal, show_progressbar=False)


def save_tifffile(path: Path) -> None:
    """Write pages with a description."""
    import tifffile

    about: dict[str, Any] = {"axes": "CYX", "wavelengths_nm": list(NM)}
    if path.name.endswith(".ome.tif"):
        units = ["nm"] * len(NM)
        channel = {"EmissionWavelength": list(NM), "EmissionWavelengthUnit": units}
        about = {"axes": "CYX", "Channel": channel}
    tifffile.imwrite(path, CUBE, photometric="minisblack", metadata=about)


SAVED: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "xarray": (save_xarray, (".nc", ".zarr")),
    "spectral": (save_spectral, (".hdr",)),
    "rasterio": (save_rasterio, (".tif", ".hdr")),
    "rsciio": (save_rsciio, (".hspy",)),
    "tifffile": (save_tifffile, (".tif", ".ome.tif")),
}


def try_opening(library: str, suffix: str) -> str:
    """Say what of a cube that cassi wrote a library finds: "cube, nm", "cube" or ""."""
    open_it, suffixes = OPENED[library]
    if suffix not in suffixes:
        return ""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder, f"a{suffix}")
        io.write_cube(path, CUBE, None if suffix == ".npy" else NM)
        cube, nm = open_it(path)
        return _compare(np.asarray(cube), nm)


def try_saving(library: str, suffix: str) -> str:
    """Say what of a cube that a library wrote cassi finds: "cube, nm", "cube" or ""."""
    save_it, suffixes = SAVED[library]
    if suffix not in suffixes:
        return ""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder, f"a{suffix}")
        save_it(path)
        loaded = io.load_cube(path)
        return _compare(loaded.data[0].numpy(), loaded.wavelengths)


def _compare(cube: np.ndarray, nm: Any) -> str:
    if not np.array_equal(cube, CUBE):
        raise ValueError(f"expected the values of the cube, got others of {cube.shape}")
    if nm is None:
        return "cube"
    if [float(value) for value in nm] != list(NM):
        raise ValueError(f"expected {NM} nm, got {nm}")
    return "cube, nm"


def is_installed(library: str) -> bool:
    """Tell whether a library is there."""
    return importlib.util.find_spec(library) is not None


def make_table(page: str = "") -> str:
    """Return the table; columns of libraries that are not installed are those of the page."""
    earlier = _columns(page)
    columns = {
        library: [_cell(library, suffix) for suffix in FORMATS]
        if is_installed(library)
        else earlier.get(title, ["?"] * len(FORMATS))
        for library, title in LIBRARIES.items()
    }
    lines = ["| format | " + " | ".join(LIBRARIES.values()) + " |", "|---" * 6 + "|"]
    for number, suffix in enumerate(FORMATS):
        cells = [columns[library][number] for library in LIBRARIES]
        lines.append(f"| `{suffix}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(library: str, suffix: str) -> str:
    opened, saved = try_opening(library, suffix), try_saving(library, suffix)
    cells = [f"opens {opened}"] * bool(opened) + [f"is read: {saved}"] * bool(saved)
    return "; ".join(cells) or "–"


def _columns(page: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    head = rows[0] if rows else []
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(head)}


class _quiet(warnings.catch_warnings):
    """Without the remarks of the libraries on files that are none of their own."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("rasterio").setLevel(logging.CRITICAL)


def main(arguments: list[str] | None = None) -> None:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    page = parser.parse_args(arguments).page
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(FIRST)
    table, after = rest.split(LAST)
    page.write_text(f"{before}{FIRST}\n\n{make_table(table)}\n\n{LAST}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
