"""The files that the application may read: those below the folders of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_DEEPEST = 6
"""Folders below one that was given."""


class AllowedPaths:
    """The folders that may be read; symbolic links are followed first.

    Args:
        folders: that may be read, with all below them.

    Raises:
        NotADirectoryError: one is no folder.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders: list[Path] = []
        for folder in folders:
            if not folder.is_dir():
                raise NotADirectoryError(f"expected a folder, got {folder}")
            self.folders.append(folder.resolve())

    def __contains__(self, path: object) -> bool:
        """Tell whether a path lies below one of the folders."""
        place = Path(os.path.realpath(Path(str(path)).expanduser()))
        return any(place.is_relative_to(folder) for folder in self.folders)

    def resolve(self, path: str | os.PathLike[str]) -> Path:
        """Return a path without symbolic links.

        Raises:
            PermissionError: it is not below the folders.
        """
        if path not in self:
            raise PermissionError(
                f"{path} is not below the folders that cassi-view was given "
                f"({', '.join(map(str, self.folders))}); start it as cassi-view FOLDER"
            )
        return Path(os.path.realpath(Path(path).expanduser()))

    def check(self, value: Any) -> None:
        """Check every text in nested dicts and lists that names an existing file or folder.

        Raises:
            PermissionError: one is not below the folders.
        """
        if isinstance(value, dict):
            for item in value.values():
                self.check(item)
        elif isinstance(value, list | tuple):
            for item in value:
                self.check(item)
        elif isinstance(value, str) and _is_there(value):
            self.resolve(value)

    def list_files(self, suffixes: Iterable[str], most: int = 1000) -> dict[str, Path]:
        """Return at most so many files by the name to show, sorted by folder and name."""
        wanted = tuple(suffixes)
        found: dict[str, Path] = {}
        for folder, names in self._walk():
            for name in sorted(names):
                if name.lower().endswith(wanted) and len(found) < most:
                    found[self.name_of(folder / name)] = folder / name
        return found

    def name_of(self, path: Path) -> str:
        """Return the name of a file in lists: its path below the folder that may be read."""
        root = next((each for each in self.folders if path.is_relative_to(each)), None)
        if root is None:
            return path.name
        name = path.relative_to(root).as_posix()
        return name if len(self.folders) == 1 else f"{root.name}/{name}"

    def find(self, name: str) -> list[Path]:
        """Return the folders that hold a file of that name, sorted."""
        return sorted(folder for folder, names in self._walk() if name in names)

    def _walk(self) -> Iterator[tuple[Path, list[str]]]:
        for root in self.folders:
            for place, folders, names in os.walk(root):
                deep = len(Path(place).relative_to(root).parts) >= _DEEPEST
                folders[:] = [] if deep else sorted(n for n in folders if not n.startswith("."))
                yield Path(place), [name for name in names if not name.startswith(".")]


def _is_there(text: str) -> bool:
    try:
        return bool(text) and Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no such user: no name of a file
        return False
