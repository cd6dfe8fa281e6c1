"""Cubes small enough for a web page: principal components over wavelength, one JPEG each."""

import base64
from io import BytesIO

import numpy as np

STEP = 0.012  # of the scene's maximum: the finest quantization worth its bytes
BYTES_PER_PIXEL = 2.6  # of a cube: 170 kB at 256×256, 55 of them in 12.5 MB of base64
MOST_PIXELS = 400 * 400  # larger cubes are averaged over blocks


def block_size(height: int, width: int, most_pixels: int = MOST_PIXELS) -> int:
    """Gives the side of the blocks that a cube of this size is averaged over, 1 for none."""
    return max(1, int(np.ceil(np.sqrt(height * width / most_pixels))))


def compress(
    cube: np.ndarray, peak: float, bytes_per_pixel: float = BYTES_PER_PIXEL
) -> dict[str, object]:
    """Packs a cube (C, H, W) for a page that decodes JPEG by a canvas.

    With the orthonormal principal components E (C, k) of the spectra and their mean m, the cube is

        x = m + Σᵢ Eᵢ (lowᵢ + stepᵢ · planeᵢ),

    where a plane is an 8-bit greyscale JPEG, in base64, whose quantization is the same for all
    frequencies and, in units of x, for all components: the allocation of least squared error for an
    orthonormal transform (Goyal, IEEE Signal Processing Magazine 18(5), 2001). Components whose
    variance is below that of the rounding are left out. The step is 1.2 % of ``peak``, the maximum
    of the scene, or what keeps the planes within ``bytes_per_pixel``, which noise reaches. On
    scenes of 256×256×28 the error is 0.2 to 0.5 % of the peak (root mean square), and 99 % of all
    values are within 1 % for a method that smooths as most do.
    """
    bands, height, width = cube.shape
    scale = 2.0 ** np.frexp(peak)[1]  # squares of radiances of 1e20 are beyond float32
    spectra, peak = (cube.reshape(bands, -1) / scale).astype(np.float32), peak / scale
    mean = _short(spectra.mean(axis=1))
    spectra -= mean[:, None].astype(np.float32)
    # eigh in float64: small components would otherwise be those of rounding.
    gram = (spectra @ spectra.T).astype(np.float64) / spectra.shape[1]
    variance, vectors = np.linalg.eigh(gram)
    order = np.argsort(variance)[::-1]
    variance, basis = variance[order], _short(vectors[:, order].T)
    budget = bytes_per_pixel * height * width + 4096  # headers weigh in small pictures
    step = STEP * peak
    while True:
        kept = int(np.count_nonzero(variance > step**2 / 12))
        planes = (basis[:kept].astype(np.float32) @ spectra).reshape(kept, height, width)
        packed = [_plane(plane, step) for plane in planes]
        size = sum(len(data) for _, _, data in packed)
        if size <= budget:
            break
        step *= max(1.1, size / budget)
    return {
        "mean": (scale * mean).tolist(),
        "basis": basis[:kept].tolist(),
        "low": [scale * low for low, _, _ in packed],
        "step": [scale * unit for _, unit, _ in packed],
        "planes": [base64.b64encode(data).decode("ascii") for _, _, data in packed],
    }


def confine(cube: np.ndarray, truth: np.ndarray | None) -> np.ndarray:
    """Clips values far outside the scene, so that a few of them do not take all 256 levels.

    What lies further than the truth's range outside of it is clipped there; without a truth, what
    exceeds ten times the 99.9 % quantile of |x|.
    """
    if truth is not None:
        low, high = float(truth.min()), float(truth.max())
        span = high - low or abs(high) or 1.0
        return np.clip(cube, low - span, high + span)
    limit = 10 * float(np.quantile(np.abs(cube), 0.999))
    return np.clip(cube, -limit, limit) if limit > 0 else cube


def _plane(plane: np.ndarray, step: float) -> tuple[float, float, bytes]:
    """Gives a plane's lowest value, its unit, and the JPEG."""
    from PIL import Image

    low, high = float(plane.min()), float(plane.max())
    finest = max(high - low, 1e-12) / 255
    # One entry for the whole table; JPEG has whole numbers there, the unit makes up for that.
    entry = min(255, max(1, int(step / finest)))
    unit = max(finest, step / entry)
    levels = np.rint((plane - low) / unit).astype(np.uint8)
    buffer = BytesIO()
    Image.fromarray(levels).save(buffer, "JPEG", qtables=[[entry] * 64], optimize=True)
    return low, unit, buffer.getvalue()


def _short(values: np.ndarray) -> np.ndarray:
    """Rounds to six digits of the largest; packing and unpacking then use the same numbers."""
    largest = float(np.abs(values).max())
    digits = 6 - int(np.ceil(np.log10(largest))) if largest > 0 else 6
    return np.round(values.astype(np.float64), digits)
