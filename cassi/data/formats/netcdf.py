"""Read netCDF files of version 4, which are HDF5 files, and of the classic format."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import SIGNATURE, read_hdf5
from cassi.data.formats.labelled import axis_letters, unpack


@contextmanager
def read_netcdf(path: Path) -> Iterator[Source]:
    """Open a netCDF file and yield its variables; the name of a variable is its path."""
    with path.open("rb") as file:
        first_bytes = file.read(8)
    if first_bytes == SIGNATURE:
        with read_hdf5(path) as source:
            yield source
        return
    if first_bytes[:3] != b"CDF":
        raise ValueError("it is no netCDF file")
    from scipy.io import netcdf_file

    # The file is mapped and only the requested variable is copied into memory, because in a hostile
    # file many variables may claim the same bytes.
    with path.open("rb") as stream, netcdf_file(stream, "r", mmap=True) as file:
        shapes, axes, units = {}, {}, {}
        for name, variable in file.variables.items():
            if variable.data.dtype.kind in "biuf" and variable.data.size:
                shapes[name] = variable.data.shape
                axes[name] = axis_letters(variable.dimensions)
                units[name] = as_text(variable._attributes.get("units", ""))
        # scipy can close the map only if no variable refers to it any more.
        variable = None

        yield Source(
            shapes,
            lambda name: unpack(
                file.variables[name].data.copy(), file.variables[name]._attributes, axes[name]
            ),
            axes=axes,
            units=units,
        )
