"""Protect folders of results: nothing below them is written through a link."""

import os
import stat
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

_guarded_folders: set[str] = set()
# Audit events of calls that follow a link even if the link is the last part of the path. The other
# calls follow only links among the parent folders.
_EVENTS_AT_LINK_TARGET = frozenset({"open", "os.truncate", "os.chmod", "os.chown", "os.utime"})
_EVENTS = _EVENTS_AT_LINK_TARGET | {
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.rename",
    "os.link",
    "os.symlink",
}
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def guard_folders(*folders: str | os.PathLike[str]) -> None:
    """Forbid this process, with all its libraries, to write through links below these folders.

    A folder itself may be a link, since the user has named it. A link inside the folder may come
    from somebody else, and could lead to any file of the machine.
    """
    _install_audit_hook()
    for folder in folders:
        _guarded_folders.update((os.path.abspath(folder), os.path.realpath(folder)))  # noqa: PTH100


def guarded_folders() -> tuple[str, ...]:
    """Return the folders of `guard_folders`, so that another process can guard them too."""
    return tuple(sorted(_guarded_folders))


def release() -> None:
    """Forget the folders of `guard_folders`."""
    _guarded_folders.clear()


def check_names(folder: Path, names: Iterable[str]) -> None:
    """Before a command writes, refuse links at the names of the files that it is going to write.

    A pipe or a device is refused too: a process that opens it could wait forever.

    Args:
        folder: the folder of results; it need not exist.
        names: patterns of file names, such as `*.png`.

    Raises:
        PermissionError: an entry of such a name, or an entry inside it, is a link, pipe or device.
    """
    patterns = tuple(names)
    if folder.is_dir():
        for entry in list(os.scandir(folder)):
            if any(fnmatch(entry.name, pattern) for pattern in patterns):
                _refuse_link(entry.path)
                for subfolder, folders, files in os.walk(entry.path):
                    for name in (*folders, *files):
                        _refuse_link(os.path.join(subfolder, name))  # noqa: PTH118


def check_parents(path: str) -> bool:
    """Tell whether a path is below a guarded folder.

    Raises:
        PermissionError: a folder between the guarded one and the end of the path is a link.
    """
    roots = [root for root in _guarded_folders if path.startswith(f"{root}{os.sep}")]
    # Every folder between the guarded one and the end of the path may be a link.
    for root in roots:
        for index, character in enumerate(path):
            if character == os.sep and index > len(root):
                _refuse_link(path[:index])
    return bool(roots)


def _refuse_link(path: str) -> None:
    """Raise PermissionError for a link, a pipe or a device; files, folders and free names pass."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # nothing is there
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a link" if stat.S_ISLNK(mode) else "neither file nor folder"
        raise PermissionError(
            f"{path} is {kind}, and a folder of results may hold none where results go; remove it, "
            "or set hydra.run.dir=DIR"
        )


@cache
def _install_audit_hook() -> None:
    # A hook sees the calls of all libraries in this process. Python cannot remove a hook again, so
    # this one does nothing while no folder is guarded.
    sys.addaudithook(_check_event)


def _check_event(event: str, arguments: tuple[object, ...]) -> None:
    if not _guarded_folders or event not in _EVENTS:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITE_FLAGS):
        return
    # Renaming and hard links have two paths, and no parent of either path may be a link.
    for name in arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]:
        if isinstance(name, str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100
            if check_parents(path) and event in _EVENTS_AT_LINK_TARGET:
                _refuse_link(path)
