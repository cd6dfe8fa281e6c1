"""Rendering of cubes as a person would see them: CIE 1931 colorimetry to sRGB."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cassi.viz.checks import Array, Wavelengths, as_cube, as_wavelengths

VISIBLE = (380.0, 780.0)  # nm; outside, the colour matching functions are below 0.01 % of the peak
_BLOCK_ROWS = 64  # a block of a 28×660×660 cube is 5 MB: strided cubes are copied this much at once
_BRIGHT = 0.95  # linear level of the 99.5th percentile: highlights keep a little room


def srgb(
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    illuminant: str | None = "D65",
    exposure: float | None = None,
) -> np.ndarray:  # (H, W, 3)
    """Renders a cube as an sRGB picture through the CIE 1931 2° observer.

    The colour of a pixel with spectrum r under the illuminant E is

        XYZ = k ∫ r(λ) E(λ) cmf(λ) dλ,   k = 1 / ∫ E(λ) ȳ(λ) dλ,

    integrated at 1 nm, r being linear between the bands (of any spacing) and constant beyond the
    first and the last, as CIE 15:2018, section 7.2.3, advises for missing data. A flat spectrum is
    therefore neutral whatever the bands cover. The white of E is adapted to that of sRGB
    (Bradford), then come exposure, clipping and the sRGB curve (IEC 61966-2-1).

    Bands outside 380–780 nm contribute nothing. Where no band is visible, or ``wavelengths`` is
    None, the colours are false: blue, green and red are the means of the first, middle and last
    third of the bands.

    Args:
        cube: (C, H, W), reflectance or radiance, any scale; negative values render as black.
        wavelengths: (C,), nm, increasing, or None.
        illuminant: light that falls on a cube of reflectances, a name of colour-science
            ("D65", "D50", "A", …); None for a cube of radiances, E = 1.
        exposure: factor on the linear picture; None for ``exposure_of(cube, …)``. Give several
            pictures the same one to compare them.

    Returns:
        uint8 (H, W, 3), 0–255.

    Raises:
        TypeError: if the cube is not of real numbers.
        ValueError: if a shape, the wavelengths, the illuminant or the exposure is not as above,
            or the cube holds a NaN.
    """
    linear = _linear_srgb(cube, wavelengths, illuminant)
    if exposure is None:
        exposure = _exposure(linear)
    if not (np.isfinite(exposure) and exposure > 0):
        raise ValueError(f"expected a positive exposure, got {exposure}: give None to choose one")
    linear *= np.float32(exposure)
    return encode(linear)


def exposure_of(
    cube: Array,  # (C, H, W)
    wavelengths: Wavelengths,  # (C,), nm
    illuminant: str | None = "D65",
) -> float:
    """Chooses the exposure of a picture: its 99.5th percentile becomes 95 % of full scale.

    The percentile is that of the largest linear sRGB channel of each pixel. Arguments and errors
    are those of ``srgb``.

    Returns:
        The factor that ``srgb`` takes as ``exposure``; 1 for a black cube.
    """
    return _exposure(_linear_srgb(cube, wavelengths, illuminant))


def rendering_matrix(
    wavelengths: Wavelengths, bands: int | None = None, illuminant: str | None = "D65"
) -> np.ndarray:
    """Gives the matrix from a spectrum to linear sRGB, by the equation of ``srgb``.

    Returns:
        float32 (3, C), each row with the sum 1.
    """
    if bands is None:
        if wavelengths is None:
            raise ValueError("expected wavelengths or a number of bands, got neither: give one")
        bands = len(wavelengths)
    values = as_wavelengths(wavelengths, bands)
    key = None if values is None else tuple(values.tolist())
    return _weights(key, bands, illuminant).copy()


def band_colors(wavelengths: Wavelengths, bands: int) -> np.ndarray:
    """Gives every band the colour of its wavelength, for tinting pictures and labels.

    Spectral colours lie outside sRGB. They are moved towards grey by 40 % of the way (all of it
    turns red into pink, none makes 500 to 560 nm one green), clipped at 0, and scaled to the same
    brightest channel.

    Args:
        wavelengths: (C,), nm, increasing, or None.
        bands: C.

    Returns:
        float32 (C, 3), linear sRGB, largest channel 1; white for bands outside 380–780 nm and
        where ``wavelengths`` is None.

    Raises:
        ValueError: if the wavelengths do not fit the bands or do not increase.
    """
    values = as_wavelengths(wavelengths, bands)
    colors = np.ones((bands, 3), np.float32)
    if values is None:
        return colors
    grid, cmfs, to_srgb, _ = _observer(None)
    for band, wavelength in enumerate(values):
        if VISIBLE[0] <= wavelength <= VISIBLE[1]:
            # The observer's response vanishes at the ends: the hue of 420 and 680 nm is kept there.
            seen = np.clip(wavelength, 420.0, 680.0)
            color = to_srgb @ [np.interp(seen, grid, cmf) for cmf in cmfs]
            color = np.clip(color - 0.4 * color.min(), 0.0, None)
            colors[band] = color / color.max()
    return colors


def encode(linear: np.ndarray) -> np.ndarray:
    """Gives linear light, which is clipped to [0, 1] in place, as uint8 by the sRGB curve."""
    np.clip(linear, 0.0, 1.0, out=linear)
    curved = 1.055 * np.power(linear, 1 / 2.4) - 0.055
    curved = np.where(linear <= 0.0031308, 12.92 * linear, curved)
    return np.rint(255.0 * curved).astype(np.uint8)


def _linear_srgb(cube: Array, wavelengths: Wavelengths, illuminant: str | None) -> np.ndarray:
    array = as_cube(cube)
    bands, height, width = array.shape
    weights = rendering_matrix(wavelengths, bands, illuminant)
    linear = np.empty((height, width, 3), np.float32)
    for start in range(0, height, _BLOCK_ROWS):
        block = array[:, start : start + _BLOCK_ROWS]
        pixels = block.reshape(bands, -1)
        linear[start : start + _BLOCK_ROWS] = (weights @ pixels).T.reshape(-1, width, 3)
    return linear


def _exposure(linear: np.ndarray) -> float:
    level = float(np.percentile(linear.max(axis=2), 99.5))
    if level <= 0:  # fewer than 0.5 % of the pixels are lit
        level = float(linear.max())
    return _BRIGHT / level if level > 0 else 1.0


@lru_cache(maxsize=32)
def _weights(
    wavelengths: tuple[float, ...] | None, bands: int, illuminant: str | None
) -> np.ndarray:
    grid, cmfs, to_srgb, light = _observer(illuminant)
    values = np.asarray(wavelengths if wavelengths is not None else [], np.float64)
    visible = np.flatnonzero((values >= VISIBLE[0]) & (values <= VISIBLE[1]))
    if visible.size == 0:
        return _false_colors(bands)
    weights = np.zeros((3, bands))
    for index, band in enumerate(visible):
        hat = np.interp(grid, values[visible], np.eye(visible.size)[index])
        weights[:, band] = to_srgb @ ((cmfs * light) @ hat)
    return weights.astype(np.float32)


def _false_colors(bands: int) -> np.ndarray:
    """Weights each third of the band axis by how much of a band lies in it: fits any C."""
    edges = np.arange(bands + 1) / bands
    thirds = np.array([2.0, 1.0, 0.0])[:, None] / 3
    overlap = np.minimum(edges[1:], thirds + 1 / 3) - np.maximum(edges[:-1], thirds)
    return (3.0 * np.clip(overlap, 0.0, None)).astype(np.float32)


@lru_cache(maxsize=8)
def _observer(illuminant: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gives the grid (nm), the 3 matching functions, XYZ to linear sRGB, and the light E.

    The last matrix includes k and the adaptation of E's white, so that E itself gives (1, 1, 1).
    """
    import colour

    if illuminant is not None and illuminant not in colour.SDS_ILLUMINANTS:
        names = ", ".join(sorted(colour.SDS_ILLUMINANTS))
        raise ValueError(f"expected an illuminant, got {illuminant!r}: choose one of {names}")
    observer = colour.MSDS_CMFS["CIE 1931 2 Degree Standard Observer"]
    grid = np.asarray(observer.wavelengths, np.float64)
    cmfs = np.asarray(observer.values, np.float64).T
    light = np.ones_like(grid)
    if illuminant is not None:
        spectrum = colour.SDS_ILLUMINANTS[illuminant]
        light = np.interp(grid, spectrum.wavelengths, spectrum.values)
    white = cmfs @ light
    space = colour.RGB_COLOURSPACES["sRGB"]
    from_srgb = np.asarray(space.matrix_RGB_to_XYZ, np.float64)
    adapt = colour.adaptation.matrix_chromatic_adaptation_VonKries(
        white / white[1], from_srgb.sum(axis=1), transform="Bradford"
    )
    to_srgb = np.linalg.inv(from_srgb) @ adapt / white[1]
    return grid, cmfs, to_srgb, light
