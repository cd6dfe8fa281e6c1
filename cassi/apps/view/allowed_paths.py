"""The files that the application may read: those below the folders of the command line."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cassi.checks import read_regular
from cassi.data.bundled import bundled_path
from cassi.data.formats.listing import list_folder

_DEEPEST = 6
"""Folders below one that was given."""
_OWN = (Path(__file__).resolve().parents[2], bundled_path("scene.tif").parent.resolve())
"""The package, and its scenes where it is a checkout."""


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

    def resolve(self, path: str | os.PathLike[str]) -> Path:
        """Return a path without symbolic links.

        Raises:
            PermissionError: it is not below the folders.
        """
        place = Path(os.path.realpath(Path(path).expanduser()))
        if not any(place.is_relative_to(folder) for folder in self.folders):
            raise PermissionError(
                f"{path} is not below the folders that cassi-view was given "
                f"({', '.join(map(str, self.folders))}); start it as cassi-view FOLDER"
            )
        return place

    def check_opened(self, path: Path) -> None:
        """Raise PermissionError for a file that is neither below the folders nor the package's."""
        place = Path(os.path.realpath(path))
        if not any(place.is_relative_to(own) for own in _OWN):
            self.resolve(path)

    def read(self, path: Path, most: int) -> bytes:
        """Return the content of a regular file of at most so many bytes; no pipe is waited for."""
        # A link may have been put there since.
        return read_regular(self.resolve(path), most, follow=False)

    def list_files(self, suffixes: Iterable[str], most: int = 1000) -> dict[str, Path]:
        """Return at most so many files by the name to show, sorted by folder and name.

        Links are followed that do not lead out of a folder, as in folders of snapshots.
        """
        wanted, files = tuple(suffixes), dict[str, Path]()
        for folder, names, _ in self._walk():
            for name in sorted(names):
                if name.lower().endswith(wanted) and len(files) < most and is_text(folder / name):
                    files[self.name_of(folder / name)] = folder / name
        return files

    def name_of(self, path: Path) -> str:
        """Return the name of a file in lists: its path below the folder that may be read."""
        root = next((each for each in self.folders if path.is_relative_to(each)), None)
        name = path.name if root is None else path.relative_to(root).as_posix()
        name = name if root is None or len(self.folders) == 1 else f"{root.name}/{name}"
        return name if is_text(name) else os.fsencode(name).decode("utf-8", "replace")

    def find(self, name: str) -> list[Path]:
        """Return the folders that hold a file of that name, or a link that is refused, sorted."""
        return sorted(
            folder for folder, names, left_out in self._walk() if name in (*names, *left_out)
        )

    def _walk(self) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Yield each folder once, the names of its files, and those of the links left out.

        A folder goes by its own name before that of a link.
        """
        visited: set[str] = set()
        for root in self.folders:
            own, linked = [root], list[Path]()
            while own or linked:
                place = (own or linked).pop()
                if (real := os.path.realpath(place)) in visited:
                    continue
                visited.add(real)
                try:
                    inside, left_out = list_folder(place, root)
                except OSError:  # the others are listed
                    continue
                folders = [path for path in inside if path.is_dir()]
                files = [path.name for path in inside if path not in folders]
                yield place, files, [path.name for path in left_out]
                if len(place.relative_to(root).parts) < _DEEPEST:
                    own += [path for path in reversed(folders) if not path.is_symlink()]
                    linked += [path for path in reversed(folders) if path.is_symlink()]


def is_text(name: str | Path) -> bool:
    """Tell whether a name can be sent to a page: names of files may be any bytes."""
    return os.fsencode(name).decode("utf-8", "ignore") == str(name)
