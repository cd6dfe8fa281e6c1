"""The table of docs/guides/files.md: which library opens what cassi writes, and the other way."""

import logging
from pathlib import Path

import numpy as np
import pytest

from cassi.data import io

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/files.md"
NM = (453.5, 457.5, 462.0, 466.125, 471.3000000000001)
CUBE = np.random.default_rng(0).random((5, 7, 4), dtype=np.float32)


def open_xarray(path):
    import xarray

    engine = {".zarr": "zarr"}.get(path.suffix, "h5netcdf")
    options = {"phony_dims": "sort"} if path.suffix == ".h5" else {}
    with xarray.open_dataset(path, engine=engine, **options) as data:
        if path.suffix == ".h5":  # dimensions have no names
            return data["cube"].values, data["wavelengths"].values
        return data["cube"].transpose("wavelength", "y", "x").values, data["wavelength"].values


def open_spectral(path):
    from spectral.io import envi

    image = envi.open(str(path))
    return np.asarray(image.load()).transpose(2, 0, 1), image.bands.centers


def open_rasterio(path):
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
    return cube, [float(tag["wavelength"]) for tag in tags if "wavelength" in tag] or None


def open_rsciio(path):
    from rsciio import hspy, tiff

    (signal,) = (hspy if path.suffix == ".hspy" else tiff).file_reader(str(path))
    for number, axis in enumerate(signal["axes"]):
        if axis.get("units") == "nm":
            uniform_values = axis.get("offset", 0) + axis.get("scale", 0) * np.arange(axis["size"])
            return np.moveaxis(signal["data"], number, 0), axis.get("axis", uniform_values)
    return signal["data"], None


def open_tifffile(path):
    import tifffile

    with tifffile.TiffFile(path) as file:
        if file.ome_metadata is None:
            return file.asarray(), (file.shaped_metadata or ({},))[0]["wavelengths_nm"]
        metadata = tifffile.xml2dict(file.ome_metadata)["OME"]["Image"]["Pixels"]["Channel"]
        return file.asarray(), [channel["EmissionWavelength"] for channel in metadata]


def save_xarray(path):
    import xarray

    array = xarray.DataArray(CUBE, dims=("wavelength", "y", "x"), name="cube")
    data = array.assign_coords(wavelength=("wavelength", list(NM), {"units": "nm"})).to_dataset()
    data.to_zarr(path) if path.suffix == ".zarr" else data.to_netcdf(path, engine="h5netcdf")


def save_spectral(path):
    from spectral.io import envi

    metadata = {"wavelength": list(NM), "wavelength units": "Nanometers"}
    envi.save_image(str(path), CUBE.transpose(1, 2, 0), metadata=metadata, interleave="bip")


def save_rasterio(path):
    import rasterio

    bands, height, width = CUBE.shape
    size = {"width": width, "height": height, "count": bands, "dtype": "float32"}
    driver, suffix = ("ENVI", ".img") if path.suffix == ".hdr" else ("GTiff", path.suffix)
    with rasterio.open(path.with_suffix(suffix), "w", driver=driver, **size) as image:
        image.write(CUBE)


def save_rsciio(path):
    """As HyperSpy does, spectra of pixels."""
    from rsciio import hspy

    values = np.ascontiguousarray(CUBE.transpose(1, 2, 0))
    axes = [
        {"name": name, "units": "px", "navigate": True, "size": size, "scale": 1.0, "offset": 0.0}
        for name, size in zip("yx", values.shape, strict=False)
    ]
    axes.append({"name": "Wavelength", "units": "nm", "navigate": False, "axis": np.asarray(NM)})
    signal = {
        "data": values,
        "axes": axes,
        "metadata": {"General": {"title": "cube"}, "Signal": {"signal_type": ""}},
        **{name: {} for name in ("original_metadata", "learning_results", "models")},
        "tmp_parameters": {},
        "attributes": {"_lazy": False, "ragged": False},
        "package_info": {"package": "hyperspy", "package_version": "2.0"},
    }
    hspy.file_writer(str(path), signal, show_progressbar=False)


def save_tifffile(path):
    import tifffile

    metadata = {"axes": "CYX", "wavelengths_nm": list(NM)}
    if path.name.endswith(".ome.tif"):
        units = ["nm"] * len(NM)
        channel = {"EmissionWavelength": list(NM), "EmissionWavelengthUnit": units}
        metadata = {"axes": "CYX", "Channel": channel}
    tifffile.imwrite(path, CUBE, photometric="minisblack", metadata=metadata)


LIBRARIES = {
    "xarray": ("xarray", open_xarray, save_xarray),
    "Spectral Python": ("spectral", open_spectral, save_spectral),
    "GDAL (rasterio)": ("rasterio", open_rasterio, save_rasterio),
    "HyperSpy (RosettaSciIO)": ("rsciio", open_rsciio, save_rsciio),
    "tifffile": ("tifffile", open_tifffile, save_tifffile),
}


def cells():
    """Yield suffix, column and text of each cell of the table that is not empty."""
    text = PAGE.read_text(encoding="utf-8").partition("| format | ")[2].partition("\n\n")[0]
    (head, _, *rows) = (line.strip("| ").split(" | ") for line in f"| {text}".splitlines())
    for suffix, *descriptions in rows:
        for column, description in zip(head, descriptions, strict=True):
            if description != "–":
                yield suffix.strip("`"), column, description


def describe_array(cube, nm):
    assert np.array_equal(cube, CUBE)
    assert nm is None or [float(value) for value in nm] == list(NM)
    return "cube" if nm is None else "cube, nm"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("suffix", "column", "description"), list(cells()))
def test_a_library_finds_what_the_page_says(suffix, column, description, tmp_path):
    package, open_it, save_it = LIBRARIES[column]
    pytest.importorskip(package)
    logging.getLogger("rasterio").setLevel(logging.CRITICAL)
    opens, _, is_read = description.partition("; is read: ")
    path = tmp_path / f"a{suffix}"
    io.write_cube(path, CUBE, NM)
    assert f"opens {describe_array(*open_it(path))}" == opens
    if is_read:
        path = tmp_path / f"b{suffix}"
        save_it(path)
        loaded_cube = io.load_cube(path)
        assert describe_array(loaded_cube.data[0].numpy(), loaded_cube.wavelengths) == is_read


def test_the_page_has_all_formats_and_libraries():
    text, further_suffixes = PAGE.read_text(encoding="utf-8"), {".tiff", ".hdf5", ".ome.tiff"}
    assert all(f"\n| `{suffix}` |" in text for suffix in set(io.WRITE_SUFFIXES) - further_suffixes)
    assert {column for _, column, _ in cells()} == set(LIBRARIES)
