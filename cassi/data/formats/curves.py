"""Curves over wavelength or band, from files of comma-separated values."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cassi.checks import read_numbers

_MOST = 1 << 20  # bytes of a table
_BEYOND = 10.0  # nm, that a band may lie beside a curve


def read_table(path: Path, name: str) -> np.ndarray:
    """Read a table of numbers, `(lines, columns)`, float64, of the setting `name`.

    Lines are those of `cassi.checks.read_numbers`. `.npy` holds one or two dimensions.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{name}: expected a file of comma-separated values, no file {path}"
        )
    if path.stat().st_size > _MOST:
        raise ValueError(f"{name}: {path} is larger than {_MOST} bytes")
    try:
        table = _npy(path) if path.suffix.lower() == ".npy" else np.array(read_numbers(path, _MOST))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError(f"{name}: expected lines of as many finite numbers in {path}")
    return table


def read_curve(
    path: Path, bands: int, wavelengths: Sequence[float] | None, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Read a number per band, and its standard error where the file has one, `(C,)` each.

    The file has a line or a column with a number per band; or lines of nm, rising, a value, and if
    known its standard error (else 0), which are interpolated linearly. Messages begin with `name`.
    """
    table = read_table(path, name)
    if table.shape in ((1, bands), (bands, 1)):
        return table.ravel(), np.zeros(bands)
    nm = table[:, 0]
    if table.shape[1] in (2, 3) and _is_rising(table):
        at = _places(path, name, wavelengths)
        if at[0] < nm[0] - _BEYOND or at[-1] > nm[-1] + _BEYOND:
            raise ValueError(
                f"{name}: expected a curve of {at[0]:g} to {at[-1]:g} nm as the bands, got "
                f"{nm[0]:g} to {nm[-1]:g} nm in {path}"
            )
        columns = [np.interp(at, nm, column) for column in table[:, 1:].T]
        return columns[0], columns[1] if len(columns) > 1 else np.zeros(bands)
    raise ValueError(
        f"{name}: expected {bands} numbers, or lines of nm (rising), a value and perhaps its "
        f"standard error, got {table.shape[0]} lines of {table.shape[1]} in {path}"
    )


def read_curves(
    path: Path, name: str, channels: int, bands: int, wavelengths: Sequence[float] | None
) -> np.ndarray:
    """Read the responses of G channels, `(G, C)`, float32, of the setting `name`.

    The file has a line per wavelength, nm and the response of each channel; or a line per channel
    with a number per band.
    """
    table = read_table(path, name)
    if table.shape == (channels, bands):
        return table.astype(np.float32)
    if table.shape[1] == channels + 1 and _is_rising(table):
        at, nm = _places(path, name, wavelengths), table[:, 0]
        curves = [np.interp(at, nm, curve, left=0, right=0) for curve in table[:, 1:].T]
        return np.stack(curves).astype(np.float32)
    raise ValueError(
        f"{name}: expected {channels} lines of {bands} numbers, or lines of nm (rising) "
        f"and {channels} values, got {table.shape[0]} lines of {table.shape[1]} in {path}"
    )


def _is_rising(table: np.ndarray) -> bool:
    return len(table) > 1 and bool((np.diff(table[:, 0]) > 0).all())


def _places(path: Path, name: str, wavelengths: Sequence[float] | None) -> np.ndarray:
    if wavelengths is None:
        raise ValueError(f"{name}: {path} needs the bands' wavelengths=[…], nm")
    return np.asarray(wavelengths, np.float64)


def _npy(path: Path) -> np.ndarray:
    return np.atleast_2d(np.load(path, allow_pickle=False).astype(np.float64))
