"""Folders below which nothing is written through a link."""

import os
import stat
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

_guarded: set[str] = set()
_THROUGH = frozenset({"open", "os.truncate", "os.chmod", "os.chown", "os.utime"})
"""What follows a link that the path itself ends in; all else follows those before its end."""
_EVENTS = _THROUGH | {"os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def guard(*folders: str | os.PathLike[str]) -> None:
    """Have this process write through no link below folders, whatever library writes.

    A folder may itself be a link: the user has named it. What came with it could lead to any file
    of the machine.
    """
    _listen()
    for folder in folders:
        _guarded.update((os.path.abspath(folder), os.path.realpath(folder)))  # noqa: PTH100


def guarded() -> tuple[str, ...]:
    """Return the folders of `guard`, for another process."""
    return tuple(sorted(_guarded))


def release() -> None:
    """Forget the folders of `guard`."""
    _guarded.clear()


def check_names(folder: Path, names: Iterable[str]) -> None:
    """Refuse links among what a command is going to write, before it writes anything.

    A pipe or a device is refused too: whoever opens it could wait forever.
    """
    patterns = tuple(names)
    if folder.is_dir():
        for entry in list(os.scandir(folder)):
            if any(fnmatch(entry.name, pattern) for pattern in patterns):
                _refuse(entry.path)
                for inner, folders, files in os.walk(entry.path):
                    for name in (*folders, *files):
                        _refuse(os.path.join(inner, name))  # noqa: PTH118


def check_parents(path: str) -> bool:
    """Refuse a path through a link below a guarded folder; tell whether it is below one."""
    inside = [root for root in _guarded if path.startswith(f"{root}{os.sep}")]
    for root in inside:
        for place, sign in enumerate(path):
            if sign == os.sep and place > len(root):
                _refuse(path[:place])
    return bool(inside)


def _refuse(path: str) -> None:
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
def _listen() -> None:
    sys.addaudithook(_audit)  # it stays; without a guarded folder it does nothing


def _audit(event: str, given: tuple[object, ...]) -> None:
    if not _guarded or event not in _EVENTS:
        return
    if event == "open" and not (isinstance(given[2], int) and given[2] & _WRITING):
        return
    for name in given[:2] if event in ("os.rename", "os.link") else given[:1]:
        if isinstance(name, str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100
            if check_parents(path) and event in _THROUGH:
                _refuse(path)
