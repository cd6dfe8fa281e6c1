"""Finished results under names, each with a record of all that it depends on."""

import json
import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cassi.checks import read_regular
from cassi.data.atomic import (
    atomic_path,
    digest,
    digest_content,
    is_temporary,
    remove_leftovers,
    seal,
    size_of,
    unseal,
)


class Store:
    """Results under names: files, and a small JSON record of each, written last.

    A result is done if its record says so, has the expected fingerprint, and all its files are
    there and whole. A record appears whole or not at all and has a checksum. A damaged record, or
    one with damaged files, counts as missing, with a warning.

    Args:
        root: the folder; made when the first record is written.
        suffix: end of the path of a record, after the name; `/done.json` gives each result a folder
            of its own.
    """

    def __init__(self, root: str | os.PathLike[str], suffix: str = ".json") -> None:
        self.root, self.suffix = Path(root), suffix

    def path(self, name: str) -> Path:
        """Return the path of the record of a result.

        Raises:
            ValueError: the name is not one of files in folders below the root (see `file_name`).
        """
        if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            raise ValueError(f"name: expected a name, or several divided by '/', got {name!r}")
        return self.root / f"{name}{self.suffix}"

    def write(
        self,
        name: str,
        fingerprint: str,
        values: Mapping[str, object],
        files: Iterable[Path] = (),
        *,
        done: bool = True,
    ) -> None:
        """Write the record of a result whose files exist.

        Args:
            name: of the result.
            fingerprint: of all that it depends on.
            values: further values: dicts, lists, numbers and texts.
            files: of the result; the record has their SHA-256 and size.
            done: False for a note, such as the reason why there is no result.

        Raises:
            OSError: a file is missing, or the record cannot be written.
        """
        path = self.path(name)
        listed = {
            Path(os.path.relpath(file, self.root)).as_posix(): [size_of(file), digest(file)]
            for file in files
        }
        record = {"fingerprint": fingerprint, "done": done, "files": listed, "values": values}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            temporary.write_text(f"{json.dumps(seal(record), indent=1)}\n", encoding="utf-8")

    def read(self, name: str, fingerprint: str | None = None) -> dict[str, Any] | None:
        """Return the values of a record; None where there is none, or it has another fingerprint.

        It does not check the files; see `is_done`.
        """
        record = self._record(name, fingerprint)
        return None if record is None else record["values"]

    def is_done(self, name: str, fingerprint: str) -> bool:
        """Return whether a result is done; reads all files.

        Where all of a folder is done nobody writes into it any more. So what a killed process has
        left in it is removed here.
        """
        remove_leftovers(self.path(name).parent)
        record = self._record(name, fingerprint)
        if record is None or not record["done"]:
            return False
        for listed, (size, checksum) in record["files"].items():
            file = self.root / listed
            # A record that somebody made could name any file.
            if not self._is_ours(file):
                return False
            if size_of(file) != size or checksum != digest(file):
                warnings.warn(f"{file}: it is damaged, and made again", stacklevel=2)
                return False
        return True

    def _is_ours(self, file: Path) -> bool:
        """Tell whether a file or folder is there, and lies with the results that a record is of."""
        inside = Path(os.path.normpath(file)).is_relative_to(os.path.normpath(self.root.parent))
        is_folder = file.is_dir() and file.suffix == ".zarr"
        return inside and (file.is_file() or is_folder)

    def forget(self, name: str) -> None:
        """Remove a record, if there is one; its files stay."""
        self.path(name).unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        """Yield the names of all records, damaged ones too, in the order of their paths."""
        inside = self.suffix.startswith("/")
        for path in sorted(self.root.rglob(self.suffix[1:] if inside else f"*{self.suffix}")):
            if not is_temporary(path):
                yield path.relative_to(self.root).as_posix().removesuffix(self.suffix)

    def _record(self, name: str, fingerprint: str | None) -> dict[str, Any] | None:
        path = self.path(name)
        try:
            record = unseal(json.loads(read_regular(path)))
            found = record["fingerprint"], record["done"], dict(record["values"])
            record["files"] = {
                str(f): (size, hash_) for f, (size, hash_) in record["files"].items()
            }
        except OSError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            note = "it is damaged or of another version, and made again"
            warnings.warn(f"{path}: {note}", stacklevel=3)
            return None
        return record if fingerprint in (None, found[0]) else None


def file_name(text: str) -> str:
    """Return a file name for a text: `snr=10` stays readable, `a/b` does not."""
    safe = quote(text, safe=" =,+()[]")
    return f"%{safe[1:]}" if safe.startswith(".") else safe


def fingerprint(value: object, content: bool = False) -> str:
    """Return a hash of a value made of dicts, lists, numbers and texts; see `stamp` for files."""
    text = json.dumps(stamp(value, content), sort_keys=True, default=str)
    return digest_content([text])[:32]


def stamp(value: object, content: bool = False) -> Any:
    """Return a value in which every file is replaced by a mark that changes with the file.

    Args:
        value: of dicts, lists, tuples, numbers, texts and paths.
        content: the mark is the SHA-256 of the file; otherwise its name, size and time of change,
            because reading a thousand files would take too long.
    """
    if isinstance(value, Mapping):
        return {str(key): stamp(item, content) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [stamp(item, content) for item in value]
    if isinstance(value, str | os.PathLike) and (found := _find_file(value)) is not None:
        file, about = found
        if content:
            return f"sha256:{digest(file)}"
        if not stat.S_ISDIR(about.st_mode):
            return [file.name, about.st_size, about.st_mtime_ns]
        changed = max(entry.stat().st_mtime_ns for entry in (file, *file.rglob("*")))
        return [file.name, size_of(file), changed]
    return value


def _find_file(value: str | os.PathLike[str]) -> tuple[Path, os.stat_result] | None:
    try:
        file = Path(value).expanduser()
        about = file.stat()
    except (OSError, ValueError, RuntimeError):  # too long for a name, or somebody's "~"
        return None
    there = stat.S_ISREG(about.st_mode) or (file.suffix == ".zarr" and stat.S_ISDIR(about.st_mode))
    return (file, about) if there else None
