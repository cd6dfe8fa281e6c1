"""Figures for a paper: methods side by side, and their convergence, as PNG and PDF."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cassi.viz.checks import Array, Wavelengths, as_cube, as_truth, as_wavelengths
from cassi.viz.comparison import TRUTH, Comparison
from cassi.viz.paper import BODY, SMALL, literal, make_figure, save_both, tidy
from cassi.viz.regions import COLORS
from cassi.viz.sheet import INK


def save_comparison(
    folder: str | os.PathLike[str],
    name: str,
    cubes: Mapping[str, Array],  # (C, H, W) each
    truth: Array | None,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    metrics: Mapping[str, Mapping[str, float | None]],
    illuminant: str | None = None,
) -> None:
    """Writes ``<name>.png`` and ``<name>.pdf``: the truth and every method side by side.

    From the top: true colour, all at the truth's exposure; four bands, each at one brightness
    for all; the error of a pixel, √(mean over bands of (x − truth)²), at one scale, whose upper
    end is the 99.5th percentile of all methods; and below, the spectra of four regions of 5×5
    pixels, with their correlation r to the truth. Without a truth there are no errors, no r, and
    the first method gives exposure, brightness and regions. Pictures of more than 400×400 pixels
    are averaged over blocks.

    Args:
        folder: where to write; it exists.
        name: of the scene, a file name without suffix.
        cubes: reconstruction (C, H, W) of each method, in the order of the columns.
        truth: (C, H, W), on the cubes' scale, or None.
        wavelengths: (C,), nm, increasing; None numbers the bands.
        metrics: of each method; "psnr" and "ssim", where known, stand above its column.
        illuminant: as for ``srgb``: the light on a cube of reflectances, or None for radiance.

    Raises:
        OSError: if the folder is missing or cannot be written.
        TypeError: if a cube is not of real numbers.
        ValueError: if a shape or the wavelengths do not fit, a NaN is found, there is no cube, or
            the name holds a folder.
    """
    if not name or Path(name).name != name:
        raise ValueError(f"expected a file name without a folder, got {name!r}: rename the scene")
    if not cubes:
        raise ValueError("expected the cube of at least one method, got none: pass one")
    arrays = {method: as_cube(cube, f"cube of {method}") for method, cube in cubes.items()}
    first = next(iter(arrays.values()))
    for method, array in arrays.items():
        if array.shape != first.shape:
            raise ValueError(
                f"expected cubes of one shape, got {first.shape} and, of {method}, {array.shape}: "
                "crop or resample one of them"
            )
    true = as_truth(truth, first)
    values = as_wavelengths(wavelengths, len(first))
    shown = arrays if true is None else {TRUTH: true, **arrays}
    figure = Comparison(shown, true, values, illuminant, metrics).draw()
    save_both(figure, Path(folder), name)


def save_convergence(
    folder: str | os.PathLike[str],
    curves: Mapping[str, Sequence[tuple[float, float]]],
) -> None:
    """Writes ``convergence.png`` and ``convergence.pdf``: PSNR against seconds for all methods.

    A method with one pair, such as a network, is a dot. The seconds are logarithmic where they span
    more than a factor of 30.

    Args:
        folder: where to write; it exists.
        curves: of each method (seconds, PSNR in dB), in the order of time; what is not finite is
            left out.

    Raises:
        OSError: if the folder is missing or cannot be written.
        ValueError: if no method has a finite pair.
    """
    pairs = {
        method: np.asarray(list(curve), float).reshape(-1, 2) for method, curve in curves.items()
    }
    known = {method: curve[np.isfinite(curve).all(axis=1)] for method, curve in pairs.items()}
    known = {method: curve for method, curve in known.items() if len(curve)}
    if not known:
        raise ValueError("expected (seconds, PSNR) of at least one method, got none: pass some")
    figure = make_figure(4.6, 3.1)
    axes = figure.add_axes((0.12, 0.15, 0.85, 0.82))
    for index, (method, curve) in enumerate(known.items()):
        style = {"color": COLORS[index % len(COLORS)], "label": literal(method)}
        style["ls"] = ("-", "--", ":", "-.")[index // len(COLORS) % 4]
        axes.plot(
            curve[:, 0], curve[:, 1], marker="o" if len(curve) == 1 else None, lw=1.4, **style
        )
    seconds = np.concatenate([curve[:, 0] for curve in known.values()])
    positive = seconds[seconds > 0]
    if len(positive) and positive.max() > 30 * positive.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("seconds", fontsize=BODY)
    axes.set_ylabel("PSNR / dB", fontsize=BODY)
    tidy(axes)
    axes.legend(fontsize=SMALL + 0.5, frameon=False, labelcolor=INK)
    save_both(figure, Path(folder), "convergence")
