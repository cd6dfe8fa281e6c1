"""Plain scenes in windows of a detector: smooth spectra that vary linearly over rows and columns.

A camera makes a few known images of them. What a window holds beside these images is noise, edges
or texture (`cassi.solvers.noise_level`).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SIDE = 16
"""Pixels of a window: enough for its unknowns, few enough for a scene to be plain in it."""
WINDOWS = 600
"""More do not make an estimate better, for camera and noise are the same everywhere."""
_USABLE = 0.7  # of a window's pixels: with fewer, little is left to see noise in
_LEAST = 32  # pixels of a window beyond the unknowns
_RIDGE = 1e-12  # of a sum of squares, for images that depend on one another and perfect fits


@dataclass(frozen=True)
class Residual:
    """What combinations of images leave of windows.

    Attributes:
        variance: `(P, B)`, the sum of squares over `freedom`.
        freedom: pixels less unknowns, `(P, B)`, or a number where all windows are whole.
        mean: of the window, `(P, B)`.
    """

    variance: Tensor
    freedom: Tensor | float
    mean: Tensor


def smooth_spectra(bands: int, count: int, like: Tensor) -> Tensor:
    """Return cosines over the bands, at most `count` of them, `(S, bands)`, made like a tensor."""
    at = (torch.arange(bands, dtype=like.dtype, device=like.device) + 0.5) / bands
    return torch.stack([torch.cos(math.pi * k * at) for k in range(min(count, bands))])


def linear_maps(height: int, width: int, like: Tensor) -> Tensor:
    """Return 1, and what rises from −1 to 1 down the rows and along the columns, `(3, H, W)`."""
    down, right = (
        torch.linspace(-1, 1, length, dtype=like.dtype, device=like.device)
        for length in (height, width)
    )
    one = torch.ones_like(down[:, None] + right)
    return torch.stack([one, down[:, None] * one, right * one])


def cut_windows(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Cut windows out of images: `(N, K, H, W)` → `(P, N, K·256)`.

    Args:
        image: of which what is left over beside whole windows is not looked at.
        rows: of each window, counted in windows, `(P,)`.
        columns: of each, alike.
    """
    many, shots, height, width = image.shape
    down, across = height // SIDE, width // SIDE
    image = image[..., : down * SIDE, : across * SIDE]
    cut = image.reshape(many, shots, down, SIDE, across, SIDE).permute(2, 4, 0, 1, 3, 5)
    return cut[rows, columns].reshape(-1, many, shots * SIDE**2)


def fit_windows(
    y: Tensor, images: list[Tensor], at: Tensor, good: Tensor | None = None
) -> Residual | None:
    """Fit images to windows of a measurement by least squares.

    Args:
        y: measurement `(B, K, H', W')`.
        images: of plain scenes, each shaped like y: a camera may have a mask for every sample.
        at: row and column of each window, counted in windows, `(P, 2)`.
        good: bool, `(1|B, K, H', W')`, the pixels that count; None for all. At the others y and
            images are 0. Windows with too few of them are left out.

    Returns:
        None where windows have hardly more pixels than unknowns.
    """

    def cut(image: Tensor) -> Tensor:
        image = image.to(torch.promote_types(image.dtype, torch.float32))
        return cut_windows(image, *at.unbind(1))

    data = cut(y)  # (P, B, pixels)
    columns = cut(torch.cat(images)).unflatten(1, (len(images), len(y))).movedim(1, 2)
    # (P, B, images, pixels)
    unknowns, pixels = columns.shape[2:]
    freedom: Tensor | float = pixels - unknowns
    if pixels - unknowns < _LEAST:
        return None
    share: Tensor | float = 1.0
    if good is not None:
        shares = cut(good.to(y).expand(len(y), -1, -1, -1)).mean(2)
        usable = shares.amin(1) > _USABLE
        data, columns, share = data[usable], columns[usable], shares[usable]
        freedom = share * pixels - unknowns
    # The last diagonal element of the Cholesky factor of the Gram matrix of images and window is
    # the length of what they leave of it. A GPU factors thousands of small matrices at once, and
    # takes QR decompositions one by one.
    both = torch.cat((columns, data[..., None, :]), 2).double()
    gram = both @ both.mT
    squares = gram.diagonal(dim1=2, dim2=3)
    squares += _RIDGE * squares + torch.finfo(gram.dtype).tiny
    rest = torch.linalg.cholesky_ex(gram).L[..., -1, -1].square().to(data)
    return Residual(rest / freedom, freedom, data.mean(2) / share)
