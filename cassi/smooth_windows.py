"""Fit smooth windows of a measurement: scenes of smooth spectra and linear brightness.

The camera turns a few such scenes into images. These images are fitted to small windows of a
measurement. The residual of a window has noise, edges and texture, and `cassi.solvers.noise_level`
estimates the noise from the residuals.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SIDE = 16
"""Side of a window, pixels: large enough for the unknowns, small enough for a smooth scene."""
WINDOWS = 600
"""Most windows that are fitted. Camera and noise are alike everywhere, so more windows would only
take longer."""
# A window needs this fraction of good pixels, and this many pixels more than unknowns. Otherwise
# its residual is too short to estimate noise from.
_MIN_GOOD_FRACTION = 0.7
_MIN_FREEDOM = 32
# Each diagonal element of a Gram matrix grows by this fraction of itself. So the Cholesky factor
# stays finite if images depend on one another, or if they fit a window perfectly.
_RIDGE = 1e-12


@dataclass(frozen=True)
class Residual:
    """Residuals of a least-squares fit of images to windows.

    Attributes:
        variance: sum of the squared residual, divided by `freedom`, `(P, B)`.
        freedom: number of good pixels less unknowns, `(P, B)`; one number if all pixels are good.
        mean: mean of the window's good pixels, `(P, B)`.
    """

    variance: Tensor
    freedom: Tensor | float
    mean: Tensor


def smooth_spectra(bands: int, count: int, reference: Tensor) -> Tensor:
    """Return cosines over the bands, at most `count` of them, `(S, bands)`.

    `reference` gives dtype and device.
    """
    band_positions = (
        torch.arange(bands, dtype=reference.dtype, device=reference.device) + 0.5
    ) / bands
    return torch.stack([torch.cos(math.pi * k * band_positions) for k in range(min(count, bands))])


def linear_maps(height: int, width: int, reference: Tensor) -> Tensor:
    """Return three maps `(3, H, W)`: ones, and ramps from −1 to 1 down and to the right."""
    down, right = (
        torch.linspace(-1, 1, length, dtype=reference.dtype, device=reference.device)
        for length in (height, width)
    )
    ones = torch.ones_like(down[:, None] + right)
    return torch.stack([ones, down[:, None] * ones, right * ones])


def cut_windows(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Cut windows out of images: `(N, K, H, W)` → `(P, N, K·256)`.

    Args:
        image: the images; pixels beyond the last whole window are not used.
        rows: row of each window, counted in windows, `(P,)`.
        columns: column of each window, counted in windows, `(P,)`.
    """
    n_images, shots, height, width = image.shape
    n_rows, n_columns = height // SIDE, width // SIDE
    image = image[..., : n_rows * SIDE, : n_columns * SIDE]
    windows = image.reshape(n_images, shots, n_rows, SIDE, n_columns, SIDE).permute(
        2, 4, 0, 1, 3, 5
    )
    return windows[rows, columns].reshape(-1, n_images, shots * SIDE**2)


def fit_windows(
    y: Tensor, images: list[Tensor], positions: Tensor, is_good: Tensor | None = None
) -> Residual | None:
    """Fit images to windows of a measurement by least squares.

    Args:
        y: measurement `(B, K, H', W')`.
        images: images of smooth scenes, each shaped like y: every sample may have its own mask.
        positions: row and column of each window, counted in windows, `(P, 2)`.
        is_good: bool, `(1|B, K, H', W')`, the good pixels; None if all are good. At bad pixels y
            and images must be 0. Windows with too few good pixels are left out.

    Returns:
        The residuals; None if a window does not have enough more pixels than unknowns.
    """

    def cut(image: Tensor) -> Tensor:
        image = image.to(torch.promote_types(image.dtype, torch.float32))
        return cut_windows(image, *positions.unbind(1))

    data = cut(y)  # (P, B, pixels)
    columns = cut(torch.cat(images)).unflatten(1, (len(images), len(y))).movedim(1, 2)
    # (P, B, images, pixels)
    unknowns, pixels = columns.shape[2:]
    freedom: Tensor | float = pixels - unknowns
    if pixels - unknowns < _MIN_FREEDOM:
        return None
    good_fraction: Tensor | float = 1.0
    if is_good is not None:
        good_fractions = cut(is_good.to(y).expand(len(y), -1, -1, -1)).mean(2)
        is_usable = good_fractions.amin(1) > _MIN_GOOD_FRACTION
        data, columns, good_fraction = (
            data[is_usable],
            columns[is_usable],
            good_fractions[is_usable],
        )
        freedom = good_fraction * pixels - unknowns
    # The Gram matrix is that of images and data together. The last diagonal element of its Cholesky
    # factor is the norm of the residual. A GPU factors thousands of small matrices at once, but
    # computes QR decompositions one by one. A Gram matrix has the squared condition number of the
    # images, so it is computed in float64.
    images_and_data = torch.cat((columns, data[..., None, :]), 2).double()
    gram = images_and_data @ images_and_data.mT
    squares = gram.diagonal(dim1=2, dim2=3)
    squares += _RIDGE * squares + torch.finfo(gram.dtype).tiny
    squared_residual = torch.linalg.cholesky_ex(gram).L[..., -1, -1].square().to(data)
    return Residual(squared_residual / freedom, freedom, data.mean(2) / good_fraction)
