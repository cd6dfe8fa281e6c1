"""Files that appear whole or not at all, and what the system says where they cannot."""

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

_STAGE = re.compile(r"\.cassi-[0-9a-f]{16}")
_STAGED = re.compile(rf"/{_STAGE.pattern}(?:/new)?")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    r"""Yield a temporary path that becomes ``path`` if the block succeeds.

    The temporary file has the final name, in a hidden folder beside it. After the block the file is
    flushed to the disk and renamed; after an exception it is removed and whatever stood under
    ``path`` is untouched. The hidden folder is locked while its writer lives. What a killed process
    has left is removed by the next one that writes beside it.

    Args:
        path: The final name. Its folder must exist; a link is followed, its target replaced. Below
            a folder of results (`cassi.links`) the link itself is replaced. A folder that ends
            in `.zarr` may be replaced by another.

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
    """Yield one temporary path for each of several files of one folder that belong together.

    They share a folder, so a pair such as ``cube.img`` and ``cube.hdr`` finds itself. All files are
    flushed before the first is renamed; the renames follow the order of the arguments, so put the
    file that announces the others last. Should a rename fail, all is put back as it was.
    """
    finals = [_checked(Path(path)) for path in paths]
    with _stage(finals[0].parent, finals[0]) as stage:
        temporaries = [stage / final.name for final in finals]
        yield tuple(temporaries)
        _publish(temporaries, finals)


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder whose files move into ``folder`` if the block succeeds.

    ``folder`` is made if it is not there; files of other names in it stay. After an exception the
    temporary folder is gone and no file of the block is in ``folder``.
    """
    final = Path(folder)
    final.mkdir(parents=True, exist_ok=True)
    with _stage(final, final) as stage:
        yield stage
        # In the order of writing: what announces the others is written, and appears, last.
        written = sorted(stage.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        _publish(written, [final / file.name for file in written])


def is_temporary(path: Path) -> bool:
    """Tell whether a file is being written, or was left by a killed process."""
    return any(_STAGE.fullmatch(part) for part in path.parts)


@contextlib.contextmanager
def _stage(folder: Path, final: Path) -> Iterator[Path]:
    """Make a hidden folder to write to, with a lock that tells others that it is in use."""
    remove_leftovers(folder)
    try:
        stage, lock = _make_stage(folder)
        try:
            yield stage / "new"
        finally:
            _remove_stage(stage)
            os.close(lock)
    except OSError as error:
        _explain(error, final)
        raise


def _make_stage(folder: Path) -> tuple[Path, int]:
    """Return a new stage and its lock, the first file in it."""
    while True:
        stage = folder / f".cassi-{secrets.token_hex(8)}"
        stage.mkdir()
        lock: int | None = None
        try:
            # NFS locks only what is opened to be written.
            lock = os.open(stage / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with contextlib.suppress(OSError):  # without locks here, nobody removes it
                fcntl.flock(lock, fcntl.LOCK_EX)
            (stage / "new").mkdir()
        except BaseException as error:
            _remove_stage(stage)
            if lock is not None:
                os.close(lock)
            # Another process took it for that of a dead one, before it was locked.
            if not isinstance(error, FileNotFoundError) or not folder.is_dir():
                raise
        else:
            return stage, lock


@functools.cache
def remove_leftovers(folder: Path) -> None:
    """Remove what processes that have ended left in a folder, once per process."""
    with contextlib.suppress(OSError):
        for stage in [entry for entry in folder.iterdir() if _STAGE.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):  # it is locked, another user's, or gone
                _remove_dead(stage)


def _remove_dead(stage: Path) -> None:
    """Remove a stage; OSError where its writer lives, or where it is a link."""
    if stage.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(stage))
    try:
        lock = os.open(stage / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        stage.rmdir()  # it is empty: the lock comes first and goes last
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
    """Flush all files of a stage, then rename them in order; if that fails, all is as it was."""
    for temporary in temporaries:
        for inner in temporary.rglob("*") if temporary.is_dir() else ():
            _flush(inner)
        _flush(temporary)
    moves = [(new, final, _old(new)) for new, final in zip(temporaries, finals, strict=True)]
    try:
        for temporary, final, old in moves:
            _keep(temporary, final, old, alone=len(moves) == 1)
            os.replace(temporary, final)  # noqa: PTH105
    except BaseException:
        for temporary, final, old in moves:
            is_renamed = not os.path.lexists(temporary)
            if is_renamed and (len(moves) > 1 or os.path.lexists(old)):  # one file alone is whole
                _remove(final)
            if not os.path.lexists(final):
                with contextlib.suppress(OSError):
                    old.rename(final)
        raise
    for final in finals:
        # What GDAL once noted beside an image, such as its statistics, is not true of another.
        _remove(final.with_name(f"{final.name}.aux.xml"))
    # Some file systems refuse to flush a folder; the rename itself has already happened.
    with contextlib.suppress(OSError):
        _flush(finals[0].parent)


def _old(temporary: Path) -> Path:
    """Return the second name of what stood under the final one, to put it back from."""
    return temporary.parent.with_name("old") / temporary.name


def _keep(temporary: Path, final: Path, old: Path, alone: bool) -> None:
    """Let what stands under the final name have a second one."""
    is_folder = final.is_dir() and temporary.is_dir()
    if not is_folder and (alone or not final.exists()):
        return  # one rename replaces a file
    old.parent.mkdir(exist_ok=True)
    if is_folder:
        final.rename(old)  # nothing can replace a folder that holds something
    else:
        with contextlib.suppress(OSError):  # no hard links here
            os.link(final, old)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)


def _explain(error: OSError, final: Path) -> None:
    """Name the file of an error that does not, and give a number to one that has none."""
    if isinstance(error.filename, str):
        error.filename = _STAGED.sub("", error.filename)
    if type(error) is not OSError:
        return
    if error.errno is None:
        # NumPy's word for a full disk is "1835008 requested and 783236 written".
        reason = f"could not be written whole, is the disk full? ({error})"
        raise OSError(errno.EIO, reason, str(final)) from error
    if error.errno in DISK_ERRORS and error.filename is None:
        error.filename = str(final)


def _checked(path: Path) -> Path:
    named = os.path.abspath(path.expanduser())  # noqa: PTH100
    path = Path(named if check_parents(named) else os.path.realpath(named))
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
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode(errors="surrogatepass") if isinstance(part, str) else part)
    return found.hexdigest()


def check_archive(path: Path) -> None:
    """Check a ZIP archive, which `torch.save` and `numpy.savez` write, by the CRC-32 of each part.

    torch does not look at these sums when it reads. ValueError where it is damaged, or no archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(member.compress_type for member in members):
                raise ValueError("its parts are compressed")
            damaged = archive.testzip()
    except OSError:
        raise
    except Exception as error:  # zipfile and zlib fail in many ways on a damaged file
        raise ValueError(f"{path}: it is cut or damaged ({error})") from None
    if damaged is not None:
        raise ValueError(f"{path}: it is damaged at {damaged}")
