"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["atomic_folder", "atomic_path", "atomic_paths"]


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    r"""Yield a temporary path beside ``path`` that becomes ``path`` if the block succeeds.

    The temporary name keeps the suffix (libraries choose a format by it) and is hidden. After the
    block the file is flushed to the disk and renamed; after an exception it is removed and whatever
    stood under ``path`` is untouched.

    Args:
        path: The final name. Its folder must exist; a link is followed, its target replaced.

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

    Args:
        *paths: The final names.

    Yields:
        The names to write to, in the same order.

    Raises:
        OSError: As for :func:`atomic_path`.
    """
    finals = [_checked(Path(path)) for path in paths]
    token = secrets.token_hex(4)
    # The stem is cut so that a name as long as the file system allows still has a temporary one.
    temporaries = [f.with_name(f".{f.stem[:60]}.{token}{f.suffix}") for f in finals]
    try:
        yield tuple(temporaries)
        _publish(temporaries, finals)
    except BaseException as error:
        _remove(temporaries)
        if type(error) is OSError and error.errno is None:
            # NumPy's word for a full disk is "1835008 requested and 783236 written".
            reason = f"could not be written whole, is the disk full? ({error})"
            raise OSError(errno.EIO, reason, str(finals[0])) from error
        raise


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder whose files move into ``folder`` if the block succeeds.

    After an exception the temporary folder is gone and no file of the block is in ``folder``.

    Args:
        folder: Where the files go, made if it is not there. Files of other names in it stay.

    Yields:
        The hidden folder, inside ``folder``, to write to.

    Raises:
        OSError: As for :func:`atomic_path`.
    """
    final = Path(folder)
    final.mkdir(parents=True, exist_ok=True)
    stage = final / f".{secrets.token_hex(4)}"
    stage.mkdir()
    try:
        yield stage
        # In the order of writing: what announces the others is written, and appears, last.
        written = sorted(stage.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        _publish(written, [final / file.name for file in written])
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _publish(temporaries: Sequence[Path], finals: Sequence[Path]) -> None:
    """Flush all files, then rename them in order; if that fails, all is as it was."""
    for temporary in temporaries:
        _flush(temporary)
    placed: list[tuple[Path, Path]] = []
    try:
        for temporary, final in zip(temporaries, finals, strict=True):
            earlier = temporary.with_name(f"{temporary.name}.earlier")
            with contextlib.suppress(OSError):  # nothing there yet, or no hard links here
                os.link(final, earlier)
            placed.append((final, earlier))
            os.replace(temporary, final)  # noqa: PTH105
    except BaseException:
        for final, earlier in placed[:-1]:
            _remove([final])
            with contextlib.suppress(OSError):
                earlier.rename(final)
        raise
    finally:
        _remove([earlier for _, earlier in placed])
    # Some file systems refuse to flush a folder; the rename itself has already happened.
    for folder in {final.parent for final in finals}:
        with contextlib.suppress(OSError):
            _flush(folder)


def _remove(files: Sequence[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def _checked(path: Path) -> Path:
    path = Path(os.path.realpath(path.expanduser()))
    if path.is_dir():
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
