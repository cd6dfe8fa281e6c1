"""The dual-disperser CASSI camera."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cassi.systems.arguments import Array, as_mask, as_step, check_axis, spaced_offsets
from cassi.systems.sd_cassi import SDCassi


class DDCassi(SDCassi):
    r"""Dual disperser: dispersion, mask, the opposite dispersion, then the sum over bands.

        y[k, h, w] = Σ_c m[k, h, w + o(c)] · x[c, h, w],  o(c) = c·step  (step >= 0)

    For step < 0 the bands move the other way, o(c) = (C-1-c)·|step|. The second disperser undoes
    the shift of the first, so the measurement is as large as the cube, `(B, K, H, W)`. Operators,
    solvers and networks treat it as a camera of step 0 with a mask per band: `mask` is
    `(K, C, H, W)`, `step` is 0, and `mask_step` is the dispersion across the mask.

    Args:
        mask: transmission in [0, 1], `(H, Wm)`, `(C, H, Wm)` or `(K, 1|C, H, Wm)`, or
            `(B, K, 1|C, H, Wm)` for a mask per sample.
        bands: number of bands C, in order of increasing wavelength.
        step: dispersion across the mask, pixels per band, whole or not; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        width: columns W of the cube (rows for `axis=-2`); those of the mask by default. A mask of
            W + (C-1)|step| columns codes every band everywhere. A narrower mask is repeated, a
            wider mask is cut.
        offsets: o(c) in pixels instead of `step`, one per band, >= 0. Between two pixels the mask
            is interpolated linearly.

    Attributes:
        coding: the whole mask, repeated as far as a band reaches, `(K, 1|C, H, Wm)`.

    Raises:
        TypeError: the mask is not numeric, `bands` is not an integer or `step` not a number.
        ValueError: the mask's shape or bands, the offsets or the width do not fit.

    Source: Gehm et al., "Single-shot compressive spectral imaging with a dual-disperser
    architecture", Optics Express 15(21), 2007.

    >>> system = DDCassi(torch.ones(4, 10), bands=3, step=2, width=6)
    >>> system(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 6])
    """

    codes_frames = False
    coding: Tensor

    def __init__(
        self,
        mask: Array,
        bands: int = 28,
        step: float = 2,
        axis: int = -1,
        width: int | None = None,
        offsets: Sequence[float] | None = None,
    ) -> None:
        check_axis(axis)
        step = as_step(step)
        for name, value in (("bands", bands), ("width", width)):
            if isinstance(value, bool) or not isinstance(value, int | None):
                raise TypeError(f"{name}: expected an integer, got {value!r}")
        if bands < 1 or (width is not None and width < 1):
            raise ValueError(f"bands, width: expected at least 1, got {bands} and {width}")
        if offsets is None:
            offsets = spaced_offsets(bands, step)
        whole_mask = as_mask(mask)
        band_masks = code_bands(whole_mask, bands, offsets, axis, width)
        super().__init__(band_masks, bands, step=0, axis=axis)
        length = whole_mask.shape[axis]
        # The masks of the bands overlap and do not show the size of the whole mask, so the whole
        # mask is stored too. State dicts leave it out, because it follows from the arguments.
        reach = max(length, band_masks.shape[axis] + math.ceil(max(offsets)))
        indices = torch.arange(reach, device=whole_mask.device) % length
        coding = whole_mask.detach().index_select(axis, indices)
        self.register_buffer("coding", coding, persistent=False)
        self.mask_step = step
        self.mask_offsets = tuple(offsets)

    def extra_repr(self) -> str:
        """Describe the camera in one line."""
        height, width = self.mask.shape[-2:]
        has_step = self.mask_offsets == spaced_offsets(self.bands, self.mask_step)
        dispersion = f"step={self.mask_step}" if has_step else f"offsets={list(self.mask_offsets)}"
        return (
            f"cube={height}x{width}, shots={self.shots}, bands={self.bands}, "
            f"{dispersion} across the mask, axis={self.axis}"
        )


def code_bands(
    mask: Tensor, bands: int, offsets: Sequence[float], axis: int = -1, width: int | None = None
) -> Tensor:
    """Return the part of a mask that codes each band: m[…, c, h, w + o(c)].

    The mask is repeated beyond its end. The result is differentiable with respect to the mask.

    Args:
        mask: `(…, 1|C, H, Wm)`, or `(…, 1|C, Hm, W)` for `axis=-2`.
        bands: number of bands C.
        offsets: o(c) >= 0, one per band, pixels.
        axis: -1 disperses along columns, -2 along rows.
        width: columns W of the result (rows H for `axis=-2`); None: as many as the mask has.

    Returns:
        The masks of the bands, `(…, C, H, W)`.

    Raises:
        ValueError: the numbers of masks or offsets do not fit the bands, or an offset is negative.
    """
    if mask.shape[-3] not in (1, bands):
        raise ValueError(f"mask: expected 1 or {bands} bands, got {mask.shape[-3]}")
    shifts = [float(offset) for offset in offsets]
    if len(shifts) != bands or not all(0 <= shift < math.inf for shift in shifts):
        raise ValueError(f"offsets: expected {bands} numbers >= 0, one per band, got {shifts}")
    length = mask.shape[axis]
    indices = torch.arange(length if width is None else width, device=mask.device)
    band_masks = []
    for band, shift in enumerate(shifts):
        plane = mask[..., min(band, mask.shape[-3] - 1), :, :]
        whole_shift, fraction = math.floor(shift), shift - math.floor(shift)
        moved_plane = plane.index_select(axis, (indices + whole_shift) % length)
        if fraction:
            next_plane = plane.index_select(axis, (indices + whole_shift + 1) % length)
            moved_plane = (1 - fraction) * moved_plane + fraction * next_plane
        band_masks.append(moved_plane)
    return torch.stack(band_masks, -3)
