"""Uploads: files dropped into the page, kept so that a run can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cassi.data.atomic import atomic_path, digest_content


def keep_upload(root: Path, files: Mapping[str, bytes], suffixes: tuple[str, ...]) -> Path:
    """Write files that were dropped together, such as the two of an ENVI image, into one folder.

    The name of the folder is a checksum of names and contents: the same files are kept once.

    Args:
        root: in which the folder is made.
        files: content by name.
        suffixes: of files that can be read.

    Returns:
        The path of the file to read: the header if there is one, else the first.

    Raises:
        OSError: a file cannot be written.
        ValueError: no file can be read, or a name is no plain file name.
    """
    for name in files:
        if Path(name).name != name or name.startswith(".") or "\\" in name or "\0" in name:
            raise ValueError(f"expected the name of a file, got {name!r}")
    readable = [name for name in files if name.lower().endswith(suffixes)]
    if not readable:
        got = ", ".join(files) or "nothing"
        raise ValueError(f"expected a file {' '.join(suffixes)}, got {got}")
    chosen = next((name for name in readable if name.lower().endswith(".hdr")), readable[0])
    parts = [part for name in sorted(files) for part in (name, "\0", files[name])]
    key = digest_content(parts)
    folder = root / key[:12]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if not (folder / name).exists():
            with atomic_path(folder / name) as temporary:
                temporary.write_bytes(content)
    return folder / chosen
