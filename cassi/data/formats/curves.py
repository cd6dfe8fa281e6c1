"""Read curves over wavelength or band from files of comma-separated values or `.npy`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cassi.checks import read_numbers

# A curve takes a few kilobytes. A file above this limit is something else and is not read.
_MAX_TABLE_BYTES = 1 << 20
# Bands may lie this far outside a curve and then get its first or last value. A larger distance
# means that the curve is of another instrument, or in another unit.
_MAX_EXTRAPOLATION_NM = 10.0


def read_table(path: Path, name: str) -> np.ndarray:
    """Read a table of numbers, float64 `(lines, columns)`; messages begin with `name`.

    `cassi.checks.read_numbers` says what a line may contain. An array in a `.npy` file has one or
    two dimensions.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is too large, or its lines do not have equally many finite numbers.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{name}: expected a file of comma-separated values, no file {path}"
        )
    if path.stat().st_size > _MAX_TABLE_BYTES:
        raise ValueError(f"{name}: {path} is larger than {_MAX_TABLE_BYTES} bytes")
    try:
        table = (
            _read_npy(path)
            if path.suffix.lower() == ".npy"
            else np.array(read_numbers(path, _MAX_TABLE_BYTES))
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError(f"{name}: expected lines of equally many finite numbers in {path}")
    return table


def read_curve(
    path: Path, bands: int, wavelengths: Sequence[float] | None, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Read a value per band and its standard error, `(C,)` each; messages begin with `name`.

    The file has one of two forms. First: a line or a column with a value per band; the standard
    errors are 0. Second: each line has a wavelength (nm, rising), a value, and optionally the
    standard error of the value (default 0); values and errors are interpolated linearly to the
    wavelengths of the bands.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another form, or it does not cover the bands.
    """
    table = read_table(path, name)
    if table.shape in ((1, bands), (bands, 1)):
        return table.ravel(), np.zeros(bands)
    curve_nm = table[:, 0]
    if table.shape[1] in (2, 3) and _is_rising(table):
        band_nm = _check_wavelengths(path, name, wavelengths)
        _check_range(path, name, band_nm, curve_nm)
        columns = [np.interp(band_nm, curve_nm, column) for column in table[:, 1:].T]
        return columns[0], columns[1] if len(columns) > 1 else np.zeros(bands)
    raise ValueError(
        f"{name}: expected {bands} numbers, or lines of nm (rising), a value and perhaps its "
        f"standard error, got {table.shape[0]} lines of {table.shape[1]} in {path}"
    )


def read_curves(
    path: Path, name: str, channels: int, bands: int, wavelengths: Sequence[float] | None
) -> np.ndarray:
    """Read the responses of G channels, float32 `(G, C)`; messages begin with `name`.

    The file has one of two forms. First: each line has a wavelength (nm, rising) and the response
    of each channel; outside the listed wavelengths the responses are 0. Second: each line has the
    responses of one channel, a number per band.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another form.
    """
    table = read_table(path, name)
    if table.shape == (channels, bands):
        return table.astype(np.float32)
    if table.shape[1] == channels + 1 and _is_rising(table):
        band_nm, curve_nm = _check_wavelengths(path, name, wavelengths), table[:, 0]
        curves = [np.interp(band_nm, curve_nm, curve, left=0, right=0) for curve in table[:, 1:].T]
        return np.stack(curves).astype(np.float32)
    raise ValueError(
        f"{name}: expected {channels} lines of {bands} numbers, or lines of nm (rising) "
        f"and {channels} values, got {table.shape[0]} lines of {table.shape[1]} in {path}"
    )


def read_library(
    path: Path, name: str, wavelengths: Sequence[float]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Read spectra of M materials at the wavelengths of the bands; messages begin with `name`.

    The file is an ENVI spectral library (`.sli` with its header), or a table: each line has a
    wavelength (nm, rising) and the value of each material. A heading may name the materials.

    Returns:
        Names of the materials, and their spectra, float32 `(M, C)`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another form, or it does not cover the bands.
    """
    if path.suffix.lower() in (".sli", ".hdr"):
        names, library_nm, spectra = _read_envi_library(path, name)
    else:
        table = read_table(path, name)
        if table.shape[1] < 2 or not _is_rising(table):
            raise ValueError(
                f"{name}: expected lines of nm (rising) and a value for each material in {path}"
            )
        library_nm, spectra = table[:, 0], table[:, 1:].T
        names = _read_heading(path, table.shape[1])[1:]
    band_nm = np.asarray(wavelengths, np.float64)
    _check_range(path, name, band_nm, library_nm)
    curves = [np.interp(band_nm, library_nm, spectrum) for spectrum in spectra]
    return tuple(names), np.stack(curves).astype(np.float32)


def _read_envi_library(path: Path, name: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    from cassi.data import sandboxed_reader
    from cassi.data.wavelengths import to_nanometres

    if not path.is_file():
        raise FileNotFoundError(f"{name}: expected a spectral library, no file {path}")
    spectra, description = sandboxed_reader.read("library", path)
    nm = to_nanometres(description["wavelengths"] or [], description["unit"])
    if len(nm) != spectra.shape[1] or (np.diff(nm) <= 0).any():
        raise ValueError(f"{name}: expected rising wavelengths in the header of {path}")
    return list(description["names"]), nm, spectra


def _read_heading(path: Path, columns: int) -> list[str]:
    """Return the names of columns from the lines before the numbers; numbers if there are none."""
    if path.suffix.lower() != ".npy":
        for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines():
            if line.lstrip(' "+-.')[:1].isdecimal():
                break
            for separator in (";", "\t", ","):
                cells = [cell.strip().strip('"') for cell in line.lstrip("# ").split(separator)]
                if len(cells) == columns:
                    return cells
    return [f"spectrum {number}" for number in range(columns)]


def _check_range(path: Path, name: str, band_nm: np.ndarray, curve_nm: np.ndarray) -> None:
    """Raise ValueError if bands lie too far outside a curve."""
    if (
        band_nm[0] < curve_nm[0] - _MAX_EXTRAPOLATION_NM
        or band_nm[-1] > curve_nm[-1] + _MAX_EXTRAPOLATION_NM
    ):
        raise ValueError(
            f"{name}: expected a curve of {band_nm[0]:g} to {band_nm[-1]:g} nm as the bands, "
            f"got {curve_nm[0]:g} to {curve_nm[-1]:g} nm in {path}"
        )


def _is_rising(table: np.ndarray) -> bool:
    return len(table) > 1 and bool((np.diff(table[:, 0]) > 0).all())


def _check_wavelengths(path: Path, name: str, wavelengths: Sequence[float] | None) -> np.ndarray:
    """Return the wavelengths of the bands, nm; ValueError if none are set."""
    if wavelengths is None:
        raise ValueError(f"{name}: {path} needs the bands' wavelengths=[…], nm")
    return np.asarray(wavelengths, np.float64)


def _read_npy(path: Path) -> np.ndarray:
    return np.atleast_2d(np.load(path, allow_pickle=False).astype(np.float64))
