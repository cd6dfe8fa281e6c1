"""Records of finished results in an SQLite file: fingerprint of the inputs, files, checksums."""

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
# The file may come from somebody else, so a longer row is not read into memory.
_MAX_RECORD_CHARACTERS = 2**26
# SQLite raises the same class of error for a damaged file and for a file that cannot be opened,
# locked or written. Only the message tells the two apart. If it has one of these words, the file is
# not damaged and must not be replaced.
_ACCESS_ERRORS = ("locked", "unable to open", "readonly", "full", "I/O")
# Longest wait for the lock of the file while another process holds it. A shorter wait may fail on a
# slow disk.
_LOCK_TIMEOUT_SECONDS = 60.0


class Store:
    """The records of the results in a folder, each written after the files of its result.

    A result is done if its record says so and has the expected fingerprint, and if all its files
    are there with the recorded size and checksum. Records are rows of one SQLite file, which
    several processes may write. If a record or one of its files is damaged, a warning is given and
    the record counts as missing. The folder is made when the first record is written.
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
        is_result: bool = True,
    ) -> None:
        """Write the record of a result whose files exist.

        The record has the size and SHA-256 of each file, and `values`, which consist of dicts,
        lists, numbers and texts. If `is_result` is false, the record does not count as a result;
        its values may say why there is no result.

        Args:
            name: name of the result.
            fingerprint: hash of the inputs, see `fingerprint`.
            values: values to store.
            files: files of the result.
            is_result: whether the record counts as a result.

        Raises:
            OSError: the SQLite file cannot be opened or written.
        """
        checksums = {
            Path(os.path.relpath(file, self.root)).as_posix(): [size_of(file), digest(file)]
            for file in files
        }
        record = {
            "fingerprint": fingerprint,
            "done": is_result,
            "files": checksums,
            "values": values,
        }
        text = json.dumps(record)
        row = name, text, digest_content([name, text])
        self.root.mkdir(parents=True, exist_ok=True)
        insert = "INSERT OR REPLACE INTO results VALUES (?, ?, ?)"
        if not self._is_damaged:
            try:
                self._execute(insert, row, create=True)
                return
            except _DatabaseError as damage:
                self._warn_of_damage(damage)
        # A damaged file is replaced by an empty one: its results count as missing and are computed
        # again. `read` only warns, so that reading never removes anything.
        self.file.unlink(missing_ok=True)
        self._is_damaged = False
        self._execute(insert, row, create=True)

    def read(self, name: str, fingerprint: str | None = None) -> Json | None:
        """Return the values of a record; None if it does not exist or its fingerprint differs.

        The files of the result are not checked; `is_done` does that.
        """
        record = self._read_records(name).get(name)
        if record is None or fingerprint not in (None, record.fingerprint):
            return None
        return record.values

    def is_done(self, name: str, fingerprint: str) -> bool:
        """Tell whether a result is done; read all its files and compare their checksums."""
        record = self._read_records(name).get(name)
        if record is None or not record.done or record.fingerprint != fingerprint:
            return False
        for path, (size, checksum) in record.files.items():
            file = self.root / path
            # A record in a folder of a stranger could name any file of the machine.
            if not self._is_in_results(file):
                return False
            # Leftovers of killed processes are removed by the next writer. A folder of finished
            # results has no next writer, so they are removed here.
            remove_leftovers(file.parent)
            if size_of(file) != size or checksum != digest(file):
                warnings.warn(f"{file}: it is damaged, and made again", stacklevel=2)
                return False
        return True

    def _is_in_results(self, file: Path) -> bool:
        """Tell whether a file (or Zarr folder) exists and lies below the parent of the store."""
        is_inside = Path(os.path.normpath(file)).is_relative_to(os.path.normpath(self.root.parent))
        is_folder = file.is_dir() and file.suffix == ".zarr"
        return is_inside and (file.is_file() or is_folder)

    def read_all(self) -> dict[str, Json]:
        """Return the values of all records by name, in the order of the names."""
        return {name: record.values for name, record in self._read_records().items()}

    def _read_records(self, name: str | None = None) -> "dict[str, _Record]":
        """Return the records that are not damaged, by name; warn of the others."""
        if not self.file.exists():
            return {}
        query = "SELECT name, record, checksum FROM results WHERE ifnull(length(record), 0) < ?"
        parameters: list[object] = [_MAX_RECORD_CHARACTERS]
        if name is not None:
            query += " AND name = ?"
            parameters.append(name)
        query += " ORDER BY name"
        try:
            rows = self._execute(query, tuple(parameters))
        except _DatabaseError as damage:
            # The next `write` makes a new file: a row written into this one might not be found.
            self._warn_of_damage(damage)
            return {}
        records = {}
        for key, text, checksum in rows:
            try:
                if checksum != digest_content([key, text]):
                    raise ValueError("the content is not what its checksum says")
                record = _Record(**json.loads(text))
                # This raises TypeError or ValueError if values or files have another form.
                dict(record.values), [(size, sha) for size, sha in record.files.values()]
            except (ValueError, TypeError, AttributeError, RecursionError):
                note = "it is damaged or of another version, and made again"
                warnings.warn(f"{self.file}: {key!r}: {note}", stacklevel=3)
                continue
            records[key] = record
        return records

    def _warn_of_damage(self, damage: Exception) -> None:
        """Warn that the file is damaged; the next `write` replaces it."""
        self._is_damaged = True
        warnings.warn(f"{self.file}: {damage}; it is made again", stacklevel=4)

    def _execute(
        self, statement: str, parameters: tuple[object, ...], create: bool = False
    ) -> list[tuple[Any, ...]]:
        """Execute one statement in a new connection; with `create`, make a missing file and table.

        A connection must not be used after a fork, so none is kept.

        Raises:
            OSError: the file cannot be opened or written, or stays locked.
            _DatabaseError: the file is no SQLite file, or has other tables.
        """
        check_parents(str(self.file.absolute()))
        check_names(self.root, [f"{FILE}*"])
        uri = f"{self.file.absolute().as_uri()}?mode=rw{'c' if create else ''}"
        try:
            with contextlib.closing(
                sqlite3.connect(uri, timeout=_LOCK_TIMEOUT_SECONDS, isolation_level=None, uri=True)
            ) as connection:
                # The file may come from somebody else, so none of its functions, views or triggers
                # is run.
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                schema = "SELECT sql FROM sqlite_master"
                if not connection.execute(schema).fetchall():
                    if not create:
                        return []  # another process has just made the file, without a table yet
                    connection.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
                if connection.execute(schema).fetchall() != [(_TABLE,)]:
                    raise _DatabaseError("expected one table of results")
                return connection.execute(statement, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if not any(word in str(error) for word in _ACCESS_ERRORS):
                raise _DatabaseError(str(error)) from None
            number = errno.ENOSPC if "full" in str(error) else errno.EIO
            raise OSError(number, f"cannot be read or written ({error})", str(self.file)) from None
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise _DatabaseError(str(error)) from None


class _DatabaseError(Exception):
    """The file is no SQLite file, or it has other tables than a store."""


class _Record(NamedTuple):
    """The content of a row: `files` has (size, SHA-256) by path relative to the store."""

    fingerprint: str
    done: bool  # name: a key of the JSON text in the database
    files: dict[str, tuple[int, str]]
    values: Json


def file_name(text: str) -> str:
    """Return a file name for a text: `snr=10` is left as it is, `a/b` becomes `a%2Fb`."""
    name = quote(text, safe=" =,+()[]")
    return f"%{name[1:]}" if name.startswith(".") else name


def fingerprint(value: object, content: bool = False) -> str:
    """Return a hash of dicts, lists, numbers and texts, after `describe_inputs`."""
    text = json.dumps(describe_inputs(value, content), sort_keys=True, default=str)
    return digest_content([text])[:32]


def describe_inputs(value: object, content: bool = False) -> Any:
    """Return a value in which descriptions replace the paths of existing files.

    If `content` is true, a description is the SHA-256 of the file. Otherwise it is the file's name,
    size and time of change, because reading a thousand files would take too long.
    """
    if isinstance(value, Mapping):
        return {str(key): describe_inputs(item, content) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe_inputs(item, content) for item in value]
    if isinstance(value, str | os.PathLike) and (found_file := _find_file(value)) is not None:
        file, status = found_file
        if content:
            return f"sha256:{digest(file)}"
        if not stat.S_ISDIR(status.st_mode):
            return [file.name, status.st_size, status.st_mtime_ns]
        latest_change_ns = max(path.stat().st_mtime_ns for path in (file, *file.rglob("*")))
        return [file.name, size_of(file), latest_change_ns]
    return value


def _find_file(value: str | os.PathLike[str]) -> tuple[Path, os.stat_result] | None:
    """Return the file (or Zarr folder) that a text names, and its status; None without a file."""
    try:
        file = Path(value).expanduser()
        status = file.stat()
    # `value` may be any text, also one that is too long for a name or begins with "~".
    except (OSError, ValueError, RuntimeError):
        return None
    is_data = stat.S_ISREG(status.st_mode) or (
        file.suffix == ".zarr" and stat.S_ISDIR(status.st_mode)
    )
    return (file, status) if is_data else None
