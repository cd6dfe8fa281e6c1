"""Where the demonstration scene and its mask lie."""

from pathlib import Path


def bundled_path(name: str) -> Path:
    """Return the path of a bundled file, `scene.tif` or `mask.tif`.

    An installed package carries the files inside; a checkout has them in its `data` folder.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"expected the name of a bundled file, got bundled:{name[:80]}")
    package = Path(__file__).resolve().parents[1]
    installed = package / "bundled" / "data" / name
    return installed if installed.exists() else package.parent / "data" / name
