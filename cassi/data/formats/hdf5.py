"""HDF5 files, those of MATLAB 7.3 among them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.data.formats import Source, as_text, check_size
from cassi.data.formats.labelled import unpack

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""How such a file begins."""
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""What data may be stored by, by HDF5's number."""


def list_items(file: Any) -> dict[str, Any]:
    """Return the groups and data sets of a file by path; no link is followed to another file."""
    items: dict[str, Any] = {}
    file.visititems(items.__setitem__)
    return items


@contextmanager
def read_hdf5(path: Path, *, matlab: bool = False) -> Iterator[Source]:
    """HDF5 files; data sets inside groups are named by their path.

    MATLAB writes its column-major arrays as they lie in memory, so HDF5 sees the axes reversed;
    they are turned back where the file or the data set says that MATLAB wrote it.
    """
    import h5py

    shapes, others, axes = {}, {}, {}
    wavelengths, turned = None, set()
    with h5py.File(path, "r") as file:
        items = list_items(file)
        for name, item in items.items():
            if not isinstance(item, h5py.Dataset) or name.startswith("#"):
                continue
            kind = as_text(item.attrs.get("MATLAB_class", ""))
            if matlab or kind:
                turned.add(name)
            if kind in {"char", "cell", "struct", "function_handle"}:
                others[name] = f"a {kind} array"
            elif item.dtype.names and set(item.dtype.names) == {"real", "imag"}:
                others[name] = "an array of complex numbers"
            elif item.dtype.kind not in "biufc" or "MATLAB_empty" in item.attrs or not item.size:
                others[name] = "empty" if item.dtype.kind in "biufc" else f"of type {item.dtype}"
            elif item.is_virtual or item.external:
                others[name] = "kept in other files"
            else:
                shapes[name] = item.shape[::-1] if name in turned else item.shape
                axes[name] = as_text(item.attrs.get("axes", ""))
                if np.size(values := item.attrs.get("wavelengths")) > 1:
                    wavelengths = (values, "")

        def read(name: str) -> np.ndarray:
            array = unpack(read_item(items[name]), items[name].attrs)
            return array.T if name in turned else array

        yield Source(shapes, read, others, axes, wavelengths)


def read_item(item: Any) -> np.ndarray:
    """Read a data set.

    Raises:
        ValueError: it is kept in other files or by a filter that is not of a list, or parts of it
            were never written.
    """
    if item.is_virtual or item.external:
        raise ValueError(f"{item.name} is kept in other files, which are not read")
    made = item.id.get_create_plist()
    for number in range(made.get_nfilters()):
        code, _, _, name = made.get_filter(number)
        if code not in _FILTERS:
            stated, known = name.decode("latin1") or str(code), ", ".join(_FILTERS.values())
            raise ValueError(
                f"{item.name} is stored by the filter {stated}, expected {known}; write it again "
                "with h5repack -f GZIP=4 IN OUT"
            )
    if item.chunks is None:
        check_size(item.nbytes, item.id.get_storage_size())
    else:
        counts = (-(-size // chunk) for size, chunk in zip(item.shape, item.chunks, strict=True))
        missing = (expected := math.prod(counts)) - item.id.get_num_chunks()
        if missing > 0:
            raise ValueError(f"{item.name}: {missing} of its {expected} chunks were never written")
    return np.asarray(item[()])


def write_hdf5(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube` and `wavelengths` (nm), compressed."""
    import h5py

    with h5py.File(path, "w") as file:
        item = file.create_dataset("cube", data=cube, compression="gzip")
        item.attrs["axes"] = np.bytes_("CHW")
        if wavelengths is not None:
            file.create_dataset("wavelengths", data=np.asarray(wavelengths))
            file["wavelengths"].attrs["units"] = np.bytes_("nm")
