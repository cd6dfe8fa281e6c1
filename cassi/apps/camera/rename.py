"""`cassi-camera rename=FILE`: other names for a cube along the dispersion, without a frame."""

import json
from pathlib import Path
from typing import Any

from cassi.apps.camera.camera import make_alone
from cassi.apps.settings import Camera
from cassi.data.atomic import atomic_folder
from cassi.data.io import load_cube, write_cube
from cassi.systems.dispersion import offsets_of
from cassi.systems.grid import Grid

NUMBERS = "metrics.json"
"""Beside the cube: it has the offsets of its bands."""


def rename_bands(settings: Camera, folder: Path) -> None:
    """Read the bands of a camera from a cube along the dispersion, and write them.

    `settings.rename` is a cube of `output.bands=dispersion`; the result has its name.
    """
    file = Path(str(settings.rename)).expanduser()
    loaded = load_cube(file)
    offsets = _read_offsets(file.with_name(NUMBERS), loaded.data.shape[1])
    named = offsets_of(make_alone(settings).system.plain)
    if len(named) < 2 or (named[-1] > named[0]) != (offsets[-1] > offsets[0]):
        raise ValueError(
            "camera: expected bands in the direction of the cube's, from "
            f"{offsets[0]:.4g} to {offsets[-1]:.4g} pixels, got {list(named[:1] + named[-1:])}"
        )
    grid = Grid(offsets, named)
    with atomic_folder(folder) as stage:
        write_cube(stage / file.name, grid.read(loaded.data)[0], settings.given_wavelengths)
    print(loaded.note, f"{len(offsets)} bands read at {len(named)}", f"-> {folder}", sep="\n")


def _read_offsets(file: Path, bands: int) -> tuple[float, ...]:
    """Return the offsets of the bands of a cube, pixels, of the numbers beside it."""
    try:
        numbers: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"rename: cannot read {file}: {error}") from None
    named = not isinstance(numbers, dict) or numbers.get("bands") != "dispersion"
    told = None if named else numbers.get("dispersion")
    offsets = told.get("offsets") if isinstance(told, dict) else None
    values = offsets if isinstance(offsets, list) else []
    if len(values) != bands or not all(type(each) in (int, float) for each in values):
        raise ValueError(
            f"rename: expected a cube along the dispersion, {file} has no offsets of {bands} "
            "bands; write one by output.bands=dispersion"
        )
    return tuple(map(float, values))
