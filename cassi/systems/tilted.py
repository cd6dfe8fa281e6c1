"""A single-disperser camera whose bands move across the axis of dispersion too."""

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
from cassi.systems.sd_cassi import Further, SDCassi

Shift = Callable[[Tensor], tuple[Tensor, Tensor]]
"""offsets → taps and starts, as `cassi.ops.linear_taps`."""


class LinePart(NamedTuple):
    """The bands that reach the line `down` lines below their own, with their weights."""

    bands: slice
    down: int
    taps: Tensor
    """`(C', T)`, along the dispersion, times the share."""
    starts: Tensor


class TiltedCassi(CoupledCassi):
    r"""Single disperser whose axis of dispersion is tilted against the pixels of the detector.

        y[k] = Σ_c S(o(c), p(c)) [m[k, c] · x[c]]

    S(o, p) moves a band by o pixels along the axis of dispersion, and by p pixels across it.
    Fractions are interpolated linearly in both directions. Light beside the detector is lost. It
    equals `WarpedCassi` with a constant displacement per band, and is faster.

    AAᵀ couples neighbouring lines. `gram_solve`, `pinv` and `data_step` use conjugate gradients,
    preconditioned by the part of AAᵀ within each line, which `band_solve` inverts. Bands that move
    across by a tenth of a pixel take two or three iterations.

    Args:
        mask: transmission in [0, 1], as for `SDCassi`.
        bands: number of bands C.
        step: dispersion in pixels per band, whole or not; the sign is the direction.
        axis: -1 disperses along columns, -2 along rows.
        across: p(c), pixels, one per band, or one for all: down for `axis=-1`, right for `axis=-2`.
        tolerance: of conjugate gradients, relative; see `ConjugateGradients`.
        iterations: of conjugate gradients, at most.
        further: what else `SDCassi` takes, such as `offsets`.

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
    _exact = ("across",)

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
        **further: Unpack[Further],
    ) -> None:
        plain = SDCassi(mask, bands, step, axis, **further)
        super().__init__(plain, tolerance, iterations)
        refuse_gradient("across", across, "its values are fixed")
        lines = torch.as_tensor(across, dtype=torch.float64).detach().reshape(-1)
        if len(lines) not in (1, bands) or not bool(lines.isfinite().all()):
            raise ValueError(
                f"across: expected one finite number, or {bands}, one per band, got {across!r}"
            )
        self.register_buffer("across", lines.expand(bands).clone().to(plain.mask.device))
        self._derive()

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement: `(B, C, H, W)` → `(B, K, H', W')`."""
        check_shape("x", x, self.cube_shape)
        x, mask, width = self.turn(x), self.turn(self.mask), self.detector
        return self.turn(forward_parts(x, mask, self._current(), width))

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, K, H', W')` → `(B, C, H, W)`."""
        check_shape("y", y, self.measurement_shape)
        y, mask = self.turn(y), self.turn(self.mask)
        x = y.new_zeros(len(y), self.bands, *mask.shape[-2:])
        if is_wrapped(mask):  # mapped as it is, which no change in place can become
            x = x + mask.new_zeros(()).to(x.dtype)
        for part in reversed(self._current()):  # as gradients of `forward` are summed, to the bit
            x[:, part.bands] += ops.adjoint_taps(
                moved_lines(y, -part.down), _of(mask, part.bands), part.taps, part.starts
            )
        return self.turn(x)

    def _described(self) -> list[str]:
        first, last = (f"{self.across[i].item():.4g}" for i in (0, -1))
        return [f"step={self.step}", f"across={first} to {last}", f"axis={self.axis}"]

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the parts of the operator from the present mask and displacements."""
        offsets = torch.tensor(self.offsets, dtype=torch.float64, device=self.mask.device)
        wide = torch.promote_types(self.mask.dtype, torch.float32)
        self._parts: list[LinePart] = line_parts(offsets, self.across, wide)
        self._gram: Tensor | None = None  # made when it is asked for
        self._note_sources()

    def _sources(self) -> tuple[Tensor, Tensor]:
        return self.mask, self.across

    def _current(self) -> list[LinePart]:
        self._notice()
        return self._parts

    def _precondition(self, rho: Tensor) -> Apply:
        damping = rho if rho.ndim < 2 else self.turn(rho)

        def within_lines(z: Tensor) -> Tensor:
            turned = solve_lines(self.turn(z), self._lines(), damping, self.offsets)
            return self.turn(turned).contiguous()

        return within_lines

    @torch.no_grad()
    def _lines(self) -> Tensor:
        """Return AAᵀ within each line, as `cassi.ops.gram_taps` has it."""
        parts = self._current()
        if self._gram is None:
            mask, width = self.turn(self.mask), self.detector
            grams = [
                moved_lines(
                    ops.gram_taps(_of(mask, part.bands), part.taps, part.starts, width), part.down
                )
                for part in parts
            ]
            self._gram = sum(grams[1:], grams[0])
        return self._gram


def _of(mask: Tensor, bands: slice) -> Tensor:
    """Return the mask of some bands, from a mask `(…, 1|C, H, W)`."""
    return mask if mask.shape[-3] == 1 else mask[..., bands, :, :]


def line_parts(
    offsets: Tensor, across: Tensor, dtype: torch.dtype, shift: Shift = ops.linear_taps
) -> list[LinePart]:
    """Return the bands that reach each line, in the order of the lines.

    Offsets along the dispersion and across it are `(C,)`, pixels, float64; the dtype is that of the
    weights.
    """
    taps, starts = shift(offsets)
    lines, whole = ops.linear_taps(across)  # as bands are moved along, so are they across
    parts = []
    for down in range(int(whole.min()), int(whole.max()) + 2):
        share = torch.where(whole == down, lines[:, 0], 0)
        share = share + torch.where(whole == down - 1, lines[:, 1], 0)
        reached = torch.nonzero(share)[:, 0]
        if len(reached):
            here = slice(int(reached[0]), int(reached[-1]) + 1)
            weights = (taps[here] * share[here, None]).to(dtype)
            parts.append(LinePart(here, down, weights, starts[here].contiguous()))
    return parts


def forward_parts(x: Tensor, mask: Tensor, parts: Sequence[LinePart], width: int) -> Tensor:
    """Measure cubes `(B, C, H, W)` that disperse along columns: `(B, K, H, width)`."""
    images = [
        moved_lines(
            ops.forward_taps(
                x[:, part.bands], _of(mask, part.bands), part.taps, part.starts, width
            ),
            part.down,
        )
        for part in parts
    ]
    return sum(images[1:], images[0])


def moved_lines(image: Tensor, down: int) -> Tensor:
    """Move an image by whole lines, with zeros beside it."""
    if down == 0:
        return image
    lines = min(abs(down), image.shape[-2])
    kept = image.shape[-2] - lines
    image = image.narrow(-2, 0 if down > 0 else lines, kept)
    return pad(image, (0, 0, lines, 0) if down > 0 else (0, 0, 0, lines))
