"""`cassi-camera rename=FILE`: read a cube along the dispersion at the bands of another camera."""

import json
from pathlib import Path
from typing import Any

from cassi.apps.camera.camera import make_camera_alone
from cassi.apps.settings import Camera
from cassi.data.atomic import atomic_folder
from cassi.data.io import load_cube, write_cube
from cassi.systems.dispersion import offsets_of
from cassi.systems.grid import SpectralGrid

NUMBERS_FILE = "metrics.json"
"""File beside the cube that has the offsets of its bands."""


def rename_bands(settings: Camera, folder: Path) -> None:
    """Interpolate a cube along the dispersion at the bands of a camera, and write the result.

    `settings.rename` is the file of a cube that `output.bands=dispersion` wrote. The result has the
    same file name.

    Raises:
        ValueError: the bands of the camera have the opposite order, or the file has no cube along
            the dispersion.
    """
    file = Path(str(settings.rename)).expanduser()
    cube_file = load_cube(file)
    offsets = _read_offsets(file.with_name(NUMBERS_FILE), cube_file.data.shape[1])
    new_offsets = offsets_of(make_camera_alone(settings).system.base_camera)
    # A camera whose bands run the other way would get every wavelength from the wrong end.
    if len(new_offsets) < 2 or (new_offsets[-1] > new_offsets[0]) != (offsets[-1] > offsets[0]):
        ends = list(new_offsets[:1] + new_offsets[-1:])
        raise ValueError(
            "camera: expected bands in the direction of the cube's, from "
            f"{offsets[0]:.4g} to {offsets[-1]:.4g} pixels, got {ends}"
        )
    grid = SpectralGrid(offsets, new_offsets)
    with atomic_folder(folder) as stage:
        write_cube(stage / file.name, grid.read(cube_file.data)[0], settings.given_wavelengths)
    print(
        cube_file.note, f"{len(offsets)} bands read at {len(new_offsets)}", f"-> {folder}", sep="\n"
    )


def _read_offsets(file: Path, bands: int) -> tuple[float, ...]:
    """Return the offsets of the bands of a cube, pixels, from the file of numbers beside it."""
    try:
        numbers: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"rename: cannot read {file}: {error}") from None
    is_other_cube = not isinstance(numbers, dict) or numbers.get("bands") != "dispersion"
    dispersion = None if is_other_cube else numbers.get("dispersion")
    offsets = dispersion.get("offsets") if isinstance(dispersion, dict) else None
    values = offsets if isinstance(offsets, list) else []
    if len(values) != bands or not all(type(value) in (int, float) for value in values):
        raise ValueError(
            f"rename: expected a cube along the dispersion, {file} has no offsets of {bands} "
            "bands; write one by output.bands=dispersion"
        )
    return tuple(map(float, values))
