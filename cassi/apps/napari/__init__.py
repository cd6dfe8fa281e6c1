"""What napari finds of the package, as `napari.yaml` beside it says: files, a sample, widgets."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cassi.data.bundled import bundled_path
from cassi.data.io import Loaded, load_cube, load_mask, load_measurement, write_cube

Layer = tuple[np.ndarray, dict[str, object], str]
"""Data, arguments and kind of a layer, as napari has them."""
STEP = 2
"""Of the snapshot of the bundled scene, pixels per band."""


def get_reader(path: str | Sequence[str]) -> Callable[[str], list[Layer]] | None:
    """Return what reads a path, None where it cannot be read here.

    A cube becomes one image layer `(C, H, W)` whose first axis is the wavelength; the wavelengths
    in nm are in the layer's metadata. Two axes are a mask or a measurement, `(H, W)`.

    Args:
        path: of a file or folder; several are left to other readers.
    """
    if not isinstance(path, str):
        return None
    try:
        read_layers(path)
    except (OSError, ValueError):
        return None
    return read_layers


def read_layers(path: str) -> list[Layer]:
    """Read a file as one layer: a cube if it can be one, else a measurement or a mask.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds nothing that could be a cube, mask or measurement.
    """
    try:
        return [cube_layer(load_cube(path))]
    except (ValueError, IsADirectoryError) as error:
        for load in (load_measurement, load_mask):
            with suppress(ValueError, IsADirectoryError):
                loaded = load(path)
                values = loaded.data.flatten(0, 1).squeeze(0).numpy()
                return [(values, {"name": _stem(loaded.path)}, "image")]
        raise error


def cube_layer(loaded: Loaded) -> Layer:
    """Return the layer of a cube."""
    return image_layer(loaded.data[0].numpy(), loaded.wavelengths, _stem(loaded.path))


def image_layer(cube: np.ndarray, wavelengths: Sequence[float] | None, name: str) -> Layer:
    """Return the layer of a cube `(C, H, W)`, all of whose bands have one contrast."""
    about: dict[str, object] = {"name": name, "axis_labels": ("wavelength", "y", "x")}
    about["metadata"] = {} if wavelengths is None else {"wavelengths": list(wavelengths)}
    low, high = float(cube.min()), float(cube.max())
    about["contrast_limits"] = (low, high if high > low else low + 1)
    return cube, about, "image"


def write_image(path: str, data: ArrayLike, attributes: dict[str, Any]) -> list[str]:
    """Write an image layer `(C, H, W)` as a cube, with the wavelengths of its metadata.

    Raises:
        OSError: it cannot be written.
        ValueError: the layer is no cube, or the format does not fit.
    """
    if attributes.get("rgb") or np.ndim(data) != 3:
        raise ValueError(f"expected a layer (C, H, W) of one cube, got {np.shape(data)}")
    wavelengths = attributes.get("metadata", {}).get("wavelengths")
    if wavelengths is not None and len(wavelengths) != len(np.asarray(data)):
        wavelengths = None  # of a layer that was cut since
    write_cube(path, np.asarray(data), wavelengths)
    return [path]


def open_sample() -> list[Layer]:
    """Return the bundled scene, its mask, and the snapshot that the camera takes of it."""
    from cassi.systems import SDCassi

    scene, mask = load_cube(bundled_path("scene.tif")), load_mask(bundled_path("mask.tif"))
    system = SDCassi(mask.data, bands=scene.data.shape[1], step=STEP)
    y = system(scene.data)[0, 0].numpy()
    return [
        cube_layer(scene),
        (mask.data[0, 0].numpy(), {"name": "mask", "visible": False}, "image"),
        (y, {"name": "snapshot", "visible": False}, "image"),
    ]


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]
