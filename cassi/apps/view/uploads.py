"""Uploads: files dropped into the page, kept so that a run can be repeated."""

from collections.abc import Mapping
from pathlib import Path

from cassi.data.atomic import atomic_path, digest, digest_content

LARGEST = 2**30
"""Bytes of the files of a drop."""


class Inbox:
    """Files that have come from one field of a page; those of one drop."""

    def __init__(self) -> None:
        self._drop, self._files = "", dict[str, bytes]()

    def add(self, drop: str, name: str, content: bytes) -> None:
        """Take a file; the first of another drop forgets those before.

        Raises:
            ValueError: the files of the drop are too long, or have the same name.
        """
        if drop != self._drop:
            self._drop, self._files = drop, {}
        if sum(map(len, self._files.values())) + len(content) > LARGEST:
            raise ValueError(
                f"expected at most {LARGEST // 2**20} MiB; put larger files into the folder, and "
                "choose them there"
            )
        if name in self._files:
            raise ValueError(f"expected names that differ, got {name} twice; drop them one by one")
        self._files[name] = content

    def take(self, drop: str) -> dict[str, bytes]:
        """Return the files of a drop by name; the inbox has them no longer."""
        if drop != self._drop:
            return {}
        files, self._files = self._files, {}
        return files


def keep_upload(root: Path, files: Mapping[str, bytes], suffixes: tuple[str, ...]) -> Path:
    """Write files that were dropped together, such as the two of an ENVI image, into one folder.

    The name of the folder is the SHA-256 of a list of names and checksums: the same files are kept
    once, and others never have the same folder.

    Args:
        root: in which the folder is made.
        files: content by name.
        suffixes: of files that can be read.

    Returns:
        The path of the file to read: the header if there is one, else the first.
    """
    for name in files:
        if Path(name).name != name or name.startswith(".") or "\\" in name or "\0" in name:
            raise ValueError(f"expected the name of a file, got {name!r}")
    readable = [name for name in files if name.lower().endswith(suffixes)]
    if not readable:
        got = ", ".join(files) or "nothing"
        raise ValueError(f"expected a file {' '.join(suffixes)}, got {got}")
    chosen = next((name for name in readable if name.lower().endswith(".hdr")), readable[0])
    sums = {name: digest_content([content]) for name, content in files.items()}
    listed = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    folder = root / digest_content([listed])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        kept = folder / name
        if not kept.exists() or digest(kept) != sums[name]:  # somebody has changed it
            with atomic_path(kept) as temporary:
                temporary.write_bytes(content)
    return folder / chosen
