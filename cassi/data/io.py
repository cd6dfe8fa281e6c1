"""Read cubes, masks and measurements from files; write cubes.

`docs/guides/files.md` describes the formats. Nothing in a file is unpickled or run. Every error is
one line, which says what was expected, what the file has, and what to do.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cassi.checks import check_readable, did_you_mean, printable
from cassi.data import sandboxed_reader
from cassi.data.atomic import atomic_path, atomic_paths
from cassi.data.formats import Writer, envi, hdf5, hyperspy, mat, numpy, planes, tiff, zarr
from cassi.data.formats.arrays import FOLDER_SUFFIXES, READERS
from cassi.data.wavelengths import checked_wavelengths, checked_widths, to_nanometres

PathLike = str | os.PathLike[str]

_LOSSY_SUFFIXES = (".jpg", ".jpeg")
_WRITERS: dict[str, Writer] = {
    **dict.fromkeys((".tif", ".tiff", ".ome.tif", ".ome.tiff"), tiff.write_tiff),
    ".mat": mat.write_mat,
    ".npz": numpy.write_npz,
    ".npy": numpy.write_npy,
    **dict.fromkeys((".h5", ".hdf5"), hdf5.write_hdf5),
    ".nc": hdf5.write_netcdf,
    ".zarr": zarr.write_zarr,
    ".hspy": hyperspy.write_hyperspy,
}
# Formats that can store the widths of bands.
_SUFFIXES_WITH_WIDTHS = (".hdr", ".nc", ".zarr")
READ_SUFFIXES = tuple(READERS)
WRITE_SUFFIXES = (*_WRITERS, ".hdr")


@dataclass(frozen=True)
class LoadedArray:
    """An array from a file, and how the file was read.

    Attributes:
        data: float32, contiguous; finite unless `load_measurement` got ``finite=False``. The shape
            depends on the function that loads it.
        wavelengths: One per band in nm, increasing; None if the file states none.
        path: The file.
        key: Name of the array in the file; None if the format has no names.
        axes: Order of the axes in the file, for example "HWC".
        note: One line for the user with key, axes, shapes, and every conversion of the values.
        counts: Whether the file holds integers and states no divisor for them.
        full_scale: The value in ``data`` that stands for the largest possible integer of the file;
            None if it is not known.
    """

    data: Tensor
    wavelengths: tuple[float, ...] | None
    path: Path
    key: str | None
    axes: str
    note: str
    counts: bool = False
    full_scale: float | None = None


def load_cube(
    path: PathLike, *, key: str | None = None, axes: str | None = None, bands: int | None = None
) -> LoadedArray:
    """Read a cube; ``data`` has shape (1, C, H, W), bands in order of increasing wavelength.

    Integers of TIFF and ENVI images are divided by the scale that the file states, else by the
    maximum of their type, which brings them to [0, 1]. Other values are taken as they are.

    Args:
        path: File with one of the suffixes in ``READ_SUFFIXES``, or a folder of images, one a band.
        key: Name of the array; by default a usual name, else the only array that fits.
        axes: Order of the axes in the file, such as "HWC". By default the order that the file
            states. If it states none, the only axis of length ``bands`` is taken for the bands. If
            there is no such axis, the shortest axis is.
        bands: Number of bands expected, a hint for the order of the axes.

    Raises:
        OSError: There is no such file, or it is a folder without images.
        ValueError: The suffix is unknown, the file is damaged, no array or several arrays fit, the
            order of the axes is not clear, or values are complex, not finite or no numbers.
    """
    return _load("cube", path, key, axes, bands)


def load_mask(
    path: PathLike, *, key: str | None = None, axes: str | None = None, bands: int | None = None
) -> LoadedArray:
    """Read a mask; arguments and exceptions are as in `load_cube`.

    ``data`` has shape (K, 1 or C, H, W). A file with two axes gives (1, 1, H, W). A file with three
    axes gives (1, C, H, W), or (K, 1, H, W) with ``axes="KHW"``, where K is the number of shots.
    Four axes are "KCHW". Integers of images are scaled as by `load_cube`, except masks of zeros and
    ones.
    """
    return _load("mask", path, key, axes, bands)


def load_measurement(
    path: PathLike,
    *,
    key: str | None = None,
    axes: str | None = None,
    finite: bool = True,
    counts: bool = False,
) -> LoadedArray:
    """Read a measurement; ``data`` has shape (1, K, H, W'), and there are no wavelengths.

    K is the number of shots, 1 for a file with two axes. In a file with three axes the shortest one
    is taken for the shots by default.

    Args:
        path: File with one of the suffixes in ``READ_SUFFIXES``.
        key: Name of the array.
        axes: Order of the axes in the file, such as "HWK".
        finite: Refuse values that are not finite. If False, the caller has to check the values by
            `check_finite`; bad pixels, for example, may have any value.
        counts: Take integers as they are, also in images and in files that state a scale.

    Raises:
        OSError: There is no such file.
        ValueError: As for `load_cube`.
    """
    return _load("measurement", path, key, axes, None, finite, counts)


def load_guide(path: PathLike) -> LoadedArray:
    """Read the picture of a guide; ``data`` has shape (1, G, H, W).

    A PNG may have three colours.
    """
    return _load("guide", path, None, None, 3)


def read_cube(path: PathLike, key: str | None = None, axes: str | None = None) -> Tensor:
    """Read a cube as a tensor.

    Args:
        path: file with one of the suffixes in ``READ_SUFFIXES``, or a folder of images, one a band.
        key: name of the array; by default a usual name, else the only array that fits.
        axes: order of the axes in the file, such as "HWC".

    Returns:
        Cube ``(1, C, H, W)``, float32, bands in order of increasing wavelength.

    Raises:
        OSError: the file cannot be read.
        ValueError: as for `load_cube`.
    """
    return load_cube(path, key=key, axes=axes).data


def read_mask(path: PathLike, key: str | None = None, axes: str | None = None) -> Tensor:
    """Read a mask as a tensor.

    Args:
        path: file with one of the suffixes in ``READ_SUFFIXES``.
        key: name of the array; by default a usual name, else the only array that fits.
        axes: order of the axes in the file, such as "HWC"; three axes may be shots, "KHW".

    Returns:
        Transmission ``(K, 1 or C, H, W)``, float32.

    Raises:
        OSError: the file cannot be read.
        ValueError: as for `load_cube`.
    """
    return load_mask(path, key=key, axes=axes).data


def read_measurement(path: PathLike, key: str | None = None, axes: str | None = None) -> Tensor:
    """Read a measurement as a tensor.

    Args:
        path: file with one of the suffixes in ``READ_SUFFIXES``.
        key: name of the array; by default a usual name, else the only array that fits.
        axes: order of the axes in the file, such as "HWK"; K are the shots.

    Returns:
        Measurement ``(1, K, H, W')``, float32.

    Raises:
        OSError: the file cannot be read.
        ValueError: as for `load_cube`.
    """
    return load_measurement(path, key=key, axes=axes).data


def write_cube(
    path: PathLike,
    cube: Tensor | np.ndarray,
    wavelengths: Sequence[float] | np.ndarray | Tensor | None = None,
    fwhm: Sequence[float] | np.ndarray | Tensor | None = None,
) -> None:
    """Write a cube as float32, in the format of the suffix. The file appears whole or not at all.

    Args:
        path: Suffix as in ``WRITE_SUFFIXES``. ENVI (``.hdr``) writes a ``.img`` file beside it.
        cube: Shape (C, H, W) or (1, C, H, W), bands in order of increasing wavelength.
        wavelengths: One per band in nm, increasing.
        fwhm: Full width at half maximum of each band in nm, for ENVI, netCDF and Zarr; needs the
            wavelengths.

    Raises:
        OSError: The folder does not exist, or writing failed, for example because the disk is full.
        ValueError: Unknown suffix, wrong shape, values that are not finite, or wavelengths that
            do not fit the bands or the format.
    """
    path = Path(path).expanduser()
    if (suffix := _normalize_suffix(path)) not in WRITE_SUFFIXES:
        suffixes = " ".join(WRITE_SUFFIXES)
        raise ValueError(f"cannot write {path}: unknown suffix {suffix!r}; use {suffixes}")
    if isinstance(cube, Tensor):
        cube = cube.detach().cpu()
        cube = (cube.float() if cube.is_floating_point() else cube).numpy()
    values = np.asarray(cube)
    if values.ndim == 4 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 3 or 0 in values.shape or values.dtype.kind not in "biuf":
        description = f"{values.dtype} {tuple(values.shape)}"
        raise ValueError(
            f"expected a cube of real numbers (C, H, W) or (1, C, H, W), got {description}"
        )
    # Values beyond float32 become infinite, which `check_finite` refuses.
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.array(values, dtype=np.float32, order="C")
    check_finite("cube", torch.from_numpy(values))
    nm = None if wavelengths is None else checked_wavelengths(wavelengths, len(values))
    widths: list[tuple[float, ...]] = []
    if fwhm is not None:
        if nm is None or suffix not in _SUFFIXES_WITH_WIDTHS:
            raise ValueError(
                "fwhm: expected wavelengths, too, and a suffix of "
                f"{' '.join(_SUFFIXES_WITH_WIDTHS)}"
            )
        widths = [checked_widths(fwhm, len(values))]
    if suffix == ".hdr":
        # The header names the data, so it appears last.
        with atomic_paths(path.with_suffix(".img"), path) as (data, header):
            envi.write_envi(header, data, values, nm, *widths)
        return
    with atomic_path(path) as temporary:
        _WRITERS[suffix](temporary, values, nm, *widths)


def _normalize_suffix(path: Path) -> str:
    """Return the suffix in lower case; for an OME-TIFF it is `.ome.tif`."""
    return ".ome.tif" if tiff.is_ome(path) else path.suffix.lower()


def _load(
    role_name: str,
    path: PathLike,
    key: str | None,
    axes: str | None,
    bands: int | None,
    finite: bool = True,
    as_counts: bool = False,
) -> LoadedArray:
    """Read a file in the sandboxed reader; order its axes and bands, and describe what was done."""
    path = _find_file(Path(path).expanduser(), role_name)
    arguments = {"role": role_name, "key": key, "axes": axes, "bands": bands, "counts": as_counts}
    values, description = sandboxed_reader.read("array", path, **arguments)
    file_axes, shape = description["axes"], tuple(description["shape"])
    remarks = description["remarks"]
    axes_of_data = "".join(letter for letter in "KCHW" if letter in file_axes)
    data = torch.from_numpy(values)
    # A mask with the axes KHW has one band per shot. All other arrays with three axes are one
    # sample.
    data = data[:, None] if role_name == "mask" and axes_of_data == "KHW" else data
    data = data.reshape((1,) * (4 - data.ndim) + tuple(data.shape))
    if finite:
        remedy = "replace them first"
        if description["missing"]:
            remedy = f"{description['missing']}; crop the image, or replace them"
        check_finite(f"{path}: {role_name}", data, remedy)

    wavelengths = None
    if description["wavelengths"] is not None:
        nm = to_nanometres(*description["wavelengths"])
        if not len(nm):
            remarks.append("its wavelengths are no numbers of a length, so they are ignored")
        elif len(nm) != data.shape[1]:
            remarks.append(f"its {len(nm)} wavelengths do not fit {data.shape[1]} bands: ignored")
        else:
            if (np.diff(nm) < 0).any():
                change = "reversed" if (np.diff(nm) <= 0).all() else "sorted"
                remarks.append(f"bands {change} to rising wavelength")
                order = np.argsort(nm, kind="stable")
                nm, data = nm[order], data[:, torch.from_numpy(order)].contiguous()
            wavelengths = tuple(nm.tolist())

    key = description["key"]
    parts = [f"key {key!r}"] if key else []
    parts += [f"axes {file_axes} {shape} -> {tuple(data.shape)}", *remarks]
    note = printable(f"{path.name}: {', '.join(parts)}")
    counts, full_scale = description["counts"], description["full_scale"]
    return LoadedArray(data, wavelengths, path, key or None, file_axes, note, counts, full_scale)


def _find_file(path: Path, role_name: str) -> Path:
    """Return the path of a file that can be read as `role_name`; raise an error if it cannot."""
    if path.is_dir():
        is_image_folder = role_name == "cube" and planes.has_images(path)
        if is_image_folder or path.suffix.lower() in FOLDER_SUFFIXES:
            return path
        alternative = ", or a folder of images, one a band" if role_name == "cube" else ""
        suffixes = " ".join(filter(None, READ_SUFFIXES))
        raise IsADirectoryError(f"{path} is a folder; expected a file {suffixes}{alternative}")
    if not path.exists():
        if path.is_symlink():
            raise FileNotFoundError(f"no file {path}: it is a link to {path.readlink()}, not there")
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileNotFoundError(f"no file {path}{did_you_mean(path.name, names, cutoff=0.7)}")
    if (suffix := path.suffix.lower()) not in READ_SUFFIXES:
        suffixes = " ".join(READ_SUFFIXES)
        if suffix in _LOSSY_SUFFIXES:
            raise ValueError(
                f"cannot read {path}: expected the sensor's own values, JPEG changes them; save "
                "frames as .png or .tif"
            )
        raise ValueError(f"cannot read {path}: unknown suffix {suffix!r}; expected {suffixes}")
    if not path.is_file():
        raise ValueError(f"cannot read {path}: it is not a regular file")
    check_readable(path)
    # Opening the file here raises PermissionError with its name, before a library of its format
    # would fail.
    with path.open("rb") as file:
        if not file.read(1):
            raise ValueError(f"cannot read {path}: the file is empty")
    return path


def check_finite(name: str, tensor: Tensor, remedy: str = "replace them first") -> None:
    """Raise ValueError for NaN and infinite values, with their number and the first index.

    Args:
        name: name of the tensor, for the message.
        tensor: values of any shape.
        remedy: end of the message, which says what to do.
    """
    is_finite = torch.isfinite(tensor)
    if not is_finite.all():
        bad_indices = (~is_finite).nonzero()
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} has {len(bad_indices)} values that are NaN or "
            f"infinite, the first at index {tuple(bad_indices[0].tolist())}; {remedy}"
        )
