"""Uploads: files that were dropped into the page, stored so that a run can be repeated."""

from collections.abc import Mapping
from pathlib import Path

from cassi.data.atomic import atomic_path, digest, digest_content

MAX_UPLOAD_BYTES = 2**30
"""Largest total size of the files of one drop."""


class Inbox:
    """Files that were dropped together into one field of a page; only the last drop is kept.

    `drop` is the page's number for files that were dropped together.
    """

    def __init__(self) -> None:
        self._drop, self._files = "", dict[str, bytes]()

    def add(self, drop: str, name: str, content: bytes) -> None:
        """Add a file. The first file of a new drop removes the files of the drop before.

        Raises:
            ValueError: the files of the drop are too large, or two have the same name.
        """
        if drop != self._drop:
            self._drop, self._files = drop, {}
        # The files stay in memory until the last one of the drop has arrived.
        if sum(map(len, self._files.values())) + len(content) > MAX_UPLOAD_BYTES:
            raise ValueError(
                f"expected at most {MAX_UPLOAD_BYTES // 2**20} MiB; put larger files into the "
                "folder, and choose them there"
            )
        if name in self._files:
            raise ValueError(f"expected names that differ, got {name} twice; drop them one by one")
        self._files[name] = content

    def take(self, drop: str) -> dict[str, bytes]:
        """Return the files of a drop by name, and remove them from the inbox."""
        if drop != self._drop:
            return {}
        files, self._files = self._files, {}
        return files


def store_upload(root: Path, files: Mapping[str, bytes], suffixes: tuple[str, ...]) -> Path:
    """Write files that were dropped together, such as the two of an ENVI image, into one folder.

    The name of the folder is the SHA-256 of a list of names and checksums. So the same files are
    stored once, and different files never share a folder.

    Args:
        root: parent of the new folder.
        files: content by name.
        suffixes: suffixes of files that can be read.

    Returns:
        The path of the file to read: the header if there is one, else the first file.

    Raises:
        OSError: a file cannot be written.
        ValueError: a name leads to another folder, or no file can be read.
    """
    # The names come from a browser, and must not lead out of the folder or hide a file.
    for name in files:
        if Path(name).name != name or name.startswith(".") or "\\" in name or "\0" in name:
            raise ValueError(f"expected the name of a file, got {name!r}")
    readable = [name for name in files if name.lower().endswith(suffixes)]
    if not readable:
        names = ", ".join(files) or "nothing"
        raise ValueError(f"expected a file {' '.join(suffixes)}, got {names}")
    main_name = next((name for name in readable if name.lower().endswith(".hdr")), readable[0])
    checksums = {name: digest_content([content]) for name, content in files.items()}
    listing = "".join(f"{checksums[name]}  {name}\n" for name in sorted(checksums))
    folder = root / digest_content([listing])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        # A file that was changed since the last upload is written again.
        if not path.exists() or digest(path) != checksums[name]:
            with atomic_path(path) as temporary:
                temporary.write_bytes(content)
    return folder / main_name
