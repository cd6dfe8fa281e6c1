"""The plugin for napari: reading and writing cubes, and a sample.

`napari.yaml` in this folder lists these functions, and the widgets of `widgets.py`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cassi.data.bundled import bundled_path
from cassi.data.io import LoadedArray, load_cube, load_mask, load_measurement, write_cube

Layer = tuple[np.ndarray, dict[str, object], str]
"""Data, arguments and kind of a layer, in the form of napari."""
SAMPLE_STEP = 2
"""Dispersion of the sample snapshot, pixels per band."""


def get_reader(path: str | Sequence[str]) -> Callable[[str], list[Layer]] | None:
    """Return the function that reads a path, or None if this plugin cannot read it.

    A cube becomes one image layer `(C, H, W)` whose first axis is the wavelength; the wavelengths
    in nm are in the layer's metadata. A file of two axes, `(H, W)`, is a mask or a measurement.

    Args:
        path: a file or folder; a list of several is left to other readers.
    """
    if not isinstance(path, str):
        return None
    # napari asks no other reader once this one is returned. So the file is read now, to be sure.
    try:
        read_layers(path)
    except (OSError, ValueError):
        return None
    return read_layers


def read_layers(path: str) -> list[Layer]:
    """Read a file as one layer: a cube if it can be one, else a measurement or a mask.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no cube, mask or measurement.
    """
    try:
        return [make_cube_layer(load_cube(path))]
    except (ValueError, IsADirectoryError) as error:
        # A file with two axes is no cube. A measurement and a mask become the same layer, so either
        # function may read the file.
        for load in (load_measurement, load_mask):
            with suppress(ValueError, IsADirectoryError):
                content = load(path)
                values = content.data.flatten(0, 1).squeeze(0).numpy()
                return [(values, {"name": _make_layer_name(content.path)}, "image")]
        raise error  # this error about a cube says more than the errors of the other functions


def make_cube_layer(content: LoadedArray) -> Layer:
    """Return the layer of a cube."""
    return make_image_layer(
        content.data[0].numpy(), content.wavelengths, _make_layer_name(content.path)
    )


def make_image_layer(cube: np.ndarray, wavelengths: Sequence[float] | None, name: str) -> Layer:
    """Return the layer of a cube `(C, H, W)`; all bands share one contrast range."""
    attributes: dict[str, object] = {"name": name, "axis_labels": ("wavelength", "y", "x")}
    attributes["metadata"] = {} if wavelengths is None else {"wavelengths": list(wavelengths)}
    # napari needs an upper limit above the lower one, also for a constant cube.
    low, high = float(cube.min()), float(cube.max())
    attributes["contrast_limits"] = (low, high if high > low else low + 1)
    return cube, attributes, "image"


def write_image(path: str, data: ArrayLike, attributes: dict[str, Any]) -> list[str]:
    """Write an image layer `(C, H, W)` as a cube, with the wavelengths of its metadata.

    Returns:
        The paths that were written, as napari expects.

    Raises:
        OSError: the file cannot be written.
        ValueError: the layer is no cube, or the format does not fit.
    """
    if attributes.get("rgb") or np.ndim(data) != 3:
        raise ValueError(f"expected a layer (C, H, W) of one cube, got {np.shape(data)}")
    wavelengths = attributes.get("metadata", {}).get("wavelengths")
    if wavelengths is not None and len(wavelengths) != len(np.asarray(data)):
        wavelengths = None  # the layer was cropped since, and napari keeps the old metadata
    write_cube(path, np.asarray(data), wavelengths)
    return [path]


def open_sample() -> list[Layer]:
    """Return the bundled scene, its mask, and a simulated snapshot of it."""
    from cassi.systems import SDCassi

    scene, mask = load_cube(bundled_path("scene.tif")), load_mask(bundled_path("mask.tif"))
    system = SDCassi(mask.data, bands=scene.data.shape[1], step=SAMPLE_STEP)
    y = system(scene.data)[0, 0].numpy()
    return [
        make_cube_layer(scene),
        (mask.data[0, 0].numpy(), {"name": "mask", "visible": False}, "image"),
        (y, {"name": "snapshot", "visible": False}, "image"),
    ]


def _make_layer_name(path: Path) -> str:
    return path.name.partition(".")[0]
