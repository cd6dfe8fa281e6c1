"""Records of many results in files that are only appended to, one for each process that writes."""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

SUFFIX = ".jsonl"


class RecordLog:
    r"""Appends records to a file of its own, a line each: a CRC-32, a space, JSON.

    A line that a killed process has left unfinished is skipped by readers. Use it in a `with`
    statement, which holds the file's lock.

    Args:
        folder: of the files of all writers; made if it is not there.
        writer: name of this one's file, without suffix.

    Raises:
        ValueError: another process writes under this name.
    """

    def __init__(self, folder: Path, writer: str) -> None:
        self.path = folder / f"{writer}{SUFFIX}"
        self.file: BinaryIO | None = None

    def __enter__(self) -> RecordLog:
        """Open the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ValueError(f"{self.path}: another command does this share; wait for it") from None
        except OSError:  # there are no locks
            pass
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            file.write(b"\n")
        self.file = file
        return self

    def __exit__(self, *error: object) -> None:
        """Flush the file to the disk and close it."""
        if self.file is not None:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def append(self, name: str, record: Mapping[str, object]) -> None:
        """Write the record of a result whose files are on the disk.

        Raises:
            OSError: it cannot be written.
        """
        assert self.file is not None
        text = json.dumps({"name": name, "at": time.time(), **record}).encode()
        self.file.write(b"%08x %s\n" % (zlib.crc32(text), text))
        self.file.flush()


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the last record of each name, of all writers.

    What is damaged, and what is no record, is left out.

    Raises:
        OSError: a file is there and cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        for record in _read(file):
            earlier = found.get(record["name"])
            if earlier is None or earlier["at"] <= record["at"]:
                found[record["name"]] = record
    return found


def _read(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as lines:
        for line in lines:
            checksum, _, text = line.rstrip(b"\n").partition(b" ")
            if checksum == b"%08x" % zlib.crc32(text):
                yield json.loads(text)
