"""Write files atomically, compute their checksums, and describe errors of the disk."""

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cassi.links import check_parents

# A `with` block writes into a stage, a hidden folder beside the target. The stage lies there
# because a rename is atomic only within one file system. A stage has up to three entries: the file
# `lock`; the folder `new` with the new files; and the folder `old` with the files that these
# replace.
_STAGE = re.compile(r"\.cassi-[0-9a-f]{16}")
_STAGE_IN_PATH = re.compile(rf"/{_STAGE.pattern}(?:/new)?")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    r"""Yield a temporary path that becomes ``path`` if the block succeeds.

    The temporary file lies in a hidden folder beside ``path`` and has the same name. After the
    block the file is flushed to the disk and renamed. After an exception it is removed, and
    ``path`` stays as it was. The hidden folder is locked while its writer lives. The next process
    that writes to the same folder removes the hidden folders of killed processes.

    Args:
        path: The final name. Its folder must exist. If it is a link, the target of the link is
            replaced; below a folder of results (`cassi.links`) the link itself is replaced. A
            folder whose name ends in `.zarr` can be replaced by another folder.

    Raises:
        OSError: The folder does not exist, is a file, or leads through a link below a folder of
            results; ``path`` is a folder; or writing failed, for example because the disk is full.

    Example:
        >>> with atomic_path("table.csv") as temporary:  # doctest: +SKIP
        ...     temporary.write_text("a,b\n")
    """
    with atomic_paths(path) as (temporary,):
        yield temporary


@contextlib.contextmanager
def atomic_paths(*paths: str | os.PathLike[str]) -> Iterator[tuple[Path, ...]]:
    """Yield temporary paths for several files of one folder that belong together.

    The temporary files share a folder, so the header ``cube.hdr`` finds its ``cube.img``. All files
    are flushed before the first is renamed. The renames follow the order of the arguments, so put
    the file that names the others last. If a rename fails, the earlier files are restored.

    Raises:
        OSError: as for `atomic_path`.
    """
    finals = [_resolve_target(Path(path)) for path in paths]
    with _open_stage(finals[0].parent, finals[0]) as stage:
        temporaries = [stage / final.name for final in finals]
        yield tuple(temporaries)
        _publish(temporaries, finals)


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder whose files move into ``folder`` if the block succeeds.

    ``folder`` is created if it does not exist. Files in it with other names stay. After an
    exception the temporary folder is removed, and ``folder`` contains no file of the block.
    """
    final = Path(folder)
    final.mkdir(parents=True, exist_ok=True)
    with _open_stage(final, final) as stage:
        yield stage
        # Files appear in the order in which they were written. If one file names the others, a
        # caller writes it last. So a reader who sees this file finds the others.
        files = sorted(stage.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        _publish(files, [final / file.name for file in files])


def is_temporary(path: Path) -> bool:
    """Tell whether a file lies in a stage: it is being written, or a killed process left it."""
    return any(_STAGE.fullmatch(part) for part in path.parts)


@contextlib.contextmanager
def _open_stage(folder: Path, final: Path) -> Iterator[Path]:
    """Yield the folder `new` of a locked stage; name ``final`` in errors of the disk."""
    remove_leftovers(folder)
    try:
        stage, lock = _make_stage(folder)
        try:
            yield stage / "new"
        finally:
            _remove_stage(stage)
            os.close(lock)
    except OSError as error:
        _complete_error(error, final)
        raise


def _make_stage(folder: Path) -> tuple[Path, int]:
    """Return a new stage, and the descriptor of its lock."""
    while True:
        stage = folder / f".cassi-{secrets.token_hex(8)}"
        stage.mkdir()
        lock: int | None = None
        try:
            # NFS locks only files that are open for writing.
            lock = os.open(stage / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            # If the file system has no locks, this fails. Then other processes fail to lock the
            # stage, too, and leave it alone.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            (stage / "new").mkdir()
        except BaseException as error:
            _remove_stage(stage)
            if lock is not None:
                os.close(lock)
            # Between mkdir and flock another process may take this stage for the leftover of a
            # killed process and remove it. Then the loop makes a new stage.
            if not isinstance(error, FileNotFoundError) or not folder.is_dir():
                raise
        else:
            return stage, lock


@functools.cache
def remove_leftovers(folder: Path) -> None:
    """Remove the stages that killed processes left in a folder, once per process."""
    with contextlib.suppress(OSError):
        for stage in [entry for entry in folder.iterdir() if _STAGE.fullmatch(entry.name)]:
            # OSError: the writer of the stage still holds the lock, the stage belongs to another
            # user, or it has just been removed.
            with contextlib.suppress(OSError):
                _remove_dead(stage)


def _remove_dead(stage: Path) -> None:
    """Remove a stage; raise OSError if its writer lives, or if it is a link."""
    if stage.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(stage))
    try:
        lock = os.open(stage / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        # The lock is the first file made and the last one removed, so the stage is empty.
        stage.rmdir()
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_stage(stage)
    finally:
        os.close(lock)


def _remove_stage(stage: Path) -> None:
    for name in ("new", "old", "lock"):
        _remove(stage / name)
    with contextlib.suppress(OSError):
        stage.rmdir()


def _publish(temporaries: Sequence[Path], finals: Sequence[Path]) -> None:
    """Flush all files of a stage, then rename them in order; restore the targets on an error."""
    for temporary in temporaries:
        for file in temporary.rglob("*") if temporary.is_dir() else ():
            _flush(file)
        _flush(temporary)
    moves = [
        (temporary, final, _make_backup_path(temporary))
        for temporary, final in zip(temporaries, finals, strict=True)
    ]
    try:
        for temporary, final, backup in moves:
            _back_up(temporary, final, backup, is_only_file=len(moves) == 1)
            os.replace(temporary, final)  # noqa: PTH105
    except BaseException:
        for temporary, final, backup in moves:
            is_renamed = not os.path.lexists(temporary)
            # A single file without a backup has replaced its target in one step. It is complete, so
            # it stays.
            if is_renamed and (len(moves) > 1 or os.path.lexists(backup)):
                _remove(final)
            if not os.path.lexists(final):
                with contextlib.suppress(OSError):
                    backup.rename(final)
        raise
    for final in finals:
        # GDAL keeps statistics of an image in this file. They do not hold for the new image.
        _remove(final.with_name(f"{final.name}.aux.xml"))
    # Some file systems cannot flush a folder. The renames have already happened.
    with contextlib.suppress(OSError):
        _flush(finals[0].parent)


def _make_backup_path(temporary: Path) -> Path:
    """Return the path in the stage where the replaced file is kept for a restore."""
    return temporary.parent.with_name("old") / temporary.name


def _back_up(temporary: Path, final: Path, backup: Path, is_only_file: bool) -> None:
    """Keep the file or folder at ``final`` as ``backup``, from which it can be restored."""
    is_folder = final.is_dir() and temporary.is_dir()
    if not is_folder and (is_only_file or not final.exists()):
        return  # os.replace replaces a single file in one step
    backup.parent.mkdir(exist_ok=True)
    if is_folder:
        # os.replace cannot replace a folder that is not empty.
        final.rename(backup)
    else:
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(final, backup)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)


def _complete_error(error: OSError, final: Path) -> None:
    """Put the final path into an error of the disk; raise EIO if the error has no number."""
    if isinstance(error.filename, str):
        error.filename = _STAGE_IN_PATH.sub("", error.filename)
    if type(error) is not OSError:
        return
    if error.errno is None:
        # NumPy reports a full disk without a number: "1835008 requested and 783236 written".
        reason = f"could not be written whole, is the disk full? ({error})"
        raise OSError(errno.EIO, reason, str(final)) from error
    if error.errno in DISK_ERRORS and error.filename is None:
        error.filename = str(final)


def _resolve_target(path: Path) -> Path:
    """Follow the links of a path; raise OSError if no file can be written there."""
    absolute = os.path.abspath(path.expanduser())  # noqa: PTH100
    # Below a folder of results links are not followed: `check_parents` refuses one in a parent.
    path = Path(absolute if check_parents(absolute) else os.path.realpath(absolute))
    if path.is_dir() and not path.is_symlink() and path.suffix != ".zarr":
        raise IsADirectoryError(f"cannot write {path}: it is a folder; expected a file name")
    if not path.parent.exists():
        raise FileNotFoundError(f"cannot write {path}: no folder {path.parent}; create it first")
    if not path.parent.is_dir():
        raise NotADirectoryError(f"cannot write {path}: {path.parent} is not a folder")
    return path


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full disk or an exhausted quota. Removing other files helps."""
UNWRITABLE = DISK_FULL | {errno.EROFS}
"""Error numbers after which writing any other file to the same disk would fail, too."""
DISK_ERRORS = UNWRITABLE | {errno.EFBIG, errno.EIO}
"""Error numbers whose cause is the disk or its file system."""


