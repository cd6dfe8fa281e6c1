"""Files that appear whole or not at all, and what the system says where they cannot."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_MARKED = re.compile(r"\.(?:.*\.)?cassi-([0-9a-f]{8})-(\d+)-[0-9a-f]{8}(?:\..*)?", re.DOTALL)


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    r"""Yield a temporary path beside ``path`` that becomes ``path`` if the block succeeds.

    The temporary name keeps the suffix (libraries choose a format by it) and is hidden. After the
    block the file is flushed to the disk and renamed; after an exception it is removed and whatever
    stood under ``path`` is untouched. What a killed process has left is removed by the next one
    that writes into the folder.

    Args:
        path: The final name. Its folder must exist; a link is followed, its target replaced. A
            folder that ends in `.zarr` may be replaced by another.

    Yields:
        The name to write to. Nothing exists there yet.

    Raises:
        FileNotFoundError: The folder does not exist.
        NotADirectoryError: The folder is a file.
        IsADirectoryError: ``path`` is a folder.
        OSError: Writing, flushing or renaming failed, for example because the disk is full.

    Example:
        >>> with atomic_path("table.csv") as temporary:  # doctest: +SKIP
        ...     temporary.write_text("a,b\n")
    """
    with atomic_paths(path) as (temporary,):
        yield temporary


@contextlib.contextmanager
def atomic_paths(*paths: str | os.PathLike[str]) -> Iterator[tuple[Path, ...]]:
    """Yield one temporary path for each of several files that belong together.

    The temporary names share their stem when the final names do, so a pair such as ``cube.img`` and
    ``cube.hdr`` still finds itself. All files are flushed before the first is renamed; the renames
    follow the order of the arguments, so put the file that announces the others last. Should a
    rename fail, all is put back as it was.

    Yields:
        The names to write to, in the same order.
    """
    finals = [_checked(Path(path)) for path in paths]
    for folder in {final.parent for final in finals}:
        _remove_leftovers(folder)
    mark = _mark()
    # The stem is cut so that a name as long as the file system allows still has a temporary one.
    temporaries = [f.with_name(f".{f.stem[:40]}.{mark}{f.suffix}") for f in finals]
    try:
        yield tuple(temporaries)
        _publish(temporaries, finals)
    except BaseException as error:
        _remove(temporaries)
        _explain(error, finals[0])
        raise


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder whose files move into ``folder`` if the block succeeds.

    `SHA256SUMS` lists them and is the last to appear; one that was there before goes first. So a
    folder that has it is whole, also after a kill between two renames. After an exception the
    temporary folder is gone and no file of the block is in ``folder``.

    Args:
        folder: Where the files go, made if it is not there. Files of other names in it stay.

    Yields:
        The hidden folder, inside ``folder``, to write to.
    """
    final = Path(folder)
    final.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(final)
    stage = final / f".{_mark()}"
    stage.mkdir()
    try:
        yield stage
        # In the order of writing: what announces the others is written, and appears, last.
        written = sorted(stage.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        sums = stage / SUMS
        sums.write_text(list_sums(stage, (file for file in stage.rglob("*") if file.is_file())))
        written.append(sums)
        with _withdrawn(final / SUMS, stage / f"{SUMS}.withdrawn"):
            _publish(written, [final / file.name for file in written])
    except BaseException as error:
        _explain(error, final)
        if isinstance(error, OSError) and str(error.filename).startswith(str(stage)):
            error.filename = str(final / os.path.relpath(error.filename, stage))
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def write_sums(folder: Path, files: Iterable[Path]) -> None:
    """Write `SHA256SUMS` of files that are in a folder, once the last of them is there."""
    with atomic_path(folder / SUMS) as temporary:
        temporary.write_text(list_sums(folder, files))


def _publish(temporaries: Sequence[Path], finals: Sequence[Path]) -> None:
    """Flush all files, then rename them in order; if that fails, all is as it was."""
    for temporary in temporaries:
        _flush_tree(temporary)
    placed: list[tuple[Path, Path, Path]] = []
    try:
        for temporary, final in zip(temporaries, finals, strict=True):
            earlier = temporary.with_name(f"{temporary.name}.earlier")
            placed.append((temporary, final, earlier))
            _keep(temporary, final, earlier, alone=len(finals) == 1)
            os.replace(temporary, final)  # noqa: PTH105
    except BaseException:
        for temporary, final, earlier in placed:
            if not os.path.lexists(temporary):  # it was renamed
                _remove([final])
            if not os.path.lexists(final):
                with contextlib.suppress(OSError):
                    earlier.rename(final)
        raise
    finally:
        _remove([earlier for _, _, earlier in placed])
    # What GDAL once noted beside an image, such as its statistics, is not true of another.
    _remove([final.with_name(f"{final.name}.aux.xml") for final in finals])
    # Some file systems refuse to flush a folder; the rename itself has already happened.
    for folder in {final.parent for final in finals}:
        with contextlib.suppress(OSError):
            _flush(folder)


def _keep(temporary: Path, final: Path, earlier: Path, alone: bool) -> None:
    """Let what stands under the final name have a second one, to put it back from."""
    if final.is_dir() and temporary.is_dir():
        final.rename(earlier)  # nothing can replace a folder that holds something
    elif not alone:
        with contextlib.suppress(OSError):  # nothing there yet, or no hard links here
            os.link(final, earlier)


@contextlib.contextmanager
def _withdrawn(file: Path, aside: Path) -> Iterator[None]:
    """Take a file away, and put it back if the block fails."""
    with contextlib.suppress(FileNotFoundError):
        file.rename(aside)
    try:
        yield
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            aside.rename(file)
        raise


@functools.cache
def _remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that have ended left in a folder, once per process."""
    with contextlib.suppress(OSError):
        for entry in list(folder.iterdir()):
            match = _MARKED.fullmatch(entry.name)
            if match and match[1] == _machine() and not _is_alive(int(match[2])):
                _remove([entry])


def _mark() -> str:
    """Return a name that nobody else uses and that says whose it is."""
    return f"cassi-{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"


@functools.cache
def _machine() -> str:
    """Tell apart the machines, and containers, among which a process number means something.

    The number of this start of the system: clones of a machine share its name.
    """
    said = [socket.gethostname()]
    with contextlib.suppress(OSError):
        said = [Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()]
    with contextlib.suppress(OSError):
        said.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115
    return digest_content([" ".join(said)])[:8]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's
    return True


def _remove(files: Sequence[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)


def _explain(error: BaseException, final: Path) -> None:
    """Name the file of an error that does not, and give a number to one that has none."""
    if type(error) is not OSError:
        return
    if error.errno is None:
        # NumPy's word for a full disk is "1835008 requested and 783236 written".
        reason = f"could not be written whole, is the disk full? ({error})"
        raise OSError(errno.EIO, reason, str(final)) from error
    if error.errno in DISK_ERRORS and error.filename is None:
        error.filename = str(final)


def _checked(path: Path) -> Path:
    path = Path(os.path.realpath(path.expanduser()))
    if path.is_dir() and path.suffix != ".zarr":
        raise IsADirectoryError(f"cannot write {path}: it is a folder; expected a file name")
    if not path.parent.exists():
        raise FileNotFoundError(f"cannot write {path}: no folder {path.parent}; create it first")
    if not path.parent.is_dir():
        raise NotADirectoryError(f"cannot write {path}: {path.parent} is not a folder")
    return path


def _flush_tree(path: Path) -> None:
    if path.is_dir():
        for inner in path.rglob("*"):
            _flush(inner)
    _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""No room on the disk, or none left of what the user may fill: making room helps."""
UNWRITABLE = DISK_FULL | {errno.EROFS}
"""Nothing can be written there, whatever it is: others would fail as this one did."""
DISK_ERRORS = UNWRITABLE | {errno.EFBIG, errno.EIO}
"""All that is the disk's fault and not the file's."""


def describe_oserror(error: OSError) -> str:
    """Say in one line which file it was, what is wrong with it, and what to do."""
    if not error.strerror:
        return next((line.strip() for line in str(error).splitlines() if line.strip()), "OSError")
    place = "" if error.filename is None else f"{error.filename}: "
    room = "; make room, then the same command goes on" if error.errno in DISK_FULL else ""
    return f"{place}{error.strerror}{room}"


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
