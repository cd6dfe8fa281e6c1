"""A single-disperser camera whose dispersion is tilted against the pixels of the detector."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Unpack

from cassi import ops
from cassi.ops._recording import is_wrapped
from cassi.systems.arguments import Array, check_shape, refuse_gradient
from cassi.systems.conjugate import Apply
from cassi.systems.coupled import CoupledCassi
from cassi.systems.lines import solve_lines
from cassi.systems.sd_cassi import SDCassi, SDCassiOptions

Shift = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A function offsets → (taps, starts), such as `cassi.ops.linear_taps`."""


class LinePart(NamedTuple):
    """Bands whose light falls on the detector line `down` lines below their scene line."""

    bands: slice
    down: int
    taps: Tensor
    """`(C', T)`, taps along the dispersion, times the fraction of light on this line."""
    starts: Tensor
    """`(C',)`, int64, first detector pixel of every band."""


class TiltedCassi(CoupledCassi):
    r"""Single disperser whose axis of dispersion is tilted against the pixels of the detector.

        y[k] = Σ_c S(o(c), p(c)) [m[k, c] · x[c]]

    S(o, p) moves a band by o pixels along the axis of dispersion, and by p pixels across it.
    Fractions are interpolated linearly in both directions. Light beside the detector is lost. The
    camera equals a `WarpedCassi` with a constant displacement per band, and is faster.

    AAᵀ couples neighbouring lines. So `gram_solve`, `pinv` and `data_step` use conjugate gradients.
    The preconditioner solves each line by itself, with `band_solve`. If bands move across by 0.1
    pixel, two or three iterations are enough.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`.
        bands: number of bands C.
        step: dispersion in pixels per band, whole or not; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        across: p(c), pixels, one per band, or one for all: down for `axis=-1`, right for `axis=-2`.
        tolerance: relative tolerance of conjugate gradients; see `ConjugateGradients`.
        iterations: most iterations of conjugate gradients.
        further: further arguments of `SDCassi`, such as `offsets`.

    Raises:
        TypeError: as `SDCassi`.
        ValueError: as `SDCassi`, or `across` is not one finite number per band.

    Source: Saad, "Iterative methods for sparse linear systems", 2003, chapter 10 (block Jacobi),
    for the preconditioner.

    >>> system = TiltedCassi(torch.ones(4, 6), bands=3, step=1, across=[0.0, -0.1, -0.2])
    >>> system(torch.ones(1, 3, 4, 6)).shape
    torch.Size([1, 1, 4, 8])
    """

    across: Tensor
    _float64_tensors = ("across",)

    def __init__(
        self,
        mask: Array,
        bands: int,
        step: float = 2,
        axis: int = -1,
        *,
        across: Array = 0.0,
        tolerance: float | None = None,
        iterations: int = 200,
        **further: Unpack[SDCassiOptions],
    ) -> None:
        disperser = SDCassi(mask, bands, step, axis, **further)
        super().__init__(disperser, tolerance, iterations)
        refuse_gradient("across", across, "its values are fixed")
        shifts_across = torch.as_tensor(across, dtype=torch.float64).detach().reshape(-1)
        if len(shifts_across) not in (1, bands) or not bool(shifts_across.isfinite().all()):
            raise ValueError(
                f"across: expected one finite number, or {bands}, one per band, got {across!r}"
            )
        self.register_buffer(
            "across", shifts_across.expand(bands).clone().to(disperser.mask.device)
        )
        self._start_deriving()

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        check_shape("x", x, self.cube_shape)
        x, mask, width = self.orient(x), self.orient(self.mask), self.detector
        return self.orient(forward_parts(x, mask, self._get_parts(), width))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        check_shape("y", y, self.measurement_shape)
        y, mask = self.orient(y), self.orient(self.mask)
        x = y.new_zeros(len(y), self.bands, *mask.shape[-2:])
        if is_wrapped(mask):
            # If vmap maps the mask, x must be a mapped tensor too before it is changed in place.
            x = x + mask.new_zeros(()).to(x.dtype)
        # Autograd adds the gradients of `forward` in reversed order. The same order here gives
        # `adjoint` the same bits.
        for part in reversed(self._get_parts()):
            image, band_mask = shift_lines(y, -part.down), _select_bands(mask, part.bands)
            x[:, part.bands] += ops.adjoint_taps(image, band_mask, part.taps, part.starts)
        return self.orient(x)

    def _describe_arguments(self) -> list[str]:
        first, last = (f"{self.across[i].item():.4g}" for i in (0, -1))
        return [f"step={self.step}", f"across={first} to {last}", f"axis={self.axis}"]

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the parts of the operator from the present mask and displacements."""
        offsets = torch.tensor(self.offsets, dtype=torch.float64, device=self.mask.device)
        dtype = torch.promote_types(self.mask.dtype, torch.float32)
        self._parts: list[LinePart] = line_parts(offsets, self.across, dtype)
        self._gram: Tensor | None = None  # computed by the first solve
        self._note_sources()

    def _list_sources(self) -> tuple[Tensor, Tensor]:
        return self.mask, self.across

    def _get_parts(self) -> list[LinePart]:
        self._refresh_if_changed()
        return self._parts

    def _precondition(self, rho: Tensor) -> Apply:
        damping = rho if rho.ndim < 2 else self.orient(rho)

        def solve_within_lines(z: Tensor) -> Tensor:
            solution = solve_lines(self.orient(z), self._compute_line_gram(), damping, self.offsets)
            return self.orient(solution).contiguous()

        return solve_within_lines

    @torch.no_grad()
    def _compute_line_gram(self) -> Tensor:
        """Return AAᵀ within each line, as `cassi.ops.gram_taps` returns it."""
        parts = self._get_parts()
        if self._gram is None:
            mask, width = self.orient(self.mask), self.detector
            grams = []
            for part in parts:
                band_mask = _select_bands(mask, part.bands)
                gram = ops.gram_taps(band_mask, part.taps, part.starts, width)
                grams.append(shift_lines(gram, part.down))
            self._gram = sum(grams[1:], grams[0])
        return self._gram


def _select_bands(mask: Tensor, bands: slice) -> Tensor:
    """Return the mask of some bands, from a mask `(…, 1|C, H, W)`."""
    return mask if mask.shape[-3] == 1 else mask[..., bands, :, :]


def line_parts(
    offsets: Tensor, shifts_across: Tensor, dtype: torch.dtype, shift: Shift = ops.linear_taps
) -> list[LinePart]:
    """Return the bands that fall on each line, in the order of the lines.

    Args:
        offsets: offsets along the dispersion, `(C,)`, pixels, float64.
        shifts_across: shifts across the dispersion, `(C,)`, pixels, float64.
        dtype: dtype of the taps.
        shift: computes the taps along the dispersion.
    """
    # All bands of one line are measured in one call, instead of one call per band.
    taps, starts = shift(offsets)
    fractions, first_lines = ops.linear_taps(shifts_across)
    parts = []
    for down in range(int(first_lines.min()), int(first_lines.max()) + 2):
        fraction = torch.where(first_lines == down, fractions[:, 0], 0)
        fraction = fraction + torch.where(first_lines == down - 1, fractions[:, 1], 0)
        band_indices = torch.nonzero(fraction)[:, 0]
        if len(band_indices):
            band_range = slice(int(band_indices[0]), int(band_indices[-1]) + 1)
            weights = (taps[band_range] * fraction[band_range, None]).to(dtype)
            parts.append(LinePart(band_range, down, weights, starts[band_range].contiguous()))
    return parts


def forward_parts(x: Tensor, mask: Tensor, parts: Sequence[LinePart], width: int) -> Tensor:
    """Measure cubes `(B, C, H, W)` that disperse along columns: `(B, K, H, width)`."""
    images = []
    for part in parts:
        band_mask = _select_bands(mask, part.bands)
        image = ops.forward_taps(x[:, part.bands], band_mask, part.taps, part.starts, width)
        images.append(shift_lines(image, part.down))
    return sum(images[1:], images[0])


def shift_lines(image: Tensor, down: int) -> Tensor:
    """Move an image down by whole lines, and fill the free lines with zeros."""
    if down == 0:
        return image
    lines = min(abs(down), image.shape[-2])
    n_kept = image.shape[-2] - lines
    image = image.narrow(-2, 0 if down > 0 else lines, n_kept)
    return pad(image, (0, 0, lines, 0) if down > 0 else (0, 0, 0, lines))
