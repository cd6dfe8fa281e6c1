"""Access to files: the application reads only those below the folders of the command line."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cassi.checks import read_regular
from cassi.data.bundled import bundled_path
from cassi.data.formats.listing import list_folder

# Folders are searched to this depth. The page lists them every few seconds, and a deeper search
# would take longer.
_MAX_DEPTH = 6
# First: the package. Second: the folder of its bundled scenes. In a checkout the second one lies
# outside of the first one.
_PACKAGE_FOLDERS = (Path(__file__).resolve().parents[2], bundled_path("scene.tif").parent.resolve())


class AllowedPaths:
    """The folders that may be read. A symbolic link counts as the file that it leads to.

    Args:
        folders: may be read, with everything below them.

    Raises:
        NotADirectoryError: a path is no folder.
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
            PermissionError: the path is not below the folders.
        """
        real_path = Path(os.path.realpath(Path(path).expanduser()))
        if not any(real_path.is_relative_to(folder) for folder in self.folders):
            raise PermissionError(
                f"{path} is not below the folders that cassi-view was given "
                f"({', '.join(map(str, self.folders))}); start it as cassi-view FOLDER"
            )
        return real_path

    def check_opened(self, path: Path) -> None:
        """Raise PermissionError for a file that is neither below the folders nor the package's."""
        real_path = Path(os.path.realpath(path))
        if not any(real_path.is_relative_to(folder) for folder in _PACKAGE_FOLDERS):
            self.resolve(path)

    def read(self, path: Path, max_bytes: int) -> bytes:
        """Return the content of a regular file of at most `max_bytes`; a pipe is refused."""
        # Without `follow=False` a link could take the place of the file after the check.
        return read_regular(self.resolve(path), max_bytes, follow=False)

    def list_files(self, suffixes: Iterable[str], max_files: int = 1000) -> dict[str, Path]:
        """Return at most `max_files` files by their displayed names, sorted by folder and name.

        A link is followed if it stays below the folder, as in folders of snapshots.
        """
        endings, files = tuple(suffixes), dict[str, Path]()
        for folder, names, _ in self._walk():
            for name in sorted(names):
                if (
                    name.lower().endswith(endings)
                    and len(files) < max_files
                    and is_text(folder / name)
                ):
                    files[self.name_of(folder / name)] = folder / name
        return files

    def name_of(self, path: Path) -> str:
        """Return the displayed name of a file: its path relative to the allowed folder."""
        root = next((folder for folder in self.folders if path.is_relative_to(folder)), None)
        name = path.name if root is None else path.relative_to(root).as_posix()
        # With several folders the name begins with the folder, so that names stay different.
        name = name if root is None or len(self.folders) == 1 else f"{root.name}/{name}"
        return name if is_text(name) else os.fsencode(name).decode("utf-8", "replace")

    def find(self, name: str) -> list[Path]:
        """Return the folders, sorted, that hold a file or a refused link of that name."""
        return sorted(
            folder
            for folder, names, refused_links in self._walk()
            if name in (*names, *refused_links)
        )

    def _walk(self) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Yield each folder once, with the names of its files and of its refused links.

        Real folders come before linked ones, so that a folder is listed under its own name.
        """
        visited_folders: set[str] = set()
        for root in self.folders:
            real_folders, linked_folders = [root], list[Path]()
            while real_folders or linked_folders:
                folder = (real_folders or linked_folders).pop()
                if (real_path := os.path.realpath(folder)) in visited_folders:
                    continue
                visited_folders.add(real_path)
                try:
                    entries, refused_links = list_folder(folder, root)
                except OSError:  # a folder that cannot be read hides no other one
                    continue
                folders = [path for path in entries if path.is_dir()]
                files = [path.name for path in entries if path not in folders]
                yield folder, files, [path.name for path in refused_links]
                if len(folder.relative_to(root).parts) < _MAX_DEPTH:
                    real_folders += [path for path in reversed(folders) if not path.is_symlink()]
                    linked_folders += [path for path in reversed(folders) if path.is_symlink()]


def is_text(name: str | Path) -> bool:
    """Tell whether a file's name is valid UTF-8, so that it can be sent to a page."""
    return os.fsencode(name).decode("utf-8", "ignore") == str(name)
