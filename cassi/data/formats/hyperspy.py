"""HyperSpy's own HDF5 files: axes have names, units and, where they are not even, values."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import list_items, read_item

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
        signals = {}
        for place, item in items.items():
            parts = place.split("/")
            if isinstance(item, h5py.Dataset) and parts[::2] == ["Experiments", "data"]:
                signals[parts[1]] = item
        shapes, axes, wavelengths = {}, {}, None
        for name, item in signals.items():
            if item.is_virtual or item.external or item.dtype.kind not in "biufc" or not item.size:
                continue
            shapes[name] = item.shape
            about = [_axis(items, f"Experiments/{name}/axis-{i}") for i in range(item.ndim)]
            axes[name] = _letters(about)
            if "C" in axes[name] and wavelengths is None:
                axis = about[axes[name].index("C")]
                if "wavelength" in axis["name"].lower() or axis["units"] in _LENGTHS:
                    wavelengths = axis["values"](), axis["units"]

        def read(name: str) -> np.ndarray:
            return read_item(signals[name])

        yield Source(shapes, read, axes=axes, wavelengths=wavelengths)


def _axis(items: dict[str, Any], place: str) -> dict[str, Any]:
    about = items[place].attrs if place in items else {}

    def values() -> np.ndarray:
        if f"{place}/axis" in items:
            return read_item(items[f"{place}/axis"])
        steps = np.arange(int(about.get("size", 0)))
        return float(about.get("offset", 0)) + float(about.get("scale", 0)) * steps

    text = {key: as_text(about.get(key, "")) for key in ("name", "units")}
    return {**text, "navigate": bool(about.get("navigate", True)), "values": values}


def _letters(axes: list[dict[str, Any]]) -> str:
    if not 2 <= len(axes) <= 3:
        return ""
    if len(axes) == 2:
        return "HW"
    told = [i for i, axis in enumerate(axes) if "wavelength" in axis["name"].lower()]
    signal = [i for i, axis in enumerate(axes) if not axis["navigate"]]
    bands = told if len(told) == 1 else signal
    if len(bands) != 1:
        return ""
    return "HW"[: bands[0]] + "C" + "HW"[bands[0] :]


def write_hyperspy(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write a signal of spectra (H, W, C), compressed, the wavelengths (nm) as its last axis."""
    import h5py

    bands, height, width = cube.shape
    with h5py.File(path, "w") as file:
        file.attrs["file_format"] = np.bytes_("HyperSpy")
        file.attrs["file_format_version"] = np.bytes_(_VERSION)
        signal = file.create_group("Experiments/cube")
        values = np.ascontiguousarray(cube.transpose(1, 2, 0))
        signal.create_dataset("data", data=values, compression="gzip")
        spectral: dict[str, object] = {"name": "Wavelength", "units": "nm"}
        if wavelengths is None:
            spectral = {"name": "Band", "units": "", "scale": 1.0, "offset": 1.0}
        elif (even := _even(wavelengths)) is not None:
            spectral |= {"scale": even, "offset": wavelengths[0]}
        else:
            spectral |= {"axis": np.asarray(wavelengths)}
        pixels = {"units": "px", "scale": 1.0, "offset": 0.0}
        rows = {"name": "y", **pixels, "size": height, "navigate": True}
        columns = {"name": "x", **pixels, "size": width, "navigate": True}
        for i, axis in enumerate((rows, columns, spectral | {"size": bands, "navigate": False})):
            kind = "DataAxis" if "axis" in axis else "UniformDataAxis"
            _fill(signal.create_group(f"axis-{i}"), {"_type": kind, "is_binned": False, **axis})
        metadata = signal.create_group("metadata")
        _fill(metadata.create_group("General"), {"title": "cube"})
        _fill(metadata.create_group("Signal"), {"signal_type": ""})
        for name in ("original_metadata", "learning_results", "attributes"):
            signal.create_group(name)
        _fill(signal["attributes"], {"_lazy": False, "ragged": False})


def _even(wavelengths: tuple[float, ...]) -> float | None:
    """Return the step where first + step·i are the very wavelengths, else None."""
    if len(wavelengths) < 2:
        return None
    step = wavelengths[1] - wavelengths[0]
    exact = wavelengths[0] + step * np.arange(len(wavelengths)) == np.asarray(wavelengths)
    return step if exact.all() else None


def _fill(group: Any, values: dict[str, object]) -> None:
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            group.create_dataset(name, data=value)
        else:
            group.attrs[name] = np.bytes_(value) if isinstance(value, str) else value
