"""MATLAB files: up to v7 through scipy, v7.3 (HDF5 files) through h5py."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cassi.data.formats import Source, as_text
from cassi.data.formats.hdf5 import SIGNATURE, read_hdf5

_OTHERS = {
    "cell": "a cell array",
    "struct": "a struct array",
    "object": "an object",
    "char": "a char array",
    "sparse": "a sparse array, save full(…) of it",
    "function": "a function",
    "opaque": "an object or a string",
}
"""What is not read, by the class that scipy names."""


@contextmanager
def read_mat(path: Path) -> Iterator[Source]:
    """Arrays by name; of structs, which are not read, the message names the fields."""
    with path.open("rb") as file:
        head = file.read(520)
    matlab73 = b"MATLAB 7.3" in head[:116] or head[512:] == SIGNATURE
    if matlab73 or head.startswith(SIGNATURE):
        with read_hdf5(path, matlab=matlab73) as source:
            yield source
        return

    if 0 in head[:4]:  # scipy would take it for version 4, which has no signature
        raise ValueError("no MATLAB file of version 5 to 7.3; save it again with -v7")
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import varmats_from_mat

    def read(name: str) -> np.ndarray:
        return np.asarray(loadmat(parts[name], variable_names=[name])[name])

    shapes, others, axes = {}, {}, {}
    with path.open("rb") as file:
        parts = {name: part for name, part in varmats_from_mat(file) if name}
    for name, part in parts.items():
        try:
            (_, shape, kind), *_ = whosmat(part)
        except TypeError:  # an object or a string has no shape
            shape, kind = (), "opaque"
        if kind in _OTHERS:
            others[name] = _OTHERS[kind]
        else:
            shapes[name] = shape
    if not shapes:  # so the message names the fields, one of which may be the cube
        for name in (name for name, words in others.items() if words == _OTHERS["struct"]):
            others[name] += f" of {', '.join((read(name).dtype.names or ())[:8])}"
    if "cube" in shapes and others.get("axes") == _OTHERS["char"]:
        axes["cube"] = as_text(read("axes"))
    yield Source(shapes, read, others, axes)


def write_mat(path: Path, cube: np.ndarray, wavelengths: tuple[float, ...] | None) -> None:
    """Write `cube` (H, W, C), its `axes` and `wavelengths` (nm), compressed, as version 5."""
    from scipy.io import savemat

    content: dict[str, object] = {"cube": cube.transpose(1, 2, 0), "axes": "HWC"}
    if wavelengths is not None:
        content["wavelengths"] = np.asarray(wavelengths)
    savemat(str(path), content, appendmat=False, do_compression=True)
