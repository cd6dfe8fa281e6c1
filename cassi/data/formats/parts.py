"""`Stack`: a cube on the disk that is read and written in parts."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_WHOLE_AXIS, _FLOAT32 = slice(None), np.dtype("<f4")


@dataclass(frozen=True)
class Stack:
    """A cube `(C, H, W)` on the disk; only the requested part is in memory.

    Attributes:
        path: a file with uncompressed values, band after band; or a Zarr store of uncompressed
            chunks.
        shape: (C, H, W).
        dtype: type of the stored values.
        offset: position of the first value in the file, bytes.
        rows: number of rows of a chunk, which has one band and whole rows; None for a file.
    """

    path: Path
    shape: tuple[int, int, int]
    dtype: np.dtype = _FLOAT32
    offset: int = 0
    rows: int | None = None

    def read(
        self, bands: slice = _WHOLE_AXIS, rows: slice = _WHOLE_AXIS, columns: slice = _WHOLE_AXIS
    ) -> np.ndarray:
        """Return a part as float32, `(C', H', W')`; ValueError if a chunk of it is missing."""
        width, planes = self.shape[2], []
        for band in range(self.shape[0])[bands]:
            pieces = []
            for file, offset, count in self._find_pieces(band, rows):
                # Each piece has a map of its own: pages of a map that have been read count as
                # memory of the process until the map is closed.
                piece = np.memmap(file, self.dtype, "r", offset, (count, width))
                pieces.append(piece[:, columns].astype(np.float32))
                del piece
            planes.append(np.concatenate(pieces))
        return np.stack(planes)

    def write(self, part: np.ndarray, rows: slice, columns: slice) -> None:
        """Write a part `(C, H', W')` at these rows and columns, and flush it to the disk."""
        # The part is not written through a map: on a full disk a map ends the process by a signal,
        # without an error.
        width, itemsize = self.shape[2], self.dtype.itemsize
        first_column = columns.indices(width)[0]
        for band, plane in enumerate(part.astype(self.dtype, copy=False)):
            rows_of_part = iter(plane)
            for file, offset, count in self._find_pieces(band, rows):
                with file.open("r+b") as stream:
                    for row in range(count):
                        stream.seek(offset + (row * width + first_column) * itemsize)
                        stream.write(next(rows_of_part).tobytes())
                    stream.flush()
                    os.fsync(stream.fileno())

    def file(self, band: int, chunk: int) -> Path:
        """Return the file that holds a chunk of a band."""
        chunk_path = self.path / "cube" / "c" / str(band) / str(chunk) / "0"
        return self.path if self.rows is None else chunk_path

    def _find_pieces(self, band: int, rows: slice) -> Iterator[tuple[Path, int, int]]:
        """Yield each piece with rows of a band: the file, position in bytes, and number of rows."""
        _, height, width = self.shape
        first, stop, _ = rows.indices(height)
        chunk_rows, row_bytes = self.rows or height, width * self.dtype.itemsize
        band_offset = self.offset + band * height * row_bytes if self.rows is None else 0
        for chunk in range(first // chunk_rows, -(-stop // chunk_rows)):
            start, end = max(first, chunk * chunk_rows), min(stop, (chunk + 1) * chunk_rows)
            file = self.file(band, chunk)
            if self.rows is not None and not self._is_complete(file, chunk_rows * row_bytes):
                name = file.relative_to(self.path)
                raise ValueError(
                    f"the store is cut short: {chunk_rows * row_bytes} bytes expected in {name}"
                )
            yield file, band_offset + (start - chunk * chunk_rows) * row_bytes, end - start

    def _is_complete(self, file: Path, min_bytes: int) -> bool:
        """Tell whether a chunk is complete and in the store; a link could lead anywhere."""
        is_inside = file.resolve().is_relative_to(self.path.resolve())
        return is_inside and file.is_file() and file.stat().st_size >= min_bytes
