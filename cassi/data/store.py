"""Finished results under names, in an SQLite file, each with a record of all that it depends on."""

import contextlib
import errno
import json
import os
import sqlite3
import stat
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from cassi.data.atomic import digest, digest_content, remove_leftovers, size_of
from cassi.data.formats.cells import Json
from cassi.links import check_names, check_parents

FILE = "results.sqlite"
_TABLE = "CREATE TABLE results (name TEXT PRIMARY KEY, record TEXT, checksum TEXT) WITHOUT ROWID"
_LARGEST = 2**26
"""Characters of a record that is read."""
_NOT_THE_FILE = ("locked", "unable to open", "readonly", "full", "I/O")
"""Words of errors that are not about what the file holds."""
_PATIENCE = 60.0
"""Seconds to wait for another process that writes."""


class Store:
    """Results under names: files, and a small record of each, written last.

    A result is done if its record says so, has the expected fingerprint, and all its files are
    there and whole. Records are rows of one SQLite file, which several processes may write. A
    damaged record, or one with damaged files, counts as missing, with a warning. The folder is made
    when the first record is written.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.file = self.root / FILE
        self._is_damaged = False

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

        It has the SHA-256 and size of each file, and further values: dicts, lists, numbers, texts.
        With `done=False` it is a note, such as the reason why there is no result.
        """
        listed = {
            Path(os.path.relpath(file, self.root)).as_posix(): [size_of(file), digest(file)]
            for file in files
        }
        record = {"fingerprint": fingerprint, "done": done, "files": listed, "values": values}
        text = json.dumps(record)
        row = name, text, digest_content([name, text])
        self.root.mkdir(parents=True, exist_ok=True)
        insert = "INSERT OR REPLACE INTO results VALUES (?, ?, ?)"
        if not self._is_damaged:
            try:
                self._execute(insert, row, create=True)
                return
            except _Damaged as damage:
                self._note(damage)
        self.file.unlink(missing_ok=True)
        self._is_damaged = False
        self._execute(insert, row, create=True)

    def read(self, name: str, fingerprint: str | None = None) -> Json | None:
        """Return the values of a record; None where there is none, or it has another fingerprint.

        It does not check the files; see `is_done`.
        """
        record = self._records(name).get(name)
        if record is None or fingerprint not in (None, record.fingerprint):
            return None
        return record.values

    def is_done(self, name: str, fingerprint: str) -> bool:
        """Return whether a result is done; reads all files.

        Where all of a folder is done nobody writes into it any more. So what a killed process has
        left in it is removed here.
        """
        record = self._records(name).get(name)
        if record is None or not record.done or record.fingerprint != fingerprint:
            return False
        for listed, (size, checksum) in record.files.items():
            file = self.root / listed
            # A record that somebody made could name any file.
            if not self._is_ours(file):
                return False
            remove_leftovers(file.parent)
            if size_of(file) != size or checksum != digest(file):
                warnings.warn(f"{file}: it is damaged, and made again", stacklevel=2)
                return False
        return True

    def _is_ours(self, file: Path) -> bool:
        """Tell whether a file or folder is there, and lies with the results that a record is of."""
        inside = Path(os.path.normpath(file)).is_relative_to(os.path.normpath(self.root.parent))
        is_folder = file.is_dir() and file.suffix == ".zarr"
        return inside and (file.is_file() or is_folder)

    def all(self) -> dict[str, Json]:
        """Return the values of all records by name, in the order of the names."""
        return {name: record.values for name, record in self._records().items()}

    def _records(self, name: str | None = None) -> "dict[str, _Record]":
        """Return whole records by name; warn of the others."""
        if not self.file.exists():
            return {}
        query = "SELECT name, record, checksum FROM results WHERE ifnull(length(record), 0) < ?"
        query += " AND name = ?" * (name is not None) + " ORDER BY name"
        try:
            rows = self._execute(query, (_LARGEST, *([] if name is None else [name])))
        except _Damaged as damage:
            self._note(damage)  # a row could be written, and not be found again
            return {}
        found = {}
        for key, text, checksum in rows:
            try:
                if checksum != digest_content([key, text]):
                    raise ValueError("the content is not what its checksum says")
                record = _Record(**json.loads(text))
                dict(record.values), [(size, sha) for size, sha in record.files.values()]
            except (ValueError, TypeError, AttributeError, RecursionError):
                note = "it is damaged or of another version, and made again"
                warnings.warn(f"{self.file}: {key!r}: {note}", stacklevel=3)
                continue
            found[key] = record
        return found

    def _note(self, damage: Exception) -> None:
        self._is_damaged = True
        warnings.warn(f"{self.file}: {damage}; it is made again", stacklevel=4)

    def _execute(
        self, statement: str, given: tuple[object, ...], create: bool = False
    ) -> list[tuple[Any, ...]]:
        """Execute one statement in a connection of its own, so that a process may be forked.

        With `create`, the file and its table are made if there is none. OSError where the file
        cannot be opened or written, or others write into it all the time.
        """
        check_parents(str(self.file.absolute()))
        check_names(self.root, [f"{FILE}*"])
        place = f"{self.file.absolute().as_uri()}?mode=rw{'c' if create else ''}"
        try:
            with contextlib.closing(
                sqlite3.connect(place, timeout=_PATIENCE, isolation_level=None, uri=True)
            ) as connection:
                # The file may be a stranger's: no functions, views or triggers of it are run.
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                schema = "SELECT sql FROM sqlite_master"
                if not connection.execute(schema).fetchall():
                    if not create:
                        return []  # another process has made the file a moment ago
                    connection.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
                if connection.execute(schema).fetchall() != [(_TABLE,)]:
                    raise _Damaged("expected one table of results")
                return connection.execute(statement, given).fetchall()
        except sqlite3.OperationalError as error:
            if not any(word in str(error) for word in _NOT_THE_FILE):
                raise _Damaged(str(error)) from None
            number = errno.ENOSPC if "full" in str(error) else errno.EIO
            raise OSError(number, f"cannot be read or written ({error})", str(self.file)) from None
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise _Damaged(str(error)) from None


class _Damaged(Exception):
    """An SQLite file is none, or has other tables."""


class _Record(NamedTuple):
    fingerprint: str
    done: bool
    files: dict[str, tuple[int, str]]
    values: Json


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

    With `content` that is the SHA-256 of the file; otherwise its name, size and time of change,
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
