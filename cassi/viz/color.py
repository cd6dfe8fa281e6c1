"""Rendering of cubes as a person would see them: CIE 1931 colorimetry to sRGB."""

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cassi.viz.checks import Array, Wavelengths, as_cube, as_wavelengths, quantile

# Outside of this range, nm, the colour matching functions are below 0.01 % of their peak.
_VISIBLE_RANGE = (380.0, 780.0)
# Rows that are rendered at once. The product needs a contiguous copy of a strided cube. A copy of
# 16 rows of a 28×660×660 cube has 1 MB, which a cache holds.
_BLOCK_ROWS = 16
# From linear sRGB to XYZ, IEC 61966-2-1.
_XYZ_FROM_SRGB = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)
# From XYZ to the responses of the cones, Lam 1985.
_BRADFORD = np.array(
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)
# The linear level that the 99.5th percentile of a picture gets. The rest up to 1 is for highlights,
# which would be clipped otherwise.
_EXPOSED_LEVEL = 0.95


def srgb(
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    illuminant: str | None = "D65",
    exposure: float | None = None,
) -> np.ndarray:  # (H, W, 3)
    """Render a cube as an sRGB picture through the CIE 1931 2° observer.

    The colour of a pixel with spectrum r under the illuminant E is

        XYZ = k ∫ r(λ) E(λ) cmf(λ) dλ,   k = 1 / ∫ E(λ) ȳ(λ) dλ,

    integrated in steps of 1 nm. The spectrum r is linear between the bands, and constant beyond the
    first and the last band, as CIE 15:2018, section 7.2.3, advises for missing data. So a flat
    spectrum is neutral, whatever range the bands cover. The white of E is adapted to the white of
    sRGB (Bradford). Exposure, clipping and the sRGB curve (IEC 61966-2-1) follow.

    Bands outside 380–780 nm contribute nothing. If no band is visible, or `wavelengths` is None,
    the colours are false: blue, green and red are the means of the first, middle and last third of
    the bands.

    Args:
        cube: (C, H, W), reflectance or radiance, any scale; negative values render as black.
        wavelengths: (C,), nm, increasing, or None.
        illuminant: light that falls on a cube of reflectances, a CIE or ISO name
            ("D65", "D50", "A", …); None for a cube of radiances, E = 1.
        exposure: factor on the linear picture; None for `exposure_of(cube, …)`. Pictures can be
            compared if they have the same exposure.

    Returns:
        uint8 (H, W, 3), 0–255.

    Raises:
        TypeError: the cube is not of real numbers.
        ValueError: a shape, the wavelengths, the illuminant or the exposure is not as above,
            or the cube holds a NaN.
    """
    linear = _render_linear(cube, wavelengths, illuminant)
    if exposure is None:
        exposure = _choose_exposure(linear)
    if not (np.isfinite(exposure) and exposure > 0):
        raise ValueError(f"expected a positive exposure, got {exposure}: give None to choose one")
    linear *= np.float32(exposure)
    return encode(linear)


def exposure_of(
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    illuminant: str | None = "D65",
) -> float:
    """Choose the exposure of a picture: its 99.5th percentile becomes 95 % of full scale.

    The percentile is that of the largest linear sRGB channel of each pixel. Arguments and
    exceptions are those of `srgb`.

    Returns:
        The factor that `srgb` takes as `exposure`; 1 for a black cube.
    """
    return _choose_exposure(_render_linear(cube, wavelengths, illuminant))


def rendering_matrix(
    wavelengths: Wavelengths, bands: int | None = None, illuminant: str | None = "D65"
) -> np.ndarray:
    """Return the matrix (3, C) from a spectrum to linear sRGB, by the equation of `srgb`."""
    if bands is None:
        if wavelengths is None:
            raise ValueError("expected wavelengths or a number of bands, got neither: give one")
        bands = len(wavelengths)
    values = as_wavelengths(wavelengths, bands)
    key = None if values is None else tuple(values.tolist())
    return _compute_weights(key, bands, illuminant).copy()


