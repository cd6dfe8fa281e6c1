"""Read cubes, masks and measurements from files; write cubes.

The formats are those of `docs/guides/files.md`. Nothing is unpickled or run. Whatever is wrong with
a file comes out as one line: what was expected, what is there, what to do.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cassi.checks import check_readable, did_you_mean, printable
from cassi.data import door
from cassi.data.atomic import atomic_path, atomic_paths
from cassi.data.formats import Writer, envi, hdf5, hyperspy, mat, numpy, planes, tiff, zarr
from cassi.data.formats.arrays import FOLDERS, READERS
from cassi.data.wavelengths import checked_wavelengths, checked_widths, to_nanometres

PathLike = str | os.PathLike[str]

_LOSSY = (".jpg", ".jpeg")
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
_WITH_WIDTHS = (".hdr", ".nc", ".zarr")
"""Formats that have a place for the widths of bands."""
READ_SUFFIXES = tuple(READERS)
WRITE_SUFFIXES = (*_WRITERS, ".hdr")


@dataclass(frozen=True)
class Loaded:
    """An array read from a file, and how it was understood.

    Attributes:
        data: float32, contiguous, finite; shape as the function that loaded it says.
        wavelengths: One per band in nm, increasing; None if the file states none.
        path: The file.
        key: Name of the array in the file; None if the format has no names.
        axes: Order of the axes in the file, for example "HWC".
        note: One line for the user: key, axes, shapes, and every conversion made.
        counts: The file holds integers and states no full scale.
        full_scale: What ``data`` is where the integers of the file are as large as their type can
            be; None of other numbers.
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
) -> Loaded:
    """Read a cube; ``data`` has shape (1, C, H, W), bands in order of increasing wavelength.

    Integers of TIFF and ENVI images are scaled by what the file states, else to [0, 1] by the
    maximum of their type; other values are taken as they are.

    Args:
        path: File with one of the suffixes in ``READ_SUFFIXES``, or a folder of images, one a band.
        key: Name of the array; by default a usual name, else the only array that fits.
        axes: Order of the axes in the file, such as "HWC". By default what the file states, else
            the axis of length ``bands``, else the shortest axis is the bands.
        bands: Number of bands expected, a hint for the order of the axes.

    Raises:
        OSError: There is no such file, or it is a folder without images.
        ValueError: Unknown suffix; damaged file; no, several or unsuitable arrays; ambiguous axes;
            complex, empty, not finite or not numeric values.
    """
    return _load("cube", path, key, axes, bands)


def load_mask(
    path: PathLike, *, key: str | None = None, axes: str | None = None, bands: int | None = None
) -> Loaded:
    """Read a mask; arguments are those of `load_cube`.

    Three axes may also be shots ("KHW"), four are "KCHW". ``data`` has shape (K, 1 or C, H, W):
    (1, 1, H, W) from two axes, (1, C, H, W) from three. Integer images are scaled as by
    `load_cube`, except those of zeros and ones.
    """
    return _load("mask", path, key, axes, bands)


def load_measurement(
    path: PathLike,
    *,
    key: str | None = None,
    axes: str | None = None,
    finite: bool = True,
    counts: bool = False,
) -> Loaded:
    """Read a measurement: ``data`` of shape (1, K, H, W'), K = 1 from two axes; no wavelengths.

    In ``axes`` K stands for the shots, by default the shortest axis.

    Args:
        path: File with one of the suffixes in ``READ_SUFFIXES``.
        key: Name of the array.
        axes: Order of the axes in the file.
        finite: Refuse values that are not finite. With bad pixels such values may not matter; then
            the caller checks, see `check_finite`.
        counts: Take integers as they are, those of images too, whatever scale the file states.
    """
    return _load("measurement", path, key, axes, None, finite, counts)


