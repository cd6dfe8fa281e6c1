"""Where the demonstration scene and its mask lie."""

from __future__ import annotations

from pathlib import Path


def bundled_path(name: str) -> Path:
    """Return the path of a bundled file, `scene.tif` or `mask.tif`.

    An installed package carries the files inside; a checkout has them in its `data` folder.

    Raises:
        ValueError: it is no plain name, but a path.
    """
    if name in ("", ".", "..") or Path(name).name != name:
        raise ValueError(f"bundled: expected a name such as mask.tif, got {name!r}")
    package = Path(__file__).resolve().parents[1]
    installed = package / "bundled" / "data" / name
    return installed if installed.exists() else package.parent / "data" / name