def band_colors(wavelengths: Wavelengths, bands: int) -> np.ndarray:
    """Return the colour of each band's wavelength, for tinting pictures and labels.

    Spectral colours are outside sRGB: one channel is negative. 40 % of this channel's value is
    subtracted from all three channels, which moves the colour towards grey. (With the whole value,
    red would become pink. Without this step, 500 to 560 nm would all have the same green.) Then the
    colour is clipped at 0, and scaled so that its largest channel is 1.

    Args:
        wavelengths: (C,), nm, increasing, or None.
        bands: C.

    Returns:
        float32 (C, 3), linear sRGB, largest channel 1; white for bands outside 380–780 nm and
        where `wavelengths` is None.

    Raises:
        ValueError: the wavelengths do not fit the bands or do not increase.
    """
    values = as_wavelengths(wavelengths, bands)
    colors = np.ones((bands, 3), np.float32)
    if values is None:
        return colors
    grid, cmfs, to_srgb, _ = _load_observer(None)
    is_visible = (values >= _VISIBLE_RANGE[0]) & (values <= _VISIBLE_RANGE[1])
    # The observer's response vanishes towards the ends of the range, where rounding errors would
    # decide the hue. So below 420 nm and above 680 nm, the hue at this limit is used.
    hue_nm = np.clip(values[is_visible], 420.0, 680.0)
    hues = (to_srgb @ [np.interp(hue_nm, grid, cmf) for cmf in cmfs]).T
    hues = np.clip(hues - 0.4 * hues.min(axis=1, keepdims=True), 0.0, None)
    colors[is_visible] = hues / hues.max(axis=1, keepdims=True)
    return colors


def cie_response(wavelengths: Wavelengths) -> np.ndarray:
    """Return the CIE 1931 2° curves x̄, ȳ, z̄ at wavelengths (nm): (3, C), each with the sum 1.

    Raises:
        ValueError: a curve is 0 at all wavelengths.
    """
    nm = np.asarray(wavelengths, np.float64)
    grid, cmfs, _, _ = _load_observer(None)
    curves = np.stack([np.interp(nm, grid, cmf, left=0, right=0) for cmf in cmfs])
    sums = curves.sum(1, keepdims=True)
    if not (sums > 0).all():
        raise ValueError("expected wavelengths that the eye sees, for the CIE curves")
    return (curves / sums).astype(np.float32)


def xyz_of_srgb(picture: np.ndarray, is_encoded: bool) -> np.ndarray:
    """Return X, Y, Z of an sRGB picture (3, H, W), each divided by its value for white.

    `is_encoded` says whether the picture still has the sRGB curve; if not, it is linear.
    """
    if is_encoded:
        picture = decode(picture)
    xyz = np.tensordot(_XYZ_FROM_SRGB / _XYZ_FROM_SRGB.sum(1, keepdims=True), picture, 1)
    return xyz.astype(np.float32)


def encode(linear: np.ndarray) -> np.ndarray:
    """Encode linear light as uint8 by the sRGB curve. The input is clipped to [0, 1] in place."""
    np.clip(linear, 0.0, 1.0, out=linear)
    # A table takes a fifth of the time of the powers. Its 2^16 steps are at most 0.05 levels.
    return _make_curve()[(65535 * linear + 0.5).astype(np.uint16)]


def decode(levels: np.ndarray) -> np.ndarray:
    """Return the linear light of levels of the sRGB curve, both from 0 to 1."""
    power_law = ((np.maximum(levels, 0) + 0.055) / 1.055) ** 2.4
    return np.where(levels <= 0.04045, levels / 12.92, power_law)


@cache
def _make_curve() -> np.ndarray:
    """Return the sRGB curve of 2^16 evenly spaced values from 0 to 1, uint8."""
    linear = np.linspace(0, 1, 2**16)
    power_law = 1.055 * np.power(linear, 1 / 2.4) - 0.055
    encoded_light = np.where(linear <= 0.0031308, 12.92 * linear, power_law)
    return np.rint(255.0 * encoded_light).astype(np.uint8)


