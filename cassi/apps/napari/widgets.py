"""The widgets for napari: reconstruct a snapshot, and plot the spectrum of a region."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from cassi.apps.napari import Layer, make_image_layer

if TYPE_CHECKING:
    import napari

    from cassi.solvers import Reconstructor


def reconstruct(
    snapshot: napari.layers.Image,
    mask: napari.layers.Image,
    step: float = 2.0,
    axis: Literal["columns", "rows"] = "columns",
    first_nm: float = 450.0,
    last_nm: float = 650.0,
    method: Literal["auto", "pretrained", "gap_tv"] = "auto",
) -> napari.qt.threading.FunctionWorker[napari.types.LayerDataTuple]:
    """Reconstruct a cube in the background; the result becomes a new layer.

    Args:
        snapshot: layer `(H, W')`.
        mask: layer `(H, W)`, or one per band `(C, H, W)`.
        step: dispersion, pixels per band; the sign is the direction.
        axis: along which the bands are dispersed.
        first_nm: wavelength of the first band.
        last_nm: wavelength of the last band.
        method: a method of `cassi.reconstruct`.
    """
    from napari.qt.threading import create_worker

    layers = np.asarray(snapshot.data), np.asarray(mask.data)
    options = step, axis, (first_nm, last_nm), method
    return create_worker(reconstruct_layer, *layers, *options, _start_thread=True)


def reconstruct_layer(
    snapshot: np.ndarray,
    mask: np.ndarray,
    step: float = 2.0,
    axis: str = "columns",
    range_nm: tuple[float, float] = (450.0, 650.0),
    method: str | Reconstructor = "auto",
) -> Layer:
    """Reconstruct a cube, and return its layer; see `reconstruct`.

    Raises:
        ValueError: the sizes of snapshot and mask do not fit each other and the step.
    """
    import cassi

    axis_index = -1 if axis == "columns" else -2
    bands = count_bands(snapshot.shape, mask.shape, step, axis_index)
    y = torch.from_numpy(np.array(snapshot, np.float32))[None, None]
    camera = cassi.SDCassi(np.array(mask, np.float32), bands=bands, step=step, axis=axis_index)
    x = cassi.reconstruct(y, camera, method)[0].numpy()
    wavelengths = np.linspace(*range_nm, bands).round(6).tolist()
    return make_image_layer(x, wavelengths, "reconstruction")


def count_bands(
    snapshot: tuple[int, ...], mask: tuple[int, ...], step: float, axis: int = -1
) -> int:
    """Return the number C of bands for which W' = W + ⌈(C − 1)·|step|⌉.

    Args:
        snapshot: shape of the snapshot, `(H, W')`.
        mask: shape of the mask, `(H, W)` or `(C, H, W)`.
        step: dispersion, pixels per band.
        axis: axis of the dispersion, −1 or −2; with −2 the heights take the place of the widths.

    Raises:
        ValueError: the sizes fit no number of bands.
    """
    if len(snapshot) != 2 or len(mask) not in (2, 3):
        raise ValueError(f"expected a snapshot (H, W') and a mask (H, W), got {snapshot}, {mask}")
    extra_pixels, other_axis = snapshot[axis] - mask[axis], -3 - axis
    bands = 0
    if len(mask) == 3:
        bands = mask[0]
    elif step:
        bands = 1 + math.floor(extra_pixels / abs(step))
    fits_sizes = bands > 1 and math.ceil((bands - 1) * abs(step)) == extra_pixels
    if snapshot[other_axis] != mask[other_axis] or not fits_sizes:
        raise ValueError(
            f"expected a snapshot wider than the mask by (bands − 1)·|step| pixels, got {snapshot} "
            f"and {mask} with step {step:g}; check step and axis"
        )
    return bands


def spectrum(cube: napari.layers.Image, region: napari.layers.Labels) -> None:
    """Plot mean and standard deviation of the spectra under each label of a Labels layer.

    The numbers are stored in the metadata of that layer, as `spectra`.

    Args:
        cube: layer `(C, H, W)`.
        region: layer `(H, W)` or of the cube's shape; 0 is outside.
    """
    from matplotlib import pyplot

    wavelengths = cube.metadata.get("wavelengths")
    positions = wavelengths if wavelengths is not None else list(range(1, len(cube.data) + 1))
    figure, plot = pyplot.subplots()
    table = {}
    spectra = spectra_of(np.asarray(cube.data), np.asarray(region.data))
    for label, (mean, std, count) in spectra.items():
        plot.errorbar(positions, mean, std, capsize=2, label=f"{label}, {count} pixels")
        table[label] = {"mean": mean.tolist(), "std": std.tolist()}
    plot.set_xlabel("wavelength, nm" if wavelengths is not None else "band")
    plot.set_ylabel(cube.name)
    plot.legend()
    figure.show()
    region.metadata["spectra"] = {"wavelengths": wavelengths, "labels": table}


def spectra_of(
    cube: np.ndarray, labels: np.ndarray
) -> dict[int, tuple[np.ndarray, np.ndarray, int]]:
    """Return mean, standard deviation `(C,)` and number of pixels under each label but 0.

    Raises:
        ValueError: the shapes do not fit, or nothing is labelled.
    """
    if cube.ndim != 3 or labels.shape not in (cube.shape, cube.shape[1:]):
        raise ValueError(f"expected labels {cube.shape[1:]}, got {labels.shape}")
    # A label may have been drawn on any band of a cube's layer.
    label_image = labels if labels.ndim == 2 else labels.max(0)
    spectra = {}
    for label in np.unique(label_image[label_image != 0]).tolist():
        values = cube[:, label_image == label]
        spectra[int(label)] = values.mean(1), values.std(1, dtype=np.float64), values.shape[1]
    if not spectra:
        raise ValueError("expected a region: draw one into a Labels layer")
    return spectra
