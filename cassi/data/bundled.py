"""Find files that come with the package: the demonstration scene, its mask, manifests."""

from pathlib import Path


def bundled_path(name: str) -> Path:
    """Return the path of a bundled file, such as `scene.tif` or `mask.tif`.

    An installed package contains the files. A checkout has them in its folder `data`.

    Raises:
        ValueError: the name leads out of the folder of bundled files.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"expected the name of a bundled file, got bundled:{name[:80]}")
    package = Path(__file__).resolve().parents[1]
    installed_file = package / "bundled" / "data" / name
    return installed_file if installed_file.exists() else package.parent / "data" / name
