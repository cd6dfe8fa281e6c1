"""A camera whose sensor has a colour filter on every pixel."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cassi.checks import whole_number
from cassi.systems.arguments import Array, as_mask, as_step, check_axis, spaced_offsets
from cassi.systems.mask_patterns import filter_curves
from cassi.systems.sd_cassi import SDCassi

FILTER_LETTERS = "RGB"


class MosaicCassi(SDCassi):
    r"""Single disperser, or none, before a sensor with a mosaic of colour filters.

        y[k, h, w'] = Σ_c R[g(h, w'), c] · m[k, h, w' − o(c)] · x[c, h, w' − o(c)]

    g is the number of the filter on a detector pixel. A tile of filters repeats over the detector.
    With a step and "RGGB" the camera is a single disperser with a Bayer sensor. With step 0 and a
    mask of ones the camera is a snapshot mosaic (MSFA). Every band moves by whole pixels, so the
    filters can be multiplied into the mask of each band. So the camera is an `SDCassi` with a
    `mask` `(K, C, H, W)`.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`; ones if the camera has no mask.
        bands: number of bands C.
        step: dispersion, whole pixels per band; 0 for none.
        axis: -1 disperses along columns, -2 along rows.
        pattern: the tile: "RGGB", read row by row; a number n, for n×n different filters in order
            of wavelength; or numbers of filters `(h, w)`. The first tile starts at the first
            detector pixel.
        response: R, `(G, C)`, finite: sensitivity behind each filter to each band. None: Gaussian
            filters with evenly spaced middles, see `filter_curves`.
        offsets: whole pixels o(c) in place of a step, one per band.
        detector: as for `SDCassi`.

    Attributes:
        pattern: numbers of the filters, `(h, w)`.
        response: R, `(G, C)`.

    Raises:
        TypeError: as `SDCassi`.
        ValueError: as `SDCassi`, bands do not move by whole pixels, or pattern and response do not
            fit each other.

    Source: Bayer, US patent 3971065, 1976; Monno et al., "A practical one-shot multispectral
    imaging system using a single image sensor", IEEE TIP 24(10), 2015.

    >>> camera = MosaicCassi(torch.ones(2, 4), 2, pattern=[[0, 1]], response=[[1, 0], [0, 1]])
    >>> camera(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1).expand(1, 2, 2, 4))
    tensor([[[[1., 2., 1., 2.],
              [1., 2., 1., 2.]]]])
    """

    codes_frames = False

    def __init__(
        self,
        mask: Array,
        bands: int,
        step: float = 0,
        axis: int = -1,
        *,
        pattern: Array = "RGGB",
        response: Array | None = None,
        offsets: Sequence[float] | None = None,
        detector: int | None = None,
    ) -> None:
        check_axis(axis)
        whole_number("bands", bands, 1)
        tile, letters = as_pattern(pattern)
        curves = _as_response(response, count_filters(pattern), letters, bands)
        shifts = spaced_offsets(bands, as_step(step)) if offsets is None else list(offsets)
        if len(shifts) != bands or not all(float(shift).is_integer() for shift in shifts):
            raise ValueError(
                f"step, offsets: expected {bands} whole numbers of pixels, one per band, for a "
                f"sensor with filters, got {list(shifts)}; round them, system.offsets=[…]"
            )
        mask_tensor = as_mask(mask)
        if mask_tensor.shape[-3] not in (1, bands):
            raise ValueError(f"mask: expected 1 or {bands} bands, got {mask_tensor.shape[-3]}")
        filter_masks = [
            curve[_tile_filters(tile, mask_tensor.shape[-2:], axis, int(shift))]
            for curve, shift in zip(curves.mT, shifts, strict=True)
        ]
        coded_mask = mask_tensor * torch.stack(filter_masks).to(mask_tensor)
        super().__init__(coded_mask, bands, step, axis, offsets, detector)
        self.pattern, self.response = tile, curves

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        tile = "x".join(map(str, self.pattern.shape))
        return f"{super().extra_repr()}, {len(self.response)} filters in a tile of {tile}"


def as_pattern(pattern: Array) -> tuple[Tensor, str]:
    """Return the numbers of the filters `(h, w)`, and the letters that they index.

    The letters are "RGB" for a pattern of letters, else "".

    Raises:
        ValueError: the pattern is of no kind that `MosaicCassi` takes.
    """
    if isinstance(pattern, str):
        side = round(len(pattern) ** 0.5)
        if side**2 != len(pattern) or not pattern or not set(pattern) <= set(FILTER_LETTERS):
            raise ValueError(
                f"pattern: expected a square of letters R, G, B, such as RGGB, got {pattern!r}"
            )
        numbers = torch.tensor([FILTER_LETTERS.index(letter) for letter in pattern])
        return numbers.view(side, side), FILTER_LETTERS
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        if not 1 <= pattern <= 64:
            raise ValueError(f"pattern: expected a tile of 1 to 64 pixels a side, got {pattern}")
        return torch.arange(pattern**2).view(pattern, pattern), ""
    array = np.asarray(pattern)
    if array.ndim != 2 or array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0:
        raise ValueError(
            "pattern: expected letters such as RGGB, a number of pixels, or numbers of filters "
            f"from 0 on in rows, got {pattern!r}"
        )
    return torch.from_numpy(array.astype(np.int64)), ""


def count_filters(pattern: Array) -> int:
    """Return the number G of different filters of a pattern.

    Raises:
        ValueError: the pattern is of no kind that `MosaicCassi` takes.
    """
    tile, letters = as_pattern(pattern)
    return len(letters) or int(tile.max()) + 1


def _as_response(response: Array | None, count: int, letters: str, bands: int) -> Tensor:
    """Check a response `(G, C)`, or draw Gaussian filters."""
    if response is None:
        # A tile of 64 × 64 pixels, the largest that a number gives, has 4096 filters.
        if count > 4096:
            raise ValueError(f"pattern: expected at most 4096 filters, got {count}")
        # Filters for red, green and blue overlap more than those of a spectral mosaic.
        curves = filter_curves(count, bands, width=1.5 if letters else 1.2)
        # Bands go from blue to red, letters from R to B.
        return curves.flip(0) if letters else curves
    curves = torch.as_tensor(response).detach().clone()
    curves = curves if curves.is_floating_point() else curves.to(torch.get_default_dtype())
    if curves.ndim != 2 or len(curves) < count or curves.shape[1] != bands:
        raise ValueError(
            f"response: expected (G, C) = ({count}, {bands}), a row per filter, "
            f"got {tuple(curves.shape)}"
        )
    if not bool(curves.isfinite().all()):
        raise ValueError("response: expected finite numbers, got NaN or infinity")
    return curves


def _tile_filters(tile: Tensor, size: Sequence[int], axis: int, start: int) -> Tensor:
    """Return the filter number at each mask pixel, `(H, W)`, if the band begins at `start`."""
    rows, columns = (torch.arange(side) for side in size)
    if axis == -1:
        columns = columns + start
    else:
        rows = rows + start
    return tile[rows[:, None] % tile.shape[0], columns % tile.shape[1]]
