"""Patterns without low frequencies, by void and cluster."""

from __future__ import annotations

import numpy as np

_SIGMA = 1.5  # pixels: Ulichney's choice
_START = 0.1  # share of the pixels that are placed at random and then moved


def blue_noise(height: int, width: int, density: float, seed: int) -> np.ndarray:
    """Draw a binary pattern whose spectrum has no low frequencies, periodic in both directions.

    Void and cluster: where a Gaussian (1.5 pixels) sees the tightest cluster, a pixel is taken
    away; where it sees the largest void, one is set. A tenth of the pixels is placed at random and
    moved so until nothing changes; then the largest void is filled until the density is reached.

    Args:
        height: rows.
        width: columns.
        density: share of ones, (0, 1), met to within a pixel. Above 0.5 the roles of ones and
            zeros are exchanged.
        seed: of the random start.

    Returns:
        Boolean `(height, width)`. 256×256 take a few seconds.

    Source: Ulichney, "The void-and-cluster method for dither array generation", SPIE 1913, 1993.
    """
    if density > 0.5:
        return ~blue_noise(height, width, 1 - density, seed)
    count = max(1, round(density * height * width))
    start = min(count, max(1, round(_START * height * width)))
    random = np.random.default_rng(seed)
    ones = np.zeros((height, width), bool)
    ones.flat[random.choice(height * width, start, replace=False)] = True

    around = _periodic_gaussian(height, width)
    seen = np.fft.ifft2(np.fft.fft2(ones) * np.fft.fft2(around[:height, :width])).real
    # Ones are lifted above all zeros: the largest value is then the tightest cluster, and the
    # least one the largest void.
    lift = 2 * around[:height, :width].sum()
    seen += lift * ones

    def change(place: int, sign: int) -> None:
        row, column = divmod(place, width)
        kernel = around[height - row : 2 * height - row, width - column : 2 * width - column]
        np.add(seen, kernel, out=seen) if sign > 0 else np.subtract(seen, kernel, out=seen)
        seen[row, column] += sign * lift

    for _ in range(height * width):
        cluster = int(seen.argmax())
        change(cluster, -1)
        void = int(seen.argmin())
        change(void, 1)
        if void == cluster:
            break
    for _ in range(count - start):
        change(int(seen.argmin()), 1)
    return seen > lift / 2


def _periodic_gaussian(height: int, width: int) -> np.ndarray:  # (2 H, 2 W): 2 × 2 periods
    rows, columns = (np.minimum(np.arange(n), n - np.arange(n)) for n in (height, width))
    vertical, horizontal = (np.exp(-0.5 * (d / _SIGMA) ** 2) for d in (rows, columns))
    return np.tile(np.outer(vertical, horizontal), (2, 2))