def describe_oserror(error: OSError) -> str:
    """Return one line: the file of an error, what is wrong with it, and what to do."""
    if not error.strerror:
        return next((line.strip() for line in str(error).splitlines() if line.strip()), "OSError")
    file_prefix = "" if error.filename is None else f"{error.filename}: "
    remedy = "; make room, then the same command goes on" if error.errno in DISK_FULL else ""
    return f"{file_prefix}{error.strerror}{remedy}"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, or of a folder's names and contents, hexadecimal."""
    if path.is_dir():
        names = sorted(f.relative_to(path).as_posix() for f in path.rglob("*") if f.is_file())
        return digest_content(f"{digest(path / name)}  {name}\n" for name in names)
    with path.open("rb") as stream:
        return digest_content(iter(lambda: stream.read(2**20), b""))


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def digest_content(parts: Iterable[bytes | memoryview | str]) -> str:
    """Return the SHA-256 of bytes and texts (UTF-8), one after the other, hexadecimal."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part.encode(errors="surrogatepass") if isinstance(part, str) else part)
    return sha256.hexdigest()


def check_archive(path: Path) -> None:
    """Check the CRC-32 of each part of a ZIP archive.

    `torch.save` and `numpy.savez` write such archives. torch does not check these sums when it
    reads a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the archive is damaged, its parts are compressed, or the file is no archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(member.compress_type for member in members):
                raise ValueError("its parts are compressed")
            damaged_member = archive.testzip()
    except OSError:
        raise
    except Exception as error:  # zipfile and zlib fail in many ways on a damaged file
        raise ValueError(f"{path}: it is cut or damaged ({error})") from None
    if damaged_member is not None:
        raise ValueError(f"{path}: it is damaged at {damaged_member}")
