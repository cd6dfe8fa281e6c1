"""Read and write the HDF5 files of HyperSpy, in which each axis has a name, a unit and values."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import is_elsewhere, list_items, read_item, write_attributes

_LENGTH_UNITS = {"nm", "um", "µm", "μm", "m", "Å"}
# The oldest version of the format that has axes with listed values.
_FORMAT_VERSION = "3.1"


@contextmanager
def read_hyperspy(path: Path) -> Iterator[Source]:
    """Open a file and yield its signals by name.

    The axis of the bands is the one named wavelength, or the only signal axis.
    """
    import h5py

    with h5py.File(path, "r") as file:
        items = list_items(file)
        if not isinstance(items.get("Experiments"), h5py.Group):
            raise ValueError("it has no group Experiments; expected a file that HyperSpy saved")
        shapes, axes, wavelengths = {}, {}, None
        for path_in_file, item in items.items():
            name = path_in_file.removeprefix("Experiments/").removesuffix("/data")
            if not isinstance(item, h5py.Dataset) or path_in_file != f"Experiments/{name}/data":
                continue
            if is_elsewhere(item) or item.dtype.kind not in "biufc" or not item.size:
                continue
            axis_paths = [f"Experiments/{name}/axis-{i}" for i in range(item.ndim)]
            axis_attributes = [items[axis].attrs if axis in items else {} for axis in axis_paths]
            shapes[name], axes[name] = item.shape, _find_axes(axis_attributes)
            if "C" in axes[name] and wavelengths is None:
                band = axes[name].index("C")
                unit = as_text(axis_attributes[band].get("units", ""))
                if _is_wavelength(axis_attributes[band]) or unit in _LENGTH_UNITS:
                    listed_values = items.get(f"{axis_paths[band]}/axis")
                    if listed_values is None:
                        wavelengths = _compute_axis_values(axis_attributes[band]), unit
                    else:
                        wavelengths = read_item(listed_values), unit
        yield Source(
            shapes,
            lambda name: read_item(items[f"Experiments/{name}/data"]),
            axes=axes,
            wavelengths=wavelengths,
        )


def _is_wavelength(axis: Mapping[str, Any]) -> bool:
    return "wavelength" in as_text(axis.get("name", "")).lower()


def _compute_axis_values(axis: Mapping[str, Any]) -> np.ndarray:
    steps = np.arange(int(axis.get("size", 0)))
    return float(axis.get("offset", 0)) + float(axis.get("scale", 0)) * steps


def _find_axes(axes: list[Mapping[str, Any]]) -> str:
    """Return the letters of the axes; "" if the axis of the bands is not clear."""
    if len(axes) != 3:
        return "HW" if len(axes) == 2 else ""
    named_axes = [i for i, axis in enumerate(axes) if _is_wavelength(axis)]
    signal_axes = [i for i, axis in enumerate(axes) if not axis.get("navigate", True)]
    band_axes = named_axes if len(named_axes) == 1 else signal_axes
    return "HW"[: band_axes[0]] + "C" + "HW"[band_axes[0] :] if len(band_axes) == 1 else ""


def write_hyperspy(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write a signal of spectra (H, W, C), compressed, with the wavelengths (nm) as last axis."""
    import h5py

    bands, height, width = cube.shape
    spectral: dict[str, object] = {"name": "Wavelength", "units": "nm"}
    if wavelengths is None:
        spectral = {"name": "Band", "units": "", "scale": 1.0, "offset": 1.0}
    elif bands > 1:
        uniform_axis = {
            "scale": wavelengths[1] - wavelengths[0],
            "offset": wavelengths[0],
            "size": bands,
        }
        # An axis is written as uniform only if its computed values have the same bits.
        if tuple(_compute_axis_values(uniform_axis)) == wavelengths:
            spectral |= uniform_axis
    pixels = {"units": "px", "scale": 1.0, "offset": 0.0, "navigate": True}
    axes = [
        {"name": "y", **pixels, "size": height},
        {"name": "x", **pixels, "size": width},
        {**spectral, "size": bands, "navigate": False},
    ]
    with h5py.File(path, "w") as file:
        write_attributes(file, {"file_format": "HyperSpy", "file_format_version": _FORMAT_VERSION})
        signal = file.create_group("Experiments/cube")
        values = np.ascontiguousarray(cube.transpose(1, 2, 0))
        signal.create_dataset("data", data=values, compression="gzip")
        for i, axis in enumerate(axes):
            group = signal.create_group(f"axis-{i}")
            kind = "UniformDataAxis" if "scale" in axis else "DataAxis"
            write_attributes(group, {"_type": kind, "is_binned": False, **axis})
            if kind == "DataAxis":
                group.create_dataset("axis", data=wavelengths)
        write_attributes(signal.create_group("metadata/General"), {"title": "cube"})
        write_attributes(signal.create_group("metadata/Signal"), {"signal_type": ""})
        for name in ("original_metadata", "learning_results", "attributes"):
            signal.create_group(name)
        write_attributes(signal["attributes"], {"_lazy": False, "ragged": False})
