"""HDF5 files, those of MATLAB 7.3 among them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.data.formats import Source, as_text, check_expansion, check_size, may_exhaust
from cassi.data.formats.labelled import PACKING, unpack

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""How such a file begins."""
DEEPEST = 32
"""Levels of groups in groups that are read."""
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
"""What data may be stored by, by HDF5's number."""
_OTHERS = {
    4: "szip",
    5: "nbit",
    6: "scaleoffset",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32015: "zstd",
    32026: "blosc2",
}


def own(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """Return an item of a group that is in this very file; None where it is not, or is a link.

    Soft links may lead through external ones, into any file of the machine.
    """
    import h5py

    link = group.get(name, getlink=True)
    return group[name] if isinstance(link, h5py.HardLink) else None


@contextmanager
def read_hdf5(path: Path, *, matlab: bool = False) -> Iterator[Source]:
    """HDF5 files; data sets inside groups are named by their path.

    MATLAB writes its column-major arrays as they lie in memory, so HDF5 sees the axes reversed;
    they are turned back where the file or the data set says that MATLAB wrote it.
    """
    import h5py

    shapes, others, axes = {}, {}, {}
    wavelengths, turned = None, set()

    def attribute(item: h5py.Dataset, name: str) -> Any:
        # Text of variable length lies in a heap; in a damaged one HDF5 2.0 was seen to loop.
        if name not in item.attrs or item.attrs.get_id(name).dtype.kind == "O":
            return None
        return item.attrs[name]

    with h5py.File(path, "r") as file:

        def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
            nonlocal wavelengths
            if name.count("/") > DEEPEST:  # each is opened by its whole path
                raise ValueError(f"groups lie in groups more than {DEEPEST} deep")
            if not isinstance(item, h5py.Dataset) or name.startswith("#"):
                return
            kind = as_text(attribute(item, "MATLAB_class") or "")
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
                axes[name] = as_text(attribute(item, "axes") or "")
                if np.size(values := attribute(item, "wavelengths")) > 1:
                    wavelengths = (values, "")

        file.visititems(visit)

        def read(name: str) -> np.ndarray:
            item = file[name]
            check_hdf5(item)
            array = unpack(np.asarray(item[()]), {name: attribute(item, name) for name in PACKING})
            return array.T if name in turned else array

        yield Source(shapes, read, others, axes, wavelengths)


def check_hdf5(item: h5py.Dataset) -> None:
    """Refuse a data set, or a chunk of one, that claims more than the file holds for it.

    So are data that lie in other files, and filters that are not of a list.
    """
    if item.is_virtual or item.external:
        raise ValueError(f"{item.name} is kept in other files, which are not read")
    made = item.id.get_create_plist()
    for number in range(made.get_nfilters()):
        code = made.get_filter(number)[0]
        if code not in _FILTERS:
            stated = made.get_filter(number)[3].decode("latin1").split(";")[0].strip()
            known, name = ", ".join(_FILTERS.values()), stated or _OTHERS.get(code, str(code))
            raise ValueError(
                f"{item.name} is stored by the filter {name}, expected {known}; write it again "
                "with h5repack -f GZIP=4 IN OUT"
            )
    stored = item.id.get_storage_size()
    check_size(item.nbytes, stored, compressed=item.chunks is not None)
    if item.chunks is None:
        return
    expected = math.prod(
        -(-size // chunk) for size, chunk in zip(item.shape, item.chunks, strict=True)
    )
    if (written := item.id.get_num_chunks()) < expected:
        raise ValueError(
            f"{item.name}: {expected - written} of its {expected} chunks were never written"
        )
    size = math.prod(item.chunks) * item.dtype.itemsize
    check_size(size, stored, compressed=True)
    if item.compression == "gzip":
        parts: list[h5py.h5d.StoreInfo] = []
        item.id.chunk_iter(parts.append)
        for part in parts:
            # The check sum of a chunk is behind its deflated bytes.
            check_size(part.size, size + size // 100 + 64)
            if may_exhaust(part.size):
                check_expansion(item.id.read_direct_chunk(part.chunk_offset)[1], size)


def write_hdf5(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube` and `wavelengths` (nm), compressed."""
    import h5py

    with h5py.File(path, "w") as file:
        item = file.create_dataset("cube", data=cube, compression="gzip")
        item.attrs["axes"] = np.bytes_("CHW")
        if wavelengths is not None:
            file.create_dataset("wavelengths", data=np.asarray(wavelengths))
            file["wavelengths"].attrs["units"] = np.bytes_("nm")
