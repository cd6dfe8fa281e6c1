"""Tell what was written from what has been damaged since."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
"""The file that lists a folder's results; `sha256sum -c SHA256SUMS` reads it too."""
_SEAL = "sha256"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, or of a folder's names and contents, hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return digest_content([list_sums(path, files)])
    with path.open("rb") as stream:
        return digest_content(iter(lambda: stream.read(2**20), b""))


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder.

    Raises:
        OSError: it is not there.
    """
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def digest_content(parts: Iterable[bytes | memoryview | str]) -> str:
    """Return the SHA-256 of bytes and texts (UTF-8), one after the other, hexadecimal."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
    return found.hexdigest()


def list_sums(folder: Path, files: Iterable[Path]) -> str:
    """Return the content of `SHA256SUMS`: a line for each of the files in a folder."""
    names = sorted(file.relative_to(folder).as_posix() for file in files)
    return "".join(f"{digest(folder / name)}  {name}\n" for name in names)


def check_sums(folder: Path) -> list[Path]:
    """Compare a folder's results with the list that was written after them.

    Returns:
        The files that the list names.

    Raises:
        FileNotFoundError: there is no list, so the run did not finish.
        ValueError: a file is missing or has another content, or the list itself is damaged.
    """
    found: list[Path] = []
    for line in (folder / SUMS).read_text(encoding="utf-8").splitlines():
        wanted, separator, name = line.partition("  ")
        if not separator:
            raise ValueError(f"{folder / SUMS}: expected lines 'digest  name', got {line[:80]!r}")
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{file}: it is listed in {SUMS} and is not there; run again")
        if digest(file) != wanted:
            raise ValueError(f"{file}: it is not as it was written ({SUMS}); run again")
        found.append(file)
    return found


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON can hold with a checksum of it, first."""
    return {_SEAL: _digest_json(content), **content}


def unseal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `seal` was given.

    Raises:
        ValueError: it has no checksum, or another one.
    """
    rest = {key: value for key, value in content.items() if key != _SEAL}
    if content.get(_SEAL) != _digest_json(rest):
        raise ValueError("the content is not what its checksum says")
    return rest


def check_archive(path: Path) -> None:
    """Check a ZIP archive, which `torch.save` and `numpy.savez` write, by the CRC-32 of each part.

    torch does not look at these sums when it reads.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or no such archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except OSError:
        raise
    except Exception as error:  # zipfile and zlib fail in many ways on a damaged file
        raise ValueError(f"{path}: it is cut or damaged ({error})") from None
    if damaged is not None:
        raise ValueError(f"{path}: it is damaged at {damaged}")


def _digest_json(content: Mapping[str, Any]) -> str:
    return digest_content([json.dumps(content, sort_keys=True)])
