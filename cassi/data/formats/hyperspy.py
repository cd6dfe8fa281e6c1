"""HyperSpy's own HDF5 files: axes have names, units and, where they are not even, values."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import describe, is_elsewhere, list_items, read_item

_LENGTHS = {"nm", "um", "µm", "μm", "m", "Å"}
# The oldest version of the format that has axes with values of their own.
_VERSION = "3.1"


@contextmanager
def read_hyperspy(path: Path) -> Iterator[Source]:
    """Signals by name; the axis in nm (µm, m), or the only one of the signal, is the bands'."""
    import h5py

    with h5py.File(path, "r") as file:
        items = list_items(file)
        if not isinstance(items.get("Experiments"), h5py.Group):
            raise ValueError("it has no group Experiments; expected a file that HyperSpy saved")
        shapes, axes, wavelengths = {}, {}, None
        for place, item in items.items():
            name = place.removeprefix("Experiments/").removesuffix("/data")
            if not isinstance(item, h5py.Dataset) or place != f"Experiments/{name}/data":
                continue
            if is_elsewhere(item) or item.dtype.kind not in "biufc" or not item.size:
                continue
            places = [f"Experiments/{name}/axis-{i}" for i in range(item.ndim)]
            about = [items[axis].attrs if axis in items else {} for axis in places]
            shapes[name], axes[name] = item.shape, _letters(about)
            if "C" in axes[name] and wavelengths is None:
                band = axes[name].index("C")
                unit = as_text(about[band].get("units", ""))
                if _is_wavelength(about[band]) or unit in _LENGTHS:
                    listed = items.get(f"{places[band]}/axis")
                    wavelengths = (
                        (_even(about[band]) if listed is None else read_item(listed)),
                        unit,
                    )
        yield Source(
            shapes,
            lambda name: read_item(items[f"Experiments/{name}/data"]),
            axes=axes,
            wavelengths=wavelengths,
        )


def _is_wavelength(axis: Mapping[str, Any]) -> bool:
    return "wavelength" in as_text(axis.get("name", "")).lower()


def _even(axis: Mapping[str, Any]) -> np.ndarray:
    steps = np.arange(int(axis.get("size", 0)))
    return float(axis.get("offset", 0)) + float(axis.get("scale", 0)) * steps


def _letters(axes: list[Mapping[str, Any]]) -> str:
    if len(axes) != 3:
        return "HW" if len(axes) == 2 else ""
    named = [i for i, axis in enumerate(axes) if _is_wavelength(axis)]
    signal = [i for i, axis in enumerate(axes) if not axis.get("navigate", True)]
    bands = named if len(named) == 1 else signal
    return "HW"[: bands[0]] + "C" + "HW"[bands[0] :] if len(bands) == 1 else ""


def write_hyperspy(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write a signal of spectra (H, W, C), compressed, the wavelengths (nm) as its last axis."""
    import h5py

    bands, height, width = cube.shape
    spectral: dict[str, object] = {"name": "Wavelength", "units": "nm"}
    if wavelengths is None:
        spectral = {"name": "Band", "units": "", "scale": 1.0, "offset": 1.0}
    elif bands > 1:
        even = {"scale": wavelengths[1] - wavelengths[0], "offset": wavelengths[0], "size": bands}
        if tuple(_even(even)) == wavelengths:
            spectral |= even
    pixels = {"units": "px", "scale": 1.0, "offset": 0.0, "navigate": True}
    axes = [
        {"name": "y", **pixels, "size": height},
        {"name": "x", **pixels, "size": width},
        {**spectral, "size": bands, "navigate": False},
    ]
    with h5py.File(path, "w") as file:
        describe(file, {"file_format": "HyperSpy", "file_format_version": _VERSION})
        signal = file.create_group("Experiments/cube")
        values = np.ascontiguousarray(cube.transpose(1, 2, 0))
        signal.create_dataset("data", data=values, compression="gzip")
        for i, axis in enumerate(axes):
            group = signal.create_group(f"axis-{i}")
            kind = "UniformDataAxis" if "scale" in axis else "DataAxis"
            describe(group, {"_type": kind, "is_binned": False, **axis})
            if kind == "DataAxis":
                group.create_dataset("axis", data=wavelengths)
        describe(signal.create_group("metadata/General"), {"title": "cube"})
        describe(signal.create_group("metadata/Signal"), {"signal_type": ""})
        for name in ("original_metadata", "learning_results", "attributes"):
            signal.create_group(name)
        describe(signal["attributes"], {"_lazy": False, "ragged": False})
