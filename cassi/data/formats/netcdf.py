"""NetCDF: version 4, which are HDF5 files, and the classic format."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import SIGNATURE, read_hdf5
from cassi.data.formats.labelled import letters, unpack


@contextmanager
def read_netcdf(path: Path) -> Iterator[Source]:
    """Variables inside groups are named by their path."""
    with path.open("rb") as file:
        head = file.read(8)
    if head == SIGNATURE:
        with read_hdf5(path) as source:
            yield source
        return
    if head[:3] != b"CDF":
        raise ValueError("it is no netCDF file")
    from scipy.io import netcdf_file

    # Mapped: many variables may claim the same bytes, and only the one that is asked for is copied.
    with path.open("rb") as stream, netcdf_file(stream, "r", mmap=True) as file:
        shapes, axes, units = {}, {}, {}
        for name, item in file.variables.items():
            if item.data.dtype.kind in "biuf" and item.data.size:
                shapes[name] = item.data.shape
                axes[name] = letters(item.dimensions)
                units[name] = as_text(item._attributes.get("units", ""))
        item = None  # the map is closed once nothing refers to it

        yield Source(
            shapes,
            lambda name: unpack(
                file.variables[name].data.copy(), file.variables[name]._attributes, axes[name]
            ),
            axes=axes,
            units=units,
        )