def _render_linear(cube: Array, wavelengths: Wavelengths, illuminant: str | None) -> np.ndarray:
    array = as_cube(cube)
    bands, height, width = array.shape
    weights = rendering_matrix(wavelengths, bands, illuminant)
    linear = np.empty((height, width, 3), np.float32)
    for start in range(0, height, _BLOCK_ROWS):
        block = array[:, start : start + _BLOCK_ROWS]
        pixels = block.reshape(bands, -1)
        linear[start : start + _BLOCK_ROWS] = (weights @ pixels).T.reshape(-1, width, 3)
    return linear


def _choose_exposure(linear: np.ndarray) -> float:
    # The maximum of three pictures, since one along an axis of three takes ten times as long.
    brightest = np.maximum(np.maximum(linear[..., 0], linear[..., 1]), linear[..., 2])
    level = quantile(brightest, 0.995)
    # The percentile is 0 if fewer than 0.5 % of the pixels are lit.
    if level <= 0:
        level = float(linear.max())
    return _EXPOSED_LEVEL / level if level > 0 else 1.0


@lru_cache(maxsize=32)
def _compute_weights(
    wavelengths: tuple[float, ...] | None, bands: int, illuminant: str | None
) -> np.ndarray:
    """Return the matrix (3, C) from a spectrum to linear sRGB, see `rendering_matrix`."""
    grid, cmfs, to_srgb, light = _load_observer(illuminant)
    values = np.asarray(wavelengths if wavelengths is not None else [], np.float64)
    visible_bands = np.flatnonzero((values >= _VISIBLE_RANGE[0]) & (values <= _VISIBLE_RANGE[1]))
    if visible_bands.size == 0:
        return _make_false_colors(bands)
    weights = np.zeros((3, bands))
    for index, band in enumerate(visible_bands):
        # A spectrum that is linear between its bands is a sum of hat functions, one per band. The
        # weight of a band is the integral of its hat times the matching functions. np.interp makes
        # the first and the last hat constant beyond the bands.
        hat = np.interp(grid, values[visible_bands], np.eye(visible_bands.size)[index])
        weights[:, band] = to_srgb @ ((cmfs * light) @ hat)
    return weights.astype(np.float32)


def _make_false_colors(bands: int) -> np.ndarray:
    """Return the matrix (3, C) that averages thirds of the bands: the last is red, the first blue.

    A band on the border of two thirds counts in both, by the fraction of it that lies in each.
    """
    edges = np.arange(bands + 1) / bands
    thirds = np.array([2.0, 1.0, 0.0])[:, None] / 3
    overlap = np.minimum(edges[1:], thirds + 1 / 3) - np.maximum(edges[:-1], thirds)
    return (3.0 * np.clip(overlap, 0.0, None)).astype(np.float32)


@lru_cache(maxsize=8)
def _load_observer(illuminant: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the grid (nm), the 3 matching functions, XYZ to linear sRGB, and the light E.

    The matrix to sRGB includes k and the adaptation of E's white, so that E itself gives (1, 1, 1).
    """
    tables = _load_tables()
    illuminants = tables["illuminants"]
    if illuminant is not None and illuminant not in illuminants:
        names = ", ".join(sorted(illuminants))
        raise ValueError(f"expected an illuminant, got {illuminant!r}: choose one of {names}")
    grid, cmfs = _read_table(*tables["observer"])
    light = np.ones_like(grid)
    if illuminant is not None:
        light = np.interp(grid, *_read_table(*illuminants[illuminant]))
    white = cmfs @ light
    cones = _BRADFORD @ np.stack([white / white[1], _XYZ_FROM_SRGB.sum(axis=1)], axis=1)
    adapt = np.linalg.inv(_BRADFORD) @ np.diag(cones[:, 1] / cones[:, 0]) @ _BRADFORD
    to_srgb = np.linalg.inv(_XYZ_FROM_SRGB) @ adapt / white[1]
    return grid, cmfs, to_srgb, light


@cache
def _load_tables() -> dict[str, Any]:
    """Read color.json: the observer and the illuminants, with their source."""
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("color.json").read_text())
    return tables


def _read_table(
    axis: list[float], values: list[float] | list[list[float]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid of a table, from `axis[0]` on with the spacing `axis[1]`, and its values."""
    array = np.asarray(values, np.float64)
    return axis[0] + axis[1] * np.arange(array.shape[-1]), array
