"""HyperSpy's own HDF5 files: axes have names, units and, where they are not even, values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import check_hdf5, own

if TYPE_CHECKING:
    import h5py

_LENGTHS = {"nm", "um", "µm", "μm", "m", "Å"}
# The oldest version of the format that has axes with values of their own.
_VERSION = "3.1"
_LARGEST_AXIS = 1 << 16


@contextmanager
def read_hyperspy(path: Path) -> Iterator[Source]:
    """Signals by name; the axis in nm (µm, m), or the only one of the signal, is the bands'."""
    import h5py

    with h5py.File(path, "r") as file:
        experiments = own(file, "Experiments")
        if not isinstance(experiments, h5py.Group):
            raise ValueError("it has no group Experiments; expected a file that HyperSpy saved")
        groups = {name: own(experiments, name) for name in experiments}
        groups = {name: item for name, item in groups.items() if isinstance(item, h5py.Group)}
        found = {name: own(group, "data") for name, group in groups.items()}
        items = {name: item for name, item in found.items() if isinstance(item, h5py.Dataset)}
        shapes, axes, wavelengths = {}, {}, None
        for name, item in items.items():
            if item.is_virtual or item.external or item.dtype.kind not in "biufc" or not item.size:
                continue
            shapes[name] = item.shape
            about = [_axis(own(groups[name], f"axis-{i}")) for i in range(item.ndim)]
            axes[name] = _letters(about)
            if "C" in axes[name] and wavelengths is None:
                axis = about[axes[name].index("C")]
                if "wavelength" in axis.name.lower() or axis.units in _LENGTHS:
                    wavelengths = _values(axis.group), axis.units

        def read(name: str) -> np.ndarray:
            check_hdf5(items[name])
            return np.asarray(items[name][()])

        yield Source(shapes, read, axes=axes, wavelengths=wavelengths)


class _Axis(NamedTuple):
    name: str
    units: str
    navigate: bool
    group: h5py.Group | None


def _axis(group: h5py.Group | None) -> _Axis:
    if group is None:
        return _Axis("", "", True, None)
    name, units = (as_text(group.attrs.get(key, "")) for key in ("name", "units"))
    return _Axis(name, units, bool(group.attrs.get("navigate", True)), group)


def _letters(axes: list[_Axis]) -> str:
    if not 2 <= len(axes) <= 3:
        return ""
    if len(axes) == 2:
        return "HW"
    told = [i for i, axis in enumerate(axes) if "wavelength" in axis.name.lower()]
    signal = [i for i, axis in enumerate(axes) if not axis.navigate]
    bands = told if len(told) == 1 else signal
    if len(bands) != 1:
        return ""
    return "HW"[: bands[0]] + "C" + "HW"[bands[0] :]


def _values(group: h5py.Group) -> np.ndarray:
    import h5py

    given = own(group, "axis")
    if isinstance(given, h5py.Dataset) and given.size <= _LARGEST_AXIS:
        check_hdf5(given)
        return np.asarray(given[()])
    numbers = [
        float(group.attrs.get(key, missing)) for key, missing in (("offset", 0), ("scale", 0))
    ]
    size = int(group.attrs.get("size", 0))
    return numbers[0] + numbers[1] * np.arange(min(size, _LARGEST_AXIS))


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


def _fill(group: h5py.Group, values: dict[str, object]) -> None:
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            group.create_dataset(name, data=value)
        else:
            group.attrs[name] = np.bytes_(value) if isinstance(value, str) else value
