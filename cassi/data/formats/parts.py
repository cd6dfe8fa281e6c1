"""Cubes on the disk that are read and written in parts: in one file, or in chunks of rows."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_ALL, _FLOAT = slice(None), np.dtype("<f4")


@dataclass(frozen=True)
class Planes:
    """A cube `(C, H, W)` in one file, band after band.

    Attributes:
        path: the file.
        offset: where its first value lies, bytes.
        shape: (C, H, W).
        dtype: of the values there.
    """

    path: Path
    offset: int
    shape: tuple[int, int, int]
    dtype: np.dtype

    def read(self, bands: slice = _ALL, rows: slice = _ALL, columns: slice = _ALL) -> np.ndarray:
        """Return a part as float32, `(C', H', W')`."""
        parts = []
        for band in range(self.shape[0])[bands]:
            # Mapped band by band: pages that have been read count as memory of the process.
            plane = np.memmap(self.path, self.dtype, "r", self._place(band), self.shape[1:])
            parts.append(plane[rows, columns].astype(np.float32))
            del plane
        return np.stack(parts)

    def write(self, part: np.ndarray, rows: slice, columns: slice) -> None:
        """Write a part `(C, H', W')` of rows and columns.

        Written and not mapped, so that a full disk is an error and no signal that kills.
        """
        height, width = self.shape[1:]
        chosen, (left, right, _) = range(height)[rows], columns.indices(width)
        values = part.astype(self.dtype, copy=False)
        with self.path.open("r+b", buffering=0) as file:
            for band, plane in enumerate(values):
                start = self._place(band) + (chosen.start * width + left) * self.dtype.itemsize
                for index, lines in enumerate([plane] if right - left == width else plane):
                    file.seek(start + index * width * self.dtype.itemsize)
                    _write_all(file.fileno(), lines)
            os.fsync(file.fileno())

    def _place(self, band: int) -> int:
        return self.offset + band * self.shape[1] * self.shape[2] * self.dtype.itemsize


@dataclass(frozen=True)
class Chunks:
    """A cube `(C, H, W)` in a Zarr store, in uncompressed chunks of one band and some whole rows.

    Attributes:
        path: the store.
        shape: (C, H, W).
        rows: of a chunk.
        dtype: of the values there.
    """

    path: Path
    shape: tuple[int, int, int]
    rows: int
    dtype: np.dtype = _FLOAT

    def read(self, bands: slice = _ALL, rows: slice = _ALL, columns: slice = _ALL) -> np.ndarray:
        """Return a part as float32, `(C', H', W')`."""
        parts = []
        for band in range(self.shape[0])[bands]:
            pieces = self._pieces(band, rows)
            parts.append([chunk.read(_ALL, inner, columns)[0] for chunk, inner, _ in pieces])
        return np.stack([np.concatenate(pieces) for pieces in parts])

    def write(self, part: np.ndarray, rows: slice, columns: slice) -> None:
        """Write a part `(C, H', W')` of rows and columns."""
        for band, plane in enumerate(part):
            for chunk, inner, outer in self._pieces(band, rows):
                chunk.write(plane[None, outer], inner, columns)

    def file(self, band: int, chunk: int) -> Path:
        """Return the file of a chunk."""
        return self.path / "cube" / "c" / str(band) / str(chunk) / "0"

    def _pieces(self, band: int, rows: slice) -> Iterator[tuple[Planes, slice, slice]]:
        """Yield the chunks that hold rows; which of its rows, and which of those chosen."""
        chosen, (_, height, width) = range(self.shape[1])[rows], self.shape
        for chunk, first in enumerate(range(0, height, self.rows)):
            start, stop = max(first, chosen.start), min(first + self.rows, chosen.stop)
            if start >= stop:
                continue
            file = self.file(band, chunk)
            expected = self.rows * width * self.dtype.itemsize
            if not file.is_file() or file.stat().st_size < expected:
                name = file.relative_to(self.path)
                raise ValueError(f"the store is cut short: {expected} bytes expected in {name}")
            inner = slice(start - first, stop - first)
            outer = slice(start - chosen.start, stop - chosen.start)
            yield Planes(file, 0, (1, self.rows, width), self.dtype), inner, outer


def _write_all(descriptor: int, values: np.ndarray) -> None:
    """Write an array to an open file; an error where the disk is full."""
    rest = np.ascontiguousarray(values).data.cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]