def load_guide(path: PathLike) -> Loaded:
    """Read the picture of a guide: ``data`` of shape (1, G, H, W); a PNG may have three colours."""
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
        ValueError: as `load_cube`.
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
        ValueError: as `load_cube`.
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
        ValueError: as `load_cube`.
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
        OSError: The folder does not exist, the disk is full, ….
        ValueError: Unknown suffix, wrong shape, values that are not finite, or wavelengths that
            do not fit the bands or the format.
    """
    path = Path(path).expanduser()
    if (suffix := _suffix(path)) not in WRITE_SUFFIXES:
        known = " ".join(WRITE_SUFFIXES)
        raise ValueError(f"cannot write {path}: unknown suffix {suffix!r}; use {known}")
    if isinstance(cube, Tensor):
        cube = cube.detach().cpu()
        cube = (cube.float() if cube.is_floating_point() else cube).numpy()
    values = np.asarray(cube)
    if values.ndim == 4 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 3 or 0 in values.shape or values.dtype.kind not in "biuf":
        got = f"{values.dtype} {tuple(values.shape)}"
        raise ValueError(f"expected a cube of real numbers (C, H, W) or (1, C, H, W), got {got}")
    # Values beyond float32 become infinite and are refused.
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.array(values, dtype=np.float32, order="C")
    check_finite("cube", torch.from_numpy(values))
    nm = None if wavelengths is None else checked_wavelengths(wavelengths, len(values))
    widths: list[tuple[float, ...]] = []
    if fwhm is not None:
        if nm is None or suffix not in _WITH_WIDTHS:
            raise ValueError(f"fwhm: expected wavelengths with it, and {' '.join(_WITH_WIDTHS)}")
        widths = [checked_widths(fwhm, len(values))]
    if suffix == ".hdr":
        # The header announces the data, so it comes last.
        with atomic_paths(path.with_suffix(".img"), path) as (data, header):
            envi.write_envi(header, data, values, nm, *widths)
        return
    with atomic_path(path) as temporary:
        _WRITERS[suffix](temporary, values, nm, *widths)


def _suffix(path: Path) -> str:
    return ".ome.tif" if tiff.is_ome(path) else path.suffix.lower()


def _load(
    role_name: str,
    path: PathLike,
    key: str | None,
    axes: str | None,
    bands: int | None,
    finite: bool = True,
    as_counts: bool = False,
) -> Loaded:
    path = _existing(Path(path).expanduser(), role_name)
    given = {"role": role_name, "key": key, "axes": axes, "bands": bands, "counts": as_counts}
    values, about = door.read("array", path, **given)
    order, shape, remarks = about["axes"], tuple(about["shape"]), about["remarks"]
    target = "".join(letter for letter in "KCHW" if letter in order)
    data = torch.from_numpy(values)
    # A mask of several shots has them first; whatever else has three axes is one sample.
    data = data[:, None] if role_name == "mask" and target == "KHW" else data
    data = data.reshape((1,) * (4 - data.ndim) + tuple(data.shape))
    if finite:
        remedy = f"{about['missing']}; crop the image, or replace them" if about["missing"] else ""
        check_finite(f"{path}: {role_name}", data, *filter(None, [remedy]))

    wavelengths = None
    if about["wavelengths"] is not None:
        nm = to_nanometres(*about["wavelengths"])
        if not len(nm):
            remarks.append("its wavelengths are no numbers of a length, so they are ignored")
        elif len(nm) != data.shape[1]:
            remarks.append(f"its {len(nm)} wavelengths do not fit {data.shape[1]} bands: ignored")
        else:
            if (np.diff(nm) < 0).any():
                how = "reversed" if (np.diff(nm) <= 0).all() else "sorted"
                remarks.append(f"bands {how} to rising wavelength")
                rising = np.argsort(nm, kind="stable")
                nm, data = nm[rising], data[:, torch.from_numpy(rising)].contiguous()
            wavelengths = tuple(nm.tolist())

    key = about["key"]
    parts = [f"key {key!r}"] if key else []
    parts += [f"axes {order} {shape} -> {tuple(data.shape)}", *remarks]
    note = printable(f"{path.name}: {', '.join(parts)}")
    return Loaded(
        data, wavelengths, path, key or None, order, note, about["counts"], about["full_scale"]
    )


def _existing(path: Path, role_name: str) -> Path:
    if path.is_dir():
        images = role_name == "cube" and planes.has_images(path)
        if images or path.suffix.lower() in FOLDERS:
            return path
        more = ", or a folder of images, one a band" if role_name == "cube" else ""
        known = " ".join(filter(None, READ_SUFFIXES))
        raise IsADirectoryError(f"{path} is a folder; expected a file {known}{more}")
    if not path.exists():
        if path.is_symlink():
            raise FileNotFoundError(f"no file {path}: it is a link to {path.readlink()}, not there")
        there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileNotFoundError(f"no file {path}{did_you_mean(path.name, there, cutoff=0.7)}")
    if (suffix := path.suffix.lower()) not in READ_SUFFIXES:
        known = " ".join(READ_SUFFIXES)
        if suffix in _LOSSY:
            raise ValueError(
                f"cannot read {path}: expected the sensor's own values, JPEG changes them; save "
                "frames as .png or .tif"
            )
        raise ValueError(f"cannot read {path}: unknown suffix {suffix!r}; expected {known}")
    if not path.is_file():
        raise ValueError(f"cannot read {path}: it is not a regular file")
    check_readable(path)
    # Opening it says in one line if it may not be read.
    with path.open("rb") as file:
        if not file.read(1):
            raise ValueError(f"cannot read {path}: the file is empty")
    return path


def check_finite(name: str, tensor: Tensor, remedy: str = "replace them first") -> None:
    """Raise ValueError for NaN and infinite values; says how many and where the first is."""
    finite = torch.isfinite(tensor)
    if not finite.all():
        bad = (~finite).nonzero()
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} has {len(bad)} values that are NaN or infinite,"
            f" the first at index {tuple(bad[0].tolist())}; {remedy}"
        )
