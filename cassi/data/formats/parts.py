"""A cube on the disk that is read and written in parts."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_ALL, _FLOAT = slice(None), np.dtype("<f4")


@dataclass(frozen=True)
class Stack:
    """A cube `(C, H, W)` of which only the part that is asked for is in memory.

    Attributes:
        path: the file, in which it lies band after band; or a Zarr store of uncompressed chunks.
        shape: (C, H, W).
        dtype: of the values there.
        offset: where the first value lies in the file, bytes.
        rows: of a chunk, which has one band and whole rows; None for a file.
    """

    path: Path
    shape: tuple[int, int, int]
    dtype: np.dtype = _FLOAT
    offset: int = 0
    rows: int | None = None

    def read(self, bands: slice = _ALL, rows: slice = _ALL, columns: slice = _ALL) -> np.ndarray:
        """Return a part as float32, `(C', H', W')`."""
        width, planes = self.shape[2], []
        for band in range(self.shape[0])[bands]:
            parts = []
            for file, offset, count in self._pieces(band, rows):
                # Mapped piece by piece: pages that have been read count as memory of the process.
                piece = np.memmap(file, self.dtype, "r", offset, (count, width))
                parts.append(piece[:, columns].astype(np.float32))
                del piece
            planes.append(np.concatenate(parts))
        return np.stack(planes)

    def write(self, part: np.ndarray, rows: slice, columns: slice) -> None:
        """Write a part `(C, H', W')` of rows and columns.

        Written and not mapped, so that a full disk is an error and no signal that kills.
        """
        width, itemsize = self.shape[2], self.dtype.itemsize
        left = columns.indices(width)[0]
        for band, plane in enumerate(part.astype(self.dtype, copy=False)):
            lines = iter(plane)
            for file, offset, count in self._pieces(band, rows):
                with file.open("r+b") as stream:
                    for row in range(count):
                        stream.seek(offset + (row * width + left) * itemsize)
                        stream.write(next(lines).tobytes())
                    stream.flush()
                    os.fsync(stream.fileno())

    def file(self, band: int, chunk: int) -> Path:
        """Return the file that holds a chunk."""
        inside = self.path / "cube" / "c" / str(band) / str(chunk) / "0"
        return self.path if self.rows is None else inside

    def _pieces(self, band: int, rows: slice) -> Iterator[tuple[Path, int, int]]:
        """Yield where rows of a band lie: file, bytes before them, and how many."""
        _, height, width = self.shape
        first, stop, _ = rows.indices(height)
        size, line = self.rows or height, width * self.dtype.itemsize
        before = self.offset + band * height * line if self.rows is None else 0
        for chunk in range(first // size, -(-stop // size)):
            start, end = max(first, chunk * size), min(stop, (chunk + 1) * size)
            file = self.file(band, chunk)
            if self.rows is not None and not self._is_whole(file, size * line):
                name = file.relative_to(self.path)
                raise ValueError(f"the store is cut short: {size * line} bytes expected in {name}")
            yield file, before + (start - chunk * size) * line, end - start

    def _is_whole(self, file: Path, size: int) -> bool:
        """Tell whether a chunk is there; a link could lead to any file of the machine."""
        inside = file.resolve().is_relative_to(self.path.resolve())
        return inside and file.is_file() and file.stat().st_size >= size
