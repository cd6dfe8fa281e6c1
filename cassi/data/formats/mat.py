"""Read MATLAB files, up to v7 with scipy and v7.3 (HDF5 files) with h5py; write version 5."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import SIGNATURE, read_hdf5

# Description of items that are no numeric arrays, by the name that scipy gives their class.
_UNREADABLE_CLASSES = {
    "cell": "a cell array",
    "struct": "a struct array",
    "object": "an object",
    "char": "a char array",
    "sparse": "a sparse array, save full(…) of it",
    "function": "a function",
    "opaque": "an object or a string",
}


@contextmanager
def read_mat(path: Path) -> Iterator[Source]:
    """Open a file and yield its arrays by name.

    Structs are not read, but a message names their fields.
    """
    with path.open("rb") as file:
        first_bytes = file.read(520)
    is_version_73 = b"MATLAB 7.3" in first_bytes[:116] or first_bytes[512:] == SIGNATURE
    if is_version_73 or first_bytes.startswith(SIGNATURE):
        with read_hdf5(path, matlab=is_version_73) as source:
            yield source
        return

    # A file of version 4 has no signature. scipy takes any file with a zero among its first four
    # bytes for one of version 4.
    if 0 in first_bytes[:4]:
        raise ValueError("no MATLAB file of version 5 to 7.3; save it again with -v7")
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import varmats_from_mat

    def read(name: str) -> np.ndarray:
        return np.asarray(loadmat(contents[name], variable_names=[name])[name])

    shapes, other_items, axes = {}, {}, {}
    with path.open("rb") as file:
        contents = {name: content for name, content in varmats_from_mat(file) if name}
    for name, content in contents.items():
        try:
            (_, shape, kind), *_ = whosmat(content)
        except TypeError:  # an object or a string has no shape
            shape, kind = (), "opaque"
        if kind in _UNREADABLE_CLASSES:
            other_items[name] = _UNREADABLE_CLASSES[kind]
        else:
            shapes[name] = shape
    # If there is no array, the message names the fields of structs, because a field may be the
    # cube.
    if not shapes:
        structs = [n for n, kind in other_items.items() if kind == _UNREADABLE_CLASSES["struct"]]
        for name in structs:
            other_items[name] += f" of {', '.join((read(name).dtype.names or ())[:8])}"
    if "cube" in shapes and other_items.get("axes") == _UNREADABLE_CLASSES["char"]:
        axes["cube"] = as_text(read("axes"))
    yield Source(shapes, read, other_items, axes)


def write_mat(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube` (H, W, C), its `axes` and `wavelengths` (nm), compressed, as version 5."""
    from scipy.io import savemat

    content: dict[str, object] = {"cube": cube.transpose(1, 2, 0), "axes": "HWC"}
    if wavelengths is not None:
        content["wavelengths"] = np.asarray(wavelengths)
    savemat(str(path), content, appendmat=False, do_compression=True)
