"""Compression of cubes for a web page: principal components of the spectra, one JPEG each."""

import base64
from io import BytesIO

import numpy as np

from cassi.viz.checks import quantile

# Step of the quantization over the scene's maximum. A finer step costs bytes without a visible
# gain, a coarser step shows as noise.
STEP = 0.012
# Largest number of bytes per pixel of a cube: 170 kB at 256×256, or 55 such cubes in 12.5 MB of
# base64.
BYTES_PER_PIXEL = 2.6
# Cubes of more pixels are averaged over blocks.
MAX_PIXELS = 400 * 400


def block_size(height: int, width: int, max_pixels: int = MAX_PIXELS) -> int:
    """Return the side of the blocks that a cube of this size is averaged over; 1 for no blocks."""
    return max(1, int(np.ceil(np.sqrt(height * width / max_pixels))))


def compress(
    cube: np.ndarray, peak: float, bytes_per_pixel: float = BYTES_PER_PIXEL
) -> dict[str, object]:
    """Pack a cube (C, H, W) for a page that decodes JPEG by a canvas.

    With the orthonormal principal components E (C, k) of the spectra and their mean m, the cube is

        x = m + Σᵢ Eᵢ (lowᵢ + stepᵢ · planeᵢ),

    where a plane is an 8-bit greyscale JPEG, in base64. The quantization step is the same for all
    frequencies and, in units of x, for all components. This gives the least squared error for an
    orthonormal transform (Goyal, IEEE Signal Processing Magazine 18(5), 2001). Components whose
    variance is below that of the rounding are left out. The step is 1.2 % of `peak`, the maximum
    of the scene. A noisy cube needs more bytes, so its step is raised until the planes fit into
    `bytes_per_pixel`. On scenes of 256×256×28 the error is 0.2 to 0.5 % of the peak (root mean
    square), and 99 % of the values of a method that smooths noise are within 1 %.

    Returns:
        "mean" m (C,), "basis" Eᵀ (k, C), "low" (k,), "step" (k,) and "planes", k texts.
    """
    bands, height, width = cube.shape
    # Squares of radiances of 1e20 are beyond float32. Division by a power of two rounds nothing.
    scale = 2.0 ** np.frexp(peak)[1]
    spectra = np.multiply(cube.reshape(bands, -1), 1 / scale, dtype=np.float32, casting="same_kind")
    peak /= scale
    mean = _round_digits(spectra.mean(axis=1))
    spectra -= mean[:, None].astype(np.float32)
    # float64, because the small components would be rounding errors in float32.
    gram = (spectra @ spectra.T).astype(np.float64) / spectra.shape[1]
    variance, vectors = np.linalg.eigh(gram)
    order = np.argsort(variance)[::-1]
    variance, basis = variance[order], _round_digits(vectors[:, order].T)
    # 4096 bytes for the headers, which are most of a small picture.
    budget = bytes_per_pixel * height * width + 4096
    step = STEP * peak
    while True:
        # Rounding to multiples of a step has the variance step² / 12.
        n_components = int(np.count_nonzero(variance > step**2 / 12))
        planes = (basis[:n_components].astype(np.float32) @ spectra).reshape(-1, height, width)
        jpegs = [_encode_plane(plane, step) for plane in planes]
        size = sum(len(data) for _, _, data in jpegs)
        if size <= budget:
            break
        # At least 10 % more each time, so that the loop ends soon.
        step *= max(1.1, size / budget)
    return {
        "mean": (scale * mean).tolist(),
        "basis": basis[:n_components].tolist(),
        "low": [scale * low for low, _, _ in jpegs],
        "step": [scale * unit for _, unit, _ in jpegs],
        "planes": [base64.b64encode(data).decode("ascii") for _, _, data in jpegs],
    }


def confine(cube: np.ndarray, truth: np.ndarray | None) -> np.ndarray:
    """Clip outliers of a cube, so that a few of them do not take all 256 levels.

    With a truth of range [a, b], values are clipped to [a − (b − a), b + (b − a)]; without one, at
    ten times the 99.9 % quantile of |x|.
    """
    if truth is not None:
        low, high = float(truth.min()), float(truth.max())
        span = high - low or abs(high) or 1.0
        return np.clip(cube, low - span, high + span)
    limit = 10 * quantile(np.abs(cube), 0.999)
    return np.clip(cube, -limit, limit) if limit > 0 else cube


def _encode_plane(plane: np.ndarray, step: float) -> tuple[float, float, bytes]:
    """Return a plane's lowest value, the value of one level of its JPEG, and the JPEG."""
    from PIL import Image

    low, high = float(plane.min()), float(plane.max())
    finest = max(high - low, 1e-12) / 255
    # All entries of the JPEG's quantization table are equal. An entry is a whole number, and the
    # quantization step is entry · unit. The unit is chosen so that this product is `step`.
    entry = min(255, max(1, int(step / finest)))
    unit = max(finest, step / entry)
    levels = np.rint((plane - low) / unit).astype(np.uint8)
    buffer = _JpegBuffer()
    Image.fromarray(levels).save(buffer, qtables=[[entry] * 64], optimize=True)
    return low, unit, buffer.getvalue()


class _JpegBuffer(BytesIO):
    """A file in memory whose name says the format, so Pillow imports no writers of others."""

    name = "plane.jpg"


def _round_digits(values: np.ndarray) -> np.ndarray:
    """Round to six digits of the largest value, so that JSON holds exactly the packed values."""
    largest = float(np.abs(values).max())
    digits = 6 - int(np.ceil(np.log10(largest))) if largest > 0 else 6
    return np.round(values.astype(np.float64), digits)
