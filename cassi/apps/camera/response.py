"""Response curves of a sensor's channels, from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_MOST = 1 << 20  # bytes of a table of curves


def read_curves(
    path: Path, name: str, channels: int, bands: int, wavelengths: Sequence[float] | None
) -> Tensor:
    """Return the response `(G, C)` that a file of comma-separated values holds.

    Args:
        path: a line per wavelength, nm and the response of each channel; or a line per channel with
            a number per band.
        name: of the setting, for messages.
        channels: G.
        bands: C.
        wavelengths: of the bands, nm, where known.

    Raises:
        OSError: there is no such file.
        ValueError: it does not fit the channels or the bands.
    """
    table = _read_table(path, name)
    if table.shape == (channels, bands):
        return torch.from_numpy(table.astype(np.float32))
    rising = len(table) > 1 and bool((np.diff(table[:, 0]) > 0).all())
    if table.shape[1] == channels + 1 and rising:
        if wavelengths is None:
            raise ValueError(f"{name}: {path} needs the bands' wavelengths=[…], nm")
        curves = [
            np.interp(np.asarray(wavelengths), table[:, 0], curve, left=0, right=0)
            for curve in table[:, 1:].T
        ]
        return torch.from_numpy(np.stack(curves).astype(np.float32))
    raise ValueError(
        f"{name}: expected {channels} lines of {bands} numbers, or lines of nm (rising) "
        f"and {channels} values, got {table.shape[0]} lines of {table.shape[1]} in {path}"
    )


def _read_table(path: Path, name: str) -> np.ndarray:
    if not path.is_file():
        raise FileNotFoundError(f"{name}: no file {path}")
    if path.stat().st_size > _MOST:
        raise ValueError(f"{name}: {path} is larger than {_MOST} bytes")
    lines = path.read_text(errors="replace").splitlines()
    rows = [line.split(",") for line in lines if line.strip() and not line.startswith("#")]
    try:
        if rows and not _is_number(rows[0][0]):
            rows = rows[1:]  # names of the columns
        table = np.array([[float(value) for value in row] for row in rows], np.float64)
    except ValueError:
        table = np.empty(0)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError(f"{name}: expected lines of as many finite numbers in {path}")
    return table


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
