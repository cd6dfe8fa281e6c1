"""Uploads: files dropped into the page, kept so that a run can be repeated."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from cassi.data.atomic import atomic_path, digest, digest_content

LARGEST = 2**30
"""Bytes of the files of a drop."""
_MOST_FILES = 16
_BLOCK = 2**20


class Inbox:
    """Files that are on their way from one field of a page; on the disk, without a name.

    Args:
        folder: whose disk they are kept on.

    Attributes:
        key: random, of the address that the page sends them to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, secrets.token_urlsafe(24)
        self._drop, self._files = "", dict[str, BinaryIO]()

    def begin(self, drop: str, name: str, length: int) -> BinaryIO:
        """Return an empty file to write what comes to.

        Args:
            drop: number of files that were dropped together; another forgets those before.
            name: of the file.
            length: bytes that will come.

        Raises:
            OSError: no file can be made.
            ValueError: the files of the drop are too many, or too long, or have the same name.
        """
        if drop != self._drop:
            self.close()
            self._drop = drop
        there = sum(file.seek(0, 2) for file in self._files.values())
        if there + length > LARGEST or len(self._files) >= _MOST_FILES:
            raise ValueError(
                f"expected at most {LARGEST // 2**20} MiB in {_MOST_FILES} files; put larger files "
                "into the folder, and choose them there"
            )
        if name in self._files:
            raise ValueError(f"expected names that differ, got {name} twice; drop them one by one")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files[name] = os.fdopen(_open_unnamed(self.folder), "w+b")
        return self._files[name]

    def take(self, drop: str) -> dict[str, BinaryIO]:
        """Return the files of a drop by name; the inbox has them no longer."""
        if drop != self._drop:
            return {}
        files, self._files = self._files, {}
        return files

    def close(self) -> None:
        """Forget all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _open_unnamed(folder: Path) -> int:
    """Open a new file that the system removes when it is closed, also by a kill."""
    descriptor, name = tempfile.mkstemp(prefix=".", dir=folder)
    Path(name).unlink()
    return descriptor


def keep_upload(root: Path, files: Mapping[str, BinaryIO], suffixes: tuple[str, ...]) -> Path:
    """Copy files that were dropped together, such as the two of an ENVI image, into one folder.

    The name of the folder is the SHA-256 of a list of names and checksums: the same files are kept
    once, and others never have the same folder.

    Args:
        root: in which the folder is made.
        files: content by name; all are closed.
        suffixes: of files that can be read.

    Returns:
        The path of the file to read: the header if there is one, else the first.

    Raises:
        OSError: a file cannot be written.
        ValueError: no file can be read, or a name is no plain file name.
    """
    with ExitStack() as stack:
        for file in files.values():
            stack.enter_context(file)
        for name in files:
            if Path(name).name != name or name.startswith(".") or "\\" in name or "\0" in name:
                raise ValueError(f"expected the name of a file, got {name!r}")
        readable = [name for name in files if name.lower().endswith(suffixes)]
        if not readable:
            got = ", ".join(files) or "nothing"
            raise ValueError(f"expected a file {' '.join(suffixes)}, got {got}")
        chosen = next((name for name in readable if name.lower().endswith(".hdr")), readable[0])
        sums = {name: _digest(file) for name, file in files.items()}
        listed = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
        folder = root / digest_content([listed])
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            kept = folder / name
            if not kept.exists() or digest(kept) != sums[name]:  # somebody has changed it
                file.seek(0)
                with atomic_path(kept) as temporary, temporary.open("wb") as copy:
                    shutil.copyfileobj(file, copy, _BLOCK)
    return folder / chosen


def _digest(file: BinaryIO) -> str:
    file.seek(0)
    return digest_content(iter(lambda: file.read(_BLOCK), b""))
